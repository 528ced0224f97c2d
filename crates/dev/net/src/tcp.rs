//! A TCP connection of the guest, which ends here and goes on as a connection of the host (RFC 9293).
//!
//! Between the guest and us nothing gets lost or overtakes, but where a driver is reset or a guest drops what it has no
//! memory for. So there is no congestion to control and nothing is kept that came too early: what is missing is asked for by
//! repeating the acknowledgement, and what is not acknowledged in time is sent again from there on.

use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::sockopt;
use smoltcp::wire::{IpRepr, TcpControl, TcpRepr, TcpSeqNumber};

use crate::buffer::Buffer;
use crate::wire::{Out, Refusal};

/// Most bytes that wait for the host, and for the guest. The former is the window that the guest sees.
const INBOX: usize = 512 << 10;
const OUTBOX: usize = 512 << 10;
/// By how many bits the window that we tell is shifted.
const SHIFT: u8 = 4;
/// Bytes of frames that may wait for the guest before nothing more is sent.
pub(crate) const CROWDED: usize = 512 << 10;
/// Bytes of the largest segment where the guest does not tell (RFC 9293, 3.7.1).
const MSS_DEFAULT: usize = 536;
/// The largest packet, without its headers.
const MSS4: usize = 65_520 - 40;
const MSS6: usize = 65_520 - 60;
/// Milliseconds until something is sent again: at first, and at most. How often, until the guest is given up.
const AGAIN: u64 = 300;
const AGAIN_MOST: u64 = 4000;
const TRIES: u32 = 12;

/// Who speaks with whom, as the guest sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub guest: SocketAddr,
    pub remote: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The guest's SYN is answered when the host's connection is there.
    Connecting,
    /// The SYN of our answer was sent.
    Answering,
    /// Our own SYN was sent, for somebody who came by a forward.
    Calling,
    Open,
}

/// How a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    Goes,
    Over,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Flow {
    key: Key,
    socket: TcpStream,
    stage: Stage,
    life: Life,
    /// When it was last used, in milliseconds.
    pub touched: u64,

    /// What the guest sends next.
    expected: u32,
    inbox: Buffer,
    guest_done: bool,
    host_told: bool,
    ack_due: bool,
    told_window: usize,

    /// What the guest has not acknowledged begins here, which is where `outbox` does.
    una: u32,
    /// What is sent next, and what was never sent.
    nxt: u32,
    high: u32,
    outbox: Buffer,
    window: usize,
    shift: u8,
    own_shift: u8,
    mss: usize,
    host_done: bool,
    end_acked: bool,
    repeated: u8,
    tries: u32,
    deadline: Option<u64>,
}

