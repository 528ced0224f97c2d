//! Loads and stores of one register or a pair.

use satori_arm_isa::Op;
use satori_arm_state::{El, Sys};

use super::integer::extended;
use super::{Done, zero};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow, Stop};
use crate::exception::{Syndrome, ec};
use crate::mmu::Access;

/// How an address is made: base and offset, the same before or behind a write of the base, base and register, and the
/// unprivileged forms.
const OFFSET: u8 = 0;
const POST: u8 = 1;
const PRE: u8 = 2;
const REGISTER: u8 = 3;
const USER: u8 = 4;

/// How what is loaded fills the register.
const ZEROS: u8 = 0;
const SIGN: u8 = 1;
const SIGN32: u8 = 2;

macro_rules! by_size {
    ($size:expr, $handler:ident, $form:expr $(, $rest:expr)*) => {
        match $size {
            0 => $handler::<1, { $form } $(, { $rest })*>,
            1 => $handler::<2, { $form } $(, { $rest })*>,
            2 => $handler::<4, { $form } $(, { $rest })*>,
            _ => $handler::<8, { $form } $(, { $rest })*>,
        }
    };
}

/// The handler of a family of rows that differ in how the address is made.
macro_rules! family {
    ($op:ident, $size:expr, $i:ident: $($row:ident $handler:ident $form:ident $($rest:ident)?;)*) => {
        match $op {
            $(Op::$row => Some(by_size!($size, $handler, $form $(, $rest)?) as Handler),)*
            _ => None,
        }
    };
}

fn set_offset(op: Op, i: &mut Insn, size: u32) {
    let name_is = |all: &[Op]| all.contains(&op);
    let signed9 = ((u64::from(i.bits(20, 12)) << 55) as i64 >> 55) as u64;
    let unsigned = name_is(&[
        Op::StUns,
        Op::LdUns,
        Op::LdSxUns,
        Op::LdSwUns,
        Op::StVUns,
        Op::LdVUns,
        Op::StQUns,
        Op::LdQUns,
    ]);
    let register = name_is(&[
        Op::StReg,
        Op::LdReg,
        Op::LdSxReg,
        Op::LdSwReg,
        Op::StVReg,
        Op::LdVReg,
        Op::StQReg,
        Op::LdQReg,
    ]);
    i.imm = match (unsigned, register) {
        (true, _) => u64::from(i.bits(21, 10)) << size,
        (_, true) => u64::from(i.bits(12, 12) * size),
        _ => signed9,
    };
}

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    let raw_d = (i.raw & 31) as u8;
    i.rn = (i.raw >> 5 & 31) as u8;
    let found = pair(op, i).or_else(|| literal(op, i));
    if found.is_some() {
        return found;
    }
    let size = i.bits(31, 30);
    let found = family!(op, size, i:
        StUns st OFFSET; StUnscaled st OFFSET; StPost st POST; StPre st PRE; StReg st REGISTER; StUnpriv st USER;);
    if found.is_some() {
        set_offset(op, i, size);
        i.rd = zero(raw_d);
        return found;
    }
    let found = family!(op, size, i:
        LdUns ld OFFSET ZEROS; LdUnscaled ld OFFSET ZEROS; LdPost ld POST ZEROS; LdPre ld PRE ZEROS;
        LdReg ld REGISTER ZEROS; LdUnpriv ld USER ZEROS;
        LdSxUns ld OFFSET SIGN; LdSxUnscaled ld OFFSET SIGN; LdSxPost ld POST SIGN; LdSxPre ld PRE SIGN;
        LdSxReg ld REGISTER SIGN; LdSxUnpriv ld USER SIGN;
        LdSwUns ld OFFSET SIGN32; LdSwUnscaled ld OFFSET SIGN32; LdSwPost ld POST SIGN32; LdSwPre ld PRE SIGN32;
        LdSwReg ld REGISTER SIGN32; LdSwUnpriv ld USER SIGN32;);
    if found.is_some() {
        set_offset(op, i, size);
        return found;
    }
    let found = family!(op, size, i:
        StVUns stv OFFSET; StVUnscaled stv OFFSET; StVPost stv POST; StVPre stv PRE; StVReg stv REGISTER;
        LdVUns ldv OFFSET; LdVUnscaled ldv OFFSET; LdVPost ldv POST; LdVPre ldv PRE; LdVReg ldv REGISTER;);
    if found.is_some() {
        set_offset(op, i, size);
        (i.rd, i.fp) = (raw_d, true);
        return found;
    }
    let found: Option<Handler> = Some(match op {
        Op::StQUns | Op::StQUnscaled => stq::<OFFSET>,
        Op::StQPost => stq::<POST>,
        Op::StQPre => stq::<PRE>,
        Op::StQReg => stq::<REGISTER>,
        Op::LdQUns | Op::LdQUnscaled => ldq::<OFFSET>,
        Op::LdQPost => ldq::<POST>,
        Op::LdQPre => ldq::<PRE>,
        Op::LdQReg => ldq::<REGISTER>,
        Op::Prfm | Op::Prfum | Op::PrfmReg => nothing,
        _ => {
            i.rn = zero(i.rn);
            return None;
        }
    });
    if !matches!(op, Op::Prfm | Op::Prfum | Op::PrfmReg) {
        set_offset(op, i, 4);
        (i.rd, i.fp) = (raw_d, true);
    }
    found
}

