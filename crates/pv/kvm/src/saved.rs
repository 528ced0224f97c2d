//! The VM as plain data.

use std::sync::atomic::Ordering;

use satori_pv::SavedUsage;
use serde::{Deserialize, Serialize};

use crate::vm::Times;
use crate::{Vcpu, Vm};

/// Everything of a VM that a guest can change, but for its [`Vcpu`]s, which are plain data themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Saved {
    times: Times,
    /// By vCPU: it was kicked, and has not left HLT for it yet.
    kicked: Vec<bool>,
    usage: SavedUsage,
}

impl satori_save::State for Saved {
    const NAME: &'static str = "KVM interface";
    const VERSION: u32 = 1;
}

impl satori_save::State for Vcpu {
    const NAME: &'static str = "KVM vCPU";
    const VERSION: u32 = 1;
}

impl Vm {
    /// All that a guest has set.
    pub fn save(&self) -> Saved {
        Saved {
            times: self.times().clone(),
            kicked: self.kicked.iter().map(|latch| latch.load(Ordering::SeqCst)).collect(),
            usage: self.usage.save(),
        }
    }

    /// Goes on from there; false if it cannot be of this VM. Whatever numbers there are in it, the VM works
    /// with them: addresses are looked at whenever they are used.
    #[must_use]
    pub fn restore(&self, saved: Saved) -> bool {
        let vcpus = self.apic_ids.len();
        let fits = saved.times.vcpus.len() == vcpus && saved.kicked.len() == vcpus;
        if !fits || !self.usage.restore(&saved.usage) {
            return false;
        }
        *self.times() = saved.times;
        for (latch, kicked) in self.kicked.iter().zip(saved.kicked) {
            latch.store(kicked, Ordering::SeqCst);
        }
        true
    }
}
