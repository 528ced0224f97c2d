//! Whether a product plus a number has as many significant bits as a format, whatever its exponent.

use crate::simd::float::Format;

/// An odd number times a power of two; zero has no such form.
#[derive(Clone, Copy)]
struct Odd {
    value: u128,
    exponent: i32,
    negative: bool,
}

impl Odd {
    fn new(value: u128, exponent: i32, negative: bool) -> Option<Self> {
        let shift = value.trailing_zeros();
        (value != 0).then(|| Odd { value: value >> shift, exponent: exponent + shift as i32, negative })
    }

    /// A finite element of `format`.
    fn of(format: Format, element: u128, denormals_are_zeros: bool) -> Option<Self> {
        let (exponent, fraction) = format.parts(element);
        let negative = element >> (format.bits - 1) & 1 != 0;
        let unit = 1 - format.bias as i32 - format.fraction_bits as i32;
        match exponent {
            0 if denormals_are_zeros => None,
            0 => Odd::new(fraction, unit, negative),
            _ => Odd::new(fraction | 1 << format.fraction_bits, unit + exponent as i32 - 1, negative),
        }
    }

    fn bits(self) -> u32 {
        128 - self.value.leading_zeros()
    }
}

/// Whether `x * y + z`, or `x * y - z`, is a number of `format`'s precision. What is not finite
/// is exact.
pub(super) fn sum_is_exact(
    format: Format,
    x: u128,
    y: u128,
    z: u128,
    subtract: bool,
    denormals_are_zeros: bool,
) -> bool {
    if [x, y, z].iter().any(|element| format.parts(*element).0 > 2 * format.bias) {
        return true;
    }
    let precision = format.fraction_bits + 1;
    let [x, y, z] = [x, y, z].map(|element| Odd::of(format, element, denormals_are_zeros));
    let product = x
        .zip(y)
        .and_then(|(x, y)| Odd::new(x.value * y.value, x.exponent + y.exponent, x.negative != y.negative));
    let addend = z.map(|z| Odd { negative: z.negative != subtract, ..z });
    let (a, b) = match (product, addend) {
        (Some(a), Some(b)) => (a, b),
        (Some(alone), None) | (None, Some(alone)) => return alone.bits() <= precision,
        (None, None) => return true,
    };
    let (upper, lower) = if a.exponent >= b.exponent { (a, b) } else { (b, a) };
    let shift = (upper.exponent - lower.exponent) as u32;
    // Odd at the lower exponent, so all bits up to the highest count. When one number is far above
    // the other, these are too many.
    let top = upper.bits() + shift;
    if shift > 0 && top > lower.bits() + 2 && top > precision + 2 {
        return false;
    }
    // No more than 108 bits: the larger of two factors' and of one number's.
    let upper_value = upper.value << shift;
    let sum = if upper.negative == lower.negative {
        upper_value + lower.value
    } else {
        upper_value.abs_diff(lower.value)
    };
    sum >> sum.trailing_zeros().min(127) < 1 << precision
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::float::format;
    use crate::simd::native::Tiny;

    fn singles(x: f32, y: f32, z: f32) -> bool {
        let bits = |v: f32| u128::from(v.to_bits());
        sum_is_exact(format(Tiny::Single), bits(x), bits(y), bits(z), false, false)
    }

    #[test]
    fn products_of_singles_fit_or_do_not_as_doubles_show() {
        // A product of two singles is exact as a double, and so mostly is the sum.
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let (mut exact, mut compared) = (0, 0);
        for _ in 0..200_000 {
            let mut number = || {
                seed ^= seed << 13;
                seed ^= seed >> 7;
                seed ^= seed << 17;
                let fraction = (seed >> 40) as u32 & 0x7f_ffff & (u32::MAX << (seed % 24));
                f32::from_bits(fraction | (110 + (seed >> 8) as u32 % 30) << 23 | (seed as u32 & 1) << 31)
            };
            let (x, y, z) = (number(), number(), number());
            let product = f64::from(x) * f64::from(y);
            let sum = product + f64::from(z);
            let lost = if product.abs() > f64::from(z).abs() {
                sum - product != f64::from(z)
            } else {
                sum - f64::from(z) != product
            };
            if lost {
                assert!(!singles(x, y, z), "{x:e} {y:e} {z:e}");
                continue;
            }
            let fits = f64::from(sum as f32) == sum;
            assert_eq!(singles(x, y, z), fits, "{x:e} {y:e} {z:e}");
            exact += usize::from(fits);
            compared += 1;
        }
        assert!(exact > 1000 && compared > exact + 1000, "{exact} of {compared}");
    }

    #[test]
    fn what_is_too_small_for_the_format_still_counts() {
        let tiny = f32::from_bits(1);
        assert!(singles(tiny, tiny, 0.0));
        assert!(!singles(tiny, tiny, -tiny));
        assert!(singles(1.0, tiny, -tiny));
        assert!(!singles(f32::MAX, f32::MAX, 0.0));
        // The sum of two odd numbers is even.
        assert!(singles(1_048_575.0, 1_048_577.0, 1.0));
        assert!(singles(f32::INFINITY, 0.0, 1.0));
    }
}
