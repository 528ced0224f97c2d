//! One life of a machine, from power-up or reset to the next: its memory, devices and processors.

pub(crate) mod interfaces;
mod processors;
mod sleep;
pub(crate) mod vmbus;

use std::sync::{Arc, Weak};
use std::time::Duration;

use satori_boot::layout::MapEntry;
use satori_bus::{Clock, InterruptLine, Nanos, Timer, TimerQueue};
use satori_chipset::{Chipset, IoApic, MemorySizes, Options, Parts, Uart};
use satori_cpuid::CpuSpec;
use satori_engine::{Engine, Space, TimeSource, X86};
use satori_exits::{EoiSink, Platform, Refused, Runtime};
use satori_hyperv::TestDevice;
use satori_memory::{ALL_LINES, Gpa, GuestMemory, Region};
use satori_save::Save;
use satori_state::CpuState;

use self::interfaces::Interfaces;
use self::processors::Processors;
pub(crate) use self::sleep::Asleep;
use self::sleep::Powered;

use crate::console::Console;
use crate::debugcon::DebugSink;
use crate::runtime::ThreadTime;
use crate::saved::Rooms;
use crate::shared::{Bells, Shared};
use crate::tsc_change::Planned;
use crate::x86::MachineVcpu;
use crate::{Config, Error, Event, VirtualClock, devices, saved};

/// The hole for devices below 4 GiB, as base and size, which the MTRRs make uncacheable.
pub(crate) const DEVICE_HOLE: (u64, u64) = (0xc000_0000, 0x4000_0000);

/// How long a reset takes on the guest's clock: a chipset holds the platform in reset for at least a
/// millisecond (Intel ICH9 datasheet, PLTRST#). Without it, virtual time would hardly pass in a guest that
/// does nothing but reset itself, each of whose lives costs the host a millisecond.
const RESET_TIME: Nanos = 1_000_000;

/// Puts the guest into memory and tells how it begins.
pub(crate) type Loader = Box<dyn Fn(&GuestMemory) -> Result<Begin, Error> + Send>;

/// How a guest begins.
pub(crate) struct Begin {
    /// The boot processor's registers.
    pub state: CpuState,
    /// Whether it expects the devices as firmware leaves them.
    pub firmware: bool,
    /// Where it says how it wakes, if it can sleep.
    pub facs: Option<Gpa>,
    /// The memory map that it was given.
    pub map: Vec<MapEntry>,
}

/// What a life comes from.
pub(crate) enum Origin<'a> {
    /// Nothing: the guest is loaded.
    PowerUp(&'a Loader),
    /// The life that slept.
    Sleep(Box<Asleep>),
}

/// What every life of a machine is made from: what was asked for, and what is made of it once.
pub(crate) struct Blueprint {
    /// Without the kernel and its modules, which the [`Loader`] holds.
    pub config: Config,
    pub engine: Arc<dyn Engine<X86>>,
    pub features: &'static [satori_cpuid::Feature],
    /// Those of them that this host does not have.
    pub host_lacks: Vec<satori_cpuid::Feature>,
    /// `config.cpu_model`, read.
    pub cpu: CpuSpec,
    pub regions: Vec<Region>,
    pub time: Time,
    /// How many processors of the host there are.
    pub processors: usize,
    /// `config.charges`, which all vCPUs share.
    pub charges: Option<Arc<crate::Charges>>,
    pub guest_timeout: Option<Arc<GuestTimeout>>,
    pub tsc_changes: Vec<Planned>,
    pub shared: Arc<Shared>,
    pub console: Console,
    pub debugcon: Option<DebugSink>,
}

/// Ends the run at a time of the guest's clock.
pub(crate) struct GuestTimeout {
    at: Nanos,
    shared: Weak<Shared>,
}

impl GuestTimeout {
    pub(crate) fn new(limit: Duration, shared: &Arc<Shared>) -> Self {
        let at = limit.as_nanos().try_into().unwrap_or(Nanos::MAX);
        GuestTimeout { at, shared: Arc::downgrade(shared) }
    }

