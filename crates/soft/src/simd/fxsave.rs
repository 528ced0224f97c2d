//! FXSAVE, FXRSTOR, LDMXCSR and STMXCSR.

use iced_x86::{Code, Instruction, Mnemonic};
use satori_defs::fpu::{fxsave, mxcsr};
use satori_engine::Exception;

use super::operand::{load_bytes, require_aligned, sse, store_address, store_bytes};
use crate::cpu::{Cpu, Exec, Handler};
use crate::fpu;

/// The implementation of `insn`, if it is one of this file's.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    Some(match insn.mnemonic() {
        Mnemonic::Ldmxcsr => ldmxcsr,
        Mnemonic::Stmxcsr => stmxcsr,
        Mnemonic::Fxsave | Mnemonic::Fxsave64 => save,
        Mnemonic::Fxrstor | Mnemonic::Fxrstor64 => restore,
        _ => return None,
    })
}

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
    if value & !mxcsr::MASK != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    cpu.state.fpu.mxcsr = value;
    Ok(())
}

/// XMM registers in the area: 16 in 64-bit code, else 8.
fn registers(cpu: &Cpu) -> usize {
    if cpu.code64 { 16 } else { 8 }
}

/// Bytes of the area that are read and written; outside 64-bit code XMM8 to XMM15 stay out.
fn extent(cpu: &Cpu) -> usize {
    fxsave::XMM0 + 16 * registers(cpu)
}

fn put(area: &mut [u8; fxsave::WRITTEN], at: usize, bytes: &[u8]) {
    area[at..at + bytes.len()].copy_from_slice(bytes);
}

fn take<const N: usize>(area: &[u8; fxsave::WRITTEN], at: usize) -> [u8; N] {
    std::array::from_fn(|i| area[at + i])
}

/// Pointers of 64 bits with REX.W; else an offset of 32 and a selector, which is 0 as on
/// processors that deprecate FCS and FDS.
fn wide(insn: &Instruction) -> bool {
    matches!(insn.code(), Code::Fxsave64_m512byte | Code::Fxrstor64_m512byte)
}

fn save(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    fpu::available(cpu)?;
    let linear = store_address(cpu, insn, 0)?;
    require_aligned(cpu, linear)?;
    let mut area = [0; fxsave::WRITTEN];
    let state = &cpu.state.fpu;
    let pointer_mask = if wide(insn) { u64::MAX } else { 0xffff_ffff };
    put(&mut area, fxsave::FCW, &state.fcw.to_le_bytes());
    put(&mut area, fxsave::FSW, &state.fsw.to_le_bytes());
    put(&mut area, fxsave::FTW, &[state.ftw]);
    put(&mut area, fxsave::FOP, &state.fop.to_le_bytes());
    put(&mut area, fxsave::FIP, &(state.fip & pointer_mask).to_le_bytes());
    put(&mut area, fxsave::FDP, &(state.fdp & pointer_mask).to_le_bytes());
    put(&mut area, fxsave::MXCSR, &state.mxcsr.to_le_bytes());
    put(&mut area, fxsave::MXCSR_MASK, &mxcsr::MASK.to_le_bytes());
    for (i, value) in state.st.iter().enumerate() {
        put(&mut area, fxsave::ST0 + 16 * i, &value.to_le_bytes());
    }
    for (i, value) in state.xmm.iter().enumerate() {
        put(&mut area, fxsave::XMM0 + 16 * i, &value.to_le_bytes());
    }
    let extent = extent(cpu);
    store_bytes(cpu, linear, &area[..extent])
}

fn restore(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    fpu::available(cpu)?;
    let linear = cpu.ea(insn, 0)?;
    require_aligned(cpu, linear)?;
    let mut area = [0; fxsave::WRITTEN];
    let extent = extent(cpu);
    load_bytes(cpu, linear, &mut area[..extent])?;
    set_mxcsr(cpu, u32::from_le_bytes(take(&area, fxsave::MXCSR)))?;
    let registers = registers(cpu);
    let pointer_mask = if wide(insn) { u64::MAX } else { 0xffff_ffff };
    let state = &mut cpu.state.fpu;
    state.ftw = area[fxsave::FTW];
    state.fop = u16::from_le_bytes(take(&area, fxsave::FOP)) & 0x7ff;
    state.fip = u64::from_le_bytes(take(&area, fxsave::FIP)) & pointer_mask;
    state.fdp = u64::from_le_bytes(take(&area, fxsave::FDP)) & pointer_mask;
    fpu::set_words(
        state,
        u16::from_le_bytes(take(&area, fxsave::FCW)),
        u16::from_le_bytes(take(&area, fxsave::FSW)),
    );
    for (i, value) in state.st.iter_mut().enumerate() {
        *value = u128::from_le_bytes(take(&area, fxsave::ST0 + 16 * i)) & fpu::REGISTER;
    }
    for (i, value) in state.xmm.iter_mut().enumerate().take(registers) {
        *value = u128::from_le_bytes(take(&area, fxsave::XMM0 + 16 * i));
    }
    Ok(())
}