/// How far `a` is behind `b`, if it is.
fn behind(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

impl Flow {
    fn new(key: Key, socket: TcpStream, stage: Stage, now: u64) -> Self {
        let first = RandomState::new().hash_one(key.remote.port()) as u32;
        Flow {
            key,
            socket,
            stage,
            life: Life::Goes,
            touched: now,
            expected: 0,
            inbox: Buffer::default(),
            guest_done: false,
            host_told: false,
            ack_due: false,
            told_window: INBOX,
            una: first,
            nxt: first,
            high: first,
            outbox: Buffer::default(),
            window: 0,
            shift: 0,
            own_shift: 0,
            mss: MSS_DEFAULT,
            host_done: false,
            end_acked: false,
            repeated: 0,
            tries: 0,
            deadline: None,
        }
    }

    /// One that the guest began with `syn`, while `socket` connects.
    pub(crate) fn called(key: Key, socket: TcpStream, syn: &TcpRepr<'_>, now: u64) -> Self {
        let mut flow = Flow::new(key, socket, Stage::Connecting, now);
        flow.greeted(syn);
        flow
    }

    /// One to the guest, for `socket`, which is connected.
    pub(crate) fn calling(key: Key, socket: TcpStream, out: &mut Out, now: u64) -> Self {
        let mut flow = Flow::new(key, socket, Stage::Calling, now);
        flow.own_shift = SHIFT;
        flow.nxt = flow.una.wrapping_add(1);
        flow.high = flow.nxt;
        flow.greet(out);
        flow.deadline = Some(now + AGAIN);
        flow
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The number of what is sent next to the guest; and of what it sends next.
    pub(crate) fn next(&self) -> u32 {
        self.nxt
    }

    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    /// The number of the guest's SYN, while it is not answered.
    pub(crate) fn first_seq(&self) -> u32 {
        self.expected.wrapping_sub(1)
    }

    /// What its socket is waited for.
    pub(crate) fn wanted(&self, crowded: bool) -> PollFlags {
        let mut wanted = PollFlags::empty();
        match self.stage {
            Stage::Connecting => wanted |= PollFlags::OUT,
            Stage::Open => {
                if !self.host_done && !crowded && self.outbox.len() < OUTBOX {
                    wanted |= PollFlags::IN;
                }
                if !self.inbox.is_empty() {
                    wanted |= PollFlags::OUT;
                }
            }
            Stage::Answering | Stage::Calling => {}
        }
        wanted
    }

    /// When it wants to be asked again at the latest.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadline
    }

    fn most(&self) -> usize {
        if self.key.remote.is_ipv4() { MSS4 } else { MSS6 }
    }

    /// Takes what the guest's SYN says.
    fn greeted(&mut self, syn: &TcpRepr<'_>) {
        self.expected = (syn.seq_number.0 as u32).wrapping_add(1);
        self.window = usize::from(syn.window_len);
        self.shift = syn.window_scale.unwrap_or(0);
        self.own_shift = if syn.window_scale.is_some() { SHIFT } else { 0 };
        self.mss = syn.max_seg_size.map_or(MSS_DEFAULT, usize::from).clamp(64, self.most());
    }

    fn room(&self) -> usize {
        (INBOX - self.inbox.len()).min(usize::from(u16::MAX) << self.own_shift)
    }

    fn emit(&mut self, out: &mut Out, control: TcpControl, seq: u32, len: usize) {
        let room = self.room();
        let begin = behind(seq, self.una).max(0) as usize;
        let repr = TcpRepr {
            src_port: self.key.remote.port(),
            dst_port: self.key.guest.port(),
            control,
            seq_number: TcpSeqNumber(seq as i32),
            ack_number: Some(TcpSeqNumber(self.expected as i32)),
            window_len: (room >> self.own_shift) as u16,
            window_scale: None,
            max_seg_size: None,
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: self.outbox.bytes().get(begin..begin + len).unwrap_or_default(),
        };
        out.tcp(self.key.remote.ip(), self.key.guest.ip(), &repr);
        self.ack_due = false;
        self.told_window = room;
    }

    /// Sends our SYN, with or without the acknowledgement of the guest's.
    fn greet(&mut self, out: &mut Out) {
        let answers = self.stage == Stage::Answering;
        let repr = TcpRepr {
            src_port: self.key.remote.port(),
            dst_port: self.key.guest.port(),
            control: TcpControl::Syn,
            seq_number: TcpSeqNumber(self.una as i32),
            ack_number: answers.then_some(TcpSeqNumber(self.expected as i32)),
            // The window of a SYN is not shifted (RFC 7323, 2.2).
            window_len: u16::MAX,
            window_scale: (self.own_shift != 0).then_some(self.own_shift),
            max_seg_size: Some(self.most() as u16),
            sack_permitted: false,
            sack_ranges: [None; 3],
            timestamp: None,
            payload: &[],
        };
        out.tcp(self.key.remote.ip(), self.key.guest.ip(), &repr);
    }

    /// Ends it on both sides at once.
    fn abort(&mut self, out: &mut Out) {
        if self.life == Life::Goes {
            self.emit(out, TcpControl::Rst, self.nxt, 0);
            self.let_go();
        }
    }

    /// Ends it on the host's side, whose other end sees that it was no orderly end.
    pub(crate) fn let_go(&mut self) {
        let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
        self.life = Life::Over;
    }

    /// What became of the host's connection. The error is why there is none.
    pub(crate) fn connected(&mut self, out: &mut Out, now: u64) -> Result<(), Refusal> {
        if self.stage != Stage::Connecting {
            return Ok(());
        }
        match sockopt::socket_error(&self.socket) {
            Ok(Ok(())) => {}
            Ok(Err(rustix::io::Errno::CONNREFUSED)) => {
                self.abort(out);
                return Ok(());
            }
            _ => {
                self.life = Life::Over;
                return Err(Refusal::Host);
            }
        }
        let _ = self.socket.set_nodelay(true);
        self.stage = Stage::Answering;
        self.nxt = self.una.wrapping_add(1);
        self.high = self.nxt;
        self.greet(out);
        self.deadline = Some(now + AGAIN);
        Ok(())
    }

    /// A segment of the guest.
    pub(crate) fn segment(&mut self, out: &mut Out, now: u64, repr: &TcpRepr<'_>) {
        self.touched = now;
        let seq = repr.seq_number.0 as u32;
        let ack = repr.ack_number.map(|ack| ack.0 as u32);
        match (self.stage, repr.control) {
            (Stage::Connecting, TcpControl::Rst) => return self.let_go(),
            (Stage::Connecting, _) => return,
            (Stage::Calling, TcpControl::Rst) if ack == Some(self.nxt) => return self.let_go(),
            (Stage::Calling, TcpControl::Syn) if ack == Some(self.nxt) => {
                self.greeted(repr);
                self.opened();
                self.ack_due = true;
                return;
            }
            (Stage::Calling, _) => return,
            (Stage::Answering, TcpControl::Syn) => return self.greet(out),
            (Stage::Answering, TcpControl::None | TcpControl::Psh | TcpControl::Fin)
                if ack == Some(self.nxt) =>
            {
                self.opened();
            }
            // In the window, or it is somebody's guess (RFC 5961, 3.2).
            (_, TcpControl::Rst) => {
                let ahead = behind(seq, self.expected);
                if (0..INBOX as i32).contains(&ahead) {
                    self.let_go();
                }
                return;
            }
            (_, TcpControl::Syn) => {
                self.ack_due = true;
                return;
            }
            _ => {}
        }
        if self.stage != Stage::Open {
            return;
        }
        let Some(ack) = ack else { return };
        self.acknowledged(out, now, ack, repr);
        self.take(seq, repr.payload, repr.control == TcpControl::Fin);
    }

    fn opened(&mut self) {
        self.stage = Stage::Open;
        self.una = self.nxt;
        self.tries = 0;
        self.deadline = None;
    }

    fn acknowledged(&mut self, out: &mut Out, now: u64, ack: u32, repr: &TcpRepr<'_>) {
        let window = usize::from(repr.window_len) << self.shift;
        let acked = behind(ack, self.una);
        if acked < 0 || behind(ack, self.high) > 0 {
            return;
        }
        if acked == 0 {
            let same = window == self.window && repr.payload.is_empty() && self.nxt != self.una;
            self.repeated = if same { self.repeated.saturating_add(1) } else { 0 };
            self.window = window;
            // A guest that tells that it has no room is there.
            self.tries = if window == 0 { 0 } else { self.tries };
            if self.repeated == 3 {
                let len = self.outbox.len().min(self.mss);
                let control = if len == 0 { TcpControl::Fin } else { TcpControl::None };
                self.emit(out, control, self.una, len);
            }
            return;
        }
        let data = (acked as usize).min(self.outbox.len());
        self.end_acked |= acked as usize > self.outbox.len();
        self.outbox.pass(data);
        self.una = ack;
        if behind(self.nxt, ack) < 0 {
            self.nxt = ack;
        }
        self.window = window;
        self.repeated = 0;
        self.tries = 0;
        self.deadline = (self.nxt != ack).then_some(now + AGAIN);
    }

    /// Takes what the guest sends, from `seq` on.
    fn take(&mut self, seq: u32, mut payload: &[u8], mut end: bool) {
        if payload.is_empty() && !end {
            return;
        }
        self.ack_due = true;
        let early = behind(seq, self.expected);
        if early > 0 {
            return;
        }
        let known = early.unsigned_abs() as usize;
        if known > payload.len() || self.guest_done {
            return;
        }
        payload = &payload[known..];
        let taken = payload.len().min(self.room());
        end &= taken == payload.len();
        payload = &payload[..taken];
        self.expected = self.expected.wrapping_add(taken as u32);
        if self.inbox.is_empty() && !payload.is_empty() {
            match self.socket.write(payload) {
                Ok(count) => payload = &payload[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The next attempt says the same.
                Err(_) => {}
            }
        }
        self.inbox.put(payload);
        if end {
            self.expected = self.expected.wrapping_add(1);
            self.guest_done = true;
        }
    }

    /// Brings to the host what waits for it.
    fn push(&mut self, out: &mut Out) {
        while !self.inbox.is_empty() {
            match self.socket.write(self.inbox.bytes()) {
                Ok(count) => self.inbox.pass(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => return self.abort(out),
            }
        }
        if self.guest_done && !self.host_told {
            self.host_told = true;
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        if self.told_window < INBOX / 4 && self.room() >= INBOX / 2 {
            self.ack_due = true;
        }
    }

    /// Takes what the host has for the guest.
    pub(crate) fn pull(&mut self, out: &mut Out, now: u64) {
        let room = OUTBOX.saturating_sub(self.outbox.len());
        if self.stage != Stage::Open || self.host_done || room == 0 {
            return;
        }
        self.touched = now;
        let socket = &mut self.socket;
        match self.outbox.fill(room, |place| socket.read(place)) {
            Ok(0) => self.host_done = true,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.abort(out),
        }
    }

    /// Sends what may be sent, and tells what became of the connection.
    pub(crate) fn serve(&mut self, out: &mut Out, now: u64) -> Life {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.again(out, now);
        }
        if self.life == Life::Goes && self.stage == Stage::Open {
            self.push(out);
        }
        if self.life == Life::Goes && self.stage == Stage::Open {
            self.transmit(out);
            if self.ack_due {
                self.emit(out, TcpControl::None, self.nxt, 0);
            }
            let waits = self.nxt != self.una || (!self.outbox.is_empty() && self.window == 0);
            if waits && self.deadline.is_none() {
                self.deadline = Some(now + AGAIN);
            }
            if self.guest_done && self.host_told && self.end_acked {
                self.life = Life::Over;
            }
        }
        self.life
    }

    fn transmit(&mut self, out: &mut Out) {
        while !self.end_acked && out.len() < CROWDED {
            let flight = behind(self.nxt, self.una) as usize;
            let unsent = self.outbox.len().saturating_sub(flight);
            let len = unsent.min(self.mss).min(self.window.saturating_sub(flight));
            // Small pieces of a window are not worth a segment (RFC 9293, 3.8.6.2.1).
            let silly = len < self.mss && len < unsent && flight > 0;
            if len == 0 || silly {
                break;
            }
            let control = if len == unsent { TcpControl::Psh } else { TcpControl::None };
            self.emit(out, control, self.nxt, len);
            self.sent(len as u32);
        }
        let flight = behind(self.nxt, self.una) as usize;
        if self.host_done && !self.end_acked && flight == self.outbox.len() {
            self.emit(out, TcpControl::Fin, self.nxt, 0);
            self.sent(1);
        }
    }

    fn sent(&mut self, count: u32) {
        self.nxt = self.nxt.wrapping_add(count);
        if behind(self.nxt, self.high) > 0 {
            self.high = self.nxt;
        }
    }

    /// Something was not answered in time.
    fn again(&mut self, out: &mut Out, now: u64) {
        self.tries += 1;
        if self.tries > TRIES {
            return self.abort(out);
        }
        self.deadline = Some(now + (AGAIN << self.tries.min(8)).min(AGAIN_MOST));
        match self.stage {
            Stage::Connecting => {}
            Stage::Answering | Stage::Calling => self.greet(out),
            Stage::Open => {
                self.nxt = self.una;
                if self.window == 0 && !self.outbox.is_empty() {
                    // Asks whether there is room again.
                    self.emit(out, TcpControl::None, self.una, 1);
                    self.sent(1);
                }
            }
        }
    }
}

/// Answers a segment that belongs to no connection.
pub(crate) fn reset(out: &mut Out, header: &IpRepr, repr: &TcpRepr<'_>) {
    if repr.control == TcpControl::Rst {
        return;
    }
    let len = repr.payload.len() + repr.control.len();
    let (seq_number, ack_number) = match repr.ack_number {
        Some(ack) => (ack, None),
        None => (TcpSeqNumber(0), Some(repr.seq_number + len)),
    };
    let from = SocketAddr::new(header.dst_addr().into(), repr.dst_port);
    let to = SocketAddr::new(header.src_addr().into(), repr.src_port);
    refuse(out, from, to, seq_number, ack_number);
}

/// Sends the guest a reset.
pub(crate) fn refuse(
    out: &mut Out,
    from: SocketAddr,
    to: SocketAddr,
    seq_number: TcpSeqNumber,
    ack_number: Option<TcpSeqNumber>,
) {
    let segment = TcpRepr {
        src_port: from.port(),
        dst_port: to.port(),
        control: TcpControl::Rst,
        seq_number,
        ack_number,
        window_len: 0,
        window_scale: None,
        max_seg_size: None,
        sack_permitted: false,
        sack_ranges: [None; 3],
        timestamp: None,
        payload: &[],
    };
    out.tcp(from.ip(), to.ip(), &segment);
}