    /// Has `timers` end the run at that time.
    pub(crate) fn arm(self: &Arc<Self>, timers: &TimerQueue) {
        let timer: Arc<dyn Timer> = self.clone();
        timers.arm(self.at, Arc::downgrade(&timer));
    }

    /// Whether the time is over.
    pub(crate) fn is_over(&self, now: Nanos) -> bool {
        self.at <= now
    }
}

impl Timer for GuestTimeout {
    fn expired(&self, _now: Nanos) {
        if let Some(shared) = self.shared.upgrade() {
            shared.finish(Event::Timeout);
        }
    }
}

/// The machine's clock, and whether it is virtual. It runs on through resets.
#[derive(Clone)]
pub(crate) enum Time {
    Real(Arc<crate::RealClock>),
    Virtual(Arc<VirtualClock>),
}

impl Time {
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        match self {
            Time::Real(clock) => clock.clone(),
            Time::Virtual(clock) => clock.clone(),
        }
    }

    /// Whether it is what vCPUs execute.
    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self, Time::Virtual(_))
    }

    /// What devices need whose answers have to come at the same time in every run.
    pub(crate) fn timing(&self, timers: &Arc<TimerQueue>) -> Option<satori_virtio::Timing> {
        self.is_virtual().then(|| satori_virtio::Timing { clock: self.clock(), timers: timers.clone() })
    }

    /// Stands still, or goes on. Virtual time does so by itself: it is what vCPUs execute.
    pub(crate) fn pause(&self, pause: bool) {
        if let Time::Real(clock) = self {
            clock.pause(pause);
        }
    }

    /// Passes the time of a reset. Real time has passed by itself.
    pub(crate) fn pass_reset(&self) {
        if let Time::Virtual(clock) = self {
            clock.advance_to(clock.now().saturating_add(RESET_TIME));
        }
    }

    /// A guest that starts finds the TSC that it is told of.
    fn reset_guest_counter(&self) {
        match self {
            Time::Real(clock) => clock.guest.reset(),
            Time::Virtual(clock) => clock.guest.reset(),
        }
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        match self {
            Time::Real(_) => Arc::new(ThreadTime::new()),
            Time::Virtual(clock) => clock.clone(),
        }
    }

    /// The same for an engine.
    pub(crate) fn source(&self) -> Arc<dyn TimeSource> {
        match self {
            Time::Real(clock) => clock.clone(),
            Time::Virtual(clock) => clock.clone(),
        }
    }
}

pub(crate) struct Life {
    pub vcpus: Vec<MachineVcpu>,
    pub bells: Arc<Bells>,
    pub timers: Arc<TimerQueue>,
    pub com1: Arc<Uart>,
    /// The engine's partition.
    pub space: Arc<dyn Space>,
    /// What of it is saved beside the vCPUs; it keeps the machine's own timers alive, which the queue does not.
    pub rooms: Arc<Rooms>,
    powered: Powered,
}

/// INTR of the PIC: the BSP has to look.
struct Intr(Arc<Bells>);

impl InterruptLine for Intr {
    fn set(&self, asserted: bool) {
        if asserted {
            self.0.wake(0);
        }
    }
}

/// Address line 20, which the A20 gate holds low.
const A20: u64 = 1 << 20;

/// The A20 gate: every processor has to look.
struct AddressLine(GuestMemory, Arc<Bells>);

impl InterruptLine for AddressLine {
    fn set(&self, asserted: bool) {
        self.0.set_lines(if asserted { ALL_LINES } else { !A20 });
        (0..self.1.0.len() as u32).for_each(|vcpu| self.1.wake(vcpu));
    }
}

struct IoApicEoi(Arc<IoApic>);

impl EoiSink for IoApicEoi {
    fn eoi(&self, vector: u8) {
        self.0.eoi(vector);
    }
}

