//! Stage 1: the walk through the tables (Arm ARM D8.2, VMSAv8-64 with the 4 KiB granule).

use satori_arm_state::Sys;

use super::fault::{Access, Cause, Fault};
use super::tlb::{Context, Mapping, Rights};
use super::{MODES, Mode, Regime};
use crate::cpu::{Cpu, Stop};
use crate::host::HostPage;

/// Physical addresses have so many bits (ID_AA64MMFR0_EL1.PARange of 5).
pub(crate) const PHYSICAL_BITS: u32 = 48;

/// Bits of a descriptor.
const VALID: u64 = 1;
const TABLE: u64 = 2;
const AP_USER: u64 = 1 << 6;
const AP_READ_ONLY: u64 = 1 << 7;
const AF: u64 = 1 << 10;
const NG: u64 = 1 << 11;
const DBM: u64 = 1 << 51;
const PXN: u64 = 1 << 53;
const UXN: u64 = 1 << 54;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// Controls of a walk, of TCR_ELx for one of its ranges.
struct Range {
    table: u64,
    /// Bits of an address.
    bits: u32,
    access_flag: bool,
    dirty: bool,
    /// Attributes of tables count not.
    flat: bool,
    mair: u64,
    wxn: bool,
    two_ranges: bool,
}

/// What attributes of tables take away.
#[derive(Default)]
struct Taken {
    user: bool,
    write: bool,
    pxn: bool,
    uxn: bool,
}

impl Cpu {
    /// The address without its tag, if it has one.
    pub(crate) fn untagged(&self, regime: Regime, address: u64) -> u64 {
        let tcr = self.s.get(if regime == Regime::El10 { Sys::TCR_EL1 } else { Sys::TCR_EL2 });
        let upper = address >> 55 & 1 != 0;
        let ignored = match regime {
            Regime::El2 => tcr >> 20 & 1 != 0,
            _ => tcr >> (37 + u32::from(upper)) & 1 != 0,
        };
        if !ignored {
            return address;
        }
        match upper && regime != Regime::El2 {
            true => address | 0xff << 56,
            false => address & !(0xff << 56),
        }
    }

    /// The range of `address`, or the fault of an address in none.
    fn range(&self, regime: Regime, address: u64) -> Result<Range, Fault> {
        let none = Fault::stage1(Cause::Translation(0));
        let (tcr, ttbr0, ttbr1, mair, sctlr) = match regime {
            Regime::El10 => (Sys::TCR_EL1, Sys::TTBR0_EL1, Sys::TTBR1_EL1, Sys::MAIR_EL1, Sys::SCTLR_EL1),
            _ => (Sys::TCR_EL2, Sys::TTBR0_EL2, Sys::TTBR1_EL2, Sys::MAIR_EL2, Sys::SCTLR_EL2),
        };
        let (tcr, mair, sctlr) = (self.s.get(tcr), self.s.get(mair), self.s.get(sctlr));
        let wxn = sctlr >> 19 & 1 != 0;
        let upper = address >> 55 & 1 != 0;
        let (table, size, disabled, af, dirty, flat) = match regime {
            Regime::El2 => {
                if upper {
                    return Err(none);
                }
                let bit = |at: u32| tcr >> at & 1 != 0;
                (self.s.get(ttbr0), tcr & 63, false, bit(21), bit(22), bit(24))
            }
            _ => {
                let bit = |at: u32| tcr >> at & 1 != 0;
                let (af, dirty) = (bit(39), bit(40));
                match upper {
                    false => (self.s.get(ttbr0), tcr & 63, bit(7), af, dirty, bit(41)),
                    true => (self.s.get(ttbr1), tcr >> 16 & 63, bit(23), af, dirty, bit(42)),
                }
            }
        };
        let bits = 64 - (size as u32).clamp(16, 39);
        let outside = match upper {
            true => !address >> bits != 0,
            false => address >> bits != 0,
        };
        // Other granules are not implemented: the field reads as written, and means 4 KiB.
        if outside || disabled {
            return Err(none);
        }
        let table = table & 0x0000_ffff_ffff_fffe;
        let two_ranges = regime != Regime::El2;
        Ok(Range { table, bits, access_flag: af, dirty: dirty && af, flat, mair, wxn, two_ranges })
    }

