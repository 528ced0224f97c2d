//! Builds the two programs of `guests/bench/`, and the guests `hv_spin`, `game` and `rapid` of `guests/`, so that
//! `satori bench` carries them with it.
//!
//! The first two are static x86-64 programs without dependencies, so this needs no network, and of the system
//! nothing but the static C library, which Debian has in the package that a linker needs anyway. Where
//! that is missing the monitor is built all the same, and `satori bench` says why it cannot run.

use std::path::{Path, PathBuf};

#[path = "../../../guests/build.rs"]
mod guests;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    for (folder, name, file) in [
        ("guests/bench", "satori-bench-guest", "program"),
        ("guests/bench", "nested", "nested"),
        ("guests/bare", "hv_spin", "spin"),
        ("guests/bare", "game", "game"),
        ("guests/bare", "rapid", "rapid"),
    ] {
        let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(folder);
        for part in guests::SOURCES {
            println!("cargo::rerun-if-changed={}", guest.join(part).display());
        }
        let (program, missing) = match guests::build(&guest, name, &out.join(folder)) {
            Ok(program) => (program, String::new()),
            Err(why) => {
                println!("cargo::warning=satori bench will not run: {why}");
                (Vec::new(), why)
            }
        };
        std::fs::write(out.join(file), program).expect("OUT_DIR can be written");
        std::fs::write(out.join(format!("{file}-missing")), missing).expect("OUT_DIR can be written");
    }
}
