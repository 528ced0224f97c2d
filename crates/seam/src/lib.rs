//! The seam between a machine and whatever executes its instructions, of any instruction set.
//!
//! An [`Isa`] is a family of types: what a vCPU of it consists of, why it stops, and what it is answered. An [`Engine`]
//! makes a [`Partition`], which makes [`Vcpu`]s. The machine runs
//!
//! ```text
//! loop { let exit = vcpu.run(until);  let answer = dispatch(exit);  vcpu.resume(answer); }
//! ```
//!
//! What an engine cannot do is asked of it ([`Capability`]), not known by the machine. A vCPU's registers are fetched and
//! set in parts ([`Isa::Parts`]), since for some engines each part costs a system call.

#![forbid(unsafe_code)]

mod capability;
mod debug;
mod doing;
mod engine;
mod isa;
mod kick;
mod made;
mod nested;
mod reason;
mod space;
mod time;
mod vcpu;

pub use capability::{Capabilities, Capability};
pub use debug::{DebugCause, DebugPlan, WatchAccess, Watchpoint};
pub use doing::{Doing, Whereabouts};
pub use engine::{Engine, Entropy, Partition, PartitionParts, VcpuParts};
pub use isa::Isa;
pub use kick::Kick;
pub use made::{CodeWatcher, Made, Origin};
pub use nested::{NestedView, Stretch};
pub use reason::{Class, Reason, ReasonRow};
pub use space::Space;
pub use time::{OfHost, TimeSource, Until};
pub use vcpu::{AtOnce, Counts, Fate, Stat, Vcpu};
