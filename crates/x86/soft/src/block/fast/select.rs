//! Which instructions have a specialised operation.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register};
use satori_state::{reg, seg};

use super::alu::{self, Form};
use super::{branch, fused, moves, unary};
use crate::block::op::{BLOCK_RIP, Op, Run, fall_through};
use crate::operands::is_immediate;

/// The slot of a general-purpose register that is not AH, CH, DH or BH.
fn slot(r: Register) -> Option<u8> {
    let high = matches!(r, Register::AH | Register::CH | Register::DH | Register::BH);
    (r.is_gpr() && !high).then(|| r.full_register().number() as u8)
}

/// Puts the memory operand into `op`; false if it has a form that is not specialised.
fn memory(op: &mut Op, insn: &Instruction) -> bool {
    let displacement = if insn.is_ip_rel_memory_operand() {
        if insn.memory_base() != Register::RIP {
            return false;
        }
        op.base = BLOCK_RIP as u8;
        insn.ip_rel_memory_address() as i64
    } else {
        for (register, place) in [(insn.memory_base(), &mut op.base), (insn.memory_index(), &mut op.index)] {
            match register {
                Register::None => *place = reg::ZERO as u8,
                r if r.is_gpr64() => *place = r.number() as u8,
                _ => return false,
            }
        }
        if insn.memory_base() == Register::None
            && insn.memory_index() == Register::None
            && insn.memory_displ_size() != 4
            && insn.memory_displ_size() != 8
        {
            return false;
        }
        op.shift = insn.memory_index_scale().trailing_zeros() as u8;
        insn.memory_displacement64() as i64
    };
    op.segment = match insn.memory_segment() {
        Register::FS => seg::FS as u8,
        Register::GS => seg::GS as u8,
        _ => 0,
    };
    match i32::try_from(displacement) {
        Ok(displacement) => {
            op.disp = displacement;
            true
        }
        Err(_) => false,
    }
}

/// Fills in two operands; their form, and the operand size in bytes.
fn two_operands(op: &mut Op, insn: &Instruction) -> Option<(Form, u32)> {
    let size_of = |r: Register| r.size() as u32;
    let (first, second) = (insn.op0_kind(), insn.op1_kind());
    Some(match (first, second) {
        (OpKind::Register, OpKind::Register) => {
            op.a = slot(insn.op0_register())?;
            op.b = slot(insn.op1_register())?;
            (Form::RegReg, size_of(insn.op0_register()))
        }
        (OpKind::Register, OpKind::Memory) => {
            op.a = slot(insn.op0_register())?;
            memory(op, insn).then_some((Form::RegMem, size_of(insn.op0_register())))?
        }
        (OpKind::Memory, OpKind::Register) => {
            op.a = slot(insn.op1_register())?;
            memory(op, insn).then_some((Form::MemReg, size_of(insn.op1_register())))?
        }
        (OpKind::Register, kind) if is_immediate(kind) => {
            op.a = slot(insn.op0_register())?;
            op.imm = insn.immediate(1);
            (Form::RegImm, size_of(insn.op0_register()))
        }
        (OpKind::Memory, kind) if is_immediate(kind) => {
            op.imm = insn.immediate(1);
            memory(op, insn).then_some((Form::MemImm, insn.memory_size().size() as u32))?
        }
        _ => return None,
    })
}

/// Mark in [`Op::condition`] of a comparison that a branch can be fused to: its kind, form and
/// size.
const FUSIBLE: u8 = 0x80;
const FUSIBLE_TEST: u8 = 0x40;

fn fusible(test: bool, form: Form, size: u32) -> u8 {
    FUSIBLE | if test { FUSIBLE_TEST } else { 0 } | (form as u8) << 3 | size.trailing_zeros() as u8
}

/// Fuses the conditional branch `insn` into the comparison before it.
pub(crate) fn fuse(before: Option<&mut Op>, insn: &Instruction) -> bool {
    let Some(op) = before else { return false };
    if op.condition & FUSIBLE == 0 || !insn.is_jcc_short_or_near() || insn.op0_kind() != OpKind::NearBranch64
    {
        return false;
    }
    let Ok(target) = i32::try_from(insn.near_branch_target() as i64) else { return false };
    let form = match op.condition >> 3 & 7 {
        0 => Form::RegReg,
        1 => Form::RegMem,
        2 => Form::MemReg,
        3 => Form::RegImm,
        _ => Form::MemImm,
    };
    let size = 1 << (op.condition & 7);
    let condition = condition_of(insn);
    op.run.set(if op.condition & FUSIBLE_TEST != 0 {
        fused::run::<alu::Test>(size, form, condition)
    } else {
        fused::run::<alu::Cmp>(size, form, condition)
    });
    op.imm = u64::from(op.imm as u32) | (target as u32 as u64) << 32;
    op.len += insn.len() as u8;
    op.count = 2;
    true
}

