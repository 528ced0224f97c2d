//! The server's process: how it is started, what it gives away, what it tells before it serves.

use std::io::{self, BufReader, Read, Write, stdin};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode as Permissions, OFlags, open};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use satori_defs::share::{NOTE, NOTE_MAX};
use satori_host::spin::Spins;
use satori_sandbox::helper::{FAILED, Helper, Unstarted, more_files, say_ready, say_why};
use satori_sandbox::{Folder, Mode as Sandbox, enter_folder};

use crate::plan9::{self, Plan9};
use crate::saved;
use crate::server::Server;
use crate::waiting::Waiting;
use crate::wire::{IN_HEADER, MAX_REQUEST, Reply};
use crate::{Mode, Protocol};

/// The word that makes our own binary a file server; no row of the table of commands.
pub const COMMAND: &str = "__files";

/// Whose files of the server's own user are to the guest.
const AS_ROOT: &str = "as-root";
const AS_THEY_ARE: &str = "as-they-are";

/// The most of the host's files that are open only as the guest knows them.
const OPEN_MOST: usize = 1 << 16;

/// Why a folder cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process did not come to be.
    #[error("the file server of {0} cannot be started ({1}): free memory or processes, and try again")]
    Start(PathBuf, io::Error),
    /// It said why it cannot serve.
    #[error("{0}: {1}")]
    Refused(PathBuf, String),
}

/// A folder to offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The folder.
    pub root: PathBuf,
    /// What the guest may do with it.
    pub mode: Mode,
    /// How the guest asks.
    pub protocol: Protocol,
    /// Whether files of who starts the server are root's to the guest.
    pub as_root: bool,
    /// How much memory its changes may take, in bytes.
    pub budget: u64,
}

/// Each lets its owner read all files.
const READ_ALL: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::DAC_OVERRIDE);

