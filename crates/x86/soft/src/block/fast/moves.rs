//! Moves, address calculation, extension, conditional moves and sets, the stack.

use satori_state::reg;

use super::parts::attempt;
use crate::block::op::{Flow, Op, Run};
use crate::cpu::Cpu;
use crate::flags::Int;

/// MOV r, r.
pub(super) fn reg_reg<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let value = cpu.get::<T>(op.b);
    cpu.set(op.a, value);
    Flow::Next
}

/// MOV r, imm.
pub(super) fn reg_imm<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    cpu.set(op.a, T::from_u64(op.imm));
    Flow::Next
}

/// MOV r, m.
pub(super) fn load<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let value = attempt!(cpu, op, cpu.read::<T>(cpu.address(op)));
    cpu.set(op.a, value);
    Flow::Next
}

/// MOV m, r.
pub(super) fn store<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    attempt!(cpu, op, cpu.write(cpu.address(op), cpu.get::<T>(op.a)));
    Flow::Next
}

/// MOV m, imm.
pub(super) fn store_imm<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    attempt!(cpu, op, cpu.write(cpu.address(op), T::from_u64(op.imm)));
    Flow::Next
}

/// LEA with a 32- or 64-bit result.
pub(super) fn lea<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    cpu.set(op.a, T::from_u64(cpu.offset_of(op)));
    Flow::Next
}

/// MOVZX and MOVSX between registers: `S` to `D`.
pub(super) fn extend_reg<S: Int, D: Int, const SIGNED: bool>(cpu: &mut Cpu, op: &Op) -> Flow {
    let value = cpu.get::<S>(op.b);
    cpu.set(op.a, D::from_u64(if SIGNED { value.sext() } else { value.into() }));
    Flow::Next
}

/// MOVZX and MOVSX from memory.
pub(super) fn extend_mem<S: Int, D: Int, const SIGNED: bool>(cpu: &mut Cpu, op: &Op) -> Flow {
    let value = attempt!(cpu, op, cpu.read::<S>(cpu.address(op)));
    cpu.set(op.a, D::from_u64(if SIGNED { value.sext() } else { value.into() }));
    Flow::Next
}

/// CMOVcc r, r.
pub(super) fn cmov_reg<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let value = if cpu.flags.condition(op.condition) { cpu.get::<T>(op.b) } else { cpu.get(op.a) };
    cpu.set(op.a, value);
    Flow::Next
}

/// CMOVcc r, m: the load happens in any case.
pub(super) fn cmov_mem<T: Int>(cpu: &mut Cpu, op: &Op) -> Flow {
    let loaded = attempt!(cpu, op, cpu.read::<T>(cpu.address(op)));
    let value = if cpu.flags.condition(op.condition) { loaded } else { cpu.get(op.a) };
    cpu.set(op.a, value);
    Flow::Next
}

/// SETcc r.
pub(super) fn set_reg(cpu: &mut Cpu, op: &Op) -> Flow {
    let holds = cpu.flags.condition(op.condition);
    cpu.set(op.a, u8::from(holds));
    Flow::Next
}

/// PUSH r64.
pub(super) fn push_reg(cpu: &mut Cpu, op: &Op) -> Flow {
    push(cpu, op, cpu.slot(op.a))
}

/// PUSH imm.
pub(super) fn push_imm(cpu: &mut Cpu, op: &Op) -> Flow {
    push(cpu, op, op.imm)
}

#[inline(always)]
fn push(cpu: &mut Cpu, op: &Op, value: u64) -> Flow {
    let sp = cpu.state.gpr[reg::RSP].wrapping_sub(8);
    attempt!(cpu, op, cpu.write(sp, value));
    cpu.state.gpr[reg::RSP] = sp;
    Flow::Next
}

/// PUSH m.
pub(super) fn push_mem(cpu: &mut Cpu, op: &Op) -> Flow {
    let value = attempt!(cpu, op, cpu.read::<u64>(cpu.address(op)));
    push(cpu, op, value)
}

/// POP r64.
pub(super) fn pop_reg(cpu: &mut Cpu, op: &Op) -> Flow {
    let sp = cpu.state.gpr[reg::RSP];
    let value = attempt!(cpu, op, cpu.read::<u64>(sp));
    cpu.state.gpr[reg::RSP] = sp.wrapping_add(8);
    cpu.set(op.a, value);
    Flow::Next
}

/// LEAVE.
pub(super) fn leave(cpu: &mut Cpu, op: &Op) -> Flow {
    let frame = cpu.state.gpr[reg::RBP];
    let value = attempt!(cpu, op, cpu.read::<u64>(frame));
    cpu.state.gpr[reg::RSP] = frame.wrapping_add(8);
    cpu.state.gpr[reg::RBP] = value;
    Flow::Next
}

/// NOP, ENDBR64.
pub(super) fn nop(_cpu: &mut Cpu, _op: &Op) -> Flow {
    Flow::Next
}

/// CDQE.
pub(super) fn cdqe(cpu: &mut Cpu, _op: &Op) -> Flow {
    cpu.state.gpr[reg::RAX] = cpu.state.gpr[reg::RAX] as i32 as i64 as u64;
    Flow::Next
}

/// CQO.
pub(super) fn cqo(cpu: &mut Cpu, _op: &Op) -> Flow {
    cpu.state.gpr[reg::RDX] = ((cpu.state.gpr[reg::RAX] as i64) >> 63) as u64;
    Flow::Next
}

/// CDQ.
pub(super) fn cdq(cpu: &mut Cpu, _op: &Op) -> Flow {
    cpu.state.gpr[reg::RDX] = ((cpu.state.gpr[reg::RAX] as i32) >> 31) as u32 as u64;
    Flow::Next
}

/// Picks a function generic over the operand size.
macro_rules! by_size {
    ($size:expr, $function:ident) => {
        match $size {
            1 => $function::<u8> as Run,
            2 => $function::<u16>,
            4 => $function::<u32>,
            _ => $function::<u64>,
        }
    };
}

/// MOV between registers, by operand size.
pub(super) fn reg_reg_of(size: u32) -> Run {
    by_size!(size, reg_reg)
}
/// MOV of an immediate, by operand size.
pub(super) fn reg_imm_of(size: u32) -> Run {
    by_size!(size, reg_imm)
}
/// Loads, by operand size.
pub(super) fn load_of(size: u32) -> Run {
    by_size!(size, load)
}
/// Stores, by operand size.
pub(super) fn store_of(size: u32) -> Run {
    by_size!(size, store)
}
/// Stores of an immediate, by operand size.
pub(super) fn store_imm_of(size: u32) -> Run {
    by_size!(size, store_imm)
}

/// MOVZX and MOVSX by source and destination size; nothing for combinations that are rare.
pub(super) fn extend_of(source: u32, destination: u32, signed: bool, memory: bool) -> Option<Run> {
    macro_rules! pick {
        ($s:ty, $d:ty) => {
            match (signed, memory) {
                (false, false) => extend_reg::<$s, $d, false> as Run,
                (false, true) => extend_mem::<$s, $d, false>,
                (true, false) => extend_reg::<$s, $d, true>,
                (true, true) => extend_mem::<$s, $d, true>,
            }
        };
    }
    Some(match (source, destination) {
        (1, 4) => pick!(u8, u32),
        (2, 4) => pick!(u16, u32),
        (1, 8) => pick!(u8, u64),
        (2, 8) => pick!(u16, u64),
        (4, 8) => pick!(u32, u64),
        _ => return None,
    })
}
