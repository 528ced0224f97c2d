//! Looks at what the vCPUs are doing, every half a millisecond, for `--engine-stats`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use satori_profile::Shares;
use satori_seam::Whereabouts;

use crate::shared::Shared;

/// Time between two looks.
const PERIOD: Duration = Duration::from_micros(500);

/// Samples until the machine stops. Each look counts for the time since the one before, so that one that
/// came late changes no sum.
pub(crate) fn run(vcpus: &[Option<Arc<Whereabouts>>], shared: &Shared) -> Shares {
    let mut shares = Shares::default();
    let mut before = Instant::now();
    while !shared.stopping() {
        std::thread::sleep(PERIOD);
        let now = Instant::now();
        let passed = u64::try_from((now - before).as_nanos()).unwrap_or(u64::MAX);
        before = now;
        vcpus.iter().flatten().for_each(|vcpu| shares.add(vcpu.get(), passed));
    }
    shares
}
