//! The synthetic interrupt controller (SynIC) of each virtual processor (TLFS 11): sixteen sources
//! (SINTx), a page of message slots and one of event flags.
//!
//! A controller is reached by its own processor, through MSRs, and by everyone who has a message or
//! an event for it: hypercalls of other processors and devices of the host. So it is behind a
//! lock, while the pages are guest memory that the guest changes at any time: slots and
//! flags are only touched by atomic accesses, and nothing that is read there is trusted.
//!
//! Locks: the ports, then one controller, then the overlays. No two controllers at a time.

mod calls;
mod controller;
mod message;
mod ports;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use satori_defs::hyperv::msr;
use satori_defs::hyperv::synic::{SINTS, VERSION};
use satori_defs::msr::Gp;
use satori_lock::lock;
use serde::{Deserialize, Serialize};

pub(crate) use calls::{POST_WORDS, post_message, signal_event};
pub(crate) use controller::{Controller, Source};
pub use message::Message;
pub use ports::{HostPort, PortKind, Target};
use ports::{Ports, SavedPorts};

use crate::Partition;
use crate::overlay::Kind;

/// The local APICs, as the controllers need them.
pub trait Interrupts: Send + Sync {
    /// Requests `vector` at the local APIC of `vp`, fixed and as an edge, and has it look, unless
    /// it is its `own` thread that asks.
    fn request(&self, vp: u32, vector: u8, own: bool);
    /// Whether `vector` is requested there, and not yet delivered.
    fn requested(&self, vp: u32, vector: u8) -> bool;
    /// Has the vectors whose bits are set, and no others, ended as soon as they are delivered.
    fn set_auto_eoi(&self, vp: u32, vectors: [u32; 8]);
}

/// The controllers of a partition, and its ports.
pub(crate) struct Synic {
    interrupts: Arc<dyn Interrupts>,
    controllers: Box<[Mutex<Controller>]>,
    /// A bit for each source of a processor for which a message waits: looked at for every EOI.
    waiting: Box<[AtomicU32]>,
    ports: Mutex<Ports>,
    /// Processors of which a source ends its interrupts itself.
    auto_eoi: AtomicU32,
}

/// Everything about the controllers and their ports that a guest can change. What lies below
/// their pages is the overlays' to save.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSynic {
    controllers: Vec<Controller>,
    ports: SavedPorts,
}

/// Local APICs that nobody has connected.
struct Unconnected;

impl Interrupts for Unconnected {
    fn request(&self, _vp: u32, _vector: u8, _own: bool) {}
    fn requested(&self, _vp: u32, _vector: u8) -> bool {
        false
    }
    fn set_auto_eoi(&self, _vp: u32, _vectors: [u32; 8]) {}
}

impl Default for Synic {
    fn default() -> Self {
        Synic::new(0, Arc::new(Unconnected))
    }
}

impl Synic {
    /// The local APICs.
    pub(crate) fn interrupts(&self) -> &dyn Interrupts {
        &*self.interrupts
    }

    pub(crate) fn new(vps: u32, interrupts: Arc<dyn Interrupts>) -> Self {
        Synic {
            interrupts,
            controllers: (0..vps).map(|_| Mutex::default()).collect(),
            waiting: (0..vps).map(|_| AtomicU32::new(0)).collect(),
            ports: Mutex::default(),
            auto_eoi: AtomicU32::new(0),
        }
    }

    fn controller(&self, vp: u32) -> Option<&Mutex<Controller>> {
        self.controllers.get(vp as usize)
    }

    /// Requests `vector` at the local APIC of `vp`, on its own thread.
    pub(crate) fn request_own(&self, vp: u32, vector: u8) {
        self.interrupts.request(vp, vector, true);
    }

    /// Whether it is requested there, and not yet delivered.
    pub(crate) fn requested(&self, vp: u32, vector: u8) -> bool {
        self.interrupts.requested(vp, vector)
    }
}

/// Why nothing was posted or signalled at a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such processor, or no such source.
    NoSuchVp,
    /// Its controller, or the page, is off, or the source of an event is masked.
    Off,
    /// As many messages wait as there are buffers.
    Full,
}

impl Partition {
    /// Whether some source ends its interrupts itself, which a processor with virtualised
    /// interrupt delivery (APICv, AVIC) cannot do: it has to be off for as long.
    pub fn apicv_inhibited(&self) -> bool {
        self.synic.auto_eoi.load(Ordering::SeqCst) != 0
    }

