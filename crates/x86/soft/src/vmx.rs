//! VMX as the guest has it (SDM volume 3, chapters 24 to 31): this processor is its hardware.
//!
//! A VM exit of the guest's guest is an early end of an instruction or of a delivery like a fault: [`Cpu::leave`] keeps what it
//! is and gives [`Stop::Fault`](crate::cpu::Stop); whoever delivers faults finds [`EXIT`] and calls [`Cpu::vm_exit`]. The
//! machine never sees it. What the guest's hypervisor does not intercept goes on as if there were one level less.

mod account;
mod apic;
mod enlightened;
mod enter;
mod ept;
mod event;
mod exit;
mod instructions;
mod intercept;
mod lists;
mod saved;
mod shadow;
mod shadow_vmcs;
mod signal;
mod view;
mod virtual_interrupts;

use satori_cpuid::{Feature, controls};
use satori_defs::x86::{cr4, efer, rflags};
use satori_engine::Exception;
use satori_memory::Gpa;
use satori_vmx::check::{self, Around};
use satori_vmx::control::{pin, proc, proc2};
use satori_vmx::event::Interruption;
use satori_vmx::vmcs::USED;
use satori_vmx::{Field, MAXPHYADDR, Vmcs, capability};

use crate::cpu::{Cpu, Stop};
use crate::mmu::World;
use account::Account;
use enlightened::Enlightened;
pub(crate) use ept::Nested;
use instructions::handler;
pub(crate) use intercept::{address_size, execute, intercepted};
pub(crate) use saved::{Saved, restore, save};

/// Stands in [`Pending::fault`](crate::cpu::Pending::fault) for the VM exit that [`Vmx::exit`] describes: no exception has this vector.
pub(crate) const EXIT: Exception = Exception::new(0xff);

/// The pointer that names no VMCS.
const NONE: u64 = u64::MAX;

/// A VM exit, as far as the VMCS tells of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmExit {
    /// The basic exit reason.
    pub reason: u32,
    /// The exit qualification.
    pub qualification: u64,
    /// The VM-exit instruction length.
    pub length: u32,
    /// The VM-exit instruction information.
    pub info: u32,
    /// The VM-exit interruption information.
    pub event: Interruption,
    /// The guest-physical address.
    pub gpa: u64,
    /// The guest linear address.
    pub linear: u64,
}

/// What a processor with VMX has beside its registers.
#[derive(Debug)]
pub(crate) struct Vmx {
    /// In VMX operation.
    pub on: bool,
    /// The VMXON region.
    region: u64,
    /// The current VMCS, or [`NONE`].
    pub current: u64,
    /// The current VMCS's fields; memory has them once it is current no more.
    pub vmcs: Vmcs,
    /// In VMX non-root operation, or in a guest of VMRUN. The controls below are 0 outside the first.
    pub guest: bool,
    /// Pin-based controls in force.
    pub pin: u32,
    /// Primary processor-based controls in force.
    pub proc: u32,
    /// Secondary processor-based controls in force.
    pub proc2: u32,
    /// The exit behind [`EXIT`].
    pub exit: Option<VmExit>,
    /// The event that is being delivered, if an exit would have to tell.
    pub vectoring: Interruption,
    /// The length of the instruction behind it, if it is a software event.
    pub vectoring_length: u32,
    /// The instruction is an IRET that ended the blocking of NMIs.
    pub nmi_unblocked: bool,
    /// The host's blocking of NMIs, while a guest with virtual NMIs has its own.
    host_nmi_blocked: bool,
    /// The partition's TSC at which the preemption timer expires.
    pub(crate) timer: Option<u64>,
    /// The instruction that is executed stands behind a load of SS.
    pub in_ss_shadow: bool,
    /// The monitor trap flag's exit comes before the next instruction.
    pub trap: bool,
    /// An external interrupt that an exit did not acknowledge: its vector.
    pub held: Option<u8>,
    /// What was written of the virtual-APIC page, its offset and size, and has had no effect yet.
    pub(crate) written: Option<(u64, u64)>,
    /// A virtual interrupt is recognized: it is delivered as soon as it can be.
    pub(crate) recognized: bool,
    /// Of a loop of PAUSEs: when the first and the last of it were.
    pauses: (u64, u64),
    /// The intercepted instruction is done: there is nothing left to execute.
    served: bool,
    /// The enlightened VMCS, while it is what [`Vmx::vmcs`] comes from.
    enlightened: Option<Box<Enlightened>>,
    /// What is counted.
    pub account: Account,
}

impl Vmx {
    /// Whose translations are in use.
    pub(crate) fn world(&self) -> World {
        if !self.guest {
            return World::Root;
        }
        let proc2 = check::secondary(&self.vmcs);
        let of = |control: u32, field: Field| if proc2 & control != 0 { self.vmcs.get(field) } else { 0 };
        World::Guest { vpid: of(proc2::VPID, Field::Vpid) as u16, ept: of(proc2::EPT, Field::Eptp) }
    }
}

/// One more than the highest basic exit reason, and one.
pub(crate) const REASONS: usize = 77;

