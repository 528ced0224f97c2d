//! MRS and MSR: who may, what is redirected, and what the registers do.

use satori_arm_engine::Exit;
use satori_arm_state::{
    Access, El, Kind, Pstate, REGISTERS, Redirected, Register, Sys, encoding, find, redirect,
};

use super::{interface, timer};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow, Stop, hcr};
use crate::exception::{Syndrome, ec};
use crate::exec::Done;

/// No row: the number of an encoding without a register of its own.
const NONE: u64 = 0xffff;
/// op0 of debug registers.
const DEBUG: u16 = 2;

/// op0, op1, CRn, CRm, op2 of the word.
fn encoded(i: &Insn) -> u16 {
    i.bits(20, 5) as u16
}

/// Looks the register up once.
fn prepare(i: &mut Insn) {
    i.imm = find(encoded(i)).map_or(NONE, |row| row.sys as u64);
}

pub(super) fn mrs(i: &mut Insn) -> Handler {
    prepare(i);
    match i.imm {
        own if own == Sys::SP_EL0 as u64 => mrs_sp_el0,
        own if own == Sys::TPIDR_EL1 as u64 => mrs_tpidr_el1,
        _ => mrs_any,
    }
}

pub(super) fn msr(i: &mut Insn) -> Handler {
    prepare(i);
    msr_any
}

/// What Linux reads most: the current task.
fn mrs_sp_el0(cpu: &mut Cpu, i: &Insn) -> Done {
    if cpu.s.pstate.el == El::Zero || !cpu.s.pstate.own_sp {
        return mrs_any(cpu, i);
    }
    cpu.exits.read(Sys::SP_EL0);
    cpu.set_x(i.rd, cpu.s.sp[0]);
    Ok(Flow::Next)
}

fn mrs_tpidr_el1(cpu: &mut Cpu, i: &Insn) -> Done {
    if cpu.s.pstate.el == El::Zero {
        return mrs_any(cpu, i);
    }
    cpu.exits.read(Sys::TPIDR_EL1);
    cpu.set_x(i.rd, cpu.s.get(Sys::TPIDR_EL1));
    Ok(Flow::Next)
}

/// ESR_ELx.ISS of a trapped MSR, MRS or SYS.
pub(super) fn syndrome(i: &Insn, rt: u32, read: bool) -> Syndrome {
    let (op0, op1) = (i.bits(20, 19), i.bits(18, 16));
    let (crn, crm, op2) = (i.bits(15, 12), i.bits(11, 8), i.bits(7, 5));
    let iss = op0 << 20 | op2 << 17 | op1 << 14 | crn << 10 | rt << 5 | crm << 1 | u32::from(read);
    Syndrome::new(ec::SYS, iss)
}

/// What a row is for an access.
enum Target {
    /// That register.
    Row(&'static Register),
    /// Reads as zero; writes are UNDEFINED: the identification space without a row.
    Zero,
}

fn is_identification(encoding: u16) -> bool {
    let first = self::encoding(3, 0, 0, 1, 0);
    (first..first + 7 * 8).contains(&encoding)
}

/// Which register is meant, if the level may access it at all.
fn target(cpu: &mut Cpu, i: &Insn, read: bool) -> Result<Target, Stop> {
    let (code, el) = (encoded(i), cpu.s.pstate.el);
    let op1 = i.bits(18, 16);
    let least = match op1 {
        3 => El::Zero,
        4 | 5 => El::Two,
        6 | 7 => return Err(cpu.undefined()),
        _ => El::One,
    };
    if el < least || (op1 >= 4 && !cpu.offered.el2) {
        return Err(cpu.undefined());
    }
    let named = REGISTERS.get(i.imm as usize).map(|row| row.sys);
    let found = match redirect(code, named, el, cpu.e2h(), cpu.tge()) {
        Redirected::To(sys) => sys.row(),
        Redirected::Undefined if is_identification(code) && read => {
            trap_to_el2(cpu, i, read, Trap::Identification)?;
            return Ok(Target::Zero);
        }
        Redirected::Undefined => return Err(cpu.undefined()),
    };
    match (found.access, read) {
        (Access::Ro, false) | (Access::Wo, true) => Err(cpu.undefined()),
        _ => Ok(Target::Row(found)),
    }
}

/// Groups of registers that a hypervisor may keep for itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trap {
    Identification,
    Of(Sys),
}