/// The condition code of Jcc, SETcc or CMOVcc, in encoding order.
fn condition_of(insn: &Instruction) -> u8 {
    // iced counts from 1 in encoding order; 0 is none.
    (insn.condition_code() as u8).wrapping_sub(1) & 15
}

fn one_operand<O: unary::Unary>(op: &mut Op, insn: &Instruction) -> Option<Run> {
    Some(match insn.op0_kind() {
        OpKind::Register => {
            op.a = slot(insn.op0_register())?;
            unary::run::<O>(insn.op0_register().size() as u32, false, false)
        }
        _ => {
            let size = insn.memory_size().size() as u32;
            memory(op, insn).then(|| unary::run::<O>(size, true, insn.has_lock_prefix()))?
        }
    })
}

fn arithmetic<O: alu::Alu>(op: &mut Op, insn: &Instruction) -> Option<Run> {
    let (form, size) = two_operands(op, insn)?;
    Some(alu::run::<O>(size, form, insn.has_lock_prefix()))
}

fn comparison<O: alu::Alu>(op: &mut Op, insn: &Instruction, test: bool) -> Option<Run> {
    let (form, size) = two_operands(op, insn)?;
    op.condition = fusible(test, form, size);
    Some(alu::run::<O>(size, form, false))
}

fn shift(op: &mut Op, insn: &Instruction, narrow: Run, wide: Run) -> Option<Run> {
    if insn.op0_kind() != OpKind::Register || !is_immediate(insn.op1_kind()) {
        return None;
    }
    let size = insn.op0_register().size() as u32;
    op.a = slot(insn.op0_register())?;
    op.imm = insn.immediate(1) & if size == 8 { 63 } else { 31 };
    match size {
        _ if op.imm == 0 => None,
        4 => Some(narrow),
        8 => Some(wide),
        _ => None,
    }
}

fn imul(op: &mut Op, insn: &Instruction) -> Option<Run> {
    if insn.op0_kind() != OpKind::Register || insn.op0_register().size() < 4 {
        return None;
    }
    let wide = insn.op0_register().size() == 8;
    let pick = |narrow: Run, full: Run| Some(if wide { full } else { narrow });
    match insn.op_count() {
        2 => match two_operands(op, insn)?.0 {
            Form::RegReg => pick(unary::imul_reg::<u32>, unary::imul_reg::<u64>),
            Form::RegMem => pick(unary::imul_mem::<u32>, unary::imul_mem::<u64>),
            _ => None,
        },
        3 if insn.op1_kind() == OpKind::Register => {
            op.a = slot(insn.op0_register())?;
            op.b = slot(insn.op1_register())?;
            op.imm = insn.immediate(2);
            pick(unary::imul_imm::<u32>, unary::imul_imm::<u64>)
        }
        _ => None,
    }
}

fn mov(op: &mut Op, insn: &Instruction) -> Option<Run> {
    let (form, size) = two_operands(op, insn)?;
    Some(match form {
        Form::RegReg => moves::reg_reg_of(size),
        Form::RegImm => moves::reg_imm_of(size),
        Form::RegMem => moves::load_of(size),
        Form::MemReg => moves::store_of(size),
        Form::MemImm => moves::store_imm_of(size),
    })
}

fn extension(op: &mut Op, insn: &Instruction, signed: bool) -> Option<Run> {
    let destination = insn.op0_register();
    op.a = slot(destination)?;
    let (source, is_memory) = match insn.op1_kind() {
        OpKind::Register => {
            op.b = slot(insn.op1_register())?;
            (insn.op1_register().size() as u32, false)
        }
        _ => (memory(op, insn).then(|| insn.memory_size().size() as u32)?, true),
    };
    moves::extend_of(source, destination.size() as u32, signed, is_memory)
}

fn cmov(op: &mut Op, insn: &Instruction) -> Option<Run> {
    let (form, size) = two_operands(op, insn)?;
    op.condition = condition_of(insn);
    Some(match (form, size) {
        (Form::RegReg, 4) => moves::cmov_reg::<u32>,
        (Form::RegReg, 8) => moves::cmov_reg::<u64>,
        (Form::RegMem, 4) => moves::cmov_mem::<u32>,
        (Form::RegMem, 8) => moves::cmov_mem::<u64>,
        _ => return None,
    })
}

fn push(op: &mut Op, insn: &Instruction) -> Option<Run> {
    match insn.op0_kind() {
        OpKind::Register if insn.op0_register().is_gpr64() => {
            op.a = slot(insn.op0_register())?;
            Some(moves::push_reg)
        }
        OpKind::Memory if insn.memory_size().size() == 8 => memory(op, insn).then_some(moves::push_mem),
        OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
            op.imm = insn.immediate(0);
            Some(moves::push_imm)
        }
        _ => None,
    }
}

