//! How a vCPU hears that events are pending: by a vector of its own at its local APIC, by the callback vector, which passes no
//! APIC, or by an interrupt line (HVM_PARAM_CALLBACK_IRQ, Xen public/hvm/params.h).
//!
//! A vector of its own is an edge, requested once. The callback vector is injected as long as events are pending, and the
//! line is a level that follows vCPU 0's: whoever looked clears upcall_pending in memory, of which nobody hears, so both
//! are looked at when a vCPU comes out of the guest.

use std::sync::atomic::Ordering::Relaxed;

use satori_defs::xen::{param, shared_info};
use satori_memory::Gpa;

use crate::domain::State;
use crate::{Domain, Feature};

/// No line is asserted.
pub(crate) const NO_LINE: u8 = u8::MAX;

/// What the parameter says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callback {
    /// Nobody is told.
    Off,
    /// A global system interrupt.
    Gsi(u8),
    /// A pin, 0 to 3, of a device on PCI bus 0.
    Intx { device: u8, pin: u8 },
    /// A vector of every vCPU.
    Vector(u8),
}

impl Callback {
    /// Reads the parameter; what it cannot mean is nothing.
    fn of(value: u64, vectors: bool) -> Self {
        match (value >> param::CALLBACK_TYPE_SHIFT, value as u8) {
            (param::CALLBACK_GSI, gsi) if gsi != 0 => Callback::Gsi(gsi),
            (param::CALLBACK_INTX, _) => {
                Callback::Intx { device: (value >> 11) as u8 & 31, pin: value as u8 & 3 }
            }
            (param::CALLBACK_VECTOR, vector) if vectors => Callback::Vector(vector),
            _ => Callback::Off,
        }
    }
}

impl Domain {
    fn way(&self, state: &State) -> Callback {
        Callback::of(state.callback, self.config.has(Feature::CallbackVector))
    }

    /// Whether `vcpu` has been told of events and did not look yet.
    fn upcall_pending(&self, state: &State, vcpu: u32) -> bool {
        let word = |info: Gpa| self.memory.load_u32(Gpa(info.0 + shared_info::UPCALL_PENDING));
        state.vcpu_info(vcpu).is_some_and(|info| word(info).is_ok_and(|word| word & 0xff != 0))
    }

    /// Interrupts `vcpu`, whose upcall is pending; `own` is the vCPU whose thread asks, if one does.
    pub(crate) fn interrupt(&self, state: &State, vcpu: u32, own: Option<u32>) {
        let vector = state.vcpus.get(vcpu as usize).map_or(0, |vcpu| vcpu.vector);
        if vector != 0 {
            self.host.request(vcpu, vector, own == Some(vcpu));
            return;
        }
        match self.way(state) {
            Callback::Off => {}
            Callback::Gsi(_) | Callback::Intx { .. } => self.drive(state),
            // Its own thread looks before the next entry.
            Callback::Vector(_) if own == Some(vcpu) => {}
            Callback::Vector(_) => self.host.wake(vcpu),
        }
    }

    /// Interrupts `vcpu` if its upcall is pending already, so that nobody will make it so: it had no vector until now, or its
    /// local APIC took none.
    pub(crate) fn interrupt_late(&self, state: &State, vcpu: u32, own: Option<u32>) {
        if self.upcall_pending(state, vcpu) {
            self.interrupt(state, vcpu, own);
        }
    }

    /// The local APIC of `vcpu`, on whose thread this is, takes interrupts from now on.
    pub fn apic_enabled(&self, vcpu: u32) {
        self.interrupt_late(&self.state(), vcpu, Some(vcpu));
    }

    /// HVM_PARAM_CALLBACK_IRQ is `value` from now on.
    pub(crate) fn set_callback(&self, state: &mut State, value: u64, own: u32) {
        state.callback = value;
        self.follow_callback(state);
        self.drive(state);
        for vcpu in 0..state.vcpus.len() as u32 {
            // Who has a vector of its own was told by it.
            if state.vcpus[vcpu as usize].vector == 0 {
                self.interrupt_late(state, vcpu, Some(own));
            }
        }
    }

    /// Keeps what is looked at without the lock.
    pub(crate) fn follow_callback(&self, state: &State) {
        let vector = match self.way(state) {
            Callback::Vector(vector) => vector.into(),
            _ => NO_VECTOR,
        };
        self.vector.store(vector, Relaxed);
    }

    /// The callback vector, if there is one and `vcpu` has events that it did not look at: it is injected as soon as the vCPU
    /// takes interrupts, whatever its local APIC is about.
    pub fn callback(&self, vcpu: u32) -> Option<u8> {
        let vector = u8::try_from(self.vector.load(Relaxed)).ok()?;
        self.upcall_pending(&self.state(), vcpu).then_some(vector)
    }

    /// Drives the interrupt line, if events come by one: it is asserted while vCPU 0 has some and no vector of its own.
    pub(crate) fn drive(&self, state: &State) {
        let line = match self.way(state) {
            Callback::Gsi(gsi) => Some(gsi),
            Callback::Intx { device, pin } => Some(self.host.intx(device, pin)),
            Callback::Off | Callback::Vector(_) => None,
        };
        let tells = |_: &u8| state.vcpus[0].vector == 0 && self.upcall_pending(state, 0);
        let (wanted, now) = (line.filter(tells).unwrap_or(NO_LINE), self.line.load(Relaxed));
        if wanted == now {
            return;
        }
        self.line.store(wanted, Relaxed);
        for (line, asserted) in [(now, false), (wanted, true)] {
            if line != NO_LINE {
                self.host.line(line, asserted);
            }
        }
    }

    /// A vCPU came out of the guest: the line falls if vCPU 0 has looked. It does before an EOI is heard of, which would make
    /// the same interrupt again.
    pub fn settle(&self) {
        if self.line.load(Relaxed) != NO_LINE {
            self.drive(&self.state());
        }
    }
}

/// There is no callback vector.
pub(crate) const NO_VECTOR: u16 = u16::MAX;
