//! Builds the init of `guests/init/`, so that `satori run -- COMMAND` carries it with it. Where that cannot be, the
//! monitor is built all the same, and the command says why it cannot run.

use std::path::{Path, PathBuf};

#[path = "../../guests/build.rs"]
mod guests;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/init");
    for part in guests::SOURCES {
        println!("cargo::rerun-if-changed={}", guest.join(part).display());
    }
    let (program, missing) = match guests::build(&guest, "satori-init", &out.join("guests/init")) {
        Ok(program) => (program, String::new()),
        Err(why) => {
            println!("cargo::warning=satori run -- COMMAND will not run: {why}");
            (Vec::new(), why)
        }
    };
    std::fs::write(out.join("init"), program).expect("OUT_DIR can be written");
    std::fs::write(out.join("init-missing"), missing).expect("OUT_DIR can be written");
}
