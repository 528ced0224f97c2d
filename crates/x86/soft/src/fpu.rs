//! The x87 FPU.
//!
//! Arithmetic runs on the host: the guest's x87 state is loaded with its own control word, the
//! instruction executed, and the state taken back ([`native`]). An unmasked exception is not
//! raised there, because the x87 reports it at its next waiting instruction, and the host's state
//! is cleared before that. So stack faults, tags, condition codes, rounding and the results under
//! unmasked exceptions are the processor's own. What only moves words is in [`control`].

mod control;
mod native;
mod stack;
mod table;
#[cfg(test)]
mod tests;

use iced_x86::{Code, Instruction};
use satori_cpuid::Vendor;
use satori_defs::fpu::fsw;
use satori_defs::x86::{cr0, vector};
use satori_engine::Exception;
use satori_state::FpuState;

pub use native::Image;
pub use stack::{REGISTER, is_pending, set_top, set_words, top};

use crate::cpu::{Cpu, Exec, Handler};
use crate::insn::{Section, rows};
use crate::simd::{load_bytes, store_address, store_bytes};
use table::{
    among, flag_rows, load_rows, of_memory, of_one, of_register, plain_rows, stack_rows, store_rows,
};

/// What is implemented here: what computes on the registers, and what controls.
pub(crate) const SECTIONS: &[Section] = &[
    Section::of(plain_rows!(of_one)),
    Section::of(stack_rows!(of_register plain)),
    Section::of(flag_rows!(of_register compare)),
    Section::of(load_rows!(of_memory load)),
    Section::of(store_rows!(of_memory store)),
    Section::of(control::ROWS),
];

/// Whether `insn` computes on the registers, and is recorded as the last one that did.
pub fn computes(insn: &Instruction) -> bool {
    let code = insn.code();
    plain_rows!(among code)
        || stack_rows!(among code)
        || flag_rows!(among code)
        || load_rows!(among code)
        || store_rows!(among code)
}

/// i of the operand ST(i) that is not ST(0), if there is one.
fn register(insn: &Instruction) -> usize {
    let numbers =
        [insn.op0_register(), insn.op1_register()].into_iter().filter(|r| r.is_st()).map(|r| r.number());
    numbers.max().unwrap_or(0)
}

/// #NM while the FPU is absent or belongs to another task.
pub fn available(cpu: &mut Cpu) -> Exec<()> {
    if cpu.state.cr0 & (cr0::EM | cr0::TS) == 0 {
        return Ok(());
    }
    Err(cpu.raise(Exception::new(vector::NM)))
}

/// What every waiting instruction does first: reports the exception of an earlier one. The pin
/// FERR#, by which CR0.NE = 0 has it come as IRQ 13, is not modelled: it is #MF then too.
pub fn check_pending(cpu: &mut Cpu) -> Exec<()> {
    if !is_pending(&cpu.state.fpu) {
        return Ok(());
    }
    Err(cpu.raise(Exception::new(vector::MF)))
}

/// A native instruction on the guest's registers.
type Native = fn(&mut Image, &mut [u8; 16], u64) -> u64;

fn plain<const OP: u8, const MODRM: u8>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    start(cpu)?;
    let (mut new, _) = execute(cpu, native::run::<OP, MODRM>, &mut [0; 16]);
    note(cpu, insn, &mut new, OP, MODRM);
    cpu.state.fpu = new;
    Ok(())
}

/// FCOMI and its kin: the result is in RFLAGS, unless the operation faults.
fn compare<const OP: u8, const MODRM: u8>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    start(cpu)?;
    let (mut new, flags) = execute(cpu, native::run::<OP, MODRM>, &mut [0; 16]);
    note(cpu, insn, &mut new, OP, MODRM);
    // With an unmasked exception, Intel's processors leave the flags (SDM, FCOMI); AMD's set them.
    if !is_pending(&new) || cpu.isa.offered.vendor == Vendor::Amd {
        cpu.flags.set_bits(flags & native::COMPARE_FLAGS);
    }
    cpu.state.fpu = new;
    Ok(())
}

fn load<const OP: u8, const MODRM: u8>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    load_with(cpu, insn, native::run::<OP, MODRM>, OP, MODRM)
}

