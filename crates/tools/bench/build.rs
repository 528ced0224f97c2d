//! Builds the benchmark program of `guests/bench/`, and the guests `hv_spin`, `game` and `rapid` of `guests/`, so that
//! `satori bench` carries them with it.
//!
//! The first is a static x86-64 program without dependencies, so this needs no network, and of the system
//! nothing but the static C library, which Debian has in the package that a linker needs anyway. Where
//! that is missing the monitor is built all the same, and `satori bench` says why it cannot run.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    for (folder, name, file) in [
        ("guests/bench", "satori-bench-guest", "program"),
        ("guests/bare", "hv_spin", "spin"),
        ("guests/bare", "game", "game"),
        ("guests/bare", "rapid", "rapid"),
    ] {
        let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(folder);
        for part in ["src", "Cargo.toml", "Cargo.lock", ".cargo/config.toml"] {
            println!("cargo::rerun-if-changed={}", guest.join(part).display());
        }
        let (program, missing) = match build(&guest, name, &out.join(folder)) {
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

fn build(guest: &Path, name: &str, target: &Path) -> Result<Vec<u8>, String> {
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        return Err("its program is for x86-64 processors only".into());
    }
    let mut cargo = Command::new(std::env::var_os("CARGO").expect("cargo sets it"));
    cargo.args(["build", "--quiet", "--locked", "--offline", "--release", "--bin", name, "--target-dir"]);
    cargo.arg(target);
    // The folder's .cargo/config.toml holds the flags, which these would replace; and clippy must
    // not stand in for the compiler.
    for name in [
        "RUSTFLAGS",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_BUILD_TARGET",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_MAKEFLAGS",
        "MAKEFLAGS",
    ] {
        cargo.env_remove(name);
    }
    let built =
        cargo.current_dir(guest).output().map_err(|why| format!("cargo cannot be started ({why})"))?;
    if !built.status.success() {
        let text = String::from_utf8_lossy(&built.stderr);
        let first = text.lines().find(|line| line.contains("cannot find")).or(text.lines().next());
        return Err(format!(
            "{name} cannot be built ({}); it needs a static C library: install libc6-dev",
            first.unwrap_or("no reason given").trim()
        ));
    }
    let program = target.join("x86_64-unknown-linux-gnu/release").join(name);
    std::fs::read(&program).map_err(|why| format!("{} cannot be read ({why})", program.display()))
}
