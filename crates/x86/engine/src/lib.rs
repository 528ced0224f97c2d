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

pub use exit::{CpuidResult, Exception, Exit, Resume};
pub use isa::{Controls, Event, Nesting, Window, X86};
pub use processor::{CONTROLS, NoProcessor, Vmx, VmxProcessor, VmxRow};
pub use satori_seam::{
    Capabilities, Capability, CodeWatcher, DebugCause, DebugPlan, Doing, Engine, Entropy, Isa, Kick, Made,
    Origin, Partition, PartitionParts, Space, Stat, TimeSource, Until, Vcpu, VcpuParts, WatchAccess,
    Watchpoint, Whereabouts,
};
pub use satori_state::Parts;
