//! Where a debugger comes from: the one place that opens and accepts sockets.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};
use std::time::{Duration, Instant};

use super::Input;
use crate::sockets::listen;

/// An open socket on which a debugger is awaited.
///
/// It is opened before the guest runs; afterwards it is only accepted from.
#[derive(Debug)]
pub struct GdbListener {
    socket: Socket,
    address: String,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// An address that is none.
const FORMS: &str = "write tcp::PORT, tcp:HOST:PORT or unix:PATH";

/// How long a debugger that does not read what it asked for is waited for. One waits for its answers,
/// which fit into the socket's buffer; and the machine's end waits for this.
const PATIENCE: Duration = Duration::from_secs(2);

/// How many reads of a debugger's bytes may wait until they are looked at.
pub(super) const AHEAD: usize = 16;

/// How long no connection is awaited after one that failed, as when there are too many open files.
const PAUSE: Duration = Duration::from_millis(100);

impl GdbListener {
    /// Opens the socket that `address` names: `tcp:[HOST:]PORT` or `unix:PATH`, with QEMU's
    /// spelling `tcp::PORT`. Without a host only this machine can connect. Port 0 is any.
    pub fn open(address: impl AsRef<OsStr>) -> Result<Self, String> {
        let bytes = address.as_ref().as_bytes();
        let address = address.as_ref().to_string_lossy();
        let wrong = |why: &dyn std::fmt::Display| format!("cannot listen on '{address}': {why}; {FORMS}");
        let refused = |why: io::Error| {
            // Without the number that std puts behind it.
            let text = why.to_string();
            let text = text.split(" (os error").next().unwrap_or(&text);
            format!("cannot listen on '{address}': {text}; name another place")
        };
        match address.split_once(':') {
            Some(("tcp", place)) => {
                // QEMU's other options, as in tcp::1234,server=on,wait=off, are how we listen anyway.
                let place = place.split(',').next().unwrap_or_default();
                let (host, port) = place.rsplit_once(':').unwrap_or(("", place));
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let host = if host.is_empty() { "127.0.0.1" } else { host };
                let port: u16 = port.parse().map_err(|_| wrong(&format!("'{port}' is no port")))?;
                let listener = TcpListener::bind((host, port)).map_err(refused)?;
                let address = listener.local_addr().map_err(refused)?.to_string();
                Ok(GdbListener { socket: Socket::Tcp(listener), address })
            }
            Some(("unix", path)) if !path.is_empty() => {
                let listener =
                    listen(Path::new(OsStr::from_bytes(&bytes["unix:".len()..]))).map_err(refused)?;
                Ok(GdbListener { socket: Socket::Unix(listener), address: path.to_owned() })
            }
            _ => Err(wrong(&"it is no address")),
        }
    }

    /// What `target remote` is told: `HOST:PORT`, or a path.
    pub fn address(&self) -> &str {
        &self.address
    }

    fn accept(&self) -> io::Result<Stream> {
        let stream = match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                let _ = stream.set_nodelay(true);
                let _ = stream.set_write_timeout(Some(PATIENCE));
                Stream::Tcp(stream)
            }
            Socket::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                let _ = stream.set_write_timeout(Some(PATIENCE));
                Stream::Unix(stream)
            }
        };
        Ok(stream)
    }

    /// Makes [`GdbListener::serve`] return.
    pub(super) fn close(&self) {
        let _ = rustix::net::shutdown(self, rustix::net::Shutdown::Both);
    }

    /// Accepts one debugger after the other, and tells `to` what they send; `credit` has room while
    /// what was told is looked at, so that nobody can send without end.
    pub(super) fn serve(&self, to: &Sender<Input>, credit: &SyncSender<()>) {
        loop {
            let stream = match self.accept() {
                Ok(stream) => Arc::new(stream),
                // What `close` makes of it.
                Err(why) if why.kind() == io::ErrorKind::InvalidInput => return,
                // A connection that was gone already, or files that are scarce.
                Err(_) => {
                    std::thread::sleep(PAUSE);
                    continue;
                }
            };
            if to.send(Input::Connected(stream.clone())).is_err() {
                return;
            }
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                if credit.send(()).is_err() || to.send(Input::Bytes(buffer[..length].to_vec())).is_err() {
                    return;
                }
            }
            if to.send(Input::Closed).is_err() {
                return;
            }
        }
    }
}

