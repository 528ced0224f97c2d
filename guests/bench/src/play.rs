//! The load of the talk on the traps of Hyper-V features, as a program of Linux: what `guests/bare/src/bin/game/` does by
//! itself, this asks the kernel for. Groups of three processors render; each thread reads the clock and interrupts the two
//! others of its group, so many times a second. When it does so goes by the time-stamp counter, which exits nowhere.

use std::arch::x86_64::{__cpuid, _rdtsc};
use std::hint::black_box;
use std::thread;

use crate::sys::{self, Forked};

/// Processors of a group: an interrupt goes to two.
const GROUP: u32 = 3;

/// What it does, a second and on all processors together.
#[derive(Clone, Copy)]
pub struct Load {
    pub cpus: u32,
    /// For how long.
    pub ms: u64,
    pub ipis: u64,
    pub reads: u64,
}

/// What was done.
#[derive(Clone, Copy, Default)]
struct Done {
    rounds: u64,
    ipis: u64,
    reads: u64,
}

/// The time-stamp counter's frequency where a hypervisor tells it (CPUID 15H, SDM 20.7.3), else as measured.
fn tsc_hz() -> u64 {
    let leaf = if __cpuid(0).eax >= 0x15 { Some(__cpuid(0x15)) } else { None };
    match leaf {
        Some(leaf) if leaf.eax != 0 && leaf.ebx != 0 && leaf.ecx != 0 => {
            u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax)
        }
        _ => sys::tsc_khz() * 1000,
    }
}

fn tsc() -> u64 {
    // SAFETY: RDTSC touches no memory.
    unsafe { _rdtsc() }
}

/// Plays, and says what was done.
pub fn play(load: Load, say: &dyn Fn(&str)) -> Result<(), String> {
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    let hz = tsc_hz();
    let start = tsc();
    let end = start + hz / 1000 * load.ms;
    let mut children = Vec::new();
    for first in (0..load.cpus).step_by(GROUP as usize) {
        match sys::fork().map_err(|e| failed("fork", e))? {
            Forked::Child => {
                let done = group(first, load, hz, end).unwrap_or_else(|error| {
                    eprintln!("satori-bench: {error}");
                    sys::exit(1)
                });
                say(&format!(
                    r#"{{"group":{first},"rounds":{},"ipis":{},"reads":{}}}"#,
                    done.rounds, done.ipis, done.reads
                ));
                sys::exit(0);
            }
            Forked::Parent(pid) => children.push(pid),
        }
    }
    for pid in children {
        let status = sys::wait(pid).map_err(|e| failed("wait", e))?;
        if status != 0 {
            return Err(format!("a group ended with {status:#x}"));
        }
    }
    say(r#"{"end":true}"#);
    Ok(())
}

fn group(first: u32, load: Load, hz: u64, end: u64) -> Result<Done, String> {
    sys::membarrier(true).map_err(|error| format!("membarrier: {error}"))?;
    let last = (first + GROUP).min(load.cpus);
    let mut all = Done::default();
    thread::scope(|scope| {
        let threads: Vec<_> = (first..last)
            .map(|cpu| {
                // One that is alone has nobody to interrupt.
                let ipis = if last - first > 1 { load.ipis } else { 0 };
                scope.spawn(move || one(cpu, Load { ipis, ..load }, hz, end))
            })
            .collect();
        for thread in threads {
            let done = thread.join().map_err(|_| "a thread panicked".to_string())?;
            all.rounds += done.rounds;
            all.ipis += done.ipis;
            all.reads += done.reads;
        }
        Ok(all)
    })
}

/// Something that is done so many times a second by all together.
struct Every {
    period: u64,
    next: u64,
}

impl Every {
    fn new(rate: u64, cpu: u32, cpus: u32, hz: u64) -> Every {
        let period = (hz * u64::from(cpus)).checked_div(rate).unwrap_or(u64::MAX);
        // Not all at the same time.
        Every { period, next: tsc().saturating_add(period / u64::from(cpus) * (u64::from(cpu) + 1)) }
    }

    fn due(&mut self, now: u64) -> bool {
        let due = now >= self.next;
        if due {
            self.next = self.next.saturating_add(self.period);
        }
        due
    }
}

fn one(cpu: u32, load: Load, hz: u64, end: u64) -> Done {
    sys::move_to(cpu as usize);
    let mut done = Done::default();
    let [mut ipis, mut reads] = [load.ipis, load.reads].map(|rate| Every::new(rate, cpu, load.cpus, hz));
    let mut state = [u64::from(cpu); 8];
    loop {
        let now = tsc();
        if now >= end {
            return done;
        }
        if ipis.due(now) && sys::membarrier(false).is_ok() {
            done.ipis += 1;
        }
        if reads.due(now) {
            black_box(sys::now());
            done.reads += 1;
        }
        render(&mut state);
        done.rounds += 1;
    }
}

/// A little of what a frame is made of.
fn render(state: &mut [u64; 8]) {
    for round in 0..48 {
        for at in 0..state.len() {
            let other = state[(at + 3) % state.len()];
            state[at] = state[at].wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ other ^ round;
        }
    }
    black_box(state);
}
