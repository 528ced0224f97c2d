//! A whole machine with a hostile guest: devices, MSRs, hypercalls, interrupts.

use std::time::Duration;

use arbitrary::Unstructured;
use satori_bus::ByteSink;
use satori_cpuid::Topology;
use satori_machine::{ClockMode, Config, Event, Machine, OnReset, Sinks};

use crate::script;

/// Output that nobody reads.
struct Nowhere;

impl ByteSink for Nowhere {
    fn put(&mut self, _bytes: &[u8]) {}
}

/// How long most guests run, in their own time: 300,000 instructions.
const SHORT: Duration = Duration::from_micros(300);
/// Long enough for three lives of a guest that resets itself: a reset takes a millisecond.
const LONG: Duration = Duration::from_micros(2_300);

/// Runs a guest made of `data` for a while of its own time.
pub fn guest(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let flags: u8 = u.arbitrary().unwrap_or(0);
    let config = Config {
        kernel: script::kernel(&script::program(&mut u)),
        memory: 128 << 20,
        topology: Topology::flat(1 + u32::from(flags & 1)),
        cpu_model: (flags & 2 != 0).then(|| "x86-64-v1".into()),
        hyperv: if flags & 4 != 0 { satori_hyperv::Config::off() } else { satori_hyperv::Config::auto() },
        clock: ClockMode::VIRTUAL,
        tsc_hz: Some(1_000_000_000),
        on_reset: if flags & 8 != 0 { OnReset::Exit } else { OnReset::Restart },
        // Few, because one that spins takes as long as it may.
        guest_timeout: Some(if flags & 0x70 == 0x60 { LONG } else { SHORT }),
        ..Config::default()
    };
    let sinks = Sinks { console: Box::new(Nowhere), debugcon: Some(Box::new(Nowhere)), code: None };
    match Machine::new(config, sinks) {
        Ok(machine) => {
            let outcome = machine.run();
            if let Event::Failed(why) = outcome.event {
                panic!("the monitor failed: {why}");
            }
        }
        Err(error) => panic!("the machine was refused: {error}"),
    }
}
