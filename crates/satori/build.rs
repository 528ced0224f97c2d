//! Builds the init of `guests/init/`, so that `satori run -- COMMAND` carries it with it, and the program that ends a guest
//! with a status. Where that cannot be, the monitor is built all the same, and the command says why it cannot run.
//!
//! For arm64 it builds `guests/init/arm64/`, where Debian's cross compiler is.
//!
//! And finds the commit of a release build, for `satori --version` and the man pages. Other builds name none: asking
//! git would compile this crate anew behind every commit.

use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../guests/build.rs"]
mod guests;

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_string()).filter(|text| output.status.success() && !text.is_empty())
}

fn commit() {
    println!("cargo::rerun-if-changed=build.rs");
    let (mut commit, mut date) = ("development build".to_string(), String::new());
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        // An archive of the sources has no commits, and its own folder's must not be another project's.
        let ours = git(&["ls-files", "--error-unmatch", "build.rs"]).is_some();
        let told = ours.then(|| git(&["log", "-1", "--format=%h"])).flatten();
        commit = told.map_or("commit unknown".into(), |short| format!("commit {short}"));
        if ours {
            date = git(&["log", "-1", "--format=%cs"]).unwrap_or_default();
            for name in ["HEAD", "logs/HEAD"] {
                git(&["rev-parse", "--git-path", name])
                    .iter()
                    .for_each(|path| println!("cargo::rerun-if-changed={path}"));
            }
        }
    }
    println!("cargo::rustc-env=SATORI_COMMIT={commit}");
    println!("cargo::rustc-env=SATORI_DATE={date}");
}

fn main() {
    commit();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/init");
    for part in guests::SOURCES {
        println!("cargo::rerun-if-changed={}", guest.join(part).display());
    }
    let mut missing = String::new();
    for (name, file) in [("satori-init", "init"), ("satori-exit", "exit")] {
        let program = guests::build(&guest, name, &out.join("guests/init")).unwrap_or_else(|why| {
            println!("cargo::warning=satori run -- COMMAND or satori fetch exit will not work: {why}");
            missing = why;
            Vec::new()
        });
        std::fs::write(out.join(file), program).expect("OUT_DIR can be written");
    }
    std::fs::write(out.join("init-missing"), missing).expect("OUT_DIR can be written");
    // Who has no use for commands on arm64 does not need it, and hears nothing.
    let folder = guest.join("arm64");
    println!("cargo::rerun-if-changed={}", folder.display());
    let (program, missing) = match arm64(&folder, &out.join("guests/init-arm64")) {
        Ok(program) => (program, String::new()),
        Err(why) => (Vec::new(), why),
    };
    std::fs::write(out.join("init-arm64"), program).expect("OUT_DIR can be written");
    std::fs::write(out.join("init-arm64-missing"), missing).expect("OUT_DIR can be written");
}

/// The init for AArch64, or why it cannot be had: it is C, as the pinned Rust has no library for that processor.
fn arm64(folder: &Path, program: &Path) -> Result<Vec<u8>, String> {
    const ADVICE: &str =
        "install gcc-aarch64-linux-gnu and libc6-dev-arm64-cross, touch crates/satori/build.rs";
    let entries = std::fs::read_dir(folder).map_err(|why| format!("{} ({why})", folder.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let mut sources: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "c")).collect();
    sources.sort();
    let mut compiler = Command::new("aarch64-linux-gnu-gcc");
    compiler.args(["-std=gnu11", "-Os", "-static", "-s", "-pthread", "-o"]);
    let built = compiler.arg(program).args(sources).output();
    let built = built.map_err(|_| format!("there was no cross compiler; {ADVICE}"))?;
    if !built.status.success() {
        let text = String::from_utf8_lossy(&built.stderr);
        let first = text.lines().find(|line| line.contains("rror") || line.contains("cannot find"));
        return Err(format!(
            "its init cannot be built ({}); {ADVICE}",
            first.unwrap_or("no reason given").trim()
        ));
    }
    std::fs::read(program).map_err(|why| format!("{} cannot be read ({why})", program.display()))
}
