//! ADD to CMP, INC, DEC, NEG, NOT, TEST, ADCX and ADOX.

use iced_x86::{Instruction, Mnemonic};

use super::operand::{load, modify, size};
use super::sized;
use crate::cpu::{Cpu, Exec, Handler};
use crate::flags::{Flags, Int};

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

pub fn handler(insn: &Instruction) -> Option<Handler> {
    let bytes = size(insn, 0);
    Some(match insn.mnemonic() {
        Mnemonic::Add => sized!(bytes, binary, Add),
        Mnemonic::Or => sized!(bytes, binary, Or),
        Mnemonic::Adc => sized!(bytes, binary, Adc),
        Mnemonic::Sbb => sized!(bytes, binary, Sbb),
        Mnemonic::And => sized!(bytes, binary, And),
        Mnemonic::Sub => sized!(bytes, binary, Sub),
        Mnemonic::Xor => sized!(bytes, binary, Xor),
        Mnemonic::Cmp => sized!(bytes, compare, Sub),
        Mnemonic::Test => sized!(bytes, compare, And),
        Mnemonic::Adcx => sized!(bytes, binary, Adcx),
        Mnemonic::Adox => sized!(bytes, binary, Adox),
        Mnemonic::Inc => sized!(bytes, unary, Inc),
        Mnemonic::Dec => sized!(bytes, unary, Dec),
        Mnemonic::Neg => sized!(bytes, unary, Neg),
        Mnemonic::Not => sized!(bytes, unary, Not),
        _ => return None,
    })
}
