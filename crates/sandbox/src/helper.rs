//! A helper: a process of our own binary that serves the guest from a sandbox of its own, a folder or a network.
//!
//! Its socket to the machine is its standard input. On standard output it says, a line each, what became of its
//! sandbox and, last, `READY`, or else why it cannot serve; then it closes it. Where the socket is closed it ends.

use std::io::{Read, Write, stdout};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Measure;

/// What a helper that cannot serve exits with.
pub const FAILED: i32 = 125;

/// What it says last before it serves.
const READY: &str = "ready";

/// Why there is no helper.
#[derive(Debug, thiserror::Error)]
pub enum Unstarted {
    /// The process did not come to be.
    #[error("cannot be started ({0}): free memory or processes, and try again")]
    Start(#[from] std::io::Error),
    /// It said why it cannot serve, if it said anything.
    #[error("{}", .0.as_deref().unwrap_or("its process ended without a word"))]
    Refused(Option<String>),
}

/// A running helper. It ends when the other end of its socket is closed.
#[derive(Debug)]
pub struct Helper {
    /// Carries what it serves.
    pub socket: UnixStream,
    /// What became of its sandbox, and what it cannot do here, a line each.
    pub measures: Vec<String>,
    child: Child,
}

impl Helper {
    /// Starts `command` with `theirs` as its socket, whose other end is `ours`. Returns when it serves.
    pub fn start(command: &mut Command, ours: UnixStream, theirs: UnixStream) -> Result<Self, Unstarted> {
        let mut child = command
            .env_clear()
            // Ctrl-C at the terminal is the guest's.
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        // It closes its standard output when it serves, or ends.
        child.stdout.take().into_iter().for_each(|mut out| drop(out.read_to_string(&mut said)));
        let mut measures: Vec<_> = said.lines().map(str::to_owned).collect();
        let last = measures.pop();
        if last.as_deref() != Some(READY) {
            let _ = child.wait();
            return Err(Unstarted::Refused(last));
        }
        Ok(Helper { socket: ours, measures, child })
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

/// Says in the helper that it serves, what became of its sandbox, and `limits`, what it cannot do here.
pub fn say_ready(measures: &[Measure], limits: &[String]) -> std::io::Result<()> {
    let mut out = stdout().lock();
    for Measure { name, outcome } in measures {
        match outcome {
            Ok(what) => writeln!(out, "{name}: {what}")?,
            Err(why) => writeln!(out, "{name}: NOT had: {why}")?,
        }
    }
    limits.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out, "{READY}")?;
    out.flush()?;
    drop(out);
    // Standard output becomes standard error, so that who reads it sees its end.
    let _ = rustix::stdio::dup2_stdout(std::io::stderr());
    Ok(())
}

/// Says in the helper why it cannot serve. Returns its exit status.
pub fn say_why(why: &str) -> i32 {
    let _ = writeln!(stdout(), "{why}");
    FAILED
}

/// Lets the helper have as many open files as it may: each file and each connection of the guest's is one.
pub fn more_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