impl Life {
    /// A machine that is powered up, or wakes.
    pub(crate) fn new(plan: &Blueprint, origin: Origin<'_>) -> Result<Self, Error> {
        let clock = plan.time.clock();
        let (memory, entry, slept, partition) = match origin {
            Origin::PowerUp(load) => {
                plan.time.reset_guest_counter();
                let (memory, entry) = filled(plan, load)?;
                (memory, entry, None, None)
            }
            Origin::Sleep(asleep) => {
                let Asleep { memory, begin, powered, hyperv } = *asleep;
                (memory, begin, Some(powered), hyperv)
            }
        };
        let processors = Processors::new(plan, memory)?;
        let timers = timers(plan);
        let chipset = chipset(plan, &entry, &processors, &timers)?;
        let powered = Powered::of(&chipset, entry.facs);
        if let Some(before) = slept {
            powered.go_on_from(&before);
        }
        let interfaces = Interfaces::new(plan, &processors, &chipset.router)?;
        if let Some(xen) = &interfaces.xen {
            xen.with_memory_map(entry.map.iter().map(told).collect());
        }
        if let (Some(partition), Some(before)) = (&interfaces.hyperv, partition) {
            partition.go_on_from(&before);
        }
        let mut parts = chipset.parts();
        if let Some(partition) = interfaces.hyperv.as_ref().filter(|_| plan.config.testdev) {
            let (port, device) = (TestDevice::PORT, TestDevice::new(partition.clone()));
            parts.push(("hyperv-testdev", device.clone()));
            chipset
                .ports
                .add("hyperv-testdev", port, port + 3, device)
                .map_err(satori_chipset::Error::from)?;
        }
        if let Some(xen) = &interfaces.xen {
            let (xen, pm) = (Arc::downgrade(xen), Arc::downgrade(&chipset.pm));
            plan.shared.on_button(move || {
                // A kernel that listens to Xen's store is asked there, and not by ACPI as well.
                if !xen.upgrade().is_some_and(|xen| xen.ask_to_power_off()) {
                    pm.upgrade().iter().for_each(|pm| pm.press_power_button());
                }
            });
        }
        let vmbus = vmbus::wire(plan, &interfaces, processors.memory(), &timers, &chipset.pm)?;
        parts.extend(vmbus.map(|bus| ("vmbus", bus as Arc<dyn Save>)));
        let own_timers = own_timers(plan, &interfaces, &timers);
        let Interfaces { hyperv, kvm, xen, xen_bus } = interfaces;
        let platform = Arc::new(Platform {
            clock,
            memory: processors.memory(),
            ports: chipset.ports,
            mmio: chipset.mmio,
            cpuid: processors.cpuid.clone(),
            hyperv,
            kvm,
            xen,
            eoi: Arc::new(IoApicEoi(chipset.ioapic)),
            power: plan.shared.clone(),
            runtime: plan.time.runtime(),
            refused: Refused::default(),
        });
        let rooms = Rooms {
            identity: saved::identity(plan, &platform),
            time: plan.time.clone(),
            platform: platform.clone(),
            functions: chipset.pci.functions(),
            xen_bus,
            parts,
            timers: timers.clone(),
            own_timers,
            changes: plan.tsc_changes.clone(),
            turns: Arc::default(),
            shared: plan.shared.clone(),
            console: plan.console.clone(),
            counts: processors.vcpus.iter().filter_map(|vcpu| vcpu.counts()).collect(),
        };
        Ok(Life {
            bells: processors.bells.clone(),
            space: processors.partition.clone(),
            vcpus: processors.into_vcpus(plan, &platform, &chipset.pic, entry.state),
            timers,
            com1: chipset.com1,
            rooms: Arc::new(rooms),
            powered,
        })
    }
}

/// What Xen's interface tells of a range of the memory map.
fn told(entry: &MapEntry) -> satori_xen::MapEntry {
    satori_xen::MapEntry { start: entry.start, len: entry.end - entry.start, kind: entry.kind }
}

