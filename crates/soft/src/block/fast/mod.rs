//! Specialised operations for the instructions that programs execute most, in 64-bit code.

use iced_x86::Instruction;

use super::op::Op;

/// A specialised operation for `insn`, at `offset` of its block.
pub fn select(_insn: &Instruction, _offset: u8) -> Option<Op> {
    None
}

/// Fuses `insn` into the operation before it.
pub fn fuse(_before: Option<&mut Op>, _insn: &Instruction) -> bool {
    false
}
