//! The state that all vCPUs share, and that of one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU16};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use satori_bus::{Clock, Nanos};
use satori_lock::Held;
use satori_memory::{Gpa, GuestMemory, Region};
use satori_pv::{Named, TimeArea, TimeScale, Usage, Used};
use satori_xenstore::Store;
use serde::{Deserialize, Serialize};

use crate::delivery::{NO_LINE, NO_VECTOR};
use crate::events::Port;
use crate::fifo::Fifo;
use crate::grants::Grants;
use crate::store::Pipe;
use crate::{CALLS, Config};

/// Pages beyond RAM that host and guest share, where Xen's own tools have them: the store's, and the console's.
pub const SPECIAL: Region = Region { start: Gpa(0xfeff_c000), len: 0x4000 };
/// The console's.
pub(crate) const CONSOLE_GFN: u64 = 0xfefff;
/// The store's.
pub(crate) const STORE_GFN: u64 = 0xfeffc;

/// A range of the guest's memory map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// First address.
    pub start: u64,
    /// Its bytes.
    pub len: u64,
    /// Its type, as an e820 map has it.
    pub kind: u32,
}

/// What the interface asks of its machine at any time.
pub trait Host: Send + Sync {
    /// Requests `vector`, an edge, at the local APIC of `vcpu`. If it is the vCPU's `own` thread that asks, it is not woken.
    fn request(&self, vcpu: u32, vector: u8, own: bool);
    /// Wakes `vcpu`, or brings it out of the guest.
    fn wake(&self, vcpu: u32);
    /// Asserts the line of a global system interrupt, or lets it go.
    fn line(&self, gsi: u8, asserted: bool);
    /// The global system interrupt of a pin, 0 to 3, of a device on PCI bus 0.
    fn intx(&self, device: u8, pin: u8) -> u8;
    /// The guest wrote this to its console, or made room there for what is typed.
    fn console(&self, bytes: &[u8]);
}

/// Who is behind the ports of devices, and looks at the store as the guest changes it. Both run on a vCPU's thread.
pub trait BackEnds: Send + Sync {
    /// The guest notified the port that is bound to this back end.
    fn notified(&self, back: u32);
    /// The guest changed these paths of the store.
    fn changed(&self, paths: &[String]);
}

/// One vCPU's timers and waits, owned by its thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vcpu {
    pub(crate) index: u32,
    /// System time at which the timer expires.
    pub(crate) singleshot: Option<Nanos>,
    /// The period, and when it is over next.
    pub(crate) periodic: Option<(Nanos, Nanos)>,
    /// It polls ports, until this time at most; `Nanos::MAX` is without an end.
    pub(crate) polling: Option<(Vec<u32>, Nanos)>,
    /// It sleeps since then.
    pub(crate) asleep: Option<Nanos>,
}

impl Vcpu {
    /// The vCPU with this number.
    pub fn new(index: u32) -> Self {
        Vcpu { index, singleshot: None, periodic: None, polling: None, asleep: None }
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// What others may have to do with of a vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VcpuShared {
    /// Where its vcpu_info was placed.
    pub info: Option<u64>,
    /// Its vector for events; 0 is none.
    pub vector: u8,
    /// The time areas: that of its vcpu_info, and one more.
    pub times: [Option<TimeArea>; 2],
    /// What its counter is ahead of the machine's.
    pub tsc_offset: u64,
    /// It sleeps in a poll.
    pub polling: bool,
    /// Where its runstate is written.
    pub runstate: Option<u64>,
    pub state: u32,
    pub since: Nanos,
    pub spent: [Nanos; 4],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    pub scale: TimeScale,
    /// Where the shared_info page is.
    pub shared_info: Option<u64>,
    pub vcpus: Vec<VcpuShared>,
    /// By number; port 0 is none.
    pub ports: Vec<Port>,
    /// The FIFO ABI, once the guest has asked for it.
    pub fifo: Option<Fifo>,
    /// HVM_PARAM_CALLBACK_IRQ, and what else the guest may set.
    pub callback: u64,
    pub runstate_flag: bool,
    /// The host's end of the console.
    pub console_port: u32,
    /// That of the store.
    pub store_port: u32,
    pub store: Store,
    pub pipe: Pipe,
    pub grants: Grants,
    /// RAM that came since the machine began, for pages that the guest placed where none was: where it begins, and how long it is.
    pub added: BTreeMap<u64, u64>,
    /// Pages that the guest gave away: by 64 of them, a bit each.
    pub given: BTreeMap<u64, u64>,
}

/// Xen's side of a machine.
pub struct Domain {
    pub(crate) memory: GuestMemory,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) config: Config,
    /// The processors are AMD's: the hypercall page has VMMCALL.
    pub(crate) amd: bool,
    /// RAM as the machine began, the pages of [`SPECIAL`] not among it.
    pub(crate) ram: Vec<Region>,
    pub(crate) back_ends: OnceLock<Arc<dyn BackEnds>>,
    /// What the guest was told of its memory at its entry.
    pub(crate) map: OnceLock<Vec<MapEntry>>,
    state: Mutex<State>,
    /// The callback vector, as the state's `callback` says, or [`NO_VECTOR`].
    pub(crate) vector: AtomicU16,
    /// The interrupt line that it asserts, or [`NO_LINE`].
    pub(crate) line: AtomicU8,
    pub(crate) usage: Usage,
}

