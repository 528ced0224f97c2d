//! The compressed table that a kernel built with CONFIG_KALLSYMS carries (scripts/kallsyms.c).
//!
//! Its parts stand behind one another, each at a multiple of eight bytes, in one of two orders:
//!
//! * until Linux 6.3: offsets, relative base, count, names, markers, [order of names,] tokens, index of tokens
//!   (the order of names, three bytes a symbol, came with Linux 6.2 and late updates of 6.1);
//! * since Linux 6.4: count, names, markers, tokens, index of tokens, offsets, relative base, order of names.
//!
//! It has no head, so it is found from its middle. A name is a length and as many token numbers; there are
//! 256 tokens, and the token of a digit is that digit, as names have digits. So the tokens '0' to '9' are a
//! string to look for, and the index, which tells where each token begins, proves that it is the table.

use std::ops::RangeInclusive;

use crate::Symbols;

/// The tokens of the ten digits.
pub(crate) const DIGITS: &[u8] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\0";
/// Most symbols that are believed: Debian's kernels have 150,000.
const MOST: usize = 1 << 20;
/// Most bytes of a token; the longest possible symbol has fewer than 512.
const TOKEN: usize = 512;
/// Symbols from one marker to the next.
const STEP: usize = 256;
/// Names, markers and places that are looked at until none of the possible begins was the right one: memory can be made so that
/// thousands of them look well for long.
const WALKED: usize = 4 * MOST;
/// Where kernels are linked to, and KASLR moves them within.
const LOWEST: u64 = 0xffff_ffff_8000_0000;

fn align(at: usize) -> usize {
    at.saturating_add(7) & !7
}

fn u16_at(image: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*image.get(at..)?.first_chunk()?))
}

fn u32_at(image: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*image.get(at..)?.first_chunk()?))
}

fn u64_at(image: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*image.get(at..)?.first_chunk()?))
}

/// Where the parts are.
struct Tokens {
    /// The first token.
    begin: usize,
    /// Each token's place behind it.
    index: Vec<u16>,
    /// Behind the index.
    end: usize,
}

struct Names {
    /// Of the count of symbols.
    head: usize,
    count: usize,
    begin: usize,
    /// Behind the last one.
    end: usize,
}

/// Reads the table whose tokens of digits are at `digits` in `image`, a piece of memory whose first byte
/// is at an address divisible by eight.
pub(crate) fn read(image: &[u8], digits: usize) -> Option<Symbols> {
    let tokens = tokens(image, digits)?;
    let names = names(image, tokens.begin)?;
    let (addresses, order) = match addresses(image, tokens.end, names.count, Order::Behind) {
        Some(addresses) => (addresses, "6.4 or newer"),
        None => (addresses(image, names.head, names.count, Order::Before)?, "6.3 or older"),
    };
    let mut rows = Vec::with_capacity(names.count);
    let (mut at, mut text) = (names.begin, Vec::new());
    for address in addresses {
        text.clear();
        let codes = codes(image, &mut at)?;
        for &code in codes {
            text.extend_from_slice(token(image, &tokens, code)?);
            if text.len() > TOKEN {
                return None;
            }
        }
        let (&kind, name) = text.split_first()?;
        rows.push((address, char::from(kind), String::from_utf8_lossy(name).into_owned()));
    }
    debug_assert_eq!(at, names.end);
    Some(Symbols::new(rows, format!("the guest's kallsyms table (of Linux {order})")))
}

fn token<'a>(image: &'a [u8], tokens: &Tokens, code: u8) -> Option<&'a [u8]> {
    let from = tokens.begin + usize::from(*tokens.index.get(usize::from(code))?);
    let rest = image.get(from..)?;
    let rest = &rest[..rest.len().min(TOKEN)];
    Some(&rest[..rest.iter().position(|&byte| byte == 0)?])
}

/// Walks from the digits to the last token, behind which is the index, which knows where the first is.
fn tokens(image: &[u8], digits: usize) -> Option<Tokens> {
    let mut places = Vec::with_capacity(256);
    let mut at = digits;
    for _ in usize::from(b'0')..256 {
        places.push(at);
        let rest = image.get(at..)?;
        at += rest[..rest.len().min(TOKEN)].iter().position(|&byte| byte == 0)? + 1;
    }
    let from = align(at);
    let index: Vec<u16> = (0..256).map(|n| u16_at(image, from + 2 * n)).collect::<Option<_>>()?;
    let begin = digits.checked_sub(usize::from(index[usize::from(b'0')]))?;
    if begin % 8 != 0 || index[0] != 0 || index.windows(2).any(|pair| pair[0] >= pair[1]) {
        return None;
    }
    let later = places.iter().zip(&index[usize::from(b'0')..]);
    later.into_iter().all(|(&place, &told)| place == begin + usize::from(told)).then_some(())?;
    // Each token ends right before the next one.
    let ends = |pair: &[u16]| image.get(begin + usize::from(pair[1]) - 1) == Some(&0);
    index.windows(2).all(ends).then_some(Tokens { begin, index, end: align(from + 512) })
}

