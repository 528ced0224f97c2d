//! The lives of a machine, from one reset to the next, and what they leave.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use satori_hyperv::Crash;
use satori_profile::{Profile, Shares};
use satori_pv::Used;
use satori_state::CpuState;
use satori_symbols::Symbols;
use satori_trace::Tracer;

use crate::control::Control;
use crate::life::{Asleep, Blueprint, Life, Loader, Origin};
use crate::live::{self, Around};
use crate::runs::Runs;
use crate::x86::MachineVcpu;
use crate::{Event, crash_dump, screen};

/// What all lives of a machine need.
pub(crate) struct Lives<'a> {
    pub plan: &'a Blueprint,
    /// What loads its next life; none if a reset is the end.
    pub load: Option<Loader>,
    pub control: &'a Control<MachineVcpu>,
    /// Who writes what happens.
    pub tracer: Option<&'a Tracer>,
    pub crash_dump: Option<&'a File>,
    /// The same of a guest that it has.
    pub crash_dump_l2: Option<&'a File>,
    /// When the wall clock ends the run.
    pub end: Option<Instant>,
}

impl Lives<'_> {
    /// Runs `life`, and those that follow it by resets and sleep.
    pub(crate) fn run(&self, mut life: Life, sum: &mut Sum) -> Event {
        loop {
            let (event, slept) = match self.one(&mut life, sum) {
                Event::Woken => match life.asleep() {
                    Some(asleep) => (Event::Woken, Some(asleep)),
                    None => (Event::Reset("the wake from a sleep without a waking vector"), None),
                },
                event => (event, None),
            };
            let Some(origin) = self.next(&event, slept) else {
                self.examine(&life, &event, sum);
                if self.plan.config.ends_process {
                    life.vcpus.iter_mut().for_each(MachineVcpu::abandon_caches);
                }
                return event;
            };
            // Its memory goes before that of the next one comes.
            drop(life);
            sum.resets += u32::from(matches!(event, Event::Reset(_)));
            if let Some(event) = self.revive() {
                return event;
            }
            life = match Life::new(self.plan, origin) {
                Ok(life) => life,
                Err(error) => return Event::Failed(error.to_string()),
            };
        }
    }

    /// Where the next life comes from behind `event`, if there is one.
    fn next(&self, event: &Event, slept: Option<Asleep>) -> Option<Origin<'_>> {
        match event {
            Event::Woken => slept.map(|asleep| Origin::Sleep(Box::new(asleep))),
            Event::Reset(_) => self.load.as_ref().map(Origin::PowerUp),
            _ => None,
        }
    }

    /// One life, until its guest, or somebody else, ends it.
    fn one(&self, life: &mut Life, sum: &mut Sum) -> Event {
        let Lives { plan, control, .. } = self;
        plan.shared.set_bells(life.bells.clone());
        control.set_rooms(life.rooms.clone());
        control.set_counters(|| life.vcpus.iter_mut().map(MachineVcpu::watch).collect());
        if let Some(tracer) = self.tracer {
            life.vcpus.iter_mut().for_each(|vcpu| vcpu.set_trace(tracer.vcpu(vcpu.index())));
        }
        let shares = self.execute(life);
        sum.add(life);
        if let Some(shares) = shares {
            sum.profile.shares.get_or_insert_default().merge(&shares);
        }
        let event = plan.shared.event().unwrap_or(Event::Stopped);
        // What the guest wrote before it ended is not lost with it. Who ended it waits for nobody.
        let hurry = matches!(event, Event::Stopped | Event::Timeout | Event::Diverged(_) | Event::Failed(_));
        let over = || hurry || self.end.is_some_and(|end| end <= Instant::now());
        plan.config.devices.finish(&|| over() || plan.shared.stop_asked());
        if crashed(&event)
            && let Some(vcpu) = life.vcpus.first()
        {
            let told = |error: io::Error| error.to_string();
            sum.crash_dump = self.crash_dump.map(|file| {
                let registers = crash_dump::outermost(&life.vcpus, &sum.registers);
                crash_dump::write(file, vcpu.memory(), &registers).map_err(told)
            });
            sum.crash_dump_l2 = self
                .crash_dump_l2
                .map(|file| crash_dump::write_nested(file, &life.vcpus, &sum.registers).map_err(told));
        }
        event
    }

    /// What is told of the last life, which ended by `event`.
    fn examine(&self, life: &Life, event: &Event, sum: &mut Sum) {
        let config = &self.plan.config;
        let unfinished = matches!(event, Event::Stopped | Event::Timeout);
        if config.names || unfinished || crashed(event) {
            sum.symbols = life.vcpus.first().and_then(|vcpu| config.symbols.of(vcpu.memory()));
        }
        if self.plan.console.tail().is_empty() {
            sum.screen = life.vcpus.first().map(|vcpu| screen::lines(vcpu.memory())).unwrap_or_default();
        }
    }

    /// Lets the next life come, unless something ended the run meanwhile.
    fn revive(&self) -> Option<Event> {
        let plan = self.plan;
        plan.shared.revive();
        plan.time.pass_reset();
        // Here too: a guest that resets at once may end each life before its timers are looked at.
        let guest_time_over =
            plan.guest_timeout.as_ref().is_some_and(|timeout| timeout.is_over(plan.time.clock().now()));
        if guest_time_over || self.end.is_some_and(|end| end <= Instant::now()) {
            plan.shared.finish(Event::Timeout);
        }
        plan.shared.event()
    }

    /// Executes it. Returns where the engine's time went, if that is wanted.
    fn execute(&self, life: &mut Life) -> Option<Shares> {
        self.control.live(life.space.clone());
        let com1 = &life.com1;
        let xen = life.rooms.platform.xen.clone();
        // What is typed goes where the guest writes: Linux leaves the serial port for Xen's console.
        let offer = |bytes: &[u8]| match &xen {
            Some(xen) if xen.has_console() => xen.offer(bytes),
            _ => com1.offer(bytes),
        };
        let feed = || {
            self.plan.shared.feed_input(offer, || com1.offer_break());
            self.plan.shared.feed_script(|bytes| com1.offer(bytes));
        };
        let sampled =
            self.plan.config.engine_stats.then(|| life.vcpus.iter().map(MachineVcpu::whereabouts).collect());
        let around = Around {
            shared: &self.plan.shared,
            time: &self.plan.time,
            control: self.control,
            timers: &life.timers,
            bells: &life.bells,
            turns: &life.rooms.turns,
            pins: &self.plan.config.pins,
            devices: &self.plan.config.devices,
            processors: self.plan.processors,
            tick: (self.plan.config.host_tick > 0)
                .then(|| 1_000_000_000 / u64::from(self.plan.config.host_tick).min(1_000_000)),
            end: self.end,
        };
        live::run(around, &mut life.vcpus, &feed, sampled)
    }
}

