//! Descriptor-table registers, and instructions that look at descriptors (SDM 2.4, 5.10).

use iced_x86::Instruction;
use satori_defs::x86::{cr4, rflags, vector};
use satori_engine::Exception;
use satori_state::{DescriptorTable, Segment};

use super::descriptor::{Descriptor, null, rpl, selector_fault, system_type, unusable};
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};
use crate::mmu::canonical;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Lgdt => |cpu, insn| load_table(cpu, insn, |cpu| &mut cpu.state.gdtr),
    Lidt => |cpu, insn| load_table(cpu, insn, |cpu| &mut cpu.state.idtr),
    Sgdt => |cpu, insn| store_table(cpu, insn, cpu.state.gdtr),
    Sidt => |cpu, insn| store_table(cpu, insn, cpu.state.idtr),
    Lldt => lldt,
    Ltr => ltr,
    Sldt => |cpu, insn| store_selector(cpu, insn, cpu.state.ldtr),
    Str => |cpu, insn| store_selector(cpu, insn, cpu.state.tr),
    Lar => lar,
    Lsl => lsl,
    Verr => |cpu, insn| verify(cpu, insn, Descriptor::readable),
    Verw => |cpu, insn| verify(cpu, insn, Descriptor::writable),
});

impl Cpu {
    /// Refuses with #GP(0) outside privilege level 0.
    pub(crate) fn require_supervisor(&mut self) -> Exec<()> {
        if self.cpl() == 0 { Ok(()) } else { Err(self.raise(Exception::gp(0))) }
    }

    /// Refuses with #GP(0) outside privilege level 0 under user-mode instruction prevention.
    pub(crate) fn require_no_umip(&mut self) -> Exec<()> {
        if self.state.cr4 & cr4::UMIP != 0 && self.cpl() != 0 {
            return Err(self.raise(Exception::gp(0)));
        }
        Ok(())
    }

    /// Refuses with #UD where selectors are paragraphs.
    pub(crate) fn require_selectors(&mut self) -> Exec<()> {
        if self.paragraph_selectors() { Err(self.raise(Exception::ud())) } else { Ok(()) }
    }
}

fn load_table(cpu: &mut Cpu, insn: &Instruction, register: fn(&mut Cpu) -> &mut DescriptorTable) -> Exec<()> {
    cpu.require_supervisor()?;
    let linear = cpu.ea(insn, 0)?;
    let limit: u16 = cpu.read(linear)?;
    let base = if cpu.derived.code64 {
        cpu.read(linear.wrapping_add(2))?
    } else {
        let base: u32 = cpu.read(linear.wrapping_add(2))?;
        u64::from(if operand16(insn) { base & 0xff_ffff } else { base })
    };
    if !canonical(base) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    *register(cpu) = DescriptorTable { base, limit };
    Ok(())
}

/// The 16-bit forms, which load 24 bits of base.
fn operand16(insn: &Instruction) -> bool {
    use iced_x86::Code;
    matches!(insn.code(), Code::Lgdt_m1632_16 | Code::Lidt_m1632_16)
}

/// SGDT and SIDT. The 16-bit forms store all 32 bits of the base, as processors since the 386 do.
fn store_table(cpu: &mut Cpu, insn: &Instruction, register: DescriptorTable) -> Exec<()> {
    cpu.require_no_umip()?;
    let linear = cpu.ea_write(insn, 0)?;
    let size = if cpu.derived.code64 { 8 } else { 4 };
    // Both parts count as one operand of doublewords (SDM table 6-7).
    cpu.require_alignment(linear, 4)?;
    cpu.unaligned(|cpu| {
        cpu.probe_write(linear, 2 + u64::from(size))?;
        cpu.write(linear, register.limit)?;
        cpu.write_sized(linear.wrapping_add(2), size, register.base)
    })
}

fn store_selector(cpu: &mut Cpu, insn: &Instruction, register: Segment) -> Exec<()> {
    cpu.require_selectors()?;
    cpu.require_no_umip()?;
    cpu.set_operand(insn, 0, register.selector.into())
}

