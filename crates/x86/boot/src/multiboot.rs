//! Multiboot 1 (Multiboot Specification 0.6.96).
//!
//! The header says whether the ELF's program headers or its own address fields count. The kernel
//! is entered in flat 32-bit protected mode with EBX at the information block, which lies in low
//! memory; modules lie above the kernel, where it does not expect its own heap to begin before it
//! has looked at them.

mod header;
mod info;
mod place;
mod sections;
#[cfg(test)]
mod tests;

pub(crate) use header::{Header, image};
pub(crate) use place::place;
