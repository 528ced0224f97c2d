//! One life of an AArch64 machine: its memory, board and processors.

use std::sync::{Arc, Weak};

use satori_arm_board::{Board, Boot, PCI, POWER_KEY, Pl011, Pl061, load, regions};
use satori_arm_engine::{Arm, Offered};
use satori_bus::{Clock, Nanos, Timer, TimerQueue};
use satori_memory::GuestMemory;
use satori_profile::Timing;
use satori_seam::{Engine, Partition, PartitionParts, Space, VcpuParts};

use super::COUNTER_HZ;
use super::power::Powers;
use super::vcpu::{ArmVcpu, Platform};
use crate::console::Console;
use crate::devices::Bus;
use crate::life::{GuestTimeout, Time};
use crate::pins::Pins;
use crate::shared::{Bells, Shared};
use crate::{Devices, Error, entropy};

/// What every life is made from.
pub(super) struct Plan {
    pub(crate) boot: Boot,
    pub(crate) vhe: bool,
    /// It keeps the code memory of vCPUs from one life to the next.
    pub(crate) engine: Arc<dyn Engine<Arm>>,
    /// A reset is no end.
    pub(crate) restarts: bool,
    pub(crate) profile: bool,
    pub(crate) time: Time,
    pub(crate) guest_timeout: Option<Arc<GuestTimeout>>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) console: Console,
    pub(crate) devices: Devices,
    pub(crate) pins: Pins,
}

/// How long the power key is held.
const HELD: Nanos = 100_000_000;

/// The power key: a pin, and a timer that lets it go.
struct PowerKey {
    gpio: Arc<Pl061>,
    timers: Arc<TimerQueue>,
    clock: Arc<dyn Clock>,
}

impl PowerKey {
    fn press(self: &Arc<Self>) {
        self.gpio.set(POWER_KEY, true);
        let timer: Arc<dyn Timer> = self.clone();
        self.timers.arm(self.clock.now().saturating_add(HELD), Arc::downgrade(&timer));
    }
}

impl Timer for PowerKey {
    fn expired(&self, _now: Nanos) {
        self.gpio.set(POWER_KEY, false);
    }
}

pub(super) struct Life {
    pub(crate) vcpus: Vec<ArmVcpu>,
    pub(crate) bells: Arc<Bells>,
    pub(crate) timers: Arc<TimerQueue>,
    pub(crate) serial: Arc<Pl011>,
    pub(crate) space: Arc<dyn Space>,
    /// The queue of timers does not keep it.
    _key: Arc<PowerKey>,
}

impl Life {
    pub(crate) fn new(plan: &Plan) -> Result<Self, Error> {
        let clock = plan.time.clock();
        let memory = GuestMemory::new(&regions(plan.boot.memory))?;
        let begin = load(&memory, &plan.boot)?;
        let cpus = plan.boot.cpus.len() as u32;
        let parts = PartitionParts {
            memory: memory.clone(),
            time: plan.time.source(),
            parallel: !plan.time.is_virtual() && cpus > 1,
            offered: Offered { el2: plan.boot.el2, vhe: plan.vhe, counter_hz: COUNTER_HZ },
        };
        let partition: Arc<dyn Partition<Arm>> =
            plan.engine.create_partition(parts).map_err(Error::Engine)?.into();
        let parts = |index| VcpuParts {
            index,
            entropy: match plan.time {
                Time::Real(_) => Box::new(entropy::Host::new()),
                Time::Virtual(_) => Box::new(entropy::Seeded::new(index)),
            },
        };
        let vcpus: Vec<_> = (0..cpus).map(|index| partition.create_vcpu(parts(index))).collect();
        let bells = Bells::new(vcpus.iter().map(|vcpu| vcpu.kick()));
        let timers = TimerQueue::new();
        let shared = plan.shared.clone();
        timers.on_earlier(move || shared.timer.ring());
        if let Some(timeout) = &plan.guest_timeout {
            timeout.arm(&timers);
        }
        let woken = bells.clone();
        let wall = clock.clone();
        let board = Board::new(
            cpus,
            plan.console.port(clock.clone(), plan.shared.clone()),
            Box::new(move |vcpu| woken.wake(vcpu)),
            Box::new(move || wall.epoch().saturating_add(wall.now()) / 1_000_000_000),
        )
        .map_err(|overlap| Error::Config(format!("{} lies on {}", overlap.refused, overlap.taken_by)))?;
        let (shared, port) = (plan.shared.clone(), Arc::downgrade(&board.serial));
        board.serial.on_room(move || {
            if let Some(port) = Weak::upgrade(&port) {
                shared.set_ready(port.waits());
            }
        });
        let bus = Bus {
            pci: &board.pci,
            map: board.mmio.downgrade(),
            window: PCI,
            messages: board.messages(),
            pin: &|slot| Ok(board.pin(slot)),
        };
        plan.devices.wire(&bus, &memory, plan.time.timing(&timers).as_ref(), &plan.shared.moved)?;
        let key =
            Arc::new(PowerKey { gpio: board.gpio.clone(), timers: timers.clone(), clock: clock.clone() });
        let button = Arc::downgrade(&key);
        plan.shared.on_button(move || button.upgrade().iter().for_each(PowerKey::press));
        let platform = Arc::new(Platform {
            mmio: board.mmio,
            memory,
            gic: board.gic,
            clock,
            powers: Powers::new(cpus, bells.clone()),
            sink: plan.shared.clone(),
        });
        let vcpus = vcpus.into_iter().zip(0..);
        let timing = if matches!(plan.time, Time::Virtual(_)) { Timing::Each } else { Timing::Sampled };
        let vcpus =
            vcpus.map(|(vcpu, index)| ArmVcpu::new(index, vcpu, platform.clone(), plan.profile, timing));
        let mut vcpus: Vec<_> = vcpus.collect();
        vcpus[0].begin(begin.pc, begin.tree);
        Ok(Life { vcpus, bells, timers, serial: board.serial, space: partition, _key: key })
    }
}
