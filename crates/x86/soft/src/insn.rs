//! From a decoded instruction to its generic implementation.

use iced_x86::Instruction;
use satori_engine::Exception;

use crate::cpu::{Cpu, Exec, Handler};
use crate::{fpu, integer, simd, system};

/// The generic implementation of `insn`, whether offered or not; #UD for what there is none of.
pub fn handler(insn: &Instruction) -> Handler {
    if insn.is_invalid() {
        return undefined;
    }
    integer::handler(insn)
        .or_else(|| system::handler(insn))
        .or_else(|| simd::handler(insn))
        .or_else(|| fpu::handler(insn))
        .unwrap_or(undefined)
}

/// What the processor does not have.
pub fn undefined(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    Err(cpu.raise(Exception::ud()))
}
