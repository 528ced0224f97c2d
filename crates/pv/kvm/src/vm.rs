//! The state that all vCPUs share, and that of one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use satori_bus::{Clock, Nanos};
use satori_defs::kvm::ENABLED;
use satori_lock::Held;
use satori_memory::{Gpa, GuestMemory};
use satori_pv::{Named, STABLE, TimeArea, TimeScale, Usage, Used};
use serde::{Deserialize, Serialize};

use crate::{Config, Feature, call_name};

/// Brings a vCPU out of the guest, or out of its sleep.
pub trait Wake: Send + Sync {
    /// Wakes vCPU number `vcpu`.
    fn wake(&self, vcpu: u32);
}

impl<F: Fn(u32) + Send + Sync> Wake for F {
    fn wake(&self, vcpu: u32) {
        self(vcpu);
    }
}

/// One vCPU's registers, owned by its thread; its time area is [`Vm`]'s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vcpu {
    pub(crate) index: u32,
    /// MSR 0x4b564d03.
    pub(crate) steal: u64,
    /// MSR 0x4b564d04.
    pub(crate) eoi: u64,
    /// MSR 0x4b564d05.
    pub(crate) poll: u64,
    /// MSR 0x4b564d08.
    pub(crate) migration: u64,
    /// The guest was told that no EOI is required.
    pub(crate) eoi_spared: bool,
    /// The preempted byte of the steal-time area was set, and not looked at since.
    pub(crate) stopped: bool,
    pub(crate) account: Account,
}

/// What steal time follows from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Account {
    /// Time since then is accounted; none behind a restore, as how long threads ran is not of one machine.
    #[serde(skip)]
    pub since: Option<Since>,
    /// When it fell asleep, if it sleeps.
    pub asleep: Option<Nanos>,
    /// What was told, and its version.
    pub stolen: Nanos,
    pub version: u32,
    /// When it is told again at the soonest.
    pub next: Nanos,
}

/// A moment: its time, and how long the vCPU had run then; both grow by what the vCPU sleeps, which is nobody's theft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    pub now: Nanos,
    pub ran: Nanos,
}

impl Vcpu {
    /// The vCPU with this number.
    pub fn new(index: u32) -> Self {
        Vcpu {
            index,
            steal: 0,
            eoi: 0,
            poll: 1,
            migration: 1,
            eoi_spared: false,
            stopped: false,
            account: Account::default(),
        }
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// A vCPU's time MSR, and the area that follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Time {
    pub value: u64,
    pub area: Option<TimeArea>,
    /// What the vCPU's counter is ahead of the machine's.
    pub offset: u64,
}

/// What all vCPUs read time by. All areas are written under the lock of this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Times {
    pub scale: TimeScale,
    /// MSR 0x4b564d00.
    pub wall: u64,
    pub vcpus: Vec<Time>,
}

/// KVM's side of a machine.
pub struct Vm {
    pub(crate) config: Config,
    pub(crate) memory: GuestMemory,
    pub(crate) clock: Arc<dyn Clock>,
    /// By vCPU: its APIC ID.
    pub(crate) apic_ids: Vec<u32>,
    pub(crate) wake: Arc<dyn Wake>,
    times: Mutex<Times>,
    /// By vCPU: it was kicked, and has not left HLT for it yet.
    pub(crate) kicked: Vec<AtomicBool>,
    pub(crate) usage: Usage,
}

impl Vm {
    /// A VM that offers what `config` says to vCPUs with these APIC IDs.
    pub fn new(
        config: Config,
        memory: GuestMemory,
        clock: Arc<dyn Clock>,
        apic_ids: Vec<u32>,
        wake: Arc<dyn Wake>,
    ) -> Self {
        let scale = TimeScale::new(clock.counter_hz(), 0, 0);
        let vcpus = apic_ids.iter().map(|_| Time::default()).collect();
        let row = |one: &Feature| {
            let row = one.row();
            let msrs = row.msrs.iter().map(|msr| format!("MSR {msr:#x}"));
            let calls = row.calls.iter().map(|call| call_name(*call).unwrap_or("call").to_owned());
            let ways: Vec<String> = msrs.chain(calls).chain(row.used.map(Into::into)).collect();
            Named { name: row.name, offered: config.set.has(*one), seen: !ways.is_empty(), ways }
        };
        Vm {
            config,
            memory,
            clock,
            kicked: apic_ids.iter().map(|_| AtomicBool::new(false)).collect(),
            apic_ids,
            wake,
            times: Mutex::new(Times { scale, wall: 0, vcpus }),
            usage: Usage::new("KVM", Feature::ALL.iter().map(row).collect()),
        }
    }

    /// What the VM offers.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the guest has used until now.
    pub fn usage(&self) -> Vec<Used> {
        self.usage.report()
    }

    /// Notes a use of `one` that is neither an MSR access nor a hypercall.
    pub(crate) fn used(&self, one: Feature) {
        let row = one.row();
        self.usage.note(one as usize, row.msrs.len() + row.calls.len(), self.clock.now());
    }

    pub(crate) fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().held()
    }

    /// Flags of a time area.
    pub(crate) fn flags(&self) -> u8 {
        if self.config.set.has(Feature::StableBit) { STABLE } else { 0 }
    }

    /// Puts a time area where `value` says, for a counter that is ahead by `offset`.
    pub(crate) fn set_time(&self, vcpu: u32, value: u64, offset: u64) {
        let mut times = self.times();
        let scale = times.scale;
        let Some(time) = times.vcpus.get_mut(vcpu as usize) else { return };
        let area = (value & ENABLED != 0).then(|| TimeArea::new(Gpa(value & !ENABLED)));
        *time = Time { value, area, offset };
        if let Some(area) = &mut time.area {
            area.publish(&self.memory, &scale, offset, self.flags());
        }
    }

    /// The counter of `vcpu` is ahead by `offset` from now on.
    pub fn tsc_moved(&self, vcpu: u32, offset: u64) {
        let value = self.times().vcpus.get(vcpu as usize).map_or(0, |time| time.value);
        self.set_time(vcpu, value, offset);
    }

    /// The guest's counter runs at another frequency since it was `tsc`: areas say how time goes on there.
    pub fn tsc_changed(&self, hz: u64, tsc: u64) {
        let mut times = self.times();
        times.scale = times.scale.changed(hz, tsc);
        self.publish(&mut times);
    }

    /// Writes all areas again.
    pub(crate) fn publish(&self, times: &mut Times) {
        let (scale, flags) = (times.scale, self.flags());
        for Time { area, offset, .. } in &mut times.vcpus {
            if let Some(area) = area {
                area.publish(&self.memory, &scale, *offset, flags);
            }
        }
    }

    /// Whether somebody kicked `vcpu` since this was asked last: it leaves HLT then.
    pub fn take_kick(&self, vcpu: u32) -> bool {
        let latch = self.kicked.get(vcpu as usize);
        latch.is_some_and(|latch| latch.load(Ordering::SeqCst) && latch.swap(false, Ordering::SeqCst))
    }
}