    /// Translates by the tables. `write` sets the dirty state where hardware manages it.
    pub(crate) fn walk(&mut self, regime: Regime, address: u64, access: Access) -> Result<Mapping, Fault> {
        if !self.has_stage1(regime) {
            return self.flat_mapping(regime, address, access);
        }
        let range = self.range(regime, address)?;
        let mut level = 4 - (range.bits - 12).div_ceil(9);
        let mut table = range.table;
        let mut taken = Taken::default();
        loop {
            let shift = 39 - 9 * level;
            let first = range.bits.min(shift + 9);
            let index = address >> shift & ((1 << (first - shift)) - 1);
            // The first table may be smaller than a page, and is aligned to its size.
            let at = (table & !((8 << (first - shift)) - 1)) + index * 8;
            let (descriptor, page, offset) = self.descriptor(regime, at, level as u8)?;
            let leaf = if level == 3 { descriptor & 3 == 3 } else { descriptor & 3 == VALID && level > 0 };
            let next = level < 3 && descriptor & 3 == VALID | TABLE;
            if !leaf && !next {
                return Err(Fault::stage1(Cause::Translation(level as u8)));
            }
            if next {
                if !range.flat {
                    taken.user |= descriptor >> 61 & 1 != 0;
                    taken.write |= descriptor >> 62 & 1 != 0;
                    taken.pxn |= descriptor >> 59 & 1 != 0;
                    taken.uxn |= descriptor >> 60 & 1 != 0;
                }
                table = descriptor & ADDRESS;
                level += 1;
                continue;
            }
            let descriptor = self.touch(&range, descriptor, page, offset, level as u8, access)?;
            return self.leaf(regime, &range, descriptor, &taken, level, address, access);
        }
    }

    /// Reads a descriptor of stage 1, whose address stage 2 translates.
    fn descriptor(&mut self, regime: Regime, at: u64, level: u8) -> Result<(u64, HostPage, usize), Fault> {
        let at = self.walk_address(regime, at)?;
        let page = HostPage::of(&self.memory, at).ok_or(Fault::stage1(Cause::ExternalWalk(level)))?;
        let offset = (at & 0xff8) as usize;
        Ok((page.read::<8>(offset), page, offset))
    }

