//! One virtual processor of AArch64: the engine's vCPU, its lines, its timers, and what happens between an exit and the next
//! entry.

use std::sync::Arc;

use satori_arm_board::{Call, Gic, PCI, PCI_END, Power, Ppi, psci};
use satori_arm_engine::{Answer, Arm, Exit, reasons};
use satori_arm_state::virtual_interface::maintenance;
use satori_arm_state::{CpuState, El, Sys};
use satori_bus::{Clock, MmioMap, Nanos, PowerEvent, PowerSink};
use satori_memory::GuestMemory;
use satori_profile::{Meter, Recorded, Timing};
use satori_seam::{DebugPlan, Doing, Isa, Kick, Reason, Stat, Until, Vcpu};

use super::power::{Powers, Start};
use crate::runs::{After, Entry, Runs};
use crate::{Event, VirtualClock};

/// What all vCPUs of a life have in common.
pub(super) struct Platform {
    pub(crate) mmio: MmioMap,
    pub(crate) memory: GuestMemory,
    pub(crate) gic: Arc<Gic>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) powers: Powers,
    pub(crate) sink: Arc<dyn PowerSink>,
}

/// A generic timer: the line that it drives, its registers, and whether it compares with the virtual counter.
struct Timer {
    line: Ppi,
    control: Sys,
    compare: Sys,
    offset: bool,
}

const TIMERS: [Timer; 4] = [
    Timer {
        line: Ppi::PhysicalTimer,
        control: Sys::CNTP_CTL_EL0,
        compare: Sys::CNTP_CVAL_EL0,
        offset: false,
    },
    Timer { line: Ppi::VirtualTimer, control: Sys::CNTV_CTL_EL0, compare: Sys::CNTV_CVAL_EL0, offset: true },
    Timer {
        line: Ppi::HypervisorTimer,
        control: Sys::CNTHP_CTL_EL2,
        compare: Sys::CNTHP_CVAL_EL2,
        offset: false,
    },
    Timer {
        line: Ppi::HypervisorVirtualTimer,
        control: Sys::CNTHV_CTL_EL2,
        compare: Sys::CNTHV_CVAL_EL2,
        offset: false,
    },
];

/// The bit of the maintenance interrupt of the virtual CPU interface, behind those of timers.
const MAINTENANCE: u8 = 1 << TIMERS.len();

/// CNT*_CTL: ENABLE without IMASK.
const ENABLED: u64 = 1;
const CONTROL: u64 = 3;

pub(super) struct ArmVcpu {
    index: u32,
    vcpu: Box<dyn Vcpu<Arm>>,
    kick: Arc<Kick>,
    platform: Arc<Platform>,
    meter: Meter,
    /// Its registers after reset, with which each CPU_ON begins.
    fresh: Box<CpuState>,
    /// It waits in WFI.
    idle: bool,
    /// A debugger steps it: interrupts hold off.
    quiet: bool,
    /// Timers whose lines are asserted, a bit each, and [`MAINTENANCE`].
    asserted: u8,
}

impl ArmVcpu {
    /// One that is off.
    pub(crate) fn new(
        index: u32,
        mut vcpu: Box<dyn Vcpu<Arm>>,
        platform: Arc<Platform>,
        profile: bool,
        timing: Timing,
    ) -> Self {
        let fresh = Box::new(vcpu.state().clone());
        vcpu.state_mut(()).off = true;
        ArmVcpu {
            index,
            kick: vcpu.kick(),
            vcpu,
            platform,
            meter: Meter::new(Arm::REASONS, profile, timing),
            fresh,
            idle: false,
            quiet: false,
            asserted: 0,
        }
    }

    /// Turns it on: it begins at `entry` with `context` in X0.
    pub(crate) fn begin(&mut self, entry: u64, context: u64) {
        let state = self.vcpu.state_mut(());
        state.clone_from(&self.fresh);
        state.pc = entry;
        state.x[0] = context;
        self.vcpu.flush_tlb();
        self.idle = false;
    }