fn crashed(event: &Event) -> bool {
    matches!(event, Event::Panic(_) | Event::TripleFault { .. })
}

/// What all lives of a machine leave.
#[derive(Default)]
pub(crate) struct Sum {
    pub profile: Profile,
    pub instructions: u64,
    pub resets: u32,
    pub hyperv: Vec<Used>,
    /// Of the interfaces beside Hyper-V's.
    pub used: Vec<Used>,
    pub crash: Option<Crash>,
    pub crash_dump: Option<Result<crate::CrashDump, String>>,
    pub crash_dump_l2: Option<Result<crate::CrashDump, String>>,
    /// Of the last life.
    pub registers: Vec<CpuState>,
    /// Names of the last kernel's addresses, where they are wanted.
    pub symbols: Option<Arc<Symbols>>,
    /// What the last guest's screen shows, if its console said nothing.
    pub screen: Vec<String>,
}

impl Sum {
    fn add(&mut self, life: &mut Life) {
        self.registers = life.vcpus.iter_mut().map(|vcpu| vcpu.registers().clone()).collect();
        if let Some(partition) = life.vcpus.first().and_then(|vcpu| vcpu.partition()) {
            Used::merge_all(&mut self.hyperv, partition.usage());
            self.crash = partition.crashed().or(self.crash.take());
        }
        Used::merge_all(&mut self.used, life.vcpus.first().map_or_else(Vec::new, MachineVcpu::used));
        for (index, vcpu) in life.vcpus.iter().enumerate() {
            self.profile.add(index, &vcpu.recorded());
            self.profile.add_stats(&vcpu.vcpu().stats());
            self.instructions = self.instructions.saturating_add(vcpu.retired());
        }
    }
}
