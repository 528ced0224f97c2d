//! Sets of vCPUs, drawn at random, and interrupts that are sent to them.

use core::sync::atomic::Ordering;

use satori_guests::defs::apic::{self as regs, icr};
use satori_guests::defs::hyperv::msr;
use satori_guests::{apic, insn};

use super::SHARED;

/// Random numbers that are the same in every run (Knuth's MMIX).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end.max(1)
    }
}

/// A set of other vCPUs within `cluster`: a bit for each of its four.
pub fn choose_within(random: &mut Random, cluster: usize, this: usize, cpus: usize, targets: u64) -> u64 {
    let first = cluster * 4;
    let there = (first..cpus.min(first + 4)).filter(|cpu| *cpu != this);
    let mut left = there.clone().count() as u64;
    let mut wanted = targets.clamp(1, left.max(1));
    let mut set = 0;
    for cpu in there {
        // Each of those that are left is as likely.
        if random.below(left) < wanted {
            set |= 1 << (cpu - first);
            wanted -= 1;
        }
        left -= 1;
    }
    set
}

/// The clusters of a set, one that is chosen or all.
pub fn choose_clusters(random: &mut Random, cpus: usize, wide: bool) -> core::ops::Range<usize> {
    let clusters = cpus.div_ceil(4);
    let one = random.below(clusters as u64) as usize;
    if wide { 0..clusters } else { one..one + 1 }
}

/// Sends `vector` to a set: by the APIC's register, or its MSR where the guest is told to use these.
pub fn send(cluster: usize, set: u64, vector: u8) {
    let low = icr::ASSERT | icr::LOGICAL | u32::from(vector);
    let destination = (((cluster as u64) << 4 | set) as u32) << 24;
    if SHARED.by_msr.load(Ordering::Relaxed) != 0 {
        insn::wrmsr(msr::ICR, u64::from(destination) << 32 | u64::from(low));
    } else {
        apic::write(regs::ICR_HIGH, destination);
        apic::write(regs::ICR, low);
    }
}