/// What a sandbox has to keep open.
impl AsFd for GdbListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tcp(listener) => listener.as_fd(),
            Socket::Unix(listener) => listener.as_fd(),
        }
    }
}

/// A debugger's connection.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(buffer),
            Stream::Unix(stream) => (&*stream).read(buffer),
        }
    }

    pub(super) fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => write_within(stream, bytes, PATIENCE),
            Stream::Unix(stream) => write_within(stream, bytes, PATIENCE),
        }
    }

    pub(super) fn close(&self) {
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// Writes all of `bytes` to a socket whose writes end after `patience`, however often signals interrupt them: each lets the
/// socket's own time begin anew.
fn write_within(mut to: impl Write, mut bytes: &[u8], patience: Duration) -> io::Result<()> {
    let mut since = Instant::now();
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => (bytes, since) = (&bytes[length..], Instant::now()),
            Err(why) if why.kind() == io::ErrorKind::Interrupted && since.elapsed() < patience => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use super::*;

    #[test]
    fn qemus_spellings_are_understood() {
        for address in ["tcp::0", "tcp:0", "tcp:127.0.0.1:0", "tcp::0,server=on,wait=off"] {
            let listener = GdbListener::open(address).unwrap();
            assert!(listener.address().starts_with("127.0.0.1:"), "{address}: {listener:?}");
        }
        for address in ["", "tcp", "tcp:", "tcp:x", "unix:", "udp:1", "tcp::99999", "1234"] {
            let refused = GdbListener::open(address).unwrap_err();
            assert!(refused.contains("unix:PATH"), "{refused}");
        }
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", taken.local_addr().unwrap());
        let refused = GdbListener::open(&address).unwrap_err();
        assert!(refused.ends_with("Address already in use; name another place"), "{refused}");
    }

    #[test]
    fn what_is_closed_is_served_no_more() {
        for address in ["tcp::0".into(), format!("unix:{}/satori-close-{}", temp(), std::process::id())] {
            let listener = Arc::new(GdbListener::open(&address).unwrap());
            let serving = listener.clone();
            let thread = std::thread::spawn(move || serving.serve(&channel().0, &sync_channel(AHEAD).0));
            listener.close();
            thread.join().unwrap();
            if let Some(path) = address.strip_prefix("unix:") {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    /// A socket whose first writes are interrupted, as many as the first value says.
    struct Interrupted(u32, Vec<u8>);

    impl Write for &mut Interrupted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.0 > 0 {
                self.0 -= 1;
                return Err(io::ErrorKind::Interrupted.into());
            }
            self.1.push(bytes[0]);
            Ok(1)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn signals_do_not_prolong_the_wait() {
        let mut socket = Interrupted(3, Vec::new());
        write_within(&mut socket, b"$OK#9a", Duration::from_secs(3600)).unwrap();
        assert_eq!(socket.1, b"$OK#9a");
        socket.0 = u32::MAX;
        let ended = write_within(&mut socket, b"+", Duration::ZERO).unwrap_err();
        assert_eq!((ended.kind(), socket.0), (io::ErrorKind::Interrupted, u32::MAX - 1));
    }

    fn temp() -> String {
        std::env::temp_dir().display().to_string()
    }

    #[test]
    fn only_a_socket_is_replaced() {
        let path = std::env::temp_dir().join(format!("satori-gdb-{}", std::process::id()));
        let address = format!("unix:{}", path.display());
        drop(GdbListener::open(&address).unwrap());
        drop(GdbListener::open(&address).unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "a file").unwrap();
        assert!(GdbListener::open(&address).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"a file");
        std::fs::remove_file(&path).unwrap();
    }
}
