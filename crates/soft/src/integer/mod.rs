//! In the making.
use crate::cpu::Handler;
pub fn handler(_insn: &iced_x86::Instruction) -> Option<Handler> {
    None
}
