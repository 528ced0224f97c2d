//! What specialised operations are made of: registers, addresses, memory.

use satori_engine::Exception;

use crate::block::op::{BLOCK_RIP, Flow, Op};
use crate::cpu::{Cpu, Exec};
use crate::flags::Int;

impl Cpu {
    /// A register by its slot.
    #[inline(always)]
    pub(super) fn slot(&self, slot: u8) -> u64 {
        debug_assert!(usize::from(slot) < self.state.gpr.len());
        // SAFETY: decoding stores numbers of registers and the two slots behind them only.
        unsafe { *self.state.gpr.get_unchecked(usize::from(slot)) }
    }

    #[inline(always)]
    fn slot_mut(&mut self, slot: u8) -> &mut u64 {
        debug_assert!(usize::from(slot) < 16);
        // SAFETY: decoding stores numbers of registers as destinations only.
        unsafe { self.state.gpr.get_unchecked_mut(usize::from(slot)) }
    }

    /// The low part of a register.
    #[inline(always)]
    pub(super) fn get<T: Int>(&self, slot: u8) -> T {
        T::from_u64(self.slot(slot))
    }

    /// Writes the low part of a register as the processor does: 32-bit values are
    /// zero-extended, smaller ones leave the rest alone.
    #[inline(always)]
    pub(super) fn set<T: Int>(&mut self, slot: u8, value: T) {
        let place = self.slot_mut(slot);
        *place = match T::BITS {
            8 => *place & !0xff | value.into(),
            16 => *place & !0xffff | value.into(),
            _ => value.into(),
        };
    }

    /// The linear address of an operation's memory operand.
    #[inline(always)]
    pub(super) fn address(&self, op: &Op) -> u64 {
        self.derived.segment_base[usize::from(op.segment & 7)].wrapping_add(self.offset_of(op))
    }

    /// The same without its segment.
    #[inline(always)]
    pub(super) fn offset_of(&self, op: &Op) -> u64 {
        self.slot(op.base)
            .wrapping_add(self.slot(op.index) << (op.shift & 3))
            .wrapping_add(op.disp as i64 as u64)
    }

    /// The address that follows an operation.
    #[inline(always)]
    pub(super) fn after(&self, op: &Op) -> u64 {
        self.state.gpr[BLOCK_RIP].wrapping_add(u64::from(op.offset) + u64::from(op.len))
    }

    /// Leaves the block for `rip`.
    #[inline(always)]
    pub(super) fn go(&mut self, rip: u64) -> Flow {
        self.state.rip = rip;
        Flow::Jump
    }

    /// Refuses a branch to an address that is not canonical.
    #[cold]
    pub(super) fn refuse_branch<T>(&mut self) -> Exec<T> {
        Err(self.raise(Exception::gp(0)))
    }
}

/// The value, or the end of the block because of the fault or exit that came instead.
macro_rules! attempt {
    ($cpu:ident, $op:ident, $outcome:expr) => {
        match $outcome {
            Ok(value) => value,
            Err(stop) => return $cpu.stop_at($op, stop),
        }
    };
}
pub(super) use attempt;
