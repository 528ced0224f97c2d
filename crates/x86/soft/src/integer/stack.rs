//! PUSH and POP in all their forms, ENTER and LEAVE; BOUND and ARPL.

use iced_x86::{Code, Instruction, OpKind, Register};
use satori_cpuid::Vendor;
use satori_defs::x86::{cr0, rflags, vector};
use satori_engine::Exception;
use satori_state::reg;

use super::flag::set_zf;
use super::operand::{size, store};
use super::sized;
use crate::cpu::{Cpu, Exec};
use crate::flags::Int;
use crate::insn::{Row, rows};

/// PUSH of a register, selector, immediate or memory; the operand is read before RSP moves.
fn push(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = cpu.operand(insn, 0)?;
    cpu.push(insn.stack_pointer_increment().unsigned_abs(), value)
}

/// PUSH of a selector. Intel's processors move 16 bits into a place of 32, whose upper half stays
/// as it is (SDM volume 2, PUSH).
fn push_selector(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let size = insn.stack_pointer_increment().unsigned_abs();
    let selector = cpu.reg(insn.op0_register());
    if size != 4 || cpu.isa.offered.vendor != Vendor::Intel {
        return cpu.push(size, selector);
    }
    let (sp, mask) = cpu.stack_pointer();
    let sp = sp.wrapping_sub(4) & mask;
    let linear = cpu.stack_linear(sp, 2)?;
    cpu.write(linear, selector as u16)?;
    cpu.set_stack_pointer(sp);
    Ok(())
}

fn pop_register(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let register = insn.op0_register();
    let value = cpu.pop(register.size() as u32)?;
    cpu.set_reg(register, value);
    Ok(())
}

/// Runs `steps`; if they do not complete, RSP is what it was.
fn keeping_rsp(cpu: &mut Cpu, steps: impl FnOnce(&mut Cpu) -> Exec<()>) -> Exec<()> {
    let rsp = cpu.state.gpr[reg::RSP];
    let outcome = steps(cpu);
    if outcome.is_err() {
        cpu.state.gpr[reg::RSP] = rsp;
    }
    outcome
}

/// POP to memory: an address based on RSP is formed after RSP moved (SDM, POP).
fn pop_memory<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    keeping_rsp(cpu, |cpu| {
        let value = cpu.pop(T::SIZE as u32)?;
        store(cpu, insn, 0, T::from_u64(value))
    })
}

fn push_all(cpu: &mut Cpu, size: u32) -> Exec<()> {
    let values = cpu.state.gpr;
    let paragraphs = cpu.state.cr0 & cr0::PE == 0 || cpu.state.rflags & rflags::VM != 0;
    if paragraphs
        && cpu.isa.offered.vendor == Vendor::Intel
        && matches!(cpu.stack_pointer().0, 7 | 9 | 11 | 13 | 15)
    {
        // Intel says so of these (SDM volume 2, PUSHA); the others meet the limit of the stack.
        return Err(cpu.raise(Exception::gp(0)));
    }
    keeping_rsp(cpu, |cpu| values[..8].iter().try_for_each(|value| cpu.push(size, *value)))
}

fn pusha(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    push_all(cpu, 2)
}

fn pushad(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    push_all(cpu, 4)
}

/// The names of the eight registers in encoding order.
const WORDS: [Register; 8] = [
    Register::AX,
    Register::CX,
    Register::DX,
    Register::BX,
    Register::SP,
    Register::BP,
    Register::SI,
    Register::DI,
];
const DOUBLEWORDS: [Register; 8] = [
    Register::EAX,
    Register::ECX,
    Register::EDX,
    Register::EBX,
    Register::ESP,
    Register::EBP,
    Register::ESI,
    Register::EDI,
];

