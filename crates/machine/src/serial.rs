//! The serial ports beyond the first, COM2 to COM4: where each leads on the host.
//!
//! They outlive resets, as what they are plugged into does. What a guest sends to a socket that nobody is connected to is
//! lost, as on a cable without an end; what comes from a socket waits there until the guest takes it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use satori_bus::ByteSink;
use satori_chipset::{Chipset, Com, Uart};

use crate::Error;
use crate::shared::lock;
use crate::sockets::listen;

/// How long a guest waits for whoever is connected and does not read; then the connection is closed.
const PATIENCE: Duration = Duration::from_secs(2);
/// How soon bytes that the guest had no room for are offered again, if nothing tells before.
const AGAIN: Duration = Duration::from_millis(20);

/// Where a serial port leads.
#[derive(Debug)]
pub enum SerialEnd {
    /// Nowhere: what is sent is lost, and nothing comes.
    Nowhere,
    /// To a file.
    File(File),
    /// To whoever is connected to a socket, one at a time.
    Socket(UnixListener),
}

impl SerialEnd {
    /// A socket at `path`; one that a former run left is replaced, any other file is not.
    pub fn socket(path: &Path) -> io::Result<SerialEnd> {
        listen(path).map(SerialEnd::Socket)
    }
}

/// The ports from COM2 on, in order; clones are the same ones.
#[derive(Clone, Default)]
pub struct SerialPorts(Arc<Vec<Arc<Port>>>);

const PLACES: [Com; 3] = [Com::Com2, Com::Com3, Com::Com4];
/// What Linux calls them.
const NAMES: [&str; 3] = ["ttyS1", "ttyS2", "ttyS3"];

impl SerialPorts {
    /// Ports that lead there.
    pub fn new(ends: Vec<SerialEnd>) -> Result<SerialPorts, Error> {
        if ends.len() > PLACES.len() {
            return Err(Error::Config("a PC has four serial ports: use --serial three times at most".into()));
        }
        let port =
            |end| Port { end, line: Mutex::default(), room: Condvar::new(), ended: AtomicBool::new(false) };
        Ok(SerialPorts(Arc::new(ends.into_iter().map(|end| Arc::new(port(end))).collect())))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Descriptors that a sandbox has to keep open.
    pub fn files(&self) -> Vec<RawFd> {
        let descriptor = |port: &Arc<Port>| match &port.end {
            SerialEnd::Nowhere => None,
            SerialEnd::File(file) => Some(file.as_raw_fd()),
            SerialEnd::Socket(listener) => Some(listener.as_raw_fd()),
        };
        self.0.iter().filter_map(descriptor).collect()
    }

    /// Why a file has not all that the guest sent to its port, if one has not: the port's name and what the host said.
    pub fn lost(&self) -> Option<(&'static str, io::Error)> {
        let lost = |port: &Arc<Port>| lock(&port.line).lost.take();
        self.0.iter().zip(NAMES).find_map(|(port, name)| Some((name, lost(port)?)))
    }

    /// Refuses what makes no two runs the same; `recorded` tells that this one is written down or played again.
    pub(crate) fn determined(&self, recorded: bool) -> Result<(), Error> {
        match self.0.iter().any(|port| matches!(port.end, SerialEnd::Socket(_))) {
            true if recorded => Err(Error::Config(
                "--record: what comes through a --serial socket is not recorded in this version: write a file, or leave it out"
                    .into(),
            )),
            true => Err(Error::Config(
                "--clock virtual: what comes through a --serial socket is not the same every time; use --clock real, or a file"
                    .into(),
            )),
            false => Ok(()),
        }
    }

    /// Gives one life its ports.
    pub(crate) fn wire(&self, chipset: &Chipset, moved: &Arc<AtomicU64>) -> Result<(), Error> {
        for (port, com) in self.0.iter().zip(PLACES) {
            let uart = chipset.add_uart(com, Box::new(Sink(port.clone(), moved.clone())))?;
            let told = Arc::downgrade(port);
            uart.on_room(move || told.upgrade().iter().for_each(|port| port.room.notify_all()));
            lock(&port.line).uart = Arc::downgrade(&uart);
        }
        Ok(())
    }

    /// Begins to listen; files are emptied of what a former run left.
    pub(crate) fn start(&self) -> io::Result<Serving> {
        for port in self.0.iter() {
            // A pipe or a device has no length.
            if let SerialEnd::File(file) = &port.end {
                let _ = file.set_len(0);
            }
        }
        let mut serving = Serving { ports: self.clone(), threads: Vec::new() };
        for port in self.0.iter().filter(|port| matches!(port.end, SerialEnd::Socket(_))) {
            let port = port.clone();
            let serve = move || port.serve();
            serving.threads.push(std::thread::Builder::new().name("serial".into()).spawn(serve)?);
        }
        Ok(serving)
    }
}

impl fmt::Debug for SerialPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|port| &port.end)).finish()
    }
}

