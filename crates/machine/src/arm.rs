//! Machines of AArch64: their configuration, and their run from boot to end.

mod gdb;
mod life;
mod power;
mod vcpu;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use satori_arm_board::Boot;
use satori_arm_engine::Arm;
use satori_arm_jit::Translator;
use satori_arm_soft::Interpreter;
use satori_arm_state::CpuState;
use satori_bus::ByteSink;
use satori_profile::Profile;
use satori_seam::Engine;

use self::life::{Life, Plan};
use self::vcpu::ArmVcpu;
use crate::console::Console;
use crate::control::Control;
use crate::life::{GuestTimeout, Time};
use crate::live::{self, Around};
use crate::pins::{Pins, host_processors};
use crate::runs::Runs;
use crate::shared::Shared;
use crate::virtual_time::Turns;
use crate::{
    ClockMode, Devices, EngineKind, Error, Event, GdbListener, Handle, OnReset, Outcome, RealClock,
    VirtualClock,
};

/// vCPUs of a machine at most: what GICv3's redistributors have room for below the serial port.
pub const MAX_CPUS: u32 = 64;

/// Frequency of the system counter, as Armv8.6 has it. Under a virtual clock at its usual rate it counts instructions.
const COUNTER_HZ: u64 = 1_000_000_000;

/// The exception levels of a machine's processors, of which the highest is the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Levels {
    /// EL1 and EL0.
    #[default]
    El1,
    /// EL2 too, for a hypervisor, without the Virtualization Host Extensions.
    El2,
    /// EL2 with them.
    El2Vhe,
}

/// A machine to be made.
#[derive(Clone, Debug)]
pub struct Config {
    /// An arm64 Image.
    pub kernel: Vec<u8>,
    /// The initial ramdisk, if there is one.
    pub initrd: Option<Vec<u8>>,
    /// The kernel's whole command line.
    pub cmdline: String,
    /// Bytes of RAM, a multiple of the page size.
    pub memory: u64,
    /// vCPUs, 1 to [`MAX_CPUS`].
    pub cpus: u32,
    /// The levels that its processors have.
    pub levels: Levels,
    /// Where time comes from.
    pub clock: ClockMode,
    /// What a guest's reset does.
    pub on_reset: OnReset,
    /// Guest time after which the run ends; under a virtual clock always at the same instruction.
    pub guest_timeout: Option<Duration>,
    /// Bytes on the console that mean a guest panic; empty for none.
    pub panic_pattern: String,
    /// What the guest's serial port receives, as it is ready for it.
    pub input: Vec<u8>,
    /// Whether exits are counted and timed.
    pub profile: bool,
    /// What executes instructions; of the host's processor there is none, and the translator stands for it.
    pub engine: EngineKind,
    /// Devices on PCI.
    pub devices: Devices,
    /// The host's processors for each thread.
    pub pins: Pins,
}

/// A machine, loaded and ready to run.
pub struct Machine {
    plan: Plan,
    life: Life,
    control: Arc<Control<ArmVcpu>>,
    gdb: Option<crate::gdb::Plan>,
}

/// What only a machine of AArch64 leaves.
#[derive(Clone, Debug)]
pub struct Left {
    /// Each vCPU's last registers.
    pub registers: Vec<CpuState>,
}

impl Machine {
    /// Builds and loads the machine that `config` describes, whose console is `console`.
    pub fn new(config: Config, console: Box<dyn ByteSink>) -> Result<Self, Error> {
        if !(1..=MAX_CPUS).contains(&config.cpus) {
            return Err(Error::Config(format!("use --cpus 1 to {MAX_CPUS}")));
        }
        if config.devices.vmbus().is_some() {
            return Err(Error::Config(
                "VMBus is there for x86 guests alone: leave --vmbus and bus=vmbus out".into(),
            ));
        }
        let time = match config.clock {
            ClockMode::Real => Time::Real(Arc::new(RealClock::new(Some(COUNTER_HZ)))),
            ClockMode::Virtual { rate } => Time::Virtual(Arc::new(VirtualClock::new(rate, Some(COUNTER_HZ)))),
        };
        if time.is_virtual() {
            config.devices.determined()?;
        }
        let shared = Shared::new();
        shared.set_script(config.input);
        let plan = Plan {
            boot: Boot {
                kernel: config.kernel,
                initrd: config.initrd,
                cmdline: config.cmdline,
                memory: config.memory,
                cpus: (0..config.cpus).map(power::affinity).collect(),
                el2: config.levels != Levels::El1,
            },
            vhe: config.levels == Levels::El2Vhe,
            engine: engine(config.engine, config.cpus),
            restarts: config.on_reset == OnReset::Restart,
            profile: config.profile,
            time,
            guest_timeout: config.guest_timeout.map(|limit| Arc::new(GuestTimeout::new(limit, &shared))),
            shared,
            console: Console::new(console, &config.panic_pattern),
            devices: config.devices,
            pins: config.pins,
        };
        let life = Life::new(&plan)?;
        let control = Control::new(plan.shared.clone(), plan.time.clone(), life.vcpus.len());
        Ok(Machine { plan, life, control, gdb: None })
    }

