//! VM exit (SDM chapter 27).

use satori_defs::vmx::ExitReason;
use satori_defs::x86::{cr0, efer, rflags, vector};
use satori_engine::Exception;
use satori_state::{Activity, CpuState, DescriptorTable, Segment, reg, seg};
use satori_vmx::Field::{
    self, EntryControls, EntryInterruption, ExitControls, ExitErrorCode, ExitInstructionInfo,
    ExitInstructionLength, ExitInterruption, ExitQualification, GuestActivity, GuestCr0, GuestCr3, GuestCr4,
    GuestDr7, GuestEfer, GuestEs, GuestEsBase, GuestEsLimit, GuestEsRights, GuestGdtrBase, GuestGdtrLimit,
    GuestIdtrBase, GuestIdtrLimit, GuestInterruptibility, GuestLinearAddress, GuestPat, GuestPdpte0,
    GuestPendingDebug, GuestPhysicalAddress, GuestRflags, GuestRip, GuestRsp, GuestSysenterCs,
    GuestSysenterEip, GuestSysenterEsp, HostCr0, HostCr3, HostCr4, HostEfer, HostEs, HostFsBase,
    HostGdtrBase, HostGsBase, HostIdtrBase, HostPat, HostRip, HostRsp, HostSysenterCs, HostSysenterEip,
    HostSysenterEsp, HostTrBase, IdtVectoring, IdtVectoringErrorCode, PreemptionTimer,
};
use satori_vmx::capability::TIMER_SHIFT;
use satori_vmx::control::{activity, entry, exit, interruptibility, proc2};
use satori_vmx::ept::violation;
use satori_vmx::event::{Interruption, NMI_UNBLOCKED, VALID, kind};
use satori_vmx::{Vmcs, evmcs};

use super::VmExit;
use super::enter::CR0_LOADED;
use crate::cpu::Cpu;
use crate::mmu::Paging;
use crate::system::pushes_resume;

/// A flat 64-bit or 32-bit segment as VM exit loads it: accessed, present, DPL 0 (SDM 27.5.2).
const CODE64: u32 = 0xa09b;
const CODE32: u32 = 0xc09b;
const DATA: u32 = 0xc093;
/// A busy TSS.
const TSS: u32 = 0x8b;

impl Cpu {
    /// The VM exit behind [`super::EXIT`]: RIP and all other registers are as the guest's hypervisor is to find them.
    #[cold]
    pub fn vm_exit(&mut self) {
        if self.svm.guest {
            return self.svm_exit();
        }
        let Some(exit) = self.vmx.exit.take() else { return };
        if !self.vmx.guest {
            return;
        }
        self.vmx.account.left(exit.reason);
        let vectoring = std::mem::take(&mut self.vmx.vectoring);
        let unblocked = std::mem::take(&mut self.vmx.nmi_unblocked) && vectoring.info & VALID == 0;
        let exit = self.completed(exit, vectoring, unblocked);
        self.tell(&exit, vectoring);
        let flags = self.rflags();
        self.save_guest(saved_flags(flags, &exit, vectoring));
        if !self.store_exit_list() {
            return self.abort();
        }
        self.store_enlightened();
        let nmi = exit.reason == ExitReason::ExceptionNmi as u32 && exit.event.vector() == 2;
        self.load_host();
        if !self.load_exit_list() {
            return self.abort();
        }
        self.state.nmi_blocked = self.vmx.host_nmi_blocked || nmi;
    }

    /// What an exit says beside its own reason: of the software event in whose delivery it came its length, and that an IRET
    /// ended the blocking of NMIs (SDM 27.2.3, 27.2.5).
    fn completed(&self, mut exit: VmExit, vectoring: Interruption, unblocked: bool) -> VmExit {
        let software = matches!(
            vectoring.kind(),
            kind::SOFTWARE_INTERRUPT | kind::PRIVILEGED_SOFTWARE_EXCEPTION | kind::SOFTWARE_EXCEPTION
        );
        if vectoring.info & VALID != 0 && software && exit.length == 0 {
            exit.length = self.vmx.vectoring_length;
        }
        if unblocked {
            match exit.reason {
                0 if exit.event.vector() != vector::DF => exit.event.info |= NMI_UNBLOCKED,
                48 | 62 => exit.qualification |= violation::NMI_UNBLOCKED,
                _ => {}
            }
        }
        exit
    }

