//! Looking for the table in the guest's RAM.

use satori_memory::{Gpa, GuestMemory, Region};

use crate::Symbols;
use crate::kallsyms::{self, DIGITS};

/// Bytes that are looked through at once.
const CHUNK: usize = 1 << 20;
/// RAM that is looked through: a kernel that KASLR put beyond it is not found.
const SCANNED: u64 = 16 << 30;
/// What the table may reach to either side of its tokens: 1,048,576 symbols of Debian's kernels' kind take
/// less, theirs three megabytes.
const REACH: u64 = 16 << 20;
/// Places that look like tokens of digits and are looked at; each costs a read of up to twice [`REACH`].
const CANDIDATES: usize = 16;

impl Symbols {
    /// Looks through the guest's RAM for a kallsyms table. The kernel's image is in one piece in physical
    /// memory, wherever KASLR put it, so no page table is asked.
    pub fn find(memory: &GuestMemory) -> Option<Symbols> {
        let mut buffer = vec![0; CHUNK + DIGITS.len()];
        let mut left = (SCANNED, CANDIDATES);
        for region in memory.regions() {
            let mut offset = 0;
            while offset < region.len && left.0 > 0 {
                let len = (region.len - offset).min(buffer.len() as u64);
                let piece = &mut buffer[..len as usize];
                if memory.read(Gpa(region.start.0 + offset), piece).is_ok() {
                    for at in occurrences(piece) {
                        left.1 = left.1.checked_sub(1)?;
                        if let Some(symbols) = around(memory, region, offset + at as u64) {
                            return Some(symbols);
                        }
                    }
                }
                offset += CHUNK as u64;
                left.0 = left.0.saturating_sub(CHUNK as u64);
            }
        }
        None
    }
}

/// Where the digits begin in `piece`. The index of the tokens decides; this only has to be fast.
fn occurrences(piece: &[u8]) -> impl Iterator<Item = usize> + '_ {
    // One look at every 16 bytes meets the 20 that are looked for, at a digit or at the zero before one.
    let mut last = None;
    (0..piece.len().saturating_sub(3)).step_by(16).filter_map(move |at| {
        let (digit, skew) = match *piece[at..].first_chunk()? {
            [a, 0, b, 0] if a.is_ascii_digit() && b == a + 1 => (a, 0),
            [0, a, 0, b] if a.is_ascii_digit() && b == a + 1 => (a, 1),
            _ => return None,
        };
        let first = (at + skew).checked_sub(2 * usize::from(digit - b'0'))?;
        let found = piece.get(first..first + DIGITS.len()) == Some(DIGITS) && last != Some(first);
        last = if found { Some(first) } else { last };
        found.then_some(first)
    })
}

/// Reads the table whose digits are `digits` bytes into `region`.
fn around(memory: &GuestMemory, region: Region, digits: u64) -> Option<Symbols> {
    let from = digits.saturating_sub(REACH) & !7;
    let to = digits.saturating_add(REACH).min(region.len);
    let mut image = vec![0; (to - from) as usize];
    memory.read(Gpa(region.start.0 + from), &mut image).ok()?;
    kallsyms::read(&image, (digits - from) as usize)
}
