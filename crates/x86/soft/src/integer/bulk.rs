//! String operations on a run of elements of RAM, by host pointer.
//!
//! Each function does as many elements as fit in front of the next page boundary of either side, or of pages
//! that lie together if the TLB has them; none where there is a device, or where the first element itself crosses the
//! boundary.

use std::arch::asm;

use crate::cpu::{Cpu, Exec};
use crate::flags::Int;

/// Bytes from which on a move downwards is worth being done by moves upwards.
const UPWARDS: u64 = 64;

/// A run ends with its page, so no more elements are ever asked for.
const LIMIT: u64 = 4096;

/// Elements of RAM at `linear`, and where they are.
fn range<T: Int>(cpu: &mut Cpu, linear: u64, count: u64, write: bool) -> Exec<Option<(*mut u8, u64)>> {
    let range = cpu.host_range(linear, count.min(LIMIT) * T::SIZE, write)?;
    Ok(range.map(|(host, bytes)| (host, bytes / T::SIZE)).filter(|(_, elements)| *elements > 0))
}

/// The element of RAM at `linear`, where it is, and how many there are down to the begin of its page.
fn range_down<T: Int>(cpu: &mut Cpu, linear: u64, write: bool) -> Exec<Option<(*mut u8, u64)>> {
    let range = cpu.host_range(linear, T::SIZE, write)?;
    Ok(range.filter(|(_, bytes)| *bytes == T::SIZE).map(|(host, _)| (host, (linear & 0xfff) / T::SIZE + 1)))
}

/// The host's MOVS, between what is done before and behind it.
macro_rules! host_movs {
    ($T:ty, $before:literal, $behind:literal, $destination:expr, $source:expr, $elements:expr) => {{
        macro_rules! rep {
            ($movs:literal) => {
                asm!($before, concat!("rep ", $movs), $behind, inout("rcx") $elements => _,
                    inout("rsi") $source => _, inout("rdi") $destination => _, options(nostack, preserves_flags))
            };
        }
        match <$T>::SIZE {
            1 => rep!("movsb"),
            2 => rep!("movsw"),
            4 => rep!("movsd"),
            _ => rep!("movsq"),
        }
    }};
}

/// The host's STOS, likewise.
macro_rules! host_stos {
    ($T:ty, $before:literal, $behind:literal, $destination:expr, $value:expr, $elements:expr) => {{
        macro_rules! rep {
                ($stos:literal) => {
                    asm!($before, concat!("rep ", $stos), $behind, inout("rcx") $elements => _,
                        in("rax") $value, inout("rdi") $destination => _, options(nostack, preserves_flags))
                };
            }
        match <$T>::SIZE {
            1 => rep!("stosb"),
            2 => rep!("stosw"),
            4 => rep!("stosd"),
            _ => rep!("stosq"),
        }
    }};
}

/// The host's MOVS.
///
/// # Safety
/// There must be RAM for that many elements at both.
unsafe fn movs<T: Int>(destination: *mut u8, source: *const u8, elements: u64) {
    // SAFETY: said by the caller. The host's own instruction copes with overlap just as the guest's
    // would, and with other vCPUs.
    unsafe { host_movs!(T, "", "", destination, source, elements) }
}

/// The same downwards, from the last element on.
///
/// # Safety
/// There must be RAM for that many elements down from both.
unsafe fn movs_down<T: Int>(destination: *mut u8, source: *const u8, elements: u64, parallel: bool) {
    // How many elements lie apart, so that those before them are not among what is read.
    let apart = (destination as u64).abs_diff(source as u64) / T::SIZE;
    if parallel || apart.min(elements) * T::SIZE < UPWARDS {
        // SAFETY: as for `movs`. The direction is upwards again behind it, as compiled code relies on.
        return unsafe { host_movs!(T, "std", "cld", destination, source, elements) };
    }
    let mut left = elements;
    while left > 0 {
        let piece = left.min(apart);
        let first = ((elements - left + piece - 1) * T::SIZE) as usize;
        // SAFETY: these are `piece` of the elements. None that is read is one that is written, so
        // that they may go upwards, in which the host is faster.
        unsafe { movs::<T>(destination.sub(first), source.sub(first), piece) };
        left -= piece;
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

/// MOVS downwards. Returns how many elements were moved.
pub(super) fn copy_down<T: Int>(cpu: &mut Cpu, from: u64, to: u64, count: u64) -> Exec<u64> {
    let Some((source, readable)) = range_down::<T>(cpu, from, false)? else { return Ok(0) };
    let Some((destination, writable)) = range_down::<T>(cpu, to, true)? else { return Ok(0) };
    let elements = count.min(readable).min(writable);
    let parallel = cpu.parallel();
    // SAFETY: both ranges hold that many.
    unsafe { movs_down::<T>(destination, source, elements, parallel) };
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
    // SAFETY: said by the caller.
    unsafe { host_stos!(T, "", "", destination, value, elements) }
}

/// The same downwards, from the last element on.
///
/// # Safety
/// There must be RAM for that many elements down from it.
unsafe fn stos_down<T: Int>(destination: *mut u8, value: T, elements: u64) {
    let value: u64 = value.into();
    // SAFETY: said by the caller. The direction is upwards again behind it, as compiled code relies on.
    unsafe { host_stos!(T, "std", "cld", destination, value, elements) }
}

/// STOS upwards. Returns how many elements were stored.
pub(super) fn fill<T: Int>(cpu: &mut Cpu, to: u64, value: T, count: u64) -> Exec<u64> {
    let Some((destination, elements)) = range::<T>(cpu, to, count, true)? else { return Ok(0) };
    // SAFETY: the range holds that many.
    unsafe { stos(destination, value, elements) };
    cpu.host_range_written(to);
    Ok(elements)
}

/// STOS downwards. Returns how many elements were stored.
pub(super) fn fill_down<T: Int>(cpu: &mut Cpu, to: u64, value: T, count: u64) -> Exec<u64> {
    let Some((destination, writable)) = range_down::<T>(cpu, to, true)? else { return Ok(0) };
    let elements = count.min(writable);
    // SAFETY: the range holds that many.
    unsafe { stos_down(destination, value, elements) };
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
