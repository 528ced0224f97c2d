//! Which of the host's processors the machine's threads may use.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Processors of the host for each thread; an empty list leaves it to the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// For each vCPU; those beyond the end are free.
    pub vcpus: Vec<Vec<u32>>,
    /// For the platform's timers.
    pub timers: Vec<u32>,
}

impl Pins {
    /// Whether anything is pinned.
    pub fn any(&self) -> bool {
        !self.timers.is_empty() || self.vcpus.iter().any(|cpus| !cpus.is_empty())
    }

    /// The processors for vCPU `index`.
    pub(crate) fn vcpu(&self, index: u32) -> Vec<u32> {
        self.vcpus.get(index as usize).cloned().unwrap_or_default()
    }

    /// The processors for one thread that runs `count` vCPUs: those of all, if all are pinned.
    pub(crate) fn all(&self, count: usize) -> Vec<u32> {
        let pinned = self.vcpus.iter().filter(|cpus| !cpus.is_empty()).count();
        if pinned < count { Vec::new() } else { self.vcpus.concat() }
    }
}

/// The processors that this process may use.
pub fn host_processors() -> Vec<u32> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).filter_map(|cpu| cpu.try_into().ok()).collect()
}

/// Lets the calling thread run on `cpus` only.
pub(crate) fn pin(cpus: &[u32]) {
    if cpus.is_empty() {
        return;
    }
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu as usize));
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::warn!("a thread cannot be pinned to {cpus:?}: {error}");
    }
}
