//! The enlightened VMCS of a hypervisor that runs on Hyper-V (TLFS, "Nested Virtualization"): where it is, when it is read
//! and written, and the hypercalls of its guests that are served below it.

use satori_defs::hyperv::{TLB_LOCK_COUNT, assist};
use satori_defs::vmx::TRAP_AFTER_FLUSH;
use satori_engine::{Exception, Exit};
use satori_memory::Gpa;
use satori_state::reg;
use satori_vmx::evmcs::{self, Page, clean, control};
use satori_vmx::{Field, Vmcs};

use super::{NONE, VmExit};
use crate::cpu::{Cpu, Exec};

/// The enlightened VMCS in use, as it was read last and written since.
#[derive(Debug)]
pub(super) struct Enlightened {
    pub at: u64,
    pub page: Page,
}

impl Cpu {
    fn assisted_u32(&self, offset: u64) -> u32 {
        let at = self.controls.nesting.assist.map(|page| Gpa(self.memory.addressed(page + offset)));
        at.and_then(|at| self.memory.read_u32(at).ok()).unwrap_or(0)
    }

    /// The address of the enlightened VMCS that VM entries take, if they do.
    fn enlightened_address(&self) -> Option<u64> {
        let nesting = self.controls.nesting;
        let on = nesting.evmcs && self.assisted_u32(assist::ENLIGHTEN_VM_ENTRY) & 0xff != 0;
        let at = Gpa(self.memory.addressed(nesting.assist? + assist::CURRENT_NESTED_VMCS));
        self.memory.read_u64(at).ok().filter(|_| on)
    }

    /// Makes ready the VMCS that this entry takes. Whether it is an enlightened one, which has no launch state; the error 0 is
    /// VMfailInvalid.
    pub(super) fn choose_vmcs(&mut self, launch: bool) -> Exec<Result<bool, u32>> {
        let Some(at) = self.enlightened_address() else {
            self.release_enlightened();
            return Ok(Ok(false));
        };
        let mut bytes = [0; evmcs::SIZE];
        let readable =
            Self::region_address(at) && self.memory.read(Gpa(self.memory.addressed(at)), &mut bytes).is_ok();
        if !readable {
            self.release_enlightened();
            return Err(self.raise(Exception::ud()));
        }
        let page = Page::new(bytes);
        if !evmcs::taken(page.version()) {
            self.release_enlightened();
            return Ok(Err(0));
        }
        let same = self.vmx.enlightened.as_ref().is_some_and(|old| old.at == at);
        if !same {
            self.store_vmcs();
            self.vmx.current = NONE;
            // Fields without a place have no leftovers.
            self.vmx.vmcs = Vmcs::default();
        }
        let clean = if same && !launch {
            page.clean_fields()
        } else {
            let place = Gpa(self.memory.addressed(at + evmcs::CLEAN_FIELDS as u64));
            let _ = self.memory.write(place, &[0; 4]);
            0
        };
        page.load(clean, &mut self.vmx.vmcs);
        let spared =
            page.enlightenments().control & control::MSR_BITMAP != 0 && clean & clean::MSR_BITMAP != 0;
        self.vmx.account.enlightened_entry(clean, spared);
        self.vmx.enlightened = Some(Box::new(Enlightened { at, page }));
        Ok(Ok(true))
    }

    /// Puts what the guest's hypervisor may look at in the enlightened VMCS, if that is in use.
    pub(super) fn store_enlightened(&mut self) {
        let Some(enlightened) = &mut self.vmx.enlightened else { return };
        enlightened.page.store(&self.vmx.vmcs);
        for range in evmcs::WRITTEN {
            let at = Gpa(self.memory.addressed(enlightened.at + range.start as u64));
            // What is not memory any more keeps nothing.
            let _ = self.memory.write(at, &enlightened.page.bytes()[range]);
        }
        self.code_written();
    }

    /// Writes an error number or an abort indicator.
    pub(super) fn note_enlightened(&mut self, offset: u64, value: u32) {
        if let Some(enlightened) = &self.vmx.enlightened {
            let at = Gpa(self.memory.addressed(enlightened.at + offset));
            let _ = self.memory.write(at, &value.to_le_bytes());
            self.code_written();
        }
    }

