//! The AArch64 software CPU: an interpreter of decoded pages.
//!
//! A page of guest code is decoded once (`code`), an instruction at a time as it is reached, into what executes it and its operands;
//! it stays valid while the page's state does (`satori_memory::PageState`). Accesses to memory look into a table of the vCPU's
//! that only caches the architectural TLB (`mmu`). What an instruction needs of the machine it asks (`Cpu::ask`), and is
//! executed again with the answer, as on the x86 engine.

mod code;
mod cpu;
mod exception;
mod exec;
mod exits;
mod float;
mod host;
mod mmu;
mod partition;
mod run;
mod shoot;

pub use code::{Insn, Source};
pub use cpu::{Cpu, Exclusive, Flow, Stop};
pub use exits::counter;
pub use mmu::{MODE_COUNT, layout};
pub use partition::{Interpreter, partition};
pub use run::Execute;
