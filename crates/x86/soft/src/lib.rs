//! The software CPU: an x86 processor as a library, with no hardware virtualisation beneath.
//!
//! Its rooms, each of which knows only those above it in this list:
//!
//! - [`cpu`]: the processor, its registers and what follows from them; [`isa`] and `insn` lead from an instruction to the
//!   generic implementation of it, in `integer`, `system`, `simd`, `fpu` and `vmx`.
//! - [`mmu`]: linear memory. Data goes through a software TLB; what was fetched at an address is void when its stamp changed.
//! - `run`: what may happen between two instructions, and an instruction by itself.
//! - [`block`]: code that is decoded once, into blocks of small operations, which the generic implementations agree with.
//! - [`execute`]: the loop that executes blocks. [`Interpreter`] is the engine that does nothing else.
//!
//! The translator is a crate of its own above this one.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "this documentation is for those who work here, and made with private items"
)]

pub mod block;
pub mod code_mode;
pub mod cpu;
mod debug;
pub mod execute;
mod flags;
pub mod fpu;
pub mod host;
mod insn;
mod integer;
pub mod isa;
mod level;
pub mod mmu;
mod operands;
pub mod run;
mod saved;
mod simd;
mod svm;
pub mod system;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod vcpu;
mod vmx;
pub mod world;

pub use saved::at_rest;
pub use simd::host_lacks;
pub use vcpu::Interpreter;
