//! Entries of the extended page tables (SDM 28.3).

use crate::MAXPHYADDR;

/// Read access is allowed.
pub const READ: u64 = 1 << 0;
/// Write access is allowed.
pub const WRITE: u64 = 1 << 1;
/// Fetches are allowed.
pub const EXECUTE: u64 = 1 << 2;
/// Fetches from linear addresses of user mode are allowed, where that is told apart.
pub const EXECUTE_USER: u64 = 1 << 10;
/// The first three.
pub const RIGHTS: u64 = READ | WRITE | EXECUTE;
/// A large page.
pub const LARGE: u64 = 1 << 7;
/// Accessed, if EPTP turns the bit on.
pub const ACCESSED: u64 = 1 << 8;
/// Dirty, if EPTP turns the bit on.
pub const DIRTY: u64 = 1 << 9;
/// The address in an entry.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// EPTP: accessed and dirty bits are on.
pub const EPTP_ACCESSED_DIRTY: u64 = 1 << 6;

/// Bits of the exit qualification of an EPT violation (SDM table 27-7).
pub mod violation {
    #![allow(missing_docs, reason = "the manual's words")]
    pub const READ: u64 = 1 << 0;
    pub const WRITE: u64 = 1 << 1;
    pub const FETCH: u64 = 1 << 2;
    pub const ALLOWED_SHIFT: u32 = 3;
    pub const ALLOWED_USER_FETCH: u64 = 1 << 6;
    pub const LINEAR_VALID: u64 = 1 << 7;
    pub const FINAL: u64 = 1 << 8;
    pub const NMI_UNBLOCKED: u64 = 1 << 12;
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Not present: all other bits are free.
    Absent,
    /// A misconfiguration.
    Misconfigured,
    /// It leads to the next table.
    Table(u64),
    /// It maps a page.
    Leaf(u64),
}

/// What `entry` of a table at `level` is; 0 has 4-KiB pages. `by_mode`: fetches from addresses of user mode have a right of their own.
pub const fn classify(entry: u64, level: u32, by_mode: bool) -> Entry {
    let rights = entry & RIGHTS;
    if rights == 0 && !(by_mode && entry & EXECUTE_USER != 0) {
        return Entry::Absent;
    }
    // Write without read is never allowed.
    if rights & (READ | WRITE) == WRITE {
        return Entry::Misconfigured;
    }
    let beyond = ADDRESS & !satori_rules::physical(MAXPHYADDR);
    let leaf = level == 0 || (entry & LARGE != 0 && level < 3);
    let reserved = if leaf { beyond | (((1 << (12 + 9 * level)) - 1) & ADDRESS) } else { beyond | 0xf8 };
    if entry & reserved != 0 {
        return Entry::Misconfigured;
    }
    if !leaf {
        return Entry::Table(entry & ADDRESS);
    }
    if matches!(entry >> 3 & 7, 2 | 3 | 7) {
        return Entry::Misconfigured;
    }
    Entry::Leaf(entry & ADDRESS)
}

/// Whether EPTP can have this value (SDM 26.2.1.1).
pub const fn eptp(value: u64) -> bool {
    matches!(value & 7, 0 | 6)
        && value >> 3 & 7 == 3
        && value & 0xf80 == 0
        && value & !satori_rules::physical(MAXPHYADDR) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_what_the_manual_makes_of_them() {
        assert_eq!(classify(!RIGHTS, 0, false), Entry::Absent, "all other bits are free");
        for level in 0..4 {
            assert_eq!(
                classify(0x1006, level, false),
                Entry::Misconfigured,
                "write and execute without read"
            );
            assert_eq!(classify(0x1002, level, false), Entry::Misconfigured, "write without read");
            assert_eq!(classify(1 << 46 | 7, level, false), Entry::Misconfigured, "beyond MAXPHYADDR");
        }
        assert_eq!(classify(0x1004 | 6 << 3, 0, false), Entry::Leaf(0x1000), "execute-only is offered");
        assert_eq!(classify(0x20_0000 | 0xb7, 1, false), Entry::Leaf(0x20_0000));
        assert_eq!(classify(0x20_1000 | 0xb7, 1, false), Entry::Misconfigured, "not aligned");
        assert_eq!(classify(0x1007, 1, false), Entry::Table(0x1000));
        assert_eq!(classify(0x1087, 3, false), Entry::Misconfigured, "no page of 512 GiB");
        assert_eq!(classify(0x100f, 2, false), Entry::Misconfigured, "bits 7:3 of a table are reserved");
        assert_eq!(classify(0x1400, 0, false), Entry::Absent);
        assert_eq!(classify(0x1400, 0, true), Entry::Leaf(0x1000), "for user mode alone");
        assert_eq!(classify(0x1402, 0, true), Entry::Misconfigured, "write without read");
        for (kind, fine) in
            [(0, true), (1, true), (2, false), (3, false), (4, true), (5, true), (6, true), (7, false)]
        {
            let entry = classify(0x1007 | kind << 3, 0, false);
            assert_eq!(entry == Entry::Leaf(0x1000), fine, "memory type {kind}");
        }
    }

    #[test]
    fn an_eptp_has_four_levels_and_a_memory_type() {
        assert!(eptp(0x1_2000 | 3 << 3 | 6) && eptp(3 << 3) && eptp(0x5e));
        assert!(!eptp(4 << 3 | 6) && !eptp(3 << 3 | 1) && !eptp(0x9e) && !eptp(1 << 46 | 0x1e));
    }
}
