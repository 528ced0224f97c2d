//! Changing the frequency of the guest's TSC while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use satori_bus::{Clock, Nanos, Timer};
use satori_hyperv::Partition;

use crate::TscChange;

/// Slowest TSC that Hyper-V's 10 MHz reference time can follow, with some room.
pub(crate) const SLOWEST: u64 = 20_000_000;

/// Changes the frequency: with the guest's knowledge where it can be told, else at once.
pub(crate) fn change(
    hz: u64,
    clock: &dyn Clock,
    partition: Option<&Partition>,
    kvm: Option<&satori_kvm::Vm>,
    xen: Option<&satori_xen::Domain>,
) {
    match partition {
        Some(partition) => partition.change_tsc_frequency(hz),
        None => {
            let mut at = 0;
            clock.set_guest_counter_hz(hz, &mut |_, guest| {
                at = guest;
                guest
            });
            if let Some(kvm) = kvm {
                kvm.tsc_changed(hz, at);
            }
            if let Some(xen) = xen {
                xen.tsc_changed(hz, at);
            }
        }
    }
}

/// The change that the configuration asks for: once in a run, through all resets.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    change: TscChange,
    done: Arc<AtomicBool>,
}

impl Planned {
    pub(crate) fn new(change: TscChange) -> Self {
        Planned { change, done: Arc::default() }
    }

    /// Whether it was made.
    pub(crate) fn done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    /// Says whether it was made.
    pub(crate) fn set_done(&self, done: bool) {
        self.done.store(done, Ordering::SeqCst);
    }

    /// When it is due, in guest time.
    pub(crate) fn at(&self) -> Nanos {
        self.change.at.as_nanos().try_into().unwrap_or(Nanos::MAX)
    }

    /// The timer of one life.
    pub(crate) fn timer(
        &self,
        clock: Arc<dyn Clock>,
        partition: Option<Arc<Partition>>,
        kvm: Option<Arc<satori_kvm::Vm>>,
        xen: Option<Arc<satori_xen::Domain>>,
    ) -> Arc<dyn Timer> {
        Arc::new(Due { planned: self.clone(), clock, partition, kvm, xen })
    }
}

struct Due {
    planned: Planned,
    clock: Arc<dyn Clock>,
    partition: Option<Arc<Partition>>,
    kvm: Option<Arc<satori_kvm::Vm>>,
    xen: Option<Arc<satori_xen::Domain>>,
}

impl Timer for Due {
    fn expired(&self, _now: Nanos) {
        if !self.planned.done.swap(true, Ordering::SeqCst) {
            let hz = self.planned.change.hz;
            tracing::info!(hz, "the TSC's frequency changes");
            change(hz, &*self.clock, self.partition.as_deref(), self.kvm.as_deref(), self.xen.as_deref());
        }
    }
}