    /// The exit-information fields (SDM 27.2). An exit that has nothing to say of a field leaves it, but for those that say
    /// whether they are valid.
    fn tell(&mut self, exit: &VmExit, vectoring: Interruption) {
        let vmcs = &mut self.vmx.vmcs;
        for (field, value) in [
            (Field::ExitReason, exit.reason.into()),
            (ExitQualification, exit.qualification),
            (ExitInstructionLength, exit.length.into()),
            (ExitInstructionInfo, exit.info.into()),
            (ExitInterruption, exit.event.info.into()),
            (ExitErrorCode, exit.event.code.into()),
            (IdtVectoring, vectoring.info.into()),
            (IdtVectoringErrorCode, vectoring.code.into()),
            (GuestLinearAddress, exit.linear),
        ] {
            vmcs.set(field, value);
        }
        if matches!(exit.reason, 48 | 49) {
            vmcs.set(GuestPhysicalAddress, exit.gpa);
        }
        // What was injected is not injected again.
        let injected = vmcs.get(EntryInterruption);
        vmcs.set(EntryInterruption, injected & !u64::from(VALID));
    }

    /// The processor's state goes to the guest-state area (SDM 27.3).
    fn save_guest(&mut self, flags: u64) {
        let now = self.time().counter();
        let timer = self.vmx.timer;
        let (state, vmcs) = (&self.state, &mut self.vmx.vmcs);
        let controls = vmcs.get32(ExitControls);
        for (field, value) in [
            (GuestCr0, state.cr0),
            (GuestCr3, state.cr3),
            (GuestCr4, state.cr4),
            (GuestSysenterCs, state.sysenter_cs),
            (GuestSysenterEsp, state.sysenter_esp),
            (GuestSysenterEip, state.sysenter_eip),
            (GuestRsp, state.gpr[reg::RSP]),
            (GuestRip, state.rip),
            (GuestRflags, flags),
            (GuestGdtrBase, state.gdtr.base),
            (GuestGdtrLimit, state.gdtr.limit.into()),
            (GuestIdtrBase, state.idtr.base),
            (GuestIdtrLimit, state.idtr.limit.into()),
            (
                GuestActivity,
                match state.activity {
                    Activity::Halted => activity::HLT,
                    Activity::WaitForSipi => activity::WAIT_FOR_SIPI,
                    _ => activity::ACTIVE,
                }
                .into(),
            ),
        ] {
            vmcs.set(field, value);
        }
        let segments = state.seg.iter().chain([&state.ldtr, &state.tr]);
        for (index, segment) in segments.enumerate() {
            vmcs.set(GuestEs.plus(index), segment.selector.into());
            vmcs.set(GuestEsBase.plus(index), segment.base);
            vmcs.set(GuestEsLimit.plus(index), segment.limit.into());
            vmcs.set(GuestEsRights.plus(index), segment.rights.into());
        }
        if controls & exit::SAVE_DEBUG != 0 {
            vmcs.set(GuestDr7, state.dr7);
        }
        if controls & exit::SAVE_PAT != 0 {
            vmcs.set(GuestPat, state.pat);
        }
        if controls & exit::SAVE_EFER != 0 {
            vmcs.set(GuestEfer, state.efer);
        }
        if controls & exit::SAVE_TIMER != 0
            && let Some(at) = timer
        {
            vmcs.set(PreemptionTimer, (at.saturating_sub(now) >> TIMER_SHIFT).min(u32::MAX.into()));
        }
        if self.vmx.proc2 & proc2::UNRESTRICTED != 0 {
            let long = if state.efer & efer::LMA != 0 { entry::IA32E } else { 0 };
            let old = vmcs.get32(EntryControls);
            vmcs.set(EntryControls, u64::from(old & !entry::IA32E | long));
        }
        let shadow = match (state.interrupt_shadow, state.ss_shadow) {
            (_, true) => interruptibility::MOV_SS,
            (true, false) => interruptibility::STI,
            _ => 0,
        };
        let blocked = if state.nmi_blocked { interruptibility::NMI } else { 0 };
        vmcs.set(GuestInterruptibility, (shadow | blocked).into());
        vmcs.set(GuestPendingDebug, pending(state.pending_debug));
        if self.vmx.proc2 & proc2::EPT != 0 && Paging::of(state) == Paging::Pae {
            for index in 0..4 {
                vmcs.set(GuestPdpte0.plus(index), state.pdpte[index]);
            }
        }
    }

