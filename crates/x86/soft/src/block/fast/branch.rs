//! Near branches, calls and returns.

use satori_state::reg;

use super::parts::attempt;
use crate::block::op::{BLOCK_RIP, Flow, Op, Run};
use crate::cpu::Cpu;
use crate::mmu::canonical;

/// Jcc; `imm` is the target's distance from the block's address.
fn conditional<const C: u8>(cpu: &mut Cpu, op: &Op) -> Flow {
    let target = cpu.state.gpr[BLOCK_RIP].wrapping_add(op.imm);
    let next = cpu.after(op);
    let taken = cpu.flags.condition(C);
    cpu.go(if taken { target } else { next })
}

/// Jcc by its condition.
pub(super) fn conditional_of(condition: u8) -> Run {
    macro_rules! pick {
        ($($c:literal)*) => {
            match condition {
                $($c => conditional::<$c> as Run,)*
                _ => conditional::<15>,
            }
        };
    }
    pick!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
}

/// JMP rel.
pub(super) fn jump(cpu: &mut Cpu, op: &Op) -> Flow {
    cpu.go(cpu.state.gpr[BLOCK_RIP].wrapping_add(op.imm))
}

#[inline(always)]
fn call_to(cpu: &mut Cpu, op: &Op, target: u64) -> Flow {
    if !canonical(target) {
        return attempt!(cpu, op, cpu.refuse_branch());
    }
    let sp = cpu.state.gpr[reg::RSP].wrapping_sub(8);
    attempt!(cpu, op, cpu.write(sp, cpu.after(op)));
    cpu.state.gpr[reg::RSP] = sp;
    cpu.go(target)
}

/// CALL rel.
pub(super) fn call(cpu: &mut Cpu, op: &Op) -> Flow {
    call_to(cpu, op, cpu.state.gpr[BLOCK_RIP].wrapping_add(op.imm))
}

/// CALL r64.
pub(super) fn call_reg(cpu: &mut Cpu, op: &Op) -> Flow {
    call_to(cpu, op, cpu.slot(op.a))
}

/// CALL m.
pub(super) fn call_mem(cpu: &mut Cpu, op: &Op) -> Flow {
    let target = attempt!(cpu, op, cpu.read::<u64>(cpu.address(op)));
    call_to(cpu, op, target)
}

/// JMP r64.
pub(super) fn jump_reg(cpu: &mut Cpu, op: &Op) -> Flow {
    let target = cpu.slot(op.a);
    if !canonical(target) {
        return attempt!(cpu, op, cpu.refuse_branch());
    }
    cpu.go(target)
}

/// JMP m.
pub(super) fn jump_mem(cpu: &mut Cpu, op: &Op) -> Flow {
    let target = attempt!(cpu, op, cpu.read::<u64>(cpu.address(op)));
    if !canonical(target) {
        return attempt!(cpu, op, cpu.refuse_branch());
    }
    cpu.go(target)
}

/// RET and RET imm16.
pub(super) fn ret(cpu: &mut Cpu, op: &Op) -> Flow {
    let sp = cpu.state.gpr[reg::RSP];
    let target = attempt!(cpu, op, cpu.read::<u64>(sp));
    if !canonical(target) {
        return attempt!(cpu, op, cpu.refuse_branch());
    }
    cpu.state.gpr[reg::RSP] = sp.wrapping_add(8).wrapping_add(op.imm);
    cpu.go(target)
}
