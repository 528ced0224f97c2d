//! One guest, run three times.

use std::fmt::Debug;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use satori_bus::ByteSink;
use satori_defs::x86::rflags;
use satori_machine::{Config, EngineKind, Event, Handle, Machine, Outcome, Saved, Sinks};
use satori_save::Value;
use satori_state::CpuState;
use serde_json::Value as Tree;

use crate::guests::Guest;

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}

/// The console of a run, through all its machines.
#[derive(Clone, Default)]
pub(crate) struct Console(Arc<Mutex<Vec<u8>>>);

impl Console {
    /// What it shows.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("the console")).into_owned()
    }
}

impl ByteSink for Console {
    fn put(&mut self, bytes: &[u8]) {
        self.0.lock().expect("the console").extend_from_slice(bytes);
    }
}

/// Asks for an instant before the machine of `handle` executes: a short run may be over before a thread comes to ask.
pub(crate) fn asked(handle: Handle, at: Duration) -> JoinHandle<bool> {
    let (comes, came) = channel();
    let asks = std::thread::spawn(move || {
        comes.send(()).expect("who waits for it");
        handle.suspend_at(at)
    });
    came.recv().expect("the asking thread");
    // It is within a call by then, or has been kept from executing just there.
    std::thread::sleep(Duration::from_millis(20));
    asks
}

/// What is done at an instant.
#[derive(Clone, Copy, PartialEq)]
enum At {
    /// The machine is saved and goes on.
    GoesOn,
    /// It is saved and thrown away.
    IsThrownAway,
}

/// How a run went.
struct Run {
    console: Vec<u8>,
    outcome: Outcome,
    /// What was saved at the last instant.
    last: Option<Saved>,
    /// Instants at which some vCPU executed a guest of its guest.
    nested: usize,
}

/// A guest, and how often each of its runs is disturbed.
pub(crate) struct Trial<'a> {
    pub guest: &'a Guest,
    pub instants: usize,
}

pub(crate) fn machine(config: Config, sink: impl ByteSink + 'static) -> Machine {
    let sinks = Sinks { console: Box::new(sink), debugcon: None, code: None };
    Machine::new(config, sinks).expect("a machine")
}