impl PartialEq for SerialPorts {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.count() == 0 && other.count() == 0
    }
}

impl Eq for SerialPorts {}

/// The threads of sockets; dropping it ends them.
pub(crate) struct Serving {
    ports: SerialPorts,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        for port in self.ports.0.iter() {
            port.ended.store(true, Ordering::Release);
            if let SerialEnd::Socket(listener) = &port.end {
                let _ = shutdown(listener, Shutdown::Both);
            }
            port.hang_up();
            port.room.notify_all();
        }
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

#[derive(Default)]
struct Line {
    /// Who is connected.
    peer: Option<Arc<UnixStream>>,
    /// The port of the guest's current life.
    uart: Weak<Uart>,
    /// Why the file could not be written, the first time.
    lost: Option<io::Error>,
}

struct Port {
    end: SerialEnd,
    line: Mutex<Line>,
    /// The guest has taken what was offered.
    room: Condvar,
    ended: AtomicBool,
}

impl Port {
    /// Accepts one connection after the other until the machine ends.
    fn serve(&self) {
        let SerialEnd::Socket(listener) = &self.end else { return };
        while !self.ended.load(Ordering::Acquire) {
            let Ok((peer, _)) = listener.accept() else {
                // The end's doing, or files that are scarce.
                std::thread::sleep(AGAIN);
                continue;
            };
            if peer.set_write_timeout(Some(PATIENCE)).is_err() {
                continue;
            }
            let peer = Arc::new(peer);
            lock(&self.line).peer = Some(peer.clone());
            self.receive(&peer);
            self.hang_up();
        }
    }

    /// Gives the guest what comes.
    fn receive(&self, peer: &UnixStream) {
        let mut buffer = [0; 64];
        loop {
            let mut rest: &[u8] = match (&*peer).read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => &buffer[..length],
                Err(why) if why.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            while !rest.is_empty() {
                if self.ended.load(Ordering::Acquire) {
                    return;
                }
                let uart = lock(&self.line).uart.upgrade();
                // A guest that has not set the port up would throw away what came before.
                let most = uart.as_ref().map_or(0, |uart| uart.ready());
                let taken = uart.map_or(0, |uart| uart.offer(&rest[..most.min(rest.len())]));
                rest = &rest[taken..];
                if taken == 0 {
                    let line = lock(&self.line);
                    drop(self.room.wait_timeout(line, AGAIN));
                }
            }
        }
    }

    fn hang_up(&self) {
        if let Some(peer) = lock(&self.line).peer.take() {
            let _ = shutdown(&*peer, Shutdown::Both);
        }
    }
}

/// What the guest sends.
struct Sink(Arc<Port>, Arc<AtomicU64>);

impl ByteSink for Sink {
    fn put(&mut self, bytes: &[u8]) {
        let port = &self.0;
        self.1.fetch_add(1, Ordering::Relaxed);
        match &port.end {
            SerialEnd::Nowhere => {}
            SerialEnd::File(file) => {
                if let Err(why) = (&*file).write_all(bytes) {
                    // Said once, when the guest has ended, and the first is what is wrong.
                    lock(&port.line).lost.get_or_insert(why);
                }
            }
            SerialEnd::Socket(_) => {
                let peer = lock(&port.line).peer.clone();
                if peer.is_some_and(|peer| (&*peer).write_all(bytes).is_err()) {
                    port.hang_up();
                }
            }
        }
    }
}
