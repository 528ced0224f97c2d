//! A split queue (virtio 1.2, 2.7), which trusts nothing that it reads from the guest.
//!
//! Everything is read once and the copy is used; every address is checked where it is used; a chain is never
//! longer than its queue, through one level of indirection; what is to be written comes behind what is to be
//! read. A queue that breaks one of the rules is [`Broken`], and its device needs a reset.
//!
//! This is not the crate virtio-queue, since that one ends a chain silently where it is wrong, and a device
//! would take the part before for a request.

use std::sync::atomic::{Ordering, fence};

use satori_defs::virtio::{feature, split::*};
use satori_memory::{Gpa, GuestMemory, Scatter};
use serde::{Deserialize, Serialize};

/// The guest broke a rule of queues: which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

impl From<satori_memory::Error> for Broken {
    fn from(_: satori_memory::Error) -> Self {
        Broken("a ring is outside memory, or not aligned")
    }
}

/// A piece of guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub at: Gpa,
    /// Its bytes.
    pub len: u32,
}

/// What the driver made available at once: a request.
#[derive(Debug)]
pub struct Chain {
    head: u16,
    life: u64,
    /// What the device reads.
    pub readable: Vec<Span>,
    /// What it writes.
    pub writable: Vec<Span>,
}

fn bytes(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.len as usize).sum()
}

/// Where bytes of `spans` are; nothing if some are no memory any more, of which all was when the chain was taken.
fn scatter(memory: &GuestMemory, spans: &[Span], skip: usize, most: usize) -> Option<Scatter> {
    Scatter::new(memory, spans.iter().map(|span| (span.at, span.len as usize)), skip, most).ok()
}

impl Chain {
    /// Bytes that the device may read.
    pub fn readable_bytes(&self) -> usize {
        bytes(&self.readable)
    }

    /// Bytes that the device may write.
    pub fn writable_bytes(&self) -> usize {
        bytes(&self.writable)
    }

    /// Copies up to `most` bytes out, from `skip` bytes on.
    pub fn read(&self, memory: &GuestMemory, mut skip: usize, most: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(most.min(self.readable_bytes().saturating_sub(skip)));
        for span in &self.readable {
            let passed = skip.min(span.len as usize);
            skip -= passed;
            let len = (span.len as usize - passed).min(most - out.len());
            let start = out.len();
            out.resize(start + len, 0);
            // That it is RAM was checked when the chain was taken, and RAM does not go away.
            let _ = memory.read(span.at.add(passed as u64), &mut out[start..]);
        }
        out
    }

    /// Up to `most` bytes of what the device reads, from `skip` bytes on, where they are.
    pub fn source(&self, memory: &GuestMemory, skip: usize, most: usize) -> Option<Scatter> {
        scatter(memory, &self.readable, skip, most)
    }

    /// Up to `most` bytes of what it writes, where they are.
    pub fn room(&self, memory: &GuestMemory, most: usize) -> Option<Scatter> {
        scatter(memory, &self.writable, 0, most)
    }

    /// Copies `data` in, from `skip` bytes on; returns how much of it there was room for.
    pub fn write(&self, memory: &GuestMemory, mut skip: usize, data: &[u8]) -> usize {
        let mut done = 0;
        for span in &self.writable {
            let passed = skip.min(span.len as usize);
            skip -= passed;
            let len = (span.len as usize - passed).min(data.len() - done);
            let _ = memory.write(span.at.add(passed as u64), &data[done..done + len]);
            done += len;
        }
        done
    }
}

/// A chain that its device has in its hands, as it is saved.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedChain {
    head: u16,
    life: u64,
    readable: Vec<(u64, u32)>,
    writable: Vec<(u64, u32)>,
}

impl Chain {
    pub(crate) fn saved(&self) -> SavedChain {
        let places = |spans: &[Span]| spans.iter().map(|span| (span.at.0, span.len)).collect();
        SavedChain {
            head: self.head,
            life: self.life,
            readable: places(&self.readable),
            writable: places(&self.writable),
        }
    }

    /// The chain again, if all of it is memory, and no more than a chain may have.
    pub(crate) fn restored(saved: &SavedChain, memory: &GuestMemory) -> Option<Self> {
        let all = saved.readable.iter().chain(&saved.writable);
        let memory = all.clone().all(|&(at, len)| len > 0 && memory.has(Gpa(at), len.into()));
        let total = all.map(|&(_, len)| u64::from(len)).sum::<u64>();
        let spans =
            |places: &[(u64, u32)]| places.iter().map(|&(at, len)| Span { at: Gpa(at), len }).collect();
        (memory && total <= u32::MAX.into()).then(|| Chain {
            head: saved.head,
            life: saved.life,
            readable: spans(&saved.readable),
            writable: spans(&saved.writable),
        })
    }
}

