//! Exceptions, barriers, hints, system instructions and system registers.

mod interface;
mod registers;
mod timer;

use satori_arm_engine::{Answer, Exit};
use satori_arm_isa::Op;
use satori_arm_state::{El, Pstate, Sys};

use super::{Done, zero};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Exclusive, Flow, Stop, hcr};
use crate::exception::{Syndrome, ec};
use crate::exits::Event;

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    let raw_d = (i.raw & 31) as u8;
    i.imm = i.bits(20, 5).into();
    Some(match op {
        Op::Svc => svc,
        Op::Hvc => hvc,
        Op::Smc => smc,
        Op::Brk => brk,
        // Halting debug is not implemented: UNDEFINED.
        Op::Hlt => super::undefined,
        Op::Eret => eret,
        Op::Hint => match i.bits(11, 5) {
            1 => yield_,
            2 => wfe,
            3 => wfi,
            4 => sev,
            5 => sevl,
            _ => nothing,
        },
        Op::Clrex => clrex,
        Op::Dsb => dsb,
        Op::Dmb => match i.bits(9, 8) {
            // Loads before loads and stores, or stores before stores: what the host does anyway.
            1 | 2 => dmb_of_one_kind,
            _ => dmb,
        },
        Op::Isb => isb,
        Op::MsrImm => msr_imm,
        Op::Sys => {
            i.rd = zero(raw_d);
            sys
        }
        Op::Sysl => super::undefined,
        Op::Mrs => registers::mrs(i),
        Op::Msr => {
            i.rd = zero(raw_d);
            registers::msr(i)
        }
        _ => return None,
    })
}

fn nothing(_: &mut Cpu, _: &Insn) -> Done {
    Ok(Flow::Next)
}

fn svc(cpu: &mut Cpu, i: &Insn) -> Done {
    let back = cpu.s.pc.wrapping_add(4);
    Err(cpu.raise_from(Syndrome::new(ec::SVC, i.imm as u32), back))
}

/// A call of firmware, which the machine answers in X0.
fn call(cpu: &mut Cpu) -> Done {
    match cpu.ask(Exit::Call)? {
        Answer::Value(value) => {
            cpu.set_x(0, value);
            Ok(Flow::Next)
        }
        Answer::Done => Ok(Flow::Next),
        Answer::Refused => Err(cpu.undefined()),
    }
}

fn hvc(cpu: &mut Cpu, i: &Insn) -> Done {
    if cpu.s.pstate.el == El::Zero {
        return Err(cpu.undefined());
    }
    // Without EL2 the machine is what is above EL1.
    if !cpu.offered.el2 {
        return call(cpu);
    }
    if cpu.hcr() & hcr::HCD != 0 {
        return Err(cpu.undefined());
    }
    let back = cpu.s.pc.wrapping_add(4);
    Err(cpu.raise_from(Syndrome::new(ec::HVC, i.imm as u32).to_el2(), back))
}

fn smc(cpu: &mut Cpu, i: &Insn) -> Done {
    match cpu.s.pstate.el {
        El::Zero => Err(cpu.undefined()),
        El::One if cpu.hcr() & hcr::TSC != 0 => Err(cpu.raise(Syndrome::new(ec::SMC, i.imm as u32).to_el2())),
        _ => call(cpu),
    }
}

fn brk(cpu: &mut Cpu, i: &Insn) -> Done {
    let syndrome = Syndrome::new(ec::BRK, i.imm as u32);
    let to_el2 = cpu.debug_to_el2();
    Err(cpu.raise(if to_el2 { syndrome.to_el2() } else { syndrome }))
}

fn eret(cpu: &mut Cpu, _: &Insn) -> Done {
    if cpu.s.pstate.el == El::Zero {
        return Err(cpu.undefined());
    }
    Err(cpu.exception_return())
}

/// Whether WFI or WFE traps, and where to: SCTLR_EL1.nTWI and nTWE for EL0, HCR_EL2.TWI and TWE.
fn wait_trap(cpu: &Cpu, event: bool) -> Option<Syndrome> {
    let syndrome = Syndrome::new(ec::WFX, 0x1e0_0000 | u32::from(event));
    let (own, trap) = if event { (18, hcr::TWE) } else { (16, hcr::TWI) };
    let host = cpu.e2h() && cpu.tge();
    if cpu.s.pstate.el == El::Zero {
        let sctlr = cpu.s.get(if host { Sys::SCTLR_EL2 } else { Sys::SCTLR_EL1 });
        if sctlr >> own & 1 == 0 {
            return Some(syndrome);
        }
    }
    (cpu.s.pstate.el < El::Two && !host && cpu.hcr() & trap != 0).then(|| syndrome.to_el2())
}

