//! Numbers taken apart and put together: Arm's rules for NaNs, denormals, rounding and flags (shared/functions/float).

/// A format: bits of exponent and fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub exponent: u32,
    pub fraction: u32,
}

pub(crate) const HALF: Format = Format { exponent: 5, fraction: 10 };
pub(crate) const SINGLE: Format = Format { exponent: 8, fraction: 23 };
pub(crate) const DOUBLE: Format = Format { exponent: 11, fraction: 52 };

impl Format {
    pub(crate) const fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }
    pub(crate) const fn sign_bit(self) -> u64 {
        1 << (self.exponent + self.fraction)
    }
    pub(crate) const fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.fraction
    }
    pub(crate) const fn quiet(self) -> u64 {
        1 << (self.fraction - 1)
    }
    pub(crate) const fn default_nan(self) -> u64 {
        self.infinity() | self.quiet()
    }
    pub(crate) const fn signed(self, negative: bool, magnitude: u64) -> u64 {
        if negative { magnitude | self.sign_bit() } else { magnitude }
    }
    pub(crate) const fn is_nan(self, bits: u64) -> bool {
        bits & !self.sign_bit() > self.infinity()
    }
    pub(crate) const fn is_signalling(self, bits: u64) -> bool {
        self.is_nan(bits) && bits & self.quiet() == 0
    }
    pub(crate) const fn is_negative(self, bits: u64) -> bool {
        bits & self.sign_bit() != 0
    }
}

/// FPSR's cumulative flags.
pub(crate) const IOC: u32 = 1;
pub(crate) const DZC: u32 = 1 << 1;
pub(crate) const OFC: u32 = 1 << 2;
pub(crate) const UFC: u32 = 1 << 3;
pub(crate) const IXC: u32 = 1 << 4;
pub(crate) const IDC: u32 = 1 << 7;

/// Rounding modes: the first four are FPCR.RMode's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Up,
    Down,
    Zero,
    /// Ties away from zero.
    Away,
    /// To odd: what was inexact has the last bit set.
    Odd,
}

/// FPCR's choices, and the flags that operations raise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Env {
    pub rounding: Rounding,
    pub default_nan: bool,
    pub flush: bool,
    /// AHP: halves have no infinities and NaNs.
    pub alternative: bool,
    pub flags: u32,
}

impl Env {
    pub(crate) fn of(fpcr: u32) -> Self {
        let rounding = match fpcr >> 22 & 3 {
            0 => Rounding::Nearest,
            1 => Rounding::Up,
            2 => Rounding::Down,
            _ => Rounding::Zero,
        };
        let bit = |at: u32| fpcr >> at & 1 != 0;
        Env { rounding, default_nan: bit(25), flush: bit(24), alternative: bit(26), flags: 0 }
    }
}

/// A number that is finite and not zero: `significand` times two to the power of `exponent`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finite {
    pub negative: bool,
    pub exponent: i32,
    pub significand: u128,
}

/// What bits stand for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Zero(bool),
    Infinity(bool),
    Finite(Finite),
    Nan,
}

impl Env {
    /// Takes a number apart; denormals are flushed where FPCR.FZ says so.
    pub(crate) fn unpack(&mut self, format: Format, bits: u64) -> Number {
        let negative = format.is_negative(bits);
        let (fraction, exponent) = (
            bits & ((1 << format.fraction) - 1),
            (bits >> format.fraction) as i32 & ((1 << format.exponent) - 1),
        );
        let lowest = 1 - format.bias() - format.fraction as i32;
        if exponent == (1 << format.exponent) - 1 && !(self.alternative && format == HALF) {
            return if fraction == 0 { Number::Infinity(negative) } else { Number::Nan };
        }
        if exponent == 0 {
            if fraction == 0 {
                return Number::Zero(negative);
            }
            if self.flush && format != HALF {
                self.flags |= IDC;
                return Number::Zero(negative);
            }
            return Number::Finite(Finite { negative, exponent: lowest, significand: fraction.into() });
        }
        let significand = u128::from(fraction | 1 << format.fraction);
        Number::Finite(Finite { negative, exponent: lowest + exponent - 1, significand })
    }

