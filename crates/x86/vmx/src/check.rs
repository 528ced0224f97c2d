//! The checks of VM entry, in the manual's order (SDM 26.2, 26.3): controls, host state, guest state.

use satori_defs::x86::{cr0, cr4, efer, rflags};
use satori_rules as rules;
use satori_rules::segment::{self, Held, Under};

use crate::capability::{self, CR3_TARGETS, Pair};
use crate::control::{activity, entry, exit, interruptibility, pin, proc, proc2};
use crate::event::{self, VALID, kind};
use crate::field::Field::{self, *};
use crate::{MAXPHYADDR, Vmcs, ept};

/// What of the processor decides beside the VMCS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// IA32_EFER.LMA as VMLAUNCH finds it.
    pub lma: bool,
    /// The bits of CR4 that exist.
    pub cr4: u64,
    /// The bits of IA32_EFER that exist, LMA among them.
    pub efer: u64,
    /// The controls that are offered.
    pub controls: &'static capability::Controls,
}

/// Qualifications of an entry that failed for its guest state (SDM 26.8).
pub mod qualification {
    #![allow(missing_docs, reason = "the manual's list")]
    pub const NONE: u64 = 0;
    pub const PDPTE: u64 = 2;
    pub const NMI: u64 = 3;
    pub const LINK_POINTER: u64 = 4;
}

/// Whether a physical address has these low bits clear, and no more bits than there are.
const fn placed(address: u64, low: u64) -> bool {
    address & low == 0 && address & !rules::physical(MAXPHYADDR) == 0
}

/// The secondary controls, which count only if they are activated.
pub fn secondary(vmcs: &Vmcs) -> u32 {
    if vmcs.get32(ProcControls) & proc::SECONDARY != 0 { vmcs.get32(ProcControls2) } else { 0 }
}

/// Whether CR0 can have this value in VMX operation.
pub const fn cr0(value: u64, unrestricted: bool) -> bool {
    let fixed = capability::CR0_FIXED0 & if unrestricted { !(cr0::PE | cr0::PG) } else { !0 };
    let paged = value & cr0::PG == 0 || value & cr0::PE != 0;
    value & fixed == fixed && value >> 32 == 0 && paged
}

/// Whether CR4 can have this value in VMX operation.
pub const fn cr4(value: u64, exist: u64) -> bool {
    value & capability::CR4_FIXED0 == capability::CR4_FIXED0 && rules::within(value, exist)
}

fn list(vmcs: &Vmcs, count: Field, address: Field) -> bool {
    let (count, address) = (vmcs.get32(count), vmcs.get(address));
    let last = address.wrapping_add(u64::from(count) * 16).wrapping_sub(1);
    count == 0 || placed(address, 15) && placed(last, 0)
}

/// VM-execution, VM-exit and VM-entry controls (SDM 26.2.1): error 7 where not.
pub fn controls(vmcs: &Vmcs, around: Around) -> bool {
    let get = |field| vmcs.get32(field);
    let (pins, procs, procs2) = (get(PinControls), get(ProcControls), secondary(vmcs));
    let words: [(Pair, u32); 5] = [
        (around.controls.pin, pins),
        (around.controls.proc, procs),
        (around.controls.proc2, procs2),
        (around.controls.exit, get(ExitControls)),
        (around.controls.entry, get(EntryControls)),
    ];
    let implies = |a: bool, b: bool| !a || b;
    let (on, on2) = (|bit| procs & bit != 0, |bit| procs2 & bit != 0);
    words.iter().all(|(pair, word)| pair.allows(*word))
        && get(Cr3TargetCount) <= CR3_TARGETS
        && implies(
            on(proc::IO_BITMAPS),
            placed(vmcs.get(IoBitmapA), 0xfff) && placed(vmcs.get(IoBitmapB), 0xfff),
        )
        && implies(on(proc::MSR_BITMAPS), placed(vmcs.get(MsrBitmap), 0xfff))
        && implies(pins & pin::VIRTUAL_NMIS != 0, pins & pin::NMI != 0)
        && implies(on(proc::NMI_WINDOW), pins & pin::VIRTUAL_NMIS != 0)
        && implies(on2(proc2::APIC_ACCESSES), placed(vmcs.get(ApicAccess), 0xfff))
        && implies(on2(proc2::VPID), vmcs.get(Vpid) != 0)
        && implies(on2(proc2::EPT), ept::eptp(vmcs.get(Eptp)))
        && implies(on2(proc2::UNRESTRICTED | proc2::MODE_BASED_EXECUTE), on2(proc2::EPT))
        && implies(
            on2(proc2::SHADOW_VMCS),
            placed(vmcs.get(VmreadBitmap), 0xfff) && placed(vmcs.get(VmwriteBitmap), 0xfff),
        )
        && implies(on2(proc2::PML), on2(proc2::EPT) && placed(vmcs.get(PmlAddress), 0xfff))
        && local_apic(vmcs)
        && implies(on2(proc2::VM_FUNCTIONS), functions(vmcs, on2(proc2::EPT)))
        && implies(get(ExitControls) & exit::SAVE_TIMER != 0, pins & pin::PREEMPTION_TIMER != 0)
        && list(vmcs, ExitMsrStoreCount, ExitMsrStore)
        && list(vmcs, ExitMsrLoadCount, ExitMsrLoad)
        && list(vmcs, EntryMsrLoadCount, EntryMsrLoad)
        && injection(vmcs)
        && get(EntryControls) & (entry::SMM | entry::DEACTIVATE_DUAL) == 0
}