fn near_branch(op: &mut Op, insn: &Instruction, relative: Run, register: Run, indirect: Run) -> Option<Run> {
    match insn.op0_kind() {
        OpKind::NearBranch64 => {
            op.imm = insn.near_branch_target();
            Some(relative)
        }
        OpKind::Register if insn.op0_register().is_gpr64() => {
            op.a = slot(insn.op0_register())?;
            Some(register)
        }
        OpKind::Memory
            if insn.memory_size().size() == 8
                && !insn.is_jmp_far_indirect()
                && !insn.is_call_far_indirect() =>
        {
            memory(op, insn).then_some(indirect)
        }
        _ => None,
    }
}

/// A specialised operation for `insn`, at `offset` of its block.
pub(crate) fn select(insn: &Instruction, offset: u8) -> Option<Op> {
    use Mnemonic::*;
    let mut op = Op::new(fall_through, offset, insn.len() as u8);
    let op_ref = &mut op;
    let run = match insn.mnemonic() {
        Mov => mov(op_ref, insn),
        Lea => {
            op.a = slot(insn.op0_register())?;
            let run: Option<Run> = match insn.op0_register().size() {
                4 => Some(moves::lea::<u32>),
                8 => Some(moves::lea::<u64>),
                _ => None,
            };
            memory(&mut op, insn).then_some(())?;
            run
        }
        Add => arithmetic::<alu::Add>(op_ref, insn),
        Or => arithmetic::<alu::Or>(op_ref, insn),
        Adc => arithmetic::<alu::Adc>(op_ref, insn),
        Sbb => arithmetic::<alu::Sbb>(op_ref, insn),
        And => arithmetic::<alu::And>(op_ref, insn),
        Sub => arithmetic::<alu::Sub>(op_ref, insn),
        Xor => arithmetic::<alu::Xor>(op_ref, insn),
        Cmp => comparison::<alu::Cmp>(op_ref, insn, false),
        Test => comparison::<alu::Test>(op_ref, insn, true),
        Inc => one_operand::<unary::Inc>(op_ref, insn),
        Dec => one_operand::<unary::Dec>(op_ref, insn),
        Neg => one_operand::<unary::Neg>(op_ref, insn),
        Not => one_operand::<unary::Not>(op_ref, insn),
        Shl => shift(op_ref, insn, unary::shl::<u32>, unary::shl::<u64>),
        Shr => shift(op_ref, insn, unary::shr::<u32>, unary::shr::<u64>),
        Sar => shift(op_ref, insn, unary::sar::<u32>, unary::sar::<u64>),
        Imul => imul(op_ref, insn),
        Movzx => extension(op_ref, insn, false),
        Movsx | Movsxd => extension(op_ref, insn, true),
        Push => push(op_ref, insn),
        Pop if insn.op0_kind() == OpKind::Register && insn.op0_register().is_gpr64() => {
            op.a = slot(insn.op0_register())?;
            Some(moves::pop_reg as Run)
        }
        Leave if insn.code() == iced_x86::Code::Leaveq => Some(moves::leave as Run),
        Nop | Endbr64 => Some(moves::nop as Run),
        Cdqe => Some(moves::cdqe as Run),
        Cqo => Some(moves::cqo as Run),
        Cdq => Some(moves::cdq as Run),
        Jmp => near_branch(op_ref, insn, branch::jump, branch::jump_reg, branch::jump_mem),
        Call => near_branch(op_ref, insn, branch::call, branch::call_reg, branch::call_mem),
        Ret if matches!(insn.code(), iced_x86::Code::Retnq | iced_x86::Code::Retnq_imm16) => {
            op.imm = if insn.op_count() == 1 { insn.immediate(0) & 0xffff } else { 0 };
            Some(branch::ret as Run)
        }
        _ if insn.is_jcc_short_or_near() && insn.op0_kind() == OpKind::NearBranch64 => {
            op.imm = insn.near_branch_target();
            Some(branch::conditional_of(condition_of(insn)))
        }
        _ if insn.condition_code() != ConditionCode::None && insn.op_count() == 2 => cmov(op_ref, insn),
        _ if insn.condition_code() != ConditionCode::None
            && insn.op0_kind() == OpKind::Register
            && insn.op0_register().is_gpr8() =>
        {
            op.a = slot(insn.op0_register())?;
            op.condition = condition_of(insn);
            Some(moves::set_reg as Run)
        }
        _ => None,
    }?;
    op.run.set(run);
    Some(op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    #[test]
    fn condition_codes_are_in_encoding_order() {
        for code in 0..16u8 {
            let insn = Decoder::new(64, &[0x70 | code, 0x00], DecoderOptions::NONE).decode();
            assert_ne!(insn.condition_code(), ConditionCode::None);
            assert_eq!(condition_of(&insn), code);
        }
    }
}
