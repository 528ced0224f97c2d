//! VM entry (SDM chapter 26).

use satori_defs::vmx::{ExitReason, NestedWork};
use satori_defs::x86::{cr0, efer};
use satori_engine::Exit;
use satori_memory::Gpa;
use satori_state::{Activity, CpuState, DescriptorTable, Segment, reg};
use satori_vmx::Field::{
    EntryControls, EntryErrorCode, EntryInstructionLength, EntryInterruption, ExitQualification,
    GuestActivity, GuestCr0, GuestCr3, GuestCr4, GuestDr7, GuestEfer, GuestEs, GuestEsBase, GuestEsLimit,
    GuestEsRights, GuestGdtrBase, GuestGdtrLimit, GuestIdtrBase, GuestIdtrLimit, GuestInterruptibility,
    GuestPat, GuestPdpte0, GuestPendingDebug, GuestRflags, GuestRip, GuestRsp, GuestSysenterCs,
    GuestSysenterEip, GuestSysenterEsp, PinControls, PreemptionTimer, ProcControls,
};
use satori_vmx::capability::TIMER_SHIFT;
use satori_vmx::control::{activity, entry, interruptibility, pin, proc, proc2};
use satori_vmx::event::{Interruption, VALID};
use satori_vmx::{ENTRY_FAILURE, Field, Vmcs, check, error};

use super::VmExit;
use crate::cpu::{Cpu, Exec};
use crate::mmu::Paging;

/// Bits of CR0 that VM entry and VM exit load: others keep their value (SDM 26.3.2.1, 27.5.1).
pub(super) const CR0_LOADED: u64 = satori_rules::cr0::EXIST & !(cr0::CD | cr0::NW);

impl Cpu {
    /// VMLAUNCH and VMRESUME.
    pub(super) fn vm_entry(&mut self, launch: bool) -> Exec<()> {
        self.require_vmx_mode()?;
        if !self.vmx.on {
            return Err(self.raise(satori_engine::Exception::ud()));
        }
        self.require_supervisor()?;
        // Everything that may follow ends this instruction somewhere else.
        self.execute_alone()?;
        self.vmx.account.worked(NestedWork::Entry);
        let enlightened = match self.choose_vmcs(launch)? {
            Ok(enlightened) => enlightened,
            Err(number) => {
                self.vmx.account.failed += 1;
                self.conclude(Err(number));
                return Ok(());
            }
        };
        let vmcs = &self.vmx.vmcs;
        let refused = if !self.has_vmcs() || vmcs.shadow {
            Some(0)
        } else if self.vmx.in_ss_shadow {
            Some(error::ENTRY_MOV_SS)
        } else if !enlightened && launch && vmcs.launched {
            Some(error::VMLAUNCH_NOT_CLEAR)
        } else if !enlightened && !launch && !vmcs.launched {
            Some(error::VMRESUME_NOT_LAUNCHED)
        } else if !check::controls(vmcs, self.around()) || !self.threshold_fits() {
            Some(error::ENTRY_CONTROLS)
        } else if !check::host(vmcs, self.around()) {
            Some(error::ENTRY_HOST_STATE)
        } else {
            None
        };
        if let Some(number) = refused {
            self.vmx.account.failed += 1;
            self.conclude(Err(number));
            return Ok(());
        }
        if let Err(qualification) = check::guest(&self.vmx.vmcs, self.around(), self.linked()) {
            self.entry_failed(ExitReason::InvalidState, qualification);
            return Ok(());
        }
        let before = self.state.clone();
        self.load_guest();
        if let Err(qualification) = self.load_entry_list() {
            // As if guest state had never been loaded; what the list loaded before stays.
            self.state.cr0 = before.cr0;
            self.entry_failed(ExitReason::MsrLoadFail, qualification);
            return Ok(());
        }
        self.vmx.vmcs.launched = true;
        self.vmx.account.entries += 1;
        self.begin_guest();
        if let Some(exit) = self.shut_down() {
            return Err(self.exit(exit));
        }
        // Nothing was injected that would have woken it.
        if self.vmx.guest && self.state.activity == Activity::Halted {
            return Err(self.exit(Exit::Hlt));
        }
        if self.waits_in_guest() {
            return Err(self.exit(Exit::Budget));
        }
        Ok(())
    }

