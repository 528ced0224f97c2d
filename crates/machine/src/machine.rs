//! A machine from boot to its end, through resets.

use std::fs::File;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use satori_bus::ByteSink;
use satori_cpuid::{MAX_CPUS, Topology};
use satori_engine::{CodeWatcher, DebugPlan, Engine, X86};
use satori_save::Saved;

use crate::console::Console;
use crate::control::Control;
use crate::debugcon::DebugSink;
use crate::engines::suffices;
use crate::gdb;
use crate::life::{Blueprint, GuestTimeout, Life, Loader, Origin, Time};
use crate::lives::{Lives, Sum};
use crate::onlookers::Onlookers;
use crate::pins::host_processors;
use crate::shared::Shared;
use crate::tsc_change::{Planned, SLOWEST};
use crate::x86::MachineVcpu;
use crate::{
    ClockMode, Config, EngineKind, Error, Event, Handle, OnReset, Outcome, RealClock, VirtualClock, saved,
    watch,
};

/// Where a guest's output goes.
pub struct Sinks {
    /// The serial console.
    pub console: Box<dyn ByteSink>,
    /// The debug console at port 0xe9; without one the port does not exist.
    pub debugcon: Option<Box<dyn ByteSink>>,
    /// Who is told of the host code that the engine makes.
    pub code: Option<Arc<dyn CodeWatcher>>,
}

/// A machine, loaded and ready to run.
pub struct Machine {
    plan: Blueprint,
    life: Life,
    /// What loads its next life; none if a reset is the end.
    load: Option<Loader>,
    control: Arc<Control<MachineVcpu>>,
    engine: String,
    gdb: Option<gdb::Plan>,
    trace: Option<(File, satori_trace::Filter)>,
    watch: Option<watch::WatchListener>,
    crash_dump: Option<File>,
    crash_dump_l2: Option<File>,
}

impl Machine {
    /// Builds and loads the machine that `config` describes. Errors are mistakes of the
    /// configuration, or what the host refuses.
    pub fn new(config: Config, sinks: Sinks) -> Result<Self, Error> {
        Self::with_engine(config, sinks, |engine| engine)
    }

    /// The same, on what `wrap` makes of the engine: something that watches it, for instance.
    pub fn with_engine(
        mut config: Config,
        sinks: Sinks,
        wrap: impl FnOnce(Arc<dyn Engine<X86>>) -> Arc<dyn Engine<X86>>,
    ) -> Result<Self, Error> {
        let chosen = EngineKind::choose(&config, sinks.code.clone())?;
        let instead = config.engine_instead.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
        let engine = format!("engine: {}{instead}", chosen.why);
        // The files go to whoever parses them, and are not kept twice.
        let files = Config {
            kernel: std::mem::take(&mut config.kernel),
            kernel_unpacked: config.kernel_unpacked.take(),
            initrds: std::mem::take(&mut config.initrds),
            ..config.clone()
        };
        let (regions, load) = crate::boot::prepare(files, &chosen)?;
        let parts = Parts {
            engine: wrap(chosen.engine),
            features: chosen.features,
            host_lacks: chosen.host_lacks,
            regions,
            load,
        };
        Self::assemble(config, sinks, parts, engine)
    }

    pub(crate) fn assemble(
        config: Config,
        sinks: Sinks,
        parts: Parts,
        engine: String,
    ) -> Result<Self, Error> {
        // Checked here too: the fields are anybody's to set.
        let Topology { sockets, dies, cores, threads } = config.topology;
        if [sockets, dies, cores, threads].contains(&0) || !(1..=MAX_CPUS).contains(&config.topology.cpus()) {
            return Err(Error::Config(format!("use --cpus 1 to {MAX_CPUS}")));
        }
        let time = match config.clock {
            ClockMode::Real => Time::Real(Arc::new(RealClock::new(config.tsc_hz))),
            ClockMode::Virtual { rate } => Time::Virtual(Arc::new(VirtualClock::new(rate, config.tsc_hz))),
        };
        if config.tsc_changes.iter().any(|change| change.hz < SLOWEST) {
            return Err(Error::Config(format!(
                "use a TSC frequency of at least {} MHz",
                SLOWEST / 1_000_000
            )));
        }
        if matches!(config.clock, ClockMode::Virtual { .. }) {
            config.devices.determined()?;
            config.serials.determined(config.journal.is_some())?;
        }
        crate::life::vmbus::possible(&config)?;
        suffices(&*parts.engine, matches!(config.clock, ClockMode::Virtual { .. }))?;
        let shared = Shared::new();
        shared.set_script(config.input.clone());
        let restarts = config.on_reset == OnReset::Restart;
        let plan = Blueprint {
            engine: parts.engine,
            features: parts.features,
            host_lacks: parts.host_lacks,
            cpu: config.cpu_model.as_deref().unwrap_or("max").parse()?,
            regions: parts.regions,
            time,
            processors: host_processors().len().max(1),
            charges: config.charges.clone().map(Arc::new),
            guest_timeout: config.guest_timeout.map(|limit| Arc::new(GuestTimeout::new(limit, &shared))),
            tsc_changes: config.tsc_changes.iter().copied().map(Planned::new).collect(),
            shared,
            console: Console::new(sinks.console, &config.panic_pattern),
            debugcon: sinks.debugcon.map(DebugSink::new),
            config,
        };
        if let Some(journal) = &plan.config.journal {
            plan.shared.set_journal(journal);
        }
        let life = Life::new(&plan, Origin::PowerUp(&parts.load))?;
        let control = Control::new(plan.shared.clone(), plan.time.clone(), life.vcpus.len());
        Ok(Machine {
            plan,
            life,
            load: restarts.then_some(parts.load),
            control,
            engine,
            gdb: None,
            trace: None,
            watch: None,
            crash_dump: None,
            crash_dump_l2: None,
        })
    }

