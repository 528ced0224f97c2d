//! Branches.

use satori_arm_isa::Op;

use super::integer::holds;
use super::{Done, sized, zero};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};

/// The signed offset in words of bits `high:low`, in bytes.
fn offset(i: &Insn, high: u32, low: u32) -> u64 {
    let width = high - low + 1;
    let up = 64 - width;
    ((u64::from(i.bits(high, low)) << up) as i64 >> (up - 2)) as u64
}

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    Some(match op {
        Op::B => {
            i.imm = offset(i, 25, 0);
            b
        }
        Op::Bl => {
            i.imm = offset(i, 25, 0);
            bl
        }
        Op::Cbz | Op::Cbnz => {
            i.imm = offset(i, 23, 5);
            i.rd = zero((i.raw & 31) as u8);
            if op == Op::Cbz { sized!(i, cbz::<false>) } else { sized!(i, cbz::<true>) }
        }
        Op::Tbz | Op::Tbnz => {
            i.imm = offset(i, 18, 5);
            i.rd = zero((i.raw & 31) as u8);
            i.ra = (i.bits(31, 31) << 5 | i.bits(23, 19)) as u8;
            if op == Op::Tbz { tbz::<false> } else { tbz::<true> }
        }
        Op::BCond => {
            i.imm = offset(i, 23, 5);
            match i.bits(3, 0) {
                0 => b_cond::<0>,
                1 => b_cond::<1>,
                2 => b_cond::<2>,
                3 => b_cond::<3>,
                4 => b_cond::<4>,
                5 => b_cond::<5>,
                6 => b_cond::<6>,
                7 => b_cond::<7>,
                8 => b_cond::<8>,
                9 => b_cond::<9>,
                10 => b_cond::<10>,
                11 => b_cond::<11>,
                12 => b_cond::<12>,
                13 => b_cond::<13>,
                _ => b,
            }
        }
        Op::Br | Op::Ret => br,
        Op::Blr => blr,
        _ => return None,
    })
}

#[inline(always)]
fn go(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.s.pc = cpu.s.pc.wrapping_add(i.imm);
    Ok(Flow::Jump)
}

fn b(cpu: &mut Cpu, i: &Insn) -> Done {
    go(cpu, i)
}

fn bl(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_x(30, cpu.s.pc.wrapping_add(4));
    go(cpu, i)
}

fn cbz<const NOT: bool, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    if (cpu.r::<W>(i.rd) == 0) != NOT { go(cpu, i) } else { Ok(Flow::Next) }
}

fn tbz<const SET: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    if (cpu.x(i.rd) >> (i.ra & 63) & 1 != 0) == SET { go(cpu, i) } else { Ok(Flow::Next) }
}

fn b_cond<const CODE: u32>(cpu: &mut Cpu, i: &Insn) -> Done {
    if holds(cpu.s.pstate.nzcv, CODE) { go(cpu, i) } else { Ok(Flow::Next) }
}

fn br(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.s.pc = cpu.x(i.rn);
    Ok(Flow::Jump)
}

fn blr(cpu: &mut Cpu, i: &Insn) -> Done {
    let target = cpu.x(i.rn);
    cpu.set_x(30, cpu.s.pc.wrapping_add(4));
    cpu.s.pc = target;
    Ok(Flow::Jump)
}
