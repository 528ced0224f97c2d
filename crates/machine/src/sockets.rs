//! Unix sockets that a machine listens on.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use rustix::io::Errno;

/// Listens at `path`. What a former run left there is replaced; a socket that somebody listens on is not, nor
/// any other file.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    if std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        if is_served(path)? {
            return Err(io::Error::other("another process serves it"));
        }
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

/// Whether a process has the socket at `path`, without a connection, which would stop a guest that waits for
/// a debugger: a datagram socket cannot connect to a stream's, and is told whether there is one.
fn is_served(path: &Path) -> io::Result<bool> {
    match UnixDatagram::unbound()?.connect(path) {
        Ok(()) => Ok(true),
        Err(why) => Ok(Errno::from_io_error(&why) != Some(Errno::CONNREFUSED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_serves_is_replaced_and_nobody_notices_the_look() {
        let path = std::env::temp_dir().join(format!("satori-listen-{}", std::process::id()));
        let first = listen(&path).unwrap();
        first.set_nonblocking(true).unwrap();
        assert!(listen(&path).unwrap_err().to_string().contains("another process serves it"));
        assert_eq!(first.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nobody connected");
        drop(first);
        drop(listen(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        std::fs::remove_file(&path).unwrap();
    }
}