impl Domain {
    /// The interface that `config` offers to a machine of `vcpus` vCPUs, whose processors are `amd`'s or Intel's.
    pub fn new(
        config: Config,
        memory: GuestMemory,
        clock: Arc<dyn Clock>,
        vcpus: u32,
        amd: bool,
        host: Arc<dyn Host>,
    ) -> Self {
        let row = |row: &crate::CallRow| Named {
            name: row.name,
            offered: true,
            ways: row.commands.iter().map(|(_, name)| (*name).into()).chain(["other".into()]).collect(),
            seen: true,
        };
        let state = State {
            scale: TimeScale::new(clock.counter_hz(), 0, 0),
            shared_info: None,
            vcpus: (0..vcpus).map(|_| VcpuShared::default()).collect(),
            ports: vec![Port::Free, Port::host_console(), Port::Store { vcpu: 0 }],
            fifo: None,
            callback: 0,
            runstate_flag: false,
            console_port: 1,
            store_port: 2,
            store: Store::default(),
            pipe: Pipe::default(),
            grants: Grants::default(),
            added: BTreeMap::new(),
            given: BTreeMap::new(),
        };
        let ram = memory.regions().filter(|region| region.start != SPECIAL.start).collect();
        let domain = Domain {
            config,
            memory,
            ram,
            back_ends: OnceLock::new(),
            map: OnceLock::new(),
            clock,
            host,
            amd,
            state: Mutex::new(state),
            vector: AtomicU16::new(NO_VECTOR),
            line: AtomicU8::new(NO_LINE),
            usage: Usage::new("Xen", CALLS.iter().map(row).collect()),
        };
        domain.begin_store(&mut domain.state());
        domain
    }

    /// Has these back ends behind the guest's devices, from the beginning on.
    pub fn with_back_ends(&self, back_ends: Arc<dyn BackEnds>) {
        // Once: whoever comes later has no devices.
        let _ = self.back_ends.set(back_ends);
    }

    /// Answers memory_map with what the guest was told at its entry.
    pub fn with_memory_map(&self, map: Vec<MapEntry>) {
        // Once: a life is loaded once.
        let _ = self.map.set(map);
    }

    /// What it offers.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Guest memory.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// Pages of RAM as the machine began.
    pub(crate) fn ram_pages(&self) -> u64 {
        self.ram.iter().map(|region| region.len / satori_memory::PAGE_SIZE).sum()
    }

    /// What the guest has called until now.
    pub fn usage(&self) -> Vec<Used> {
        self.usage.report()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().held()
    }
}

impl State {
    /// Where the vcpu_info of `vcpu` is.
    pub(crate) fn vcpu_info(&self, vcpu: u32) -> Option<Gpa> {
        use satori_defs::xen::shared_info;
        let own = self.vcpus.get(vcpu as usize)?.info;
        let shared = (vcpu < shared_info::VCPU_INFOS)
            .then_some(self.shared_info)
            .flatten()
            .map(|page| page + u64::from(vcpu) * shared_info::VCPU_INFO);
        own.or(shared).map(Gpa)
    }
}
