//! The registers of an AArch64 vCPU: the general ones, PSTATE, the vector registers, and all system registers as one table.

#![forbid(unsafe_code)]

mod cpu;
mod pstate;
mod redirect;
mod registers;

pub use cpu::{CpuState, SP, ZERO};
pub use pstate::{El, Flags, Pstate};
pub use redirect::{Redirected, redirect};
pub use registers::{Access, Kind, REGISTERS, Register, Sys, encoding, find};