fn nothing(_: &mut Cpu, _: &Insn) -> Done {
    Ok(Flow::Next)
}

/// What the base register holds. A stack pointer has to be aligned.
#[inline(always)]
pub(super) fn base(cpu: &mut Cpu, i: &Insn) -> Result<u64, Stop> {
    let base = cpu.x(i.rn);
    if i.rn == 31 && base & 15 != 0 {
        check_sp(cpu)?;
    }
    Ok(base)
}

#[cold]
fn check_sp(cpu: &mut Cpu) -> Result<(), Stop> {
    let (sctlr, bit) = match cpu.s.pstate.el {
        El::Zero if cpu.e2h() && cpu.tge() => (Sys::SCTLR_EL2, 4),
        El::Zero => (Sys::SCTLR_EL1, 4),
        El::One => (Sys::SCTLR_EL1, 3),
        El::Two => (Sys::SCTLR_EL2, 3),
    };
    match cpu.s.get(sctlr) >> bit & 1 {
        0 => Ok(()),
        _ => Err(cpu.raise(Syndrome::new(ec::SP_ALIGNMENT, 0))),
    }
}

/// The address, and what the base register becomes.
#[inline(always)]
fn address<const FORM: u8>(cpu: &mut Cpu, i: &Insn) -> Result<(u64, u64), Stop> {
    let base = base(cpu, i)?;
    Ok(match FORM {
        REGISTER => {
            let index = extended(cpu.x(i.rm), i.bits(15, 13), i.imm as u32);
            (base.wrapping_add(index), base)
        }
        POST => (base, base.wrapping_add(i.imm)),
        _ => {
            let address = base.wrapping_add(i.imm);
            (address, address)
        }
    })
}

#[inline(always)]
fn mode<const FORM: u8>(cpu: &Cpu) -> usize {
    if FORM == USER { cpu.user_mode } else { cpu.mode }
}

#[inline(always)]
fn write_back<const FORM: u8>(cpu: &mut Cpu, i: &Insn, base: u64) {
    if FORM == POST || FORM == PRE {
        cpu.set_x(i.rn, base);
    }
}

fn st<const N: usize, const FORM: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    cpu.write::<N>(mode::<FORM>(cpu), address, cpu.x(i.rd))?;
    write_back::<FORM>(cpu, i, base);
    Ok(Flow::Next)
}

#[inline(always)]
fn extend<const N: usize, const EXTEND: u8>(value: u64) -> u64 {
    let up = 64 - 8 * N as u32;
    match EXTEND {
        ZEROS => value,
        SIGN => ((value << up) as i64 >> up) as u64,
        _ => ((value << up) as i64 >> up) as u32 as u64,
    }
}

fn ld<const N: usize, const FORM: u8, const EXTEND: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    let value = cpu.read::<N>(mode::<FORM>(cpu), address)?;
    write_back::<FORM>(cpu, i, base);
    cpu.set_x(i.rd, extend::<N, EXTEND>(value));
    Ok(Flow::Next)
}