    /// Whether the TPR threshold is not above the virtual task priority; with APIC accesses that is an exit behind VM entry (SDM
    /// 26.2.1.1, 26.7.7).
    fn threshold_fits(&self) -> bool {
        let vmcs = &self.vmx.vmcs;
        let asked = vmcs.get32(ProcControls) & proc::TPR_SHADOW != 0
            && check::secondary(vmcs) & (proc2::APIC_ACCESSES | proc2::VIRTUAL_INTERRUPTS) == 0;
        !asked || self.virtual_priority() >= vmcs.get(Field::TprThreshold) & 0xf
    }

    /// The first word of the region that the link pointer names, if that is none of the VMCS itself.
    fn linked(&self) -> Option<u32> {
        let pointer = self.vmx.vmcs.get(Field::LinkPointer);
        let word = || self.memory.read_u32(Gpa(self.memory.addressed(pointer))).ok();
        (pointer != self.vmx.current).then(word).flatten()
    }

    /// A VM entry that failed behind its first checks: host state is loaded, guest state not saved (SDM 26.8).
    fn entry_failed(&mut self, reason: ExitReason, qualification: u64) {
        let vmcs = &mut self.vmx.vmcs;
        vmcs.set(Field::ExitReason, u64::from(reason as u32 | ENTRY_FAILURE));
        vmcs.set(ExitQualification, qualification);
        self.vmx.account.failed += 1;
        self.vmx.account.left(reason as u32);
        self.store_enlightened();
        self.load_host();
        self.next_rip = self.state.rip;
    }

    /// The guest state area becomes the processor's (SDM 26.3.2).
    fn load_guest(&mut self) {
        self.vmx.host_nmi_blocked = self.state.nmi_blocked;
        let vmcs = &self.vmx.vmcs;
        guest_state(vmcs, &mut self.state);
        self.vmx.pin = vmcs.get32(PinControls);
        self.vmx.proc = vmcs.get32(ProcControls);
        self.vmx.proc2 = check::secondary(vmcs);
        self.vmx.guest = true;
        let flags = vmcs.get(GuestRflags);
        self.load_pdptes();
        self.switched(flags);
    }

    /// The PDPTEs of a guest with PAE paging: from the VMCS with EPT, else from memory.
    fn load_pdptes(&mut self) {
        if Paging::of(&self.state) != Paging::Pae {
            return;
        }
        for index in 0..4 {
            self.state.pdpte[index] = if self.vmx.proc2 & proc2::EPT != 0 {
                self.vmx.vmcs.get(GuestPdpte0.plus(index))
            } else {
                let at = (self.state.cr3 & 0xffff_ffe0) + 8 * index as u64;
                self.memory.read_u64(Gpa(self.memory.addressed(at))).unwrap_or(0)
            };
        }
    }

    /// What follows a change between root and non-root operation. Translations are told apart by VPID, or else dropped (SDM 28.3.3.1).
    pub(super) fn switched(&mut self, flags: u64) {
        self.enter_space(check::secondary(&self.vmx.vmcs) & proc2::VPID != 0);
        self.choose_windows();
        self.arm();
        self.set_rflags(flags);
        self.windows.attention = true;
    }

    /// The guest begins: the event that VM entry injects is delivered before anything else (SDM 26.6.1).
    fn begin_guest(&mut self) {
        let vmcs = &self.vmx.vmcs;
        self.vmx.timer = (self.vmx.pin & pin::PREEMPTION_TIMER != 0).then(|| {
            let value = vmcs.get(PreemptionTimer);
            let now = self.time().counter();
            // It counts where bits of the TSC change.
            ((now >> TIMER_SHIFT) + value) << TIMER_SHIFT
        });
        let event = Interruption { info: vmcs.get32(EntryInterruption), code: vmcs.get32(EntryErrorCode) };
        let length = vmcs.get(EntryInstructionLength);
        (self.vmx.trap, self.vmx.pauses) = (false, (0, 0));
        self.begin_virtual_interrupts();
        if event.info & VALID != 0 {
            self.inject_event(event, length);
        }
        // Nothing but a SIPI ends the wait for one.
        if !self.waits_in_guest()
            && self.guest_exits(proc::TPR_SHADOW)
            && self.vmx.proc2 & proc2::APIC_ACCESSES != 0
            && !self.delivers_virtually()
            && let Some(exit) = self.virtualize_tpr()
        {
            self.vmx.exit = Some(exit);
            self.vm_exit();
        }
        if self.state.activity == Activity::Halted && self.virtual_interrupt_open() {
            // It wakes the guest, before anything of the machine's does.
            self.state.activity = Activity::Active;
        }
        self.next_rip = self.state.rip;
    }

