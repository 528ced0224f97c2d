//! ADD to CMP, INC, DEC, NEG, NOT, TEST, ADCX and ADOX.

use iced_x86::Instruction;

use super::operand::{load, modify, size};
use super::sized;
use crate::cpu::{Cpu, Exec};
use crate::flags::{Flags, Int};
use crate::insn::{Row, rows};

/// An operation on two values that sets all flags.
trait Binary {
    fn apply<T: Int>(flags: &mut Flags, a: T, b: T) -> T;
}

/// An operation on one value.
trait Unary {
    fn apply<T: Int>(flags: &mut Flags, a: T) -> T;
}

macro_rules! binary {
    ($($name:ident: |$flags:ident, $a:ident, $b:ident| $value:expr;)*) => {
        $(
            struct $name;
            impl Binary for $name {
                #[inline(always)]
                fn apply<T: Int>($flags: &mut Flags, $a: T, $b: T) -> T {
                    $value
                }
            }
        )*
    };
}
binary! {
    Add: |flags, a, b| flags.add(a, b, false);
    Adc: |flags, a, b| { let carry = flags.cf(); flags.add(a, b, carry) };
    Sub: |flags, a, b| flags.sub(a, b, false);
    Sbb: |flags, a, b| { let borrow = flags.cf(); flags.sub(a, b, borrow) };
    And: |flags, a, b| logic(flags, a.into() & b.into());
    Or: |flags, a, b| logic(flags, a.into() | b.into());
    Xor: |flags, a, b| logic(flags, a.into() ^ b.into());
    Adcx: |flags, a, b| { let (sum, carry) = sum(a, b, flags.cf()); flags.set_cf_of(carry, flags.of()); sum };
    Adox: |flags, a, b| { let (sum, carry) = sum(a, b, flags.of()); flags.set_cf_of(flags.cf(), carry); sum };
}

macro_rules! unary {
    ($($name:ident: |$flags:ident, $a:ident| $value:expr;)*) => {
        $(
            struct $name;
            impl Unary for $name {
                #[inline(always)]
                fn apply<T: Int>($flags: &mut Flags, $a: T) -> T {
                    $value
                }
            }
        )*
    };
}
unary! {
    Inc: |flags, a| flags.inc(a);
    Dec: |flags, a| flags.dec(a);
    Neg: |flags, a| flags.sub(T::from_u64(0), a, false);
    Not: |_flags, a| T::from_u64(!a.into());
}

#[inline(always)]
fn logic<T: Int>(flags: &mut Flags, result: u64) -> T {
    let result = T::from_u64(result);
    flags.logic(result);
    result
}

/// A sum and its carry.
fn sum<T: Int>(a: T, b: T, carry: bool) -> (T, bool) {
    let mut flags = Flags::default();
    let sum = flags.add(a, b, carry);
    (sum, flags.cf())
}

fn binary<B: Binary, T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let b = load::<T>(cpu, insn, 1)?;
    modify(cpu, insn, |flags, a| B::apply(flags, a, b))?;
    Ok(())
}

fn compare<B: Binary, T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let a = load::<T>(cpu, insn, 0)?;
    let b = load::<T>(cpu, insn, 1)?;
    B::apply(&mut cpu.flags, a, b);
    Ok(())
}

fn unary<U: Unary, T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    modify::<T>(cpu, insn, |flags, a| U::apply(flags, a))?;
    Ok(())
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Add => sized!(size(insn, 0), binary, Add),
    Or => sized!(size(insn, 0), binary, Or),
    Adc => sized!(size(insn, 0), binary, Adc),
    Sbb => sized!(size(insn, 0), binary, Sbb),
    And => sized!(size(insn, 0), binary, And),
    Sub => sized!(size(insn, 0), binary, Sub),
    Xor => sized!(size(insn, 0), binary, Xor),
    Cmp => sized!(size(insn, 0), compare, Sub),
    Test => sized!(size(insn, 0), compare, And),
    Adcx => sized!(size(insn, 0), binary, Adcx),
    Adox => sized!(size(insn, 0), binary, Adox),
    Inc => sized!(size(insn, 0), unary, Inc),
    Dec => sized!(size(insn, 0), unary, Dec),
    Neg => sized!(size(insn, 0), unary, Neg),
    Not => sized!(size(insn, 0), unary, Not),
});
