//! Scalar floating point: moves, signs and selections, which compute nothing.

use satori_arm_isa::Op;

use super::Done;
use super::integer::holds;
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};
use crate::float::{expand32, expand64};

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    let raw_d = (i.raw & 31) as u8;
    let raw = ((i.raw >> 5 & 31) as u8, (i.raw >> 16 & 31) as u8);
    let found: Handler = match op {
        // From a general register into one of vectors.
        Op::FmovFromGeneral | Op::FmovTopFromGeneral => {
            i.rd = raw_d;
            return Some(if op == Op::FmovFromGeneral { from_general } else { top_from_general });
        }
        // To a general register.
        Op::FmovToGeneral | Op::FmovTopToGeneral => {
            i.rn = raw.0;
            return Some(if op == Op::FmovToGeneral { to_general } else { top_to_general });
        }
        Op::FmovReg => unary::<0>,
        Op::Fabs => unary::<1>,
        Op::Fneg => unary::<2>,
        Op::Fcsel => fcsel,
        Op::FmovImm => {
            let immediate = i.bits(20, 13);
            i.imm = if i.bit(22) { expand64(immediate) } else { expand32(immediate).into() };
            fmov_imm
        }
        _ => return None,
    };
    (i.rd, i.rn, i.rm) = (raw_d, raw.0, raw.1);
    Some(found)
}

fn from_general(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.x(i.rn);
    cpu.set_v(i.rd, if i.bit(31) { value } else { value & 0xffff_ffff }.into());
    Ok(Flow::Next)
}

fn top_from_general(cpu: &mut Cpu, i: &Insn) -> Done {
    let low = cpu.v(i.rd) & u128::from(u64::MAX);
    cpu.set_v(i.rd, low | u128::from(cpu.x(i.rn)) << 64);
    Ok(Flow::Next)
}

fn to_general(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.v(i.rn) as u64;
    cpu.set_x(i.rd, if i.bit(31) { value } else { value & 0xffff_ffff });
    Ok(Flow::Next)
}

fn top_to_general(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_x(i.rd, (cpu.v(i.rn) >> 64) as u64);
    Ok(Flow::Next)
}

/// FMOV, FABS, FNEG: NaNs go through as they are.
fn unary<const KIND: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.v(i.rn) as u64;
    let (mask, sign) = if i.bit(22) { (u64::MAX, 1 << 63) } else { (0xffff_ffff, 1 << 31) };
    let result = match KIND {
        0 => value,
        1 => value & !sign,
        _ => value ^ sign,
    };
    cpu.set_v(i.rd, (result & mask).into());
    Ok(Flow::Next)
}

fn fcsel(cpu: &mut Cpu, i: &Insn) -> Done {
    let from = if holds(cpu.s.pstate.nzcv, i.bits(15, 12)) { i.rn } else { i.rm };
    let value = cpu.v(from) as u64;
    cpu.set_v(i.rd, if i.bit(22) { value } else { value & 0xffff_ffff }.into());
    Ok(Flow::Next)
}

fn fmov_imm(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_v(i.rd, i.imm.into());
    Ok(Flow::Next)
}
