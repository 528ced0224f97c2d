//! SVM as the guest has it (APM volume 2, chapter 15): this processor is its hardware.
//!
//! What VMX and SVM share is in [`crate::vmx`]: that a #VMEXIT is an early end of an instruction or a delivery ([`crate::vmx::EXIT`]), the
//! event that is being delivered, an interrupt that nobody has acknowledged. A guest of VMRUN has both `Vmx::guest` and
//! [`Svm::guest`], and none of VMX's controls.

mod enter;
mod event;
mod exit;
mod instructions;
mod intercept;
mod npt;
mod saved;
mod view;

use satori_cpuid::{Feature, controls};
use satori_defs::svm::ExitCode;
use satori_defs::x86::{efer, rflags};
use satori_engine::Stat;
use satori_memory::Gpa;
use satori_svm::check::Around;
use satori_svm::vmcb::{USED, interrupt};
use satori_svm::{Intercept, Place, Vmcb};

use crate::cpu::{Cpu, Stop};
use crate::mmu::{MAXPHYADDR, World};
use crate::vmx;
use enter::Host;
pub(crate) use intercept::{execute, intercepted};
pub(crate) use saved::{Saved, restore, save};

/// A #VMEXIT, as far as the VMCB tells of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SvmExit {
    /// EXITCODE.
    pub code: u64,
    /// EXITINFO1.
    pub info1: u64,
    /// EXITINFO2.
    pub info2: u64,
    /// Bytes of the instruction that was intercepted, or 0.
    pub length: u64,
}

impl SvmExit {
    /// One with nothing more to say.
    pub(crate) fn of(code: ExitCode) -> Self {
        SvmExit { code: code as u64, ..SvmExit::default() }
    }
}

/// What a processor with SVM has beside its registers.
#[derive(Debug)]
pub(crate) struct Svm {
    /// A guest of VMRUN executes.
    pub guest: bool,
    /// The global interrupt flag.
    pub gif: bool,
    /// Where the VMCB of the guest is, and what VMRUN read of it.
    at: u64,
    vmcb: Vmcb,
    /// What #VMEXIT goes back to.
    host: Host,
    /// The exit behind [`vmx::EXIT`].
    pub exit: Option<SvmExit>,
    /// An NMI left the guest, and nobody has taken it yet.
    held_nmi: bool,
    /// PAUSEs that do not leave the guest.
    pauses: u64,
    /// The time-stamp counter at the last PAUSE that was counted.
    paused: u64,
    /// TSC_RATIO: what the guest's time-stamp counter is of the host's, with 32 binary places.
    ratio: u64,
    /// What is counted.
    pub account: Account,
}

/// TSC_RATIO at first: 1.
const RATIO: u64 = 1 << 32;

impl Default for Svm {
    fn default() -> Self {
        Svm {
            guest: false,
            gif: true,
            at: 0,
            vmcb: Vmcb::default(),
            host: Host::default(),
            exit: None,
            held_nmi: false,
            pauses: 0,
            paused: 0,
            ratio: RATIO,
            account: Account::default(),
        }
    }
}

/// Counters of one processor: VMRUNs, and exits by their places in [`ExitCode::ALL`], behind which is one place for all others.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    entries: u64,
    failed: u64,
    exits: Vec<u64>,
}

impl Default for Account {
    fn default() -> Self {
        Account { entries: 0, failed: 0, exits: vec![0; ExitCode::ALL.len() + 1] }
    }
}

impl Account {
    fn left(&mut self, code: u64) {
        let last = self.exits.len() - 1;
        let place = ExitCode::ALL.iter().position(|one| *one as u64 == code).unwrap_or(last);
        self.exits[place] += 1;
    }

    /// The counters by their names.
    pub(crate) fn stats(&self) -> impl Iterator<Item = Stat> {
        let exits = ExitCode::ALL.iter().zip(&self.exits).map(|(code, count)| (code.nested(), *count));
        [("entries of L2", self.entries), ("entries of L2 that failed", self.failed)]
            .into_iter()
            .chain(exits)
            .filter(|(_, count)| *count != 0)
    }
}

impl Svm {
    /// Whether the guest's physical addresses pass nested tables.
    pub(crate) fn nested_paging(&self) -> bool {
        self.guest && self.vmcb.get(Place::NESTED) & 1 != 0
    }

    /// The tables of nested paging.
    pub(crate) fn nested_cr3(&self) -> u64 {
        self.vmcb.get(Place::NESTED_CR3)
    }

    /// Whose translations the guest's are: ASIDs and nested tables name them.
    pub(crate) fn world(&self) -> World {
        let tables = self.vmcb.get(Place::NESTED_CR3) & !0xfff | 1;
        World::Guest {
            vpid: self.vmcb.get(Place::ASID) as u16,
            ept: if self.nested_paging() { tables } else { 0 },
        }
    }

