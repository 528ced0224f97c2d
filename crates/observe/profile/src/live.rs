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
pub const HOTTEST: usize = 64;

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
    /// A picture at `now`; of the enlightenments it knows nothing yet.
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
            vcpus: vcpus.iter().map(LiveVcpu::new).collect(),
            hyperv: BTreeMap::new(),
            hot: hot.collect(),
        }
    }
}

impl LiveVcpu {
    fn new(recorded: &Recorded) -> Self {
        let exits = recorded.exits.rows().into_iter();
        let interrupts = (0..=u8::MAX).zip(recorded.interrupts.iter().copied());
        LiveVcpu {
            exits: exits.map(|(reason, one)| (reason.name().into(), (one.count, one.total))).collect(),
            interrupts: interrupts.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

/// The key of a place.
type Key = (satori_defs::vmx::ExitReason, u64);

/// At most `most` places, most exits first; of equals, in the order of their keys.
pub(crate) fn hottest(places: &BTreeMap<Key, Place>, most: usize) -> Vec<(Key, Place)> {
    let mut rows: Vec<_> = places.iter().map(|(key, place)| (*key, *place)).collect();
    rows.sort_by_key(|(key, place)| (std::cmp::Reverse(place.count), *key));
    rows.truncate(most);
    rows
}
