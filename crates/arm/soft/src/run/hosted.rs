//! Self-hosted debug: software step, breakpoints and watchpoints (Arm ARM, D2).
//!
//! While one of them could happen at the level that executes ([`Hosted::armed`]), the interpreter executes one instruction at a
//! time, and looks here before it and at each access. Breakpoints match addresses; those linked with a context never match.

use satori_arm_state::{El, Pstate, Sys};

use crate::cpu::{Cpu, Stop};
use crate::exception::{Syndrome, ec};
use crate::mmu::{Access, MODES};

/// MDSCR_EL1: SS, KDE, MDE.
const SS: u64 = 1;
const KDE: u64 = 1 << 13;
const MDE: u64 = 1 << 15;
/// ESR_ELx.ISS of a debug exception: the fault status, and of a step that it followed an instruction.
const DEBUG: u32 = 0x22;
const STEPPED: u32 = 1 << 24;
const WRITES: u32 = 1 << 6;
/// OSLSR_EL1.OSLK.
const LOCKED: u64 = 2;
/// What of an address is compared: its sign is bit 48.
const ADDRESS: u64 = (1 << 49) - 1;

/// Value and control, of six breakpoints and four watchpoints (ID_AA64DFR0_EL1).
const BREAKPOINTS: [(Sys, Sys); 6] = [
    (Sys::DBGBVR0_EL1, Sys::DBGBCR0_EL1),
    (Sys::DBGBVR1_EL1, Sys::DBGBCR1_EL1),
    (Sys::DBGBVR2_EL1, Sys::DBGBCR2_EL1),
    (Sys::DBGBVR3_EL1, Sys::DBGBCR3_EL1),
    (Sys::DBGBVR4_EL1, Sys::DBGBCR4_EL1),
    (Sys::DBGBVR5_EL1, Sys::DBGBCR5_EL1),
];
const WATCHPOINTS: [(Sys, Sys); 4] = [
    (Sys::DBGWVR0_EL1, Sys::DBGWCR0_EL1),
    (Sys::DBGWVR1_EL1, Sys::DBGWCR1_EL1),
    (Sys::DBGWVR2_EL1, Sys::DBGWCR2_EL1),
    (Sys::DBGWVR3_EL1, Sys::DBGWCR3_EL1),
];

/// What of it can happen now, worked out by [`Cpu::synchronise`], and how far a step is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hosted {
    /// Software step is active; PSTATE.SS says whether an instruction is still to be executed.
    step: bool,
    breakpoints: bool,
    pub watchpoints: bool,
    /// The instruction that executes is the one of a step.
    stepping: bool,
    /// It was executed, and nothing came since.
    stepped: bool,
}

impl Hosted {
    pub(crate) fn armed(&self) -> bool {
        self.step || self.breakpoints || self.watchpoints
    }
}

/// Whether a control register's SSC, HMC and PMC or PAC permit a match at `el`.
fn level_matches(control: u64, el: El) -> bool {
    let (security, higher, levels) = (control >> 14 & 3, control >> 13 & 1 != 0, control >> 1 & 3);
    let own = match el {
        El::Zero => levels & 2 != 0,
        El::One => levels & 1 != 0,
        El::Two => security == 3 || (higher && (security, levels) != (2, 0)),
    };
    // There is no secure state.
    security != 2 && own
}

/// Whether a byte at `address` is watched.
fn byte_matches(value: u64, control: u64, address: u64) -> bool {
    let (mask, bytes) = (control >> 24 & 31, control >> 5 & 0xff);
    let least = if value & 4 != 0 { 2 } else { 3 };
    let selected = bytes >> (address & ((1 << least) - 1)) & 1 != 0;
    let ignored = if mask == 0 { least } else { mask };
    selected && ((value ^ address) & ADDRESS) >> ignored == 0
}

impl Cpu {
    /// MDCR_EL2.TDE: debug exceptions go to EL2.
    pub(crate) fn debug_to_el2(&self) -> bool {
        self.offered.el2 && (self.s.get(Sys::MDCR_EL2) >> 8 & 1 != 0 || self.tge())
    }

    /// Whether step, breakpoint and watchpoint exceptions are enabled for code at `el` with these masks.
    fn debug_enabled(&self, el: El, daif: u32) -> bool {
        if self.s.get(Sys::OSLSR_EL1) & LOCKED != 0 {
            return false;
        }
        match (self.debug_to_el2(), el) {
            (true, El::Two) | (false, El::One) => {
                self.s.get(Sys::MDSCR_EL1) & KDE != 0 && daif & Pstate::D == 0
            }
            (false, El::Two) => false,
            (true, _) | (false, El::Zero) => true,
        }
    }

    /// Works out what can happen at the level that executes.
    #[inline]
    pub(crate) fn arm_debug(&mut self) {
        let control = self.s.get(Sys::MDSCR_EL1);
        let Hosted { stepping, stepped, .. } = self.hosted;
        self.hosted = Hosted { stepping, stepped, ..Hosted::default() };
        if control & (SS | MDE) != 0 && self.debug_enabled(self.s.pstate.el, self.s.pstate.daif) {
            let any =
                |of: &[(Sys, Sys)]| control & MDE != 0 && of.iter().any(|own| self.s.get(own.1) & 1 != 0);
            let (breakpoints, watchpoints) = (any(&BREAKPOINTS), any(&WATCHPOINTS));
            self.hosted = Hosted { step: control & SS != 0, breakpoints, watchpoints, stepping, stepped };
        }
    }

