//! Translation of A64: code that runs often becomes host code.
//!
//! A block is straight-line code within a page, translated for its physical page, its address and the mode that it is executed in
//! (translation regime and rights, and whether the floating-point unit may be used). What is not worth translating calls the
//! interpreter for one instruction ([`emit::Call`]), and so does what is unusual: a page that the vCPU's table does not have, a device, a
//! misaligned stack pointer. The interpreter remains the one place where faults and exits are made, and both count instructions alike,
//! so that a run under a virtual clock is the same on both.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "this documentation is for those who work here, and made with private items"
)]

mod asm;
mod atomics;
mod branch;
mod constants;
mod emit;
mod engine;
mod flags;
mod float;
mod integer;
mod jit;
mod memory;
mod simd;
mod stubs;
mod system;
#[cfg(test)]
mod tests;
mod vectors;

pub use engine::Translator;

/// Targets of branches to other pages, and of those to registers, that are remembered for each mode.
const TARGETS: usize = 2048;
