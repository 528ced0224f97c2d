//! The process: how it is started, what it gives away, what it tells before it serves.

use std::io::stdin;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use satori_sandbox::helper::{FAILED, Helper, Unstarted, more_files, say_ready, say_why};
use satori_sandbox::{Mode as Sandbox, enter_sockets};

use crate::switch::Switch;

/// The word that makes our own binary a guest's vsock; no row of the table of commands.
pub const COMMAND: &str = "__vsock";

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process did not come to be.
    #[error("the host's side of --vsock cannot be started ({0}): free memory or processes, and try again")]
    Start(std::io::Error),
    /// It said why it cannot serve.
    #[error("--vsock {0}")]
    Refused(String),
}

/// Starts `program`, which is this binary, as the host's side of the guest `cid`, whose socket is `path`. Returns when it serves.
pub fn start(program: &Path, path: &Path, cid: u64, sandbox: Sandbox) -> Result<Helper, Error> {
    let (ours, theirs) = UnixStream::pair().map_err(Error::Start)?;
    let mut command = Command::new(program);
    command.args([COMMAND, sandbox.name(), &cid.to_string()]).arg(path);
    Helper::start(&mut command, ours, theirs).map_err(|why| match why {
        Unstarted::Start(error) => Error::Start(error),
        Unstarted::Refused(_) => Error::Refused(why.to_string()),
    })
}

/// Its own process: `arguments` as [`start`] gives them, the socket as standard input. Returns its exit status.
pub fn main(arguments: &[std::ffi::OsString]) -> i32 {
    match prepare(arguments) {
        Ok((switch, machine, door)) => match switch.run(&machine, &door) {
            Ok(()) => 0,
            // Who is at the other end sees that the socket is closed.
            Err(_) => FAILED,
        },
        Err(why) => say_why(&why),
    }
}

fn prepare(arguments: &[std::ffi::OsString]) -> Result<(Switch, UnixStream, UnixListener), String> {
    let [sandbox, cid, path] = arguments else { return Err("three arguments are wanted".into()) };
    let sandbox = sandbox.to_str().and_then(Sandbox::of).ok_or("no such sandbox")?;
    let cid = cid.to_str().and_then(|text| text.parse().ok()).ok_or("no such address")?;
    let path = PathBuf::from(path);
    let socket = stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    more_files();
    let wrong = |why: std::io::Error| {
        let why = why.to_string();
        let why = why.split(" (os error").next().unwrap_or(&why).to_owned();
        format!("{}: cannot listen there ({why}): name another place", path.display())
    };
    let absolute = std::path::absolute(&path).map_err(wrong)?;
    let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        return Err(format!("{}: it is no file's name: name one", path.display()));
    };
    let door = listen(&path).map_err(wrong)?;
    let keep = [socket.as_raw_fd(), door.as_raw_fd()];
    let measures = enter_sockets(sandbox, folder, &keep, FAILED).map_err(|why| why.to_string())?;
    say_ready(&measures, &[]).map_err(|why| why.to_string())?;
    Ok((Switch::new(cid, name.into()), socket.into(), door))
}

/// Listens at `path`. What a former run left there is replaced; a socket that somebody listens on is not, nor any other file.
fn listen(path: &Path) -> std::io::Result<UnixListener> {
    if std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        // A datagram's socket cannot connect to a stream's, and is told whether there is one.
        let served = match UnixDatagram::unbound()?.connect(path) {
            Ok(()) => true,
            Err(why) => why.kind() != std::io::ErrorKind::ConnectionRefused,
        };
        if served {
            return Err(std::io::Error::other("another process serves it"));
        }
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}