fn stv<const N: usize, const FORM: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    cpu.write::<N>(cpu.mode, address, cpu.s.v[usize::from(i.rd & 31)] as u64)?;
    write_back::<FORM>(cpu, i, base);
    Ok(Flow::Next)
}

fn ldv<const N: usize, const FORM: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    cpu.s.v[usize::from(i.rd & 31)] = cpu.read::<N>(cpu.mode, address)?.into();
    write_back::<FORM>(cpu, i, base);
    Ok(Flow::Next)
}

fn stq<const FORM: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    cpu.write16(cpu.mode, address, cpu.s.v[usize::from(i.rd & 31)])?;
    write_back::<FORM>(cpu, i, base);
    Ok(Flow::Next)
}

fn ldq<const FORM: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    cpu.s.v[usize::from(i.rd & 31)] = cpu.read16(cpu.mode, address)?;
    write_back::<FORM>(cpu, i, base);
    Ok(Flow::Next)
}

// Literals.

fn literal(op: Op, i: &mut Insn) -> Option<Handler> {
    let offset = ((u64::from(i.bits(23, 5)) << 45) as i64 >> 43) as u64;
    let found: Handler = match op {
        Op::LdrLitW => literal_general::<4, ZEROS>,
        Op::LdrLitX => literal_general::<8, ZEROS>,
        Op::LdrswLit => literal_general::<4, SIGN>,
        Op::PrfmLit => nothing,
        Op::LdrLitS => literal_vector::<4>,
        Op::LdrLitD => literal_vector::<8>,
        Op::LdrLitQ => literal_vector::<16>,
        _ => return None,
    };
    i.imm = offset;
    if matches!(op, Op::LdrLitS | Op::LdrLitD | Op::LdrLitQ) {
        (i.rd, i.fp) = ((i.raw & 31) as u8, true);
    }
    Some(found)
}

fn literal_general<const N: usize, const EXTEND: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.read::<N>(cpu.mode, cpu.s.pc.wrapping_add(i.imm))?;
    cpu.set_x(i.rd, extend::<N, EXTEND>(value));
    Ok(Flow::Next)
}

fn literal_vector<const N: usize>(cpu: &mut Cpu, i: &Insn) -> Done {
    let address = cpu.s.pc.wrapping_add(i.imm);
    cpu.s.v[usize::from(i.rd & 31)] = match N {
        4 => cpu.read::<4>(cpu.mode, address)?.into(),
        8 => cpu.read::<8>(cpu.mode, address)?.into(),
        _ => cpu.read16(cpu.mode, address)?,
    };
    Ok(Flow::Next)
}

// Pairs.

fn pair(op: Op, i: &mut Insn) -> Option<Handler> {
    // Size, and whether it is a vector's.
    let (size, vector): (u32, bool) = match op {
        Op::Stp32 | Op::Ldp32 | Op::Ldpsw => (2, false),
        Op::Stp64 | Op::Ldp64 => (3, false),
        Op::StpS | Op::LdpS => (2, true),
        Op::StpD | Op::LdpD => (3, true),
        Op::StpQ | Op::LdpQ => (4, true),
        _ => return None,
    };
    i.imm = (((u64::from(i.bits(21, 15)) << 57) as i64 >> 57) << size) as u64;
    let store = !i.bit(22);
    let raw = ((i.raw & 31) as u8, (i.raw >> 10 & 31) as u8);
    (i.rd, i.ra) = match (vector, store) {
        (true, _) => raw,
        (false, true) => (zero(raw.0), zero(raw.1)),
        (false, false) => (super::sink(raw.0), super::sink(raw.1)),
    };
    i.fp = vector;
    macro_rules! form {
        ($handler:ident $(, $rest:expr)*) => {
            match i.bits(24, 23) {
                1 => $handler::<POST $(, { $rest })*> as Handler,
                3 => $handler::<PRE $(, { $rest })*>,
                _ => $handler::<OFFSET $(, { $rest })*>,
            }
        };
    }
    Some(match op {
        Op::Stp32 => form!(stp, 4),
        Op::Stp64 => form!(stp, 8),
        Op::Ldp32 => form!(ldp, 4, ZEROS),
        Op::Ldpsw => form!(ldp, 4, SIGN),
        Op::Ldp64 => form!(ldp, 8, ZEROS),
        Op::StpS => form!(stp_vector, 4),
        Op::StpD => form!(stp_vector, 8),
        Op::StpQ => form!(stp_vector, 16),
        Op::LdpS => form!(ldp_vector, 4),
        Op::LdpD => form!(ldp_vector, 8),
        _ => form!(ldp_vector, 16),
    })
}