/// What of a local APIC is virtual, and posted interrupts (SDM 26.2.1.1).
fn local_apic(vmcs: &Vmcs) -> bool {
    let (pins, procs2) = (vmcs.get32(PinControls), secondary(vmcs));
    let on2 = |bits| procs2 & bits != 0;
    let delivers = on2(proc2::VIRTUAL_INTERRUPTS);
    let shadow = vmcs.get32(ProcControls) & proc::TPR_SHADOW != 0;
    let virtualized = if shadow {
        placed(vmcs.get(VirtualApic), 0xfff) && (delivers || vmcs.get32(TprThreshold) & !0xf == 0)
    } else {
        !on2(proc2::X2APIC | proc2::APIC_REGISTERS | proc2::VIRTUAL_INTERRUPTS)
    };
    let posts = pins & pin::POSTED_INTERRUPTS == 0
        || delivers
            && vmcs.get32(ExitControls) & exit::ACKNOWLEDGE != 0
            && vmcs.get(PostedVector) >> 8 == 0
            && placed(vmcs.get(PostedDescriptor), 0x3f);
    virtualized
        && posts
        && !(on2(proc2::X2APIC) && on2(proc2::APIC_ACCESSES))
        && (!delivers || pins & pin::EXTERNAL_INTERRUPT != 0)
}

fn functions(vmcs: &Vmcs, ept: bool) -> bool {
    let on = vmcs.get(VmFunctions);
    let switching = on & capability::EPTP_SWITCHING != 0;
    on & !capability::EPTP_SWITCHING == 0 && (!switching || ept && placed(vmcs.get(EptpList), 0xfff))
}

fn injection(vmcs: &Vmcs) -> bool {
    let unrestricted = secondary(vmcs) & proc2::UNRESTRICTED != 0;
    let protected = !unrestricted || vmcs.get(GuestCr0) & cr0::PE != 0;
    let (info, code) = (vmcs.get32(EntryInterruption), vmcs.get32(EntryErrorCode));
    event::injectable(info, code, vmcs.get32(EntryInstructionLength), protected)
}

fn pat(value: u64) -> bool {
    rules::memory_type::pat(value)
}

