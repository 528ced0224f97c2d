//! String operations on a run of elements of RAM, by host pointer.
//!
//! Each function does as many elements as fit in front of the next page boundary of either side, or of pages
//! that lie together if the TLB has them; none where there is a device, or where the first element itself crosses the
//! boundary.

use std::arch::asm;

use crate::cpu::{Cpu, Exec};
use crate::flags::Int;

/// A run ends with its page, so no more elements are ever asked for.
const LIMIT: u64 = 4096;

/// Elements of RAM at `linear`, and where they are.
fn range<T: Int>(cpu: &mut Cpu, linear: u64, count: u64, write: bool) -> Exec<Option<(*mut u8, u64)>> {
    let range = cpu.host_range(linear, count.min(LIMIT) * T::SIZE, write)?;
    Ok(range.map(|(host, bytes)| (host, bytes / T::SIZE)).filter(|(_, elements)| *elements > 0))
}

/// The host's MOVS.
///
/// # Safety
/// There must be RAM for that many elements at both.
unsafe fn movs<T: Int>(destination: *mut u8, source: *const u8, elements: u64) {
    macro_rules! rep {
        ($movs:literal) => {
            // SAFETY: said by the caller. The host's own instruction copes with overlap just as the guest's
            // would, and with other vCPUs.
            unsafe {
                asm!(concat!("rep ", $movs), inout("rcx") elements => _, inout("rsi") source => _,
                    inout("rdi") destination => _, options(nostack, preserves_flags));
            }
        };
    }
    match T::SIZE {
        1 => rep!("movsb"),
        2 => rep!("movsw"),
        4 => rep!("movsd"),
        _ => rep!("movsq"),
    }
}

/// MOVS upwards. Returns how many elements were moved.
pub(super) fn copy<T: Int>(cpu: &mut Cpu, from: u64, to: u64, count: u64) -> Exec<u64> {
    let Some((source, readable)) = range::<T>(cpu, from, count, false)? else { return Ok(0) };
    let Some((destination, writable)) = range::<T>(cpu, to, count, true)? else { return Ok(0) };
    let elements = readable.min(writable);
    // SAFETY: both ranges hold that many.
    unsafe { movs::<T>(destination, source, elements) };
    cpu.host_range_written(to);
    Ok(elements)
}

/// As [`copy`], as far as the TLB reaches and pages lie together on the host.
pub(super) fn copy_cached<T: Int>(cpu: &mut Cpu, from: u64, to: u64, count: u64) -> u64 {
    let Some((source, readable)) = cpu.cached_run(from, count * T::SIZE, false) else { return 0 };
    let Some((destination, writable)) = cpu.cached_run(to, count * T::SIZE, true) else { return 0 };
    let elements = readable.min(writable) / T::SIZE;
    // SAFETY: both ranges hold that many.
    unsafe { movs::<T>(destination, source, elements) };
    cpu.cached_run_written(to, elements * T::SIZE);
    elements
}

/// The host's STOS.
///
/// # Safety
/// There must be RAM for that many elements.
unsafe fn stos<T: Int>(destination: *mut u8, value: T, elements: u64) {
    let value: u64 = value.into();
    macro_rules! rep {
        ($stos:literal) => {
            // SAFETY: said by the caller.
            unsafe {
                asm!(concat!("rep ", $stos), inout("rcx") elements => _, in("rax") value,
                    inout("rdi") destination => _, options(nostack, preserves_flags));
            }
        };
    }
    match T::SIZE {
        1 => rep!("stosb"),
        2 => rep!("stosw"),
        4 => rep!("stosd"),
        _ => rep!("stosq"),
    }
}

/// STOS upwards. Returns how many elements were stored.
pub(super) fn fill<T: Int>(cpu: &mut Cpu, to: u64, value: T, count: u64) -> Exec<u64> {
    let Some((destination, elements)) = range::<T>(cpu, to, count, true)? else { return Ok(0) };
    // SAFETY: the range holds that many.
    unsafe { stos(destination, value, elements) };
    cpu.host_range_written(to);
    Ok(elements)
}

/// As [`fill`], as far as the TLB reaches and pages lie together on the host.
pub(super) fn fill_cached<T: Int>(cpu: &mut Cpu, to: u64, value: T, count: u64) -> u64 {
    let Some((destination, bytes)) = cpu.cached_run(to, count * T::SIZE, true) else { return 0 };
    let elements = bytes / T::SIZE;
    // SAFETY: the range holds that many.
    unsafe { stos(destination, value, elements) };
    cpu.cached_run_written(to, elements * T::SIZE);
    elements
}

/// How far a comparison went, and the values that it compared last.
pub(super) struct Compared<T> {
    pub elements: u64,
    pub last: (T, T),
}

/// CMPS upwards, while the values' equality is `equal`.
pub(super) fn compare<T: Int>(
    cpu: &mut Cpu,
    a: u64,
    b: u64,
    equal: bool,
    count: u64,
) -> Exec<Option<Compared<T>>> {
    let Some((a, first)) = range::<T>(cpu, a, count, false)? else { return Ok(None) };
    let Some((b, second)) = range::<T>(cpu, b, count, false)? else { return Ok(None) };
    let most = first.min(second);
    // SAFETY: both ranges hold `most` elements.
    let pair = |i: u64| unsafe {
        let offset = (i * T::SIZE) as usize;
        (T::load(a.add(offset)), T::load(b.add(offset)))
    };
    Ok(Some(run(most, equal, pair)))
}

/// SCAS upwards, while the values' equality is `equal`.
pub(super) fn scan<T: Int>(
    cpu: &mut Cpu,
    value: T,
    at: u64,
    equal: bool,
    count: u64,
) -> Exec<Option<Compared<T>>> {
    let Some((at, most)) = range::<T>(cpu, at, count, false)? else { return Ok(None) };
    // SAFETY: the range holds `most` elements.
    let pair = |i: u64| unsafe { (value, T::load(at.add((i * T::SIZE) as usize))) };
    Ok(Some(run(most, equal, pair)))
}

/// Compares pair after pair; `most` is at least one.
#[inline(always)]
fn run<T: Int>(most: u64, equal: bool, pair: impl Fn(u64) -> (T, T)) -> Compared<T> {
    let mut elements = 0;
    loop {
        let last = pair(elements);
        elements += 1;
        if elements == most || (last.0 == last.1) != equal {
            return Compared { elements, last };
        }
    }
}
