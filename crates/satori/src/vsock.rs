//! `--vsock`: sockets between guest and host.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use anyhow::{Result, bail};
use satori_machine::Sockets;

use crate::cli;
use crate::commands::run;

/// The guest's address, where none is given: the first that a guest may have.
const CID: u64 = 3;

/// One `--vsock`: `PATH[,cid=N]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VsockSpec {
    /// The socket to which the host's programs connect.
    pub path: PathBuf,
    /// The guest's address.
    pub cid: u64,
}

/// Reads a `--vsock`.
pub fn spec(text: &OsStr) -> Result<VsockSpec, String> {
    let bytes = text.as_bytes();
    let at = bytes.windows(5).rposition(|part| part == b",cid=");
    let (path, cid) = match at {
        None => (bytes, CID),
        Some(at) => {
            let word = String::from_utf8_lossy(&bytes[at + 5..]).into_owned();
            let cid = word.parse().ok().filter(|cid| (3..=0xffff_fffe).contains(cid));
            let wrong = || format!("'cid={word}': a guest's address is a number from 3 to 4294967294");
            (&bytes[..at], cid.ok_or_else(wrong)?)
        }
    };
    if path.is_empty() {
        return Err("name a place for the socket: --vsock guest.sock".into());
    }
    Ok(VsockSpec { path: OsString::from(OsStr::from_bytes(path)).into(), cid })
}

/// The guest's sockets, if the flags ask for them. Starts the host's side, but not where no run can have them: its socket would be left.
pub fn sockets(flags: &cli::Machine) -> Result<Option<Sockets>> {
    let Some(VsockSpec { path, cid }) = &flags.vsock else { return Ok(None) };
    if flags.record.is_some() || flags.replay.is_some() {
        bail!(
            "--record: what comes to a guest's sockets (--vsock) is not recorded in this version: leave it out"
        );
    }
    if flags.clock == cli::Clock::Virtual {
        bail!(
            "--clock virtual: who speaks with a guest's sockets (--vsock) is not the same every time; use --clock real"
        );
    }
    // The file itself and not its name, which may be another one's by now.
    let helper = satori_vsock::start("/proc/self/exe".as_ref(), path, *cid, run::sandbox_mode(flags))?;
    for measure in &helper.measures {
        tracing::info!("host's side of --vsock: {measure}");
    }
    Ok(Some(Sockets { cid: *cid, socket: helper.socket }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_a_path_and_an_address() {
        let read = |text: &str| spec(OsStr::new(text));
        assert_eq!(read("a,b.sock"), Ok(VsockSpec { path: "a,b.sock".into(), cid: 3 }));
        assert_eq!(read("/a/b,cid=77"), Ok(VsockSpec { path: "/a/b".into(), cid: 77 }));
        for (wrong, told) in
            [("", "--vsock"), ("a,cid=2", "from 3"), ("a,cid=x", "from 3"), (",cid=9", "name a place")]
        {
            assert!(read(wrong).unwrap_err().contains(told), "{wrong}");
        }
    }
}
