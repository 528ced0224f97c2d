//! One life of a machine, from power-up or reset to the next: its memory, devices and processors.

use std::sync::{Arc, Weak};
use std::time::Duration;

use satori_bus::{Clock, InterruptLine, MsiSink, Nanos, Timer, TimerQueue};
use satori_chipset::{Chipset, IoApic, MemorySizes, Options, Parts, Uart};
use satori_cpuid::msrs::{PlatformMsrs, Setup};
use satori_cpuid::{CpuSpec, CpuidTable, PHYSICAL_BITS, Params, Vendor, crystal_hz};
use satori_engine::{Engine, Kick, PartitionParts, Space, TimeSource, VcpuParts, X86};
use satori_exits::{EoiSink, Platform, Refused, Runtime};
use satori_hyperv::{Interrupts, Partition, TestDevice};
use satori_lapic::{ApicBus, Clocks, Lapic};
use satori_memory::{ALL_LINES, GuestMemory, Region};
use satori_profile::{Meter, Timing};
use satori_state::{Activity, CpuState};

use crate::console::Console;
use crate::debugcon::DebugSink;
use crate::entropy;
use crate::runtime::ThreadTime;
use crate::saved::Rooms;
use crate::shared::{Bells, Shared};
use crate::tsc_change::Planned;
use crate::x86::{MachineVcpu, after_reset};
use crate::{Config, Error, Event, VirtualClock, saved};

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
    pub fn new(limit: Duration, shared: &Arc<Shared>) -> Self {
        let at = limit.as_nanos().try_into().unwrap_or(Nanos::MAX);
        GuestTimeout { at, shared: Arc::downgrade(shared) }
    }

    /// Whether the time is over.
    pub fn is_over(&self, now: Nanos) -> bool {
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
    pub fn clock(&self) -> Arc<dyn Clock> {
        match self {
            Time::Real(clock) => clock.clone(),
            Time::Virtual(clock) => clock.clone(),
        }
    }

    /// Whether it is what vCPUs execute.
    pub fn is_virtual(&self) -> bool {
        matches!(self, Time::Virtual(_))
    }

    /// Stands still, or goes on. Virtual time does so by itself: it is what vCPUs execute.
    pub fn pause(&self, pause: bool) {
        if let Time::Real(clock) = self {
            clock.pause(pause);
        }
    }

    /// Passes the time of a reset. Real time has passed by itself.
    pub fn pass_reset(&self) {
        if let Time::Virtual(clock) = self {
            clock.advance_to(clock.now().saturating_add(RESET_TIME));
        }
    }

    /// A guest that starts finds the TSC that it is told of.
    fn reset_guest_tsc(&self) {
        match self {
            Time::Real(clock) => clock.guest.reset(),
            Time::Virtual(clock) => clock.guest.reset(),
        }
    }

    fn runtime(&self) -> Arc<dyn Runtime> {
        match self {
            Time::Real(_) => Arc::new(ThreadTime),
            Time::Virtual(clock) => clock.clone(),
        }
    }

    fn source(&self) -> Arc<dyn TimeSource> {
        match self {
            Time::Real(clock) => clock.clone(),
            Time::Virtual(clock) => clock.clone(),
        }
    }
}