    pub(crate) fn has(&self, intercept: Intercept) -> bool {
        self.guest && self.vmcb.has(intercept)
    }

    fn control(&self, bits: u64) -> bool {
        self.vmcb.get(Place::INTERRUPT_CONTROL) & bits != 0
    }

    /// Whether external interrupts ask the host's RFLAGS.IF, and not the guest's.
    fn masks(&self) -> bool {
        self.guest && self.control(interrupt::MASKING)
    }

    /// Whether NMIs of the guest are virtual, with a mask of their own.
    fn virtual_nmis(&self) -> bool {
        self.guest && self.control(interrupt::NMI_ENABLE)
    }

    /// Whether the guest's own global interrupt flag, if it has one, lets virtual events in.
    fn virtual_open(&self) -> bool {
        !self.control(interrupt::GIF_ENABLE) || self.control(interrupt::GIF)
    }

    /// Whether a virtual interrupt or NMI waits.
    pub(crate) fn waits(&self) -> bool {
        let virtual_nmi = self.virtual_nmis() && self.control(interrupt::NMI);
        self.guest && self.control(interrupt::PENDING) || virtual_nmi || self.held_nmi
    }

    /// Whether an interrupt that left a guest, and that nobody has taken, may be delivered here.
    pub(crate) fn takes_held(&self, guest: bool) -> bool {
        self.gif && (!guest || self.guest && !self.has(Intercept::INTR))
    }

    /// Whether instructions are intercepted that translated code executes without a look.
    pub(crate) fn intercepts_inline(&self) -> bool {
        const INLINE: [Intercept; 3] = [Intercept::RDTSC, Intercept::RDTSCP, Intercept::PUSHF];
        INLINE.into_iter().any(|intercept| self.has(intercept))
    }
}

impl Cpu {
    /// Ends an instruction or a delivery with a #VMEXIT.
    #[cold]
    pub(crate) fn leave_svm(&mut self, exit: SvmExit) -> Stop {
        self.svm.exit = Some(exit);
        self.raise(vmx::EXIT)
    }

    /// A reset, which clears EFER.SVME, ends whatever guest there was.
    pub(crate) fn forget_svm(&mut self) {
        if self.state.efer & efer::SVME == 0 && (self.svm.guest || !self.svm.gif || self.svm.held_nmi) {
            let account = std::mem::take(&mut self.svm.account);
            if self.svm.guest {
                self.vmx.guest = false;
                self.vmx.held = None;
            }
            *self.svm = Svm { account, ratio: self.svm.ratio, ..Svm::default() };
            self.choose_windows();
        }
    }

    /// What beside the VMCB decides about VMRUN.
    fn around_svm(&self) -> Around {
        let has = |feature: Feature| self.offers(feature);
        let host = if self.svm.guest { self.svm.host.efer } else { self.state.efer };
        Around {
            cr4: controls::cr4(has),
            efer: controls::efer(has) | efer::LMA,
            address_bits: MAXPHYADDR.into(),
            long: host & efer::LMA != 0,
        }
    }

    /// Takes the VMCB at `at` from memory; whether there is memory.
    fn load_vmcb(&self, at: u64) -> Option<Vmcb> {
        let mut bytes = [0; USED];
        self.memory.read(Gpa(self.memory.addressed(at)), &mut bytes).ok()?;
        Some(Vmcb::new(bytes))
    }

    /// Gives parts of the VMCB's copy back to memory.
    fn store_vmcb(&mut self, parts: &[(usize, usize)]) {
        for (at, len) in parts {
            let bytes = &self.svm.vmcb.bytes()[*at..*at + *len];
            let _ = self.memory.write(Gpa(self.memory.addressed(self.svm.at + *at as u64)), bytes);
        }
        self.code_written();
    }

    /// Whether RFLAGS.IF, of whom it is asked, and GIF let an external interrupt in.
    pub(crate) fn svm_interrupts_open(&self) -> bool {
        let flags = if self.svm.masks() { self.svm.host.rflags } else { self.state.rflags };
        self.svm.gif && self.vmx.held.is_none() && flags & rflags::IF != 0
    }

    /// Whether an NMI can come.
    pub(crate) fn svm_nmis_open(&self) -> bool {
        self.svm.gif && !self.svm.held_nmi && (!self.state.nmi_blocked || self.svm.virtual_nmis())
    }

    /// The guest's time-stamp counter, of its host's.
    pub(crate) fn svm_tsc(&self, tsc: u64) -> u64 {
        let scaled = ((u128::from(tsc) * u128::from(self.svm.ratio)) >> 32) as u64;
        scaled.wrapping_add(self.svm.vmcb.get(Place::TSC_OFFSET))
    }
}

#[cfg(test)]
mod tests;
