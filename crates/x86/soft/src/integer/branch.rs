//! Near CALL, RET and JMP, Jcc, and the LOOP and JCXZ families.

use iced_x86::{Code, Instruction, Register};
use satori_state::reg;

use super::transfer::{by_condition, condition};
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};
use crate::operands::truncate;

fn jump(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let to = cpu.branch_target(insn);
    cpu.jump(to)
}

fn jump_indirect(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let to = cpu.operand(insn, 0)?;
    cpu.jump(to)
}

fn jump_if<const CONDITION: u8>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    if cpu.flags.condition(CONDITION) { jump(cpu, insn) } else { Ok(()) }
}

/// Where to go is checked before the stack is written.
fn call_to(cpu: &mut Cpu, insn: &Instruction, to: u64) -> Exec<()> {
    cpu.jump(to)?;
    let back = cpu.next_ip(insn);
    cpu.push(insn.stack_pointer_increment().unsigned_abs(), back)
}

fn call(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let to = cpu.branch_target(insn);
    call_to(cpu, insn, to)
}

fn call_indirect(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let to = cpu.operand(insn, 0)?;
    call_to(cpu, insn, to)
}

fn ret(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let size = match insn.code() {
        Code::Retnw | Code::Retnw_imm16 => 2,
        Code::Retnd | Code::Retnd_imm16 => 4,
        _ => 8,
    };
    let released = if insn.op_count() == 0 { 0 } else { u64::from(insn.immediate16()) };
    let rsp = cpu.state.gpr[reg::RSP];
    let to = cpu.pop(size)?;
    if let Err(stop) = cpu.jump(to) {
        cpu.state.gpr[reg::RSP] = rsp;
        return Err(stop);
    }
    let (sp, mask) = cpu.stack_pointer();
    cpu.set_stack_pointer(sp.wrapping_add(released) & mask);
    Ok(())
}

/// The counter of LOOP and JCXZ, which the address size chooses.
fn counter(insn: &Instruction) -> Register {
    match insn.code() {
        Code::Loop_rel8_16_CX
        | Code::Loop_rel8_32_CX
        | Code::Loope_rel8_16_CX
        | Code::Loope_rel8_32_CX
        | Code::Loopne_rel8_16_CX
        | Code::Loopne_rel8_32_CX
        | Code::Jcxz_rel8_16
        | Code::Jcxz_rel8_32 => Register::CX,
        Code::Loop_rel8_16_ECX
        | Code::Loop_rel8_32_ECX
        | Code::Loop_rel8_64_ECX
        | Code::Loope_rel8_16_ECX
        | Code::Loope_rel8_32_ECX
        | Code::Loope_rel8_64_ECX
        | Code::Loopne_rel8_16_ECX
        | Code::Loopne_rel8_32_ECX
        | Code::Loopne_rel8_64_ECX
        | Code::Jecxz_rel8_16
        | Code::Jecxz_rel8_32
        | Code::Jecxz_rel8_64 => Register::ECX,
        _ => Register::RCX,
    }
}

fn loop_while(cpu: &mut Cpu, insn: &Instruction, holds: bool) -> Exec<()> {
    let register = counter(insn);
    let left = truncate(cpu.reg(register).wrapping_sub(1), register.size() as u32 * 8);
    if left != 0 && holds {
        jump(cpu, insn)?;
    }
    cpu.set_reg(register, left);
    Ok(())
}

fn loop_(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    loop_while(cpu, insn, true)
}

fn loope(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let holds = cpu.flags.zf();
    loop_while(cpu, insn, holds)
}

fn loopne(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let holds = !cpu.flags.zf();
    loop_while(cpu, insn, holds)
}

fn jcxz(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    if cpu.reg(counter(insn)) == 0 { jump(cpu, insn) } else { Ok(()) }
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Jmp if insn.is_jmp_short_or_near() => jump,
    Jmp if insn.is_jmp_near_indirect() => jump_indirect,
    Call if insn.is_call_near() => call,
    Call if insn.is_call_near_indirect() => call_indirect,
    Ret => ret,
    Loop => loop_,
    Loope => loope,
    Loopne => loopne,
    Jcxz | Jecxz | Jrcxz => jcxz,
    Jo | Jno | Jb | Jae | Je | Jne | Jbe | Ja | Js | Jns | Jp | Jnp | Jl | Jge | Jle | Jg =>
        by_condition!(condition(insn), jump_if),
});