    /// Whether messages wait at `vp`, so that the ends of its interrupts have to be seen.
    pub(crate) fn messages_wait(&self, vp: u32) -> bool {
        self.synic.waiting.get(vp as usize).is_some_and(|bits| bits.load(Ordering::SeqCst) != 0)
    }

    /// The processor `vp` ended its interrupt `vector`: messages may have become deliverable.
    pub fn end_of_interrupt(&self, vp: u32, vector: u8) {
        let sints = self.waiting_for(vp, vector);
        if sints != 0 {
            self.deliver(vp, sints);
        }
    }

    /// Whether a source of `vp` that is not masked has this vector.
    pub fn is_sint_vector(&self, vp: u32, vector: u8) -> bool {
        self.synic.controller(vp).is_some_and(|controller| lock(controller).with_vector(vector) != 0)
    }

    /// The sources of `vp` with this vector, as bits, for which messages wait.
    fn waiting_for(&self, vp: u32, vector: u8) -> u32 {
        let waiting = self.synic.waiting.get(vp as usize).map_or(0, |bits| bits.load(Ordering::SeqCst));
        match self.synic.controller(vp) {
            Some(controller) if waiting != 0 => waiting & lock(controller).with_vector(vector),
            _ => 0,
        }
    }

    /// RDMSR of SCONTROL to SINT15.
    pub(crate) fn synic_read(&self, vp: u32, register: u32) -> Result<u64, Gp> {
        let controller = lock(self.synic.controller(vp).ok_or(Gp)?);
        Ok(match register {
            msr::SCONTROL => controller.control,
            msr::SVERSION => VERSION,
            msr::SIEFP => controller.siefp,
            msr::SIMP => controller.simp,
            msr::EOM => 0,
            msr::SINT0..=msr::SINT15 => controller.sints[(register - msr::SINT0) as usize],
            _ => return Err(Gp),
        })
    }

    /// WRMSR of SCONTROL to SINT15.
    pub(crate) fn synic_write(&self, vp: u32, register: u32, value: u64) -> Result<(), Gp> {
        let controller = self.synic.controller(vp).ok_or(Gp)?;
        match register {
            msr::SCONTROL => lock(controller).control = value,
            msr::SIEFP => self.write_page(vp, Kind::EventFlags(vp), value)?,
            msr::SIMP => self.write_page(vp, Kind::Messages(vp), value)?,
            msr::EOM => {}
            msr::SINT0..=msr::SINT15 => {
                let mut controller = lock(controller);
                let before = controller.auto_eoi();
                controller.write_sint((register - msr::SINT0) as usize, value)?;
                let after = controller.auto_eoi();
                if before != after {
                    self.synic.interrupts.set_auto_eoi(vp, after);
                    self.count_auto_eoi(before, after);
                }
                return Ok(());
            }
            // SVERSION is read-only.
            _ => return Err(Gp),
        }
        // EOM is there for this; the others may have let messages through.
        self.deliver(vp, u32::MAX);
        Ok(())
    }

    fn count_auto_eoi(&self, before: [u32; 8], after: [u32; 8]) {
        match (before == [0; 8], after == [0; 8]) {
            (true, false) => drop(self.synic.auto_eoi.fetch_add(1, Ordering::SeqCst)),
            (false, true) => drop(self.synic.auto_eoi.fetch_sub(1, Ordering::SeqCst)),
            _ => {}
        }
    }

    /// SIEFP and SIMP. A page beyond memory is enabled and nowhere, as the TLFS says: messages
    /// wait until it is moved.
    fn write_page(&self, vp: u32, kind: Kind, value: u64) -> Result<(), Gp> {
        let mut controller = lock(self.synic.controller(vp).ok_or(Gp)?);
        let mut shared = self.shared();
        controller.write_page(kind, value, &mut shared.overlays, &self.memory);
        Ok(())
    }

    /// Delivers the first waiting message of each of `sints` whose slot is empty, on the
    /// processor's own thread.
    fn deliver(&self, vp: u32, sints: u32) {
        let Some(controller) = self.synic.controller(vp) else { return };
        let mut controller = lock(controller);
        for sint in (0..SINTS as u8).filter(|sint| sints & 1 << sint != 0) {
            self.deliver_next(vp, &mut controller, sint, true);
        }
        self.synic.waiting[vp as usize].store(controller.waiting(), Ordering::SeqCst);
    }

    fn deliver_next(&self, vp: u32, controller: &mut Controller, sint: u8, own: bool) {
        if !controller.has(sint) {
            return;
        }
        let delivered = {
            let mut shared = self.shared();
            let page = shared.overlays.seen(Kind::Messages(vp));
            let now = || self.reference_time();
            page.is_some_and(|page| controller.deliver(&self.memory, page, sint, now))
        };
        if delivered {
            self.raise(vp, controller, sint, own);
        }
    }

