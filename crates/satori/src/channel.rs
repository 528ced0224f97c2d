//! A port of the guest's that leads to a Unix socket: who is connected there, one at a time, is at its other end.
//!
//! What the guest writes while nobody is connected is lost, as on a cable without an end, and the port stays open. Who is connected
//! and does not read makes the guest wait.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use satori_lock::lock;
use satori_machine::unix_listener;

/// Bytes that are handed on at once.
const PIECE: usize = 16 << 10;
/// How long what the guest wrote last may take to reach who is connected.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked whether it has.
const LOOK: Duration = Duration::from_millis(1);
/// How soon a connection is accepted behind one that could not be.
const AGAIN: Duration = Duration::from_millis(20);

/// The socket, and our end of what the port leads to.
#[derive(Debug)]
pub struct Channel {
    path: PathBuf,
    listener: UnixListener,
    port: UnixStream,
    /// Who is connected. Held while something is handed to them.
    peer: Mutex<Option<Arc<UnixStream>>>,
}

impl Channel {
    /// Listens at `path`, and gives the port's end beside.
    pub fn open(path: &Path) -> io::Result<(Channel, OwnedFd)> {
        let listener = unix_listener(path)?;
        let (port, theirs) = UnixStream::pair()?;
        Ok((Channel { path: path.into(), listener, port, peer: Mutex::default() }, theirs.into()))
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Descriptors that a sandbox has to keep open.
    pub fn files(&self) -> [RawFd; 2] {
        [self.listener.as_raw_fd(), self.port.as_raw_fd()]
    }

    /// Begins to serve, on threads that end with the process.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        let (to_guest, from_guest) = (self.clone(), self.clone());
        thread::Builder::new().name("channel in".into()).spawn(move || to_guest.receive())?;
        thread::Builder::new().name("channel out".into()).spawn(move || from_guest.send())?;
        Ok(())
    }

    /// Waits until who is connected has what the guest wrote, for a while.
    pub fn finish(&self) {
        let end = Instant::now() + PATIENCE;
        while self.holds() && Instant::now() < end {
            thread::sleep(LOOK);
        }
    }

    /// Whether something is on its way, for somebody.
    fn holds(&self) -> bool {
        self.peer.try_lock().map_or(true, |peer| peer.is_some() && self.written(Some(&Timespec::default())))
    }

    /// Whether the guest wrote something that was not taken yet, waiting for it so long.
    fn written(&self, wait: Option<&Timespec>) -> bool {
        let mut port = [PollFd::from_borrowed_fd(self.port.as_fd(), PollFlags::IN)];
        poll(&mut port, wait).is_ok_and(|count| count > 0)
    }

    /// Accepts one connection after the other, and gives the guest what comes.
    fn receive(&self) {
        loop {
            let Ok((peer, _)) = self.listener.accept() else {
                // Files are scarce.
                thread::sleep(AGAIN);
                continue;
            };
            let peer = Arc::new(peer);
            *lock(&self.peer) = Some(peer.clone());
            let mut piece = vec![0; PIECE];
            loop {
                match (&*peer).read(&mut piece) {
                    Ok(0) => break,
                    Ok(length) if (&self.port).write_all(&piece[..length]).is_err() => return,
                    Err(why) if why.kind() != io::ErrorKind::Interrupted => break,
                    Ok(_) | Err(_) => {}
                }
            }
            // Who only listens any more hears what is on its way.
            self.finish();
            let _ = peer.shutdown(Shutdown::Both);
            *lock(&self.peer) = None;
        }
    }

    /// Hands on what the guest writes.
    fn send(&self) {
        let mut piece = vec![0; PIECE];
        loop {
            // The lock is not held while nothing comes.
            if !self.written(None) {
                continue;
            }
            let peer = lock(&self.peer);
            match (&self.port).read(&mut piece) {
                Ok(0) => return,
                // Whoever is gone is noticed where they are listened to.
                Ok(length) => peer.iter().for_each(|peer| drop((&**peer).write_all(&piece[..length]))),
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other_is_at_the_other_end_of_the_port() {
        let path = std::env::temp_dir().join(format!("satori-channel-{}", std::process::id()));
        let (channel, port) = Channel::open(&path).unwrap();
        let (channel, mut port) = (Arc::new(channel), UnixStream::from(port));
        channel.start().unwrap();
        // Nobody has this.
        port.write_all(b"lost").unwrap();
        while channel.written(Some(&Timespec::default())) {
            thread::sleep(LOOK);
        }
        for round in 0..3 {
            let mut client = UnixStream::connect(&path).unwrap();
            let (asked, answer) = (format!("ask {round}"), vec![round; 100_000]);
            client.write_all(asked.as_bytes()).unwrap();
            let mut heard = [0; 5];
            port.read_exact(&mut heard).unwrap();
            assert_eq!(heard, asked.as_bytes());
            let mut writer = port.try_clone().unwrap();
            let sent = answer.clone();
            let guest = thread::spawn(move || writer.write_all(&sent).unwrap());
            let mut got = vec![0; answer.len()];
            client.read_exact(&mut got).unwrap();
            guest.join().unwrap();
            assert!(got == answer, "round {round}");
            // The next one comes when this one was seen to be gone.
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn who_only_listens_has_all_that_was_written_before_the_end() {
        let path = std::env::temp_dir().join(format!("satori-channel-end-{}", std::process::id()));
        let (channel, port) = Channel::open(&path).unwrap();
        let (channel, mut port) = (Arc::new(channel), UnixStream::from(port));
        channel.start().unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        // Connected, and noticed.
        while lock(&channel.peer).is_none() {
            thread::sleep(LOOK);
        }
        let slow = thread::spawn(move || {
            thread::sleep(Duration::from_millis(100));
            let mut got = vec![0; 1 << 20];
            client.read_exact(&mut got).map(|()| got)
        });
        port.write_all(&vec![7; 1 << 20]).unwrap();
        channel.finish();
        assert!(!channel.holds());
        assert!(slow.join().unwrap().unwrap().iter().all(|byte| *byte == 7));
        std::fs::remove_file(&path).unwrap();
    }
}
