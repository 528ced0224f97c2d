//! VGATHER and VPGATHER: elements from addresses that a vector of indices gives.
//!
//! Elements are loaded from the first to the last. One that faults leaves those before it loaded
//! and out of the mask, so that the instruction goes on with it (SDM volume 2, VPGATHERDD). An
//! element that needs the machine changes nothing: its answer comes when all is done again.

use iced_x86::{Instruction, Register};
use satori_state::Ymm;

use super::operand::{avx, dwords, from_dwords, from_qwords, qwords, register, set};
use crate::cpu::{Cpu, Exec, Stop};
use crate::host::Scalar;
use crate::insn::{Row, rows};
use crate::operands::truncate;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Vgatherdps | Vpgatherdd => dwords_by_dwords,
    Vgatherqps | Vpgatherqd => dwords_by_qwords,
    Vgatherdpd | Vpgatherdq => qwords_by_dwords,
    Vgatherqpd | Vpgatherqq => qwords_by_qwords,
});

fn dword_indices(value: Ymm) -> [i64; 8] {
    dwords(value).map(|index| i64::from(index as i32))
}

fn qword_indices(value: Ymm) -> [i64; 8] {
    let [a, b, c, d] = qwords(value).map(|index| index as i64);
    [a, b, c, d, 0, 0, 0, 0]
}

/// How many elements of `size` bytes a register has.
fn places(r: Register, size: usize) -> usize {
    r.size() / size
}

fn dwords_by_dwords(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let count = places(insn.op0_register(), 4);
    gather_dwords(cpu, insn, dword_indices, count)
}

fn dwords_by_qwords(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let count = places(insn.memory_index(), 8);
    gather_dwords(cpu, insn, qword_indices, count)
}

fn qwords_by_dwords(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let count = places(insn.op0_register(), 8);
    gather_qwords(cpu, insn, dword_indices, count)
}

fn qwords_by_qwords(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let count = places(insn.op0_register(), 8);
    gather_qwords(cpu, insn, qword_indices, count)
}

fn gather_dwords(cpu: &mut Cpu, insn: &Instruction, indices: fn(Ymm) -> [i64; 8], count: usize) -> Exec<()> {
    avx(cpu)?;
    let indices = indices(register(cpu, insn.memory_index()));
    let (mut result, mut mask) =
        (dwords(register(cpu, insn.op0_register())), dwords(register(cpu, insn.op2_register())));
    for i in 0..count {
        if mask[i] >> 31 != 0 {
            match element(cpu, insn, indices[i]) {
                Ok(value) => result[i] = value,
                Err(stop) => return interrupted(cpu, insn, from_dwords(result), from_dwords(mask), stop),
            }
        }
        mask[i] = 0;
    }
    result[count..].fill(0);
    finish(cpu, insn, from_dwords(result), Ymm::default());
    Ok(())
}

fn gather_qwords(cpu: &mut Cpu, insn: &Instruction, indices: fn(Ymm) -> [i64; 8], count: usize) -> Exec<()> {
    avx(cpu)?;
    let indices = indices(register(cpu, insn.memory_index()));
    let (mut result, mut mask) =
        (qwords(register(cpu, insn.op0_register())), qwords(register(cpu, insn.op2_register())));
    for i in 0..count {
        if mask[i] >> 63 != 0 {
            match element(cpu, insn, indices[i]) {
                Ok(value) => result[i] = value,
                Err(stop) => return interrupted(cpu, insn, from_qwords(result), from_qwords(mask), stop),
            }
        }
        mask[i] = 0;
    }
    result[count..].fill(0);
    finish(cpu, insn, from_qwords(result), Ymm::default());
    Ok(())
}

/// A fault keeps what was done, and what only the end would clear; whatever else stops the
/// instruction keeps nothing.
#[cold]
fn interrupted(cpu: &mut Cpu, insn: &Instruction, result: Ymm, mask: Ymm, stop: Stop) -> Exec<()> {
    if stop == Stop::Fault {
        finish(cpu, insn, result, mask);
    }
    Err(stop)
}

fn finish(cpu: &mut Cpu, insn: &Instruction, result: Ymm, mask: Ymm) {
    set(cpu, insn.op0_register(), result, true);
    set(cpu, insn.op2_register(), mask, true);
}

/// The element with `index`; its alignment is not checked.
fn element<T: Scalar>(cpu: &mut Cpu, insn: &Instruction, index: i64) -> Exec<T> {
    let base = insn.memory_base();
    let bits = match base {
        // Without a base there always is a displacement, as long as the address.
        Register::None => 8 * insn.memory_displ_size(),
        base => 8 * base.size() as u32,
    };
    let base = if base == Register::None { 0 } else { cpu.reg(base) };
    let scaled = (index as u64).wrapping_mul(insn.memory_index_scale().into());
    let offset = truncate(base.wrapping_add(scaled).wrapping_add(insn.memory_displacement64()), bits);
    let linear = cpu.segment_linear(insn.memory_segment().number(), offset, T::SIZE, false)?;
    cpu.unaligned(|cpu| cpu.read(linear))
}
