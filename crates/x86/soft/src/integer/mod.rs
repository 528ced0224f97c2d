//! The integer instruction set, in every operand size and mode.
//!
//! [`handler`] is asked once, when an instruction is decoded: it chooses a function that already
//! knows the operation and the operand size. A function computes first and commits last, so an
//! instruction that faults leaves nothing behind.
//!
//! Flags that the manual leaves undefined follow what Intel's processors commonly do: AF is
//! cleared by logic and shifts, OF of a longer shift is worked out as for a shift by one, a
//! product sets SF, ZF and PF by its low half, a division and the bit tests leave them alone.

mod arithmetic;
mod bcd;
mod bits;
mod bmi;
mod branch;
mod bulk;
mod divide;
mod exchange;
mod flag;
mod multiply;
mod operand;
mod shift;
mod stack;
mod string;
mod transfer;

#[cfg(test)]
mod string_test;
#[cfg(test)]
mod tests;

use iced_x86::Instruction;

use crate::cpu::Handler;

/// One function for each operand size: the one that fits a size in bytes.
macro_rules! sized {
    ($size:expr, $function:ident $(, $parameter:ty)*) => {
        match $size {
            1 => $function::<$($parameter,)* u8>,
            2 => $function::<$($parameter,)* u16>,
            4 => $function::<$($parameter,)* u32>,
            _ => $function::<$($parameter,)* u64>,
        }
    };
}
use sized;

/// The implementation of `insn`, if it is an integer instruction.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    arithmetic::handler(insn)
        .or_else(|| transfer::handler(insn))
        .or_else(|| branch::handler(insn))
        .or_else(|| stack::handler(insn))
        .or_else(|| shift::handler(insn))
        .or_else(|| string::handler(insn))
        .or_else(|| flag::handler(insn))
        .or_else(|| exchange::handler(insn))
        .or_else(|| bits::handler(insn))
        .or_else(|| bmi::handler(insn))
        .or_else(|| multiply::handler(insn))
        .or_else(|| divide::handler(insn))
        .or_else(|| bcd::handler(insn))
}