/// Host state (SDM 26.2.2 to 26.2.4): error 8 where not.
pub fn host(vmcs: &Vmcs, around: Around) -> bool {
    let controls = vmcs.get32(ExitControls);
    let wide = controls & exit::HOST_64 != 0;
    let get = |field| vmcs.get(field);
    let canonical = |field| rules::canonical(vmcs.get(field));
    let selectors = [HostEs, HostCs, HostSs, HostDs, HostFs, HostGs, HostTr];
    let guest_wide = vmcs.get32(EntryControls) & entry::IA32E != 0;
    let value = get(HostEfer);
    let long = value & efer::LMA != 0;
    let enabled = value & efer::LME != 0;
    cr0(get(HostCr0), false)
        && cr4(get(HostCr4), around.cr4)
        && get(HostCr3) & !rules::physical(MAXPHYADDR) == 0
        && [HostSysenterEsp, HostSysenterEip].into_iter().all(canonical)
        && (controls & exit::LOAD_PAT == 0 || pat(get(HostPat)))
        && (controls & exit::LOAD_EFER == 0
            || rules::within(value, around.efer) && long == wide && enabled == wide)
        && selectors.into_iter().all(|selector| get(selector) & 7 == 0)
        && get(HostCs) != 0
        && get(HostTr) != 0
        && (wide || get(HostSs) != 0)
        && [HostFsBase, HostGsBase, HostGdtrBase, HostIdtrBase, HostTrBase].into_iter().all(canonical)
        && wide == around.lma
        && (around.lma || !guest_wide)
        && if wide {
            get(HostCr4) & cr4::PAE != 0 && canonical(HostRip)
        } else {
            get(HostCr4) & cr4::PCIDE == 0 && get(HostRip) >> 32 == 0
        }
}

/// Guest state (SDM 26.3.1): the qualification of the failure where not. `linked` is the first word of the region that the VMCS
/// link pointer names, if there is memory, and if that is not the VMCS itself.
pub fn guest(vmcs: &Vmcs, around: Around, linked: Option<u32>) -> Result<(), u64> {
    let checks: [fn(&Vmcs, Around) -> bool; 5] = [registers, segments, tables, flags, activity_state];
    if !checks.iter().all(|check| check(vmcs, around)) {
        return Err(qualification::NONE);
    }
    let shadow = vmcs.get32(GuestInterruptibility);
    let info = vmcs.get32(EntryInterruption);
    let nmi = info & VALID != 0 && info >> 8 & 7 == kind::NMI;
    if nmi && shadow & interruptibility::NMI != 0 && vmcs.get32(PinControls) & pin::VIRTUAL_NMIS != 0 {
        return Err(qualification::NMI);
    }
    let pointer = vmcs.get(LinkPointer);
    let shadow = if secondary(vmcs) & proc2::SHADOW_VMCS != 0 { capability::SHADOW } else { 0 };
    let names = placed(pointer, 0xfff) && linked == Some(capability::REVISION | shadow);
    if pointer != u64::MAX && !names {
        return Err(qualification::LINK_POINTER);
    }
    let pae = vmcs.get(GuestCr0) & cr0::PG != 0
        && vmcs.get(GuestCr4) & cr4::PAE != 0
        && vmcs.get32(EntryControls) & entry::IA32E == 0;
    if pae && secondary(vmcs) & proc2::EPT != 0 {
        let legal = (0..4).all(|i| rules::cr3::pdpte(vmcs.get(GuestPdpte0.plus(i)), MAXPHYADDR));
        return if legal { Ok(()) } else { Err(qualification::PDPTE) };
    }
    Ok(())
}

/// Control registers, debug registers and MSRs (SDM 26.3.1.1).
fn registers(vmcs: &Vmcs, around: Around) -> bool {
    let controls = vmcs.get32(EntryControls);
    let wide = controls & entry::IA32E != 0;
    let get = |field| vmcs.get(field);
    let unrestricted = secondary(vmcs) & proc2::UNRESTRICTED != 0;
    let (paging, pae) = (get(GuestCr0) & cr0::PG != 0, get(GuestCr4) & cr4::PAE != 0);
    let value = get(GuestEfer);
    let agrees = (value & efer::LMA != 0) == wide && (!paging || (value & efer::LME != 0) == wide);
    cr0(get(GuestCr0), unrestricted)
        && cr4(get(GuestCr4), around.cr4)
        && (!wide || paging && pae)
        && (wide || get(GuestCr4) & cr4::PCIDE == 0)
        && get(GuestCr3) & !rules::physical(MAXPHYADDR) == 0
        && (controls & entry::LOAD_DEBUG == 0 || get(GuestDr7) >> 32 == 0)
        && [GuestSysenterEsp, GuestSysenterEip].into_iter().all(|field| rules::canonical(get(field)))
        && (controls & entry::LOAD_PAT == 0 || pat(get(GuestPat)))
        && (controls & entry::LOAD_EFER == 0 || rules::within(value, around.efer) && agrees)
}