pub(crate) struct Life {
    pub vps: Vec<MachineVcpu>,
    pub bells: Arc<Bells>,
    pub timers: Arc<TimerQueue>,
    pub com1: Arc<Uart>,
    /// The engine's partition.
    pub space: Arc<dyn Space>,
    /// What of it is saved beside the vCPUs; it keeps the machine's own timers alive, which the queue does not.
    pub rooms: Arc<Rooms>,
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

/// The local APICs, for the sources of the Hyper-V interface.
struct Sources(Arc<ApicBus>);

impl Interrupts for Sources {
    fn request(&self, vp: u32, vector: u8, own: bool) {
        self.0.request(vp, vector, own);
    }
    fn requested(&self, vp: u32, vector: u8) -> bool {
        self.0.requested(vp, vector)
    }
    fn set_auto_eoi(&self, vp: u32, vectors: [u32; 8]) {
        self.0.set_auto_eoi(vp, vectors);
    }
}

struct IoApicEoi(Arc<IoApic>);

impl EoiSink for IoApicEoi {
    fn eoi(&self, vector: u8) {
        self.0.eoi(vector);
    }
}

impl Life {
    pub fn new(plan: &Blueprint, load: &Loader) -> Result<Self, Error> {
        let (clock, source) = (plan.time.clock(), plan.time.source());
        plan.time.reset_guest_tsc();
        let memory = GuestMemory::new(&plan.regions)?;
        let entry = load(&memory)?;
        let tsc_hz = clock.tsc_hz();
        let clocks = Clocks { tsc_hz, timer_hz: crystal_hz(tsc_hz) };
        let cpus = plan.config.topology.cpus();
        let apic_bus = ApicBus::new(&plan.config.topology.apic_ids().collect::<Vec<_>>());
        let parallel = matches!(plan.time, Time::Real(_)) && cpus > 1;
        let cpuid = CpuidTable::new(Params {
            cpu: &plan.cpu,
            engine_features: plan.features,
            host_lacks: &plan.host_lacks,
            topology: plan.config.topology,
            tsc_hz,
            physical_bits: PHYSICAL_BITS,
            hypervisor: plan.config.hyperv.leaves(cpus),
        })?;
        let parts = PartitionParts { memory, time: source, parallel, offered: cpuid.offered() };
        let partition: Arc<dyn satori_engine::Partition<X86>> =
            plan.engine.create_partition(parts).map_err(Error::Engine)?.into();
        let memory = partition.memory().clone();
        let parts = |index| VcpuParts {
            index,
            entropy: match plan.time {
                Time::Real(_) => Box::new(entropy::Host::new()),
                Time::Virtual(_) => Box::new(entropy::Seeded::new(index)),
            },
        };
        let vcpus: Vec<_> = (0..cpus).map(|index| partition.create_vcpu(parts(index))).collect();
        let bells = Bells::new(vcpus.iter().map(|vcpu| vcpu.kick()));
        apic_bus.set_waker(bells.clone());

        let timers = TimerQueue::new();
        let shared = plan.shared.clone();
        timers.on_earlier(move || shared.timer.ring());
        if let Some(timeout) = &plan.guest_timeout {
            let timer: Arc<dyn Timer> = timeout.clone();
            timers.arm(timeout.at, Arc::downgrade(&timer));
        }
        let chipset = Chipset::new(Parts {
            clock: clock.clone(),
            timers: timers.clone(),
            power: plan.shared.clone(),
            interrupts: apic_bus.clone(),
            intr: Arc::new(Intr(bells.clone())),
            a20: Arc::new(AddressLine(memory.clone(), bells.clone())),
            com1: plan.console.port(clock.clone(), plan.shared.clone()),
            options: Options {
                memory: sizes(&plan.regions),
                ecam: true,
                debugcon: plan.debugcon.clone().map(|sink| Box::new(sink) as _),
                post: entry.firmware,
                testdev: plan.config.testdev.then_some(cpus),
                ..Options::default()
            },
        })?;
        let shared = plan.shared.clone();
        chipset.com1.on_room(move || shared.timer.ring());
        let shared = plan.shared.clone();
        chipset.com1.on_ready(move |room| shared.set_ready(room));

        plan.config.serials.wire(&chipset, &plan.shared.moved)?;
        let messages: Arc<dyn MsiSink> = apic_bus.clone();
        let determined = matches!(plan.time, Time::Virtual(_));
        plan.config.devices.wire(&chipset, &memory, &messages, determined, &plan.shared.moved)?;

        let hyperv = match plan.config.hyperv.set.is_empty() {
            true => None,
            false => {
                let config = plan.config.hyperv.clone();
                let partition = Partition::new(config, memory.clone(), clock.clone(), clocks.timer_hz)?;
                let processors = vcpus.iter().map(|vcpu| interrupt(vcpu.kick())).collect();
                let partition = partition.with_processors(processors);
                let partition = match cpuid.offered().vendor {
                    Vendor::Amd => partition.with_vmmcall(),
                    Vendor::Intel | Vendor::Other => partition,
                };
                Some(Arc::new(partition.with_synic(cpus, Arc::new(Sources(apic_bus.clone())))))
            }
        };
        let mut parts = chipset.parts();
        if let Some(partition) = hyperv.as_ref().filter(|_| plan.config.testdev) {
            let (port, device) = (TestDevice::PORT, TestDevice::new(partition.clone()));
            parts.push(("hyperv-testdev", device.clone()));
            chipset
                .ports
                .add("hyperv-testdev", port, port + 3, device)
                .map_err(satori_chipset::Error::from)?;
        }
        let mut own_timers = Vec::new();
        for planned in &plan.tsc_changes {
            let timer = planned.timer(clock.clone(), hyperv.clone());
            timers.arm(planned.at(), Arc::downgrade(&timer));
            own_timers.push(timer);
        }
        own_timers.extend(plan.guest_timeout.clone().map(|timeout| timeout as Arc<dyn Timer>));
        let msrs = PlatformMsrs::new(&Setup {
            cpuid: &cpuid,
            tsc_hz,
            physical_bits: PHYSICAL_BITS,
            uncached: Some(DEVICE_HOLE),
        });
        let platform = Arc::new(Platform {
            clock,
            memory,
            ports: chipset.ports,
            mmio: chipset.mmio,
            cpuid,
            hyperv,
            eoi: Arc::new(IoApicEoi(chipset.ioapic)),
            power: plan.shared.clone(),
            runtime: plan.time.runtime(),
            refused: Refused::default(),
        });
        let vps = vcpus.into_iter().zip(0..).map(|(vcpu, index)| {
            let lapic = Lapic::new(apic_bus.clone(), index, clocks, PHYSICAL_BITS);
            let pic = (index == 0).then(|| chipset.pic.clone());
            let timing = if matches!(plan.time, Time::Virtual(_)) { Timing::Each } else { Timing::Sampled };
            let meter = Meter::new(plan.config.profile, timing);
            let mut vp = MachineVcpu::new(
                index,
                vcpu,
                lapic,
                msrs.clone(),
                platform.clone(),
                pic,
                meter,
                plan.config.processor,
            );
            vp.set_charges(plan.charges.clone().filter(|_| timing == Timing::Each));
            vp.set_state(match index {
                0 => entry.state.clone(),
                _ => CpuState { activity: Activity::WaitForSipi, ..after_reset(platform.cpuid.signature()) },
            });
            vp
        });
        let vps = vps.collect();
        let rooms = Rooms {
            identity: saved::identity(plan, &platform),
            time: plan.time.clone(),
            platform,
            functions: chipset.pci.functions(),
            parts,
            timers: timers.clone(),
            own_timers,
            changes: plan.tsc_changes.clone(),
            turns: Arc::default(),
            shared: plan.shared.clone(),
            console: plan.console.clone(),
        };
        let rooms = Arc::new(rooms);
        Ok(Life { vps, bells, timers, com1: chipset.com1, space: partition, rooms })
    }
}

/// What brings a vCPU out of the guest and, as it need not look at anything, does not wake it.
fn interrupt(kick: Arc<Kick>) -> Box<dyn satori_hyperv::Interrupt> {
    Box::new(move || kick.kick())
}

fn sizes(regions: &[Region]) -> MemorySizes {
    let sum = |high: bool| regions.iter().filter(|r| (r.start.0 >> 32 != 0) == high).map(|r| r.len).sum();
    MemorySizes { below_4g: sum(false), above_4g: sum(true) }
}
