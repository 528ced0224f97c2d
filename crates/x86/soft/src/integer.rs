//! The integer instruction set, in every operand size and mode.
//!
//! A row is asked once, when an instruction is decoded: it chooses a function that already
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
mod string_tests;
#[cfg(test)]
mod tests;

use iced_x86::Instruction;

use crate::insn::Section;

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

/// What is implemented here.
pub(crate) const SECTIONS: &[Section] = &[
    Section::of(arithmetic::ROWS),
    Section::of(transfer::ROWS),
    Section::of(branch::ROWS),
    Section::of(stack::ROWS),
    Section::of(shift::ROWS),
    // MOVSD and CMPSD are also SSE instructions.
    Section::when(Instruction::is_string_instruction, string::ROWS),
    Section::of(flag::ROWS),
    Section::of(exchange::ROWS),
    Section::of(bits::ROWS),
    Section::of(bmi::ROWS),
    Section::of(multiply::ROWS),
    Section::of(divide::ROWS),
    Section::of(bcd::ROWS),
];