    /// The enlightened VMCS is in use no more. Its memory is up to date since the last exit.
    pub(super) fn release_enlightened(&mut self) {
        if self.vmx.enlightened.take().is_some() {
            self.vmx.vmcs = Vmcs::default();
        }
    }

    /// VMCLEAR of the region at `at` as an enlightened VMCS: there is no launch state to clear, where others have one stands a
    /// field. Whether it is one.
    pub(super) fn clear_enlightened(&mut self, at: u64) -> bool {
        if self.vmx.enlightened.as_ref().is_some_and(|enlightened| enlightened.at == at) {
            self.release_enlightened();
            return true;
        }
        // Another processor's, or one that is not entered yet.
        let revision = self.memory.read_u32(Gpa(self.memory.addressed(at + evmcs::REVISION)));
        self.enlightened_address().is_some() && revision.ok() == Some(evmcs::VERSION)
    }

    /// Serves VMCALL of a guest whose hypervisor lets flushes of TLBs be served for it (TLFS, "Direct Virtual Flush"). Whether it
    /// was one of those calls.
    pub(super) fn direct_flush(&mut self, length: u32) -> Exec<bool> {
        let Some(asked) = self.vmx.enlightened.as_ref().map(|one| one.page.enlightenments()) else {
            return Ok(false);
        };
        if asked.control & control::NESTED_FLUSH_HYPERCALL == 0 {
            return Ok(false);
        }
        match self.serve_flush(asked.partition_assist)? {
            None => Ok(false),
            Some(false) => Ok(true),
            Some(true) => {
                self.arrive_and_fault(self.next_rip);
                Err(self.leave(VmExit { reason: TRAP_AFTER_FLUSH, length, ..VmExit::default() }))
            }
        }
    }

    /// Serves a hypercall of a guest, if it is one that flushes TLBs, and if that is allowed. Nothing if not; else whether the
    /// hypervisor, whose partition assist page is at `partition_assist`, wants to hear of it.
    pub(crate) fn serve_flush(&mut self, partition_assist: u64) -> Exec<Option<bool>> {
        // With an answer there, the registers may hold the result already.
        let answered = self.pending.answered();
        let wanted = self.controls.nesting.direct_flush
            && self.assisted_u32(assist::NESTED_CONTROL) & assist::DIRECT_HYPERCALL != 0;
        if !wanted || self.cpl() != 0 {
            return Ok(None);
        }
        let (code, first) = if self.derived.code64 {
            (self.state.gpr[reg::RCX], self.state.gpr[reg::RDX])
        } else {
            let half = |register: usize| self.state.gpr[register] & 0xffff_ffff;
            (half(reg::RAX), half(reg::RBX) << 32 | half(reg::RCX))
        };
        if !answered && !satori_defs::hyperv::call::FLUSHES.contains(&(code as u16)) {
            return Ok(None);
        }
        let block = self.nested_look_up(first);
        self.ask(Exit::NestedFlush { block })?;
        let locks = Gpa(self.memory.addressed(partition_assist + TLB_LOCK_COUNT));
        match self.memory.read_u32(locks) {
            Ok(count) => Ok(Some(count != 0)),
            // The page that the hypervisor named is not there: invalid input (TLFS 3.8).
            Err(_) => {
                self.state.gpr[reg::RAX] = 3;
                Ok(Some(false))
            }
        }
    }

    /// Whether VMREAD, VMWRITE and errors have a VMCS.
    pub(super) fn has_vmcs(&self) -> bool {
        self.vmx.current != NONE || self.vmx.enlightened.is_some()
    }

    /// Tells an error number to whoever reads it from memory.
    pub(super) fn tell_error(&mut self, number: u32) {
        self.vmx.vmcs.set(Field::InstructionError, number.into());
        if let Some(at) = evmcs::place(Field::InstructionError) {
            self.note_enlightened(at as u64, number);
        }
    }
}