/// The instruction is complete, and the machine goes on with something.
fn leave(cpu: &mut Cpu, exit: Exit) -> Done {
    cpu.s.pc = cpu.s.pc.wrapping_add(4);
    cpu.exit = Some(exit);
    Err(Stop::Leave)
}

fn wfi(cpu: &mut Cpu, _: &Insn) -> Done {
    if let Some(syndrome) = wait_trap(cpu, false) {
        return Err(cpu.raise(syndrome));
    }
    // A pending interrupt ends it even if it is masked.
    if cpu.interrupt_pending() {
        return Ok(Flow::Next);
    }
    leave(cpu, Exit::Idle)
}

fn wfe(cpu: &mut Cpu, _: &Insn) -> Done {
    if std::mem::take(&mut cpu.event) || cpu.interrupt_pending() {
        return Ok(Flow::Next);
    }
    if let Some(syndrome) = wait_trap(cpu, true) {
        return Err(cpu.raise(syndrome));
    }
    // It may end for any reason, and does so when others had their turn.
    leave(cpu, Exit::Yield)
}

fn yield_(cpu: &mut Cpu, _: &Insn) -> Done {
    if cpu.alone {
        return Ok(Flow::Next);
    }
    leave(cpu, Exit::Yield)
}

/// SEV and SEVL. Events of others are not delivered: nobody sleeps in WFE.
fn sev(cpu: &mut Cpu, _: &Insn) -> Done {
    cpu.event = true;
    Ok(Flow::Next)
}

fn sevl(cpu: &mut Cpu, i: &Insn) -> Done {
    sev(cpu, i)
}

fn clrex(cpu: &mut Cpu, _: &Insn) -> Done {
    cpu.exclusive = Exclusive::default();
    Ok(Flow::Next)
}

fn dmb_of_one_kind(cpu: &mut Cpu, _: &Insn) -> Done {
    cpu.exits.happened(Event::Barriers);
    Ok(Flow::Next)
}

fn dmb(cpu: &mut Cpu, _: &Insn) -> Done {
    cpu.exits.happened(Event::Barriers);
    Cpu::full_barrier();
    Ok(Flow::Next)
}

fn dsb(cpu: &mut Cpu, _: &Insn) -> Done {
    cpu.exits.happened(Event::Barriers);
    Cpu::full_barrier();
    cpu.wait_for_others();
    Ok(Flow::Next)
}

/// What follows is fetched anew.
fn synchronised(cpu: &mut Cpu) -> Done {
    cpu.s.pc = cpu.s.pc.wrapping_add(4);
    Err(Stop::Synchronise)
}

fn isb(cpu: &mut Cpu, _: &Insn) -> Done {
    cpu.exits.happened(Event::Barriers);
    synchronised(cpu)
}

/// DAIFSet and DAIFClr at EL0 need SCTLR_ELx.UMA.
fn may_mask(cpu: &Cpu) -> bool {
    let sctlr = if cpu.e2h() && cpu.tge() { Sys::SCTLR_EL2 } else { Sys::SCTLR_EL1 };
    cpu.s.pstate.el > El::Zero || cpu.s.get(sctlr) >> 9 & 1 != 0
}

fn msr_imm(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = i.bits(11, 8);
    let mask = value << 6;
    match (i.bits(18, 16), i.bits(7, 5)) {
        (3, which) => {
            if !may_mask(cpu) {
                let syndrome = registers::syndrome(i, 31, false);
                return Err(cpu.raise(syndrome));
            }
            let state = &mut cpu.s.pstate;
            match which {
                6 => {
                    state.daif |= mask;
                    if !cpu.hosted.armed() {
                        return Ok(Flow::Next);
                    }
                }
                _ => state.daif &= !mask,
            }
        }
        _ if cpu.s.pstate.el == El::Zero => return Err(cpu.undefined()),
        (_, 3) => cpu.s.pstate.uao = value & 1 != 0,
        (_, 4) => cpu.s.pstate.pan = value & 1 != 0,
        _ => {
            let el = cpu.s.pstate.el;
            cpu.s.enter(el, value & 1 != 0);
        }
    }
    cpu.synchronise();
    // Interrupts that are pending now are taken, and breakpoints looked for.
    let interrupted = cpu.s.pstate.daif & Pstate::I == 0 && cpu.interrupt_pending();
    match interrupted || cpu.hosted.armed() {
        true => synchronised(cpu),
        false => Ok(Flow::Next),
    }
}