/// Where a queue is, as the driver set it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Descriptors; a power of two.
    pub size: u16,
    /// The descriptor table.
    pub desc: u64,
    /// The available ring.
    pub driver: u64,
    /// The used ring.
    pub device: u64,
}

impl Place {
    /// Whether a queue of at most `most` descriptors can be there; addresses are checked where they are used.
    pub(crate) fn fits(&self, most: u16) -> bool {
        self.size.is_power_of_two() && self.size <= most
    }
}

/// A queue while its driver uses it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    place: Place,
    live: bool,
    event_idx: bool,
    indirect: bool,
    /// How many chains were taken, modulo 2^16.
    taken: u16,
    /// How many were given back.
    given: u16,
    /// Those of an earlier life are forgotten.
    life: u64,
}

struct Descriptor {
    at: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn parse(raw: &[u8; DESCRIPTOR as usize]) -> Self {
        let [a, b, c, d, e, f, g, h, l0, l1, l2, l3, f0, f1, n0, n1] = *raw;
        Descriptor {
            at: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }
}

impl Queue {
    /// Begins a life at `place`, with the features that were agreed on.
    pub fn start(&mut self, place: Place, features: u64) {
        *self = Queue {
            place,
            live: true,
            event_idx: features & feature::EVENT_IDX != 0,
            indirect: features & feature::INDIRECT_DESC != 0,
            taken: 0,
            given: 0,
            life: self.life.wrapping_add(1),
        };
    }

    /// Ends the life: nothing of it is written to the guest any more.
    pub fn stop(&mut self) {
        self.live = false;
        self.life = self.life.wrapping_add(1);
    }

    /// Whether a queue of at most `most` descriptors can have come to this.
    pub(crate) fn fits(&self, most: u16) -> bool {
        !self.live || self.place.fits(most)
    }

    /// Whether the driver uses it.
    pub fn live(&self) -> bool {
        self.live
    }

    fn available(&self, memory: &GuestMemory) -> Result<u16, Broken> {
        Ok(memory.load_u16(Gpa(self.place.driver).add(INDEX))?.wrapping_sub(self.taken))
    }

    /// Whether the driver made something available that was not taken.
    pub fn has_more(&self, memory: &GuestMemory) -> Result<bool, Broken> {
        Ok(self.live && self.available(memory)? != 0)
    }

    /// Takes the next chain. When there is none, the driver is asked to ring when it adds one.
    pub fn pop(&mut self, memory: &GuestMemory) -> Result<Option<Chain>, Broken> {
        if !self.live {
            return Ok(None);
        }
        let mut available = self.available(memory)?;
        if available == 0 && self.event_idx {
            memory.store_u16(self.avail_event(), self.taken)?;
            // Either the driver sees that it has to ring, or what it added is seen here.
            fence(Ordering::SeqCst);
            available = self.available(memory)?;
        }
        if available == 0 {
            return Ok(None);
        }
        if available > self.place.size {
            return Err(Broken("the available ring is ahead by more than its size"));
        }
        // Each has a descriptor of its own: no driver can fill what the host keeps of requests.
        if self.taken.wrapping_sub(self.given) >= self.place.size {
            return Err(Broken("more chains than descriptors are under way"));
        }
        let slot = u64::from(self.taken & (self.place.size - 1));
        let head = memory.load_u16(Gpa(self.place.driver).add(RING + 2 * slot))?;
        let chain = self.chain(memory, head)?;
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(chain))
    }

    /// Takes the last chains that were taken as not taken: the next ones are these again.
    pub(crate) fn put_back(&mut self, chains: &[Chain]) {
        let own = chains.iter().filter(|chain| chain.life == self.life).count();
        self.taken = self.taken.wrapping_sub(own as u16);
    }

    fn avail_event(&self) -> Gpa {
        Gpa(self.place.device).add(RING + USED * u64::from(self.place.size))
    }

    fn used_event(&self) -> Gpa {
        Gpa(self.place.driver).add(RING + 2 * u64::from(self.place.size))
    }