impl Trial<'_> {
    fn config(&self) -> Config {
        Config { engine: self.guest.engine, ..(self.guest.config)() }
    }

    /// Runs the guest, and does `what` at each of these instants of guest time.
    fn go(&self, instants: &[u64], what: At) -> Result<Run, String> {
        let (console, mut last, mut nested) = (Console::default(), None, 0);
        let mut left = instants.iter();
        let outcome = loop {
            let mut machine = machine(self.config(), console.clone());
            if let Some(saved) = last.clone() {
                machine = machine.restored(saved).map_err(|error| error.to_string())?;
            }
            let handle = machine.handle();
            let first = left.as_slice().first();
            let asks = first.map(|at| asked(machine.handle(), Duration::from_nanos(*at)));
            let thread = std::thread::spawn(move || machine.run());
            let (mut thrown, mut asks) = (false, asks);
            for &at in left.by_ref() {
                let reached = match asks.take() {
                    Some(asks) => asks.join().expect("the asking thread"),
                    None => handle.suspend_at(Duration::from_nanos(at)),
                };
                if !reached {
                    return Err(format!("the machine had ended by {at} ns"));
                }
                let saved = handle.save().map_err(|error| error.to_string())?;
                nested += usize::from(saved.iter().any(|(_, value)| in_nested_guest(value.tree())));
                last = Some(saved);
                if what == At::IsThrownAway {
                    handle.stop();
                    thrown = true;
                    break;
                }
                handle.go_on();
            }
            let outcome = thread.join().expect("the machine's thread");
            match (thrown, &outcome.event) {
                (true, Event::Stopped) => {}
                (true, event) => return Err(format!("it ended by {event:?} while it was held")),
                (false, _) => break outcome,
            }
        };
        let console = console.0.lock().expect("the console").clone();
        Ok(Run { console, outcome, last, nested })
    }

    /// Runs it to `instants[1]`, gives the machine the state back that it had at `instants[0]`, and lets it go on.
    fn back(&self, instants: [u64; 2]) -> Result<(Run, [usize; 2]), String> {
        let console = Console::default();
        let machine = machine(self.config(), console.clone());
        let handle = machine.handle();
        let thread = std::thread::spawn(move || machine.run());
        let (mut written, mut saved) = ([0; 2], None);
        for (written, at) in written.iter_mut().zip(instants) {
            if !handle.suspend_at(Duration::from_nanos(at)) {
                return Err(format!("the machine had ended by {at} ns"));
            }
            *written = console.0.lock().expect("the console").len();
            match saved.take() {
                None => saved = Some(handle.save().map_err(|error| error.to_string())?),
                Some(saved) => handle.restore(saved).map_err(|error| error.to_string())?,
            }
            handle.go_on();
        }
        let outcome = thread.join().expect("the machine's thread");
        let console = console.0.lock().expect("the console").clone();
        Ok((Run { console, outcome, last: None, nested: 0 }, written))
    }

    /// Runs it alone, held, thrown away, and back in time; tells what is not equal.
    pub(crate) fn run(&self, random: &mut Random) -> Result<String, String> {
        let alone = self.go(&[], At::GoesOn)?;
        let text = String::from_utf8_lossy(&alone.console);
        if text.contains("BAD") {
            return Err(format!("the guest itself says: {text}"));
        }
        let total = alone.outcome.guest_time;
        let mut instants: Vec<u64> = (0..self.instants).map(|_| random.next() % (total / 20 * 19)).collect();
        instants.sort_unstable();
        // The end is near there: what went wrong has had time to show.
        instants.push(total / 20 * 19);
        // Who asks a short run for a second instant may come too late.
        let held = if self.guest.short { &instants[self.instants..] } else { &instants[..] };
        let held = self.go(held, At::GoesOn)?;
        let at = format!("at {instants:?} ns of {total}");
        alike("held", &alone, &held).map_err(|what| format!("{what}, {at}"))?;
        let thrown = self.go(&instants, At::IsThrownAway)?;
        alike("thrown away", &alone, &thrown).map_err(|what| format!("{what}, {at}"))?;
        let (Some(one), Some(other)) = (&held.last, &thrown.last) else {
            return Err("nothing was saved".into());
        };
        if self.guest.shows.is_some_and(|shows| !shows(one)) {
            return Err(format!("the guest does not do what it is there for, {at}"));
        }
        if self.guest.nested && thrown.nested == 0 {
            return Err(format!("no guest of the guest executes, {at}"));
        }
        let undefined = self.saved_alike(one, other).map_err(|what| format!("{what}; {at}"))?;
        if !self.guest.short {
            let (mut back, [from, to]) = self.back([instants[0], instants[instants.len() - 1]])?;
            // What came in between has come twice.
            back.console.drain(from..to);
            alike("back in time", &alone, &back).map_err(|what| format!("{what}, {at}"))?;
        }
        let bytes: usize = one.iter().map(|(_, value)| value.bytes().len()).sum();
        Ok(format!(
            "the same behind {} instants: {} bytes on the console, {} M instructions; at the end {} values with {} KiB, \
             {undefined} words of which differ in undefined flags{}",
            instants.len(),
            alone.console.len(),
            alone.outcome.instructions / 1_000_000,
            one.iter().count(),
            bytes >> 10,
            if self.guest.nested {
                format!("; {} instants within its guests", thrown.nested)
            } else {
                String::new()
            },
        ))
    }
}

impl Trial<'_> {
    /// Whether two states are equal. On the translator words of memory may differ in status flags, and so may registers that hold
    /// flags, where some instruction left them undefined: which values they get depends on whether it was translated already. Tells
    /// how many words of memory do.
    fn saved_alike(&self, one: &Saved, other: &Saved) -> Result<usize, String> {
        let (mut places, mut undefined) = (one.differences(other), 0);
        if self.guest.engine != EngineKind::Interpreter {
            places.retain(|place| match but_for_flags(value(one, place), value(other, place)) {
                Some(words) => {
                    undefined += words;
                    false
                }
                None => true,
            });
        }
        match places.is_empty() {
            true => Ok(undefined),
            false => Err(format!("what is saved near the end differs: {}", differing(one, other, &places))),
        }
    }
}

/// Whether the vCPU that a value is of executes a guest of its guest, by VMX or SVM.
fn in_nested_guest(tree: &Tree) -> bool {
    tree["vmx"]["operation"]["guest"] == true || tree["svm"]["guest"].is_object()
}

fn value<'a>(saved: &'a Saved, place: &str) -> Option<&'a Value> {
    saved.iter().find(|(name, _)| *name == place).map(|(_, value)| value)
}