    /// PSTATE.SS behind an exception return to `to`, which SPSR_ELx described.
    pub(crate) fn step_after_return(&self, to: &Pstate) -> bool {
        let here = self.debug_enabled(self.s.pstate.el, self.s.pstate.daif);
        to.ss && self.s.get(Sys::MDSCR_EL1) & SS != 0 && !here && self.debug_enabled(to.el, to.daif)
    }

    /// SPSR_ELx.SS of an exception that is to be taken, with this address to return to: an instruction that is to be
    /// executed again is still to be stepped.
    pub(crate) fn step_at_exception(&mut self, back: u64) -> bool {
        self.hosted.stepped = false;
        self.s.pstate.ss || (self.hosted.stepping && back == self.s.pc)
    }

    fn debug_exception(&mut self, syndrome: Syndrome) -> Stop {
        let syndrome = if self.debug_to_el2() { syndrome.to_el2() } else { syndrome };
        self.raise(syndrome)
    }

    fn breakpoint_here(&self) -> bool {
        BREAKPOINTS.iter().any(|&(value, control)| {
            let (value, control) = (self.s.get(value), self.s.get(control));
            // Enabled, and of the kind that matches an address without a context.
            control & 1 != 0
                && control >> 20 & 15 == 0
                && level_matches(control, self.s.pstate.el)
                && ((value ^ self.s.pc) & ADDRESS) >> 2 == 0
        })
    }

    /// What comes in place of the instruction at the program counter.
    fn before_instruction(&mut self) -> Option<Stop> {
        if self.hosted.step && !self.s.pstate.ss {
            let iss = DEBUG | if self.hosted.stepped { STEPPED } else { 0 };
            return Some(self.debug_exception(Syndrome::new(ec::STEP, iss)));
        }
        if self.hosted.breakpoints && self.breakpoint_here() {
            // An abort of the fetch comes first.
            return Some(match self.fetch() {
                Ok(_) => self.debug_exception(Syndrome::new(ec::BREAKPOINT, DEBUG)),
                Err(stop) => stop,
            });
        }
        None
    }

    /// Executes one instruction, as something of self-hosted debug could happen.
    pub(super) fn execute_debugged(&mut self) -> Option<Stop> {
        if let Some(stop) = self.before_instruction() {
            return Some(self.counted(stop));
        }
        let stepping = self.hosted.step;
        if stepping {
            (self.hosted.stepping, self.s.pstate.ss) = (true, false);
        }
        let stop = self.execute();
        self.hosted.stepping = false;
        match stop {
            // It asks, and is executed again.
            Some(Stop::Ask) if stepping => self.s.pstate.ss = true,
            None | Some(Stop::Synchronise | Stop::Leave) if stepping => self.hosted.stepped = true,
            _ => {}
        }
        stop
    }

    /// Takes the exception of a watchpoint on one of `len` bytes at `address`, if there is one.
    #[cold]
    #[inline(never)]
    pub(crate) fn watch(&mut self, mode: usize, address: u64, len: u64, write: bool) -> Result<(), Stop> {
        let el = if MODES[mode].privileged { self.s.pstate.el } else { El::Zero };
        let found = WATCHPOINTS.iter().any(|&(value, control)| {
            let (value, control) = (self.s.get(value), self.s.get(control));
            control & 1 != 0
                && control >> 3 & (1 << u32::from(write)) != 0
                && level_matches(control, el)
                && (0..len).any(|byte| byte_matches(value, control, address.wrapping_add(byte)))
        });
        if !found {
            return Ok(());
        }
        let access = if write { Access::Write } else { Access::Read };
        // A fault of the translation comes first.
        if let Err(fault) = self.lookup(mode, address, access) {
            return Err(self.abort(address, access, fault));
        }
        let iss = DEBUG | if write { WRITES } else { 0 };
        Err(self.debug_exception(Syndrome::new(ec::WATCHPOINT, iss).at(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_the_control() {
        let user = 2 << 1;
        let kernel = 1 << 1;
        assert!(level_matches(user, El::Zero) && !level_matches(user, El::One));
        assert!(level_matches(kernel, El::One) && !level_matches(kernel, El::Zero));
        assert!(!level_matches(kernel | user, El::Two) && level_matches(kernel | 1 << 13, El::Two));
        assert!(level_matches(3 << 14, El::Two) && !level_matches(2 << 14 | user, El::Zero));
    }

    #[test]
    fn watched_are_the_selected_bytes_or_a_power_of_two() {
        let watched =
            |value, control| (0..32).filter(|&at| byte_matches(value, control, at)).collect::<Vec<_>>();
        assert_eq!(watched(8, 0xff << 5), (8..16).collect::<Vec<_>>());
        assert_eq!(watched(12, 0x3 << 5), [12, 13], "of a word");
        assert_eq!(watched(8, 0x81 << 5), [8, 15]);
        assert_eq!(watched(16, 0xff << 5 | 4 << 24), (16..32).collect::<Vec<_>>());
        let kernel = 0xffff_8000_0000_0008;
        assert!(
            byte_matches(kernel, 0xff << 5, kernel | 1) && !byte_matches(kernel, 0xff << 5, 0x8000_0000_0009)
        );
    }
}
