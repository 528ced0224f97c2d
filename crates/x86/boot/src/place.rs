//! Finds room for what goes into low memory, clear of what is there already.

use std::ops::Range;

use crate::layout::{EBDA, HIGH_RAM, LEGACY_HOLE_END, REAL_MODE_END};

/// Which end of free memory to take from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// The lowest free address.
    Bottom,
    /// The highest free address.
    Top,
}

/// The RAM below 4 GiB and what of it is taken.
#[derive(Debug)]
pub(crate) struct Placer {
    end: u64,
    taken: Vec<Range<u64>>,
}

impl Placer {
    /// RAM from 0 to `end`, of which the first page and a PC's legacy hole are taken.
    pub(crate) fn new(end: u64) -> Self {
        let mut placer = Self::without_legacy(end);
        placer.keep_legacy_clear();
        placer
    }

    /// RAM from 0 to `end`, all of it free.
    pub(crate) fn without_legacy(end: u64) -> Self {
        Placer { end: end.min(HIGH_RAM), taken: Vec::new() }
    }

    /// Takes the first page and a PC's legacy hole, whoever has a part of them.
    pub(crate) fn keep_legacy_clear(&mut self) {
        self.taken.extend([0..REAL_MODE_END, EBDA..LEGACY_HOLE_END]);
    }

    /// Takes exactly `range`, if all of it is free.
    pub(crate) fn take(&mut self, range: Range<u64>) -> bool {
        let free = range.start < range.end
            && range.end <= self.end
            && self.taken.iter().all(|taken| range.end <= taken.start || range.start >= taken.end);
        if free {
            self.taken.push(range);
        }
        free
    }

    /// Takes as much of `range` as is RAM, whoever else has it.
    pub(crate) fn keep_clear(&mut self, range: Range<u64>) {
        self.taken.push(range.start..range.end.min(self.end));
    }

    /// Takes `bytes` at a multiple of `align`, all in `within`; returns where.
    pub(crate) fn find(&mut self, bytes: u64, align: u64, within: Range<u64>, from: From) -> Option<u64> {
        let limit = within.end.min(self.end);
        let fits =
            |start: u64| start >= within.start && start.checked_add(bytes).is_some_and(|end| end <= limit);
        // A free place either touches the limit or a taken range.
        let mut starts: Vec<u64> = match from {
            From::Bottom => {
                std::iter::once(within.start).chain(self.taken.iter().map(|taken| taken.end)).collect()
            }
            From::Top => std::iter::once(limit)
                .chain(self.taken.iter().map(|taken| taken.start))
                .filter_map(|end| end.checked_sub(bytes))
                .collect(),
        };
        for start in &mut starts {
            *start = match from {
                From::Bottom => start.checked_next_multiple_of(align)?,
                From::Top => *start / align * align,
            };
        }
        starts.sort_unstable();
        if from == From::Top {
            starts.reverse();
        }
        starts.into_iter().find(|&start| fits(start) && self.take(start..start + bytes.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Range<u64> = 0..u64::MAX;

    #[test]
    fn takes_from_either_end_and_never_twice() {
        let mut placer = Placer::new(0x100_0000);
        assert!(placer.take(0x20_0000..0x80_0000));
        assert!(!placer.take(0x7f_ffff..0x80_0001));
        assert!(!placer.take(0x9_f000..0xa_0000), "the BIOS data area is not free");
        assert_eq!(placer.find(0x1800, 0x1000, ALL, From::Bottom), Some(0x1000));
        assert_eq!(placer.find(0x1000, 0x1000, ALL, From::Bottom), Some(0x3000));
        assert_eq!(placer.find(0x10_0000, 0x1000, ALL, From::Bottom), Some(0x10_0000));
        assert_eq!(placer.find(0x1001, 0x1000, ALL, From::Top), Some(0xff_e000));
        assert_eq!(placer.find(0x1000, 0x1000, 0x80_1000..u64::MAX, From::Bottom), Some(0x80_1000));
        assert_eq!(placer.find(0x1000, 0x1000, 0..0x90_0000, From::Top), Some(0x8f_f000));
        assert_eq!(placer.find(0x80_0000, 0x1000, ALL, From::Top), None);
        assert_eq!(placer.find(u64::MAX, 0x1000, ALL, From::Top), None);
        assert_eq!(placer.find(u64::MAX, 0x1000, ALL, From::Bottom), None);
    }
}
