//! Stage 2: what a hypervisor's tables make of a guest's physical addresses (Arm ARM D8.2, VTCR_EL2).

use satori_arm_state::Sys;

use super::Regime;
use super::fault::{Access, Cause, Fault};
use super::tlb::Rights;
use crate::cpu::{Cpu, hcr};
use crate::host::HostPage;

const AF: u64 = 1 << 10;
const DBM: u64 = 1 << 51;
const WRITE: u64 = 1 << 7;
const READ: u64 = 1 << 6;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// A leaf of stage 2.
struct Leaf {
    page: u64,
    read: bool,
    write: bool,
    execute_user: bool,
    execute: bool,
    shift: u8,
    level: u8,
}

impl Cpu {
    /// The physical address of `ipa`, and the bits that one descriptor translates; narrows `rights` to what stage 2 gives.
    pub(super) fn second_stage(
        &mut self,
        regime: Regime,
        ipa: u64,
        access: Access,
        rights: &mut Rights,
    ) -> Result<(u64, u8), Fault> {
        if !self.has_stage2(regime) || self.tlb_bypass {
            return Ok((ipa, 30));
        }
        let leaf = self.walk_stage2(ipa, access == Access::Write)?;
        let permitted = match access {
            Access::Read | Access::Maintain => leaf.read,
            Access::Write => leaf.write,
            Access::Execute => leaf.execute || leaf.execute_user,
        };
        if !permitted {
            return Err(Fault { cause: Cause::Permission(leaf.level), stage2: Some(ipa), in_walk: false });
        }
        rights.read &= leaf.read;
        rights.user_read &= leaf.read;
        rights.write &= leaf.write;
        rights.user_write &= leaf.write;
        rights.execute &= leaf.execute;
        rights.user_execute &= leaf.execute_user;
        Ok((leaf.page | ipa & 0xfff, leaf.shift))
    }

    /// Where a walk of stage 1 reads the descriptor at `ipa`.
    pub(super) fn walk_address(&mut self, regime: Regime, ipa: u64) -> Result<u64, Fault> {
        if !self.has_stage2(regime) {
            return Ok(ipa);
        }
        let in_walk = |fault: Fault| Fault { in_walk: true, stage2: Some(ipa), ..fault };
        let leaf = self.walk_stage2(ipa, false).map_err(in_walk)?;
        match leaf.read {
            true => Ok(leaf.page | ipa & 0xfff),
            false => Err(in_walk(Fault::stage1(Cause::Permission(leaf.level)))),
        }
    }

    fn walk_stage2(&mut self, ipa: u64, write: bool) -> Result<Leaf, Fault> {
        let fault = |cause| Fault { cause, stage2: Some(ipa), in_walk: false };
        if self.hcr() & hcr::VM == 0 {
            let all = Leaf {
                page: ipa & !0xfff,
                read: true,
                write: true,
                execute_user: true,
                execute: true,
                shift: 30,
                level: 1,
            };
            return Ok(all);
        }
        let vtcr = self.s.get(Sys::VTCR_EL2);
        let bits = 64 - (vtcr as u32 & 63).clamp(16, 39);
        if ipa >> bits != 0 {
            return Err(fault(Cause::Translation(0)));
        }
        let mut level = 2_u32.saturating_sub(vtcr as u32 >> 6 & 3);
        // Up to 16 tables side by side stand for one more level.
        let mut table = self.s.get(Sys::VTTBR_EL2) & 0x0000_ffff_ffff_f000;
        let mut top = bits;
        loop {
            let shift = 39 - 9 * level;
            let index = (ipa & ((1 << top) - 1)) >> shift;
            let at = table + index * 8;
            let page = HostPage::of(&self.memory, at).ok_or(fault(Cause::ExternalWalk(level as u8)))?;
            let offset = (at & 0xff8) as usize;
            let mut descriptor = page.read::<8>(offset);
            match (descriptor & 3, level) {
                (3, 0..=2) => {
                    table = descriptor & ADDRESS;
                    top = shift;
                    level += 1;
                    continue;
                }
                (1, 1 | 2) | (3, 3) => {}
                _ => return Err(fault(Cause::Translation(level as u8))),
            }
            let (managed, dirty) = (vtcr >> 21 & 1 != 0, vtcr >> 22 & 1 != 0);
            let mut wanted = descriptor;
            if descriptor & AF == 0 {
                if !managed {
                    return Err(fault(Cause::AccessFlag(level as u8)));
                }
                wanted |= AF;
            }
            if dirty && write && descriptor & DBM != 0 {
                wanted |= WRITE;
            }
            if wanted != descriptor {
                // If another was faster, what it left is walked anew.
                if page.compare_exchange::<8>(offset, descriptor, wanted).is_err() {
                    return self.walk_stage2(ipa, write);
                }
                descriptor = wanted;
            }
            // XN[1:0], with FEAT_XNX: 0 all, 1 user code, 2 none, 3 privileged code.
            let (user, privileged) = match descriptor >> 53 & 3 {
                0 => (true, true),
                1 => (true, false),
                2 => (false, false),
                _ => (false, true),
            };
            let within = (1 << shift) - 1;
            return Ok(Leaf {
                page: ((descriptor & ADDRESS & !within) | ipa & within) & !0xfff,
                read: descriptor & READ != 0,
                write: descriptor & WRITE != 0,
                execute_user: user,
                execute: privileged,
                shift: shift as u8,
                level: level as u8,
            });
        }
    }
}
