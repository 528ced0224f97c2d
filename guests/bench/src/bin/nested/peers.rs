//! What is compared with other machines that have nested guests: a Linux as L2, and the same work in L1 and in L2. The clock is
//! whoever reads the lines: `begin ROW` and `end ROW` stand around what is measured.

use std::hint::black_box;

use crate::kvm::Kvm;
use crate::{Failure, Options, bare, linux, say, sys};

/// A row's name, rounds of it at scale 1, and what does so many.
type Work = (&'static str, u64, fn(u64));

/// Work of both levels.
const WORK: [Work; 3] =
    [("compute", 20_000_000, compute), ("faults", 2_000, faults), ("syscalls", 50_000, syscalls)];
/// CPUIDs in L2 at scale 1.
const CPUIDS: u64 = 2_000;
/// What L2 tells: that it is at its init, that it is done, and, added to a row's place, that this begins and ends.
const INIT: u8 = 0xf0;
const DONE: u8 = 0xf1;
const END: u8 = 0x80;

fn compute(rounds: u64) {
    let mut value = 1_u64;
    for round in 0..rounds {
        value = black_box(value.wrapping_mul(6_364_136_223_846_793_005) ^ round);
    }
}

/// Each round takes, touches and gives back 64 pages.
fn faults(rounds: u64) {
    const PAGES: usize = 64;
    for _ in 0..rounds {
        sys::touch_anew(PAGES);
    }
}

fn syscalls(rounds: u64) {
    for _ in 0..rounds {
        black_box(sys::parent());
    }
}

fn mark(what: &str, row: &str, count: u64) {
    say(&format!(r#"{{{what:?}:{row:?},"count":{count}}}"#));
}

/// All of it, as a process of L1.
pub fn l1(options: &Options) -> Result<(), Failure> {
    let scale = options.scale;
    for (row, rounds, work) in WORK {
        mark("begin", &format!("{row}-l1"), rounds * scale);
        work(rounds * scale);
        mark("end", &format!("{row}-l1"), rounds * scale);
    }
    let kvm = Kvm::open()?;
    let mut run = bare::cpuid(&kvm)?;
    run(CPUIDS)?;
    mark("begin", "cpuid-l2", CPUIDS * scale);
    run(CPUIDS * scale)?;
    mark("end", "cpuid-l2", CPUIDS * scale);
    let read = |path: &str| std::fs::read(path).map_err(|why| format!("{path}: {why}"));
    let (kernel, initrd) = (read("/l2/kernel")?, read("/l2/initrd")?);
    mark("begin", "boot-l2", 1);
    let mut machine = linux::machine(&kvm, &kernel, &initrd, &format!("peer --scale {scale}"))?;
    loop {
        match linux::next(&mut machine)? {
            INIT => mark("end", "boot-l2", 1),
            DONE => return Ok(()),
            byte => {
                let Some((row, rounds, _)) = WORK.get(usize::from(byte & !END)) else {
                    return Err(format!("L2 said {byte:#x}"));
                };
                mark(if byte & END == 0 { "begin" } else { "end" }, &format!("{row}-l2"), rounds * scale);
            }
        }
    }
}

/// Init of L2.
pub fn l2(options: &Options) -> Result<(), Failure> {
    sys::open_ports().map_err(|why| format!("iopl: {why}"))?;
    let tell = |byte| sys::port_write(linux::PORT, byte);
    tell(INIT);
    for ((_, rounds, work), place) in WORK.into_iter().zip(0..) {
        tell(place);
        work(rounds * options.scale);
        tell(place | END);
    }
    tell(DONE);
    Ok(())
}
