//! Loads and stores.

use std::sync::atomic::{Ordering, fence};

use satori_arm_engine::{Answer, Exit};
use satori_arm_state::Sys;

use super::fault::{Access, Cause, Fault};
use super::{MODES, Mode, Regime};
use crate::cpu::{Cpu, Stop};
use crate::exits::Event;
use crate::host::HostPage;

const PAGE: u64 = 4096;

/// Where bytes are.
enum Place {
    Ram(HostPage),
    Device(u64),
}

impl Cpu {
    /// Reads `N` bytes at `address` with the rights of `mode`.
    #[inline(always)]
    pub(crate) fn read<const N: usize>(&mut self, mode: usize, address: u64) -> Result<u64, Stop> {
        if self.hosted.watchpoints {
            self.watch(mode, address, N as u64, false)?;
        }
        let offset = (address & 0xfff) as usize;
        if offset <= 4096 - N
            && let Some(page) = self.tlb.load(mode, address)
        {
            return Ok(page.read::<N>(offset));
        }
        self.read_slow::<N>(mode, address)
    }

    /// Writes the low `N` bytes of `value`.
    #[inline(always)]
    pub(crate) fn write<const N: usize>(
        &mut self,
        mode: usize,
        address: u64,
        value: u64,
    ) -> Result<(), Stop> {
        if self.hosted.watchpoints {
            self.watch(mode, address, N as u64, true)?;
        }
        let offset = (address & 0xfff) as usize;
        if offset <= 4096 - N
            && let Some(page) = self.tlb.store(mode, address)
        {
            page.write::<N>(offset, value);
            return Ok(());
        }
        self.write_slow::<N>(mode, address, value)
    }

    /// 16 bytes.
    pub(crate) fn read16(&mut self, mode: usize, address: u64) -> Result<u128, Stop> {
        let low = self.read::<8>(mode, address)?;
        let high = self.read::<8>(mode, address.wrapping_add(8))?;
        Ok(u128::from(low) | u128::from(high) << 64)
    }

    /// 16 bytes.
    pub(crate) fn write16(&mut self, mode: usize, address: u64, value: u128) -> Result<(), Stop> {
        // A fault of the second half leaves nothing of the first.
        if address & 0xfff > PAGE - 16 {
            self.place(mode, address.wrapping_add(8), 8, Access::Write)?;
        }
        self.write::<8>(mode, address, value as u64)?;
        self.write::<8>(mode, address.wrapping_add(8), (value >> 64) as u64)
    }

    /// Whether unaligned accesses fault whatever memory they are to: SCTLR_ELx.A.
    fn strict(&self, mode: usize) -> bool {
        let sctlr = if MODES[mode].regime == Regime::El10 { Sys::SCTLR_EL1 } else { Sys::SCTLR_EL2 };
        self.s.get(sctlr) & 2 != 0
    }

    fn misaligned(&mut self, address: u64, access: Access) -> Stop {
        self.abort(address, access, Fault::stage1(Cause::Alignment))
    }

    /// Translates for an access of `len` bytes that stays in its page, and keeps the page for the next.
    fn place(&mut self, mode: usize, address: u64, len: u64, access: Access) -> Result<Place, Stop> {
        let unaligned = address & (len - 1) != 0;
        if unaligned && self.strict(mode) {
            return Err(self.misaligned(address, access));
        }
        let mapping =
            self.lookup(mode, address, access).map_err(|fault| self.abort(address, access, fault))?;
        if mapping.device && unaligned {
            return Err(self.misaligned(address, access));
        }
        let gpa = mapping.page | address & 0xfff;
        let Some(page) = HostPage::of(&self.memory, gpa) else { return Ok(Place::Device(gpa)) };
        if !mapping.device {
            let readable = access == Access::Read || {
                let (rights, mode) = (mapping.rights, MODES[mode]);
                if mode.privileged {
                    rights.read && !(mode.pan && rights.user_read)
                } else {
                    rights.user_read
                }
            };
            self.tlb.keep(mode, address, page, readable, access == Access::Write);
        }
        Ok(Place::Ram(page))
    }

    #[cold]
    #[inline(never)]
    fn read_slow<const N: usize>(&mut self, mode: usize, address: u64) -> Result<u64, Stop> {
        let offset = (address & 0xfff) as usize;
        if offset > 4096 - N {
            if self.strict(mode) {
                return Err(self.misaligned(address, Access::Read));
            }
            let mut value = 0;
            for byte in 0..N as u64 {
                let one = self.read_crossing(mode, address.wrapping_add(byte))?;
                value |= one << (8 * byte);
            }
            return Ok(value);
        }
        match self.place(mode, address, N as u64, Access::Read)? {
            Place::Ram(page) => Ok(page.read::<N>(offset)),
            Place::Device(gpa) => match self.ask(Exit::MmioRead { gpa, size: N as u8 })? {
                Answer::Value(value) => {
                    self.exits.happened(Event::DeviceReads);
                    Ok(value)
                }
                Answer::Done | Answer::Refused => Err(self.external(address, Access::Read)),
            },
        }
    }

    fn read_crossing(&mut self, mode: usize, address: u64) -> Result<u64, Stop> {
        match self.place(mode, address, 1, Access::Read)? {
            Place::Ram(page) => Ok(page.read::<1>((address & 0xfff) as usize)),
            // Devices have no unaligned registers.
            Place::Device(_) => Err(self.misaligned(address, Access::Read)),
        }
    }

