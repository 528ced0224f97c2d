//! What a guest sees of the registers that its hypervisor shares with it: guest/host masks and read shadows of CR0 and CR4
//! (SDM 24.6.6, 25.3), and the time-stamp counter (SDM 25.3, 25.6.5).

use satori_vmx::Field::{Cr0Mask, Cr0Shadow, Cr4Mask, Cr4Shadow, TscMultiplier, TscOffset};
use satori_vmx::check;
use satori_vmx::control::{proc, proc2};

use crate::cpu::Cpu;

impl Cpu {
    /// CR0 as MOV, SMSW and LMSW read it.
    pub fn seen_cr0(&self) -> u64 {
        if !self.vmx.guest {
            return self.state.cr0;
        }
        let (mask, shadow) = (self.vmx.vmcs.get(Cr0Mask), self.vmx.vmcs.get(Cr0Shadow));
        self.state.cr0 & !mask | shadow & mask
    }

    /// CR4 as MOV reads it.
    pub fn seen_cr4(&self) -> u64 {
        if !self.vmx.guest {
            return self.state.cr4;
        }
        let (mask, shadow) = (self.vmx.vmcs.get(Cr4Mask), self.vmx.vmcs.get(Cr4Shadow));
        self.state.cr4 & !mask | shadow & mask
    }

    /// What a load of CR0 with `value` writes: bits of the mask stay.
    pub fn owned_cr0(&self, value: u64) -> u64 {
        let mask = if self.vmx.guest { self.vmx.vmcs.get(Cr0Mask) } else { 0 };
        value & !mask | self.state.cr0 & mask
    }

    /// What a load of CR4 with `value` writes.
    pub fn owned_cr4(&self, value: u64) -> u64 {
        let mask = if self.vmx.guest { self.vmx.vmcs.get(Cr4Mask) } else { 0 };
        value & !mask | self.state.cr4 & mask
    }

    /// Whether VMX operation lets CR0 have `value` (SDM 23.8).
    pub fn vmx_allows_cr0(&self, value: u64) -> bool {
        !self.vmx.on || check::cr0(value, self.vmx.proc2 & proc2::UNRESTRICTED != 0)
    }

    /// Whether VMX operation lets CR4 have `value`.
    pub fn vmx_allows_cr4(&self, value: u64) -> bool {
        !self.vmx.on || check::cr4(value, u64::MAX)
    }

    /// The guest's time-stamp counter, of its host's.
    pub fn nested_tsc(&self, tsc: u64) -> u64 {
        if self.svm.guest {
            return self.svm_tsc(tsc);
        }
        if self.vmx.proc & proc::TSC_OFFSETTING == 0 {
            return tsc;
        }
        let vmcs = &self.vmx.vmcs;
        let scaled = if self.vmx.proc2 & proc2::TSC_SCALING != 0 {
            ((u128::from(tsc) * u128::from(vmcs.get(TscMultiplier))) >> 48) as u64
        } else {
            tsc
        };
        scaled.wrapping_add(vmcs.get(TscOffset))
    }
}
