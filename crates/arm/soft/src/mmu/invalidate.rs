//! TLBI.

use super::Regime;
use crate::cpu::Cpu;

/// What is invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tlbi {
    /// All of all regimes.
    Everything,
    /// A regime; of EL1&0 what this VMID has, or all of them.
    All(Regime, Option<u16>),
    /// What is of an ASID and not global.
    Asid(Regime, u16, u16),
    /// An address, with the VMID and, unless it is for all, the ASID.
    Address(Regime, u16, Option<u16>, u64),
}

impl Cpu {
    /// Invalidates on this vCPU.
    pub(crate) fn invalidate(&mut self, what: Tlbi) {
        let tlb = &mut self.tlb;
        match what {
            Tlbi::Everything => tlb.drop_all(|_, _| true),
            Tlbi::All(regime, vmid) => tlb.drop_all(|context, _| {
                context.regime == regime && vmid.is_none_or(|vmid| vmid == context.vmid)
            }),
            Tlbi::Asid(regime, vmid, asid) => tlb.drop_all(|context, global| {
                !global && (context.regime, context.vmid, context.asid) == (regime, vmid, asid)
            }),
            Tlbi::Address(regime, vmid, asid, address) => tlb.drop_address(address, |context, global| {
                (context.regime, context.vmid) == (regime, vmid)
                    && (global || asid.is_none_or(|asid| asid == context.asid))
            }),
        }
    }

    /// TLBI with the fields of the SYS instruction, on all vCPUs if `shared`. None if there is no such operation.
    pub(crate) fn tlbi(&mut self, op1: u32, crm: u32, op2: u32, operand: u64) -> Option<()> {
        let host = self.e2h() && self.tge();
        let at_el2 = self.s.pstate.el == satori_arm_state::El::Two;
        let own = if host && at_el2 { Regime::El20 } else { Regime::El10 };
        let el2 = if self.e2h() { Regime::El20 } else { Regime::El2 };
        let vmid = if own == Regime::El10 { self.vmid() } else { 0 };
        let address = ((operand << 20) as i64 >> 8) as u64 & !0xfff;
        // TTL is in bits 47:44 of the operand, and the address's sign of 56 bits above it.
        let asid = (operand >> 48) as u16;
        let what = match (op1, crm, op2) {
            (0, 3 | 7, 0) => Tlbi::All(own, Some(vmid)),
            (0, 3 | 7, 1 | 5) => Tlbi::Address(own, vmid, Some(asid), address),
            (0, 3 | 7, 2) => Tlbi::Asid(own, vmid, asid),
            (0, 3 | 7, 3 | 7) => Tlbi::Address(own, vmid, None, address),
            (4, 3 | 7, 0) => Tlbi::All(el2, None),
            (4, 3 | 7, 1 | 5) => Tlbi::Address(el2, 0, self.e2h().then_some(asid), address),
            (4, 3 | 7, 4) => Tlbi::All(Regime::El10, None),
            (4, 3 | 7, 6) => Tlbi::All(Regime::El10, Some(self.vmid())),
            // By intermediate address: entries hold both stages, so all of the VMID go.
            (4, 0 | 4, 1 | 5) => Tlbi::All(Regime::El10, Some(self.vmid())),
            _ => return None,
        };
        let shared = crm < 4 || (self.hcr() & crate::cpu::hcr::FB != 0 && !at_el2);
        match shared {
            true => self.broadcast(what),
            false => self.invalidate(what),
        }
        Some(())
    }
}
