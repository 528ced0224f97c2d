//! What a vCPU has beside its registers, in the form that every engine takes.
//!
//! KVM keeps of it what is being delivered, and the answer that an instruction waits for. The latter is nowhere in registers, so a
//! vCPU is saved between two instructions only; the machine sees to it before it stands still.

use kvm_bindings::kvm_vcpu_events;
use satori_defs::x86::{cr0, cr4, efer, vector};
use satori_engine::{AtRest, Event, Exception, Vcpu};
use satori_memory::Gpa;
use satori_save::{Error, Value};

use crate::vcpu::{KvmVcpu, Owed};

/// Bits of CR3 that are the address of the page-directory pointers in PAE paging (SDM 4.4.1).
const POINTERS: u64 = 0xffff_ffe0;

/// The one event that is being delivered; an error if it is of a kind that cannot be injected anew.
fn delivered(events: &kvm_vcpu_events) -> Result<Option<Event>, Error> {
    let refused = |why: &str| Err(Error::refused("vCPU", why));
    let (exception, interrupt, nmi) = (&events.exception, &events.interrupt, &events.nmi);
    let raised = (exception.injected | exception.pending != 0).then(|| {
        let code = (exception.has_error_code != 0).then_some(exception.error_code);
        // What CR2 and DR6 show is in them.
        Event::Exception(Exception { vector: exception.nr, code, payload: 0 })
    });
    if interrupt.injected != 0 && interrupt.soft != 0 {
        return refused("it delivers an interrupt of an instruction: suspend the machine again");
    }
    let arrived = (interrupt.injected != 0).then_some(Event::Interrupt(interrupt.nr));
    let nmi = (nmi.injected | nmi.pending != 0).then_some(Event::Nmi);
    let mut all = [raised, arrived, nmi].into_iter().flatten();
    match (all.next(), all.next()) {
        (one, None) => Ok(one),
        _ => refused("two events are to be delivered: suspend the machine again"),
    }
}

impl KvmVcpu {
    /// [`Vcpu::save`].
    pub(crate) fn at_rest(&self) -> Result<Value, Error> {
        if self.owed != Owed::Nothing || self.transfer.is_some() || self.undo {
            return Err(Error::refused("vCPU", "an instruction is half done: suspend the machine again"));
        }
        let mut injected = match (self.fault, self.event) {
            (Some(exception), _) => Some(Event::Exception(exception)),
            (None, Some(event)) => Some(event),
            (None, None) => {
                let failed = |why: kvm_ioctls::Error| Error::refused("vCPU", why.to_string());
                delivered(&self.fd.get_vcpu_events().map_err(failed)?)?
            }
        };
        injected = injected.or(self.external.map(|(vector, _)| Event::Interrupt(vector)));
        // The address is in CR2 already.
        if let Some(Event::Exception(exception)) = &mut injected
            && exception.vector == vector::PF
        {
            exception.payload = self.state.cr2;
        }
        Value::of(&AtRest { retired: self.retired(), injected })
    }

    /// [`Vcpu::restore`], behind the registers.
    pub(crate) fn go_on_from(&mut self, value: &Value) -> Result<(), Error> {
        let rest: AtRest = value.state()?;
        rest.check()?;
        if self.state.pending_debug != 0 {
            return Err(Error::refused(
                "vCPU",
                "KVM takes no pending debug exception: suspend it a moment later",
            ));
        }
        if self.undo || self.owed != Owed::Nothing {
            self.complete_and_forget();
        }
        if let Some(Event::Exception(Exception { vector, payload, .. })) = rest.injected {
            match vector {
                vector::PF => self.state.cr2 = payload,
                vector::DB => self.state.dr6 |= payload,
                _ => {}
            }
        }
        (self.transfer, self.fault, self.event) = (None, None, rest.injected);
        (self.ready, self.offset, self.external) = (false, None, None);
        self.flush_tlb();
        self.forget_events().map_err(|why| Error::refused("vCPU", why.to_string()))
    }

    /// Has KVM deliver nothing that it was about to.
    fn forget_events(&mut self) -> Result<(), kvm_ioctls::Error> {
        let mut events = self.fd.get_vcpu_events()?;
        (events.exception.injected, events.exception.pending) = (0, 0);
        (events.interrupt.injected, events.nmi.injected, events.nmi.pending) = (0, 0, 0);
        self.fd.set_vcpu_events(&events)?;
        let sync = self.fd.sync_regs_mut();
        (sync.events, sync.sregs.interrupt_bitmap) = (events, Default::default());
        Ok(())
    }

    /// KVM gives nobody the page-directory pointers of PAE paging: they are those that memory has now.
    pub(crate) fn fetch_directory_pointers(&mut self) {
        let state = &mut self.state;
        let paging = state.cr0 & cr0::PG != 0 && state.cr4 & cr4::PAE != 0;
        if !paging || state.efer & efer::LMA != 0 {
            return;
        }
        let mut bytes = [0; 32];
        if self.vm.memory.read(Gpa(state.cr3 & POINTERS), &mut bytes).is_ok() {
            for (pointer, bytes) in state.pdpte.iter_mut().zip(bytes.as_chunks().0) {
                *pointer = u64::from_le_bytes(*bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_that_is_delivered_is_kept() {
        let mut events = kvm_vcpu_events::default();
        assert_eq!(delivered(&events), Ok(None));
        (events.interrupt.injected, events.interrupt.nr) = (1, 0x31);
        assert_eq!(delivered(&events), Ok(Some(Event::Interrupt(0x31))));
        events.interrupt.soft = 1;
        assert!(delivered(&events).unwrap_err().to_string().contains("of an instruction"));
        events.interrupt.injected = 0;
        (events.exception.pending, events.exception.nr) = (1, 14);
        (events.exception.has_error_code, events.exception.error_code) = (1, 2);
        let fault = Exception { vector: 14, code: Some(2), payload: 0 };
        assert_eq!(delivered(&events), Ok(Some(Event::Exception(fault))));
        events.nmi.pending = 1;
        assert!(delivered(&events).unwrap_err().to_string().contains("two events"));
    }
}
