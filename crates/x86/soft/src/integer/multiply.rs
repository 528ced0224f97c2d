//! MUL and IMUL.

use iced_x86::Instruction;

use super::operand::{accumulator, load, size};
use super::sized;
use crate::cpu::{Cpu, Exec};
use crate::flags::Int;
use crate::insn::{Row, rows};

fn mul<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (low, high) = accumulator::<T>();
    let b: u64 = load::<T>(cpu, insn, 0)?.into();
    let product = u128::from(cpu.reg(low)) * u128::from(b);
    let upper = (product >> T::BITS) as u64;
    cpu.set_reg(low, product as u64);
    cpu.set_reg(high, upper);
    cpu.flags.shifted(T::from_u64(product as u64), upper != 0, upper != 0);
    Ok(())
}

/// The signed product, and whether it does not fit.
fn product<T: Int>(a: T, b: T) -> (i128, bool) {
    let product = i128::from(a.sext() as i64) * i128::from(b.sext() as i64);
    (product, i128::from(T::from_u64(product as u64).sext() as i64) != product)
}

fn imul_wide<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let (low, high) = accumulator::<T>();
    let b = load::<T>(cpu, insn, 0)?;
    let (product, lost) = product(T::from_u64(cpu.reg(low)), b);
    cpu.set_reg(low, product as u64);
    cpu.set_reg(high, (product >> T::BITS) as u64);
    cpu.flags.shifted(T::from_u64(product as u64), lost, lost);
    Ok(())
}

/// IMUL with two operands, or with three of which the last is an immediate.
fn imul<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let first = insn.op_count() - 2;
    let a = load::<T>(cpu, insn, first)?;
    let b = load::<T>(cpu, insn, first + 1)?;
    let (product, lost) = product(a, b);
    cpu.set_reg(insn.op0_register(), product as u64);
    cpu.flags.shifted(T::from_u64(product as u64), lost, lost);
    Ok(())
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Mul => sized!(size(insn, 0), mul),
    Imul if insn.op_count() == 1 => sized!(size(insn, 0), imul_wide),
    Imul => sized!(size(insn, 0), imul),
});