/// In how many words of their bytes two values differ, if that is in status flags only, and in what registers hold of them.
fn but_for_flags(one: Option<&Value>, other: Option<&Value>) -> Option<usize> {
    let (one, other) = (one?, other?);
    let trees = match one.name() {
        "memory" => one.tree() == other.tree(),
        "x86 registers" => numbers_but_for_flags(one.tree(), other.tree()),
        _ => false,
    };
    let words = |value: &Value| {
        value.bytes().as_chunks::<8>().0.iter().copied().map(u64::from_le_bytes).collect::<Vec<_>>()
    };
    let (mine, theirs) = (words(one), words(other));
    let flags = |(mine, theirs): (&u64, &u64)| (mine ^ theirs) & !rflags::STATUS == 0;
    let alike = trees && mine.len() == theirs.len() && mine.iter().zip(&theirs).all(flags);
    alike.then(|| mine.iter().zip(&theirs).filter(|(mine, theirs)| mine != theirs).count())
}

fn numbers_but_for_flags(one: &Tree, other: &Tree) -> bool {
    match (one, other) {
        (Tree::Array(mine), Tree::Array(theirs)) => {
            let mut pairs = mine.iter().zip(theirs);
            mine.len() == theirs.len() && pairs.all(|(mine, theirs)| numbers_but_for_flags(mine, theirs))
        }
        (Tree::Object(mine), Tree::Object(theirs)) => {
            let alike = |(name, mine): (&String, &Tree)| {
                theirs.get(name).is_some_and(|theirs| numbers_but_for_flags(mine, theirs))
            };
            mine.len() == theirs.len() && mine.iter().all(alike)
        }
        _ => match (one.as_u64(), other.as_u64()) {
            (Some(mine), Some(theirs)) => (mine ^ theirs) & !rflags::STATUS == 0,
            _ => one == other,
        },
    }
}

/// What of two states is not equal, in some words.
fn differing(one: &Saved, other: &Saved, places: &[String]) -> String {
    let tree = |saved, place: &str| value(saved, place).map(|value| value.tree().clone()).unwrap_or_default();
    let each = places.iter().map(|place| {
        let (a, b) = (tree(one, place), tree(other, place));
        let fields = a.as_object().into_iter().flatten().filter(|(name, value)| b.get(name) != Some(value));
        let fields = fields.map(|(name, value)| {
            let cut = |value: String| value.chars().take(60).collect::<String>();
            format!("{name}: {} and {}", cut(value.to_string()), cut(b[name].to_string()))
        });
        format!("{place} ({})", fields.collect::<Vec<_>>().join("; "))
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Whether two runs ended alike; the time on the host and the engine's own counters are not looked at.
fn alike(how: &str, one: &Run, other: &Run) -> Result<(), String> {
    fn equal<T: PartialEq + Debug>(what: &str, one: &T, other: &T) -> Result<(), String> {
        match one == other {
            true => Ok(()),
            false => Err(format!("{what}: {one:?} alone, {other:?}")),
        }
    }
    let all = || {
        let (text, its) = (String::from_utf8_lossy(&one.console), String::from_utf8_lossy(&other.console));
        let line = text.lines().zip(its.lines()).find(|(mine, theirs)| mine != theirs);
        equal("the console", &line.map(|(mine, _)| mine), &line.map(|(_, theirs)| theirs))?;
        equal("bytes on the console", &one.console.len(), &other.console.len())?;
        let (one, other) = (&one.outcome, &other.outcome);
        equal("the end", &one.event, &other.event)?;
        equal("guest time", &one.guest_time, &other.guest_time)?;
        equal("instructions", &one.instructions, &other.instructions)?;
        equal("resets", &one.resets, &other.resets)?;
        for (vcpu, (mine, theirs)) in one.profile.vcpus.iter().zip(&other.profile.vcpus).enumerate() {
            equal(&format!("exits of vCPU {vcpu}"), &mine.rows(), &theirs.rows())?;
        }
        equal("exits over time", &one.profile.timeline, &other.profile.timeline)?;
        equal("where exits came from", &one.profile.hot, &other.profile.hot)?;
        equal("what was used of Hyper-V", &one.hyperv, &other.hyperv)?;
        equal("what the guest told when it crashed", &one.crash, &other.crash)?;
        equal("the console's last lines", &one.console_tail, &other.console_tail)?;
        let unflagged = |state: &CpuState| {
            let mut state = state.clone();
            let gpr = state.gpr.iter_mut();
            gpr.chain([&mut state.rflags]).for_each(|register| *register &= !rflags::STATUS);
            state
        };
        let registers = |outcome: &Outcome| outcome.registers.iter().map(unflagged).collect::<Vec<_>>();
        equal("registers", &registers(one), &registers(other))
    };
    all().map_err(|what| format!("{how}: {what}"))
}
