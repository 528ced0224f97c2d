//! The decoded form of an instruction: small, and executed by one indirect call.

use std::cell::Cell;

use iced_x86::Instruction;
use satori_defs::x86::vector;
use satori_state::reg;

use crate::cpu::{Cpu, Handler, Stop};

/// What comes after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flow {
    /// The next operation of the block.
    Next,
    /// The block is done; `state.rip` says where to go on.
    Jump,
    /// The block was overwritten under way; `state.rip` says where to go on.
    Stale,
    /// The operation did nothing and wants its generic implementation; `state.rip` is its
    /// address.
    Generic,
    /// The operation raised an exception; `state.rip` is its address.
    Fault,
    /// The operation needs the machine; `state.rip` is its address.
    Exit,
}

/// The implementation of an operation.
pub(super) type Run = fn(&mut Cpu, &Op) -> Flow;

/// Slot of [`satori_state::CpuState::gpr`] that holds the current block's address, the base of
/// RIP-relative operands.
pub const BLOCK_RIP: usize = reg::SPARE;

/// A decoded instruction, or two that were fused. Which fields mean something depends on `run`.
///
/// Nothing in it depends on where the block's page is mapped: addresses are relative to the
/// block.
#[repr(C)]
pub struct Op {
    /// What executes it.
    pub run: Cell<Run>,
    /// Immediate, branch distance from the block's address, or pointer to a [`Generic`].
    pub imm: u64,
    /// Displacement of the memory operand.
    pub disp: i32,
    /// Base register slot.
    pub base: u8,
    /// Index register slot.
    pub index: u8,
    /// Log2 of the index scale.
    pub shift: u8,
    /// Segment whose base is added; slot 0 adds nothing.
    pub segment: u8,
    /// First register operand's slot.
    pub a: u8,
    /// Second register operand's slot.
    pub b: u8,
    /// Offset of the instruction from the block's address.
    pub offset: u8,
    /// Bytes of the instruction (or of both, if fused).
    pub len: u8,
    /// Instructions that this operation stands for.
    pub count: u8,
    /// Condition code.
    pub condition: u8,
    /// Instructions of the block before this operation's.
    pub before: u8,
}

const _: () = assert!(size_of::<Op>() == 32, "two operations fill a cache line");

/// An instruction executed by its generic implementation.
pub(super) struct Generic {
    pub handler: Handler,
    pub insn: Instruction,
}

impl Op {
    /// An operation without operands.
    pub fn new(run: Run, offset: u8, len: u8) -> Self {
        Op {
            run: Cell::new(run),
            imm: 0,
            disp: 0,
            base: reg::ZERO as u8,
            index: reg::ZERO as u8,
            shift: 0,
            segment: 0,
            a: 0,
            b: 0,
            offset,
            len,
            count: 1,
            condition: 0,
            before: 0,
        }
    }
}

impl Cpu {
    /// Everything before `op` was retired, and RIP is its instruction's.
    #[inline(always)]
    fn arrive_at(&mut self, op: &Op) {
        self.state.rip = self.state.gpr[BLOCK_RIP].wrapping_add(op.offset.into());
        self.decoded.before = op.before.into();
    }

    /// Ends a block at `op` because of `stop`.
    #[cold]
    #[inline(never)]
    pub fn stop_at(&mut self, op: &Op, stop: Stop) -> Flow {
        self.arrive_at(op);
        match stop {
            // Which exception an address that is not canonical raises depends on its segment;
            // the generic implementation knows.
            Stop::Fault if self.pending.fault.is_some_and(|fault| fault.vector == vector::GP) => {
                self.pending.fault = None;
                Flow::Generic
            }
            Stop::Fault => Flow::Fault,
            Stop::Exit => Flow::Exit,
            Stop::Alone => Flow::Generic,
        }
    }
}

/// Runs a generic instruction in the middle of a block.
pub(super) fn generic(cpu: &mut Cpu, op: &Op) -> Flow {
    // SAFETY: decoding stored a pointer to a Generic that the block owns.
    let generic = unsafe { &*(op.imm as *const Generic) };
    cpu.arrive_at(op);
    cpu.begin();
    match (generic.handler)(cpu, &generic.insn) {
        Ok(()) => Flow::Next,
        Err(Stop::Fault) => Flow::Fault,
        Err(Stop::Exit) => Flow::Exit,
        Err(Stop::Alone) => Flow::Generic,
    }
}

/// Runs a generic instruction that ends its block.
pub(super) fn generic_last(cpu: &mut Cpu, op: &Op) -> Flow {
    // SAFETY: decoding stored a pointer to a Generic that the block owns.
    let generic = unsafe { &*(op.imm as *const Generic) };
    cpu.arrive_at(op);
    cpu.next_rip = cpu.next_ip(&generic.insn);
    cpu.begin();
    match (generic.handler)(cpu, &generic.insn) {
        Ok(()) => {
            cpu.state.rip = cpu.next_rip;
            Flow::Jump
        }
        Err(Stop::Fault) => Flow::Fault,
        Err(Stop::Exit) => Flow::Exit,
        Err(Stop::Alone) => Flow::Generic,
    }
}

/// Stands behind the last instruction of a block that ends without a branch.
pub(super) fn fall_through(cpu: &mut Cpu, op: &Op) -> Flow {
    cpu.state.rip = cpu.state.gpr[BLOCK_RIP].wrapping_add(op.offset.into());
    if !cpu.derived.code64 {
        cpu.state.rip &= 0xffff_ffff;
    }
    Flow::Jump
}

/// Stands in every place of a block that was overwritten while it ran.
pub(super) fn stale(cpu: &mut Cpu, op: &Op) -> Flow {
    fall_through(cpu, op);
    cpu.decoded.before = op.before.into();
    Flow::Stale
}
