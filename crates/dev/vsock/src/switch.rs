//! Who is connected with whom, and the loop that waits for all of them.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};

use crate::connection::{Connection, Next, Read1, Stage};
use crate::packet::{HEADER, Header, PAYLOAD, Parsed, op, parse, put};

/// Most connections, and most who said nothing yet.
const MOST: usize = 1024;
const SILENT: usize = 64;
/// Bytes that may wait for the machine before nobody else is read.
const BACKLOG: usize = 1 << 20;
/// The first port that somebody of the host's gets; Firecracker begins there, too.
const FIRST_PORT: u32 = 1 << 30;
/// Bytes of the longest line that asks for a port.
const LINE: usize = 32;

/// A connection's ports: the host's, the guest's.
type Ports = (u32, u32);

/// Somebody who connected and did not say yet to which port.
struct Silent {
    socket: UnixStream,
    line: Vec<u8>,
}

pub(crate) struct Switch {
    cid: u64,
    /// The name of the socket, in the working directory: others have `_PORT` behind it.
    name: PathBuf,
    all: HashMap<Ports, Connection>,
    silent: Vec<Silent>,
    next: u32,
    /// Packets for the guest.
    pub(crate) out: Vec<u8>,
    /// What came of the machine, and is no whole packet yet.
    come: Vec<u8>,
    buffer: Vec<u8>,
}

/// What `poll` is asked about.
#[derive(Clone, Copy)]
enum Who {
    Machine,
    Door,
    Silent(usize),
    Connected(Ports),
}

impl Switch {
    pub(crate) fn new(cid: u64, name: PathBuf) -> Switch {
        let (all, silent, out, come) = (HashMap::new(), Vec::new(), Vec::new(), Vec::new());
        Switch { cid, name, all, silent, next: FIRST_PORT, out, come, buffer: vec![0; PAYLOAD] }
    }

    /// Serves until the machine is gone.
    pub(crate) fn run(mut self, machine: &UnixStream, door: &UnixListener) -> std::io::Result<()> {
        machine.set_nonblocking(true)?;
        door.set_nonblocking(true)?;
        loop {
            self.send(machine)?;
            let ready = self.wait(machine, door);
            for who in ready {
                match who {
                    Who::Machine if self.out.len() > 2 * BACKLOG => {}
                    Who::Machine => {
                        if !self.hear(machine)? {
                            return Ok(());
                        }
                    }
                    Who::Door => self.admit(door),
                    Who::Silent(at) => self.listen(at),
                    Who::Connected(ports) => self.attend(ports),
                }
            }
            self.silent.retain(|silent| silent.line.len() <= LINE);
        }
    }

    fn wait(&self, machine: &UnixStream, door: &UnixListener) -> Vec<Who> {
        let full = self.out.len() > BACKLOG;
        let of = |read: bool, write: bool| {
            let read = if read { PollFlags::IN } else { PollFlags::empty() };
            read | if write { PollFlags::OUT } else { PollFlags::empty() }
        };
        // While the guest is behind, what it sends is heard, as it may make room, and nobody else is.
        // But a guest that sends without end and takes no answer is not heard either.
        let hears = self.out.len() <= 2 * BACKLOG;
        let mut asked = vec![(Who::Machine, machine.as_fd(), of(hears, !self.out.is_empty()))];
        if !full && self.silent.len() < SILENT && self.all.len() < MOST {
            asked.push((Who::Door, door.as_fd(), of(true, false)));
        }
        for (at, silent) in self.silent.iter().enumerate() {
            asked.push((Who::Silent(at), silent.socket.as_fd(), of(true, false)));
        }
        for (ports, connection) in &self.all {
            let (read, write) = connection.waits();
            let wanted = of(read && !full, write);
            if !wanted.is_empty() {
                asked.push((Who::Connected(*ports), connection.socket.as_fd(), wanted));
            }
        }
        let mut files: Vec<_> = asked
            .iter()
            .map(|(_, file, wanted): &(Who, BorrowedFd<'_>, PollFlags)| {
                PollFd::from_borrowed_fd(*file, *wanted)
            })
            .collect();
        let _ = poll(&mut files, None);
        let ready = files.iter().map(|file| !file.revents().is_empty());
        asked.iter().zip(ready).filter(|(_, ready)| *ready).map(|((who, ..), _)| *who).collect()
    }