/// Traps of EL1 and, under a guest, EL0 to EL2.
fn trap_to_el2(cpu: &mut Cpu, i: &Insn, read: bool, what: Trap) -> Result<(), Stop> {
    let hcr_el2 = cpu.hcr();
    if hcr_el2 == 0 || cpu.s.pstate.el == El::Two || (cpu.e2h() && cpu.tge()) {
        return Ok(());
    }
    let on = |bit: u64| hcr_el2 & bit != 0;
    let trapped = match what {
        Trap::Identification => on(1 << 18),
        Trap::Of(sys) => match sys {
            Sys::SCTLR_EL1
            | Sys::TTBR0_EL1
            | Sys::TTBR1_EL1
            | Sys::TCR_EL1
            | Sys::ESR_EL1
            | Sys::FAR_EL1
            | Sys::AFSR0_EL1
            | Sys::AFSR1_EL1
            | Sys::MAIR_EL1
            | Sys::AMAIR_EL1
            | Sys::CONTEXTIDR_EL1 => on(if read { hcr::TRVM } else { hcr::TVM }),
            Sys::ACTLR_EL1 => on(1 << 21),
            Sys::CTR_EL0 | Sys::CCSIDR_EL1 | Sys::CLIDR_EL1 | Sys::CSSELR_EL1 => on(1 << 17),
            Sys::AIDR_EL1 | Sys::REVIDR_EL1 => on(1 << 16),
            // TCPAC is bit 31 of CPTR_EL2 whatever E2H is.
            Sys::CPACR_EL1 => cpu.s.get(Sys::CPTR_EL2) >> 31 & 1 != 0,
            Sys::ICC_SGI0R_EL1 | Sys::ICC_SGI1R_EL1 | Sys::ICC_ASGI1R_EL1 => on(hcr::IMO | hcr::FMO),
            _ if is_identification(sys.row().encoding) => on(1 << 18),
            _ if sys.row().encoding >> 14 == DEBUG => debug_trap(cpu, sys),
            _ => false,
        },
    };
    match trapped {
        true => Err(cpu.raise(syndrome(i, i.raw & 31, read).to_el2())),
        false => Ok(()),
    }
}

/// MDCR_EL2: TDOSA for the OS lock, TDRA for the ROM address, TDA for the rest.
fn debug_trap(cpu: &Cpu, sys: Sys) -> bool {
    let mdcr = cpu.s.get(Sys::MDCR_EL2);
    let bit = match sys {
        Sys::OSLAR_EL1 | Sys::OSLSR_EL1 | Sys::OSDLR_EL1 | Sys::DBGPRCR_EL1 => 10,
        Sys::MDRAR_EL1 => 11,
        _ => 9,
    };
    mdcr >> bit & 1 != 0
}

/// Cache and TLB maintenance of EL1 that traps to EL2: TSW, TPC, TPU, TTLB.
pub(super) fn trapped_maintenance(cpu: &Cpu, i: &Insn) -> Option<Syndrome> {
    let hcr_el2 = cpu.hcr();
    if cpu.s.pstate.el != El::One || hcr_el2 == 0 {
        return None;
    }
    let bit = match (i.bits(18, 16), i.bits(15, 12), i.bits(11, 8), i.bits(7, 5)) {
        (_, 8, _, _) => 25,
        (0, 7, 6 | 10 | 14, 2) => 22,
        (0, 7, 6, 1) | (3, 7, 10 | 12 | 14, 1) => 23,
        (0, 7, 1 | 5, 0) | (3, 7, 5 | 11, 1) => 24,
        _ => return None,
    };
    (hcr_el2 >> bit & 1 != 0).then(|| syndrome(i, i.raw & 31, false).to_el2())
}