    fn chain(&self, memory: &GuestMemory, head: u16) -> Result<Chain, Broken> {
        let mut chain = Chain { head, life: self.life, readable: Vec::new(), writable: Vec::new() };
        let (mut index, mut seen) = (head, 0_u32);
        loop {
            if index >= self.place.size {
                return Err(Broken("there is no such descriptor"));
            }
            let mut raw = [0; DESCRIPTOR as usize];
            memory.read(Gpa(self.place.desc).add(DESCRIPTOR * u64::from(index)), &mut raw)?;
            let descriptor = Descriptor::parse(&raw);
            if descriptor.flags & INDIRECT != 0 {
                self.indirect(memory, &descriptor, &mut chain, seen)?;
                break;
            }
            seen += 1;
            if seen > self.place.size.into() {
                return Err(Broken("a chain is longer than its queue"));
            }
            add(memory, &descriptor, &mut chain)?;
            if descriptor.flags & NEXT == 0 {
                break;
            }
            index = descriptor.next;
        }
        let total = chain.readable.iter().chain(&chain.writable).map(|span| u64::from(span.len)).sum::<u64>();
        if total > u64::from(u32::MAX) {
            return Err(Broken("a chain has 4 GiB or more"));
        }
        Ok(chain)
    }

    /// What a descriptor leads to that is a table of others (2.7.5.3).
    fn indirect(
        &self,
        memory: &GuestMemory,
        descriptor: &Descriptor,
        chain: &mut Chain,
        mut seen: u32,
    ) -> Result<(), Broken> {
        let size = u32::from(self.place.size);
        let entries = descriptor.len / DESCRIPTOR as u32;
        if !self.indirect {
            return Err(Broken("an indirect descriptor without that feature"));
        }
        if descriptor.flags & NEXT != 0 {
            return Err(Broken("an indirect descriptor with a next one"));
        }
        if entries == 0 || !descriptor.len.is_multiple_of(DESCRIPTOR as u32) || entries > size {
            return Err(Broken("an indirect table of a length that none has"));
        }
        let mut table = vec![0; descriptor.len as usize];
        memory.read(Gpa(descriptor.at), &mut table)?;
        let table = table.as_chunks::<{ DESCRIPTOR as usize }>().0;
        let mut index = 0;
        loop {
            let raw = table.get(index).ok_or(Broken("there is no such descriptor in a table"))?;
            let descriptor = Descriptor::parse(raw);
            if descriptor.flags & INDIRECT != 0 {
                return Err(Broken("a table in a table"));
            }
            seen += 1;
            if seen > size {
                return Err(Broken("a chain is longer than its queue"));
            }
            add(memory, &descriptor, chain)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next.into();
        }
    }

    /// Gives `chains` back in one piece: the driver sees all of them or none. `fill` writes to each and tells how many
    /// bytes, and is called only if they are of this life of the queue. Returns whether the driver wants an interrupt.
    pub fn give(
        &mut self,
        memory: &GuestMemory,
        chains: &[Chain],
        mut fill: impl FnMut(usize, &Chain) -> usize,
    ) -> Result<bool, Broken> {
        if !self.live || chains.iter().any(|chain| chain.life != self.life) {
            return Ok(false);
        }
        let before = self.given;
        for (index, chain) in chains.iter().enumerate() {
            let written = fill(index, chain) as u32;
            let slot = u64::from(self.given & (self.place.size - 1));
            let mut entry = [0; USED as usize];
            entry[..4].copy_from_slice(&u32::from(chain.head).to_le_bytes());
            entry[4..].copy_from_slice(&written.to_le_bytes());
            memory.write(Gpa(self.place.device).add(RING + USED * slot), &entry)?;
            self.given = self.given.wrapping_add(1);
        }
        memory.store_u16(Gpa(self.place.device).add(INDEX), self.given)?;
        // Either the driver sees the entries, or its wish for an interrupt is seen here.
        fence(Ordering::SeqCst);
        if self.event_idx {
            // It wants one when the entry behind that index is given (2.7.7.2).
            let event = memory.load_u16(self.used_event())?;
            return Ok(event.wrapping_sub(before) < self.given.wrapping_sub(before));
        }
        Ok(memory.load_u16(Gpa(self.place.driver))? & NO_INTERRUPT == 0)
    }
}

fn add(memory: &GuestMemory, descriptor: &Descriptor, chain: &mut Chain) -> Result<(), Broken> {
    let span = Span { at: Gpa(descriptor.at), len: descriptor.len };
    if span.len == 0 {
        return Ok(());
    }
    if !memory.has(span.at, span.len.into()) {
        return Err(Broken("a buffer is outside memory"));
    }
    if descriptor.flags & WRITE != 0 {
        chain.writable.push(span);
    } else if chain.writable.is_empty() {
        chain.readable.push(span);
    } else {
        return Err(Broken("a buffer to read behind one to write"));
    }
    Ok(())
}
