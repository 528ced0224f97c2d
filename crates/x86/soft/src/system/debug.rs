//! MOV of debug registers (SDM 17.2; volume 2, MOV). What they do is in `crate::debug`.
//!
//! An access exits if the host holds the registers. It then lets the guest have them until the
//! next exit of any kind, as KVM does: Linux 6.1, `handle_dr` and `vmx_sync_dirty_debug_regs` in
//! arch/x86/kvm/vmx/vmx.c, and KVM_DEBUGREG_WONT_EXIT in arch/x86/kvm/x86.c.

use iced_x86::{Instruction, Register};
use satori_defs::x86::{cr4, dr6, dr7};
use satori_engine::{Exception, Exit};
use satori_rules as rules;

use crate::cpu::{Cpu, Exec};
use crate::debug;
use crate::insn::{Row, is_register, rows};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Mov if is_register(insn, 0, Register::is_dr) => write,
    Mov if is_register(insn, 1, Register::is_dr) => read,
});

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
    if !cpu.debug.owned {
        cpu.ask(Exit::DrAccess)?;
        cpu.debug.owned = true;
    }
    // Behind the exit, which comes first (the comment in KVM's `handle_dr` says so).
    if cpu.state.dr7 & dr7::GD != 0 {
        return Err(cpu.raise(debug::exception(dr6::BD)));
    }
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
    if number >= 6 && !rules::debug::legal(value) {
        return Err(cpu.raise(Exception::gp(0)));
    }
    match number {
        6 => cpu.state.dr6 = rules::debug::dr6(value),
        7 => cpu.state.dr7 = rules::debug::dr7(value),
        number => cpu.state.dr[number] = value,
    }
    cpu.arm();
    Ok(())
}