/// What EL0 needs leave for.
fn user_access(cpu: &mut Cpu, i: &Insn, sys: Sys, read: bool) -> Result<(), Stop> {
    if cpu.s.pstate.el != El::Zero {
        return Ok(());
    }
    let host = cpu.e2h() && cpu.tge();
    let sctlr = cpu.s.get(if host { Sys::SCTLR_EL2 } else { Sys::SCTLR_EL1 });
    let permitted = match sys {
        Sys::NZCV | Sys::FPCR | Sys::FPSR | Sys::TPIDR_EL0 => true,
        Sys::TPIDRRO_EL0 | Sys::DCZID_EL0 => read,
        Sys::CTR_EL0 => sctlr >> 15 & 1 != 0,
        Sys::DAIF => sctlr >> 9 & 1 != 0,
        _ => timer::user_may(cpu, sys),
    };
    match permitted {
        true => Ok(()),
        false => Err(cpu.raise(syndrome(i, i.raw & 31, read))),
    }
}

fn mrs_any(cpu: &mut Cpu, i: &Insn) -> Done {
    let row = match target(cpu, i, true)? {
        Target::Zero => {
            cpu.set_x(i.rd, 0);
            return Ok(Flow::Next);
        }
        Target::Row(row) => row,
    };
    user_access(cpu, i, row.sys, true)?;
    trap_to_el2(cpu, i, true, Trap::Of(row.sys))?;
    let value = match row.kind {
        Kind::Keep | Kind::Mmu => kept(cpu, row.sys),
        Kind::Timer => {
            timer::trap(cpu, i, row.sys, true)?;
            timer::read(cpu, row.sys)
        }
        Kind::Gic => interface::read(cpu, i, row.sys)?,
        Kind::Special => match special(cpu, i, row.sys)? {
            Some(value) => value,
            None => return Err(cpu.undefined()),
        },
    };
    cpu.exits.read(row.sys);
    cpu.set_x(i.rd, value);
    Ok(Flow::Next)
}

/// A register that is as it was written. A guest sees the identity that its hypervisor gave it.
fn kept(cpu: &Cpu, sys: Sys) -> u64 {
    let guest = cpu.offered.el2 && cpu.s.pstate.el == El::One;
    match sys {
        Sys::MIDR_EL1 if guest => cpu.s.get(Sys::VPIDR_EL2),
        Sys::MPIDR_EL1 if guest => cpu.s.get(Sys::VMPIDR_EL2),
        _ => cpu.s.get(sys),
    }
}

/// What is computed.
fn special(cpu: &mut Cpu, i: &Insn, sys: Sys) -> Result<Option<u64>, Stop> {
    let state = &cpu.s.pstate;
    Ok(Some(match sys {
        Sys::NZCV => state.nzcv.into(),
        Sys::DAIF => state.daif.into(),
        Sys::FPCR | Sys::FPSR => {
            if !cpu.fp_ok {
                return Err(cpu.fp_trap());
            }
            if sys == Sys::FPCR { cpu.s.fpcr.into() } else { cpu.s.fpsr.into() }
        }
        Sys::CurrentEL => (state.el as u64) << 2,
        Sys::SPSel => state.own_sp.into(),
        Sys::PAN => u64::from(state.pan) << 22,
        Sys::UAO => u64::from(state.uao) << 23,
        Sys::SP_EL0 if state.own_sp => cpu.s.sp[0],
        Sys::SP_EL1 if state.el == El::Two => cpu.s.sp[1],
        // A guest sees its virtual interrupts; who takes the physical ones sees these alone, as it looks before it enters a guest.
        Sys::ISR_EL1 if state.el == El::One && cpu.routes_irq_to_el2() => u64::from(cpu.virq()) << 7,
        Sys::ISR_EL1 => u64::from(cpu.controls.irq) << 7,
        // The caches that CLIDR_EL1 names: 64 KiB of 64-byte lines and four ways, 512 KiB of eight.
        Sys::CCSIDR_EL1 => match cpu.s.get(Sys::CSSELR_EL1) & 15 {
            0 | 1 => 255 << 13 | 3 << 3 | 2,
            2 => 1023 << 13 | 7 << 3 | 2,
            _ => 0,
        },
        Sys::OSLSR_EL1 => cpu.s.get(Sys::OSLSR_EL1),
        Sys::CNTPCT_EL0 | Sys::CNTVCT_EL0 => {
            timer::trap(cpu, i, sys, true)?;
            timer::count(cpu, sys)
        }
        _ => return Ok(None),
    }))
}

