//! A channel: two rings, and who is told of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use satori_defs::hyperv::vmbus::packet::{COMPLETION, IN_BAND};
use satori_defs::hyperv::vmbus::ring::HEADER;
use satori_lock::lock;
use satori_memory::GuestMemory;
use serde::{Deserialize, Serialize};

use crate::ring::{Put, Reader, Writer};
use crate::{Broken, Host, Packet, Pages, SavedPages};

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The guest finds it.
    Done,
    /// There is no room: the channel is signalled when there is.
    Full,
    /// Nobody finds it.
    Closed,
}

/// Most bytes of completions that wait for room, of a guest that reads none.
const WAITING_MAX: usize = 1 << 20;

struct Open {
    reader: Reader,
    writer: Writer,
    /// Packets that have no room.
    waiting: VecDeque<Vec<u8>>,
}

/// A channel as plain data.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedChannel {
    sint: u8,
    vp: u32,
    open: Option<SavedOpen>,
}

/// An open one: its pages, where the second ring begins in them, where both go on, and what waits for room.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedOpen {
    pages: SavedPages,
    split: u64,
    read: u32,
    write: u32,
    asked: bool,
    waiting: Vec<Vec<u8>>,
}

impl SavedChannel {
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

#[derive(Default)]
struct State {
    /// Packets of an earlier one are completed to nobody.
    life: u64,
    open: Option<Open>,
}

/// A channel of a device: its own, which has index 0, or one beside it.
pub struct Channel {
    relid: u32,
    index: u16,
    host: Arc<dyn Host>,
    memory: GuestMemory,
    sint: u8,
    vp: AtomicU32,
    state: Mutex<State>,
    /// Signals that nobody has looked for yet; who makes it not zero looks.
    bells: AtomicU32,
}

impl Channel {
    pub(crate) fn new(
        (relid, index): (u32, u16),
        host: Arc<dyn Host>,
        memory: GuestMemory,
        sint: u8,
    ) -> Arc<Self> {
        let (vp, bells, state) = (AtomicU32::new(0), AtomicU32::new(0), Mutex::default());
        Arc::new(Channel { relid, index, host, memory, sint, vp, state, bells })
    }

    /// Its state, while nobody looks for signals.
    pub(crate) fn save(&self) -> SavedChannel {
        let open = lock(&self.state).open.as_ref().map(|open| {
            let ((pages, read), (split, write, asked)) = (open.reader.place(), open.writer.place());
            let waiting = open.waiting.iter().cloned().collect();
            SavedOpen { pages: pages.save(), split, read, write, asked, waiting }
        });
        SavedChannel { sint: self.sint, vp: self.vp.load(Ordering::Acquire), open }
    }

    /// The one that was saved; none if it cannot be.
    pub(crate) fn restored(
        number: (u32, u16),
        host: Arc<dyn Host>,
        memory: &GuestMemory,
        saved: SavedChannel,
    ) -> Option<Arc<Self>> {
        let channel = Channel::new(number, host, memory.clone(), saved.sint);
        channel.set_vp(saved.vp);
        if let Some(SavedOpen { pages, split, read, write, asked, waiting }) = saved.open {
            let pages = Arc::new(Pages::restored(memory.clone(), &pages)?);
            let second = pages.len().checked_sub(split)?;
            let reader = Reader::restored(pages.clone(), 0, split, read)?;
            let writer = Writer::restored(pages, split, second, write, asked)?;
            // As they were encoded: a header at least, in eights.
            let fit = waiting
                .iter()
                .all(|packet| packet.len() >= HEADER as usize && packet.len().is_multiple_of(8));
            let bytes = waiting.iter().map(Vec::len).sum::<usize>();
            if !fit || bytes > 2 * WAITING_MAX {
                return None;
            }
            lock(&channel.state).open = Some(Open { reader, writer, waiting: waiting.into() });
        }
        Some(channel)
    }

    /// Its number on the bus.
    pub fn relid(&self) -> u32 {
        self.relid
    }

    /// Which of its device's channels it is; 0 is the one that was there first.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// The guest's memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Reference time in units of 100 ns.
    pub fn reference_time(&self) -> u64 {
        self.host.reference_time()
    }

    pub(crate) fn set_vp(&self, vp: u32) {
        self.vp.store(vp, Ordering::Release);
    }

    /// Opens it on rings in `pages`, of which the second begins at page `split`; whether there can be rings.
    pub(crate) fn open(&self, pages: &Arc<Pages>, split: u32) -> bool {
        let split = u64::from(split) * 4096;
        let Some(second) = pages.len().checked_sub(split) else { return false };
        let reader = Reader::new(pages.clone(), 0, split);
        let (Some(reader), Some(writer)) = (reader, Writer::new(pages.clone(), split, second)) else {
            return false;
        };
        let mut state = lock(&self.state);
        state.life += 1;
        state.open = Some(Open { reader, writer, waiting: VecDeque::new() });
        true
    }

    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.life += 1;
        state.open = None;
    }

    /// Whether the guest has it open.
    pub fn is_open(&self) -> bool {
        lock(&self.state).open.is_some()
    }

    fn tell(&self) {
        self.host.signal(self.vp.load(Ordering::Acquire), self.sint, self.relid);
    }