impl Default for Vmx {
    fn default() -> Self {
        Vmx {
            on: false,
            region: NONE,
            current: NONE,
            vmcs: Vmcs::default(),
            guest: false,
            pin: 0,
            proc: 0,
            proc2: 0,
            exit: None,
            vectoring: Interruption::default(),
            vectoring_length: 0,
            nmi_unblocked: false,
            host_nmi_blocked: false,
            timer: None,
            in_ss_shadow: false,
            trap: false,
            held: None,
            written: None,
            recognized: false,
            pauses: (0, 0),
            served: false,
            enlightened: None,
            account: Account::default(),
        }
    }
}

impl Cpu {
    /// Ends an instruction or a delivery with a VM exit.
    #[cold]
    pub fn leave(&mut self, exit: VmExit) -> Stop {
        self.vmx.exit = Some(exit);
        self.raise(EXIT)
    }

    /// Whether this is the guest of the guest, with `control` among the primary controls in force.
    pub fn guest_exits(&self, control: u32) -> bool {
        self.vmx.proc & control != 0
    }

    /// VMX operation ends with the reset that cleared CR4.VMXE: nothing else can.
    pub fn forget_vmx(&mut self) {
        if self.vmx.on && self.state.cr4 & cr4::VMXE == 0 {
            let account = std::mem::take(&mut self.vmx.account);
            *self.vmx = Vmx { account, ..Vmx::default() };
            self.choose_windows();
        }
    }

    /// What beside the VMCS decides about VM entry.
    fn around(&self) -> Around {
        let has = |feature: Feature| self.offers(feature);
        Around {
            lma: self.state.efer & efer::LMA != 0,
            cr4: controls::cr4(has),
            efer: controls::efer(has) | efer::LMA,
            controls: capability::Controls::of(self.controls.nesting.evmcs),
        }
    }

    /// Whether `address` can be that of a VMCS region.
    fn region_address(address: u64) -> bool {
        address & 0xfff == 0 && address >> MAXPHYADDR == 0
    }

    /// Whose translations are in use.
    pub(crate) fn world(&self) -> World {
        if self.svm.guest { self.svm.world() } else { self.vmx.world() }
    }

    /// Gives the current VMCS back to memory.
    fn store_vmcs(&mut self) {
        if self.vmx.current != NONE {
            self.store_region(self.vmx.current, 0);
        }
    }

    fn store_region(&mut self, at: u64, abort: u32) {
        let region = self.vmx.vmcs.to_region(abort);
        // What is not memory keeps nothing.
        let _ = self.memory.write(Gpa(self.memory.addressed(at)), &region);
        self.code_written();
    }

    /// Takes the VMCS at `at` from memory.
    fn load_vmcs(&mut self, at: u64) {
        let mut region = [0; USED];
        let _ = self.memory.read(Gpa(self.memory.addressed(at)), &mut region);
        self.vmx.vmcs = Vmcs::from_region(&region);
        self.vmx.current = at;
    }

    /// A byte of a bitmap of the VMCS; all ones where there is no memory.
    fn bitmap_byte(&self, at: u64) -> u8 {
        let mut byte = [0xff];
        let _ = self.memory.read(Gpa(self.memory.addressed(at)), &mut byte);
        byte[0]
    }

    /// Whether external interrupts leave the guest, whatever its RFLAGS.IF.
    fn interrupts_exit(&self) -> bool {
        self.vmx.pin & pin::EXTERNAL_INTERRUPT != 0
    }

    /// Whether RFLAGS.IF or a control lets an external interrupt in.
    pub fn interrupts_open(&self) -> bool {
        if self.svm.guest || !self.svm.gif {
            return self.svm_interrupts_open();
        }
        self.vmx.held.is_none() && (self.state.rflags & rflags::IF != 0 || self.interrupts_exit())
    }

    /// Whether an NMI can come: a guest's own blocking, which is virtual, does not hold those that leave it.
    pub fn nmis_open(&self) -> bool {
        if self.svm.guest || !self.svm.gif || self.svm.waits() {
            return self.svm_nmis_open();
        }
        !self.state.nmi_blocked || self.vmx.pin & pin::VIRTUAL_NMIS != 0
    }

    /// IRET ends the blocking of NMIs; of a guest that NMIs leave only that which is its own (SDM 25.3).
    pub fn unblock_nmis(&mut self) {
        if self.vmx.pin & (pin::NMI | pin::VIRTUAL_NMIS) != pin::NMI {
            self.vmx.nmi_unblocked = self.vmx.guest && self.state.nmi_blocked;
            self.state.nmi_blocked = false;
        }
    }

    /// Whether a guest's guest addresses pass an EPT, or nested tables.
    pub fn nested_paging(&self) -> bool {
        self.vmx.proc2 & proc2::EPT != 0 || self.svm.nested_paging()
    }

    /// What translated code, and what looks between two instructions, knows of windows: the machine's wish or the guest
    /// hypervisor's.
    pub fn choose_windows(&mut self) {
        self.windows.interrupt = self.windows.machine
            || self.vmx.proc & (proc::INTERRUPT_WINDOW | proc::NMI_WINDOW) != 0
            || self.vmx.held.is_some()
            || self.vmx.recognized
            || self.svm.waits();
    }

    /// Whether instructions are intercepted that translated code executes without a look.
    #[inline]
    pub fn intercepts_inline(&self) -> bool {
        if self.svm.guest {
            return self.svm.intercepts_inline();
        }
        self.vmx.guest && (self.vmx.proc & proc::RDTSC != 0 || self.vmx.proc2 & proc2::RDTSCP == 0)
    }
}
