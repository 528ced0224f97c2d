//! Hints, barriers and the system registers that kernels look at most. Each is counted where the interpreter counts it.

use std::mem::offset_of;

use satori_arm_isa::Op;
use satori_arm_soft::{Cpu, counter};
use satori_arm_state::{CpuState, Pstate, Sys};

use crate::asm::{Alu, Label, Rm, cc};
use crate::emit::{Emit, field};

const fn state(offset: usize) -> Rm {
    field(offset_of!(Cpu, s) + offset)
}

const fn process(offset: usize) -> Rm {
    state(offset_of!(CpuState, pstate) + offset)
}

impl Emit<'_> {
    /// Translates the instruction, if it is one of these.
    pub(crate) fn system(&mut self, op: Op) -> bool {
        match op {
            // YIELD, WFE, WFI, SEV and SEVL do something.
            Op::Hint if !(1..=5).contains(&self.bits(11, 5)) => {
                self.flags = self.flags_before;
                true
            }
            Op::Dmb => {
                self.count(counter::BARRIERS);
                // Of loads before others, and of stores, the host has that order anyway.
                if !matches!(self.bits(9, 8), 1 | 2) {
                    self.full_barrier();
                }
                true
            }
            Op::Mrs => self.read_register(),
            // DAIFSet: nothing that was pending is taken for it.
            Op::MsrImm if (self.bits(18, 16), self.bits(7, 5)) == (3, 6) => {
                let (cold, back) = self.or_step();
                self.above_programs(cold);
                let mask = (self.bits(11, 8) << 6) as i32;
                self.asm.alu_imm(false, Alu::Or, process(offset_of!(Pstate, daif)), mask);
                self.over(back);
                true
            }
            _ => false,
        }
    }

    /// ADD qword, 1
    fn count(&mut self, offset: usize) {
        self.asm.alu_imm(true, Alu::Add, field(offset), 1);
    }

    fn compare_byte(&mut self, place: Rm) {
        // CMP byte, 0
        self.asm.op8(&[0x80], 7, place);
        self.asm.bytes(&[0]);
    }

    /// Leaves for `cold` at EL0.
    fn above_programs(&mut self, cold: Label) {
        self.compare_byte(process(offset_of!(Pstate, el)));
        self.asm.jump_if(cc::E, cold);
    }

    /// MRS of the current task, and of thread pointers that neither trap nor mean another register anywhere.
    fn read_register(&mut self) -> bool {
        let encoding = self.bits(20, 5) as u16;
        let of = |sys: Sys| sys.row().encoding == encoding;
        let group = |sys: Sys| counter::reads(sys.group());
        let kept = |sys: Sys| state(offset_of!(CpuState, sys) + 8 * sys as usize);
        let (cold, back) = if of(Sys::SP_EL0) || of(Sys::TPIDR_EL1) || of(Sys::TPIDR_EL0) {
            self.or_step()
        } else {
            return false;
        };
        let (counted, from) = if of(Sys::SP_EL0) {
            self.above_programs(cold);
            self.compare_byte(process(offset_of!(Pstate, own_sp)));
            self.asm.jump_if(cc::E, cold);
            (group(Sys::SP_EL0), state(offset_of!(CpuState, sp)))
        } else if of(Sys::TPIDR_EL1) {
            self.above_programs(cold);
            (group(Sys::TPIDR_EL1), kept(Sys::TPIDR_EL1))
        } else {
            (group(Sys::TPIDR_EL0), kept(Sys::TPIDR_EL0))
        };
        self.count(counted);
        let to = self.target(self.r(0), &[]);
        self.asm.mov(true, to, from);
        self.put(self.r(0), to);
        self.over(back);
        true
    }
}
