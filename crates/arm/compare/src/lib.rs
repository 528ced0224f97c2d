//! Compares the AArch64 engines with QEMU's user emulation, one random instruction at a time.
//!
//! A batch is a static program without a library: for each case it loads all registers from a record, executes one random
//! instruction of the table, and saves all registers into the record. The same bytes run under `qemu-aarch64` and on one
//! of our engines at EL0; then the records are compared.

#![forbid(unsafe_code)]

mod cases;
mod program;
mod sides;

pub use cases::{Case, Random};
pub use program::Batch;
pub use sides::{Difference, Ours, compare};
