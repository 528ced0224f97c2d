//! The KVM engine: the guest's instructions on the host's processor, through Linux's /dev/kvm.
//!
//! KVM is used as a processor with its local APIC, or without that: I/O APIC, PIC and devices are the machine's, as they are on
//! the software engines, and see the same accesses. What KVM would answer by itself is asked of the machine where the kernel
//! lets it: MSRs by filters (`msrs`), hypercalls by what the hypercall page holds ([`satori_engine::HYPERCALL_PORT`]). CPUID it
//! answers from the machine's table, which the vCPU gets at its start (`cpuid`).
//!
//! * `engine`: what the device must have, and which features it supports;
//! * `partition`: a VM, and its memory slots, which follow the map of the guest's memory;
//! * `apic`: local APICs that KVM keeps; `routes`, how messages come to them;
//! * `vcpu`: a vCPU at the seam; `run`, one entry and its exit;
//! * `registers`, `extended`: the register file in KVM's structures;
//! * `debug`: what a debugger outside asks;
//! * `saved`: what a vCPU of any engine goes on from;
//! * `stats`: what KVM counts itself; `exits`, what its tracepoints tell of each exit;
//! * `kick`: bringing a vCPU out, by a signal of another thread or of its own timer;
//! * `raw`: the calls that kvm-ioctls does not have.

mod apic;
mod cpuid;
mod debug;
mod engine;
mod exits;
mod extended;
mod kick;
mod msrs;
mod partition;
mod raw;
mod registers;
mod routes;
mod run;
mod saved;
mod stats;
mod vcpu;

pub use engine::{Error, Kvm};
