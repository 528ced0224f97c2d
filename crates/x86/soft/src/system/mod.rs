//! System instructions, segments, and the delivery of interrupts and exceptions (SDM volume 3,
//! chapters 2, 3, 5, 6, 8 and 21).

mod control;
#[cfg(test)]
mod control_tests;
mod debug;
mod deliver;
mod descriptor;
mod far;
mod fast;
mod faults;
mod flags;
mod keys;
#[cfg(test)]
mod legacy_tests;
mod machine;
mod msr;
mod ports;
mod returns;
mod segments;
mod stack;
mod tables;
mod task;
#[cfg(test)]
mod tests;
mod v86;

use iced_x86::Instruction;

use crate::cpu::Handler;
pub use deliver::Delivery;
pub use fast::{CODE64, DATA, DPL3, SYSRET_FLAGS};
pub use faults::{InterruptKind, Undelivered, inject, interrupt, raise_fault};

/// The implementation of a system instruction.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    let groups = [
        control::handler,
        debug::handler,
        far::handler,
        fast::handler,
        flags::handler,
        keys::handler,
        machine::handler,
        msr::handler,
        ports::handler,
        returns::handler,
        segments::handler,
        tables::handler,
    ];
    groups.into_iter().find_map(|group| group(insn))
}
