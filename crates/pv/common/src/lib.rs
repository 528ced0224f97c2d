//! What KVM's and Xen's guest interfaces share: the layout by which a guest reads time from its counter ([`TimeScale`],
//! [`TimeArea`], [`wall_clock`]), a personality's leaves at a CPUID base ([`signature`]), counts of what a guest
//! uses of what it is offered ([`Usage`]), what is wrong in the words that choose it ([`Mistake`]), and the
//! same choice in another tool's words ([`Written`]).
//!
//! The time layout is one: Xen's `vcpu_time_info` and KVM's `pvclock_vcpu_time_info` have the same 32 bytes.

#![forbid(unsafe_code)]

mod clock;
mod mistake;
mod personality;
mod usage;
mod written;

pub use clock::{AREA_BYTES, STABLE, TimeArea, TimeScale, WAS_STOPPED, wall_clock};
pub use mistake::{Mistake, Mistakes, Place};
pub use personality::{BASE, STEP, signature};
pub use usage::{Named, SavedUsage, Usage, Used};
pub use written::Written;
