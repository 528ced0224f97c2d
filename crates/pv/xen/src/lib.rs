//! Xen's interface for guests with hardware's memory management (PVH and HVM), without Xen and without an engine
//! (Xen, `xen/include/public`).
//!
//! [`Domain`] is shared by all vCPUs, [`Vcpu`] belongs to one. The machine asks for the CPUID leaves once ([`leaves()`]), hands over
//! hypercalls ([`Domain::hypercall`]) as they come, runs the timers of a vCPU ([`Domain::run_timers`]), and is asked to act by
//! an [`Outcome`] or through its [`Host`]. Pages that guest and host share are pages of the guest's own memory.
//!
//! Which calls there are is said by one table ([`CALLS`]): names for the report, and who serves them. What is in no row answers
//! that it does not exist.

#![forbid(unsafe_code)]

mod calls;
pub mod choice;
mod config;
mod console;
mod delivery;
mod domain;
mod events;
mod fifo;
mod grants;
mod hvm;
mod hypercall;
mod leaves;
mod memory;
mod saved;
mod sched;
mod store;
#[cfg(test)]
mod tests;
mod timers;
mod vcpu;
mod version;

pub use calls::{CALLS, CallRow};
pub use config::{Config, FEATURES, Feature, FeatureRow, Kind, TscMode};
pub use domain::{BackEnds, Domain, Host, MapEntry, SPECIAL, Vcpu};
pub use grants::Copied;
pub use hypercall::{Caller, Outcome};
pub use leaves::leaves;
pub use satori_xenstore::Store;
pub use saved::Saved;
