//! Faults of translation and access, and how they are reported.

use satori_arm_state::Sys;

use super::Regime;
use crate::cpu::{Cpu, Stop, hcr};
use crate::exception::{Syndrome, ec};

/// What memory is accessed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Execute,
    /// DC and IC by address, AT: reported as writes or reads, with CM.
    Maintain,
}

/// What is wrong; with the level of the walk where there is one. The values are those of ESR_ELx.DFSC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    AddressSize(u8),
    Translation(u8),
    AccessFlag(u8),
    Permission(u8),
    External,
    /// In the walk, at this level.
    ExternalWalk(u8),
    Alignment,
}

impl Cause {
    pub(crate) fn status(self) -> u32 {
        match self {
            Cause::AddressSize(level) => u32::from(level),
            Cause::Translation(level) => 4 | u32::from(level),
            Cause::AccessFlag(level) => 8 | u32::from(level),
            Cause::Permission(level) => 12 | u32::from(level),
            Cause::External => 0x10,
            Cause::ExternalWalk(level) => 0x14 | u32::from(level),
            Cause::Alignment => 0x21,
        }
    }
}

/// A fault of one stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub cause: Cause,
    /// The intermediate physical address, if stage 2 is to blame.
    pub stage2: Option<u64>,
    /// Stage 2 refused an access of the stage 1 walk.
    pub in_walk: bool,
}

impl Fault {
    pub(crate) fn stage1(cause: Cause) -> Self {
        Fault { cause, stage2: None, in_walk: false }
    }
}

impl Cpu {
    /// Reports a fault of an access to `address`.
    #[cold]
    pub(crate) fn abort(&mut self, address: u64, access: Access, fault: Fault) -> Stop {
        let class = if access == Access::Execute { ec::INSTRUCTION_ABORT } else { ec::DATA_ABORT };
        let writes = matches!(access, Access::Write | Access::Maintain);
        let mut iss = fault.cause.status();
        if access != Access::Execute && (writes && !fault.in_walk) {
            iss |= 1 << 6;
        }
        if access == Access::Maintain {
            iss |= 1 << 8;
        }
        if fault.in_walk {
            iss |= 1 << 7;
        }
        let mut syndrome = Syndrome::new(class, iss).at(address);
        if let Some(ipa) = fault.stage2 {
            syndrome = syndrome.to_el2();
            syndrome.hpfar = Some(ipa >> 12 << 4);
            if !fault.in_walk && access != Access::Execute {
                syndrome.iss |= self.syndrome_of_access();
            }
        }
        self.raise(syndrome)
    }

    /// An instruction fetch from where no RAM is.
    pub(crate) fn fetch_abort(&mut self, address: u64) -> Stop {
        self.abort(address, Access::Execute, Fault::stage1(Cause::External))
    }

    /// ISV and what follows it (ESR_ELx.ISS of a data abort), for single registers without writeback.
    fn syndrome_of_access(&self) -> u32 {
        let Some(word) = self.word_at_pc() else { return 0 };
        satori_arm_isa::decode(word).map_or(0, |row| access_syndrome(row.op, word))
    }

    /// Whether stage 2 translates EL1&0.
    pub(crate) fn has_stage2(&self, regime: Regime) -> bool {
        let hcr = self.hcr();
        let on = hcr & (hcr::VM | hcr::DC) != 0 && hcr & (hcr::TGE | hcr::E2H) != hcr::TGE | hcr::E2H;
        regime == Regime::El10 && on
    }

    fn word_at_pc(&self) -> Option<u32> {
        let gpa = self.peek(self.s.pc)?;
        let page = crate::host::HostPage::of(&self.memory, gpa)?;
        Some(page.read::<4>((gpa & 0xffc) as usize) as u32)
    }

    /// Whether stage 1 of a regime is on.
    pub(crate) fn has_stage1(&self, regime: Regime) -> bool {
        let sctlr = if regime == Regime::El10 { Sys::SCTLR_EL1 } else { Sys::SCTLR_EL2 };
        let el10_off =
            regime == Regime::El10 && self.hcr() & (hcr::DC | hcr::TGE) != 0 && !(self.e2h() && self.tge());
        self.s.get(sctlr) & 1 != 0 && !el10_off
    }
}

/// ISV, SAS, SSE, SRT, SF and AR of a load or store of one general register without writeback; 0 for all others.
fn access_syndrome(op: satori_arm_isa::Op, word: u32) -> u32 {
    use satori_arm_isa::Op;
    let (size, register) = (word >> 30, word & 31);
    // Sign-extended; to 64 bits; acquire or release.
    let (sign, wide, ordered) = match op {
        Op::StUns | Op::StUnscaled | Op::StReg | Op::StUnpriv | Op::LdUns | Op::LdUnscaled => {
            (false, size == 3, false)
        }
        Op::LdReg | Op::LdUnpriv => (false, size == 3, false),
        Op::LdSxUns | Op::LdSxUnscaled | Op::LdSxReg | Op::LdSxUnpriv => (true, true, false),
        Op::LdSwUns | Op::LdSwUnscaled | Op::LdSwReg | Op::LdSwUnpriv => (true, false, false),
        Op::Stlr | Op::Stllr | Op::Ldar | Op::Ldlar => (false, size == 3, true),
        _ => return 0,
    };
    1 << 24
        | size << 22
        | u32::from(sign) << 21
        | register << 16
        | u32::from(wide) << 15
        | u32::from(ordered) << 14
}
