//! Registers of the interrupt controller: the physical CPU interface is the machine's, the virtual one is here.

use satori_arm_engine::{Answer, Exit};
use satori_arm_state::virtual_interface as vi;
use satori_arm_state::{El, Sys};

use crate::code::Insn;
use crate::cpu::{Cpu, Stop, hcr};
use crate::exec::Done;

/// Whether `sys` is a hypervisor's register of the virtual CPU interface.
fn is_hypervisors(sys: Sys) -> bool {
    (Sys::ICH_HCR_EL2..=Sys::ICH_LR3_EL2).contains(&sys)
}

/// Whether an access at EL1 means the virtual CPU interface.
fn is_virtual(cpu: &Cpu) -> bool {
    let control = cpu.hcr();
    cpu.s.pstate.el == El::One && control & hcr::TGE == 0 && control & (hcr::IMO | hcr::FMO) != 0
}

/// What the hypervisor keeps for itself.
fn trap(cpu: &mut Cpu, i: &Insn, sys: Sys, read: bool) -> Result<(), Stop> {
    match vi::traps(&cpu.s, sys) {
        true => Err(cpu.raise(super::registers::syndrome(i, i.raw & 31, read).to_el2())),
        false => Ok(()),
    }
}

/// MRS.
pub(super) fn read(cpu: &mut Cpu, i: &Insn, sys: Sys) -> Result<u64, Stop> {
    if is_hypervisors(sys) {
        return Ok(vi::read(&cpu.s, sys));
    }
    if is_virtual(cpu) {
        trap(cpu, i, sys, true)?;
        return vi::guest_read(&mut cpu.s, sys).ok_or_else(|| cpu.undefined());
    }
    match cpu.ask(Exit::SysRead(sys))? {
        Answer::Value(value) => Ok(value),
        Answer::Done | Answer::Refused => Err(cpu.undefined()),
    }
}

/// MSR.
pub(super) fn write(cpu: &mut Cpu, i: &Insn, sys: Sys, value: u64) -> Done {
    let maintenance = vi::maintenance(&cpu.s);
    if is_hypervisors(sys) {
        vi::write(&mut cpu.s, sys, value);
    } else if is_virtual(cpu) {
        trap(cpu, i, sys, false)?;
        // The physical interrupt behind a list register ends with it.
        if let Some(physical) = vi::deactivates(&cpu.s, sys, value) {
            cpu.ask(Exit::SysWrite(Sys::ICC_DIR_EL1, physical))?;
        }
        if !vi::guest_write(&mut cpu.s, sys, value) {
            return Err(cpu.undefined());
        }
    } else {
        return match cpu.ask(Exit::SysWrite(sys, value))? {
            Answer::Refused => Err(cpu.undefined()),
            Answer::Value(_) | Answer::Done => super::synchronised(cpu),
        };
    }
    match vi::maintenance(&cpu.s) == maintenance {
        true => super::synchronised(cpu),
        // The maintenance interrupt's line changed.
        false => super::leave(cpu, Exit::Timer),
    }
}
