//! What the exits of a partition were, how many, and how long they took.
//!
//! A [`Meter`] stands in each vCPU's loop and is told of every exit and every entry; the time
//! between the two is the exit's, HLT's idle time included, as `perf kvm stat` has it. Times are the
//! caller's, so that under virtual time the table is as repeatable as the run. Beside the counts it keeps
//! when exits happened ([`Timeline`]) and where in the guest ([`Hot`]), both in bounded memory.
//!
//! [`Profile`] joins the vCPUs and prints as JSON ([`Profile::json`]), of which crate `report` makes tables.

#![forbid(unsafe_code)]

mod hot;
mod json;
mod live;
mod meter;
mod sample;
mod saved;
mod shares;
#[cfg(test)]
mod testing;
mod text;
mod timeline;

use std::collections::BTreeMap;

pub use hot::{Hot, Place};
pub use live::{FORMAT, LIVE_VERSION, Live, LiveHot, LiveVcpu};
pub use meter::{Meter, Recorded, Timing, Watched};
pub use sample::{ExitProfile, Samples};
use satori_seam::{Reason, Stat};
pub use shares::Shares;
pub use timeline::Timeline;

/// The exits of every vCPU, and the counters of the engine and the machine beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// One a vCPU, by index.
    pub vcpus: Vec<ExitProfile>,
    /// Name and value, summed over vCPUs, in the order in which they were first told.
    pub stats: Vec<(String, u64)>,
    /// Where the engine's time went, if that was asked for.
    pub shares: Option<Shares>,
    /// The exits of all vCPUs over time.
    pub timeline: Timeline,
    /// Where the exits of all vCPUs came from: reason and address.
    pub hot: BTreeMap<(Reason, u64), Place>,
}

impl Profile {
    /// All vCPUs as one.
    pub fn all(&self) -> ExitProfile {
        let mut all = ExitProfile::default();
        self.vcpus.iter().for_each(|vcpu| all.merge(vcpu));
        all
    }

    /// Adds what vCPU `index` counted.
    pub fn add(&mut self, index: usize, recorded: &Recorded) {
        if self.vcpus.len() <= index {
            self.vcpus.resize_with(index + 1, Default::default);
        }
        self.vcpus[index].merge(&recorded.exits);
        self.timeline.merge(&recorded.timeline);
        recorded.hot.add_to(&mut self.hot);
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
