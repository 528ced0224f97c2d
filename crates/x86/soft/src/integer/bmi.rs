//! BMI1 and BMI2.

use iced_x86::{Instruction, Register};
use satori_defs::x86::{cr0, rflags};
use satori_engine::Exception;

use super::operand::{load, size};
use super::sized;
use crate::cpu::{Cpu, Exec};
use crate::flags::{Flags, Int};
use crate::insn::{Row, rows};

/// An operation of a VEX-encoded instruction with one destination.
trait Operation {
    /// The value from the two sources, or from the one.
    fn apply<T: Int>(flags: &mut Flags, a: T, b: T) -> T;
}

/// A result with SF and ZF by its value and the given CF.
fn with_carry<T: Int>(flags: &mut Flags, result: u64, carry: bool) -> T {
    let result = T::from_u64(result);
    flags.shifted(result, carry, false);
    result
}

/// The low `count` bits; all of them for 64 and more.
fn low_mask(count: u64) -> u64 {
    if count < 64 { (1 << count) - 1 } else { u64::MAX }
}

fn shift_count<T: Int>(count: T) -> u32 {
    count.into() as u32 & (T::BITS - 1)
}

macro_rules! operations {
    ($($name:ident: |$flags:ident, $a:ident, $b:ident| $value:expr;)*) => {
        $(
            struct $name;
            impl Operation for $name {
                fn apply<T: Int>($flags: &mut Flags, $a: T, $b: T) -> T {
                    $value
                }
            }
        )*
    };
}
operations! {
    Andn: |flags, a, b| with_carry(flags, !a.into() & b.into(), false);
    Blsi: |flags, a, _b| with_carry(flags, a.into() & a.into().wrapping_neg(), a.into() != 0);
    Blsmsk: |flags, a, _b| with_carry(flags, a.into() ^ a.into().wrapping_sub(1), a.into() == 0);
    Blsr: |flags, a, _b| with_carry(flags, a.into() & a.into().wrapping_sub(1), a.into() == 0);
    Bextr: |flags, a, b| {
        let (start, length) = (b.into() & 0xff, b.into() >> 8 & 0xff);
        let moved = if start < 64 { a.into() >> start } else { 0 };
        with_carry(flags, moved & low_mask(length), false)
    };
    Bzhi: |flags, a, b| {
        let index = b.into() & 0xff;
        with_carry(flags, a.into() & low_mask(index), index >= u64::from(T::BITS))
    };
    Sarx: |_flags, a, b| T::from_u64((a.sext() as i64 >> shift_count(b)) as u64);
    Shlx: |_flags, a, b| T::from_u64(a.into() << shift_count(b));
    Shrx: |_flags, a, b| T::from_u64(a.into() >> shift_count(b));
    Rorx: |_flags, a, b| {
        let count = shift_count(b);
        T::from_u64(a.into() >> count | if count == 0 { 0 } else { a.into() << (T::BITS - count) })
    };
    Pdep: |_flags, a, b| {
        let (mut source, mut mask, mut result) = (a.into(), b.into(), 0);
        while mask != 0 {
            if source & 1 != 0 {
                result |= mask & mask.wrapping_neg();
            }
            source >>= 1;
            mask &= mask - 1;
        }
        T::from_u64(result)
    };
    Pext: |_flags, a, b| {
        let (source, mut mask, mut result, mut place) = (a.into(), b.into(), 0, 0);
        while mask != 0 {
            result |= (source >> mask.trailing_zeros() & 1) << place;
            place += 1;
            mask &= mask - 1;
        }
        T::from_u64(result)
    };
}

/// VEX encodings do not exist in real and virtual-8086 mode.
fn check_vex(cpu: &mut Cpu) -> Exec<()> {
    if cpu.state.cr0 & cr0::PE == 0 || cpu.state.rflags & rflags::VM != 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    Ok(())
}

fn two<O: Operation, T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    check_vex(cpu)?;
    let a = load::<T>(cpu, insn, 1)?;
    let b = load::<T>(cpu, insn, 2)?;
    let result = O::apply(&mut cpu.flags, a, b);
    cpu.set_reg(insn.op0_register(), result.into());
    Ok(())
}

fn one<O: Operation, T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    check_vex(cpu)?;
    let a = load::<T>(cpu, insn, 1)?;
    let result = O::apply(&mut cpu.flags, a, a);
    cpu.set_reg(insn.op0_register(), result.into());
    Ok(())
}

/// MULX; if both destinations are one register it gets the upper half.
fn mulx<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    check_vex(cpu)?;
    let factor: u64 = load::<T>(cpu, insn, 2)?.into();
    let other: u64 = T::from_u64(cpu.reg(Register::RDX)).into();
    let product = u128::from(factor) * u128::from(other);
    cpu.set_reg(insn.op1_register(), product as u64);
    cpu.set_reg(insn.op0_register(), (product >> T::BITS) as u64);
    Ok(())
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Andn => sized!(size(insn, 0), two, Andn),
    Bextr => sized!(size(insn, 0), two, Bextr),
    Blsi => sized!(size(insn, 0), one, Blsi),
    Blsmsk => sized!(size(insn, 0), one, Blsmsk),
    Blsr => sized!(size(insn, 0), one, Blsr),
    Bzhi => sized!(size(insn, 0), two, Bzhi),
    Mulx => sized!(size(insn, 0), mulx),
    Pdep => sized!(size(insn, 0), two, Pdep),
    Pext => sized!(size(insn, 0), two, Pext),
    Rorx => sized!(size(insn, 0), two, Rorx),
    Sarx => sized!(size(insn, 0), two, Sarx),
    Shlx => sized!(size(insn, 0), two, Shlx),
    Shrx => sized!(size(insn, 0), two, Shrx),
});
