//! DIV and IDIV. The flags, which are undefined after them, stay.

use iced_x86::Instruction;
use satori_defs::x86::vector;
use satori_engine::Exception;

use super::operand::{accumulator, load, size};
use super::sized;
use crate::cpu::{Cpu, Exec};
use crate::flags::Int;
use crate::insn::{Row, rows};

/// Quotient and remainder, if the quotient fits.
fn divide<T: Int>(low: u64, high: u64, divisor: T) -> Option<(u64, u64)> {
    let divisor: u64 = divisor.into();
    if T::BITS < 64 || high == 0 {
        let dividend = if T::BITS < 64 { high << (T::BITS & 63) | low } else { low };
        let quotient = dividend.checked_div(divisor)?;
        return (T::from_u64(quotient).into() == quotient).then_some((quotient, dividend % divisor));
    }
    let dividend = u128::from(high) << 64 | u128::from(low);
    let quotient = dividend.checked_div(divisor.into())?;
    Some((u64::try_from(quotient).ok()?, (dividend % u128::from(divisor)) as u64))
}

/// Signed quotient and remainder, if the quotient fits.
fn divide_signed<T: Int>(low: T, high: T, divisor: T) -> Option<(u64, u64)> {
    let divisor = divisor.sext() as i64;
    if T::BITS < 64 || high.sext() == (low.sext() as i64 >> 63) as u64 {
        let dividend =
            if T::BITS < 64 { high.sext() << (T::BITS & 63) | low.into() } else { low.into() } as i64;
        let quotient = dividend.checked_div(divisor)?;
        let fits = T::from_u64(quotient as u64).sext() as i64 == quotient;
        return fits.then(|| (quotient as u64, dividend.wrapping_rem(divisor) as u64));
    }
    let dividend = (u128::from(high.into()) << 64 | u128::from(low.into())) as i128;
    let quotient = dividend.checked_div(divisor.into())?;
    let remainder = dividend.wrapping_rem(divisor.into());
    Some((i64::try_from(quotient).ok()? as u64, remainder as u64))
}

fn commit<T: Int>(cpu: &mut Cpu, outcome: Option<(u64, u64)>) -> Exec<()> {
    let Some((quotient, remainder)) = outcome else {
        return Err(cpu.raise(Exception::new(vector::DE)));
    };
    let (low, high) = accumulator::<T>();
    cpu.set_reg(low, quotient);
    cpu.set_reg(high, remainder);
    Ok(())
}

fn div<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let divisor = load::<T>(cpu, insn, 0)?;
    let (low, high) = accumulator::<T>();
    let outcome = divide(cpu.reg(low), cpu.reg(high), divisor);
    commit::<T>(cpu, outcome)
}

fn idiv<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let divisor = load::<T>(cpu, insn, 0)?;
    let (low, high) = accumulator::<T>();
    let outcome = divide_signed(T::from_u64(cpu.reg(low)), T::from_u64(cpu.reg(high)), divisor);
    commit::<T>(cpu, outcome)
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Div => sized!(size(insn, 0), div),
    Idiv => sized!(size(insn, 0), idiv),
});
