//! One connection: a Unix socket of the host's, and a port of the guest's.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use crate::packet::{Header, NO_RECEIVE, NO_SEND, PAYLOAD, op};

/// Bytes that the guest may send before the host's socket took them.
pub(crate) const ROOM: u32 = 256 << 10;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The guest was asked whether it wants it.
    Asked,
    /// Bytes go both ways.
    Open,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Keep,
    /// Nothing more goes either way: the guest is told, and it is forgotten.
    Over,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: UnixStream,
    pub(crate) stage: Stage,
    /// Bytes of the guest's that the socket did not take yet.
    to_host: VecDeque<u8>,
    /// How many it took in all, and how many the guest knows of.
    taken: u32,
    told: u32,
    /// How many went to the guest, how many of them it has taken, and how much room it has.
    sent: u32,
    guest_taken: u32,
    guest_room: u32,
    /// The guest sends no more; it receives no more; the host's socket has no more.
    guest_done: bool,
    guest_deaf: bool,
    host_done: bool,
    /// Why it ended, to be told once.
    shut: bool,
}

impl Connection {
    pub(crate) fn new(socket: UnixStream, stage: Stage) -> Connection {
        Connection {
            socket,
            stage,
            to_host: VecDeque::new(),
            taken: 0,
            told: 0,
            sent: 0,
            guest_taken: 0,
            guest_room: 0,
            guest_done: false,
            guest_deaf: false,
            host_done: false,
            shut: false,
        }
    }

    /// A header for the guest, with what there is to know of room.
    pub(crate) fn header(&mut self, from: u32, to: u32, op: u16) -> Header {
        self.told = self.taken;
        Header { from, to, op, flags: 0, room: ROOM, taken: self.taken }
    }

    /// What each of the guest's packets tells of its room.
    pub(crate) fn heard(&mut self, header: &Header) {
        (self.guest_room, self.guest_taken) = (header.room, header.taken);
    }

    /// Bytes that the guest has room for.
    fn credit(&self) -> usize {
        let under_way = self.sent.wrapping_sub(self.guest_taken);
        self.guest_room.saturating_sub(under_way) as usize
    }

    /// Whether the socket is to be waited for: to have bytes, to take some.
    pub(crate) fn waits(&self) -> (bool, bool) {
        let open = self.stage == Stage::Open;
        (open && !self.host_done && !self.guest_deaf && self.credit() > 0, !self.to_host.is_empty())
    }

    /// Bytes of the guest's. False if it sent more than there is room for.
    pub(crate) fn take(&mut self, payload: &[u8]) -> bool {
        if self.guest_done || self.to_host.len() + payload.len() > ROOM as usize {
            return false;
        }
        self.to_host.extend(payload);
        true
    }

    /// The guest sends or receives no more.
    pub(crate) fn shut(&mut self, flags: u32) {
        self.guest_done |= flags & NO_SEND != 0;
        if flags & NO_RECEIVE != 0 && !self.guest_deaf {
            self.guest_deaf = true;
            let _ = self.socket.shutdown(Shutdown::Read);
        }
    }

    /// Gives the socket what it takes.
    pub(crate) fn flush(&mut self) -> Next {
        while !self.to_host.is_empty() {
            let (first, _) = self.to_host.as_slices();
            match (&self.socket).write(first) {
                Ok(count) => {
                    self.to_host.drain(..count);
                    self.taken = self.taken.wrapping_add(count as u32);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Next::Keep,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nobody reads there any more.
                Err(_) => return Next::Over,
            }
        }
        if self.guest_done && !std::mem::replace(&mut self.shut, true) {
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        if self.guest_done && (self.host_done || self.guest_deaf) { Next::Over } else { Next::Keep }
    }

    /// Whether the guest is to be told of room that it may not know of.
    pub(crate) fn owes_credit(&self) -> bool {
        self.taken.wrapping_sub(self.told) >= ROOM / 4
    }

    /// Reads once what the guest has room for: what to send, if anything, and whether there is more to be read.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Read1 {
        let most = self.credit().min(PAYLOAD).min(buffer.len());
        if !self.waits().0 || most == 0 {
            return Read1::Nothing;
        }
        match (&self.socket).read(&mut buffer[..most]) {
            Ok(0) => {
                self.host_done = true;
                Read1::End
            }
            Ok(count) => {
                self.sent = self.sent.wrapping_add(count as u32);
                Read1::Bytes(count)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                Read1::Nothing
            }
            Err(_) => Read1::Failed,
        }
    }

    /// The flags of the packet that tells the guest of the host's end.
    pub(crate) const END: u32 = NO_SEND;
    /// The operation that carries bytes.
    pub(crate) const BYTES: u16 = op::RW;
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read1 {
    Bytes(usize),
    End,
    Nothing,
    Failed,
}
