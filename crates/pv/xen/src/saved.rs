//! The partition as plain data.

use satori_defs::xen::fifo;
use satori_pv::SavedUsage;
use serde::{Deserialize, Serialize};

use crate::events::Port;
use crate::partition::State;
use crate::{Partition, Vp};

/// Everything of a partition that a guest can change, but for its [`Vp`]s and the pages in its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    state: State,
    usage: SavedUsage,
}

impl satori_save::State for Saved {
    const NAME: &'static str = "Xen interface";
    const VERSION: u32 = 2;
}

impl satori_save::State for Vp {
    const NAME: &'static str = "Xen vCPU";
    const VERSION: u32 = 1;
}

impl Partition {
    /// All that a guest has set.
    pub fn save(&self) -> Saved {
        Saved { state: self.state().clone(), usage: self.usage.save() }
    }

    /// Goes on from there; false if it cannot be of this partition. Addresses in it are looked at whenever they are used.
    #[must_use]
    pub fn restore(&self, saved: Saved) -> bool {
        let mut own = self.state();
        let (vcpus, ports) = (own.vcpus.len(), saved.state.ports.len());
        let loops = |port: &Port| !matches!(port, Port::Loop { port, .. } if *port as usize >= ports);
        let console = (saved.state.console_port as usize) < ports;
        let fifo = saved.state.fifo.as_ref();
        let most = if fifo.is_some() { fifo::PORTS } else { crate::events::PORTS } as usize;
        let queues = fifo.is_none_or(|fifo| fifo.fits(&self.memory, vcpus));
        let fits = saved.state.vcpus.len() == vcpus && (1..=most).contains(&ports) && console && queues;
        if !fits || !saved.state.ports.iter().all(loops) || !self.usage.restore(&saved.usage) {
            return false;
        }
        *own = saved.state;
        true
    }
}
