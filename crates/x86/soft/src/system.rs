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

use crate::insn::Section;
pub use deliver::Delivery;
pub use fast::{CODE64, DATA, DPL3, SYSRET_FLAGS};
pub use faults::{InterruptKind, Undelivered, inject, interrupt, pushes_resume, raise_fault};

/// What is implemented here.
pub(crate) const SECTIONS: &[Section] = &[
    Section::of(control::ROWS),
    Section::of(debug::ROWS),
    Section::of(far::ROWS),
    Section::of(fast::ROWS),
    Section::of(flags::ROWS),
    Section::of(keys::ROWS),
    Section::of(machine::ROWS),
    Section::of(msr::ROWS),
    Section::of(ports::ROWS),
    Section::of(returns::ROWS),
    Section::of(segments::ROWS),
    Section::of(tables::ROWS),
];