/// Starts `program`, which is this binary, as the server of a folder. Returns when it serves.
pub fn start(program: &Path, share: &Share, sandbox: Sandbox) -> Result<Helper, Error> {
    let failed = |error| Error::Start(share.root.clone(), error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(program);
    let (mode, protocol, budget) = (share.mode.name(), share.protocol.name(), share.budget.to_string());
    let owners = if share.as_root { AS_ROOT } else { AS_THEY_ARE };
    command.args([COMMAND, mode, protocol, sandbox.name(), owners, &budget]).arg(&share.root);
    Helper::start(&mut command, ours, theirs).map_err(|why| match why {
        Unstarted::Start(error) => failed(error),
        Unstarted::Refused(_) => Error::Refused(share.root.clone(), why.to_string()),
    })
}

/// The server's own process: `arguments` as [`start`] gives them, the socket as standard input. Returns its
/// exit status.
pub fn main(arguments: &[std::ffi::OsString]) -> i32 {
    // Before the sandbox.
    let spins = Spins::here();
    match prepare(arguments) {
        Ok((server, protocol, socket)) => {
            let from = BufReader::with_capacity(1 << 17, Waiting { socket: &socket, spins });
            match serve(server, protocol, from, &socket) {
                Ok(()) => 0,
                // Who is at the other end sees that the socket is closed.
                Err(_) => FAILED,
            }
        }
        Err(why) => say_why(&why),
    }
}

/// Serves until the other side closes. What is no message of the protocol is an error.
pub(crate) fn serve(
    mut server: Server,
    protocol: Protocol,
    from: impl Read,
    mut to: impl Write,
) -> io::Result<()> {
    match protocol {
        Protocol::Fuse => {
            let mut reply = Reply::default();
            messages(from, IN_HEADER..=MAX_REQUEST, |come| match come {
                Come::Message(request) => {
                    server.answer(request, &mut reply).map_or(Ok(()), |bytes| to.write_all(bytes))
                }
                Come::Note(word, told) => saved::answer(&mut server, word, told, &mut to),
            })
        }
        Protocol::Plan9 => {
            let (mut server, mut reply) = (Plan9::new(server), plan9::Out::default());
            messages(from, plan9::HEADER..=plan9::MOST, |come| match come {
                Come::Message(message) => to.write_all(server.answer(message, &mut reply)),
                Come::Note(word, told) => saved::answer(&mut server, word, told, &mut to),
            })
        }
    }
}

/// What a device sends.
enum Come<'a> {
    /// A guest's message.
    Message(&'a [u8]),
    /// A note of its own: the word without its mark, and what it tells.
    Note(u32, &'a [u8]),
}

/// Reads messages that begin with their length, which is one of `lengths`, and notes, until there is no more.
fn messages(
    mut from: impl Read,
    lengths: RangeInclusive<usize>,
    mut each: impl FnMut(Come<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut message = Vec::with_capacity(*lengths.end());
    loop {
        let mut length = [0; 4];
        if from.read(&mut length[..1])? == 0 {
            return Ok(());
        }
        from.read_exact(&mut length[1..])?;
        let word = u32::from_le_bytes(length);
        if word & NOTE != 0 {
            let mut length = [0; 8];
            from.read_exact(&mut length)?;
            let length = u64::from_le_bytes(length);
            let mut told = Vec::new();
            if length > NOTE_MAX || from.by_ref().take(length).read_to_end(&mut told)? as u64 != length {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a note of {length} bytes")));
            }
            each(Come::Note(word & !NOTE, &told))?;
            continue;
        }
        let whole = word as usize;
        if !lengths.contains(&whole) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a request of {whole} bytes")));
        }
        message.clear();
        message.extend(length);
        message.resize(whole, 0);
        from.read_exact(&mut message[4..])?;
        each(Come::Message(&message))?;
    }
}

fn prepare(arguments: &[std::ffi::OsString]) -> Result<(Server, Protocol, UnixStream), String> {
    let [mode, protocol, sandbox, owners, budget, root] = arguments else {
        return Err("six arguments are wanted".into());
    };
    let mode = Mode::ALL.into_iter().find(|m| mode == m.name()).ok_or("no such mode")?;
    let protocol = Protocol::ALL.into_iter().find(|p| protocol == p.name()).ok_or("no such protocol")?;
    let sandbox = sandbox.to_str().and_then(Sandbox::of).ok_or("no such sandbox")?;
    let budget = budget.to_str().and_then(|text| text.parse().ok()).ok_or("no such budget")?;
    let socket = stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    more_files();
    // The others are for what the guest has open, and for changed contents.
    let open_most = getrlimit(Resource::Nofile).current.map_or(OPEN_MOST, |files| (files / 2) as usize);
    let open_most = open_most.min(OPEN_MOST);
    rustix::process::umask(Permissions::empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = open("/proc/self/fd", flags, Permissions::empty())
        .map_err(|why| format!("there is no /proc ({why}): mount it"))?;
    let keep = [socket.as_raw_fd(), proc.as_raw_fd()];
    let privileged = rustix::process::geteuid().is_root();
    let reads_all = capabilities(None).is_ok_and(|sets| sets.permitted.intersects(READ_ALL));
    // Asked before the sandbox, which does not permit the question.
    let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let roots = (owners == AS_ROOT && !privileged).then_some(me);
    let writes = mode == Mode::Rw;
    let folder = Folder { root: Path::new(root), keep: &keep, writes, status: FAILED };
    let (opened, result) = enter_folder(sandbox, &folder)
        .map_err(|why| format!("cannot be offered to the guest ({why}): name a folder that can be read"))?;
    let measures = result.map_err(|why| why.to_string())?;
    let server = Server::new(opened, proc, mode, budget, privileged, roots, open_most);
    let mut server = server.map_err(|why| format!("cannot be read ({why})"))?;
    server.reads_all = reads_all;
    say_ready(&measures, &[]).map_err(|why| why.to_string())?;
    Ok((server, protocol, socket.into()))
}
