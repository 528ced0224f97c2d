//! The generic timer: counters, and the timers that compare with them. What they signal the machine sees (`Timer`).

use satori_arm_state::{El, Sys};

use crate::code::Insn;
use crate::cpu::{Cpu, Stop};

/// A timer: its registers.
struct Row {
    value: Sys,
    control: Sys,
    compare: Sys,
    /// It compares with the virtual counter.
    offset: bool,
}

static ROWS: [Row; 4] = [
    Row { value: Sys::CNTP_TVAL_EL0, control: Sys::CNTP_CTL_EL0, compare: Sys::CNTP_CVAL_EL0, offset: false },
    Row { value: Sys::CNTV_TVAL_EL0, control: Sys::CNTV_CTL_EL0, compare: Sys::CNTV_CVAL_EL0, offset: true },
    Row {
        value: Sys::CNTHP_TVAL_EL2,
        control: Sys::CNTHP_CTL_EL2,
        compare: Sys::CNTHP_CVAL_EL2,
        offset: false,
    },
    Row {
        value: Sys::CNTHV_TVAL_EL2,
        control: Sys::CNTHV_CTL_EL2,
        compare: Sys::CNTHV_CVAL_EL2,
        offset: false,
    },
];

/// CNTPCT_EL0, or CNTVCT_EL0, from which a host under VHE sees no offset.
pub(super) fn count(cpu: &mut Cpu, sys: Sys) -> u64 {
    let host = cpu.e2h() && (cpu.s.pstate.el == El::Two || (cpu.tge() && cpu.s.pstate.el == El::Zero));
    let counter = cpu.counter();
    match sys == Sys::CNTVCT_EL0 && !host {
        true => counter.wrapping_sub(cpu.s.get(Sys::CNTVOFF_EL2)),
        false => counter,
    }
}

fn count_of(cpu: &mut Cpu, row: &Row) -> u64 {
    let counter = cpu.counter();
    if row.offset { counter.wrapping_sub(cpu.s.get(Sys::CNTVOFF_EL2)) } else { counter }
}

pub(super) fn read(cpu: &mut Cpu, sys: Sys) -> u64 {
    for row in &ROWS {
        if sys == row.value {
            let left = cpu.s.get(row.compare).wrapping_sub(count_of(cpu, row));
            return left & 0xffff_ffff;
        }
        if sys == row.control {
            let control = cpu.s.get(row.control) & 3;
            let met = control & 1 != 0 && count_of(cpu, row) >= cpu.s.get(row.compare);
            return control | u64::from(met) << 2;
        }
    }
    cpu.s.get(sys)
}

pub(super) fn write(cpu: &mut Cpu, sys: Sys, value: u64) {
    for row in &ROWS {
        if sys == row.value {
            let compare = count_of(cpu, row).wrapping_add(value as i32 as u64);
            return cpu.s.set(row.compare, compare);
        }
        if sys == row.control {
            return cpu.s.set(row.control, value & 3);
        }
    }
    cpu.s.set(sys, value);
}

/// Which bit of CNTKCTL_EL1 (or, for a host's programs, CNTHCTL_EL2) lets EL0 access a register.
pub(super) fn user_may(cpu: &Cpu, sys: Sys) -> bool {
    let control = cpu.s.get(if cpu.e2h() && cpu.tge() { Sys::CNTHCTL_EL2 } else { Sys::CNTKCTL_EL1 });
    let bit = |at: u32| control >> at & 1 != 0;
    match sys {
        Sys::CNTPCT_EL0 => bit(0),
        Sys::CNTVCT_EL0 => bit(1),
        Sys::CNTFRQ_EL0 => bit(0) || bit(1),
        Sys::CNTV_TVAL_EL0 | Sys::CNTV_CTL_EL0 | Sys::CNTV_CVAL_EL0 => bit(8),
        Sys::CNTHV_TVAL_EL2 | Sys::CNTHV_CTL_EL2 | Sys::CNTHV_CVAL_EL2 => bit(8),
        Sys::CNTP_TVAL_EL0 | Sys::CNTP_CTL_EL0 | Sys::CNTP_CVAL_EL0 => bit(9),
        Sys::CNTHP_TVAL_EL2 | Sys::CNTHP_CTL_EL2 | Sys::CNTHP_CVAL_EL2 => bit(9),
        _ => false,
    }
}

/// CNTHCTL_EL2 keeps the physical counter and timer from a guest.
pub(super) fn trap(cpu: &mut Cpu, i: &Insn, sys: Sys, read: bool) -> Result<(), Stop> {
    if !cpu.offered.el2 || cpu.s.pstate.el == El::Two || (cpu.e2h() && cpu.tge()) {
        return Ok(());
    }
    let control = cpu.s.get(Sys::CNTHCTL_EL2);
    let shift = if cpu.e2h() { 10 } else { 0 };
    let permitted = match sys {
        Sys::CNTPCT_EL0 => control >> shift & 1 != 0,
        Sys::CNTP_TVAL_EL0 | Sys::CNTP_CTL_EL0 | Sys::CNTP_CVAL_EL0 => control >> (shift + 1) & 1 != 0,
        _ => true,
    };
    match permitted {
        true => Ok(()),
        false => Err(cpu.raise(super::registers::syndrome(i, i.raw & 31, read).to_el2())),
    }
}
