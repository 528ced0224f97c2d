//! The kinds of paging, and what their entries look like (SDM 4.1 to 4.5).

use satori_cpuid::Feature;
use satori_defs::x86::{cr0, cr4, efer, pte};
use satori_state::CpuState;

use crate::cpu::Cpu;

/// Physical addresses have this many bits (CPUID 0x80000008).
pub const MAXPHYADDR: u8 = 46;
/// Address bits that wide entries must leave clear: 51:MAXPHYADDR.
const BEYOND: u64 = pte::ADDR & !((1 << MAXPHYADDR) - 1);
/// PSE-36 gives 4-MiB pages at most this many physical-address bits (SDM 4.3).
const PSE36_BITS: u8 = if MAXPHYADDR < 40 { MAXPHYADDR } else { 40 };
/// Bits 62:52 of an entry, which PAE paging reserves and 4-level paging ignores.
const HIGH: u64 = 0x7ff << 52;

/// A paging mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paging {
    /// CR0.PG is clear.
    None,
    /// 32-bit paging.
    Bits32,
    /// PAE paging.
    Pae,
    /// 4-level paging.
    FourLevel,
}

impl Paging {
    /// The mode that control registers select (SDM 4.1.1).
    pub const fn select(cr0: u64, cr4: u64, efer: u64) -> Self {
        if cr0 & cr0::PG == 0 {
            Paging::None
        } else if efer & efer::LMA != 0 {
            Paging::FourLevel
        } else if cr4 & cr4::PAE != 0 {
            Paging::Pae
        } else {
            Paging::Bits32
        }
    }

    /// The mode in force.
    pub const fn of(state: &CpuState) -> Self {
        Self::select(state.cr0, state.cr4, state.efer)
    }

    /// Whether entries have 64 bits.
    pub const fn wide(self) -> bool {
        !matches!(self, Paging::Bits32)
    }

    /// Address bits that index one table.
    const fn index_bits(self) -> u32 {
        if self.wide() { 9 } else { 10 }
    }

    /// Log2 of the bytes that an entry at `level` (0 is the lowest) covers.
    pub const fn shift(self, level: u32) -> u32 {
        12 + level * self.index_bits()
    }

    /// Where in its table the entry for `linear` stands.
    pub const fn offset(self, linear: u64, level: u32) -> u64 {
        let index = linear >> self.shift(level) & ((1 << self.index_bits()) - 1);
        index * if self.wide() { 8 } else { 4 }
    }

    /// The address of the table that an entry, or CR3, refers to.
    pub const fn table(self, entry: u64) -> u64 {
        if self.wide() { entry & pte::ADDR } else { entry & 0xffff_f000 }
    }

    /// The address of the page that a leaf maps.
    pub const fn frame(self, entry: u64, shift: u32, large: bool) -> u64 {
        if self.wide() {
            entry & pte::ADDR & !((1 << shift) - 1)
        } else if large {
            // PSE-36: bits 20:13 of the entry are bits 39:32 of the address.
            (entry & 0xffc0_0000) | (entry >> 13 & ((1 << (PSE36_BITS - 32)) - 1)) << 32
        } else {
            entry & 0xffff_f000
        }
    }
}

impl Cpu {
    /// Whether the entry maps a page although it is not at the lowest level.
    #[inline(always)]
    pub(super) fn is_large(&self, paging: Paging, level: u32, entry: u64, cr4: u64) -> bool {
        entry & pte::PS != 0
            && match (paging, level) {
                (Paging::Bits32, 1) => cr4 & cr4::PSE != 0,
                (_, 1) => true,
                (_, 2) => self.isa.offered.has(Feature::Pdpe1gb),
                _ => false,
            }
    }

    /// Bits that a present entry must not have set (SDM tables 4-5, 4-6, 4-9 to 4-11, 4-15 to 4-20).
    #[inline(always)]
    pub(super) fn reserved(&self, paging: Paging, level: u32, large: bool) -> u64 {
        if paging == Paging::Bits32 {
            // Bit 21, and those of 20:13 that are no address bits.
            let bits = if self.isa.offered.has(Feature::Pse36) { PSE36_BITS } else { 32 };
            return if large { (1 << 22) - (1 << (bits - 19)) } else { 0 };
        }
        let mut reserved = BEYOND;
        if paging == Paging::Pae {
            reserved |= HIGH;
        }
        if self.state.efer & efer::NXE == 0 {
            reserved |= pte::NX;
        }
        if large {
            reserved |= ((1 << paging.shift(level)) - 1) & !0x1fff;
        }
        if level >= 2 && !large {
            reserved |= pte::PS;
        }
        reserved
    }
}
