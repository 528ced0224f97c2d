//! Shifts and rotates. A count of zero leaves the flags alone.

use iced_x86::Instruction;

use super::operand::{load, modify, sign, size};
use super::sized;
use crate::cpu::{Cpu, Exec};
use crate::flags::{Flags, Int};
use crate::insn::{Row, rows};

/// A shift or rotate by a masked count that is not zero.
trait Shift {
    fn apply<T: Int>(flags: &mut Flags, value: T, count: u32) -> T;
}

struct Shl;
impl Shift for Shl {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, value: T, count: u32) -> T {
        let bits = value.into();
        let result = T::from_u64(bits << count);
        let carry = count <= T::BITS && bits >> (T::BITS - count) & 1 != 0;
        flags.shifted(result, carry, carry != sign(result));
        result
    }
}

struct Shr;
impl Shift for Shr {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, value: T, count: u32) -> T {
        let bits = value.into();
        let result = T::from_u64(bits >> count);
        let doubled = T::from_u64(result.into() << 1);
        flags.shifted(result, bits >> (count - 1) & 1 != 0, sign(result) != sign(doubled));
        result
    }
}

struct Sar;
impl Shift for Sar {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, value: T, count: u32) -> T {
        let bits = value.sext() as i64;
        let result = T::from_u64((bits >> count) as u64);
        flags.shifted(result, bits >> (count - 1) & 1 != 0, false);
        result
    }
}

/// `value` rotated left; `count` is taken modulo its width.
fn rotate<T: Int>(value: T, count: u32) -> T {
    let (bits, count): (u64, u32) = (value.into(), count % T::BITS);
    if count == 0 {
        return value;
    }
    T::from_u64(bits << count | bits >> (T::BITS - count))
}

struct Rol;
impl Shift for Rol {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, value: T, count: u32) -> T {
        let result = rotate(value, count);
        let carry = result.into() & 1 != 0;
        flags.set_cf_of(carry, carry != sign(result));
        result
    }
}

struct Ror;
impl Shift for Ror {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, value: T, count: u32) -> T {
        let result = rotate(value, T::BITS - count % T::BITS);
        let doubled = T::from_u64(result.into() << 1);
        flags.set_cf_of(sign(result), sign(result) != sign(doubled));
        result
    }
}

/// CF and `value` rotated left together by less than their common width.
fn rotate_with_carry<T: Int>(carry: bool, value: T, count: u32) -> (bool, T) {
    let width = T::BITS + 1;
    let joined = u128::from(carry) << T::BITS | u128::from(value.into());
    let turned = joined << count | joined >> (width - count);
    (turned >> T::BITS & 1 != 0, T::from_u64(turned as u64))
}

struct Rcl;
impl Shift for Rcl {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, value: T, count: u32) -> T {
        let count = count % (T::BITS + 1);
        if count == 0 {
            return value;
        }
        let (carry, result) = rotate_with_carry(flags.cf(), value, count);
        flags.set_cf_of(carry, carry != sign(result));
        result
    }
}

struct Rcr;
impl Shift for Rcr {
    #[inline(always)]
    fn apply<T: Int>(flags: &mut Flags, value: T, count: u32) -> T {
        let count = count % (T::BITS + 1);
        if count == 0 {
            return value;
        }
        let (carry, result) = rotate_with_carry(flags.cf(), value, T::BITS + 1 - count);
        let doubled = T::from_u64(result.into() << 1);
        flags.set_cf_of(carry, sign(result) != sign(doubled));
        result
    }
}

/// The count, masked to 5 bits or, for 64-bit operands, 6.
fn count<T: Int>(cpu: &mut Cpu, insn: &Instruction, op: u32) -> Exec<u32> {
    let mask = if T::BITS == 64 { 63 } else { 31 };
    Ok(u32::from(load::<u8>(cpu, insn, op)?) & mask)
}

fn shift<S: Shift, T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let count = count::<T>(cpu, insn, 1)?;
    modify(cpu, insn, |flags, value: T| if count == 0 { value } else { S::apply(flags, value, count) })?;
    Ok(())
}

/// SHLD. A 16-bit one by more than 16 is undefined: bits of the destination come in again.
fn left_double<T: Int>(flags: &mut Flags, value: T, source: u64, count: u32) -> T {
    let bits = u128::from(value.into());
    // Only 16-bit operands see the third part.
    let (joined, top) = if T::BITS == 16 {
        (bits << 32 | u128::from(source) << 16 | bits, 32)
    } else {
        (bits << T::BITS | u128::from(source), T::BITS)
    };
    let result = T::from_u64((joined << count >> top) as u64);
    let carry = joined >> (top + T::BITS - count) & 1 != 0;
    flags.shifted(result, carry, sign(result) != sign(value));
    result
}

/// SHRD, likewise.
fn right_double<T: Int>(flags: &mut Flags, value: T, source: u64, count: u32) -> T {
    let bits = u128::from(value.into());
    let again = if T::BITS == 16 { bits << 32 } else { 0 };
    let joined = again | u128::from(source) << T::BITS | bits;
    let result = T::from_u64((joined >> count) as u64);
    let carry = joined >> (count - 1) & 1 != 0;
    flags.shifted(result, carry, sign(result) != sign(value));
    result
}

fn shld<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let count = count::<T>(cpu, insn, 2)?;
    let source = cpu.reg(insn.op1_register());
    modify(
        cpu,
        insn,
        |flags, value: T| {
            if count == 0 { value } else { left_double(flags, value, source, count) }
        },
    )?;
    Ok(())
}

fn shrd<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let count = count::<T>(cpu, insn, 2)?;
    let source = cpu.reg(insn.op1_register());
    modify(
        cpu,
        insn,
        |flags, value: T| {
            if count == 0 { value } else { right_double(flags, value, source, count) }
        },
    )?;
    Ok(())
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Shl | Sal => sized!(size(insn, 0), shift, Shl),
    Shr => sized!(size(insn, 0), shift, Shr),
    Sar => sized!(size(insn, 0), shift, Sar),
    Rol => sized!(size(insn, 0), shift, Rol),
    Ror => sized!(size(insn, 0), shift, Ror),
    Rcl => sized!(size(insn, 0), shift, Rcl),
    Rcr => sized!(size(insn, 0), shift, Rcr),
    Shld => sized!(size(insn, 0), shld),
    Shrd => sized!(size(insn, 0), shrd),
});