    /// Its register file.
    pub(crate) fn registers(&self) -> &CpuState {
        self.vcpu.state()
    }

    /// Changes registers between two instructions, as a debugger does.
    pub(crate) fn change_state(&mut self, change: impl FnOnce(&mut CpuState)) {
        change(self.vcpu.state_mut(()));
    }

    /// The physical address behind `address` now.
    pub(crate) fn peek(&self, address: u64) -> Option<u64> {
        self.vcpu.translate(address)
    }

    /// The guest's memory.
    pub(crate) fn ram(&self) -> &GuestMemory {
        &self.platform.memory
    }

    /// Its exits so far.
    pub(crate) fn exits(&self) -> Recorded {
        self.meter.recorded()
    }

    /// The engine's counters.
    pub(crate) fn stats(&self) -> Vec<Stat> {
        self.vcpu.stats()
    }

    /// Counter ticks until a timer's condition is met; none if it signals nothing.
    fn ticks_left(&self, timer: &Timer, counter: u64) -> Option<u64> {
        let state = self.vcpu.state();
        if state.get(timer.control) & CONTROL != ENABLED {
            return None;
        }
        let offset = if timer.offset { state.get(Sys::CNTVOFF_EL2) } else { 0 };
        Some(state.get(timer.compare).saturating_sub(counter.wrapping_sub(offset)))
    }

    /// Drives the lines of timers and of the virtual CPU interface; returns whether a timer's was asserted that was not.
    fn drive_lines(&mut self) -> bool {
        let counter = self.platform.clock.counter();
        let mut risen = false;
        for (timer, at) in TIMERS.iter().zip(0..) {
            let (met, was) = (self.ticks_left(timer, counter) == Some(0), self.asserted >> at & 1 != 0);
            if met != was {
                self.asserted ^= 1 << at;
                self.platform.gic.set_ppi(self.index, timer.line as u8, met);
                risen |= met;
            }
        }
        let maintenance = maintenance(self.vcpu.state());
        if maintenance != (self.asserted & MAINTENANCE != 0) {
            self.asserted ^= MAINTENANCE;
            self.platform.gic.set_ppi(self.index, Ppi::Maintenance as u8, maintenance);
        }
        risen
    }

    fn count(&mut self, reason: Reason) {
        let (pc, clock) = (self.vcpu.state().pc, &self.platform.clock);
        self.meter.exit(reason, true, pc, || clock.now());
    }

    /// Handles `exit`.
    fn dispatch(&mut self, exit: Exit) -> After {
        let platform = self.platform.clone();
        let answer = match exit {
            // Where no device answers on PCI the bridge does, with ones.
            Exit::MmioRead { gpa, size } if is_nobodys_on_pci(&platform.mmio, gpa) => {
                Answer::Value(u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8))))
            }
            Exit::MmioWrite { gpa, .. } if is_nobodys_on_pci(&platform.mmio, gpa) => Answer::Done,
            Exit::MmioRead { gpa, .. } | Exit::MmioWrite { gpa, .. } if platform.mmio.name(gpa).is_none() => {
                Answer::Refused
            }
            Exit::MmioRead { gpa, size } => Answer::Value(platform.mmio.read(gpa, size)),
            Exit::MmioWrite { gpa, size, value } => {
                platform.mmio.write(gpa, size, value);
                Answer::Done
            }
            Exit::SysRead(sys) => platform.gic.read(self.index, sys).map_or(Answer::Refused, Answer::Value),
            Exit::SysWrite(sys, value) => match platform.gic.write(self.index, sys, value) {
                true => Answer::Done,
                false => Answer::Refused,
            },
            Exit::Call => match self.call() {
                Some(value) => Answer::Value(value),
                None => return After::Nothing,
            },
            Exit::Idle => {
                self.idle = true;
                return After::Nothing;
            }
            Exit::Yield => return After::Yield,
            Exit::Debug(cause) => return After::Debug(cause),
            Exit::Lost(at) => return After::Ends(Event::Lost { vcpu: self.index, at }),
            Exit::Timer | Exit::Kicked | Exit::Over => return After::Nothing,
        };
        self.vcpu.resume(answer);
        After::Nothing
    }

    /// A call of firmware: what X0 becomes, if it returns.
    fn call(&mut self) -> Option<u64> {
        let x = &self.vcpu.state().x;
        match psci([x[0], x[1], x[2], x[3]]) {
            Call::Answer(value) => Some(value),
            Call::Power(Power::Off) => {
                self.platform.sink.power(PowerEvent::PowerOff);
                None
            }
            Call::Power(Power::Reset) => {
                self.platform.sink.power(PowerEvent::Reset("PSCI"));
                None
            }
            Call::Power(Power::CpuOff) => {
                self.vcpu.state_mut(()).off = true;
                self.platform.powers.turn_off(self.index);
                None
            }
            // As WFI: it loses nothing.
            Call::Power(Power::Suspend) => {
                self.idle = true;
                Some(0)
            }
            Call::Power(Power::CpuOn { target, entry, context }) => {
                Some(self.platform.powers.turn_on(target, Start { entry, context }))
            }
            Call::Power(Power::Affinity(target)) => Some(self.platform.powers.info(target)),
        }
    }
}