/// The linear address of the memory operand. Ten bytes are accessed in two parts, the first of eight.
fn address(cpu: &mut Cpu, insn: &Instruction, write: bool) -> Exec<u64> {
    if cpu.operand_size(insn, 0) <= 8 {
        return if write { store_address(cpu, insn, 0) } else { cpu.ea(insn, 0) };
    }
    let linear = cpu.ea_part(insn, 0, 8, write)?;
    cpu.require_alignment(linear, 8)?;
    if write {
        cpu.probe_write(linear, 8)?;
    } else {
        cpu.probe_read(linear)?;
        // A fault of the next page is told with that page's first byte.
        cpu.probe_read(linear.max(linear.wrapping_add(7) & !0xfff))?;
    }
    cpu.ea_part(insn, 8, 2, write)?;
    Ok(linear)
}

#[inline(never)]
fn load_with(cpu: &mut Cpu, insn: &Instruction, native: Native, op: u8, modrm: u8) -> Exec<()> {
    start(cpu)?;
    let linear = address(cpu, insn, false)?;
    let mut memory = [0; 16];
    let size = cpu.operand_size(insn, 0) as usize;
    load_bytes(cpu, linear, &mut memory[..size])?;
    let (mut new, _) = execute(cpu, native, &mut memory);
    note(cpu, insn, &mut new, op, modrm);
    new.fdp = cpu.offset(insn);
    cpu.state.fpu = new;
    Ok(())
}

fn store<const OP: u8, const MODRM: u8>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    store_with(cpu, insn, native::run::<OP, MODRM>, OP, MODRM)
}

#[inline(never)]
fn store_with(cpu: &mut Cpu, insn: &Instruction, native: Native, op: u8, modrm: u8) -> Exec<()> {
    start(cpu)?;
    let linear = address(cpu, insn, true)?;
    let mut memory = [0; 16];
    let size = cpu.operand_size(insn, 0) as usize;
    let (mut new, _) = execute(cpu, native, &mut memory);
    // Any unmasked exception but precision leaves memory alone (SDM volume 1, 8.5).
    if new.fsw & !new.fcw & fsw::FLAGS & !fsw::PE == 0 {
        store_bytes(cpu, linear, &memory[..size])?;
    } else {
        // Those of ten bytes are stored in pieces, the first of eight.
        cpu.probe_store(linear, size.min(8) as u64)?;
        cpu.probe_write(linear, size as u64)?;
    }
    note(cpu, insn, &mut new, op, modrm);
    new.fdp = cpu.offset(insn);
    cpu.state.fpu = new;
    Ok(())
}

fn start(cpu: &mut Cpu) -> Exec<()> {
    available(cpu)?;
    check_pending(cpu)
}

#[inline(never)]
fn execute(cpu: &Cpu, native: Native, memory: &mut [u8; 16]) -> (FpuState, u64) {
    let mut image = Image::new(&cpu.state.fpu);
    let flags = native(&mut image, memory, cpu.flags.bits());
    let mut new = cpu.state.fpu.clone();
    image.store(&mut new);
    (new, flags)
}

/// Records the instruction, as every one but the control instructions does (SDM volume 1,
/// 8.1.8); its opcode only with an unmasked exception, as processors do since the Pentium 4.
fn note(cpu: &mut Cpu, insn: &Instruction, new: &mut FpuState, op: u8, modrm: u8) {
    new.fip = cpu.state.rip;
    if is_pending(new) {
        let memory = insn.op0_kind() == iced_x86::OpKind::Memory;
        let modrm = if memory { memory_modrm(cpu, insn).unwrap_or(modrm & 0x38) } else { modrm };
        new.fop = u16::from(op & 7) << 8 | u16::from(modrm);
    }
}

/// ModRM of the instruction at RIP: the byte behind the escape opcode, which no prefix equals.
#[cold]
fn memory_modrm(cpu: &mut Cpu, insn: &Instruction) -> Option<u8> {
    for index in 0..insn.len() as u64 {
        if matches!(cpu.code_byte(index).ok()?, 0xd8..=0xdf) {
            return cpu.code_byte(index + 1).ok();
        }
    }
    None
}
