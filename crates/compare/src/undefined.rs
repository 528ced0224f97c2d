//! What the manual leaves undefined, and processors do not agree on.

use iced_x86::{Instruction, Mnemonic, OpKind, RflagsBits};
use satori_defs::x86::rflags;
use satori_state::reg;

use crate::case::Case;

/// The status flags that are undefined after `insn` completed on `case`: the decoder's table, and
/// for shifts, whose flags depend on the count, the manual's text.
pub fn flags(insn: &Instruction, case: &Case) -> u64 {
    const TABLE: [(u32, u64); 6] = [
        (RflagsBits::OF, rflags::OF),
        (RflagsBits::SF, rflags::SF),
        (RflagsBits::ZF, rflags::ZF),
        (RflagsBits::AF, rflags::AF),
        (RflagsBits::CF, rflags::CF),
        (RflagsBits::PF, rflags::PF),
    ];
    let (shifts, rotates, double) = match insn.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => (true, false, false),
        Mnemonic::Shld | Mnemonic::Shrd => (true, false, true),
        Mnemonic::Rol | Mnemonic::Ror | Mnemonic::Rcl | Mnemonic::Rcr => (false, true, false),
        _ => (false, false, false),
    };
    if !shifts && !rotates {
        let undefined = insn.rflags_undefined();
        return TABLE.iter().filter(|(bit, _)| undefined & bit != 0).map(|(_, flag)| flag).sum();
    }
    let (count, bits) = (shift_count(insn, case), size(insn));
    let mut undefined = 0;
    if count > 1 {
        undefined |= rflags::OF;
    }
    if shifts && count > 0 {
        undefined |= rflags::AF;
    }
    if shifts && count >= bits && insn.mnemonic() != Mnemonic::Sar {
        undefined |= rflags::CF;
    }
    if double && count > bits {
        undefined |= rflags::STATUS;
    }
    undefined
}

/// Why the result of `insn` itself is undefined on `case`.
pub fn result(insn: &Instruction, case: &Case) -> Option<&'static str> {
    match insn.mnemonic() {
        Mnemonic::Bswap if size(insn) == 16 => Some("BSWAP of 16 bits is undefined"),
        Mnemonic::Shld | Mnemonic::Shrd if shift_count(insn, case) > size(insn) => {
            Some("SHLD and SHRD by more than the operand are undefined")
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

fn shift_count(insn: &Instruction, case: &Case) -> u32 {
    let last = insn.op_count().saturating_sub(1);
    let count = match insn.op_kind(last) {
        OpKind::Register => case.gpr[reg::RCX] as u32,
        _ => insn.immediate(last) as u32,
    };
    count & if size(insn) == 64 { 63 } else { 31 }
}
