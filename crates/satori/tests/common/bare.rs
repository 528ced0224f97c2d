//! The bare-metal programs of `guests/`: built here, run on the built binary.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{Ended, satori};

/// Builds all guests once and tells the folder of the programs.
fn built() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guests");
        // Cargo's names depend on the paths of packages, and with them where functions lie. A path through an open descriptor is
        // the same in every folder, so that the guests are, byte for byte.
        let built = Command::new("sh")
            .args([
                "-c",
                "exec 9<../.. && exec \"$@\"",
                "sh",
                env!("CARGO"),
                "build",
                "--quiet",
                "--locked",
                "--offline",
            ])
            .args([
                "--release",
                "--bins",
                "--manifest-path",
                "/proc/self/fd/9/guests/bare/Cargo.toml",
                "--target-dir",
            ])
            .arg(&target)
            // Its .cargo/config.toml holds the flags, which these would replace.
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../guests/bare"))
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("CARGO_BUILD_TARGET")
            .status();
        assert!(built.is_ok_and(|status| status.success()), "the guests cannot be built");
        target.join("x86_64-unknown-linux-gnu/release")
    })
}

/// Where the program of a guest is.
pub(crate) fn program(guest: &str) -> PathBuf {
    built().join(guest)
}

/// Runs a guest on so many vCPUs, with these words on its command line.
pub(crate) fn run(guest: &str, cpus: u32, words: &str, arguments: &[&str]) -> Ended {
    let kernel = built().join(guest);
    let (cpus, words) = (cpus.to_string(), format!("{guest} cpus={cpus} {words}"));
    let fixed = ["run", "--kernel", kernel.to_str().expect("UTF-8"), "-m", "128M", "--cpus", &cpus];
    let chosen = arguments.iter().any(|word| *word == "--hyperv" || word.contains("hv-"));
    let interface: &[_] = if chosen { &[] } else { &["--hyperv", "off"] };
    let quiet: &[_] = if arguments.contains(&"--report") { &[] } else { &["--report", "off"] };
    let more = [&["--cmdline", &words], quiet, interface].concat();
    satori(&[&fixed[..], &more, arguments].concat())
}

/// Every check of the guest must pass.
pub(crate) fn passes(guest: &str, cpus: u32, arguments: &[&str]) {
    passes_as(guest, cpus, "", arguments);
}

/// As [`passes`], with these words on its command line.
pub(crate) fn passes_as(guest: &str, cpus: u32, words: &str, arguments: &[&str]) {
    let ended = run(guest, cpus, words, &[&["--timeout", "4m"][..], arguments].concat());
    let last = ended.console.lines().last().unwrap_or_default();
    assert!(ended.status == 1 && last.ends_with(" 0 failed"), "{}\n{}", ended.console, ended.messages);
    println!("{last}");
}
