//! A hypervisor with a guest of random state and code, by VMRUN and by VMX: executed in blocks, and an instruction at a time.
//!
//! The hypervisor enters again and again, from the same VMCB or VMCS. Its page tables are the guest's, unless the input spoils
//! what says so; nested tables are spoilt too.

use arbitrary::{Result, Unstructured};
use satori_cpuid::Vendor;
use satori_defs::x86::{cr0, cr4, efer};
use satori_state::{CpuState, Segment, reg, seg};
use satori_svm::vmcb::Descriptor;
use satori_svm::{Place, Vmcb};
use satori_vmx::capability::{ENTRY, EXIT, PIN, PROC, PROC2, REVISION};
use satori_vmx::control::{entry, exit, pin, proc, proc2};
use satori_vmx::{Field, Vmcs};

use super::instructions::{CODE, Case, Mode, PML4, RAM, compare, start};

/// The VMCB or VMCS; the VMXON region; nested tables; bitmaps; the guest's code and its stack.
const BLOCK: u64 = 0x3_0000;
const REGION: u64 = 0x3_1000;
const TABLES: u64 = 0x3_2000;
const MAPS: u64 = 0x3_6000;
/// A shadow VMCS.
const SHADOW: u64 = 0x3_9000;
const GUEST: u64 = 0x1_8000;
const STACK: u64 = 0x2_8000;
/// Pointers for VMXON and VMPTRLD.
const POINTERS: u64 = 0x2_0000;

/// A guest of a guest.
pub fn nested(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let case = |u: &mut Unstructured<'_>| if u.arbitrary()? { of_vmrun(u) } else { of_vmx(u) };
    if let Ok(case) = case(&mut u) {
        compare(&case);
    }
}