    /// When the preemption timer of a guest in HLT expires, in the partition's time; one that executes looks by itself.
    pub(crate) fn timer_expires(&self) -> Option<u64> {
        // A virtual interrupt wakes it at once.
        if self.state.activity == Activity::Halted && self.virtual_interrupt_open() {
            return Some(0);
        }
        self.vmx.timer.filter(|_| self.state.activity == Activity::Halted)
    }

    /// Raises the exit of the preemption timer, if that has expired (SDM 25.5.1).
    pub(super) fn timer_expired(&self) -> Option<VmExit> {
        let expired = self.vmx.timer.is_some_and(|at| self.time().counter() >= at);
        expired.then(|| VmExit { reason: ExitReason::PreemptionTimer as u32, ..VmExit::default() })
    }
}

/// The guest state area as registers (SDM 26.3.2); PDPTEs and RFLAGS are not among them.
pub(super) fn guest_state(vmcs: &Vmcs, state: &mut CpuState) {
    let get = |field| vmcs.get(field);
    let controls = vmcs.get32(EntryControls);
    let wide = controls & entry::IA32E != 0;
    state.cr0 = state.cr0 & !CR0_LOADED | get(GuestCr0) & CR0_LOADED | cr0::ET;
    state.cr3 = get(GuestCr3);
    state.cr4 = get(GuestCr4);
    state.efer = if controls & entry::LOAD_EFER != 0 {
        get(GuestEfer)
    } else {
        let lme = match (state.cr0 & cr0::PG != 0, wide) {
            (true, true) => efer::LME,
            (true, false) => 0,
            (false, _) => state.efer & efer::LME,
        };
        state.efer & !(efer::LMA | efer::LME) | lme | if wide { efer::LMA } else { 0 }
    };
    if controls & entry::LOAD_PAT != 0 {
        state.pat = get(GuestPat);
    }
    if controls & entry::LOAD_DEBUG != 0 {
        state.dr7 = get(GuestDr7);
    }
    state.sysenter_cs = get(GuestSysenterCs);
    state.sysenter_esp = get(GuestSysenterEsp);
    state.sysenter_eip = get(GuestSysenterEip);
    let segment = |index: usize| Segment {
        selector: get(GuestEs.plus(index)) as u16,
        rights: vmcs.get32(GuestEsRights.plus(index)),
        limit: vmcs.get32(GuestEsLimit.plus(index)),
        base: get(GuestEsBase.plus(index)),
    };
    state.seg = std::array::from_fn(segment);
    (state.ldtr, state.tr) = (segment(6), segment(7));
    let table = |base, limit| DescriptorTable { base: get(base), limit: get(limit) as u16 };
    state.gdtr = table(GuestGdtrBase, GuestGdtrLimit);
    state.idtr = table(GuestIdtrBase, GuestIdtrLimit);
    state.gpr[reg::RSP] = get(GuestRsp);
    state.rip = get(GuestRip);
    let shadow = vmcs.get32(GuestInterruptibility);
    state.ss_shadow = shadow & interruptibility::MOV_SS != 0;
    state.interrupt_shadow = state.ss_shadow || shadow & interruptibility::STI != 0;
    state.nmi_blocked = shadow & interruptibility::NMI != 0;
    // Bit 12 only says that a breakpoint of bits 3:0 was enabled.
    state.pending_debug = get(GuestPendingDebug) & 0x400f;
    state.activity = match vmcs.get32(GuestActivity) {
        activity::HLT => Activity::Halted,
        activity::WAIT_FOR_SIPI => Activity::WaitForSipi,
        _ => Activity::Active,
    };
}