    /// Interrupts by source `sint`, unless it is masked or polled.
    fn raise(&self, vp: u32, controller: &Controller, sint: u8, own: bool) {
        if let Some(vector) = controller.vector(sint) {
            self.synic.interrupts.request(vp, vector, own);
        }
    }

    /// The controller of `vp`, if it has source `sint`.
    fn source(&self, vp: u32, sint: u8) -> Result<MutexGuard<'_, Controller>, Refusal> {
        let controller = self.synic.controller(vp).filter(|_| usize::from(sint) < SINTS);
        controller.map(lock).ok_or(Refusal::NoSuchVp)
    }

    /// Queues `message` for source `sint` of `vp`, and delivers what can be.
    pub(crate) fn post(&self, vp: u32, sint: u8, source: Source, message: Message) -> Result<(), Refusal> {
        let mut controller = self.source(vp, sint)?;
        controller.enqueue(sint, source, message)?;
        self.deliver_next(vp, &mut controller, sint, matches!(source, Source::Timer(_)));
        self.synic.waiting[vp as usize].store(controller.waiting(), Ordering::SeqCst);
        Ok(())
    }

    /// Forgets what waits from `source` at `vp`.
    pub(crate) fn withdraw(&self, vp: u32, source: Source) {
        if let Some(controller) = self.synic.controller(vp) {
            let mut controller = lock(controller);
            controller.withdraw(source);
            self.synic.waiting[vp as usize].store(controller.waiting(), Ordering::SeqCst);
        }
    }

    /// Whether a message from `source` waits at `vp`.
    pub(crate) fn awaits_delivery(&self, vp: u32, source: Source) -> bool {
        self.synic.controller(vp).is_some_and(|controller| lock(controller).holds(source))
    }

    /// The host posts `message` to source `sint` of `vp`.
    pub fn post_from_host(&self, vp: u32, sint: u8, message: Message) -> Result<(), Refusal> {
        self.post(vp, sint, Source::Host, message)
    }

    /// Sets event flag `flag` of source `sint` of `vp`, and interrupts if it was clear.
    pub fn signal(&self, vp: u32, sint: u8, flag: u32) -> Result<(), Refusal> {
        let controller = self.source(vp, sint)?;
        if !controller.takes_events(sint) {
            return Err(Refusal::Off);
        }
        let new = {
            let mut shared = self.shared();
            let page = shared.overlays.seen(Kind::EventFlags(vp)).ok_or(Refusal::Off)?;
            controller::set_flag(&self.memory, page, sint, flag)
        };
        if new {
            self.raise(vp, &controller, sint, false);
        }
        Ok(())
    }

    /// Interrupts by source `sint` of `vp`, with no message or event.
    pub fn raise_sint(&self, vp: u32, sint: u8) -> Result<(), Refusal> {
        let controller = self.source(vp, sint)?;
        if !controller.enabled() {
            return Err(Refusal::Off);
        }
        self.raise(vp, &controller, sint, false);
        Ok(())
    }

    /// The controllers and the ports as plain data, while no processor runs.
    pub fn save_synic(&self) -> SavedSynic {
        let ports = lock(&self.synic.ports).save();
        let controllers = self.synic.controllers.iter().map(|c| lock(c).clone()).collect();
        SavedSynic { controllers, ports }
    }

    /// Whether `saved` can be of these controllers.
    pub(crate) fn synic_fits(&self, saved: &SavedSynic) -> bool {
        let count = self.synic.controllers.len();
        saved.controllers.len() == count
            && saved.controllers.iter().all(Controller::fits)
            && saved.ports.fit()
    }

    /// Takes what [`Partition::save_synic`] gave, before any processor runs. The overlays and
    /// guest memory are restored beside it; ports of the host come back when the host makes them.
    pub fn restore_synic(&self, saved: SavedSynic) {
        lock(&self.synic.ports).restore(saved.ports);
        for ((vp, controller), saved) in (0u32..).zip(&self.synic.controllers).zip(saved.controllers) {
            let mut controller = lock(controller);
            let (before, after) = (controller.auto_eoi(), saved.auto_eoi());
            *controller = saved;
            self.synic.interrupts.set_auto_eoi(vp, after);
            self.count_auto_eoi(before, after);
            self.synic.waiting[vp as usize].store(controller.waiting(), Ordering::SeqCst);
        }
    }
}