    /// The host-state area becomes the processor's (SDM 27.5).
    pub(super) fn load_host(&mut self) {
        host_state(&self.vmx.vmcs, &mut self.state);
        let vmx = &mut self.vmx;
        (vmx.guest, vmx.pin, vmx.proc, vmx.proc2, vmx.timer, vmx.trap) = (false, 0, 0, 0, None, false);
        (vmx.written, vmx.recognized) = (None, false);
        if Paging::of(&self.state) == Paging::Pae {
            let at = self.state.cr3 & 0xffff_ffe0;
            for index in 0..4 {
                let at = satori_memory::Gpa(self.memory.addressed(at + 8 * index as u64));
                self.state.pdpte[index] = self.memory.read_u64(at).unwrap_or(0);
            }
        }
        self.switched(rflags::FIXED);
    }

    /// A VMX abort: the processor shuts down, and says why in the VMCS region (SDM 27.7).
    fn abort(&mut self) {
        /// Saving or loading an MSR failed.
        const MSRS: u32 = 4;
        if self.vmx.enlightened.is_some() {
            self.note_enlightened(evmcs::ABORT, MSRS);
        } else {
            self.store_region(self.vmx.current, MSRS);
        }
        self.load_host();
        self.state.activity = Activity::Shutdown;
    }
}

/// RFLAGS as VM exit saves it: RF is set as an exception would push it, and behind a fault of the EPT; an instruction that was
/// intercepted leaves it clear, and all else as it is (SDM 27.3.3).
fn saved_flags(flags: u64, exit: &VmExit, vectoring: Interruption) -> u64 {
    let pushed = |event: Interruption, payload: u64| {
        let exception = Exception { payload, ..Exception::new(event.vector()) };
        event.info & VALID != 0 && event.kind() == kind::HARDWARE_EXCEPTION && pushes_resume(exception)
    };
    if exit.length != 0 && exit.reason != ExitReason::ApicAccess as u32 {
        return flags & !rflags::RF;
    }
    let resume = match exit.reason {
        0 => pushed(exit.event, exit.qualification),
        9 => pushed(vectoring, 0),
        44 | 48 | 49 | 62 => vectoring.info & VALID == 0 || pushed(vectoring, 0),
        _ => false,
    };
    flags | if resume { rflags::RF } else { 0 }
}

/// Pending debug traps as the VMCS has them: bit 12 tells that one of bits 3:0 was enabled.
fn pending(traps: u64) -> u64 {
    traps & 0x400f | if traps & 0xf != 0 { 1 << 12 } else { 0 }
}

/// The host-state area as registers (SDM 27.5); PDPTEs and RFLAGS are not among them.
pub(super) fn host_state(vmcs: &Vmcs, state: &mut CpuState) {
    let get = |field| vmcs.get(field);
    let controls = vmcs.get32(ExitControls);
    let wide = controls & exit::HOST_64 != 0;
    state.cr0 = state.cr0 & !CR0_LOADED | get(HostCr0) & CR0_LOADED | cr0::ET;
    state.cr3 = get(HostCr3);
    state.cr4 = get(HostCr4);
    state.efer = if controls & exit::LOAD_EFER != 0 {
        get(HostEfer)
    } else {
        state.efer & !(efer::LMA | efer::LME) | if wide { efer::LMA | efer::LME } else { 0 }
    };
    if controls & exit::LOAD_PAT != 0 {
        state.pat = get(HostPat);
    }
    state.dr7 = 0x400;
    state.sysenter_cs = get(HostSysenterCs);
    state.sysenter_esp = get(HostSysenterEsp);
    state.sysenter_eip = get(HostSysenterEip);
    for index in 0..6 {
        let selector = get(HostEs.plus(index)) as u16;
        let rights = if index != seg::CS {
            DATA
        } else if wide {
            CODE64
        } else {
            CODE32
        };
        // A null selector makes a data segment unusable.
        let unusable = if selector == 0 && index != seg::CS { Segment::UNUSABLE } else { 0 };
        state.seg[index] = Segment::flat(selector, rights | unusable);
    }
    state.seg[seg::FS].base = get(HostFsBase);
    state.seg[seg::GS].base = get(HostGsBase);
    state.tr =
        Segment { selector: get(HostEs.plus(6)) as u16, rights: TSS, limit: 0x67, base: get(HostTrBase) };
    state.ldtr = Segment { selector: 0, rights: Segment::UNUSABLE, limit: 0, base: 0 };
    state.gdtr = DescriptorTable { base: get(HostGdtrBase), limit: 0xffff };
    state.idtr = DescriptorTable { base: get(HostIdtrBase), limit: 0xffff };
    state.gpr[reg::RSP] = get(HostRsp);
    state.rip = get(HostRip);
    (state.interrupt_shadow, state.ss_shadow, state.pending_debug) = (false, false, 0);
    state.activity = Activity::Active;
}