/// The hypervisor's `code` and its guest's, of the rest of the input. Nested tables lead to the same addresses.
fn begin(code: &[u8]) -> Case {
    let mut case = start(Mode::Long, false);
    case.ram[CODE as usize..][..code.len()].copy_from_slice(code);
    case.state.rip = CODE;
    case.end = CODE + code.len() as u64;
    case.state.gpr[reg::RSP] = STACK - 0x1000;
    let mut put =
        |at: u64, value: u64| case.ram[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
    for level in 0..3 {
        put(TABLES + 0x1000 * level, (TABLES + 0x1000 * (level + 1)) | 7);
    }
    for page in 0..RAM >> 12 {
        // Write-back for an EPT, and nothing for nested tables.
        put(TABLES + 0x3000 + 8 * page, page << 12 | 6 << 3 | 7);
    }
    case
}

/// Spoils nested tables and the maps, and gives the guest the rest of the input as its code.
fn end(u: &mut Unstructured<'_>, case: &mut Case) -> Result<()> {
    for _ in 0..u.int_in_range(0..=3)? {
        let at = TABLES as usize
            + 8 * (u.arbitrary::<u16>()? as usize & 0x3ff)
            + 0x2e00 * u.int_in_range(0..=1)?;
        let bit = u.int_in_range(0..=63)?;
        case.ram[at + bit / 8] ^= 1 << (bit % 8);
    }
    let maps = u.arbitrary::<u8>()?;
    case.ram[MAPS as usize..][..0x3000].fill(if maps & 1 == 0 { 0 } else { maps });
    for register in [reg::RCX, reg::RDX, reg::RBX, reg::RSI, reg::RDI] {
        let near = [STACK, GUEST, BLOCK, TABLES][u.int_in_range(0..=3)?];
        case.state.gpr[register] =
            if u.arbitrary()? { near + u64::from(u.arbitrary::<u8>()?) } else { u.arbitrary()? };
    }
    for _ in 0..u.int_in_range(0..=3)? {
        case.answers.push(u.arbitrary()?);
    }
    let code = u.bytes(u.len().min(128)).unwrap_or_default();
    case.ram[GUEST as usize..][..code.len()].copy_from_slice(code);
    Ok(())
}

/// What a field is spoilt to.
fn value(u: &mut Unstructured<'_>, before: u64) -> Result<u64> {
    Ok(match u.int_in_range(0..=4)? {
        0 => before ^ 1 << u.int_in_range(0..=63)?,
        1 => u.arbitrary()?,
        2 => [BLOCK, TABLES, MAPS, GUEST, PML4, RAM][u.int_in_range(0..=5)?],
        3 => u.arbitrary::<u16>()?.into(),
        _ => before | 1 << u.int_in_range(0..=31)?,
    })
}

fn descriptor(from: &Segment) -> satori_svm::vmcb::Segment {
    let attributes = (from.rights & 0xff | from.rights >> 4 & 0xf00) as u16;
    satori_svm::vmcb::Segment { selector: from.selector, attributes, limit: from.limit, base: from.base }
}

fn of_vmrun(u: &mut Unstructured<'_>) -> Result<Case> {
    // STGI or CLGI; VMRUN; JMP to VMRUN.
    let mut case =
        begin(&[0x0f, 0x01, if u.arbitrary()? { 0xdc } else { 0xdd }, 0x0f, 0x01, 0xd8, 0xeb, 0xfb]);
    case.offered.vendor = Vendor::Amd;
    case.state.efer |= efer::SVME;
    case.state.gpr[reg::RAX] = BLOCK;
    let state = &case.state;
    let mut vmcb = Vmcb::default();
    let word = |at| Place { at, size: 4 };
    let control = u.arbitrary::<u32>()? & 0x071f_0fff;
    for (place, value) in [
        // Whatever else: HLT and a shutdown leave, VMRUN has to.
        (word(0xc), u64::from(u.arbitrary::<u32>()?) | 1 << 24 | 1 << 31),
        (word(0x10), u64::from(u.arbitrary::<u32>()?) | 1),
        (word(0x8), u64::from(u.arbitrary::<u32>()? & u.arbitrary::<u32>()?)),
        (word(0x0), u64::from(u.arbitrary::<u32>()? & u.arbitrary::<u32>()?)),
        (word(0x4), u64::from(u.arbitrary::<u32>()? & u.arbitrary::<u32>()?)),
        (Place::ASID, 1),
        (Place::TLB_CONTROL, u.int_in_range(0..=7)?),
        (Place::IO_MAP, MAPS),
        (Place::MSR_MAP, MAPS),
        (Place::INTERRUPT_CONTROL, if u.arbitrary()? { control.into() } else { 0 }),
        (Place::INTERRUPT_VECTOR, u.arbitrary::<u8>()?.into()),
        (Place::NESTED, u.int_in_range(0..=1)?),
        (Place::NESTED_CR3, TABLES),
        (Place::VIRTUALIZED, u.int_in_range(0..=3)?),
        (Place::PAT, 0x0007_0406_0007_0406),
        (Place::EFER, state.efer),
        (Place::CR0, state.cr0),
        (Place::CR3, state.cr3),
        (Place::CR4, state.cr4),
        (Place::DR6, 0xffff_0ff0),
        (Place::DR7, 0x400),
        (Place::RFLAGS, if u.arbitrary()? { 0x202 } else { 2 }),
        (Place::RIP, GUEST),
        (Place::RSP, STACK),
    ] {
        vmcb.set(place, value);
    }
    for (index, which) in [
        (seg::ES, Descriptor::Es),
        (seg::CS, Descriptor::Cs),
        (seg::SS, Descriptor::Ss),
        (seg::DS, Descriptor::Ds),
    ] {
        vmcb.set_segment(which, descriptor(&state.seg[index]));
    }
    for (which, table) in [(Descriptor::Gdtr, state.gdtr), (Descriptor::Idtr, state.idtr)] {
        let segment =
            satori_svm::vmcb::Segment { limit: table.limit.into(), base: table.base, ..Default::default() };
        vmcb.set_segment(which, segment);
    }
    if u.ratio(1, 4)? {
        vmcb.set(Place::INJECT, 1 << 31 | u64::from(u.arbitrary::<u16>()? & 0xfff));
    }
    for _ in 0..u.int_in_range(0..=3)? {
        let at =
            if u.arbitrary()? { u.int_in_range(0..=0xd7)? } else { 0x400 + u.int_in_range(0..=0x26f)? };
        let place = Place { at, size: [1, 2, 4, 8][u.int_in_range(0..=3)?] };
        let value = value(u, vmcb.get(place))?;
        vmcb.set(place, value);
    }
    case.ram[BLOCK as usize..][..vmcb.bytes().len()].copy_from_slice(vmcb.bytes());
    end(u, &mut case)?;
    Ok(case)
}

/// A VMCS that VM entry accepts, of a guest in the hypervisor's own mode.
fn vmcs(u: &mut Unstructured<'_>, state: &CpuState) -> Result<Vmcs> {
    use Field::*;
    let mut vmcs = Vmcs::default();
    // Controls beside those that must be: some of those that may be.
    let mut some = |must: u32, may: u32| -> Result<u64> {
        Ok(u64::from(must | u.arbitrary::<u32>()? & u.arbitrary::<u32>()? & may))
    };
    let secondary = some(0, PROC2.may)?;
    let (mut pins, mut primary) =
        (some(PIN.must, PIN.may)?, some(PROC.must | proc::SECONDARY | proc::HLT, PROC.may)?);
    let mut exits = some(EXIT.must | exit::HOST_64, EXIT.may)?;
    let entries = some(ENTRY.must | entry::IA32E, ENTRY.may & !(3 << 10))?;
    let exceptions = some(0, u32::MAX)?;
    let status = some(0, 0xffff)?;
    // What of a local APIC is virtual needs one another, and excludes one another.
    let of = |control: u32| secondary & u64::from(control) != 0;
    if of(proc2::X2APIC | proc2::APIC_REGISTERS | proc2::VIRTUAL_INTERRUPTS) {
        primary |= u64::from(proc::TPR_SHADOW);
    }
    let secondary = if of(proc2::X2APIC) { secondary & !u64::from(proc2::APIC_ACCESSES) } else { secondary };
    if of(proc2::VIRTUAL_INTERRUPTS) {
        pins |= u64::from(pin::EXTERNAL_INTERRUPT);
        exits |= u64::from(exit::ACKNOWLEDGE);
    } else {
        pins &= !u64::from(pin::POSTED_INTERRUPTS);
    }
    for (field, value) in [
        (PinControls, pins),
        (ProcControls, primary),
        (ProcControls2, secondary),
        (ExitControls, exits),
        (EntryControls, entries),
        (ExceptionBitmap, exceptions),
        (IoBitmapA, MAPS),
        (IoBitmapB, MAPS + 0x1000),
        (MsrBitmap, MAPS),
        (VirtualApic, MAPS + 0x2000),
        (ApicAccess, STACK),
        (Eptp, TABLES | 0x5e),
        (Vpid, 1),
        (PmlAddress, MAPS + 0x2000),
        (PmlIndex, 511),
        (EptpList, MAPS),
        (VmreadBitmap, MAPS),
        (VmwriteBitmap, MAPS + 0x1000),
        (LinkPointer, if secondary & u64::from(proc2::SHADOW_VMCS) != 0 { SHADOW } else { u64::MAX }),
        (PostedVector, 0xf2),
        (PostedDescriptor, MAPS + 0x2400),
        (GuestInterruptStatus, status),
        (TscMultiplier, 1 << 48),
        (PreemptionTimer, 50),
        (GuestRip, GUEST),
        (GuestRsp, STACK),
        (GuestRflags, if status & 1 != 0 { 0x202 } else { 2 }),
        (GuestDr7, 0x400),
        (HostRip, CODE + 12),
        (HostRsp, STACK - 0x1000),
        (HostTrBase, state.tr.base),
        (HostGdtrBase, state.gdtr.base),
        (HostIdtrBase, state.idtr.base),
        (HostCs, state.seg[seg::CS].selector.into()),
        (HostTr, state.tr.selector.into()),
        (GuestGdtrBase, state.gdtr.base),
        (GuestIdtrBase, state.idtr.base),
        (GuestGdtrLimit, state.gdtr.limit.into()),
        (GuestIdtrLimit, state.idtr.limit.into()),
    ] {
        vmcs.set(field, value);
    }
    for (fields, value) in [
        ([GuestCr0, HostCr0], state.cr0),
        ([GuestCr3, HostCr3], state.cr3),
        ([GuestCr4, HostCr4], state.cr4),
        ([GuestEfer, HostEfer], state.efer),
        ([GuestPat, HostPat], 0x0007_0406_0007_0406),
    ] {
        fields.into_iter().for_each(|field| vmcs.set(field, value));
    }
    for (index, segment) in state.seg.iter().chain([&state.ldtr, &state.tr]).enumerate() {
        let rights = if index == 6 { 1 << 16 } else { segment.rights };
        vmcs.set(GuestEs.plus(index), segment.selector.into());
        vmcs.set(GuestEsBase.plus(index), segment.base);
        vmcs.set(GuestEsLimit.plus(index), segment.limit.into());
        vmcs.set(GuestEsRights.plus(index), rights.into());
    }
    Ok(vmcs)
}

fn of_vmx(u: &mut Unstructured<'_>) -> Result<Case> {
    // VMXON [RAX]; VMPTRLD [RAX+8]; VMLAUNCH; behind the exit VMRESUME, and JMP to it.
    let mut case = begin(&[
        0xf3, 0x0f, 0xc7, 0x30, 0x0f, 0xc7, 0x70, 0x08, 0x0f, 0x01, 0xc2, 0xf4, 0x0f, 0x01, 0xc3, 0xeb, 0xfb,
    ]);
    case.offered.vendor = Vendor::Intel;
    case.state.cr0 |= cr0::NE;
    case.state.cr4 |= cr4::VMXE;
    case.state.tr.rights = 0x8b;
    case.state.gpr[reg::RAX] = POINTERS;
    case.ram[REGION as usize..][..4].copy_from_slice(&REVISION.to_le_bytes());
    let shadow = REVISION | satori_vmx::capability::SHADOW;
    case.ram[SHADOW as usize..][..4].copy_from_slice(&shadow.to_le_bytes());
    for (at, pointer) in [(POINTERS, REGION), (POINTERS + 8, BLOCK)] {
        case.ram[at as usize..][..8].copy_from_slice(&pointer.to_le_bytes());
    }
    let mut vmcs = vmcs(u, &case.state)?;
    if u.ratio(1, 4)? {
        vmcs.set(Field::EntryInterruption, 1 << 31 | u64::from(u.arbitrary::<u16>()? & 0xfff));
        vmcs.set(Field::EntryInstructionLength, u.int_in_range(0..=15)?);
    }
    for _ in 0..u.int_in_range(0..=2)? {
        let field = *u.choose(Field::ALL)?;
        let value = value(u, vmcs.get(field))?;
        vmcs.set(field, value);
    }
    let region = vmcs.to_region(0);
    case.ram[BLOCK as usize..][..region.len()].copy_from_slice(&region);
    end(u, &mut case)?;
    Ok(case)
}
