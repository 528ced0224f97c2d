//! The registers of an AArch64 vCPU: the general ones, PSTATE, the vector registers, and all system registers as one table.

#![forbid(unsafe_code)]

mod cpu;
mod group;
mod pstate;
mod redirect;
mod registers;
pub mod virtual_interface;

pub use cpu::{CpuState, SP, ZERO};
pub use group::Group;
pub use pstate::{El, Flags, Pstate};
pub use redirect::{Redirected, el1_name, redirect};
pub use registers::{Access, Kind, REGISTERS, Register, Sys, encoding, find};
