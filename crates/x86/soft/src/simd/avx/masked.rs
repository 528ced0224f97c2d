//! VMASKMOVPS, VMASKMOVPD, VPMASKMOVD and VPMASKMOVQ: only the elements whose mask has its sign
//! set touch memory, so only they can fault.

use iced_x86::Instruction;

use super::operand::{avx, dwords, from_dwords, from_qwords, qwords, register, set, wide};
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows, to_memory};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Vmaskmovps | Vpmaskmovd if to_memory(insn) => store::<4>,
    Vmaskmovps | Vpmaskmovd => load_dwords,
    Vmaskmovpd | Vpmaskmovq if to_memory(insn) => store::<8>,
    Vmaskmovpd | Vpmaskmovq => load_qwords,
});

/// The offset and the number of the elements in a half or in both, of `size` bytes.
fn elements(insn: &Instruction, size: usize) -> std::ops::Range<usize> {
    0..(if wide(insn) { 32 } else { 16 }) / size
}

/// The address of element `i` of the memory operand.
fn address(cpu: &mut Cpu, insn: &Instruction, i: usize, size: usize, write: bool) -> Exec<u64> {
    let offset = cpu.offset(insn).wrapping_add((i * size) as u64);
    cpu.segment_linear(insn.memory_segment().number(), offset, size as u64, write)
}

fn load_dwords(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let mask = dwords(register(cpu, insn.op1_register()));
    let mut result = [0; 8];
    for i in elements(insn, 4).filter(|i| mask[*i] >> 31 != 0) {
        let linear = address(cpu, insn, i, 4, false)?;
        result[i] = cpu.unaligned(|cpu| cpu.read::<u32>(linear))?;
    }
    set(cpu, insn.op0_register(), from_dwords(result), wide(insn));
    Ok(())
}

fn load_qwords(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let mask = qwords(register(cpu, insn.op1_register()));
    let mut result = [0; 4];
    for i in elements(insn, 8).filter(|i| mask[*i] >> 63 != 0) {
        let linear = address(cpu, insn, i, 8, false)?;
        result[i] = cpu.unaligned(|cpu| cpu.read::<u64>(linear))?;
    }
    set(cpu, insn.op0_register(), from_qwords(result), wide(insn));
    Ok(())
}

fn store<const SIZE: usize>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    avx(cpu)?;
    let mask = register(cpu, insn.op1_register());
    let data = register(cpu, insn.op2_register());
    let chosen = |i: usize| match SIZE {
        4 => dwords(mask)[i] >> 31 != 0,
        _ => qwords(mask)[i] >> 63 != 0,
    };
    // Every element is looked at before one is written.
    for i in elements(insn, SIZE).filter(|i| chosen(*i)) {
        let linear = address(cpu, insn, i, SIZE, true)?;
        cpu.probe_write(linear, SIZE as u64)?;
    }
    for i in elements(insn, SIZE).filter(|i| chosen(*i)) {
        let linear = address(cpu, insn, i, SIZE, true)?;
        cpu.unaligned(|cpu| match SIZE {
            4 => cpu.write(linear, dwords(data)[i]),
            _ => cpu.write(linear, qwords(data)[i]),
        })?;
    }
    Ok(())
}
