//! FXSAVE, FXRSTOR, LDMXCSR and STMXCSR.

use iced_x86::{Code, Instruction};
use satori_defs::fpu::fxsave;

use super::legacy;
use super::operand::{load_bytes, require_aligned, sse, store_address, store_bytes};
use crate::cpu::{Cpu, Exec};
use crate::fpu;
use crate::insn::{Row, rows};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Ldmxcsr => ldmxcsr,
    Stmxcsr => stmxcsr,
    Fxsave | Fxsave64 => save,
    Fxrstor | Fxrstor64 => restore,
});

fn ldmxcsr(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let linear = cpu.ea(insn, 0)?;
    let value = cpu.read::<u32>(linear)?;
    set_mxcsr(cpu, value)
}

fn stmxcsr(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    cpu.write(linear, cpu.state.fpu.mxcsr)
}

fn set_mxcsr(cpu: &mut Cpu, value: u32) -> Exec<()> {
    legacy::check_mxcsr(cpu, value)?;
    cpu.state.fpu.mxcsr = value;
    cpu.masks_loaded();
    Ok(())
}

/// Bytes of the area that are read and written; outside 64-bit code XMM8 to XMM15 stay out.
fn extent(cpu: &Cpu) -> usize {
    fxsave::XMM0 + 16 * legacy::registers(cpu)
}

/// REX.W: pointers of 64 bits.
fn wide(insn: &Instruction) -> bool {
    matches!(insn.code(), Code::Fxsave64_m512byte | Code::Fxrstor64_m512byte)
}

fn save(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    fpu::available(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    require_aligned(cpu, linear)?;
    let mut area = [0; fxsave::WRITTEN];
    legacy::put_x87(&mut area, &cpu.state.fpu, wide(insn));
    legacy::put_mxcsr(&mut area, &cpu.state.fpu);
    let extent = extent(cpu);
    legacy::put_xmm(&mut area[..extent], &cpu.state.fpu);
    // Of the bytes that are not written too, none may be out of reach.
    cpu.probe_write(linear, fxsave::SIZE as u64)?;
    store_bytes(cpu, linear, &area[..extent])
}

fn restore(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    fpu::available(cpu)?;
    let linear = cpu.ea(insn, 0)?;
    require_aligned(cpu, linear)?;
    // All of it is read, also what is not used.
    let mut area = [0; fxsave::SIZE];
    let extent = extent(cpu);
    load_bytes(cpu, linear, &mut area)?;
    set_mxcsr(cpu, legacy::mxcsr_of(&area))?;
    legacy::take_x87(&area, &mut cpu.state.fpu, wide(insn));
    legacy::take_xmm(&area[..extent], &mut cpu.state.fpu);
    cpu.masks_loaded();
    Ok(())
}
