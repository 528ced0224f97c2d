//! Loads and stores of structures: LD1 to LD4, ST1 to ST4, of whole registers, lanes, and replicated.

use satori_arm_isa::Op;

use super::Done;
use super::memory::{base, read_sized, write_sized};
use super::simd::{lane, set_lane};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    // Registers a structure, and how often structures of one register follow each other.
    let (elements, repeats) = match op {
        Op::St4x1 | Op::St4x1Post => (4, 1),
        Op::St1x4 | Op::St1x4Post => (1, 4),
        Op::St3x1 | Op::St3x1Post => (3, 1),
        Op::St1x3 | Op::St1x3Post => (1, 3),
        Op::St1x1 | Op::St1x1Post => (1, 1),
        Op::St2x1 | Op::St2x1Post => (2, 1),
        Op::St1x2 | Op::St1x2Post => (1, 2),
        Op::StLane | Op::StLanePost => (0, 0),
        _ => return None,
    };
    i.rn = (i.raw >> 5 & 31) as u8;
    i.imm = elements << 8 | repeats;
    Some(if elements == 0 { single } else { multiple })
}

/// What the base becomes: the register's value, or behind what was accessed.
fn post(cpu: &mut Cpu, i: &Insn, base: u64, bytes: u64) {
    if i.bit(23) {
        let by = if i.bits(20, 16) == 31 { bytes } else { cpu.x(i.rm) };
        cpu.set_x(i.rn, base.wrapping_add(by));
    }
}

fn multiple(cpu: &mut Cpu, i: &Insn) -> Done {
    let (elements, repeats) = ((i.imm >> 8) as usize, (i.imm & 255) as usize);
    let (size, load) = (i.bits(11, 10), i.bit(22));
    let bytes = if i.bit(30) { 16 } else { 8 };
    let first = (i.raw & 31) as usize;
    let start = base(cpu, i)?;
    let mut address = start;
    let lanes = bytes >> size;
    // All of it may be read before anything changes; what was loaded twice is the same.
    let mut loaded = cpu.s.v;
    for repeat in 0..repeats {
        for at in 0..lanes {
            for element in 0..elements {
                let register = (first + repeat + element) % 32;
                if load {
                    let value = read_sized(cpu, cpu.mode, address, size)?;
                    if at == 0 {
                        loaded[register] = 0;
                    }
                    set_lane(&mut loaded[register], size, at, value);
                } else {
                    let value = lane(cpu.s.v[register], size, at);
                    write_sized(cpu, cpu.mode, address, size, value)?;
                }
                address = address.wrapping_add(1 << size);
            }
        }
    }
    if load {
        cpu.s.v = loaded;
    }
    post(cpu, i, start, address.wrapping_sub(start));
    Ok(Flow::Next)
}

fn single(cpu: &mut Cpu, i: &Insn) -> Done {
    let (opcode, s, low) = (i.bits(15, 13), i.bits(12, 12), i.bits(11, 10));
    let elements = ((opcode & 1) << 1 | i.bits(21, 21)) + 1;
    let q = i.bits(30, 30);
    let first = (i.raw & 31) as usize;
    let start = base(cpu, i)?;
    let replicate = opcode >> 1 == 3;
    let (size, index) = match opcode >> 1 {
        0 => (0, q << 3 | s << 2 | low),
        1 => (1, q << 2 | s << 1 | low >> 1),
        2 if low & 1 == 0 => (2, q << 1 | s),
        2 => (3, q),
        _ => (low, 0),
    };
    let mut loaded = cpu.s.v;
    for element in 0..elements {
        let register = (first + element as usize) % 32;
        let address = start.wrapping_add(u64::from(element) << size);
        if !i.bit(22) {
            let value = lane(cpu.s.v[register], size, index as usize);
            write_sized(cpu, cpu.mode, address, size, value)?;
            continue;
        }
        let value = read_sized(cpu, cpu.mode, address, size)?;
        if replicate {
            loaded[register] = 0;
            for at in 0..(8 << q) >> size {
                set_lane(&mut loaded[register], size, at, value);
            }
        } else {
            set_lane(&mut loaded[register], size, index as usize, value);
        }
    }
    if i.bit(22) {
        cpu.s.v = loaded;
    }
    post(cpu, i, start, u64::from(elements) << size);
    Ok(Flow::Next)
}
