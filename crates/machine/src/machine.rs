//! A machine from boot to its end, through resets.

use std::fs::File;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use satori_bus::ByteSink;
use satori_cpuid::{MAX_CPUS, Topology};
use satori_engine::{Capability, CodeWatcher, Engine, X86};
use satori_hyperv::{Crash, Used};
use satori_profile::{Profile, Shares};
use satori_save::Saved;
use satori_state::CpuState;

use crate::console::Console;
use crate::control::Control;
use crate::cores::Cores;
use crate::debugcon::DebugSink;
use crate::engines::suffices;
use crate::gdb;
use crate::life::{Blueprint, GuestTimeout, Life, Loader, Time};
use crate::pins::{host_processors, pin};
use crate::runs::Runs;
use crate::shared::Shared;
use crate::tsc_change::{Planned, SLOWEST};
use crate::x86::MachineVcpu;
use crate::{
    ClockMode, Config, EngineKind, Error, Event, Handle, OnReset, Outcome, RealClock, VirtualClock,
    crash_dump, real, sampler, saved, screen, virtual_time, watch,
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
        let chosen = EngineKind::choose(&config, sinks.code.clone());
        let engine = format!("engine: {}", chosen.why);
        // The files go to whoever parses them, and are not kept twice.
        let files = Config {
            kernel: std::mem::take(&mut config.kernel),
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
            config.serials.determined()?;
        }
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
        let life = Life::new(&plan, &parts.load)?;
        let control = Control::new(plan.shared.clone(), plan.time.clone(), life.vps.len());
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
        })
    }

    /// One line on which engine runs, and why.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// Descriptors of its devices, which a sandbox has to keep open.
    pub fn files(&self) -> Vec<RawFd> {
        self.plan.config.devices.files().into_iter().chain(self.plan.config.serials.files()).collect()
    }

    /// Frequency of the guest's TSC in Hz.
    pub fn tsc_hz(&self) -> u64 {
        self.plan.time.clock().tsc_hz()
    }

    /// Lets a debugger that connects to `listener` stop and examine the machine. If `wait`, no
    /// vCPU runs before one lets it.
    pub fn debug(&mut self, listener: crate::GdbListener, wait: bool) {
        let watches = self.plan.engine.capabilities().has(Capability::BreakOnData);
        self.gdb = Some(gdb::Plan { listener, wait, watches });
    }

    /// Writes a trace of what `filter` names to `file`.
    pub fn trace(&mut self, file: File, filter: satori_trace::Filter) {
        self.trace = Some((file, filter));
    }

    /// Lets others watch what exits, on `listener`.
    pub fn watch(&mut self, listener: crate::WatchListener) {
        self.watch = Some(listener);
    }

    /// Writes the guest's memory and registers to `file` when it has crashed: an ELF core file.
    pub fn crash_dump(&mut self, file: File) {
        self.crash_dump = Some(file);
    }

    /// The same machine in the state of one that was saved, which was made of the same configuration. One that cannot take the
    /// state back is gone: half of it may be in that state.
    pub fn restored(mut self, saved: Saved) -> Result<Self, Error> {
        let life = &mut self.life;
        saved::restore(&life.rooms, &mut life.vps, saved)?;
        Ok(self)
    }

    /// A way to reach the machine while it runs.
    pub fn handle(&self) -> Handle {
        Handle(self.control.clone())
    }

    /// Runs to the end: the guest's, the timeout's, or [`Handle::stop`].
    pub fn run(self) -> Outcome {
        let Machine { plan, life, load, control, gdb, crash_dump, trace, watch, .. } = self;
        let start = Instant::now();
        let source = &plan.config.symbols;
        let end = plan.config.timeout.and_then(|timeout| start.checked_add(timeout));
        let mut sum = Sum::default();
        let mut symbols = None;
        let mut screen = Vec::new();
        let patient = matches!(plan.time, Time::Virtual(_));
        let start_trace =
            |(file, filter)| satori_trace::Tracer::start(file, filter, plan.config.topology.cpus(), patient);
        let (tracer, no_trace) = match trace.map(start_trace).transpose() {
            Ok(tracer) => (tracer, None),
            Err(error) => (None, Some(Error::Thread(error))),
        };
        let watchers = watch.map(|listener| watch::Server::start(listener, source.clone())).transpose();
        let watchers = watchers.unwrap_or_else(|error| {
            tracing::warn!("nobody can watch: {}", Error::Thread(error));
            None
        });
        let serving = plan.config.serials.start();
        if let Err(error) = &serving {
            tracing::warn!("nobody can reach a --serial socket: {error}");
        }
        let server = gdb.map(|gdb| gdb::Server::start(gdb, &control)).transpose();
        let mut next: Result<Life, Error> =
            server.as_ref().map(|_| life).map_err(|e| Error::Thread(e.kind().into()));
        let event = loop {
            // The last life is gone here, and its memory with it.
            let mut life = match next {
                Ok(life) => life,
                Err(error) => break Event::Failed(error.to_string()),
            };
            plan.shared.set_bells(life.bells.clone());
            control.set_rooms(life.rooms.clone());
            if let Some(tracer) = &tracer {
                life.vps.iter_mut().for_each(|vp| vp.set_trace(tracer.vcpu(vp.index())));
            }
            if let Some(watchers) = &watchers {
                watchers.watch(&mut life.vps);
            }
            let shares = live(&plan, &mut life, end, &control);
            watchers.iter().for_each(watch::Server::forget);
            sum.add(&mut life);
            if let Some(shares) = shares {
                sum.profile.shares.get_or_insert_default().merge(&shares);
            }
            let event = plan.shared.event().unwrap_or(Event::Stopped);
            // What the guest wrote before it ended is not lost with it. Who ended it waits for nobody.
            let hurry = matches!(event, Event::Stopped | Event::Timeout | Event::Failed(_));
            let over = || hurry || end.is_some_and(|end| end <= Instant::now());
            plan.config.devices.finish(&|| over() || plan.shared.stop_asked());
            if matches!(event, Event::Panic(_) | Event::TripleFault { .. })
                && let Some(file) = &crash_dump
            {
                sum.crash_dump = life.vps.first().map(|vp| {
                    let written = crash_dump::write(file, vp.memory(), &sum.registers);
                    written.map_err(|error| error.to_string())
                });
            }
            let load = load.as_ref().filter(|_| matches!(event, Event::Reset(_)));
            let Some(load) = load else {
                if plan.config.names || matches!(event, Event::Panic(_) | Event::TripleFault { .. }) {
                    symbols = life.vps.first().and_then(|vp| source.of(vp.memory()));
                }
                if plan.console.tail().is_empty() {
                    screen = life.vps.first().map(|vp| screen::lines(vp.memory())).unwrap_or_default();
                }
                break event;
            };
            drop(life);
            sum.resets += 1;
            plan.shared.revive();
            plan.time.pass_reset();
            // Here too: a guest that resets at once may end each life before its timers are looked at.
            let guest_time_over =
                plan.guest_timeout.as_ref().is_some_and(|timeout| timeout.is_over(plan.time.clock().now()));
            if guest_time_over || end.is_some_and(|end| end <= Instant::now()) {
                plan.shared.finish(Event::Timeout);
            }
            if let Some(event) = plan.shared.event() {
                break event;
            }
            next = Life::new(&plan, load);
        };
        if let Some(error) = no_trace {
            tracing::warn!("nothing is traced: {error}");
        }
        if let Some(watchers) = watchers {
            watchers.end();
        }
        let traced = tracer.map(satori_trace::Tracer::finish);
        control.end();
        if let Ok(Some(server)) = server {
            server.end(&event);
        }
        Outcome {
            event,
            profile: sum.profile,
            hyperv: sum.hyperv,
            crash: sum.crash,
            symbols,
            traced,
            crash_dump: sum.crash_dump,
            registers: sum.registers,
            console_tail: plan.console.tail(),
            screen,
            instructions: sum.instructions,
            guest_time: plan.time.clock().now(),
            elapsed: start.elapsed(),
            resets: sum.resets,
        }
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

/// What all lives of a machine leave.
#[derive(Default)]
struct Sum {
    profile: Profile,
    instructions: u64,
    resets: u32,
    hyperv: Vec<Used>,
    crash: Option<Crash>,
    crash_dump: Option<Result<crate::CrashDump, String>>,
    /// Of the last life.
    registers: Vec<CpuState>,
}

impl Sum {
    fn add(&mut self, life: &mut Life) {
        self.registers = life.vps.iter_mut().map(|vp| vp.registers().clone()).collect();
        if let Some(partition) = life.vps.first().and_then(|vp| vp.partition()) {
            let used = partition.usage();
            match self.hyperv.is_empty() {
                true => self.hyperv = used,
                false => self.hyperv.iter_mut().zip(used).for_each(|(sum, used)| sum.merge(used)),
            }
            self.crash = partition.crashed().or(self.crash.take());
        }
        for (index, vp) in life.vps.iter().enumerate() {
            self.profile.add(index, &vp.recorded());
            self.profile.add_stats(&vp.vcpu().stats());
            self.instructions = self.instructions.saturating_add(vp.retired());
        }
    }
}

/// Runs one life on threads of its own, and watches the wall clock. Returns where the engine's time went, if
/// that is wanted.
fn live(
    plan: &Blueprint,
    life: &mut Life,
    end: Option<Instant>,
    control: &Control<MachineVcpu>,
) -> Option<Shares> {
    control.live(life.space.clone());
    let shared = &*plan.shared;
    let clock = plan.time.clock();
    let (timers, com1, bells, turns) = (&life.timers, &life.com1, &life.bells, &*life.rooms.turns);
    let feed = || {
        shared.feed_input(|bytes| com1.offer(bytes), || com1.offer_break());
        shared.feed_script(|bytes| com1.offer(bytes));
    };
    let vps = &mut life.vps;
    let sampled: Option<Vec<_>> =
        plan.config.engine_stats.then(|| vps.iter().map(MachineVcpu::whereabouts).collect());
    let mut shares = sampled.as_ref().map(|_| Shares::default());
    std::thread::scope(|scope| {
        if let (Some(vcpus), Some(shares)) = (sampled, &mut shares) {
            start(scope, shared, "sampler", move || *shares = sampler::run(&vcpus, shared));
        }
        match &plan.time {
            Time::Virtual(clock) => {
                let cpus = plan.config.pins.all(vps.len());
                let tick = (plan.config.host_tick > 0)
                    .then(|| 1_000_000_000 / u64::from(plan.config.host_tick).min(1_000_000));
                start(scope, shared, "vcpus", move || {
                    pin(&cpus);
                    virtual_time::run(vps, timers, clock, shared, &feed, control, tick, turns)
                });
            }
            Time::Real(_) => {
                let (clock, alone) = (&*clock, vps.len() == 1);
                // Who pinned them has shared out the processors.
                let few = plan.processors < vps.len() && !plan.config.pins.any();
                let cores = few.then(|| Arc::new(Cores::new(plan.processors, bells)));
                for (vp, bell) in vps.iter_mut().zip(&bells.0) {
                    let name = format!("vcpu{}", vp.index());
                    let cpus = plan.config.pins.vcpu(vp.index());
                    let cores = cores.clone();
                    start(scope, shared, &name, move || {
                        pin(&cpus);
                        real::run_vp(vp, bell, alone, cores.as_deref(), clock, shared, control);
                    });
                }
                let cpus = &plan.config.pins.timers;
                start(scope, shared, "timers", move || {
                    pin(cpus);
                    real::run_timers(timers, clock, shared, &feed);
                });
            }
        }
        while !shared.stopping() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                shared.finish(Event::Timeout);
            } else {
                shared.watch.wait(left);
            }
        }
        control.look();
    });
    control.leave();
    shares
}

/// Starts a thread whose panic, our own failure, ends the run instead of hanging it.
fn start<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    shared: &'scope Shared,
    name: &str,
    work: impl FnOnce() + Send + 'scope,
) {
    let guarded = move || {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            shared.finish(Event::Failed(panic_text(&*panic)));
        }
    };
    if let Err(error) = std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, guarded) {
        shared.finish(Event::Failed(Error::Thread(error).to_string()));
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("internal error: {}; please report it", text.unwrap_or_else(|| "a thread panicked".into()))
}