    /// What `result` is of, or none of a ring that is broken, which closes the channel.
    fn judge<T>(&self, state: &mut State, result: Result<T, Broken>) -> Option<T> {
        result
            .inspect_err(|Broken(why)| {
                tracing::warn!("a ring of VMBus channel {} is broken: {why}", self.relid);
                state.open = None;
            })
            .ok()
    }

    /// Puts packets that waited into the ring; whether all are.
    fn push_waiting(&self, state: &mut State) -> bool {
        let mut signal = false;
        let mut all = true;
        while let Some(open) = &mut state.open
            && let Some(packet) = open.waiting.front()
        {
            let result = open.writer.put(packet);
            match self.judge(state, result) {
                Some(Put::Done { signal: now }) => {
                    signal |= now;
                    state.open.as_mut().and_then(|open| open.waiting.pop_front());
                }
                Some(Put::Full) | None => {
                    all = false;
                    break;
                }
            }
        }
        if signal {
            self.tell();
        }
        all
    }

    /// The next packet. None comes while what was sent before waits for room.
    fn receive(&self) -> Option<Packet> {
        let mut state = lock(&self.state);
        if !self.push_waiting(&mut state) {
            return None;
        }
        let life = state.life;
        let result = state.open.as_mut()?.reader.take();
        let (bytes, waits) = self.judge(&mut state, result)??;
        if waits {
            self.tell();
        }
        let packet = Packet::parse(bytes, life, &self.memory);
        self.judge(&mut state, packet)
    }

    /// Whether the guest signals what it adds; returns whether there is something already.
    fn listen(&self, on: bool) -> bool {
        let mut state = lock(&self.state);
        let Some(open) = &state.open else { return false };
        let stuck = !open.waiting.is_empty();
        let result = open.reader.listen(on).and_then(|()| open.reader.has_more());
        self.judge(&mut state, result).unwrap_or(false) && !stuck
    }

    /// Hands all packets to `each`, in their order and one at a time whoever calls, until there are no more or it answers false: then
    /// they stay until the next call.
    pub fn drain(&self, mut each: impl FnMut(Packet) -> bool) {
        if self.bells.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            self.listen(false);
            let mut goes_on = true;
            while goes_on && let Some(packet) = self.receive() {
                goes_on = each(packet);
            }
            let more = self.listen(true);
            if more && goes_on {
                continue;
            }
            match self.bells.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Sends a packet in the ring alone, if there is room.
    pub fn send(&self, id: u64, wants_completion: bool, payload: &[u8]) -> Sent {
        self.send_kind(IN_BAND, id, wants_completion, &[], payload)
    }

    /// Sends a packet of type `kind`, with `head` before what is in it, if there is room and none waits.
    pub fn send_kind(&self, kind: u16, id: u64, wants_completion: bool, head: &[u8], payload: &[u8]) -> Sent {
        let packet = encode(kind, id, wants_completion, head, payload);
        let mut state = lock(&self.state);
        if state.open.is_none() {
            return Sent::Closed;
        }
        if !self.push_waiting(&mut state) {
            return if state.open.is_some() { Sent::Full } else { Sent::Closed };
        }
        let result = state.open.as_mut().map_or(Ok(Put::Full), |open| open.writer.put(&packet));
        match self.judge(&mut state, result) {
            Some(Put::Done { signal }) => {
                if signal {
                    self.tell();
                }
                Sent::Done
            }
            Some(Put::Full) => Sent::Full,
            None => Sent::Closed,
        }
    }

    /// Completes `packet`. If there is no room, the completion waits for it.
    pub fn complete(&self, packet: &Packet, payload: &[u8]) {
        self.complete_with(packet, || payload.to_vec());
    }

    /// The same with what `fill` makes, which is called only if the channel is still open in the life that `packet` is of: until then nobody
    /// else owns the memory that it names.
    pub fn complete_with(&self, packet: &Packet, fill: impl FnOnce() -> Vec<u8>) {
        let mut state = lock(&self.state);
        if state.life != packet.life || state.open.is_none() {
            return;
        }
        let bytes = encode(COMPLETION, packet.id(), false, &[], &fill());
        if let Some(open) = &mut state.open {
            if open.waiting.iter().map(Vec::len).sum::<usize>() > WAITING_MAX {
                tracing::warn!("VMBus channel {}: its guest reads no completions", self.relid);
                state.open = None;
                return;
            }
            open.waiting.push_back(bytes);
        }
        self.push_waiting(&mut state);
    }
}

fn encode(kind: u16, id: u64, wants_completion: bool, head: &[u8], payload: &[u8]) -> Vec<u8> {
    let offset = (HEADER as usize + head.len()).next_multiple_of(8);
    let len = (offset + payload.len()).next_multiple_of(8);
    let mut packet = Vec::with_capacity(len);
    for word in [kind, (offset / 8) as u16, (len / 8) as u16, u16::from(wants_completion)] {
        packet.extend(word.to_le_bytes());
    }
    packet.extend(id.to_le_bytes());
    packet.extend(head);
    packet.resize(offset, 0);
    packet.extend(payload);
    packet.resize(len, 0);
    packet
}
