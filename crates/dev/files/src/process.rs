//! The server's process: how it is started, what it gives away, what it tells before it serves.

use std::io::{BufReader, stdin};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode as Permissions, OFlags, open};
use satori_sandbox::helper::{FAILED, Helper, Unstarted, more_files, say_ready, say_why};
use satori_sandbox::{Folder, Mode as Sandbox, enter_folder};

use crate::Mode;
use crate::server::Server;

/// The word that makes our own binary a file server; no row of the table of commands.
pub const COMMAND: &str = "__files";

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

/// Starts `program`, which is this binary, as the server of a folder. Returns when it serves.
pub fn start(program: &Path, share: &Share, sandbox: Sandbox) -> Result<Helper, Error> {
    let failed = |error| Error::Start(share.root.clone(), error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(program);
    command.args([COMMAND, share.mode.name(), sandbox.name(), &share.budget.to_string()]).arg(&share.root);
    Helper::start(&mut command, ours, theirs).map_err(|why| match why {
        Unstarted::Start(error) => failed(error),
        Unstarted::Refused(_) => Error::Refused(share.root.clone(), why.to_string()),
    })
}

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
        Err(why) => say_why(&why),
    }
}

fn prepare(arguments: &[std::ffi::OsString]) -> Result<(Server, UnixStream), String> {
    let [mode, sandbox, budget, root] = arguments else { return Err("four arguments are wanted".into()) };
    let mode = Mode::ALL.into_iter().find(|m| mode == m.name()).ok_or("no such mode")?;
    let sandbox = sandbox.to_str().and_then(Sandbox::of).ok_or("no such sandbox")?;
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
    say_ready(&measures, &[]).map_err(|why| why.to_string())?;
    Ok((server, socket.into()))
}
