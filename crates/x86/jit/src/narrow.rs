//! 32-bit code: what it needs to be translated as 64-bit code is.
//!
//! Its instructions are those of 64-bit code with a few encodings more, its addresses are sums of 32 bits, and a
//! segment register stands between each of them and memory. Segments are flat almost always: for those that are,
//! [`Derived::code_mode`] has a bit each, so translated code checks none, and who loads another one goes on in other code. What
//! is accessed through a segment that is not flat is left to its generic implementation.
//!
//! [`Derived::code_mode`]: satori_soft::cpu::Derived::code_mode

#[cfg(test)]
mod tests;

use iced_x86::{Code, Instruction, OpKind};
use satori_soft::code_mode::flat;
use satori_state::seg;

/// Whether code of `code_mode` can access memory through segment register `i` without a look at it.
pub(crate) fn is_flat(code_mode: u64, i: usize) -> bool {
    // Code can be read, but perhaps not by this segment.
    i != seg::CS && code_mode & flat(i) != 0
}

/// `insn`, of 32-bit code in a block at `rip`, as 64-bit code has it: opcodes that became REX prefixes get their long form,
/// and a branch's target is counted from the block in 64 bits.
pub(crate) fn widened(mut insn: Instruction, rip: u64) -> Instruction {
    use Code::*;
    let code = match insn.code() {
        Inc_r16 => Inc_rm16,
        Inc_r32 => Inc_rm32,
        Dec_r16 => Dec_rm16,
        Dec_r32 => Dec_rm32,
        Mov_AL_moffs8 => Mov_r8_rm8,
        Mov_AX_moffs16 => Mov_r16_rm16,
        Mov_EAX_moffs32 => Mov_r32_rm32,
        Mov_moffs8_AL => Mov_rm8_r8,
        Mov_moffs16_AX => Mov_rm16_r16,
        Mov_moffs32_EAX => Mov_rm32_r32,
        Add_rm8_imm8_82 => Add_rm8_imm8,
        Or_rm8_imm8_82 => Or_rm8_imm8,
        Adc_rm8_imm8_82 => Adc_rm8_imm8,
        Sbb_rm8_imm8_82 => Sbb_rm8_imm8,
        And_rm8_imm8_82 => And_rm8_imm8,
        Sub_rm8_imm8_82 => Sub_rm8_imm8,
        Xor_rm8_imm8_82 => Xor_rm8_imm8,
        Cmp_rm8_imm8_82 => Cmp_rm8_imm8,
        code => code,
    };
    insn.set_code(code);
    if insn.op_count() > 0 && insn.op0_kind() == OpKind::NearBranch32 {
        let target = u64::from((rip as u32).wrapping_add(insn.near_branch32()));
        insn.set_op0_kind(OpKind::NearBranch64);
        insn.set_near_branch64(target.wrapping_sub(rip));
    }
    insn
}

/// `insn` as its generic implementation takes it: a branch target of 64 bits is one of 32 bits again, as it was decoded.
pub(crate) fn narrowed(mut insn: Instruction) -> Instruction {
    if insn.op_count() > 0 && insn.op0_kind() == OpKind::NearBranch64 {
        let target = insn.near_branch64() as u32;
        insn.set_op0_kind(OpKind::NearBranch32);
        insn.set_near_branch32(target);
    }
    insn
}
