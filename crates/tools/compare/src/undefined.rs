//! What the manual leaves undefined, and processors do not agree on.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, RflagsBits};
use satori_defs::x86::rflags;
use satori_state::reg;

use crate::case::Case;
use crate::exclusions::Exclusion;

/// The status flags among the decoder's `bits`.
pub fn status(bits: u32) -> u64 {
    const TABLE: [(u32, u64); 6] = [
        (RflagsBits::OF, rflags::OF),
        (RflagsBits::SF, rflags::SF),
        (RflagsBits::ZF, rflags::ZF),
        (RflagsBits::AF, rflags::AF),
        (RflagsBits::CF, rflags::CF),
        (RflagsBits::PF, rflags::PF),
    ];
    TABLE.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, flag)| flag).sum()
}

/// What shifts: their flags depend on the count.
#[derive(Clone, Copy, PartialEq)]
enum Shift {
    Single,
    Double,
    Rotate,
}

fn shift(insn: &Instruction) -> Option<Shift> {
    match insn.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => Some(Shift::Single),
        Mnemonic::Shld | Mnemonic::Shrd => Some(Shift::Double),
        Mnemonic::Rol | Mnemonic::Ror | Mnemonic::Rcl | Mnemonic::Rcr => Some(Shift::Rotate),
        _ => None,
    }
}

/// The status flags that are undefined after `insn` completed, with `rcx` before it: the decoder's table, and
/// for shifts the manual's text (SDM volume 2, SAL/SAR/SHL/SHR, SHLD, SHRD, RCL/RCR/ROL/ROR).
pub fn flags(insn: &Instruction, rcx: u64) -> u64 {
    let Some(kind) = shift(insn) else { return status(insn.rflags_undefined()) };
    let (count, bits) = (shift_count(insn, rcx), size(insn));
    let mut undefined = 0;
    if count > 1 {
        undefined |= rflags::OF;
    }
    if kind != Shift::Rotate && count > 0 {
        undefined |= rflags::AF;
    }
    if kind != Shift::Rotate && count >= bits && insn.mnemonic() != Mnemonic::Sar {
        undefined |= rflags::CF;
    }
    if kind == Shift::Double && count > bits {
        undefined |= rflags::STATUS;
    }
    undefined
}

/// The status flags that are defined after `insn` completed, whatever they were before. One that may do nothing,
/// as its count is zero, or RCL's a multiple of its length, defines none.
pub fn defined(insn: &Instruction, rcx: u64) -> u64 {
    match shift(insn) {
        Some(Shift::Rotate) => 0,
        Some(_) if shift_count(insn, rcx) == 0 => 0,
        Some(_) => rflags::STATUS & !flags(insn, rcx),
        None if insn.has_rep_prefix() || insn.has_repne_prefix() => 0,
        // The decoder means what VMX has it do in a hypervisor; a guest's exits, and changes nothing.
        None if matches!(insn.mnemonic(), Mnemonic::Vmcall | Mnemonic::Vmmcall) => 0,
        // An exception that is not masked leaves the flags, and is raised by a later instruction.
        None if matches!(
            insn.mnemonic(),
            Mnemonic::Fcomi | Mnemonic::Fcomip | Mnemonic::Fucomi | Mnemonic::Fucomip
        ) =>
        {
            0
        }
        None => status(insn.rflags_written() | insn.rflags_cleared() | insn.rflags_set()),
    }
}

/// The status flags that are undefined when `insn` was executed, with `rcx` before it, and led to `rip`, if it found
/// `undefined`. Where flags that it brings back come from is not known.
pub fn after(insn: &Instruction, rcx: u64, rip: u64, undefined: u64) -> u64 {
    let saved = matches!(
        insn.mnemonic(),
        Mnemonic::Popf
            | Mnemonic::Popfd
            | Mnemonic::Popfq
            | Mnemonic::Sahf
            | Mnemonic::Iret
            | Mnemonic::Iretd
            | Mnemonic::Iretq
            | Mnemonic::Sysret
            | Mnemonic::Sysretq
    );
    if saved {
        return rflags::STATUS;
    }
    // One that faulted, or before which an interrupt came, has defined nothing.
    let completed = insn.flow_control() != FlowControl::Next || rip == insn.next_ip();
    let defined = if completed { defined(insn, rcx) } else { 0 };
    undefined & !defined | flags(insn, rcx)
}

/// Whether `insn` shifts memory by 0, with `rcx` before it.
pub fn shifts_nothing(insn: &Instruction, rcx: u64) -> bool {
    shift(insn).is_some() && insn.op0_kind() == OpKind::Memory && shift_count(insn, rcx) == 0
}

/// Why the result of `insn` itself is undefined on `case`.
pub fn result(insn: &Instruction, case: &Case) -> Option<Exclusion> {
    match insn.mnemonic() {
        Mnemonic::Bswap if size(insn) == 16 => Some(Exclusion::Bswap16),
        Mnemonic::Shld | Mnemonic::Shrd if shift_count(insn, case.gpr[reg::RCX]) > size(insn) => {
            Some(Exclusion::DoubleShift)
        }
        _ => None,
    }
}

/// Bits of the first operand.
fn size(insn: &Instruction) -> u32 {
    match insn.op0_kind() {
        OpKind::Register => insn.op0_register().size() as u32 * 8,
        _ => insn.memory_size().size() as u32 * 8,
    }
}

fn shift_count(insn: &Instruction, rcx: u64) -> u32 {
    let last = insn.op_count().saturating_sub(1);
    let count = match insn.op_kind(last) {
        OpKind::Register => rcx as u32,
        _ => insn.immediate(last) as u32,
    };
    count & if size(insn) == 64 { 63 } else { 31 }
}
