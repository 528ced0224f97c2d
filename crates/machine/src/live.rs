//! One life of a machine on threads of its own, of any instruction set.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use satori_bus::{Nanos, TimerQueue};
use satori_profile::Shares;
use satori_seam::Whereabouts;

use crate::control::Control;
use crate::cores::Cores;
use crate::devices::Devices;
use crate::life::Time;
use crate::pins::{Pins, pin};
use crate::runs::Runs;
use crate::shared::{Bells, Shared};
use crate::virtual_time::Turns;
use crate::{Error, Event, real, sampler, virtual_time};

/// What the vCPUs of a life run beside.
pub(crate) struct Around<'a, V> {
    pub(crate) shared: &'a Shared,
    pub(crate) time: &'a Time,
    pub(crate) control: &'a Control<V>,
    pub(crate) timers: &'a TimerQueue,
    pub(crate) bells: &'a Arc<Bells>,
    pub(crate) turns: &'a Turns,
    pub(crate) pins: &'a Pins,
    pub(crate) devices: &'a Devices,
    /// How many processors of the host there are.
    pub(crate) processors: usize,
    /// How often the modelled host ticks under a virtual clock, if it does.
    pub(crate) tick: Option<Nanos>,
    /// When the wall clock ends the run.
    pub(crate) end: Option<Instant>,
}

/// Runs `vcpus` until the machine stops, and watches the wall clock. `feed` hands typed input to the guest. Returns where the time of
/// those that are `sampled` went.
pub(crate) fn run<V: Runs>(
    around: Around<'_, V>,
    vcpus: &mut [V],
    feed: &(dyn Fn() + Sync),
    sampled: Option<Vec<Option<Arc<Whereabouts>>>>,
) -> Option<Shares> {
    let Around { shared, control, timers, bells, turns, pins, devices, tick, end, .. } = around;
    let clock = around.time.clock();
    let mut shares = sampled.as_ref().map(|_| Shares::default());
    let awake = AtomicUsize::new(vcpus.len());
    std::thread::scope(|scope| {
        if let (Some(vcpus), Some(shares)) = (sampled, &mut shares) {
            start(scope, shared, "sampler", move || *shares = sampler::run(&vcpus, shared));
        }
        match around.time {
            Time::Virtual(clock) => {
                let cpus = pins.all(vcpus.len());
                start(scope, shared, "vcpus", move || {
                    pin(&cpus);
                    let around = virtual_time::Around { timers, clock, shared, control, tick };
                    virtual_time::run(vcpus, around, feed, turns)
                });
            }
            Time::Real(_) => {
                let (clock, awake) = (&*clock, &awake);
                // Who pinned them has shared out the processors.
                // One that halts in the kernel would keep its place.
                let kept = vcpus.iter().any(Runs::halts_inside);
                let few = around.processors < vcpus.len() && !pins.any() && !kept;
                let cores = few.then(|| Arc::new(Cores::new(around.processors, bells)));
                for (vcpu, bell) in vcpus.iter_mut().zip(&bells.0) {
                    let name = format!("vcpu{}", vcpu.index());
                    let cpus = pins.vcpu(vcpu.index());
                    let cores = cores.clone();
                    start(scope, shared, &name, move || {
                        pin(&cpus);
                        let around =
                            real::Around { awake, cores: cores.as_deref(), clock, shared, control, devices };
                        real::run_vcpu(vcpu, bell, &around);
                    });
                }
                let cpus = &pins.timers;
                start(scope, shared, "timers", move || {
                    pin(cpus);
                    real::run_timers(timers, clock, shared, feed);
                });
            }
        }
        let mut end = end;
        while !shared.stopping() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                shared.time_is_up();
                end = None;
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
