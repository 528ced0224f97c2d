//! Decimal arithmetic, which 64-bit code does not have: AAA, AAS, AAM, AAD, DAA, DAS. OF, and
//! after AAA and AAS also SF, ZF and PF, are undefined: they follow the result.

use iced_x86::{Instruction, Register};
use satori_defs::x86::{rflags, vector};
use satori_engine::Exception;

use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};

/// Sets AL, SF, ZF and PF by it, and CF and AF as told.
fn settle(cpu: &mut Cpu, al: u8, carry: bool, adjust: bool) {
    cpu.set_reg(Register::AL, al.into());
    cpu.flags.logic(al);
    let bits = cpu.flags.bits();
    let bit = |set: bool, flag: u64| if set { flag } else { 0 };
    cpu.flags.set_bits(bits | bit(carry, rflags::CF) | bit(adjust, rflags::AF));
}

/// DAA and DAS differ in the direction.
fn decimal(cpu: &mut Cpu, step: fn(u8, u8) -> u8, low_carries: fn(u8) -> bool) {
    let old = cpu.reg(Register::AL) as u8;
    let (old_carry, mut al, mut carry) = (cpu.flags.cf(), old, false);
    let adjust = old & 0xf > 9 || cpu.flags.af();
    if adjust {
        carry = old_carry || low_carries(old);
        al = step(al, 6);
    }
    if old > 0x99 || old_carry {
        al = step(al, 0x60);
        carry = true;
    }
    settle(cpu, al, carry, adjust);
}

fn daa(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    decimal(cpu, u8::wrapping_add, |al| al > 0xff - 6);
    Ok(())
}

fn das(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    decimal(cpu, u8::wrapping_sub, |al| al < 6);
    Ok(())
}

/// AAA and AAS: the whole of AX moves by `delta`.
fn unpacked(cpu: &mut Cpu, delta: u16) {
    let ax = cpu.reg(Register::AX) as u16;
    let adjust = ax & 0xf > 9 || cpu.flags.af();
    let ax = if adjust { ax.wrapping_add(delta) } else { ax };
    cpu.set_reg(Register::AX, ax.into());
    settle(cpu, ax as u8 & 0xf, adjust, adjust);
}

fn aaa(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    unpacked(cpu, 0x106);
    Ok(())
}

fn aas(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    unpacked(cpu, 0x106u16.wrapping_neg());
    Ok(())
}

fn aam(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (al, base) = (cpu.reg(Register::AL) as u8, insn.immediate8());
    let Some(tens) = al.checked_div(base) else {
        return Err(cpu.raise(Exception::new(vector::DE)));
    };
    cpu.set_reg(Register::AH, tens.into());
    settle(cpu, al % base, false, false);
    Ok(())
}

fn aad(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (al, ah) = (cpu.reg(Register::AL) as u8, cpu.reg(Register::AH) as u8);
    cpu.set_reg(Register::AH, 0);
    settle(cpu, al.wrapping_add(ah.wrapping_mul(insn.immediate8())), false, false);
    Ok(())
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Aaa => aaa,
    Aas => aas,
    Aam => aam,
    Aad => aad,
    Daa => daa,
    Das => das,
});