    /// One line on which engine runs, and why.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// Whether it runs by the host's /dev/kvm.
    pub fn runs_by_kvm(&self) -> bool {
        self.plan.config.engine == EngineKind::Kvm
    }

    /// Descriptors of its devices and of its engine, which a sandbox has to keep open.
    pub fn files(&self) -> Vec<RawFd> {
        let config = &self.plan.config;
        let devices = config.devices.files().into_iter().chain(config.serials.files());
        devices.chain(self.plan.engine.files()).collect()
    }

    /// Frequency of the guest's TSC in Hz.
    pub fn tsc_hz(&self) -> u64 {
        self.plan.time.clock().counter_hz()
    }

    /// Lets a debugger that connects to `listener` stop and examine the machine. If `wait`, no
    /// vCPU runs before one lets it.
    pub fn debug(&mut self, listener: crate::GdbListener, wait: bool) {
        let engine = self.plan.engine.clone();
        let possible = Box::new(move |plan: &DebugPlan| engine.can_stop_at(plan));
        self.gdb = Some(gdb::Plan { listener, wait, possible });
    }

    /// Writes a trace of what `filter` names to `file`.
    pub fn trace(&mut self, file: File, filter: satori_trace::Filter) {
        self.trace = Some((file, filter));
    }

    /// Lets others watch what exits, on `listener`.
    pub fn watch(&mut self, listener: crate::WatchListener) {
        self.watch = Some(listener);
    }

    /// Writes the guest's memory and registers to the first of these when it has crashed, and those of the guest that it has itself to
    /// the second: ELF core files.
    pub fn crash_dumps(&mut self, [own, nested]: [Option<File>; 2]) {
        (self.crash_dump, self.crash_dump_l2) = (own, nested);
    }

    /// The same machine in the state of one that was saved, which was made of the same configuration. One that cannot take the
    /// state back is gone: half of it may be in that state.
    pub fn restored(mut self, saved: Saved) -> Result<Self, Error> {
        let life = &mut self.life;
        saved::restore(&life.rooms, &mut life.vcpus, saved)?;
        Ok(self)
    }

    /// A way to reach the machine while it runs.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.control))
    }

    /// Runs to the end: the guest's, the timeout's, or [`Handle::stop`].
    pub fn run(self) -> Outcome {
        let Machine { plan, life, load, control, gdb, crash_dump, crash_dump_l2, trace, watch, .. } = self;
        let start = Instant::now();
        let end = plan.config.timeout.and_then(|timeout| start.checked_add(timeout));
        let serving = plan.config.serials.start();
        if let Err(error) = &serving {
            tracing::warn!("nobody can reach a --serial socket: {error}");
        }
        let mut sum = Sum::default();
        let (event, traced) = match Onlookers::start(&plan, &control, gdb, trace, watch) {
            Ok(onlookers) => {
                let lives = Lives {
                    plan: &plan,
                    load,
                    control: &control,
                    tracer: onlookers.tracer(),
                    crash_dump: crash_dump.as_ref(),
                    crash_dump_l2: crash_dump_l2.as_ref(),
                    end,
                };
                let event = lives.run(life, &mut sum);
                let traced = onlookers.end(&control, &event);
                (event, traced)
            }
            Err(error) => (Event::Failed(error.to_string()), None),
        };
        let (event, elapsed) = over(&plan, event, start.elapsed());
        Outcome {
            event,
            profile: sum.profile,
            hyperv: sum.hyperv,
            used: sum.used,
            crash: sum.crash,
            symbols: sum.symbols,
            traced,
            crash_dump: sum.crash_dump,
            crash_dump_l2: sum.crash_dump_l2,
            registers: sum.registers,
            arm: None,
            console_tail: plan.console.tail(),
            screen: sum.screen,
            instructions: sum.instructions,
            guest_time: plan.time.clock().now(),
            elapsed,
            resets: sum.resets,
        }
    }
}

/// How the run ended, behind its journal's word on that, and how long it took: a replay as long as what it repeats.
fn over(plan: &Blueprint, event: Event, elapsed: Duration) -> (Event, Duration) {
    let (Some(journal), Time::Virtual(clock)) = (&plan.config.journal, &plan.time) else {
        return (event, elapsed);
    };
    // A replay that somebody ended is no other run.
    let ended = journal.replays() && plan.shared.stop_asked();
    let nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    match journal.end(clock.gone(), &format!("{event:?}"), nanos) {
        Ok(nanos) => (event, Duration::from_nanos(nanos)),
        Err(_) if ended || matches!(event, Event::Diverged(_) | Event::Failed(_)) => (event, elapsed),
        Err(why) => (Event::Diverged(why), elapsed),
    }
}

/// What the engine and the boot protocol contribute; tests put their own in.
pub(crate) struct Parts {
    pub engine: Arc<dyn Engine<X86>>,
    pub features: &'static [satori_cpuid::Feature],
    pub host_lacks: Vec<satori_cpuid::Feature>,
    pub regions: Vec<satori_memory::Region>,
    pub load: Loader,
}
