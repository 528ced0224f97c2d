//! What executes each instruction of the table.

mod atomics;
mod branch;
mod crypto;
mod fp;
mod integer;
mod memory;
mod scalar;
mod simd;
mod structures;
mod system;

use satori_arm_isa::Op;

use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow, Stop};

/// What a handler returns.
pub(crate) type Done = Result<Flow, Stop>;

/// Place among `CpuState::x` where results for XZR go.
const SINK: u8 = 33;

/// Register 31 is zero.
const fn zero(register: u8) -> u8 {
    if register == 31 { satori_arm_state::ZERO as u8 } else { register }
}

/// What is written to register 31 is lost.
const fn sink(register: u8) -> u8 {
    if register == 31 { SINK } else { register }
}

/// Chooses what executes the instruction, and prepares its operands: register 31 reads as zero and is written in vain, unless the
/// family says that it is the stack pointer.
pub(crate) fn prepare(insn: &mut Insn, op: Option<Op>) -> Handler {
    let Some(op) = op else { return undefined };
    (insn.rn, insn.rm, insn.ra, insn.rd) = (zero(insn.rn), zero(insn.rm), zero(insn.ra), sink(insn.rd));
    let found = integer::handler(op, insn)
        .or_else(|| branch::handler(op, insn))
        .or_else(|| memory::handler(op, insn))
        .or_else(|| atomics::handler(op, insn))
        .or_else(|| system::handler(op, insn));
    if let Some(found) = found {
        return found;
    }
    insn.fp = true;
    structures::handler(op, insn)
        .or_else(|| scalar::handler(op, insn))
        .or_else(|| fp::handler(op, insn))
        .or_else(|| simd::handler(op, insn))
        .or_else(|| crypto::handler(op, insn))
        .unwrap_or(undefined)
}

fn undefined(cpu: &mut Cpu, _: &Insn) -> Done {
    Err(cpu.undefined())
}

impl Cpu {
    #[inline(always)]
    fn x(&self, register: u8) -> u64 {
        self.s.x[usize::from(register & 63)]
    }

    /// A register of 64 or, with the upper half as zeros, of 32 bits.
    #[inline(always)]
    fn r<const W: bool>(&self, register: u8) -> u64 {
        if W { self.x(register) } else { self.x(register) & 0xffff_ffff }
    }

    #[inline(always)]
    fn set_x(&mut self, register: u8, value: u64) {
        self.s.x[usize::from(register & 63)] = value;
    }

    #[inline(always)]
    fn set_r<const W: bool>(&mut self, register: u8, value: u64) {
        self.set_x(register, if W { value } else { value & 0xffff_ffff });
    }
}

/// The handler for 64 or 32 bits, by sf.
macro_rules! sized {
    ($insn:expr, $handler:ident) => {
        match $insn.bit(31) {
            true => $handler::<true> as $crate::code::Handler,
            false => $handler::<false>,
        }
    };
    ($insn:expr, $handler:ident::<$($argument:literal),+>) => {
        match $insn.bit(31) {
            true => $handler::<$($argument),+, true> as $crate::code::Handler,
            false => $handler::<$($argument),+, false>,
        }
    };
}
pub(crate) use sized;

#[cfg(test)]
mod tests {
    use super::*;
    use satori_arm_isa::ROWS;

    #[test]
    fn every_instruction_of_the_table_is_executed_by_something() {
        let mut missing = Vec::new();
        for row in ROWS {
            let word = row.sample(row.pattern.value).or_else(|| {
                let tries = (0..1_000_000_u32).map(|n| n.wrapping_mul(0x9e37_79b1));
                tries.filter_map(|random| row.sample(random)).next()
            });
            let insn = crate::code::decoded(word.expect("each row has words"), Some(row.op));
            let lost = insn.run.is_some_and(|run| std::ptr::fn_addr_eq(run, undefined as Handler));
            // UNDEFINED on purpose: no halting debug, no SYSL.
            let undefined = matches!(row.op, Op::Hlt | Op::Sysl);
            if lost && !undefined {
                missing.push(row.op);
            }
        }
        assert!(missing.is_empty(), "{missing:?}");
    }
}
