//! What keeps a guest that broke out of the machine from reaching the host.
//!
//! A monitor reads a guest's kernel, devices and instructions, all of which may be hostile. Should one of
//! them take the process over, little is to be had: before the first guest instruction the process gives
//! away whatever running the guest does not need. [`enter`] does that in this order, on the only thread
//! that there is yet, so that threads started later inherit it:
//!
//! 1. files other than those it was told to keep are closed;
//! 2. a user, mount, network, IPC and UTS namespace of its own, in which the root directory is empty and
//!    there is no network; where namespaces are not permitted, an empty root directory alone;
//! 3. no capabilities, and no way to new ones;
//! 4. an allow-list of system calls (see [`calls`]).
//!
//! A system call that is not on the list ends the process with a message that names it; one that only an
//! attacker would try kills it on the spot.

pub mod calls;
mod filter;
mod folder;
pub mod helper;
mod kvm;
mod namespaces;
mod network;
mod sockets;
mod sys;
mod trap;

use std::os::fd::RawFd;

pub use folder::{Folder, enter_folder};
pub use network::enter_network;
pub use sockets::enter_sockets;

/// How much of the sandbox must be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// None of it.
    Off,
    /// As much as the host permits.
    #[default]
    Auto,
    /// All of it, or nothing runs.
    Require,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Off, Mode::Auto, Mode::Require];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Auto => "auto",
            Mode::Require => "require",
        }
    }

    /// The mode that `word` names.
    pub fn of(word: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == word)
    }
}

/// What the process needs in the sandbox.
#[derive(Clone, Copy, Debug)]
pub struct Needs<'a> {
    /// Open files that are kept, beside standard input, output and error.
    pub keep: &'a [RawFd],
    /// Whether a debugger or a watcher will connect to a socket that is among them.
    pub listening: bool,
    /// Whether threads that start later pin themselves to processors.
    pub pinned: bool,
    /// Whether guest memory is placed on nodes of the host's, each time that the machine begins.
    pub placed: bool,
    /// Whether the guest runs by the host's /dev/kvm.
    pub kvm: bool,
    /// Exit status after a system call that is not permitted.
    pub status: i32,
    /// Called before that exit, in a signal handler: gives the terminal back.
    pub farewell: fn(),
}

impl Default for Needs<'_> {
    /// Nothing; the status is that of an internal error.
    fn default() -> Self {
        Needs {
            keep: &[],
            listening: false,
            pinned: false,
            placed: false,
            kvm: false,
            status: 125,
            farewell: || {},
        }
    }
}

/// One of the measures, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measure {
    /// What it is.
    pub name: &'static str,
    /// What was achieved, or why it was not.
    pub outcome: Result<&'static str, String>,
}

/// Why the guest is not run.
#[derive(Debug, thiserror::Error)]
#[error("--sandbox require: {0}; permit it, or use --sandbox auto")]
pub struct Error(String);

/// Gives away what `needs` does not name. The process must have one thread only.
///
/// Under [`Mode::Require`] the first measure that cannot be had is an error, and the process is then fit
/// for nothing but telling so.
pub fn enter(mode: Mode, needs: &Needs<'_>) -> Result<Vec<Measure>, Error> {
    let mut measures = Vec::new();
    if mode == Mode::Off {
        return Ok(measures);
    }
    let mut add = |name, outcome: Result<&'static str, String>| {
        if let (Mode::Require, Err(why)) = (mode, &outcome) {
            return Err(Error(format!("{name} cannot be had ({why})")));
        }
        measures.push(Measure { name, outcome });
        Ok(())
    };
    find_vdso();
    add("closed files", close_files(needs.keep))?;
    for (name, outcome) in namespaces::enter() {
        add(name, outcome)?;
    }
    add("no capabilities", sys::drop_capabilities().map(|()| "none is left").map_err(text))?;
    add("no new privileges", sys::no_new_privileges().map(|()| "set").map_err(text))?;
    trap::install(needs.status, needs.farewell);
    add("system call filter", filter::install(needs))?;
    Ok(measures)
}

/// rustix looks for the vDSO when a clock is read first: before Linux 6.4 in /proc/self/auxv, by open(2), which is not permitted behind
/// a filter.
fn find_vdso() {
    let _ = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

/// Closes everything but standard input, output, error and `keep`.
fn close_files(keep: &[RawFd]) -> Result<&'static str, String> {
    let mut keep: Vec<u32> =
        keep.iter().filter_map(|&fd| u32::try_from(fd).ok()).filter(|&fd| fd > 2).collect();
    keep.sort_unstable();
    keep.dedup();
    let mut first = 3;
    for fd in keep.into_iter().chain([u32::MAX]) {
        if first < fd {
            sys::close_range(first, fd - 1).map_err(text)?;
        }
        first = fd.saturating_add(1);
    }
    Ok("only those in use are open")
}
