//! CLC, STC, CMC, CLD, STD, LAHF, SAHF and SALC; NOP and the hints that do nothing.

use iced_x86::{Instruction, Register};
use satori_defs::x86::rflags;

use crate::cpu::{Cpu, Exec};
use crate::flags::Flags;
use crate::insn::{Row, rows};

/// Sets ZF only.
pub(super) fn set_zf(flags: &mut Flags, zero: bool) {
    let others = flags.bits() & !rflags::ZF;
    flags.set_bits(others | if zero { rflags::ZF } else { 0 });
}

/// Sets CF only.
#[inline]
pub(super) fn set_cf(flags: &mut Flags, carry: bool) {
    flags.set_cf_of(carry, flags.of());
}

fn clc(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    set_cf(&mut cpu.flags, false);
    Ok(())
}

fn stc(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    set_cf(&mut cpu.flags, true);
    Ok(())
}

fn cmc(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    let carry = cpu.flags.cf();
    set_cf(&mut cpu.flags, !carry);
    Ok(())
}

fn cld(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.state.rflags &= !rflags::DF;
    Ok(())
}

fn std(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    cpu.state.rflags |= rflags::DF;
    Ok(())
}

/// The flags that AH exchanges with RFLAGS.
const IN_AH: u64 = rflags::SF | rflags::ZF | rflags::AF | rflags::PF | rflags::CF;

fn lahf(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    let bits = cpu.flags.bits() & IN_AH | rflags::FIXED;
    cpu.set_reg(Register::AH, bits);
    Ok(())
}

fn sahf(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    let kept = cpu.flags.bits() & !IN_AH;
    let taken = cpu.reg(Register::AH) & IN_AH;
    cpu.flags.set_bits(kept | taken);
    Ok(())
}

fn salc(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    let value = if cpu.flags.cf() { 0xff } else { 0 };
    cpu.set_reg(Register::AL, value);
    Ok(())
}

/// Neither NOP with an operand nor a prefetch touches memory.
fn nop(_cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    Ok(())
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Clc => clc,
    Stc => stc,
    Cmc => cmc,
    Cld => cld,
    Std => std,
    Lahf => lahf,
    Sahf => sahf,
    Salc => salc,
    // Without CET, ENDBR and RDSSP are NOPs. No hint touches memory or faults.
    Nop
    | Endbr32
    | Endbr64
    | Rdsspd
    | Rdsspq
    | Reservednop
    | Prefetch
    | Prefetchnta
    | Prefetcht0
    | Prefetcht1
    | Prefetcht2
    | Prefetchw
    | Prefetchwt1
    | Prefetchit0
    | Prefetchit1
    | Cldemote => nop,
});