fn stp<const FORM: u8, const N: usize>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    let (first, second) = (cpu.x(i.rd), cpu.x(i.ra));
    cpu.write::<N>(cpu.mode, address, first)?;
    cpu.write::<N>(cpu.mode, address.wrapping_add(N as u64), second)?;
    write_back::<FORM>(cpu, i, base);
    Ok(Flow::Next)
}

fn ldp<const FORM: u8, const N: usize, const EXTEND: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    let first = cpu.read::<N>(cpu.mode, address)?;
    let second = cpu.read::<N>(cpu.mode, address.wrapping_add(N as u64))?;
    write_back::<FORM>(cpu, i, base);
    cpu.set_x(i.rd, extend::<N, EXTEND>(first));
    cpu.set_x(i.ra, extend::<N, EXTEND>(second));
    Ok(Flow::Next)
}

/// Stores the low `N` bytes of a vector register.
pub(super) fn store_vector<const N: usize>(cpu: &mut Cpu, address: u64, value: u128) -> Result<(), Stop> {
    match N {
        4 => cpu.write::<4>(cpu.mode, address, value as u64),
        8 => cpu.write::<8>(cpu.mode, address, value as u64),
        _ => cpu.write16(cpu.mode, address, value),
    }
}

pub(super) fn load_vector<const N: usize>(cpu: &mut Cpu, address: u64) -> Result<u128, Stop> {
    Ok(match N {
        4 => cpu.read::<4>(cpu.mode, address)?.into(),
        8 => cpu.read::<8>(cpu.mode, address)?.into(),
        _ => cpu.read16(cpu.mode, address)?,
    })
}

fn stp_vector<const FORM: u8, const N: usize>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    let (first, second) = (cpu.s.v[usize::from(i.rd & 31)], cpu.s.v[usize::from(i.ra & 31)]);
    store_vector::<N>(cpu, address, first)?;
    store_vector::<N>(cpu, address.wrapping_add(N as u64), second)?;
    write_back::<FORM>(cpu, i, base);
    Ok(Flow::Next)
}

fn ldp_vector<const FORM: u8, const N: usize>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, base) = address::<FORM>(cpu, i)?;
    let first = load_vector::<N>(cpu, address)?;
    let second = load_vector::<N>(cpu, address.wrapping_add(N as u64))?;
    write_back::<FORM>(cpu, i, base);
    cpu.s.v[usize::from(i.rd & 31)] = first;
    cpu.s.v[usize::from(i.ra & 31)] = second;
    Ok(Flow::Next)
}

/// Reads 1, 2, 4 or 8 bytes; which, is known when it runs only.
pub(super) fn read_sized(cpu: &mut Cpu, mode: usize, address: u64, size: u32) -> Result<u64, Stop> {
    match size {
        0 => cpu.read::<1>(mode, address),
        1 => cpu.read::<2>(mode, address),
        2 => cpu.read::<4>(mode, address),
        _ => cpu.read::<8>(mode, address),
    }
}

/// Writes 1, 2, 4 or 8 bytes.
pub(super) fn write_sized(
    cpu: &mut Cpu,
    mode: usize,
    address: u64,
    size: u32,
    value: u64,
) -> Result<(), Stop> {
    match size {
        0 => cpu.write::<1>(mode, address, value),
        1 => cpu.write::<2>(mode, address, value),
        2 => cpu.write::<4>(mode, address, value),
        _ => cpu.write::<8>(mode, address, value),
    }
}

/// Checks the alignment that ordered and exclusive accesses need.
pub(super) fn check_aligned(cpu: &mut Cpu, address: u64, size: u32, write: bool) -> Result<(), Stop> {
    cpu.aligned(address, 1 << size, if write { Access::Write } else { Access::Read })
}
