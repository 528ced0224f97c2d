//! Operands of vector instructions, and whether these may execute at all.

use iced_x86::{Instruction, OpKind, Register};
use satori_defs::x86::{cr0, cr4, vector};
use satori_engine::Exception;

use crate::cpu::{Cpu, Exec, Stop};
use crate::host::Scalar;

/// Low half of an XMM register.
pub(super) const LOW64: u128 = u64::MAX as u128;

/// Whether SSE instructions may execute: #UD without the operating system's consent, #NM while
/// the registers belong to another task (SDM volume 3, 14.1).
#[inline(always)]
pub(super) fn sse(cpu: &mut Cpu) -> Exec<()> {
    if cpu.state.cr0 & (cr0::EM | cr0::TS) == 0 && cpu.state.cr4 & cr4::OSFXSR != 0 {
        Ok(())
    } else {
        Err(refuse(cpu))
    }
}

#[cold]
fn refuse(cpu: &mut Cpu) -> Stop {
    let undefined = cpu.state.cr0 & cr0::EM != 0 || cpu.state.cr4 & cr4::OSFXSR == 0;
    cpu.raise(if undefined { Exception::ud() } else { Exception::new(vector::NM) })
}

/// The number of an XMM register.
#[inline(always)]
pub(super) fn xmm(r: Register) -> usize {
    (r as usize).wrapping_sub(Register::XMM0 as usize) & 15
}

/// The number of an MMX register.
#[inline(always)]
pub(super) fn mm(r: Register) -> usize {
    (r as usize).wrapping_sub(Register::MM0 as usize) & 7
}

/// The linear address of memory operand `op` that is written.
pub(crate) fn store_address(cpu: &mut Cpu, insn: &Instruction, op: u32) -> Exec<u64> {
    cpu.ea_write(insn, op)
}

/// #GP(0) unless `linear` is 16-byte aligned.
#[inline(always)]
pub(super) fn require_aligned(cpu: &mut Cpu, linear: u64) -> Exec<()> {
    if linear & 15 == 0 { Ok(()) } else { Err(cpu.raise(Exception::gp(0))) }
}

/// An XMM register whole, or a `T` in memory at any alignment.
#[inline(always)]
pub(super) fn unaligned<T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction, op: u32) -> Exec<u128> {
    if insn.op_kind(op) == OpKind::Register {
        return Ok(cpu.state.fpu.ymm[xmm(insn.op_register(op))].low);
    }
    let linear = cpu.ea(insn, op)?;
    Ok(cpu.read::<T>(linear)?.into())
}

/// An XMM register whole, or a `T` in memory, which must be aligned if it is 16 bytes.
#[inline(always)]
pub(super) fn source<T: Scalar + Into<u128>>(cpu: &mut Cpu, insn: &Instruction, op: u32) -> Exec<u128> {
    if insn.op_kind(op) == OpKind::Register {
        return Ok(cpu.state.fpu.ymm[xmm(insn.op_register(op))].low);
    }
    let linear = cpu.ea(insn, op)?;
    if T::SIZE == 16 {
        require_aligned(cpu, linear)?;
    }
    Ok(cpu.read::<T>(linear)?.into())
}

/// What the address of an operand of `len` bytes has to be a multiple of where alignment is
/// checked (SDM table 6-7): 80-bit values of 8, x87 environments and states of their words.
/// Larger areas have their own rules.
const fn alignment(len: usize) -> u64 {
    match len {
        2 | 14 | 94 => 2,
        4 | 28 | 108 => 4,
        8 | 10 => 8,
        16 => 16,
        _ => 1,
    }
}

/// Writes `bytes` to memory, all or nothing.
pub(crate) fn store_bytes(cpu: &mut Cpu, linear: u64, bytes: &[u8]) -> Exec<()> {
    cpu.require_alignment(linear, alignment(bytes.len()))?;
    cpu.unaligned(|cpu| store_pieces(cpu, linear, bytes))
}

fn store_pieces(cpu: &mut Cpu, linear: u64, bytes: &[u8]) -> Exec<()> {
    let (words, rest) = bytes.as_chunks::<8>();
    if rest.is_empty() && store_run(cpu, linear, words) {
        return Ok(());
    }
    cpu.probe_write(linear, bytes.len() as u64)?;
    let mut at = linear;
    for word in words {
        cpu.write(at, u64::from_le_bytes(*word))?;
        at = at.wrapping_add(8);
    }
    for byte in rest {
        cpu.write(at, *byte)?;
        at = at.wrapping_add(1);
    }
    Ok(())
}

/// Words that are worth a look for all of them at once.
const RUN: usize = 4;

/// Writes `words` if they lie in one page that the TLB has; whether it did.
pub(super) fn store_run(cpu: &mut Cpu, linear: u64, words: &[[u8; 8]]) -> bool {
    if words.len() < RUN {
        return false;
    }
    let Some(host) = cpu.cached_range(linear, size_of_val(words) as u64, true) else { return false };
    for (i, word) in words.iter().enumerate() {
        // SAFETY: so many bytes may be written there.
        unsafe { u64::store(host.add(8 * i), u64::from_le_bytes(*word)) };
    }
    cpu.host_range_written(linear);
    true
}

/// Fills `words` if they lie in one page that the TLB has; whether it did.
fn load_run(cpu: &Cpu, linear: u64, words: &mut [[u8; 8]]) -> bool {
    if words.len() < RUN {
        return false;
    }
    let Some(host) = cpu.cached_range(linear, size_of_val(words) as u64, false) else { return false };
    for (i, word) in words.iter_mut().enumerate() {
        // SAFETY: so many bytes may be read there.
        *word = unsafe { u64::load(host.add(8 * i)) }.to_le_bytes();
    }
    true
}

/// Fills `bytes` from memory.
pub(crate) fn load_bytes(cpu: &mut Cpu, linear: u64, bytes: &mut [u8]) -> Exec<()> {
    cpu.require_alignment(linear, alignment(bytes.len()))?;
    cpu.unaligned(|cpu| load_pieces(cpu, linear, bytes))
}

fn load_pieces(cpu: &mut Cpu, linear: u64, bytes: &mut [u8]) -> Exec<()> {
    let (words, rest) = bytes.as_chunks_mut::<8>();
    if rest.is_empty() && load_run(cpu, linear, words) {
        return Ok(());
    }
    let mut at = linear;
    for word in words {
        *word = cpu.read::<u64>(at)?.to_le_bytes();
        at = at.wrapping_add(8);
    }
    for byte in rest {
        *byte = cpu.read(at)?;
        at = at.wrapping_add(1);
    }
    Ok(())
}