    /// One line on which engine runs, and why.
    pub fn engine(&self) -> &str {
        match self.plan.engine.name() {
            "interpreter" => {
                "engine: interpreter, Satori's software CPU for AArch64: one instruction at a time"
            }
            _ => {
                "engine: translator, Satori's software CPU for AArch64: code that runs often becomes host code"
            }
        }
    }

    /// Descriptors that a sandbox has to keep open.
    pub fn files(&self) -> Vec<RawFd> {
        self.plan.devices.files()
    }

    /// Lets a debugger that connects to `listener` stop and examine the machine. If `wait`, no vCPU runs before one lets it.
    pub fn debug(&mut self, listener: GdbListener, wait: bool) {
        self.gdb =
            Some(crate::gdb::Plan { listener, wait, possible: Box::new(|plan| plan.watchpoints.is_empty()) });
    }

    /// A way to reach the machine while it runs.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.control))
    }

    /// Runs to the end: the guest's, the timeout's, or [`Handle::stop`].
    pub fn run(self) -> Outcome {
        let Machine { plan, life, control, gdb } = self;
        let start = Instant::now();
        let (mut instructions, mut resets) = (0_u64, 0);
        let mut left = Left { registers: Vec::new() };
        let mut profile = Profile::default();
        let mut next = Ok(life);
        let debugger = gdb.map(|gdb| crate::gdb::Server::start(gdb, &control)).transpose();
        let debugger = debugger.unwrap_or_else(|error| {
            next = Err(Error::Thread(error.kind().into()));
            None
        });
        let event = loop {
            let mut life = match next {
                Ok(life) => life,
                Err(error) => break Event::Failed(Error::to_string(&error)),
            };
            plan.shared.set_bells(life.bells.clone());
            live(&plan, &mut life, &control);
            left.registers = life.vcpus.iter().map(|vcpu| vcpu.registers().clone()).collect();
            for (index, vcpu) in life.vcpus.iter().enumerate() {
                profile.add(index, &vcpu.exits());
                profile.add_stats(&vcpu.stats());
                instructions = instructions.saturating_add(vcpu.retired());
            }
            let event = plan.shared.event().unwrap_or(Event::Stopped);
            // What the guest wrote before it ended is not lost with it. Who ended it waits for nobody.
            let hurry = matches!(event, Event::Stopped | Event::Timeout | Event::Failed(_));
            plan.devices.finish(&|| hurry || plan.shared.stop_asked());
            drop(life);
            if !plan.restarts || !matches!(event, Event::Reset(_)) {
                break event;
            }
            resets += 1;
            plan.shared.revive();
            plan.time.pass_reset();
            let over = |timeout: &Arc<GuestTimeout>| timeout.is_over(plan.time.clock().now());
            if plan.guest_timeout.as_ref().is_some_and(over) {
                plan.shared.finish(Event::Timeout);
            }
            if let Some(event) = plan.shared.event() {
                break event;
            }
            next = Life::new(&plan);
        };
        control.end();
        if let Some(debugger) = debugger {
            debugger.end(&event);
        }
        Outcome {
            event,
            profile,
            hyperv: Vec::new(),
            used: Vec::new(),
            crash: None,
            symbols: None,
            traced: None,
            crash_dump: None,
            crash_dump_l2: None,
            registers: Vec::new(),
            arm: Some(left),
            console_tail: plan.console.tail(),
            screen: Vec::new(),
            instructions,
            guest_time: plan.time.clock().now(),
            elapsed: start.elapsed(),
            resets,
        }
    }
}

/// The engine that `kind` names, for so many vCPUs.
fn engine(kind: EngineKind, vcpus: u32) -> Arc<dyn Engine<Arm>> {
    match kind {
        EngineKind::Interpreter => Arc::new(Interpreter { vcpus }),
        EngineKind::EagerTranslator => Arc::new(Translator::eager(vcpus)),
        EngineKind::Translator | EngineKind::Kvm => Arc::new(Translator::new(vcpus)),
    }
}

/// Runs one life.
fn live(plan: &Plan, life: &mut Life, control: &Control<ArmVcpu>) {
    control.live(life.space.clone());
    let (shared, serial) = (&plan.shared, &life.serial);
    let offer = |bytes: &[u8]| {
        let taken = serial.offer(bytes);
        shared.set_ready(serial.waits());
        taken
    };
    let feed = || {
        shared.feed_input(offer, || serial.offer_break());
        shared.feed_script(offer);
    };
    let around = Around {
        shared,
        time: &plan.time,
        control,
        timers: &life.timers,
        bells: &life.bells,
        turns: &Turns::default(),
        pins: &plan.pins,
        devices: &plan.devices,
        processors: host_processors().len().max(1),
        tick: None,
        end: None,
    };
    live::run(around, &mut life.vcpus, &feed, None);
}
