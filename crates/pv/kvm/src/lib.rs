//! KVM's guest interface, without KVM and without an engine (Linux, Documentation/virt/kvm/x86).
//!
//! [`Vm`] is shared by all vCPUs, [`Vcpu`] belongs to one. The machine asks for the CPUID leaves once
//! ([`Config::leaves`]), hands over MSR accesses ([`Vm::msr_read`], [`Vm::msr_write`]) and hypercalls
//! ([`Vm::hypercall`]) as they come, and says when a vCPU sleeps and when it is entered. What a guest does is
//! answered by values: a fault, or an [`Outcome`] that asks the machine to act.
//!
//! What exists is said by one table, [`Feature::ALL`]. CPUID bits, the MSRs and hypercalls that answer, the words of options
//! ([`choice`]), the page `docs/kvm.md` are all read from there; an MSR whose feature is off is #GP, a hypercall
//! answers that it does not exist. KVM itself is laxer unless QEMU's `kvm-pv-enforce-cpuid` is on.

#![forbid(unsafe_code)]

pub mod choice;
mod config;
mod entry;
mod feature;
mod hypercall;
mod msr;
mod saved;
#[cfg(test)]
mod tests;
mod vm;

pub use config::{Config, Set};
pub use feature::{CpuidBit, Feature, Row};
pub use hypercall::{Outcome, call_name};
pub use saved::Saved;
pub use vm::{Vcpu, Vm, Wake};