/// The descriptor that LLDT or LTR loads: in the GDT, of one of `types`, present.
fn system_segment(cpu: &mut Cpu, selector: u16, types: &[u32], busy: bool) -> Exec<Segment> {
    let refused = selector_fault(vector::GP, selector, 0);
    if selector & 4 != 0 {
        return Err(cpu.raise(refused));
    }
    let mut found = cpu.require_descriptor(selector, vector::GP, 0)?;
    if !found.descriptor.system() || !types.contains(&found.descriptor.kind()) {
        return Err(cpu.raise(refused));
    }
    if !found.descriptor.present() {
        return Err(cpu.raise(selector_fault(vector::NP, selector, 0)));
    }
    let high = if cpu.state.long_mode() { cpu.descriptor_high(selector)? } else { 0 };
    let segment = found.descriptor.segment(selector, high);
    if !canonical(segment.base) {
        return Err(cpu.raise(refused));
    }
    if busy {
        cpu.mark_descriptor(&mut found, 2)?;
    }
    Ok(Segment { rights: found.descriptor.rights(), ..segment })
}

fn lldt(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_selectors()?;
    cpu.require_supervisor()?;
    let selector = cpu.operand(insn, 0)? as u16;
    cpu.state.ldtr = if null(selector) {
        unusable(selector, 0)
    } else {
        system_segment(cpu, selector, &[system_type::LDT], false)?
    };
    Ok(())
}

fn ltr(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    cpu.require_selectors()?;
    cpu.require_supervisor()?;
    let selector = cpu.operand(insn, 0)? as u16;
    if null(selector) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    let types: &[u32] =
        if cpu.state.long_mode() { &[system_type::TSS] } else { &[system_type::TSS, system_type::TSS16] };
    cpu.state.tr = system_segment(cpu, selector, types, true)?;
    Ok(())
}

/// The descriptor that LAR, LSL, VERR or VERW asks about, if it exists and may be seen.
fn visible(cpu: &mut Cpu, insn: &Instruction, op: u32) -> Exec<Option<Descriptor>> {
    cpu.require_selectors()?;
    let selector = cpu.operand(insn, op)? as u16;
    if null(selector) {
        return Ok(None);
    }
    let Some(found) = cpu.find_descriptor(selector)? else { return Ok(None) };
    let descriptor = found.descriptor;
    let allowed =
        descriptor.conforming() || (cpu.cpl() <= descriptor.dpl() && rpl(selector) <= descriptor.dpl());
    Ok(allowed.then_some(descriptor))
}

fn set_zf(cpu: &mut Cpu, zf: bool) {
    let bits = cpu.flags.bits() & !rflags::ZF | if zf { rflags::ZF } else { 0 };
    cpu.flags.set_bits(bits);
}

fn verify(cpu: &mut Cpu, insn: &Instruction, fits: fn(Descriptor) -> bool) -> Exec<()> {
    let fits = visible(cpu, insn, 0)?.is_some_and(fits);
    set_zf(cpu, fits);
    Ok(())
}

/// LAR's types of system descriptors (SDM volume 2, table 3-52).
fn lar_type(kind: u32, long: bool) -> bool {
    use system_type::*;
    match kind {
        LDT | TSS | TSS_BUSY | CALL_GATE => true,
        TSS16 | TSS16_BUSY | CALL_GATE16 | TASK_GATE => !long,
        _ => false,
    }
}

/// LSL's types of system descriptors (SDM volume 2, table 3-54): those with a limit.
fn lsl_type(kind: u32, long: bool) -> bool {
    use system_type::*;
    match kind {
        LDT | TSS | TSS_BUSY => true,
        TSS16 | TSS16_BUSY => !long,
        _ => false,
    }
}

/// Bits of a descriptor's second word that LAR shows. Bits 19:16, undefined by the manual, are
/// those of the limit, as on real processors.
const LAR_MASK: u64 = 0x00ff_ff00;

fn inspect(
    cpu: &mut Cpu,
    insn: &Instruction,
    valid: fn(u32, bool) -> bool,
    result: fn(Descriptor) -> u64,
) -> Exec<()> {
    let long = cpu.state.long_mode();
    let seen = visible(cpu, insn, 1)?.filter(|d| !d.system() || valid(d.kind(), long));
    if let Some(descriptor) = seen {
        cpu.set_reg(insn.op0_register(), result(descriptor));
    }
    set_zf(cpu, seen.is_some());
    Ok(())
}

fn lar(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    inspect(cpu, insn, lar_type, |descriptor| descriptor.0 >> 32 & LAR_MASK)
}

fn lsl(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    inspect(cpu, insn, lsl_type, |descriptor| descriptor.limit().into())
}
