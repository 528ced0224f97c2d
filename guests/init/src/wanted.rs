//! Whether the command, or a process of it, waits for its standard input.
//!
//! The host's bytes are not taken before: those that nobody here reads belong to whoever reads them next there, as in
//! `while read line; do satori run -- true; done`. A pipe does not tell its writer that a reader waits; the system call
//! in which each thread of a process is blocked (proc(5), /proc/PID/syscall) does.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::sys;

/// The first pause between two looks, the longest at first, and the longest at all.
const PAUSES: [Duration; 3] = [Duration::from_millis(1), Duration::from_millis(50), Duration::from_secs(1)];
/// Pauses are no longer than this part of the time that was waited: each look takes the processor from the command.
const PART: u32 = 16;
/// Descriptors of a poll that are looked at.
const DESCRIPTORS: usize = 1024;

/// What a blocked system call waits for.
#[derive(Clone, Copy)]
enum Wait {
    /// The descriptor of its first argument.
    First,
    /// The descriptor of its second argument.
    Second,
    /// `struct pollfd`s at its first argument, as many as the second says.
    Poll,
    /// The `fd_set` at its second argument.
    Select,
    /// An epoll descriptor.
    Epoll,
    /// Anything.
    Any,
}

/// Numbers of 64-bit programs, and of 32-bit ones where no 64-bit call of that number blocks (Linux, syscall_64.tbl and
/// syscall_32.tbl).
const CALLS: &[(u64, Wait)] = &[
    (0, Wait::First),    // read
    (3, Wait::First),    // read, 32 bits
    (19, Wait::First),   // readv
    (145, Wait::First),  // readv, 32 bits
    (275, Wait::First),  // splice
    (276, Wait::First),  // tee
    (40, Wait::Second),  // sendfile
    (7, Wait::Poll),     // poll
    (271, Wait::Poll),   // ppoll
    (168, Wait::Poll),   // poll, 32 bits
    (309, Wait::Poll),   // ppoll, 32 bits
    (23, Wait::Select),  // select
    (270, Wait::Select), // pselect6
    (142, Wait::Select), // _newselect, 32 bits
    (308, Wait::Select), // pselect6, 32 bits
    (232, Wait::Epoll),  // epoll_wait
    (281, Wait::Epoll),  // epoll_pwait
    (441, Wait::Epoll),  // epoll_pwait2
    (256, Wait::Epoll),  // epoll_wait, 32 bits
    (426, Wait::Any),    // io_uring_enter
];

/// The processes that were there before the command, this one and the kernel's threads.
pub struct Others(BTreeSet<OsString>);

impl Others {
    /// Looks for them. From here on this process' folder is /proc: a path from the root would ask the host's file
    /// server for its first name again and again.
    pub fn now() -> Others {
        let _ = sys::change_folder(&sys::path("/proc".as_ref()));
        Others(processes().collect())
    }
}

/// Waits until a process waits for what is written to `pipe`.
pub fn wait(pipe: &impl AsRawFd, others: &Others) {
    let Ok(pipe) = fs::read_link(format!("self/fd/{}", pipe.as_raw_fd())) else { return };
    // A kernel that does not tell, or a root without /proc: the input is taken at once.
    if fs::read("self/syscall").is_err() {
        return;
    }
    let [mut pause, at_first, longest] = PAUSES;
    let begun = Instant::now();
    while !processes().any(|process| !others.0.contains(&process) && waits(Path::new(&process), &pipe)) {
        std::thread::sleep(pause);
        pause = (pause * 2).min((begun.elapsed() / PART).clamp(at_first, longest));
    }
}

fn processes() -> impl Iterator<Item = OsString> {
    let entries = fs::read_dir(".").into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name())
        .filter(|name| name.to_str().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit())))
}

/// Whether a thread of `process` waits for `pipe`.
fn waits(process: &Path, pipe: &Path) -> bool {
    let is = |fd: u64| fs::read_link(process.join(format!("fd/{fd}"))).is_ok_and(|link| link == pipe);
    let tasks = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).any(|task| {
        let Some((call, first, second)) = blocked(&task) else { return false };
        match CALLS.iter().find(|(number, _)| *number == call).map(|(_, wait)| wait) {
            None => false,
            Some(Wait::First) => is(first),
            Some(Wait::Second) => is(second),
            Some(Wait::Poll) => polled(process, first, second).is_some_and(|all| all.into_iter().any(is)),
            Some(Wait::Select) => selected(process, first, second).is_some_and(|all| all.into_iter().any(is)),
            Some(Wait::Epoll) => watched(process, first).into_iter().any(is),
            Some(Wait::Any) => true,
        }
    })
}

/// The number of the call in which a thread is blocked, and its first two arguments.
fn blocked(task: &Path) -> Option<(u64, u64, u64)> {
    let text = fs::read_to_string(task.join("syscall")).ok()?;
    let mut words = text.split(' ');
    let call = words.next()?.parse().ok()?;
    let mut argument = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    Some((call, argument()?, argument()?))
}

fn memory(process: &Path, at: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    File::open(process.join("mem")).ok()?.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

/// The descriptors of which input is awaited, in an array of `struct pollfd`.
fn polled(process: &Path, at: u64, count: u64) -> Option<Vec<u64>> {
    const POLLIN: u8 = 1;
    let count = usize::try_from(count).ok()?.min(DESCRIPTORS);
    let bytes = memory(process, at, count * 8)?;
    let wanted = bytes.chunks_exact(8).filter(|entry| entry[4] & POLLIN != 0);
    Some(
        wanted.map(|entry| u64::from(u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]))).collect(),
    )
}

/// The descriptors below `count` in an `fd_set`.
fn selected(process: &Path, count: u64, at: u64) -> Option<Vec<u64>> {
    let count = usize::try_from(count).ok()?.min(DESCRIPTORS);
    // None are awaited where there is no set.
    let bytes = memory(process, at, count.div_ceil(8))?;
    Some((0..count).filter(|fd| bytes[fd / 8] >> (fd % 8) & 1 != 0).map(|fd| fd as u64).collect())
}

/// The descriptors that an epoll descriptor watches.
fn watched(process: &Path, epoll: u64) -> Vec<u64> {
    let text = fs::read_to_string(process.join(format!("fdinfo/{epoll}"))).unwrap_or_default();
    text.lines()
        .filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok())
        .collect()
}