/// SYS: cache and TLB maintenance, AT.
fn sys(cpu: &mut Cpu, i: &Insn) -> Done {
    let (op1, crn, crm, op2) = (i.bits(18, 16), i.bits(15, 12), i.bits(11, 8), i.bits(7, 5));
    let operand = cpu.x(i.rd);
    let el = cpu.s.pstate.el;
    if el == El::Zero {
        return sys_user(cpu, i, operand);
    }
    if op1 >= 4 && el < El::Two {
        return Err(cpu.undefined());
    }
    if let Some(syndrome) = registers::trapped_maintenance(cpu, i) {
        return Err(cpu.raise(syndrome));
    }
    match (op1, crn, crm, op2) {
        (0 | 4, 8, _, _) => match cpu.tlbi(op1, crm, op2, operand) {
            Some(()) => {
                cpu.exits.happened(Event::Invalidations);
                synchronised(cpu)
            }
            None => Err(cpu.undefined()),
        },
        // IC IALLUIS, IALLU; DC ISW, CSW, CISW.
        (0, 7, 1 | 5, 0) | (0, 7, 6 | 10 | 14, 2) => synchronised(cpu),
        // DC IVAC; CVAC, CVAU, CVAP, CIVAC; IC IVAU.
        (0, 7, 6, 1) | (3, 7, 10 | 11 | 12 | 14, 1) | (3, 7, 5, 1) => {
            cpu.maintain(operand)?;
            Ok(Flow::Next)
        }
        (3, 7, 4, 1) => {
            cpu.zero_block(operand)?;
            Ok(Flow::Next)
        }
        (0 | 4, 7, 8 | 9, _) => at(cpu, op1, crm, op2, operand),
        _ => Err(cpu.undefined()),
    }
}

/// What EL0 may do of SYS, if SCTLR_ELx.UCI and DZE permit.
fn sys_user(cpu: &mut Cpu, i: &Insn, operand: u64) -> Done {
    let sctlr = cpu.s.get(if cpu.e2h() && cpu.tge() { Sys::SCTLR_EL2 } else { Sys::SCTLR_EL1 });
    let (zero, maintain) = (sctlr >> 14 & 1 != 0, sctlr >> 26 & 1 != 0);
    match (i.bits(18, 16), i.bits(15, 12), i.bits(11, 8), i.bits(7, 5)) {
        (3, 7, 4, 1) if zero => {
            cpu.zero_block(operand)?;
            Ok(Flow::Next)
        }
        (3, 7, 5 | 10 | 11 | 12 | 14, 1) if maintain => {
            cpu.maintain(operand)?;
            Ok(Flow::Next)
        }
        (3, 7, 4 | 5 | 10 | 11 | 12 | 14, 1) => Err(cpu.raise(registers::syndrome(i, i.raw & 31, false))),
        _ => Err(cpu.undefined()),
    }
}

fn at(cpu: &mut Cpu, op1: u32, crm: u32, op2: u32, address: u64) -> Done {
    let el2_base = if cpu.e2h() { 5 } else { 3 };
    let own = if cpu.s.pstate.el == El::Two && cpu.e2h() && cpu.tge() { 4 } else { 0 };
    let pan = usize::from(cpu.s.pstate.pan);
    let (mode, write, both) = match (op1, crm, op2) {
        (0, 8, 0 | 1) => (own + 1, op2 == 1, false),
        (0, 8, 2 | 3) => (own, op2 == 3, false),
        (0, 9, 0 | 1) => (own + 1 + pan, op2 == 1, false),
        (4, 8, 0 | 1) => (el2_base, op2 == 1, false),
        (4, 8, 4 | 5) => (1, op2 == 5, true),
        (4, 8, 6 | 7) => (0, op2 == 7, true),
        _ => return Err(cpu.undefined()),
    };
    let par = cpu.address_translation(mode, address, write, both);
    cpu.s.set(Sys::PAR_EL1, par);
    Ok(Flow::Next)
}
