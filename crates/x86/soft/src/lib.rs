//! The software CPU: an x86 processor as a library, with no hardware virtualisation beneath.
//!
//! [`Interpreter`] and [`Translator`] implement [`satori_engine::Engine`]. Guest code is decoded once
//! into blocks of small operations (`block`), data goes through a software TLB (`mmu`), and every
//! instruction has a generic implementation (`integer`, `system`, `simd`, `fpu`) that the
//! specialised operations must agree with. The translator makes host code of blocks that run often
//! (`jit`), and leaves the rest to the interpreter.

mod block;
mod cpu;
mod debug;
mod flags;
mod fpu;
mod host;
mod insn;
mod integer;
mod isa;
mod jit;
mod mmu;
mod operands;
mod run;
mod simd;
mod system;
#[cfg(test)]
mod testing;
mod vcpu;
mod vmx;
mod world;

pub use simd::host_lacks;
pub use vcpu::{Interpreter, Translator};
