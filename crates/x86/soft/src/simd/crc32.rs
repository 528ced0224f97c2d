//! CRC32, the one SSE4.2 instruction on general registers: no CR0 or CR4 bit forbids it.

use iced_x86::Instruction;

use super::native;
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Crc32 if is_x86_feature_detected!("sse4.2") => crc32,
});

fn crc32(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let data = cpu.operand(insn, 1)?;
    let crc = cpu.reg(insn.op0_register());
    let crc = native::crc32(crc, data, cpu.operand_size(insn, 1));
    cpu.set_reg(insn.op0_register(), crc);
    Ok(())
}