    #[cold]
    #[inline(never)]
    fn write_slow<const N: usize>(&mut self, mode: usize, address: u64, value: u64) -> Result<(), Stop> {
        let offset = (address & 0xfff) as usize;
        if offset > 4096 - N {
            if self.strict(mode) {
                return Err(self.misaligned(address, Access::Write));
            }
            // Both pages before a byte is written.
            let second = (address | 0xfff).wrapping_add(1);
            self.place(mode, address, 1, Access::Write)?;
            self.place(mode, second, 1, Access::Write)?;
            for byte in 0..N as u64 {
                let at = address.wrapping_add(byte);
                match self.place(mode, at, 1, Access::Write)? {
                    Place::Ram(page) => page.write::<1>((at & 0xfff) as usize, value >> (8 * byte)),
                    Place::Device(_) => return Err(self.misaligned(address, Access::Write)),
                }
            }
            return Ok(());
        }
        match self.place(mode, address, N as u64, Access::Write)? {
            Place::Ram(page) => {
                page.write::<N>(offset, value);
                Ok(())
            }
            Place::Device(gpa) => {
                let value = if N == 8 { value } else { value & ((1 << (8 * N)) - 1) };
                match self.ask(Exit::MmioWrite { gpa, size: N as u8, value })? {
                    Answer::Value(_) | Answer::Done => {
                        self.exits.happened(Event::DeviceWrites);
                        Ok(())
                    }
                    Answer::Refused => Err(self.external(address, Access::Write)),
                }
            }
        }
    }

    fn external(&mut self, address: u64, access: Access) -> Stop {
        self.abort(address, access, Fault::stage1(Cause::External))
    }

    /// The page for an atomic access to `len` bytes at `address`, which must be aligned, and in RAM.
    pub(crate) fn atomic(&mut self, mode: usize, address: u64, len: u64) -> Result<HostPage, Stop> {
        if address & (len - 1) != 0 {
            return Err(self.misaligned(address, Access::Write));
        }
        if self.hosted.watchpoints {
            self.watch(mode, address, len, true)?;
        }
        if let Some(page) = self.tlb.store(mode, address) {
            return Ok(page);
        }
        match self.place(mode, address, len.min(8), Access::Write)? {
            Place::Ram(page) => Ok(page),
            Place::Device(_) => Err(self.external(address, Access::Write)),
        }
    }

    /// The same for an access that also reads.
    pub(crate) fn update(&mut self, mode: usize, address: u64, len: u64) -> Result<HostPage, Stop> {
        if self.hosted.watchpoints {
            self.watch(mode, address, len, false)?;
        }
        self.atomic(mode, address, len)
    }

    /// LDAR, LDXR and the like: `len` bytes must be aligned.
    pub(crate) fn aligned(&mut self, address: u64, len: u64, access: Access) -> Result<(), Stop> {
        match address & (len - 1) {
            0 => Ok(()),
            _ => Err(self.misaligned(address, access)),
        }
    }

    /// A barrier between all accesses: also between a store-release and a later load-acquire.
    pub(crate) fn full_barrier() {
        fence(Ordering::SeqCst);
    }

    /// DC and IC by address: they translate as loads do, and change nothing.
    pub(crate) fn maintain(&mut self, address: u64) -> Result<(), Stop> {
        let found = self.lookup(self.mode, address, Access::Maintain);
        found.map(|_| ()).map_err(|fault| self.abort(address, Access::Maintain, fault))
    }

    /// DC ZVA.
    pub(crate) fn zero_block(&mut self, address: u64) -> Result<(), Stop> {
        let start = address & !63;
        for at in (0..64).step_by(8) {
            self.write::<8>(self.mode, start + at, 0)?;
        }
        Ok(())
    }

    /// AT: what PAR_EL1 becomes.
    pub(crate) fn address_translation(&mut self, mode: usize, address: u64, write: bool, both: bool) -> u64 {
        let access = if write { Access::Write } else { Access::Read };
        self.tlb_bypass = !both;
        let Mode { regime, .. } = MODES[mode];
        let walked = self.walk(regime, self.untagged(regime, address), Access::Maintain);
        self.tlb_bypass = false;
        let rights = MODES[mode];
        let permitted = |found: &super::tlb::Mapping| match (access, rights.privileged) {
            (Access::Write, true) => found.rights.write && !(rights.pan && found.rights.user_read),
            (Access::Write, false) => found.rights.user_write,
            (_, true) => found.rights.read && !(rights.pan && found.rights.user_read),
            (_, false) => found.rights.user_read,
        };
        let fault = match walked {
            // Inner and outer shareable write-back memory, or a device's.
            Ok(found) if permitted(&found) => {
                let attributes = if found.device { 0 } else { 0xff << 56 | 3 << 7 };
                return attributes | 1 << 11 | 1 << 9 | found.page;
            }
            Ok(found) => Fault::stage1(Cause::Permission((3 - (found.shift - 12) / 9).min(3))),
            Err(fault) => fault,
        };
        let stage2 = u64::from(fault.stage2.is_some()) << 9 | u64::from(fault.in_walk) << 8;
        1 | u64::from(fault.cause.status()) << 1 | stage2 | 1 << 11
    }

    /// The guest-physical address behind `address` now; changes nothing.
    pub(crate) fn peek(&self, address: u64) -> Option<u64> {
        let regime = MODES[self.mode].regime;
        if !self.has_stage1(regime) && !self.has_stage2(regime) {
            return Some(address);
        }
        self.peek_walk(regime, address)
    }

    /// Registers were changed from outside.
    pub(crate) fn changed_outside(&mut self) {
        self.tlb.context_changed();
    }
}
