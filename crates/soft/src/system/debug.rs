//! Debug registers (SDM 17.2). The host holds them, so each access exits; breakpoints
//! themselves are not modelled.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use satori_defs::x86::{cr4, vector};
use satori_engine::{Exception, Exit};

use crate::cpu::{Cpu, Exec, Handler};

/// DR6: debug register access detected.
const DR6_BD: u64 = 1 << 13;
/// DR6: bits that can be written.
const DR6_WRITABLE: u64 = 0xe00f;
/// DR6: bits that read as 1.
const DR6_FIXED: u64 = 0xffff_0ff0;
/// DR7: general detect enable.
const DR7_GD: u64 = 1 << 13;
/// DR7: bits that can be written.
const DR7_WRITABLE: u64 = 0xffff_23ff;
/// DR7: bits that read as 1.
const DR7_FIXED: u64 = 0x400;

/// The instructions of this file.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    let debug = |op: u32| insn.op_kind(op) == OpKind::Register && insn.op_register(op).is_dr();
    Some(match insn.mnemonic() {
        Mnemonic::Mov if debug(0) => write,
        Mnemonic::Mov if debug(1) => read,
        _ => return None,
    })
}

/// Which of DR0 to DR7 is meant, after the checks that both directions have.
fn select(cpu: &mut Cpu, register: Register) -> Exec<usize> {
    let number = match register.number() {
        number if number > 7 => return Err(cpu.raise(Exception::ud())),
        // Without debugging extensions DR4 and DR5 are DR6 and DR7.
        4 | 5 if cpu.state.cr4 & cr4::DE != 0 => return Err(cpu.raise(Exception::ud())),
        number @ (4 | 5) => number + 2,
        number => number,
    };
    cpu.require_supervisor()?;
    if cpu.state.dr7 & DR7_GD != 0 {
        return Err(cpu.raise(Exception { vector: vector::DB, code: None, payload: DR6_BD }));
    }
    cpu.ask(Exit::DrAccess)?;
    Ok(number)
}

fn read(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = match select(cpu, insn.op1_register())? {
        6 => cpu.state.dr6,
        7 => cpu.state.dr7,
        number => cpu.state.dr[number],
    };
    cpu.set_reg(insn.op0_register(), value);
    Ok(())
}

fn write(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = cpu.reg(insn.op1_register());
    let number = select(cpu, insn.op0_register())?;
    if number >= 6 && value >> 32 != 0 {
        return Err(cpu.raise(Exception::gp(0)));
    }
    match number {
        6 => cpu.state.dr6 = value & DR6_WRITABLE | DR6_FIXED,
        7 => cpu.state.dr7 = value & DR7_WRITABLE | DR7_FIXED,
        number => cpu.state.dr[number] = value,
    }
    Ok(())
}
