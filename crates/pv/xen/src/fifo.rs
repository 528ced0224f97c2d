//! The FIFO ABI of event channels: a word of the guest's for each port, and queues by priority (Xen, event-channels-F).
//!
//! The host adds to a queue's tail, the guest takes from its head; both change words of the guest's by atomic operations. All that
//! the host does is done under the domain's lock, so it races with the guest alone: a guest that writes nonsense loses events of its own.

use std::collections::BTreeSet;

use satori_defs::xen::errno::{EINVAL, ENOSPC, ENOSYS};
use satori_defs::xen::fifo::{
    CONTROL_BYTES, DEFAULT_PRIORITY, HEADS, LINK, LINKED, MASKED, PENDING, PORTS, PRIORITIES,
};
use satori_defs::xen::shared_info;
use satori_memory::{Gpa, GuestMemory, PAGE_SIZE};
use serde::{Deserialize, Serialize};

use crate::domain::State;
use crate::hypercall::{Bytes, Caller, Served, done};
use crate::{Domain, Feature, Vcpu};

/// Ports whose words one page holds.
const IN_PAGE: u32 = (PAGE_SIZE / 4) as u32;

/// One vCPU's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Queues {
    /// Where its control block is.
    control: Option<u64>,
    /// The last port of each queue, by priority; 0 is none.
    tails: [u32; PRIORITIES],
}

/// A port's place in queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Place {
    priority: u8,
    /// vCPU and priority of the queue that it was last put into.
    last: (u32, u8),
}

const UNPLACED: Place = Place { priority: DEFAULT_PRIORITY, last: (0, DEFAULT_PRIORITY) };

/// What the host keeps of the FIFO ABI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fifo {
    /// By vCPU.
    queues: Vec<Queues>,
    /// Frames with ports' words.
    pages: Vec<u64>,
    /// By port, as far as one differs from [`UNPLACED`].
    places: Vec<Place>,
    /// Ports that became pending before they had a word.
    missed: BTreeSet<u32>,
}

impl Fifo {
    fn new(vcpus: usize) -> Self {
        let queues = vec![Queues::default(); vcpus];
        Fifo { queues, pages: Vec::new(), places: Vec::new(), missed: BTreeSet::new() }
    }

    /// Where the word of `port` is.
    fn word(&self, port: u32) -> Option<Gpa> {
        let page = self.pages.get((port / IN_PAGE) as usize)?;
        Some(Gpa(page * PAGE_SIZE + u64::from(port % IN_PAGE) * 4))
    }

    fn place(&mut self, port: u32) -> &mut Place {
        let at = port as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, UNPLACED);
        }
        &mut self.places[at]
    }

    /// Whether `port` is pending, masked or not.
    pub(crate) fn pending(&self, memory: &GuestMemory, port: u32) -> bool {
        let word = self.word(port).and_then(|word| memory.load_u32(word).ok());
        word.map_or_else(|| self.missed.contains(&port), |word| word & PENDING != 0)
    }

    /// Whether the guest has yet to take `port` from a queue: until then nothing else is bound there.
    pub(crate) fn linked(&self, memory: &GuestMemory, port: u32) -> bool {
        self.word(port).and_then(|word| memory.load_u32(word).ok()).is_some_and(|word| word & LINKED != 0)
    }

    /// Takes the pending bit of `port` back, and its priority.
    pub(crate) fn clear(&mut self, memory: &GuestMemory, port: u32) {
        self.missed.remove(&port);
        if let Some(place) = self.places.get_mut(port as usize) {
            place.priority = DEFAULT_PRIORITY;
        }
        if let Some(word) = self.word(port) {
            // The page was in memory when it was added, and memory does not shrink.
            let _ = memory.fetch_clear_u32(word, PENDING);
        }
    }

    /// Unmasks `port`; true if it is pending.
    pub(crate) fn unmask(&self, memory: &GuestMemory, port: u32) -> bool {
        let word = self.word(port).and_then(|word| memory.fetch_clear_u32(word, MASKED).ok());
        word.is_some_and(|word| word & PENDING != 0)
    }

    /// Makes `port` pending and puts it into a queue of `vcpu`; true if `vcpu` has to be told that a queue is ready.
    pub(crate) fn raise(&mut self, memory: &GuestMemory, vcpu: u32, port: u32) -> bool {
        let Some(word) = self.word(port) else {
            self.missed.insert(port);
            return false;
        };
        let masked = memory.fetch_or_u32(word, PENDING).map_or(MASKED, |before| before & MASKED);
        let Some(control) = self.queues.get(vcpu as usize).and_then(|queues| queues.control) else {
            return false;
        };
        if masked != 0 || memory.fetch_or_u32(word, LINKED).is_ok_and(|before| before & LINKED != 0) {
            return false;
        }
        let Place { priority, last } = *self.place(port);
        self.place(port).last = (vcpu, priority);
        // It was taken from its queue, and whoever comes there next must not be behind it.
        let old =
            self.queues.get_mut(last.0 as usize).and_then(|queues| queues.tails.get_mut(last.1 as usize));
        if let Some(tail) = old.filter(|tail| **tail == port) {
            *tail = 0;
        }
        let Some(tail) = self.queues[vcpu as usize].tails.get_mut(priority as usize) else { return false };
        let tail = std::mem::replace(tail, port);
        if tail != 0 && self.word(tail).is_some_and(|word| link(memory, word, port)) {
            return false;
        }
        // The block was in memory when it was placed, and memory does not shrink.
        let _ = memory.store_u32(Gpa(control + HEADS + u64::from(priority) * 4), port);
        memory.fetch_or_u32(Gpa(control), 1 << priority).is_ok_and(|ready| ready & 1 << priority == 0)
    }

    /// Whether it can be of a machine with `vcpus` vCPUs and this memory.
    pub(crate) fn fits(&self, memory: &GuestMemory, vcpus: usize) -> bool {
        let page = |page: &u64| page.checked_mul(PAGE_SIZE).is_some_and(|at| memory.has(Gpa(at), PAGE_SIZE));
        let block = |queues: &Queues| queues.control.is_none_or(|at| memory.has(Gpa(at), CONTROL_BYTES));
        let place = |place: &Place| usize::from(place.priority) < PRIORITIES;
        self.queues.len() == vcpus
            && self.queues.iter().all(block)
            && self.pages.len() <= (PORTS / IN_PAGE) as usize
            && self.pages.iter().all(page)
            && self.places.len() <= PORTS as usize
            && self.places.iter().all(place)
    }
}

