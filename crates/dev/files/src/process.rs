//! The server's process: how it is started, what it gives away, what it tells before it serves.

use std::io::{BufReader, Read, Write, stdin, stdout};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode as Permissions, OFlags, open};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use satori_sandbox::{Folder, Mode as Sandbox, enter_folder};

use crate::Mode;
use crate::server::Server;

/// The word that makes our own binary a file server; no row of the table of commands.
pub const COMMAND: &str = "__files";

/// What a server that cannot serve exits with.
const FAILED: i32 = 125;

/// Why a folder cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process did not come to be.
    #[error("the file server of {0} cannot be started ({1}): free memory or processes, and try again")]
    Start(PathBuf, std::io::Error),
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
    /// How much memory its changes may take, in bytes.
    pub budget: u64,
}

/// A running server. It ends when the other end of its socket is closed.
#[derive(Debug)]
pub struct Helper {
    /// Carries FUSE messages.
    pub socket: UnixStream,
    /// What became of its sandbox, a line each.
    pub measures: Vec<String>,
    child: Child,
}

impl Helper {
    /// The server's process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

/// Starts `program`, which is this binary, as the server of a folder. Returns when it serves.
pub fn start(program: &Path, share: &Share, sandbox: Sandbox) -> Result<Helper, Error> {
    let failed = |error| Error::Start(share.root.clone(), error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let sandbox = match sandbox {
        Sandbox::Off => "off",
        Sandbox::Auto => "auto",
        Sandbox::Require => "require",
    };
    let mut child = Command::new(program)
        .args([COMMAND, share.mode.name(), sandbox, &share.budget.to_string()])
        .arg(&share.root)
        .env_clear()
        // Ctrl-C at the terminal is the command's.
        .process_group(0)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut said = String::new();
    // The server closes its standard output when it serves, or ends.
    child.stdout.take().into_iter().for_each(|mut out| drop(out.read_to_string(&mut said)));
    let mut lines: Vec<_> = said.lines().map(str::to_owned).collect();
    if lines.pop().as_deref() != Some(READY) {
        let why = said.lines().last().unwrap_or("its file server ended without a word");
        let why = why.to_owned();
        let _ = child.wait();
        return Err(Error::Refused(share.root.clone(), why));
    }
    Ok(Helper { socket: ours, measures: lines, child })
}

/// What the server says last before it serves.
const READY: &str = "ready";

/// The server's own process: `arguments` as [`start`] gives them, the socket as standard input. Returns its
/// exit status.
pub fn main(arguments: &[std::ffi::OsString]) -> i32 {
    match prepare(arguments) {
        Ok((mut server, socket)) => {
            let from = BufReader::with_capacity(1 << 17, &socket);
            match server.serve(from, &socket) {
                Ok(()) => 0,
                // Who is at the other end sees that the socket is closed.
                Err(_) => FAILED,
            }
        }
        Err(why) => {
            let _ = writeln!(stdout(), "{why}");
            FAILED
        }
    }
}

fn prepare(arguments: &[std::ffi::OsString]) -> Result<(Server, UnixStream), String> {
    let [mode, sandbox, budget, root] = arguments else { return Err("four arguments are wanted".into()) };
    let mode = Mode::ALL.into_iter().find(|m| mode == m.name()).ok_or("no such mode")?;
    let sandbox = match sandbox.to_str() {
        Some("off") => Sandbox::Off,
        Some("require") => Sandbox::Require,
        _ => Sandbox::Auto,
    };
    let budget = budget.to_str().and_then(|text| text.parse().ok()).ok_or("no such budget")?;
    let socket = stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    more_files();
    rustix::process::umask(Permissions::empty());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = open("/proc/self/fd", flags, Permissions::empty())
        .map_err(|why| format!("there is no /proc ({why}): mount it"))?;
    let keep = [socket.as_raw_fd(), proc.as_raw_fd()];
    let privileged = rustix::process::geteuid().is_root();
    let writes = mode == Mode::Rw;
    let folder = Folder { root: Path::new(root), keep: &keep, writes, status: FAILED };
    let (opened, result) = enter_folder(sandbox, &folder)
        .map_err(|why| format!("cannot be offered to the guest ({why}): name a folder that can be read"))?;
    let measures = result.map_err(|why| why.to_string())?;
    let server = Server::new(opened, proc, mode, budget, privileged);
    let server = server.map_err(|why| format!("cannot be read ({why})"))?;
    let mut out = stdout().lock();
    for measure in measures {
        let _ = match measure.outcome {
            Ok(what) => writeln!(out, "{}: {what}", measure.name),
            Err(why) => writeln!(out, "{}: NOT had: {why}", measure.name),
        };
    }
    writeln!(out, "{READY}").and_then(|()| out.flush()).map_err(|why| why.to_string())?;
    drop(out);
    close_output();
    Ok((server, socket.into()))
}

/// A guest may know many files, each of which is one open handle here.
fn more_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Standard output becomes standard error, so that who reads it sees its end.
fn close_output() {
    let _ = rustix::stdio::dup2_stdout(std::io::stderr());
}
