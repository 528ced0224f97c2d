//! What the tests share: running the built binary, Debian's kernels, and tiny guests of our own.

// Each test program uses a part of it.
#![allow(dead_code, reason = "shared by several test programs")]

pub(crate) mod bare;
pub(crate) mod drivers;
pub(crate) mod gdb;
pub(crate) mod pvh;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The binary under test.
pub(crate) const SATORI: &str = env!("CARGO_BIN_EXE_satori");

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Ended {
    pub status: i32,
    pub console: String,
    pub messages: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Ended {
            // A signal has no status; none of ours is negative.
            status: output.status.code().unwrap_or(-1),
            console: String::from_utf8_lossy(&output.stdout).into_owned(),
            messages: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs satori with `arguments` and no input.
///
/// One that hangs is killed, with all that it began: a test that waits for ever tells nobody which it is.
pub(crate) fn satori(arguments: &[&str]) -> Ended {
    let limited = ["--signal=KILL", PATIENCE, SATORI];
    let mut command = Command::new("timeout");
    command.args(limited).args(arguments).stdin(Stdio::null()).output().expect("satori runs").into()
}

/// Seconds for any one run: several times what the longest takes on a busy machine.
const PATIENCE: &str = "900";

/// Reads from `from` until `text` has come, and gives all that came.
pub(crate) fn read_until(from: &mut impl Read, text: &str) -> String {
    let mut seen = String::new();
    let mut buffer = [0; 256];
    while !seen.contains(text) {
        let length = from.read(&mut buffer).expect("output");
        assert!(length > 0, "ended after {seen:?}, without {text:?}");
        seen += &String::from_utf8_lossy(&buffer[..length]);
    }
    seen
}

/// A place for a file of this test program, in cargo's target folder.
pub(crate) fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", env!("CARGO_CRATE_NAME")))
}

/// Writes `bytes` to a scratch file and tells its path.
pub(crate) fn file(name: &str, bytes: &[u8]) -> String {
    let path = scratch(name);
    std::fs::write(&path, bytes).expect("a scratch file");
    path.to_str().expect("UTF-8").to_string()
}

/// What `satori fetch` finds: a path in the user's cache.
pub(crate) fn fetch(what: &[&str]) -> String {
    let ended = satori(&[&["fetch"], what].concat());
    assert_eq!(ended.status, 0, "Debian's packages are needed for this test: {}", ended.messages);
    ended.console.trim().to_string()
}

/// The initramfs of the trials in `guest/init.sh`.
pub(crate) fn trials() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let busybox = std::fs::read(fetch(&["busybox"])).expect("busybox");
        let threads = threads();
        let script = include_str!("../guest/init.sh");
        file("trials.cpio", &satori::initramfs::build(&busybox, script, &[("threads", &threads)]))
    })
}

/// `guest/threads.c`, built by the compiler that Rust links with, statically.
fn threads() -> Vec<u8> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest/threads.c");
    let program = scratch("threads");
    let built =
        Command::new("cc").args(["-O2", "-static", "-pthread", "-o"]).arg(&program).arg(source).status();
    assert!(built.is_ok_and(|s| s.success()), "cc cannot build {source}: install gcc and libc6-dev");
    std::fs::read(program).expect("the program that was built")
}

/// The lines of a console that tell of something wrong, and whether the trials came to their end.
pub(crate) fn verdict(console: &str) -> Result<(), String> {
    let wrong: Vec<_> =
        console.lines().filter(|l| l.starts_with("BAD") || l.starts_with("complaint")).collect();
    if !wrong.is_empty() {
        return Err(wrong.join("\n"));
    }
    match console.lines().filter(|line| line.starts_with("ok ")).count() {
        TRIALS if console.contains("all trials done") => Ok(()),
        count => Err(format!("{count} of {TRIALS} trials passed")),
    }
}

/// How many lines "ok ..." `guest/init.sh` prints.
const TRIALS: usize = 25;

/// The value of "fact NAME: VALUE" on a console.
pub(crate) fn fact<'a>(console: &'a str, name: &str) -> &'a str {
    let prefix = format!("fact {name}: ");
    console.lines().find_map(|line| line.strip_prefix(prefix.as_str())).unwrap_or("(none)").trim()
}
