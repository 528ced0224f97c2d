//! The seam between a machine and whatever executes its instructions.
//!
//! An [`Engine`] is a processor, not a policy: it raises the exits that a VMX processor with
//! the chosen [`Controls`] would raise, and takes an answer. Both are values. The machine runs
//!
//! ```text
//! loop { let exit = vcpu.run(until);  let answer = dispatch(exit);  vcpu.resume(answer); }
//! ```

#![forbid(unsafe_code)]

mod debug;
mod doing;
mod exit;
mod kick;
mod made;
mod processor;
mod vcpu;

pub use debug::{DebugCause, DebugPlan, WatchAccess, Watchpoint};
pub use doing::{Doing, Whereabouts};
pub use exit::{CpuidResult, Exception, Exit, Resume};
pub use kick::Kick;
pub use made::{CodeWatcher, Made, Origin};
pub use processor::{CONTROLS, NoProcessor, Processor, Vmx, VmxRow};
pub use vcpu::{Controls, Engine, Entropy, Event, Stat, TimeSource, Until, Vcpu, VcpuParts};
