//! MOV and its extending, conditional and address-only kin; XLATB; the CBW and CWD families;
//! SETcc.

use iced_x86::{Instruction, Register};

use super::operand::{load, size, store};
use super::sized;
use crate::cpu::{Cpu, Exec, Handler};
use crate::flags::Int;
use crate::insn::{Row, rows};

fn mov<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = load::<T>(cpu, insn, 1)?;
    store(cpu, insn, 0, value)
}

/// MOVZX: 32-bit writes extend further by themselves.
fn movzx<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = load::<T>(cpu, insn, 1)?;
    cpu.set_reg(insn.op0_register(), value.into());
    Ok(())
}

/// MOVSX and MOVSXD.
fn movsx<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = load::<T>(cpu, insn, 1)?;
    cpu.set_reg(insn.op0_register(), value.sext());
    Ok(())
}

fn lea(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let offset = cpu.offset(insn);
    cpu.set_reg(insn.op0_register(), offset);
    Ok(())
}

fn xlatb(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = load::<u8>(cpu, insn, 0)?;
    cpu.set_reg(Register::AL, value.into());
    Ok(())
}

/// CMOVcc: the load is always made, and a 32-bit destination always zero-extended.
fn cmov<const CONDITION: u8, T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = load::<T>(cpu, insn, 1)?;
    let register = insn.op0_register();
    let value = if cpu.flags.condition(CONDITION) { value.into() } else { cpu.reg(register) };
    cpu.set_reg(register, value);
    Ok(())
}

fn setcc<const CONDITION: u8>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = u8::from(cpu.flags.condition(CONDITION));
    store(cpu, insn, 0, value)
}

/// A function for each of the 16 conditions.
macro_rules! by_condition {
    ($code:expr, $function:ident $(, $ty:ty)?) => {{
        const TABLE: [$crate::cpu::Handler; 16] = [
            $function::<0 $(, $ty)?>, $function::<1 $(, $ty)?>, $function::<2 $(, $ty)?>, $function::<3 $(, $ty)?>,
            $function::<4 $(, $ty)?>, $function::<5 $(, $ty)?>, $function::<6 $(, $ty)?>, $function::<7 $(, $ty)?>,
            $function::<8 $(, $ty)?>, $function::<9 $(, $ty)?>, $function::<10 $(, $ty)?>, $function::<11 $(, $ty)?>,
            $function::<12 $(, $ty)?>, $function::<13 $(, $ty)?>, $function::<14 $(, $ty)?>, $function::<15 $(, $ty)?>,
        ];
        TABLE[usize::from($code)]
    }};
}
pub(super) use by_condition;

/// The condition of Jcc, SETcc, CMOVcc as it is encoded.
pub(super) fn condition(insn: &Instruction) -> u8 {
    (insn.condition_code() as u8).wrapping_sub(1) & 0xf
}

/// Copies the sign of `from` into all of `to`.
fn fill_with_sign(cpu: &mut Cpu, from: Register, to: Register) {
    let value = cpu.reg(from) << (64 - 8 * from.size());
    cpu.set_reg(to, (value as i64 >> 63) as u64);
}

/// Sign-extends `from` into the larger `to`.
fn extend(cpu: &mut Cpu, from: Register, to: Register) {
    let unused = 64 - 8 * from.size();
    let value = ((cpu.reg(from) << unused) as i64 >> unused) as u64;
    cpu.set_reg(to, value);
}

fn cbw(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    extend(cpu, Register::AL, Register::AX);
    Ok(())
}

fn cwde(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    extend(cpu, Register::AX, Register::EAX);
    Ok(())
}

fn cdqe(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    extend(cpu, Register::EAX, Register::RAX);
    Ok(())
}

fn cwd(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    fill_with_sign(cpu, Register::AX, Register::DX);
    Ok(())
}

fn cdq(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    fill_with_sign(cpu, Register::EAX, Register::EDX);
    Ok(())
}

fn cqo(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    fill_with_sign(cpu, Register::RAX, Register::RDX);
    Ok(())
}

/// Whether a MOV moves between general registers, memory and immediates, or reads a selector.
fn plain_mov(insn: &Instruction) -> bool {
    let general = |register: Register| register == Register::None || register.is_gpr();
    general(insn.op0_register())
        && (general(insn.op1_register()) || insn.op1_register().is_segment_register())
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Mov if plain_mov(insn) => sized!(size(insn, 0), mov),
    Movzx => sized!(size(insn, 1), movzx),
    Movsx | Movsxd => sized!(size(insn, 1), movsx),
    Lea => lea,
    Xlatb => xlatb,
    Cbw => cbw,
    Cwde => cwde,
    Cdqe => cdqe,
    Cwd => cwd,
    Cdq => cdq,
    Cqo => cqo,
    Seto | Setno | Setb | Setae | Sete | Setne | Setbe | Seta | Sets | Setns | Setp | Setnp | Setl | Setge | Setle | Setg =>
        by_condition!(condition(insn), setcc),
    Cmovo | Cmovno | Cmovb | Cmovae | Cmove | Cmovne | Cmovbe | Cmova
    | Cmovs | Cmovns | Cmovp | Cmovnp | Cmovl | Cmovge | Cmovle | Cmovg => cmov_sized(insn),
});

/// CMOVcc for the size of its operands.
fn cmov_sized(insn: &Instruction) -> Handler {
    let condition = condition(insn);
    match size(insn, 0) {
        2 => by_condition!(condition, cmov, u16),
        4 => by_condition!(condition, cmov, u32),
        _ => by_condition!(condition, cmov, u64),
    }
}
