//! The registers as MSRs, in x2APIC mode (SDM 11.12.1).

use satori_defs::apic::{self, icr, lvt, svr};
use satori_defs::msr::{Gp, X2APIC_BASE, X2APIC_LAST};

use crate::local::{Lapic, Mode, lvt_reserved};

/// ICR bits that software may set in x2APIC mode; delivery status is gone.
const ICR_DEFINED: u32 = lvt::VECTOR | lvt::MODE | icr::LOGICAL | icr::ASSERT | lvt::LEVEL | icr::SHORTHAND;

impl Lapic {
    fn x2apic_offset(&self, msr: u32) -> Result<u16, Gp> {
        let ours = (X2APIC_BASE..=X2APIC_LAST).contains(&msr) && self.mode() == Mode::X2apic;
        // 256 registers, 16 bytes apart in the page.
        if ours { Ok(((msr - X2APIC_BASE) as u16) << 4) } else { Err(Gp) }
    }

    /// RDMSR of 0x800 to 0x8ff.
    pub fn msr_read(&mut self, msr: u32, tsc: u64) -> Result<u64, Gp> {
        match self.x2apic_offset(msr)? {
            apic::ICR => Ok(self.icr()),
            // These do not exist, or are write-only.
            apic::DFR | apic::ICR_HIGH | apic::APR | apic::EOI | apic::SELF_IPI => Err(Gp),
            offset if exists(offset) => Ok(self.read(offset, tsc).into()),
            _ => Err(Gp),
        }
    }

    /// WRMSR of 0x800 to 0x8ff. Returns what [`Lapic::eoi`] returns.
    pub fn msr_write(&mut self, msr: u32, value: u64, tsc: u64) -> Result<Option<u8>, Gp> {
        let offset = self.x2apic_offset(msr)?;
        let low = value as u32;
        if offset == apic::ICR {
            if low & !(ICR_DEFINED | lvt::STATUS) != 0 {
                return Err(Gp);
            }
            let destination = (value >> 32) as u32;
            self.write_icr(low, destination, destination);
            return Ok(None);
        }
        let reserved = match offset {
            apic::EOI | apic::ESR => u32::MAX,
            apic::TPR | apic::SELF_IPI => !0xff,
            apic::SVR => !(svr::ENABLE | svr::FOCUS | 0xff),
            apic::LVT_TIMER..=apic::LVT_ERROR => lvt_reserved(offset),
            apic::TIMER_INITIAL => 0,
            apic::TIMER_DIVIDE => !0b1011,
            _ => return Err(Gp),
        };
        if value >> 32 != 0 || low & reserved != 0 {
            return Err(Gp);
        }
        match offset {
            apic::EOI => return Ok(self.eoi()),
            apic::SELF_IPI => self.self_ipi(low as u8),
            _ => {
                self.write(offset, low, tsc);
            }
        }
        Ok(None)
    }
}

fn exists(offset: u16) -> bool {
    matches!(
        offset,
        apic::ID
            | apic::VERSION
            | apic::TPR
            | apic::PPR
            | apic::LDR
            | apic::SVR
            | apic::ISR..=apic::ESR
            | apic::LVT_TIMER..=apic::TIMER_CURRENT
            | apic::TIMER_DIVIDE
    )
}
