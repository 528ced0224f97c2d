//! CLC, STC, CMC, CLD, STD, LAHF, SAHF and SALC; NOP and the hints that do nothing.

use iced_x86::{Instruction, Mnemonic, Register};
use satori_defs::x86::rflags;

use crate::cpu::{Cpu, Exec, Handler};
use crate::flags::Flags;

/// Sets ZF only.
pub fn set_zf(flags: &mut Flags, zero: bool) {
    let others = flags.bits() & !rflags::ZF;
    flags.set_bits(others | if zero { rflags::ZF } else { 0 });
}

/// Sets CF only.
#[inline]
pub fn set_cf(flags: &mut Flags, carry: bool) {
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

pub fn handler(insn: &Instruction) -> Option<Handler> {
    Some(match insn.mnemonic() {
        Mnemonic::Clc => clc,
        Mnemonic::Stc => stc,
        Mnemonic::Cmc => cmc,
        Mnemonic::Cld => cld,
        Mnemonic::Std => std,
        Mnemonic::Lahf => lahf,
        Mnemonic::Sahf => sahf,
        Mnemonic::Salc => salc,
        // Without CET, ENDBR and RDSSP are NOPs. No hint touches memory or faults.
        Mnemonic::Nop
        | Mnemonic::Endbr32
        | Mnemonic::Endbr64
        | Mnemonic::Rdsspd
        | Mnemonic::Rdsspq
        | Mnemonic::Reservednop
        | Mnemonic::Prefetch
        | Mnemonic::Prefetchnta
        | Mnemonic::Prefetcht0
        | Mnemonic::Prefetcht1
        | Mnemonic::Prefetcht2
        | Mnemonic::Prefetchw
        | Mnemonic::Prefetchwt1
        | Mnemonic::Prefetchit0
        | Mnemonic::Prefetchit1
        | Mnemonic::Cldemote => nop,
        _ => return None,
    })
}