    /// A NaN operand as a result.
    pub(crate) fn nan(&mut self, format: Format, bits: u64) -> u64 {
        if format.is_signalling(bits) {
            self.flags |= IOC;
        }
        if self.default_nan { format.default_nan() } else { bits | format.quiet() }
    }

    /// The NaN of an operation with these operands, if one is a NaN: signalling ones first, in order.
    pub(crate) fn nan_of(&mut self, format: Format, operands: &[u64]) -> Option<u64> {
        let signalling = operands.iter().find(|&&one| format.is_signalling(one));
        let found = signalling.or_else(|| operands.iter().find(|&&one| format.is_nan(one)));
        found.map(|&bits| self.nan(format, bits))
    }

    /// The result of an invalid operation.
    pub(crate) fn invalid(&mut self, format: Format) -> u64 {
        self.flags |= IOC;
        format.default_nan()
    }

    /// Rounds to `format`. Tininess is looked at before.
    pub(crate) fn round(&mut self, format: Format, number: Finite) -> u64 {
        let Finite { negative, exponent, significand } = number;
        let top = 127 - significand.leading_zeros() as i32;
        let least = 1 - format.bias();
        let magnitude = exponent + top;
        let tiny = magnitude < least;
        if tiny && self.flush && format != HALF {
            self.flags |= UFC;
            return format.signed(negative, 0);
        }
        let lowest = magnitude.max(least) - format.fraction as i32;
        let (mut kept, rest, half) = split(significand, lowest - exponent);
        let inexact = rest != Rest::Zero;
        if rounds_up(self.rounding, negative, kept, rest, half) {
            kept += 1;
        }
        if self.rounding == Rounding::Odd && inexact {
            kept |= 1;
        }
        if tiny && inexact {
            self.flags |= UFC;
        }
        // A carry into the exponent is right as it is: the fraction is zero then.
        let biased = if tiny { 0 } else { (lowest + format.fraction as i32 + format.bias()) as u64 };
        let hidden = if tiny { 0 } else { 1 << format.fraction };
        let alternative = self.alternative && format == HALF;
        let bits = (biased << format.fraction) + (kept as u64 - hidden);
        let most = if alternative { format.sign_bit() } else { format.infinity() };
        if biased >= 1 << format.exponent || bits >= most {
            return self.overflow(format, negative);
        }
        if inexact {
            self.flags |= IXC;
        }
        format.signed(negative, bits)
    }

    fn overflow(&mut self, format: Format, negative: bool) -> u64 {
        if self.alternative && format == HALF {
            self.flags |= IOC;
            return format.signed(negative, format.sign_bit() - 1);
        }
        self.flags |= OFC | IXC;
        let infinite = match self.rounding {
            Rounding::Nearest | Rounding::Away => true,
            Rounding::Up => !negative,
            Rounding::Down => negative,
            Rounding::Zero | Rounding::Odd => false,
        };
        let magnitude = if infinite { format.infinity() } else { format.infinity() - 1 };
        format.signed(negative, magnitude)
    }
}

/// What was cut off, compared with half of the last bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Zero,
    Some,
}

/// `significand` without its lowest `by` bits, whether they were zero, and how they compare with half.
pub(crate) fn split(significand: u128, by: i32) -> (u128, Rest, std::cmp::Ordering) {
    use std::cmp::Ordering;
    if by <= 0 {
        return (significand << -by, Rest::Zero, Ordering::Less);
    }
    if by > 127 {
        return (0, Rest::Some, Ordering::Less);
    }
    let rest = significand & ((1 << by) - 1);
    let state = if rest == 0 { Rest::Zero } else { Rest::Some };
    (significand >> by, state, rest.cmp(&(1 << (by - 1))))
}

/// Whether the magnitude grows by one.
pub(crate) fn rounds_up(
    rounding: Rounding,
    negative: bool,
    kept: u128,
    rest: Rest,
    half: std::cmp::Ordering,
) -> bool {
    use std::cmp::Ordering;
    if rest == Rest::Zero {
        return false;
    }
    match rounding {
        Rounding::Nearest => half == Ordering::Greater || (half == Ordering::Equal && kept & 1 != 0),
        Rounding::Away => half != Ordering::Less,
        Rounding::Up => !negative,
        Rounding::Down => negative,
        Rounding::Zero | Rounding::Odd => false,
    }
}