fn pop_all(cpu: &mut Cpu, size: u32, registers: &[Register; 8]) -> Exec<()> {
    let mut values = [0; 8];
    keeping_rsp(cpu, |cpu| {
        for value in values.iter_mut().rev() {
            *value = cpu.pop(size)?;
        }
        Ok(())
    })?;
    for (index, register) in registers.iter().enumerate() {
        // The stack pointer's place is skipped.
        if index != reg::RSP {
            cpu.set_reg(*register, values[index]);
        }
    }
    Ok(())
}

fn popa(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    pop_all(cpu, 2, &WORDS)
}

fn popad(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    pop_all(cpu, 4, &DOUBLEWORDS)
}

/// BP, EBP or RBP by the operand size of ENTER and LEAVE.
fn frame_register(insn: &Instruction) -> Register {
    match insn.code() {
        Code::Enterw_imm16_imm8 | Code::Leavew => Register::BP,
        Code::Enterd_imm16_imm8 | Code::Leaved => Register::EBP,
        _ => Register::RBP,
    }
}

fn enter(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let register = frame_register(insn);
    let size = register.size() as u32;
    let level = insn.immediate8_2nd() & 31;
    keeping_rsp(cpu, |cpu| {
        let mut outer = cpu.state.gpr[reg::RBP];
        cpu.push(size, outer)?;
        let (frame, mask) = cpu.stack_pointer();
        for _ in 1..level {
            outer = outer.wrapping_sub(size.into());
            let linear = cpu.stack_linear(outer & mask, size)?;
            let pointer = cpu.read_sized(linear, size)?;
            cpu.push(size, pointer)?;
        }
        if level > 0 {
            cpu.push(size, frame)?;
        }
        let (sp, _) = cpu.stack_pointer();
        let sp = sp.wrapping_sub(insn.immediate16().into()) & mask;
        // The new top must be writable (SDM, ENTER: the exceptions).
        let linear = cpu.stack_linear(sp, size)?;
        cpu.probe_write(linear, size.into())?;
        cpu.set_stack_pointer(sp);
        cpu.set_reg(register, frame);
        Ok(())
    })
}

fn leave(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let register = frame_register(insn);
    let value = {
        let (_, mask) = cpu.stack_pointer();
        let frame = cpu.state.gpr[reg::RBP] & mask;
        let size = register.size() as u32;
        let linear = cpu.stack_linear(frame, size)?;
        let value = cpu.read_sized(linear, size)?;
        cpu.set_stack_pointer(frame.wrapping_add(size.into()) & mask);
        value
    };
    cpu.set_reg(register, value);
    Ok(())
}

/// BOUND: the index must lie within a pair of signed bounds.
fn bound<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let index = T::from_u64(cpu.reg(insn.op0_register())).sext() as i64;
    let lower = cpu.ea_part(insn, 0, T::SIZE, false)?;
    let lower = cpu.read::<T>(lower)?.sext() as i64;
    let upper = cpu.ea_part(insn, T::SIZE, T::SIZE, false)?;
    let upper = cpu.read::<T>(upper)?.sext() as i64;
    if index < lower || index > upper {
        return Err(cpu.raise(Exception::new(vector::BR)));
    }
    Ok(())
}

/// ARPL: raises the RPL of a selector to that of another.
fn arpl(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    if cpu.state.cr0 & cr0::PE == 0 || cpu.state.rflags & rflags::VM != 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    let selector = cpu.operand(insn, 0)?;
    let rpl = cpu.reg(insn.op1_register()) & 3;
    let lower = selector & 3 < rpl;
    if lower {
        cpu.set_operand(insn, 0, selector & !3 | rpl)?;
    }
    set_zf(&mut cpu.flags, lower);
    Ok(())
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Push if insn.op0_register().is_segment_register() => push_selector,
    Push => push,
    Pop if insn.op0_kind() != OpKind::Register => sized!(size(insn, 0), pop_memory),
    Pop if insn.op0_register().is_gpr() => pop_register,
    Pusha => pusha,
    Pushad => pushad,
    Popa => popa,
    Popad => popad,
    Enter => enter,
    Leave => leave,
    Bound => sized!(size(insn, 0), bound),
    Arpl => arpl,
});