    /// Sets access flag and dirty state, where hardware manages them.
    fn touch(
        &mut self,
        range: &Range,
        mut descriptor: u64,
        page: HostPage,
        offset: usize,
        level: u8,
        access: Access,
    ) -> Result<u64, Fault> {
        if access == Access::Maintain {
            return Ok(descriptor);
        }
        loop {
            let mut wanted = descriptor;
            if descriptor & AF == 0 {
                if !range.access_flag {
                    return Err(Fault::stage1(Cause::AccessFlag(level)));
                }
                wanted |= AF;
            }
            if range.dirty && access == Access::Write && descriptor & DBM != 0 {
                wanted &= !AP_READ_ONLY;
            }
            if wanted == descriptor {
                return Ok(descriptor);
            }
            match page.compare_exchange::<8>(offset, descriptor, wanted) {
                Ok(_) => return Ok(wanted),
                Err(now) if now & VALID == 0 => return Err(Fault::stage1(Cause::Translation(level))),
                Err(now) => descriptor = now,
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "a walk's end needs all that the walk found")]
    fn leaf(
        &mut self,
        regime: Regime,
        range: &Range,
        descriptor: u64,
        taken: &Taken,
        level: u32,
        address: u64,
        access: Access,
    ) -> Result<Mapping, Fault> {
        let shift = 39 - 9 * level;
        let within = address & ((1 << shift) - 1);
        let ipa = (descriptor & ADDRESS & !((1 << shift) - 1)) | within;
        let user = descriptor & AP_USER != 0 && !taken.user && range.two_ranges;
        let write = descriptor & AP_READ_ONLY == 0 && !taken.write;
        let uxn = descriptor & UXN != 0 || taken.uxn;
        // One range has one XN, at UXN's place.
        let pxn = match range.two_ranges {
            // What user code can write, privileged code does not execute.
            true => descriptor & PXN != 0 || taken.pxn || (user && write),
            false => uxn,
        };
        let writable = |may: bool| may && range.wxn;
        let mut rights = Rights {
            user_read: user,
            user_write: user && write,
            user_execute: range.two_ranges && !uxn && !writable(user && write),
            read: true,
            write,
            execute: !pxn && !writable(write),
        };
        let attribute = range.mair >> (8 * (descriptor >> 2 & 7)) & 0xff;
        let device = attribute & 0xf0 == 0;
        let (page, stage2_shift) = self.second_stage(regime, ipa, access, &mut rights)?;
        Ok(Mapping {
            page: page & !0xfff,
            rights,
            device,
            global: descriptor & NG == 0 || !range.two_ranges,
            shift: (shift as u8).min(stage2_shift),
        })
    }

    /// Stage 1 is off: addresses are physical, and data are of a device.
    fn flat_mapping(&mut self, regime: Regime, address: u64, access: Access) -> Result<Mapping, Fault> {
        if address >> PHYSICAL_BITS != 0 {
            return Err(Fault::stage1(Cause::AddressSize(0)));
        }
        let all = Rights {
            user_read: true,
            user_write: true,
            user_execute: true,
            read: true,
            write: true,
            execute: true,
        };
        let mut rights = all;
        let device = self.hcr() & crate::cpu::hcr::DC == 0;
        let (page, _) = self.second_stage(regime, address, access, &mut rights)?;
        Ok(Mapping { page: page & !0xfff, rights, device, global: true, shift: 12 })
    }

    /// The translation of `address` for `mode`, from the TLB if it is there and permits `access`.
    pub(crate) fn lookup(&mut self, mode: usize, address: u64, access: Access) -> Result<Mapping, Fault> {
        let Mode { regime, privileged, pan } = MODES[mode];
        let address = self.untagged(regime, address);
        let vmid = if regime == Regime::El10 { self.vmid() } else { 0 };
        let context = Context { regime, vmid, asid: self.asid(regime) };
        let permits = |rights: &Rights| match (access, privileged) {
            (Access::Read, false) => rights.user_read,
            (Access::Write, false) => rights.user_write,
            (Access::Execute, false) => rights.user_execute,
            (Access::Read, true) => rights.read && !(pan && rights.user_read),
            (Access::Write, true) => rights.write && !(pan && rights.user_read),
            (Access::Execute, true) => rights.execute,
            (Access::Maintain, true) => true,
            (Access::Maintain, false) => rights.user_read,
        };
        if let Some(found) = self.tlb.find(context, address)
            && permits(&found.rights)
        {
            return Ok(found);
        }
        // What the TLB does not permit, the tables may meanwhile: they decide.
        let found = self.walk(regime, address, access)?;
        self.tlb.insert(context, address, found);
        if permits(&found.rights) {
            return Ok(found);
        }
        let level = 4 - u32::from(found.shift - 3) / 9;
        Err(Fault::stage1(Cause::Permission(level as u8)))
    }

    /// Translates as [`Cpu::walk`] does, from what the TLB has or by tables, and changes nothing. Guests with a stage 2 are seen only
    /// as far as the TLB has them.
    pub(crate) fn peek_walk(&self, regime: Regime, address: u64) -> Option<u64> {
        let address = self.untagged(regime, address);
        let vmid = if regime == Regime::El10 { self.vmid() } else { 0 };
        let context = Context { regime, vmid, asid: self.asid(regime) };
        if let Some(found) = self.tlb.find(context, address) {
            return Some(found.page | address & 0xfff);
        }
        if self.has_stage2(regime) {
            return None;
        }
        let range = self.range(regime, address).ok()?;
        let (mut level, mut table) = (4 - (range.bits - 12).div_ceil(9), range.table);
        loop {
            let shift = 39 - 9 * level;
            let first = range.bits.min(shift + 9);
            let index = address >> shift & ((1 << (first - shift)) - 1);
            let at = (table & !((8 << (first - shift)) - 1)) + index * 8;
            let descriptor = HostPage::of(&self.memory, at)?.read::<8>((at & 0xff8) as usize);
            match (descriptor & 3, level) {
                (3, 0..=2) => (table, level) = (descriptor & ADDRESS, level + 1),
                (1, 1 | 2) | (3, 3) => {
                    let within = (1 << shift) - 1;
                    return Some((descriptor & ADDRESS & !within) | address & within);
                }
                _ => return None,
            }
        }
    }

    /// The physical address of an instruction.
    pub(crate) fn translate_fetch(&mut self, pc: u64) -> Result<u64, Stop> {
        match self.lookup(self.mode, pc, Access::Execute) {
            Ok(mapping) => Ok(mapping.page | pc & 0xfff),
            Err(fault) => Err(self.abort(pc, Access::Execute, fault)),
        }
    }
}