/// Guest memory as the guest finds it, and how it begins.
fn filled(plan: &Blueprint, load: &Loader) -> Result<(GuestMemory, Begin), Error> {
    let memory = GuestMemory::new(&plan.regions)?;
    let numa = &plan.config.numa;
    for (node, parts) in numa.iter().zip(crate::boot::shares(numa, &plan.regions)) {
        let Some(host) = &node.host else { continue };
        for (start, len) in parts {
            memory.place(Region { start: Gpa(start), len }, host.policy, &host.nodes)?;
        }
    }
    let entry = load(&memory)?;
    if plan.config.xen.is_some() {
        // Behind the loader, which tells the guest of RAM alone.
        memory.add(satori_xen::SPECIAL)?;
    }
    Ok((memory, entry))
}

/// The platform's timers, which bring a timeout of guest time.
fn timers(plan: &Blueprint) -> Arc<TimerQueue> {
    let timers = TimerQueue::new();
    let shared = plan.shared.clone();
    timers.on_earlier(move || shared.timer.ring());
    if let Some(timeout) = &plan.guest_timeout {
        timeout.arm(&timers);
    }
    timers
}

/// The board's devices, wired to processors and console, and those on PCI and behind serial ports that were asked for.
fn chipset(
    plan: &Blueprint,
    entry: &Begin,
    processors: &Processors,
    timers: &Arc<TimerQueue>,
) -> Result<Chipset, Error> {
    let (clock, memory, bells) = (plan.time.clock(), processors.memory(), &processors.bells);
    let chipset = Chipset::new(Parts {
        clock: clock.clone(),
        timers: timers.clone(),
        power: plan.shared.clone(),
        interrupts: processors.messages.clone(),
        intr: Arc::new(Intr(bells.clone())),
        a20: Arc::new(AddressLine(memory.clone(), bells.clone())),
        com1: plan.console.port(clock, plan.shared.clone()),
        options: Options {
            memory: sizes(&plan.regions),
            ecam: true,
            debugcon: plan.debugcon.clone().map(|sink| Box::new(sink) as _),
            post: entry.firmware,
            testdev: plan.config.testdev.then_some(plan.config.topology.cpus()),
            ..Options::default()
        },
    })?;
    let shared = plan.shared.clone();
    chipset.com1.on_room(move || shared.timer.ring());
    let shared = plan.shared.clone();
    chipset.com1.on_ready(move |room| shared.set_ready(room));
    let pm = Arc::downgrade(&chipset.pm);
    plan.shared.on_button(move || pm.upgrade().iter().for_each(|pm| pm.press_power_button()));
    plan.config.serials.wire(&chipset, &plan.shared.moved)?;
    let timing = plan.time.timing(timers);
    let (devices, moved) = (&plan.config.devices, &plan.shared.moved);
    devices::wire_chipset(devices, &chipset, &memory, &processors.messages, timing.as_ref(), moved)?;
    if plan.config.testdev {
        devices::wire_testdev(&chipset)?;
    }
    if plan.config.xen.is_some_and(|xen| xen.kind == satori_xen::Kind::Hvm) {
        devices::wire_xen_platform(&chipset)?;
    }
    Ok(chipset)
}

/// Timers of the machine itself: planned changes of the TSC, and the timeout of guest time.
fn own_timers(plan: &Blueprint, interfaces: &Interfaces, timers: &TimerQueue) -> Vec<Arc<dyn Timer>> {
    let Interfaces { hyperv, kvm, xen, .. } = interfaces;
    let mut own = Vec::new();
    for planned in &plan.tsc_changes {
        let timer = planned.timer(plan.time.clock(), hyperv.clone(), kvm.clone(), xen.clone());
        timers.arm(planned.at(), Arc::downgrade(&timer));
        own.push(timer);
    }
    own.extend(plan.guest_timeout.clone().map(|timeout| timeout as Arc<dyn Timer>));
    own
}

fn sizes(regions: &[Region]) -> MemorySizes {
    let sum = |high: bool| regions.iter().filter(|r| (r.start.0 >> 32 != 0) == high).map(|r| r.len).sum();
    MemorySizes { below_4g: sum(false), above_4g: sum(true) }
}
