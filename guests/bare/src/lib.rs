//! The kernel beneath the test guests: entry, tables, capture of exceptions, output, exit.
//!
//! A guest is a list of [`Case`]s. A case runs *subjects* ([`Subject`]): a few instructions at a
//! chosen privilege level and with chosen registers, which run until the first exception or
//! interrupt; that [`Event`] is what the case compares with the manual.
//!
//! The faces over privileged instructions are safe functions: a guest owns its machine, and what
//! it breaks is itself.

#![no_std]

pub mod apic;
pub mod console;
pub mod cpu;
pub mod disk;
mod entry;
pub mod handler;
pub mod harness;
pub mod hyperv;
pub mod insn;
mod l2;
pub mod legacy;
pub mod msr;
pub mod paging;
pub mod pci;
pub mod place;
mod runtime;
pub mod smp;
pub mod subject;
pub mod virtio;

pub use harness::{Case, Test};
pub use satori_defs as defs;
pub use subject::{Code, Event, Expect, Subject};
