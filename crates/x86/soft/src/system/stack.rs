//! The stack that a gate or a return switches to, before it is the current one.

use satori_defs::x86::{cr0, vector};
use satori_engine::Exception;
use satori_state::{Segment, reg};

use super::descriptor::selector_fault;
use crate::cpu::{Cpu, Exec};
use crate::mmu::{Mode, canonical};

/// A stack under construction: what is pushed is in memory, but RSP is still the old one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    /// Contents of SS to be.
    pub segment: Segment,
    /// Stack pointer.
    pub sp: u64,
    /// Bits of the stack pointer in use.
    mask: u64,
    /// Code at the target is 64-bit: no limits.
    long: bool,
    /// Whose rights the pushes have.
    mode: Mode,
    /// What a push outside the segment raises.
    refusal: Exception,
}

impl Stack {
    /// A stack in 64-bit mode for code at privilege level `cpl`.
    pub(super) fn long(segment: Segment, sp: u64, cpl: u8, ext: u32) -> Self {
        let refusal = Exception::with_code(vector::SS, ext);
        Stack { segment, sp, mask: u64::MAX, long: true, mode: mode_of(cpl), refusal }
    }

    /// A stack with a segment, for code at privilege level `cpl`. `inner` tells that it comes from
    /// the TSS: its faults then name its selector (SDM 6.12.1).
    pub(super) fn legacy(segment: Segment, sp: u64, cpl: u8, ext: u32, inner: bool) -> Self {
        let mask = if segment.big() { 0xffff_ffff } else { 0xffff };
        let refusal = if inner {
            selector_fault(vector::SS, segment.selector, ext)
        } else {
            Exception::with_code(vector::SS, ext)
        };
        Stack { segment, sp: sp & mask, mask, long: false, mode: mode_of(cpl), refusal }
    }

    /// Linear address of `size` bytes at `sp`, if they lie within the stack.
    fn linear(&self, cpu: &Cpu, sp: u64, size: u64) -> Option<u64> {
        if self.long {
            return (canonical(sp) && canonical(sp.wrapping_add(size - 1))).then_some(sp);
        }
        let last = sp + (size - 1);
        let limit = u64::from(self.segment.limit);
        let within = if self.segment.rights & 4 != 0 && cpu.state.cr0 & cr0::PE != 0 {
            sp > limit && last <= self.mask
        } else {
            last <= limit
        };
        within.then(|| self.segment.base.wrapping_add(sp) & 0xffff_ffff)
    }

    /// Refuses a stack without room for `count` pushes of `size` bytes.
    pub(super) fn require(&self, cpu: &mut Cpu, count: u64, size: u32) -> Exec<()> {
        let size = u64::from(size);
        let room = |i| self.linear(cpu, self.sp.wrapping_sub(i * size) & self.mask, size).is_some();
        if (1..=count).all(room) { Ok(()) } else { Err(cpu.raise(self.refusal)) }
    }

    /// Pushes the low `size` (2, 4 or 8) bytes of `value`.
    pub(super) fn push(&mut self, cpu: &mut Cpu, size: u32, value: u64) -> Exec<()> {
        let sp = self.sp.wrapping_sub(size.into()) & self.mask;
        let Some(linear) = self.linear(cpu, sp, size.into()) else { return Err(cpu.raise(self.refusal)) };
        let mode = std::mem::replace(&mut cpu.derived.mode, self.mode);
        let outcome = cpu.write_sized(linear, size, value);
        cpu.derived.mode = mode;
        outcome?;
        self.sp = sp;
        Ok(())
    }

    /// The whole of RSP once this stack is the current one.
    pub(super) fn rsp(&self, cpu: &Cpu) -> u64 {
        if self.mask == 0xffff { cpu.state.gpr[reg::RSP] & !0xffff | self.sp } else { self.sp }
    }
}

fn mode_of(cpl: u8) -> Mode {
    if cpl == 3 { Mode::User } else { Mode::Supervisor }
}

impl Cpu {
    /// Reads `size` bytes of the current stack, `offset` bytes above its pointer, popping nothing.
    pub(super) fn peek(&mut self, offset: u64, size: u32) -> Exec<u64> {
        let (sp, mask) = self.stack_pointer();
        let linear = self.stack_linear(sp.wrapping_add(offset) & mask, size)?;
        self.read_sized(linear, size)
    }
}
