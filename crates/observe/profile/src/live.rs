//! What a running machine tells who watches it: a line of JSON each time it is asked.

use std::collections::BTreeMap;

use satori_bus::Nanos;
use serde::{Deserialize, Serialize};

use crate::{Place, Recorded};

/// What [`Live::format`] is.
pub const FORMAT: &str = "satori-live";
/// The version of this form.
pub const LIVE_VERSION: u64 = 1;
/// Addresses that are told, those that exited most.
pub(crate) const HOTTEST: usize = 64;

/// Everything since the start of the guest, or since its last reset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// [`FORMAT`].
    pub format: String,
    /// [`LIVE_VERSION`].
    pub version: u64,
    /// Guest time.
    pub now_ns: Nanos,
    /// By index.
    pub vcpus: Vec<LiveVcpu>,
    /// What was used of each enlightenment, by name; uses by MSR and hypercall.
    pub hyperv: BTreeMap<String, BTreeMap<String, u64>>,
    /// The addresses that exited most.
    pub hot: Vec<LiveHot>,
    /// What the engine counts by itself, of all vCPUs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub engine: BTreeMap<String, u64>,
}

/// One vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveVcpu {
    /// Count and nanoseconds of exits by reason.
    pub exits: BTreeMap<String, (u64, Nanos)>,
    /// Injected interrupts by vector.
    pub interrupts: BTreeMap<u8, u64>,
}

/// An address of the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveHot {
    /// Why it exits.
    pub reason: String,
    /// RIP.
    pub rip: u64,
    /// How often.
    pub count: u64,
    /// The guest's function, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symbol: Option<String>,
}

impl Live {
    /// A picture at `now`, which was before `vcpus` were looked at; of the enlightenments it knows nothing yet.
    pub fn new(now: Nanos, vcpus: &[Recorded], name: impl Fn(u64) -> Option<String>) -> Self {
        let mut places = BTreeMap::new();
        vcpus.iter().for_each(|vcpu| vcpu.hot.add_to(&mut places));
        let hot = hottest(&places, HOTTEST).into_iter().map(|((reason, rip), place)| LiveHot {
            reason: reason.name().into(),
            rip,
            count: place.count,
            symbol: name(rip),
        });
        Live {
            format: FORMAT.into(),
            version: LIVE_VERSION,
            now_ns: now,
            vcpus: vcpus.iter().map(|vcpu| LiveVcpu::new(vcpu, now)).collect(),
            hyperv: BTreeMap::new(),
            hot: hot.collect(),
            engine: BTreeMap::new(),
        }
    }
}

impl LiveVcpu {
    fn new(recorded: &Recorded, now: Nanos) -> Self {
        let exits = recorded.exits.rows().into_iter();
        let interrupts = (0..=u8::MAX).zip(recorded.interrupts.iter().copied());
        let mut exits: BTreeMap<String, _> =
            exits.map(|(reason, one)| (reason.name().into(), (one.count, one.total))).collect();
        // The time of an exit that is not over, such as a halt of seconds, belongs to the pictures in which it passes.
        if let Some((reason, since)) = recorded.waiting {
            let (_, total) = exits.entry(reason.name().into()).or_default();
            *total = total.saturating_add(now.saturating_sub(since));
        }
        LiveVcpu { exits, interrupts: interrupts.filter(|(_, count)| *count > 0).collect() }
    }
}

/// The key of a place.
type Key = (satori_seam::Reason, u64);

/// At most `most` places, most exits first; of equals, in the order of their keys.
pub(crate) fn hottest(places: &BTreeMap<Key, Place>, most: usize) -> Vec<(Key, Place)> {
    let mut rows: Vec<_> = places.iter().map(|(key, place)| (*key, *place)).collect();
    rows.sort_by_key(|(key, place)| (std::cmp::Reverse(place.count), *key));
    rows.truncate(most);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ALL, HLT};
    use crate::{Meter, Timing, Watched};

    #[test]
    fn a_halt_counts_in_the_pictures_in_which_it_passes() {
        let watched = Watched::default();
        let mut meter = Meter::new(ALL, true, Timing::Each);
        meter.watch(watched.clone());
        let halted = |now| {
            let live = Live::new(now, &[watched.lock().clone()], |_| None);
            live.vcpus[0].exits.get("HLT").copied().unwrap_or_default()
        };
        assert_eq!(halted(50), (0, 0));
        meter.exit(HLT, true, 0x1000, || 100);
        assert_eq!(halted(600), (0, 500));
        assert_eq!(halted(1_600), (0, 1_500));
        meter.entry(|| 2_000);
        assert_eq!(halted(2_500), (1, 1_900));
    }
}
