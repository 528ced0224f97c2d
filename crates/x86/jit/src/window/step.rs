//! What instructions do that matters to windows: which memory they access through which registers, and what those
//! are then.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use satori_state::reg;

use crate::copy::is_immediate;
use crate::memory::Address;
use satori_soft::code_mode::BITS_64;

/// What accesses through one window have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) base: Option<u8>,
    pub(super) index: Option<(u8, u8)>,
    pub(super) segment: Option<u8>,
    /// Counted from the code's address.
    pub(super) relative: bool,
}

impl Key {
    pub(super) fn of(address: &Address) -> Option<Self> {
        // Whether an access reaches beyond the end of a segment is looked at for each.
        let looked_at = address.segment.is_some() && (address.base.is_some() || address.index.is_some());
        let wraps = address.short && (!address.narrow || looked_at);
        (!wraps && !address.computed).then_some(Key {
            base: address.base.map(|base| base as u8),
            index: address.index.map(|(index, shift)| (index as u8, shift)),
            segment: address.segment.map(|segment| segment as u8),
            relative: address.relative,
        })
    }

    /// Whether none of the registers in `changed` is in it.
    pub(super) fn stays(&self, changed: u16) -> bool {
        !self.loses(changed, changed)
    }

    /// Whether its base is in `bases`, or its index in `indices`.
    pub(super) fn loses(&self, bases: u16, indices: u16) -> bool {
        self.base.is_some_and(|base| bases & 1 << base != 0)
            || self.index.is_some_and(|(index, _)| indices & 1 << index != 0)
    }
}

/// An access that an instruction will make: displacements from the first byte to behind the last.
#[derive(Clone, Copy)]
pub(super) struct Use {
    pub(super) key: Key,
    pub(super) low: i64,
    pub(super) high: i64,
    pub(super) write: bool,
}

/// What one instruction does that matters to windows.
#[derive(Clone, Copy, Default)]
pub(crate) struct Step {
    uses: [Option<Use>; 2],
    /// General registers whose value is another one then, by number.
    pub(super) changes: u16,
    /// A register that a constant is added to.
    pub(super) shift: Option<(usize, i64)>,
    /// A register that a multiple of another one is added to; it is among those in `changes`.
    pub(super) sum: Option<Sum>,
}

/// `to` becomes itself plus `from` shifted by `shift`, or minus that.
#[derive(Clone, Copy)]
pub(super) struct Sum {
    pub(super) to: u8,
    pub(super) from: u8,
    pub(super) shift: u8,
    pub(super) minus: bool,
}

impl Step {
    pub(crate) fn of(
        info: &mut InstructionInfoFactory,
        insn: &Instruction,
        block_rip: u64,
        code_mode: u64,
    ) -> Self {
        let narrow = code_mode & BITS_64 == 0;
        let sum = if narrow { None } else { sum(insn) };
        let mut step = Step { shift: shift(insn, narrow), sum, ..Step::default() };
        let known = info.info(insn);
        for used in known.used_registers() {
            let r = used.register().full_register();
            let read = matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            if !read && r.is_gpr64() && step.shift.is_none_or(|(shifted, _)| shifted != r.number()) {
                step.changes |= 1 << r.number();
            }
        }
        for (used, place) in known.used_memory().iter().zip(&mut step.uses) {
            let stack = insn.is_stack_instruction() && used.base().full_register() == Register::RSP;
            let explicit = insn.op_kinds().any(|kind| kind == OpKind::Memory);
            let address = match used.base() {
                // What a push stores, unless its operand is there too.
                Register::RSP | Register::ESP if stack && (!explicit || used.access() == OpAccess::Write) => {
                    let disp = used.displacement() as i64;
                    Address::stack(code_mode, if narrow { i64::from(disp as i32) } else { disp })
                }
                _ if explicit => match Address::of(insn, block_rip, code_mode) {
                    Some(address) => address,
                    None => continue,
                },
                _ => continue,
            };
            let size = used.memory_size().size() as i64;
            let Some(key) = Key::of(&address).filter(|_| size != 0) else { continue };
            let write = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead);
            let Some(high) = address.disp.checked_add(size) else { continue };
            *place = Some(Use { key, low: address.disp, high, write });
        }
        step
    }

    /// The general registers whose value is another one then.
    pub(crate) fn registers(&self) -> u16 {
        self.changes | self.shift.map_or(0, |(register, _)| 1 << register)
    }

    /// The registers that all of `steps` change.
    pub(crate) fn changes(steps: &[Self]) -> u16 {
        steps.iter().fold(0, |all, step| all | step.registers())
    }

    pub(super) fn uses(&self) -> impl Iterator<Item = &Use> {
        self.uses.iter().flatten()
    }
}

/// What `insn` adds to a register, in code of 64 bits, if that is a multiple of another one.
fn sum(insn: &Instruction) -> Option<Sum> {
    let to = insn.op0_register();
    if insn.op0_kind() != OpKind::Register || !to.is_gpr64() {
        return None;
    }
    let (from, shift) = match insn.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub if insn.op1_kind() == OpKind::Register => (insn.op1_register(), 0),
        Mnemonic::Lea if insn.memory_displacement64() == 0 && insn.memory_base() == to => {
            (insn.memory_index(), insn.memory_index_scale().trailing_zeros() as u8)
        }
        Mnemonic::Lea if insn.memory_displacement64() == 0 && insn.memory_index_scale() == 1 => {
            (insn.memory_base(), if insn.memory_index() == to { 0 } else { return None })
        }
        _ => return None,
    };
    let minus = insn.mnemonic() == Mnemonic::Sub;
    (from.is_gpr64() && from != to).then(|| Sum {
        to: to.number() as u8,
        from: from.number() as u8,
        shift,
        minus,
    })
}

/// The register that `insn` adds a constant to, and the constant. In `narrow` code registers have 32 bits.
fn shift(insn: &Instruction, narrow: bool) -> Option<(usize, i64)> {
    let to = insn.op0_register();
    let whole = if narrow { to.is_gpr32() } else { to.is_gpr64() };
    let same = |amount: i64| {
        let amount = if narrow { i64::from(amount as i32) } else { amount };
        (insn.op0_kind() == OpKind::Register && whole).then_some((to.number(), amount))
    };
    match insn.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfd | Mnemonic::Pushfq | Mnemonic::Call | Mnemonic::Ret => {
            Some((reg::RSP, insn.stack_pointer_increment().into()))
        }
        Mnemonic::Pop if to.full_register() != Register::RSP && insn.op0_kind() == OpKind::Register => {
            Some((reg::RSP, insn.stack_pointer_increment().into()))
        }
        Mnemonic::Add if is_immediate(insn.op1_kind()) => same(insn.immediate(1) as i64),
        Mnemonic::Sub if is_immediate(insn.op1_kind()) => same((insn.immediate(1) as i64).wrapping_neg()),
        Mnemonic::Inc => same(1),
        Mnemonic::Dec => same(-1),
        Mnemonic::Lea if insn.memory_base() == to && insn.memory_index() == Register::None => {
            same(insn.memory_displacement64() as i64)
        }
        _ => None,
    }
}