/// Segment registers (SDM 26.3.1.2).
fn segments(vmcs: &Vmcs, _: Around) -> bool {
    let held = |index| Held {
        selector: vmcs.get(GuestEs.plus(index)),
        base: vmcs.get(GuestEsBase.plus(index)),
        limit: vmcs.get32(GuestEsLimit.plus(index)),
        rights: vmcs.get32(GuestEsRights.plus(index)),
    };
    let under = Under {
        wide: vmcs.get32(EntryControls) & entry::IA32E != 0,
        v86: vmcs.get(GuestRflags) & rflags::VM != 0,
        real: vmcs.get(GuestCr0) & cr0::PE == 0,
        unrestricted: secondary(vmcs) & proc2::UNRESTRICTED != 0,
    };
    segment::together(std::array::from_fn(held), under)
}

/// GDTR and IDTR (SDM 26.3.1.3).
fn tables(vmcs: &Vmcs, _: Around) -> bool {
    [GuestGdtrBase, GuestIdtrBase].into_iter().all(|field| rules::canonical(vmcs.get(field)))
        && [GuestGdtrLimit, GuestIdtrLimit].into_iter().all(|field| vmcs.get32(field) >> 16 == 0)
}

/// RIP and RFLAGS (SDM 26.3.1.4).
fn flags(vmcs: &Vmcs, _: Around) -> bool {
    let wide = vmcs.get32(EntryControls) & entry::IA32E != 0;
    let code64 = wide && vmcs.get32(GuestCsRights) & 1 << 13 != 0;
    let (rip, value) = (vmcs.get(GuestRip), vmcs.get(GuestRflags));
    let info = vmcs.get32(EntryInterruption);
    let interrupt = info & VALID != 0 && info >> 8 & 7 == kind::EXTERNAL_INTERRUPT;
    let real = vmcs.get(GuestCr0) & cr0::PE == 0;
    rules::instruction(rip, code64)
        && value & !0x3f_7fd7 == 0
        && value & 2 != 0
        && (value & rflags::VM == 0 || !wide && !real)
        && (!interrupt || value & rflags::IF != 0)
}

/// Activity, interruptibility and pending debug exceptions (SDM 26.3.1.5).
fn activity_state(vmcs: &Vmcs, _: Around) -> bool {
    use interruptibility::{MOV_SS, STI};
    let (state, shadow) = (vmcs.get32(GuestActivity), vmcs.get32(GuestInterruptibility));
    let info = vmcs.get32(EntryInterruption);
    let (injects, event) = (info & VALID != 0, info >> 8 & 7);
    let value = vmcs.get(GuestRflags);
    let ss_dpl = vmcs.get32(GuestSsRights) >> 5 & 3;
    let blocked = shadow & (STI | MOV_SS) != 0;
    let halted = state == activity::HLT;
    let wakes = match event {
        kind::EXTERNAL_INTERRUPT | kind::NMI => true,
        kind::HARDWARE_EXCEPTION => matches!(info as u8, 1 | 18),
        kind::OTHER => info as u8 == 0,
        _ => false,
    };
    let pending = vmcs.get(GuestPendingDebug);
    let single = value & rflags::TF != 0 && vmcs.get(GuestDebugctl) & 2 == 0;
    let waits = state == activity::WAIT_FOR_SIPI;
    matches!(state, activity::ACTIVE | activity::HLT | activity::WAIT_FOR_SIPI)
        && !(waits && (blocked || injects))
        && !(halted && (ss_dpl != 0 || blocked || injects && !wakes))
        && shadow & !0xf == 0
        && shadow & (STI | MOV_SS) != STI | MOV_SS
        && !(shadow & STI != 0 && value & rflags::IF == 0)
        && !(injects && event == kind::EXTERNAL_INTERRUPT && blocked)
        && !(injects && event == kind::NMI && shadow & MOV_SS != 0)
        && shadow & interruptibility::SMI == 0
        && pending & !0x500f_u64 == 0
        && (!(blocked || halted) || (pending & 1 << 14 != 0) == single)
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
