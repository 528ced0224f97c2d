//! Reading clocks and CPUID.

use std::arch::x86_64::__cpuid;

use crate::measure::Meter;
use crate::sys::now;

pub fn clock(m: &mut Meter) {
    let mut last = now();
    m.each(|| {
        let time = now();
        let back = time < last;
        last = time;
        u64::from(back)
    });
}

pub fn cpuid(m: &mut Meter) {
    // The number of leaves differs from one processor to the next; that leaf 0 does not change matters.
    let leaves = __cpuid(0).eax;
    m.each(|| u64::from(__cpuid(0).eax != leaves));
}
