//! Exits as fast as they can be made, of one kind: the guest of `satori bench overhead`. `samples=N` on the command line: of how
//! many samples of a millisecond and more it tells the least (default 3). Times are those of its TSC.

#![no_std]
#![no_main]

use core::hint::black_box;

use satori_guests::defs::chipset::{mmio, port};
use satori_guests::defs::hyperv::msr;
use satori_guests::harness::option;
use satori_guests::hyperv::peek32;
use satori_guests::{Test, guest, insn, println};

guest!("rapid", cpuid, ports, msrs, mmio_reads, nothing);

fn sample(times: u64, action: &impl Fn()) -> u64 {
    let start = insn::rdtsc();
    (0..times).for_each(|_| action());
    insn::rdtsc() - start
}

fn repeat(t: &mut Test, action: impl Fn()) {
    let [denominator, numerator, crystal, _] = insn::cpuid(0x15, 0);
    let hz = u64::from(crystal) * u64::from(numerator) / u64::from(denominator.max(1));
    let samples = option("samples").and_then(|text| text.parse().ok()).unwrap_or(3_u64);
    // What is translated and cached on the way is in none of the samples that count.
    let mut times = 64;
    while sample(times, &action) < hz / 1000 && times < 1 << 24 {
        times *= 2;
    }
    let least = (0..samples).map(|_| sample(times, &action)).min().unwrap_or(0);
    println!(
        "picoseconds={}",
        u128::from(least) * 1_000_000_000_000 / u128::from(hz.max(1)) / u128::from(times)
    );
    t.holds("done", least > 0);
}

fn cpuid(t: &mut Test) {
    repeat(t, || {
        black_box(insn::cpuid(0, 0));
    });
}

fn ports(t: &mut Test) {
    repeat(t, || {
        black_box(insn::in8(port::SYSTEM_CONTROL_B));
    });
}

fn msrs(t: &mut Test) {
    repeat(t, || {
        black_box(insn::rdmsr(msr::VP_INDEX));
    });
}

fn mmio_reads(t: &mut Test) {
    repeat(t, || {
        black_box(peek32(mmio::HPET));
    });
}

/// A thousand instructions of arithmetic, and no exit: what differs then is not the report's.
fn nothing(t: &mut Test) {
    repeat(t, || {
        let mut sum = black_box(1_u64);
        for step in 0..250 {
            sum = black_box(sum.wrapping_mul(0x9e37_79b9).rotate_left(7) ^ step);
        }
        black_box(sum);
    });
}