fn is_nobodys_on_pci(map: &MmioMap, gpa: u64) -> bool {
    (PCI..PCI_END).contains(&gpa) && map.name(gpa).is_none()
}

impl Runs for ArmVcpu {
    fn index(&self) -> u32 {
        self.index
    }

    fn prepare(&mut self) -> Entry {
        if self.vcpu.state().off {
            match self.platform.powers.take_start(self.index) {
                Some(Start { entry, context }) => self.begin(entry, context),
                None => return Entry::Sleep { deadline: None },
            }
        }
        self.drive_lines();
        let irq = self.platform.gic.irq(self.index);
        self.vcpu.controls_mut().irq = irq && !self.quiet;
        // A pending interrupt ends WFI, masked or not.
        if self.idle && !irq {
            return Entry::Sleep { deadline: self.deadline() };
        }
        self.idle = false;
        Entry::Run { deadline: self.deadline() }
    }

    fn enter(&mut self, until: Until) -> After {
        self.meter.entry(|| self.platform.clock.now());
        let exit = self.vcpu.run(until);
        match exit.reason() {
            Some(reason) => self.count(reason),
            None if exit == Exit::Over && self.drive_lines() => self.count(reasons::IRQ),
            None => {}
        }
        self.dispatch(exit)
    }

    fn finish(&mut self, now: Nanos) {
        self.meter.entry(|| now);
    }

    /// When the first timer signals of those that do not yet.
    fn deadline(&self) -> Option<u64> {
        if self.vcpu.state().off {
            return None;
        }
        let counter = self.platform.clock.counter();
        let waits = TIMERS.iter().zip(0..).filter(|(_, at)| self.asserted >> at & 1 == 0);
        let left = waits.filter_map(|(timer, _)| self.ticks_left(timer, counter)).min()?;
        Some(counter.saturating_add(left))
    }

    fn retired(&self) -> u64 {
        self.vcpu.retired()
    }

    fn at(&self) -> u64 {
        self.vcpu.state().pc
    }

    fn in_kernel(&self) -> bool {
        self.vcpu.state().pstate.el != El::Zero
    }

    fn does(&self, _: Doing) {}

    fn take_kick(&self) -> bool {
        self.kick.take()
    }

    fn kicked(&self) -> bool {
        self.kick.pending()
    }

    fn be_kicked(&mut self) {
        self.kick.take();
    }

    fn begin_turn(&mut self, _: Option<Nanos>) {
        self.kick.take();
    }

    fn go_on(&mut self) {
        if !self.idle && !self.vcpu.state().off {
            self.meter.entry(|| self.platform.clock.now());
        }
    }

    fn take_stalled(&mut self, _: &VirtualClock, _: u64) -> u64 {
        0
    }

    fn set_debug(&mut self, plan: DebugPlan, quiet: bool) {
        self.vcpu.set_debug(plan);
        self.quiet = quiet;
    }
}