fn msr_any(cpu: &mut Cpu, i: &Insn) -> Done {
    let row = match target(cpu, i, false)? {
        Target::Zero => return Err(cpu.undefined()),
        Target::Row(row) => row,
    };
    user_access(cpu, i, row.sys, false)?;
    trap_to_el2(cpu, i, false, Trap::Of(row.sys))?;
    let done = write(cpu, i, row);
    // What asks is executed again, and what trapped wrote nothing.
    if !matches!(done, Err(Stop::Ask | Stop::Exception)) {
        cpu.exits.wrote(row.sys);
    }
    done
}

fn write(cpu: &mut Cpu, i: &Insn, row: &Register) -> Done {
    let value = cpu.x(i.rd);
    match row.kind {
        Kind::Keep => {
            // The counter's frequency is the highest level's to write.
            if row.sys == Sys::CNTFRQ_EL0 && cpu.offered.el2 && cpu.s.pstate.el != El::Two {
                return Err(cpu.undefined());
            }
            cpu.s.set(row.sys, value);
            if row.encoding >> 14 == DEBUG {
                cpu.synchronise();
                return super::synchronised(cpu);
            }
            Ok(Flow::Next)
        }
        Kind::Mmu => {
            cpu.s.set(row.sys, writable(row.sys, value));
            cpu.tlb.context_changed();
            cpu.synchronise();
            super::synchronised(cpu)
        }
        Kind::Timer => {
            timer::trap(cpu, i, row.sys, false)?;
            timer::write(cpu, row.sys, value);
            super::leave(cpu, Exit::Timer)
        }
        Kind::Gic => interface::write(cpu, i, row.sys, value),
        Kind::Special => set_special(cpu, row.sys, value),
    }
}

/// What of a value is kept: the rest is RES0 or RES1.
fn writable(sys: Sys, value: u64) -> u64 {
    match sys {
        Sys::SCTLR_EL1 => value | 0x3050_0800 | 1 << 28 | 1 << 29,
        // EL1 is always AArch64.
        Sys::HCR_EL2 => value | 1 << 31,
        _ => value,
    }
}

fn set_special(cpu: &mut Cpu, sys: Sys, value: u64) -> Done {
    match sys {
        Sys::NZCV => {
            cpu.s.pstate.nzcv = value as u32 & 0xf000_0000;
            return Ok(Flow::Next);
        }
        Sys::FPCR | Sys::FPSR => {
            if !cpu.fp_ok {
                return Err(cpu.fp_trap());
            }
            match sys {
                // AHP, DN, FZ and RMode: exceptions are not trapped.
                Sys::FPCR => cpu.s.fpcr = value as u32 & 0x07c0_0000,
                _ => cpu.s.fpsr = value as u32 & 0x0800_009f,
            }
            return Ok(Flow::Next);
        }
        Sys::DAIF => cpu.s.pstate.daif = value as u32 & Pstate::DAIF,
        Sys::PAN => cpu.s.pstate.pan = value >> 22 & 1 != 0,
        Sys::UAO => cpu.s.pstate.uao = value >> 23 & 1 != 0,
        Sys::SPSel => {
            let el = cpu.s.pstate.el;
            cpu.s.enter(el, value & 1 != 0);
        }
        Sys::SP_EL0 if cpu.s.pstate.own_sp => {
            cpu.s.sp[0] = value;
            return Ok(Flow::Next);
        }
        Sys::SP_EL1 if cpu.s.pstate.el == El::Two => {
            cpu.s.sp[1] = value;
            return Ok(Flow::Next);
        }
        Sys::OSLAR_EL1 => cpu.s.set(Sys::OSLSR_EL1, 8 | (value & 1) << 1),
        _ => return Err(cpu.undefined()),
    }
    cpu.synchronise();
    super::synchronised(cpu)
}