/// Puts `port` behind the one whose word is at `tail`; false if the guest has taken that meanwhile. The guest takes the bit and the
/// link at once, so it has seen the link if the bit was still there; and nobody but the host sets the bit.
fn link(memory: &GuestMemory, tail: Gpa, port: u32) -> bool {
    let linked = memory.fetch_or_u32(tail, port).is_ok_and(|before| before & LINKED != 0);
    if !linked {
        // It was there a moment ago.
        let _ = memory.fetch_clear_u32(tail, LINK);
    }
    linked
}

impl Domain {
    /// init_control, expand_array and set_priority.
    pub(crate) fn fifo_op(&self, this: &Vcpu, caller: &Caller<'_>, command: u64, at: u64) -> Served {
        if !self.config.has(Feature::Fifo) {
            return Err(ENOSYS);
        }
        let mut state = self.state();
        match command as u32 {
            11 => {
                let mut asked: Bytes<24> = self.structure(caller, at)?;
                self.init_control(&mut state, asked.u64(0), asked.u32(8), asked.u32(12))?;
                asked.0[16] = LINK.count_ones() as u8;
                self.copy_out(caller, at, &asked.0)?;
                done(0)
            }
            12 => {
                let asked: Bytes<8> = self.structure(caller, at)?;
                self.expand_array(&mut state, asked.u64(0), this.index)?;
                done(0)
            }
            13 => {
                let asked: Bytes<8> = self.structure(caller, at)?;
                let (port, priority) = (asked.u32(0), asked.u32(4));
                state.port(port)?;
                let fifo = state.fifo.as_mut().ok_or(ENOSYS)?;
                let priority = u8::try_from(priority).ok().filter(|one| usize::from(*one) < PRIORITIES);
                fifo.place(port).priority = priority.ok_or(EINVAL)?;
                done(0)
            }
            _ => Err(ENOSYS),
        }
    }

    /// Places the control block of `vcpu`, once; the first one ends the two-level ABI.
    fn init_control(&self, state: &mut State, gfn: u64, offset: u32, vcpu: u32) -> Result<(), i64> {
        state.vcpu_exists(vcpu)?;
        let to = gfn.checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        let within = u64::from(offset) <= PAGE_SIZE - CONTROL_BYTES && offset.is_multiple_of(8);
        if !within || !self.memory.has(Gpa(to), PAGE_SIZE) {
            return Err(EINVAL);
        }
        let vcpus = state.vcpus.len();
        if state.fifo.is_none() {
            let mut fifo = Fifo::new(vcpus);
            fifo.missed =
                (1..state.ports.len() as u32).filter(|port| self.pending_bit(state, *port)).collect();
            state.fifo = Some(fifo);
        }
        let place = state.fifo.as_mut().and_then(|fifo| fifo.queues.get_mut(vcpu as usize)).ok_or(EINVAL)?;
        if place.control.is_some() {
            return Err(EINVAL);
        }
        place.control = Some(to + u64::from(offset));
        Ok(())
    }

    /// Adds a page of words, and raises what waited for it.
    fn expand_array(&self, state: &mut State, gfn: u64, own: u32) -> Result<(), i64> {
        let fifo = state.fifo.as_mut().ok_or(ENOSYS)?;
        if fifo.pages.len() >= (PORTS / IN_PAGE) as usize {
            return Err(ENOSPC);
        }
        let page = gfn.checked_mul(PAGE_SIZE).ok_or(EINVAL)?;
        if !self.memory.has(Gpa(page), PAGE_SIZE) {
            return Err(EINVAL);
        }
        fifo.pages.push(gfn);
        let words = fifo.pages.len() as u32 * IN_PAGE;
        let later = fifo.missed.split_off(&words);
        for port in std::mem::replace(&mut fifo.missed, later) {
            self.raise(state, port, Some(own));
        }
        Ok(())
    }

    /// Whether the two-level ABI has `port` pending.
    pub(crate) fn pending_bit(&self, state: &State, port: u32) -> bool {
        let Some(page) = state.shared_info.filter(|_| port < crate::events::PORTS) else { return false };
        let word = Gpa(page + shared_info::EVTCHN_PENDING + u64::from(port / 32) * 4);
        self.memory.load_u32(word).is_ok_and(|bits| bits >> (port % 32) & 1 != 0)
    }
}
