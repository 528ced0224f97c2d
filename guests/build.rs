//! Builds a program of this folder for a crate that carries it: a module of that crate's build script.

use std::path::Path;
use std::process::Command;

/// What cargo is to watch of a guest's folder.
pub(crate) const SOURCES: [&str; 4] = ["src", "Cargo.toml", "Cargo.lock", ".cargo/config.toml"];

/// The program `name` of the folder `guest`, or why it cannot be had. Needs no network, and of the system nothing but
/// the static C library, which Debian has in the package that a linker needs anyway.
pub(crate) fn build(guest: &Path, name: &str, target: &Path) -> Result<Vec<u8>, String> {
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