    /// Sends what the machine takes without waiting.
    fn send(&mut self, mut machine: &UnixStream) -> std::io::Result<()> {
        let mut sent = 0;
        while sent < self.out.len() {
            match machine.write(&self.out[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.out.drain(..sent);
        Ok(())
    }

    /// Takes what the machine sent; false at its end.
    fn hear(&mut self, mut machine: &UnixStream) -> std::io::Result<bool> {
        let have = self.come.len();
        self.come.resize(have + 4 + HEADER + PAYLOAD, 0);
        let count = match machine.read(&mut self.come[have..]) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
            Err(error) => return Err(error),
        };
        self.come.truncate(have + count);
        let come = std::mem::take(&mut self.come);
        let mut rest = &come[..];
        while let Some((len, behind)) = rest.split_first_chunk::<4>() {
            let len = u32::from_le_bytes(*len) as usize;
            if len > HEADER + PAYLOAD {
                return Err(ErrorKind::InvalidData.into());
            }
            let Some((packet, behind)) = behind.split_at_checked(len) else { break };
            match len {
                0 => self.forget(),
                _ => self.packet(packet),
            }
            rest = behind;
        }
        self.come = rest.to_vec();
        Ok(true)
    }

    /// The guest's driver begins anew: who is behind the answer knows that nothing of what was before comes any more.
    pub(crate) fn forget(&mut self) {
        self.all.clear();
        self.out.extend([0; 4]);
    }

    /// Tells the guest that there is no such connection.
    fn refuse(&mut self, (host, guest): Ports) {
        let header = Header { from: host, to: guest, op: op::RST, ..Header::default() };
        put(&mut self.out, self.cid, &header, &[]);
    }

    pub(crate) fn packet(&mut self, bytes: &[u8]) {
        let (header, payload) = match parse(bytes, self.cid) {
            Parsed::Packet(header, payload) => (header, payload),
            Parsed::Unknown(header) if header.op != op::RST => return self.refuse((header.to, header.from)),
            Parsed::Unknown(_) | Parsed::Nothing => return,
        };
        let ports = (header.to, header.from);
        if header.op == op::REQUEST {
            return self.request(ports, &header);
        }
        let Some(connection) = self.all.get_mut(&ports) else {
            if header.op != op::RST {
                self.refuse(ports);
            }
            return;
        };
        connection.heard(&header);
        let fits = match (header.op, connection.stage) {
            (op::RST, _) => {
                self.all.remove(&ports);
                return;
            }
            (op::RESPONSE, Stage::Asked) => {
                connection.stage = Stage::Open;
                (&connection.socket).write_all(format!("OK {}\n", ports.0).as_bytes()).is_ok()
            }
            (op::RW, Stage::Open) => connection.take(payload),
            (op::SHUTDOWN, Stage::Open) => {
                connection.shut(header.flags);
                true
            }
            (op::CREDIT_UPDATE, _) => true,
            (op::CREDIT_REQUEST, Stage::Open) => {
                let update = connection.header(ports.0, ports.1, op::CREDIT_UPDATE);
                put(&mut self.out, self.cid, &update, &[]);
                true
            }
            _ => false,
        };
        match fits {
            true => self.attend(ports),
            false => self.end(ports),
        }
    }

    /// The guest connects to one of the host's ports.
    fn request(&mut self, ports: Ports, header: &Header) {
        let mut name = self.name.clone().into_os_string();
        name.push(format!("_{}", ports.0));
        let taken = self.all.contains_key(&ports) || self.all.len() >= MOST;
        let socket = if taken { None } else { UnixStream::connect(name).ok() };
        let Some(socket) = socket.filter(|socket| socket.set_nonblocking(true).is_ok()) else {
            self.all.remove(&ports);
            return self.refuse(ports);
        };
        let mut connection = Connection::new(socket, Stage::Open);
        connection.heard(header);
        let response = connection.header(ports.0, ports.1, op::RESPONSE);
        put(&mut self.out, self.cid, &response, &[]);
        self.all.insert(ports, connection);
    }

    /// Somebody of the host's connected.
    fn admit(&mut self, door: &UnixListener) {
        if let Ok((socket, _)) = door.accept()
            && socket.set_nonblocking(true).is_ok()
        {
            self.silent.push(Silent { socket, line: Vec::new() });
        }
    }

    /// Reads which port somebody wants, and no byte more. Who says something else is gone: his line is made too long.
    fn listen(&mut self, at: usize) {
        let Some(silent) = self.silent.get_mut(at) else { return };
        let mut byte = [0];
        let gone = loop {
            match (&silent.socket).read(&mut byte) {
                Ok(1) if byte[0] == b'\n' => break false,
                Ok(1) if silent.line.len() < LINE => silent.line.push(byte[0]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => break true,
            }
        };
        let line = std::mem::replace(&mut silent.line, vec![0; LINE + 1]);
        let port = std::str::from_utf8(&line).ok().and_then(|line| line.trim_end().strip_prefix("CONNECT "));
        let Some(port) = port.and_then(|port| port.trim().parse().ok()).filter(|_| !gone) else { return };
        let Ok(socket) = silent.socket.try_clone() else { return };
        while self.all.contains_key(&(self.next, port)) {
            self.next = self.next.wrapping_add(1).max(FIRST_PORT);
        }
        let ports = (self.next, port);
        self.next = self.next.wrapping_add(1).max(FIRST_PORT);
        let mut connection = Connection::new(socket, Stage::Asked);
        let request = connection.header(ports.0, ports.1, op::REQUEST);
        put(&mut self.out, self.cid, &request, &[]);
        self.all.insert(ports, connection);
    }

    /// Moves what can be moved of a connection.
    fn attend(&mut self, ports: Ports) {
        let Some(connection) = self.all.get_mut(&ports) else { return };
        let mut over = connection.flush() == Next::Over;
        match if over { Read1::Nothing } else { connection.read(&mut self.buffer) } {
            Read1::Bytes(count) => {
                let header = connection.header(ports.0, ports.1, Connection::BYTES);
                put(&mut self.out, self.cid, &header, &self.buffer[..count]);
            }
            Read1::End => {
                let mut header = connection.header(ports.0, ports.1, op::SHUTDOWN);
                header.flags = Connection::END;
                put(&mut self.out, self.cid, &header, &[]);
                over = connection.flush() == Next::Over;
            }
            Read1::Failed => over = true,
            Read1::Nothing => {}
        }
        if over {
            self.end(ports);
        } else if connection.owes_credit() {
            let update = connection.header(ports.0, ports.1, op::CREDIT_UPDATE);
            put(&mut self.out, self.cid, &update, &[]);
        }
    }

    fn end(&mut self, ports: Ports) {
        self.all.remove(&ports);
        self.refuse(ports);
    }

    #[cfg(test)]
    pub(crate) fn connections(&self) -> usize {
        self.all.len()
    }
}