/// The markers that end before `end`: where they begin, and the markers.
fn markers(image: &[u8], end: usize, steps: &mut usize) -> Option<(usize, Vec<u32>)> {
    let mut at = end.checked_sub(4)?;
    if u32_at(image, at)? == 0 {
        // What an odd number of them leaves.
        at = at.checked_sub(4)?;
    }
    let mut found = vec![u32_at(image, at)?];
    while found.last().is_some_and(|&last| last != 0) {
        *steps = steps.checked_sub(1)?;
        at = at.checked_sub(4)?;
        let before = u32_at(image, at)?;
        // 256 names have at least two bytes each.
        if found.len() > MOST / STEP || found.last().is_some_and(|&last| before.saturating_add(512) > last) {
            return None;
        }
        found.push(before);
    }
    found.reverse();
    (at % 8 == 0).then_some((at, found))
}

/// The names before the tokens at `tokens`, with the order of names between them or without.
fn names(image: &[u8], tokens: usize) -> Option<Names> {
    let mut steps = WALKED;
    if let Some((begin, markers)) = markers(image, tokens, &mut steps)
        && let Some(names) = before(image, begin, &markers, 1..=MOST, &mut steps)
    {
        return Some(names);
    }
    for gap in (8..=(3 * MOST).min(tokens)).step_by(8) {
        // So many symbols have an order of this size, and so many markers, the first of which is 0.
        let counts = (gap - 7).div_ceil(3)..=gap / 3;
        let first = (tokens - gap).checked_sub(align(4 * counts.end().div_ceil(STEP)))?;
        let plausible = u32_at(image, first) == Some(0) && u32_at(image, first + 4) != Some(0);
        if plausible
            && let Some((begin, markers)) = markers(image, tokens - gap, &mut steps)
            && let Some(names) = before(image, begin, &markers, counts, &mut steps)
        {
            return Some(names);
        }
    }
    None
}

/// The names before the markers at `begin`, if there are as many as `counts` tells.
fn before(
    image: &[u8],
    begin: usize,
    markers: &[u32],
    counts: RangeInclusive<usize>,
    steps: &mut usize,
) -> Option<Names> {
    let last = *markers.last()? as usize;
    // Behind the last marker are at most 256 names of a length byte or two and 512 tokens.
    let highest = begin.checked_sub(last)? & !7;
    let lowest = highest.saturating_sub(STEP * (TOKEN + 2));
    let marked = STEP * (markers.len() - 1) + 1..=STEP * markers.len();
    let mut at = highest;
    // The first look costs eight bytes, and only what passes it is walked: each marker must be met.
    while at >= lowest.max(8) {
        *steps = steps.checked_sub(1)?;
        let count = u64_at(image, at - 8)?;
        if let Ok(count) = usize::try_from(count)
            && marked.contains(&count)
            && counts.contains(&count)
            && let Some(end) = walk(image, at, count, markers, steps)
            && align(end) == begin
        {
            return Some(Names { head: at - 8, count, begin: at, end });
        }
        at -= 8;
    }
    None
}

/// Walks `count` names from `begin`; returns their end.
fn walk(image: &[u8], begin: usize, count: usize, markers: &[u32], steps: &mut usize) -> Option<usize> {
    let mut at = begin;
    for number in 0..count {
        *steps = steps.checked_sub(1)?;
        if number % STEP == 0 && at - begin != *markers.get(number / STEP)? as usize {
            return None;
        }
        codes(image, &mut at)?;
    }
    Some(at)
}

/// The token numbers of the name at `at`, which moves behind it. A length of 128 or more has two bytes
/// (since Linux 6.1).
fn codes<'a>(image: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let mut len = usize::from(*image.get(*at)?);
    *at += 1;
    if len & 0x80 != 0 {
        len = len & 0x7f | usize::from(*image.get(*at)?) << 7;
        *at += 1;
    }
    let codes = image.get(*at..at.checked_add(len)?)?;
    *at += len;
    (len > 0 && len <= TOKEN).then_some(codes)
}

/// Whether offsets and relative base begin, or end, at a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Behind,
    Before,
}

/// The addresses of `count` symbols. The relative base is an address, and so relocated by KASLR; offsets from
/// it are not, nor absolute values, which are those of per-CPU data.
fn addresses(image: &[u8], place: usize, count: usize, order: Order) -> Option<Vec<u64>> {
    let size = align(count.checked_mul(4)?);
    let (offsets, base) = match order {
        Order::Behind => (place, place.checked_add(size)?),
        Order::Before => (place.checked_sub(8 + size)?, place.checked_sub(8)?),
    };
    let base = u64_at(image, base)?;
    let offsets = image.get(offsets..offsets + 4 * count)?.as_chunks::<4>().0;
    let signed = || offsets.iter().map(|&bytes| i32::from_le_bytes(bytes));
    // With CONFIG_KALLSYMS_ABSOLUTE_PERCPU what is not absolute is negative (kernel/kallsyms.c); Linux 6.15
    // has no absolute ones any more.
    let percpu = signed().filter(|&offset| offset < 0).count() > count / 2;
    let address = |offset: i32| match percpu {
        true if offset >= 0 => offset as u64,
        true => base.wrapping_sub(1).wrapping_sub(i64::from(offset) as u64),
        false => base.wrapping_add(u64::from(offset as u32)),
    };
    let addresses: Vec<u64> = signed().map(address).collect();
    let sorted = addresses.windows(2).all(|pair| pair[0] <= pair[1]);
    (base >= LOWEST && sorted).then_some(addresses)
}
