//! The register file.

use crate::{El, Pstate, Sys};

/// Place of the current stack pointer among [`CpuState::x`].
pub const SP: usize = 31;
/// Place among [`CpuState::x`] that is always zero: XZR, as it is read.
pub const ZERO: usize = 32;

/// Registers of a vCPU.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuState {
    /// X0 to X30, the current SP, and zero; the rest is scratch of an engine, whose instructions discard results there.
    pub x: [u64; 64],
    /// Stack pointers that are not current, by level. That of the current one is in `x` ([`SP`]).
    pub sp: [u64; 4],
    /// Address of the next instruction.
    pub pc: u64,
    /// Process state.
    pub pstate: Pstate,
    /// V0 to V31.
    pub v: [u128; 32],
    /// Floating-point control.
    pub fpcr: u32,
    /// Floating-point status.
    pub fpsr: u32,
    /// System registers that are kept as they were written, by [`Sys`].
    pub sys: [u64; Sys::COUNT],
    /// PSCI turned it off, or has not turned it on yet.
    pub off: bool,
}

impl CpuState {
    /// After reset, at `el` with everything masked. `index` is its number: affinity level 0 of MPIDR_EL1.
    pub fn reset(el: El, index: u32) -> Self {
        let mut state = CpuState {
            x: [0; 64],
            sp: [0; 4],
            pc: 0,
            pstate: Pstate::reset(el),
            v: [0; 32],
            fpcr: 0,
            fpsr: 0,
            sys: [0; Sys::COUNT],
            off: false,
        };
        for row in crate::REGISTERS {
            state.sys[row.sys as usize] = row.reset;
        }
        // Sixteen to a cluster: what one write of ICC_SGI1R_EL1 can reach.
        let mpidr = 1 << 31 | u64::from(index / 16) << 8 | u64::from(index % 16);
        state.sys[Sys::MPIDR_EL1 as usize] = mpidr;
        state.sys[Sys::VMPIDR_EL2 as usize] = mpidr;
        state.sys[Sys::VPIDR_EL2 as usize] = state.sys[Sys::MIDR_EL1 as usize];
        state
    }

    /// A system register.
    #[inline(always)]
    pub fn get(&self, sys: Sys) -> u64 {
        self.sys[sys as usize]
    }

    /// Changes a system register.
    #[inline(always)]
    pub fn set(&mut self, sys: Sys, value: u64) {
        self.sys[sys as usize] = value;
    }

    /// Changes level and stack pointer together, so that the current stack pointer is the right one.
    pub fn enter(&mut self, el: El, own_sp: bool) {
        self.sp[self.pstate.sp_index()] = self.x[SP];
        self.pstate.el = el;
        self.pstate.own_sp = own_sp;
        self.x[SP] = self.sp[self.pstate.sp_index()];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_has_a_stack_pointer_of_its_own() {
        let mut state = CpuState::reset(El::One, 17);
        assert_eq!(state.get(Sys::MPIDR_EL1), 0x8000_0101);
        state.x[SP] = 0x1000;
        state.enter(El::Zero, false);
        assert_eq!((state.x[SP], state.sp[1]), (0, 0x1000));
        state.x[SP] = 0x2000;
        state.enter(El::Two, true);
        state.enter(El::One, true);
        assert_eq!((state.x[SP], state.sp[0]), (0x1000, 0x2000));
        state.enter(El::One, false);
        assert_eq!(state.x[SP], 0x2000, "SPSel chooses SP_EL0");
    }
}
