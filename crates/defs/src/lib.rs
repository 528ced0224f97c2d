//! Facts of the manuals: register bits, MSR numbers, exit reasons, layouts.
//!
//! Nothing here has logic or `unsafe`; every number that a manual defines stands in this
//! crate once, under the manual's own name, and sizes and offsets are checked at compile time.

#![forbid(unsafe_code)]
#![no_std]

pub mod acpi;
pub mod apic;
pub mod cable;
pub mod chipset;
pub mod cpuid;
pub mod elf;
pub mod fpu;
pub mod hyperv;
pub mod kvm;
pub mod linux;
pub mod msr;
pub mod multiboot;
pub mod pci;
pub mod share;
pub mod svm;
pub mod virtio;
pub mod vmx;
pub mod x86;
pub mod xen;
