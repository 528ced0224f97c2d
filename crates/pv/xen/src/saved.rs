//! The domain as plain data.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use satori_defs::xen::fifo;
use satori_memory::{Gpa, PAGE_SIZE, Region};
use satori_pv::SavedUsage;
use serde::{Deserialize, Serialize};

use crate::domain::{State, VcpuShared};
use crate::events::Port;
use crate::{Domain, Vcpu};

/// Everything of a domain that a guest can change, but for its [`Vcpu`]s and the pages in its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    state: State,
    /// The interrupt line that is asserted.
    line: u8,
    usage: SavedUsage,
}

/// Beyond all guest-physical addresses; what lies a page behind the last one still is a number.
const PLACES: u64 = 1 << 52;

impl VcpuShared {
    /// The addresses at which something of it is written.
    fn places(&self) -> impl Iterator<Item = u64> {
        let times = self.times.iter().flatten().map(|area| area.gpa().0);
        [self.info, self.runstate].into_iter().flatten().chain(times)
    }
}

impl satori_save::State for Saved {
    const NAME: &'static str = "Xen interface";
    const VERSION: u32 = 4;
}

impl satori_save::State for Vcpu {
    const NAME: &'static str = "Xen vCPU";
    const VERSION: u32 = 1;
}

impl Domain {
    /// All that a guest has set.
    pub fn save(&self) -> Saved {
        Saved { state: self.state().clone(), line: self.line.load(Relaxed), usage: self.usage.save() }
    }

    /// Goes on from there; false if it cannot be of this domain. Addresses in it are looked at whenever they are used.
    #[must_use]
    pub fn restore(&self, saved: Saved) -> bool {
        let mut own = self.state();
        let (vcpus, ports) = (own.vcpus.len(), saved.state.ports.len());
        let bound = |port: &Port| {
            let loops = matches!(port, Port::Loop { port, .. } if *port as usize >= ports);
            !loops && port.vcpu().is_none_or(|vcpu| (vcpu as usize) < vcpus)
        };
        let places =
            saved.state.shared_info.into_iter().chain(saved.state.vcpus.iter().flat_map(VcpuShared::places));
        let somewhere = places.into_iter().all(|place| place < PLACES);
        let console = (saved.state.console_port as usize) < ports;
        let fifo = saved.state.fifo.as_ref();
        let most = if fifo.is_some() { fifo::PORTS } else { crate::events::PORTS } as usize;
        let store =
            (saved.state.store_port as usize) < ports && saved.state.store.fits() && saved.state.pipe.fits();
        if !self.add_again(&own.added, &saved.state.added) {
            return false;
        }
        let queues = fifo.is_none_or(|fifo| fifo.fits(&self.memory, vcpus));
        let fits = saved.state.vcpus.len() == vcpus
            && (1..=most).contains(&ports)
            && console
            && store
            && saved.state.grants.fits()
            && queues;
        if !fits || !somewhere || !saved.state.ports.iter().all(bound) || !self.usage.restore(&saved.usage) {
            return false;
        }
        *own = saved.state;
        // The line itself has a state of its own.
        self.line.store(saved.line, Relaxed);
        self.follow_callback(&own);
        true
    }

    /// Gives the guest the RAM that came since its machine began, and takes what is there instead.
    fn add_again(&self, there: &BTreeMap<u64, u64>, added: &BTreeMap<u64, u64>) -> bool {
        let wrong = |(start, len): (&u64, &u64)| *start >= PLACES || *len > PAGE_SIZE * 64;
        if added.len() > 256 || added.iter().any(wrong) {
            return false;
        }
        let mut gone = there.iter().filter(|(start, len)| added.get(start) != Some(len));
        let removed = gone.all(|(start, _)| self.memory.remove(Gpa(*start)).is_ok());
        let new = added.iter().filter(|(start, len)| there.get(start) != Some(len));
        removed
            && new
                .into_iter()
                .all(|(&start, &len)| self.memory.add(Region { start: Gpa(start), len }).is_ok())
    }
}
