//! x86's side of the seam: [`X86`], the family of its types.
//!
//! An engine is a processor, not a policy: it raises the exits that a VMX processor with
//! the chosen [`Controls`] would raise, and takes an answer. Both are values.
//!
//! What is any instruction set's at the seam comes from here too, so that who works on x86 names one crate.

#![forbid(unsafe_code)]

mod exit;
mod isa;
mod processor;
mod reasons;
mod rest;

pub use exit::{BACKED, CpuidResult, Exception, Exit, Failure, Resume};
pub use isa::{Controls, Event, HYPERCALL_PORT, Nesting, Processor, Signal, Window, X86};
pub use processor::{CONTROLS, NoProcessor, Vmx, VmxProcessor, VmxRow};
pub use reasons::{REASONS, reason};
pub use rest::AtRest;
pub use satori_seam::{
    AtOnce, Capabilities, Capability, Class, CodeWatcher, Counts, DebugCause, DebugPlan, Doing, Engine,
    Entropy, Fate, Isa, Kick, Made, NestedView, Origin, Partition, PartitionParts, Space, Stat, Stretch,
    TimeSource, Until, Vcpu, VcpuParts, WatchAccess, Watchpoint, Whereabouts,
};
pub use satori_state::Parts;
