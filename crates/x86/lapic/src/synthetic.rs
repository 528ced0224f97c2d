//! The registers that the Hyper-V interface also gives as MSRs, in both modes (TLFS, "Local APIC
//! MSR Accesses").

use satori_defs::apic;
use satori_defs::hyperv::msr;
use satori_defs::msr::{Gp, X2APIC_BASE};

use crate::local::{Lapic, Mode};

/// The destination in the ICR's upper half, in xAPIC mode.
const XAPIC_DESTINATION: u32 = 0xff << 24;

impl Lapic {
    /// RDMSR of EOI, ICR or TPR of the Hyper-V interface.
    pub fn synthetic_read(&self, register: u32) -> Result<u64, Gp> {
        match register {
            _ if self.mode() == Mode::Disabled => Err(Gp),
            msr::ICR => Ok(self.icr()),
            msr::TPR => Ok(self.tpr().into()),
            // EOI is write-only.
            _ => Err(Gp),
        }
    }

    /// WRMSR of EOI, ICR or TPR of the Hyper-V interface. Returns what [`Lapic::eoi`] returns.
    ///
    /// ICR has the destination where the mode has it, in \[63:56\] or \[63:32\]. Of what is
    /// reserved, only \[63:32\] of EOI and TPR are refused, as KVM does.
    pub fn synthetic_write(&mut self, register: u32, value: u64, tsc: u64) -> Result<Option<u8>, Gp> {
        let (low, high) = (value as u32, (value >> 32) as u32);
        match register {
            _ if self.mode() == Mode::Disabled => return Err(Gp),
            msr::ICR if self.mode() == Mode::X2apic => {
                return self.msr_write(X2APIC_BASE + u32::from(apic::ICR >> 4), value, tsc);
            }
            msr::ICR => self.write_icr(low, high & XAPIC_DESTINATION, high >> 24),
            _ if high != 0 => return Err(Gp),
            msr::EOI => return Ok(self.eoi()),
            msr::TPR => self.set_tpr(low as u8),
            _ => return Err(Gp),
        }
        Ok(None)
    }
}
