//! The Hyper-V guest interface, without an engine (TLFS: the Top-Level Functional Specification).
//!
//! [`Partition`] is shared by all vCPUs, [`Vp`] belongs to one. The machine asks for the CPUID
//! leaves once ([`Config::leaves`]), and hands over MSR accesses ([`Partition::msr_read`],
//! [`Partition::msr_write`]) and hypercalls ([`Partition::hypercall`]) as they come. What a
//! guest does is answered by values: a fault, or an [`Outcome`] that asks the machine to act.
//!
//! What exists is said by one table, [`Enlightenment::ALL`]. CPUID bits, the MSRs that answer,
//! the words of options and files ([`choice`]), the pages in `docs/hyperv` are all read from there; an MSR
//! or hypercall whose enlightenment is off is refused.
//!
//! Reference time is the partition's TSC scaled by the same 64.64 factor that the reference TSC
//! page holds, so the page, TIME_REF_COUNT and the host agree to the last unit.

#![forbid(unsafe_code)]

mod assist;
pub mod choice;
mod clock;
mod config;
mod cpuid;
mod enlightenment;
mod extended;
mod flush;
mod hypercall;
mod ipi;
mod msr;
mod overlay;
mod partition;
mod reenlightenment;
mod saved;
mod slots;
mod spin;
mod stimer;
mod synic;
mod testdev;
mod usage;
mod vp_set;

pub use clock::ReferenceClock;
pub use config::{Config, Error, SPIN_NEVER, SPIN_RETRIES, Set, Version};
pub use enlightenment::{Auto, CpuidBit, Enlightenment, Row};
pub use flush::Flush;
pub use hypercall::{CallRow, Completion, Hypercall, Input, Request, Ud, call_name};
pub use msr::BESIDE_XEN;
pub use partition::{Crash, Frequencies, Outcome, Partition, Vp};
pub use saved::{Saved, Unfit};
pub use slots::{Interrupt, Slots};
pub use synic::{HostPort, Interrupts, Message, PortKind, Refusal, SavedSynic, Target};
pub use testdev::TestDevice;
pub use usage::Usage;
pub use vp_set::VpSet;
