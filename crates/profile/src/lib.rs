//! What the exits of a partition were, how many, and how long they took.
//!
//! A [`Meter`] stands in each vCPU's loop and is told of every exit and every entry; the time
//! between the two is the exit's, HLT's idle time included, as `perf kvm stat` has it. Times come
//! from a closure, so that under virtual time the table is as repeatable as the run, and a
//! meter that is off never calls it.
//!
//! [`Profile`] joins the vCPUs and prints as JSON ([`Profile::json`]), of which crate `report` makes tables.

mod json;
mod meter;
mod sample;
mod shares;
mod text;

pub use meter::Meter;
pub use sample::{ExitProfile, Samples};
pub use shares::Shares;

use satori_engine::Stat;

/// The exits of every vCPU, and the counters of the engine and the machine beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// One a vCPU, by index.
    pub vcpus: Vec<ExitProfile>,
    /// Name and value, summed over vCPUs, in the order in which they were first told.
    pub stats: Vec<(String, u64)>,
    /// Where the engine's time went, if that was asked for.
    pub shares: Option<Shares>,
}

impl Profile {
    /// All vCPUs as one.
    pub fn all(&self) -> ExitProfile {
        let mut all = ExitProfile::default();
        self.vcpus.iter().for_each(|vcpu| all.merge(vcpu));
        all
    }

    /// Adds counters; those of the same name are summed.
    pub fn add_stats(&mut self, stats: &[Stat]) {
        for &(name, value) in stats {
            match self.stats.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum = sum.saturating_add(value),
                None => self.stats.push((name.to_owned(), value)),
            }
        }
    }
}
