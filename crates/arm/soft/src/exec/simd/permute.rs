//! Copies, permutations, tables and immediates.

use satori_arm_isa::Op;

use super::lanes::{Shape, lane, set_lane, whole};
use super::op_of;
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};
use crate::exec::Done;

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    Some(match op {
        Op::DupElement => dup_element,
        Op::DupScalar => dup_scalar,
        Op::DupGeneral => dup_general,
        Op::InsGeneral => ins_general,
        Op::InsElement => ins_element,
        Op::Umov => umov,
        Op::Smov => smov,
        Op::Tbl => table::<false>,
        Op::Tbx => table::<true>,
        Op::Uzp1 | Op::Uzp2 | Op::Trn1 | Op::Trn2 | Op::Zip1 | Op::Zip2 => permute,
        Op::Ext => ext,
        Op::Modified => {
            let half = modified(i.bits(29, 29), i.bits(15, 12), i.bits(18, 16) << 5 | i.bits(9, 5));
            i.imm = half;
            match (i.bits(15, 12), i.bit(29)) {
                (1 | 3 | 5 | 7 | 9 | 11, false) => immediate::<1>,
                (1 | 3 | 5 | 7 | 9 | 11, true) => immediate::<2>,
                (14 | 15, _) => immediate::<0>,
                (_, true) => {
                    i.imm = !half;
                    immediate::<0>
                }
                _ => immediate::<0>,
            }
        }
        _ => return None,
    })
}

/// Size and number of the lane that imm5 names.
fn imm5(i: &Insn) -> (u32, usize) {
    let imm5 = i.bits(20, 16);
    let size = imm5.trailing_zeros();
    (size, (imm5 >> (size + 1)) as usize)
}

fn replicate(cpu: &mut Cpu, i: &Insn, size: u32, value: u64) -> Done {
    let mut result = 0;
    for at in 0..16 >> size {
        set_lane(&mut result, size, at, value);
    }
    cpu.set_v(i.rd, whole(i, result));
    Ok(Flow::Next)
}

fn dup_element(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, at) = imm5(i);
    let value = lane(cpu.v(i.rn), size, at);
    replicate(cpu, i, size, value)
}

fn dup_scalar(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, at) = imm5(i);
    cpu.set_v(i.rd, lane(cpu.v(i.rn), size, at).into());
    Ok(Flow::Next)
}

fn dup_general(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.x(i.rn);
    replicate(cpu, i, imm5(i).0, value)
}

fn ins_general(cpu: &mut Cpu, i: &Insn) -> Done {
    let ((size, at), value) = (imm5(i), cpu.x(i.rn));
    set_lane(&mut cpu.s.v[usize::from(i.rd & 31)], size, at, value);
    Ok(Flow::Next)
}

fn ins_element(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, at) = imm5(i);
    let value = lane(cpu.v(i.rn), size, (i.bits(14, 11) >> size) as usize);
    set_lane(&mut cpu.s.v[usize::from(i.rd & 31)], size, at, value);
    Ok(Flow::Next)
}

fn umov(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, at) = imm5(i);
    let value = lane(cpu.v(i.rn), size, at);
    cpu.set_x(i.rd, value);
    Ok(Flow::Next)
}

fn smov(cpu: &mut Cpu, i: &Insn) -> Done {
    let (size, at) = imm5(i);
    let value = super::lanes::number(lane(cpu.v(i.rn), size, at), 8 << size, true) as u64;
    cpu.set_x(i.rd, if i.bit(30) { value } else { value & 0xffff_ffff });
    Ok(Flow::Next)
}

fn table<const KEEP: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (indices, old) = (cpu.v(i.rm).to_le_bytes(), cpu.v(i.rd).to_le_bytes());
    let registers = i.bits(14, 13) as usize + 1;
    let mut result = [0; 16];
    for (at, result) in result.iter_mut().enumerate() {
        let index = usize::from(indices[at]);
        *result = match index < 16 * registers {
            true => cpu.v((usize::from(i.rn) + index / 16) as u8 % 32).to_le_bytes()[index % 16],
            false if KEEP => old[at],
            false => 0,
        };
    }
    cpu.set_v(i.rd, whole(i, u128::from_le_bytes(result)));
    Ok(Flow::Next)
}

fn permute(cpu: &mut Cpu, i: &Insn) -> Done {
    let (shape, n, m) = (Shape::of(i), cpu.v(i.rn), cpu.v(i.rm));
    let (lanes, size) = (shape.lanes, shape.size);
    let mut result = 0;
    for at in 0..lanes {
        // From which register's which lane.
        let (second, from) = match op_of(i) {
            Op::Uzp1 => (2 * at >= lanes, 2 * at % lanes),
            Op::Uzp2 => (2 * at >= lanes, 2 * at % lanes + 1),
            Op::Trn1 => (at % 2 != 0, at & !1),
            Op::Trn2 => (at % 2 != 0, at | 1),
            Op::Zip1 => (at % 2 != 0, at / 2),
            _ => (at % 2 != 0, lanes / 2 + at / 2),
        };
        set_lane(&mut result, size, at, lane(if second { m } else { n }, size, from));
    }
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

fn ext(cpu: &mut Cpu, i: &Insn) -> Done {
    let (n, m, by) = (cpu.v(i.rn), cpu.v(i.rm), 8 * i.bits(14, 11));
    let result = match i.bit(30) {
        true if by == 0 => n,
        true => n >> by | m << (128 - by),
        false => (u128::from(n as u64) | m << 64) >> by & u128::from(u64::MAX),
    };
    cpu.set_v(i.rd, result);
    Ok(Flow::Next)
}

/// AdvSIMDExpandImm: 64 bits of op, cmode and imm8, before MVNI and BIC invert them.
fn modified(op: u32, cmode: u32, imm8: u32) -> u64 {
    let byte = u64::from(imm8);
    let twice = |value: u64| value | value << 32;
    let four = |value: u64| twice(value | value << 16);
    match cmode {
        0..=7 => twice(byte << (8 * (cmode >> 1))),
        8..=11 => four(byte << (8 * (cmode >> 1 & 1))),
        12 => twice(byte << 8 | 0xff),
        13 => twice(byte << 16 | 0xffff),
        14 if op == 0 => byte * 0x0101_0101_0101_0101,
        14 => (0..8).filter(|bit| byte >> bit & 1 != 0).fold(0, |sum, bit| sum | 0xff << (8 * bit)),
        _ if op == 0 => twice(u64::from(crate::float::expand32(imm8))),
        _ => crate::float::expand64(imm8),
    }
}

/// The immediate itself, ORR with it, or BIC.
fn immediate<const KIND: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (value, old) = (u128::from(i.imm) | u128::from(i.imm) << 64, cpu.v(i.rd));
    let result = match KIND {
        0 => value,
        1 => old | value,
        _ => old & !value,
    };
    cpu.set_v(i.rd, whole(i, result));
    Ok(Flow::Next)
}
