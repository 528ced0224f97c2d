//! AES, SHA-1 and SHA-256 (shared/functions/crypto).

use satori_arm_isa::Op;

use super::Done;
use super::simd::{lane, set_lane};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    let found: Handler = match op {
        Op::Aese => aes_round::<false>,
        Op::Aesd => aes_round::<true>,
        Op::Aesmc => mix_columns::<false>,
        Op::Aesimc => mix_columns::<true>,
        Op::Sha1c => sha1_hash::<0>,
        Op::Sha1p => sha1_hash::<1>,
        Op::Sha1m => sha1_hash::<2>,
        Op::Sha1su0 => sha1_schedule0,
        Op::Sha1su1 => sha1_schedule1,
        Op::Sha1h => sha1_rotate,
        Op::Sha256h => sha256_hash::<true>,
        Op::Sha256h2 => sha256_hash::<false>,
        Op::Sha256su0 => sha256_schedule0,
        Op::Sha256su1 => sha256_schedule1,
        _ => return None,
    };
    let register = |low: u32| (i.raw >> low & 31) as u8;
    (i.rd, i.rn, i.rm) = (register(0), register(5), register(16));
    Some(found)
}

/// A product in the field of AES: modulo x^8 + x^4 + x^3 + x + 1.
const fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = a << 1 ^ if a & 0x80 != 0 { 0x1b } else { 0 };
        b >>= 1;
    }
    product
}

/// The substitution: the inverse in the field, then an affine map (FIPS 197, 5.1.1).
const SUBSTITUTED: [u8; 256] = {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        // a to the power of 254 is the inverse, and of 0 it is 0.
        let (mut inverse, mut power, mut base) = (1, 254, value as u8);
        while power > 0 {
            if power & 1 != 0 {
                inverse = times(inverse, base);
            }
            base = times(base, base);
            power >>= 1;
        }
        table[value] = inverse
            ^ inverse.rotate_left(1)
            ^ inverse.rotate_left(2)
            ^ inverse.rotate_left(3)
            ^ inverse.rotate_left(4)
            ^ 0x63;
        value += 1;
    }
    table
};

const RESTORED: [u8; 256] = {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        table[SUBSTITUTED[value] as usize] = value as u8;
        value += 1;
    }
    table
};

/// AESE and AESD: the key is added, rows are shifted, bytes substituted.
fn aes_round<const INVERSE: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let state = (cpu.v(i.rd) ^ cpu.v(i.rn)).to_le_bytes();
    let mut result = [0; 16];
    for (at, byte) in result.iter_mut().enumerate() {
        let (row, column) = (at % 4, at / 4);
        let from = if INVERSE { column + 4 - row } else { column + row } % 4;
        let value = usize::from(state[4 * from + row]);
        *byte = if INVERSE { RESTORED[value] } else { SUBSTITUTED[value] };
    }
    cpu.set_v(i.rd, u128::from_le_bytes(result));
    Ok(Flow::Next)
}

fn mix_columns<const INVERSE: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let factors = if INVERSE { [14, 11, 13, 9] } else { [2, 3, 1, 1] };
    let state = cpu.v(i.rn).to_le_bytes();
    let mut result = [0; 16];
    for (at, byte) in result.iter_mut().enumerate() {
        let (row, column) = (at % 4, at / 4);
        for (step, &factor) in factors.iter().enumerate() {
            *byte ^= times(state[4 * column + (row + step) % 4], factor);
        }
    }
    cpu.set_v(i.rd, u128::from_le_bytes(result));
    Ok(Flow::Next)
}

fn words(value: u128) -> [u32; 4] {
    std::array::from_fn(|at| lane(value, 2, at) as u32)
}

fn joined(words: [u32; 4]) -> u128 {
    let mut value = 0;
    for (at, word) in words.into_iter().enumerate() {
        set_lane(&mut value, 2, at, word.into());
    }
    value
}

/// SHA1C, SHA1P and SHA1M: four rounds.
fn sha1_hash<const KIND: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let mut x = words(cpu.v(i.rd));
    let mut y = cpu.v(i.rn) as u32;
    for word in words(cpu.v(i.rm)) {
        let [_, b, c, d] = x;
        let mixed = match KIND {
            0 => ((c ^ d) & b) ^ d,
            1 => b ^ c ^ d,
            _ => (b & c) | ((b | c) & d),
        };
        y = y.wrapping_add(x[0].rotate_left(5)).wrapping_add(mixed).wrapping_add(word);
        (x, y) = ([y, x[0], x[1].rotate_left(30), x[2]], x[3]);
    }
    cpu.set_v(i.rd, joined(x));
    Ok(Flow::Next)
}

fn sha1_schedule0(cpu: &mut Cpu, i: &Insn) -> Done {
    let (d, n, m) = (cpu.v(i.rd), cpu.v(i.rn), cpu.v(i.rm));
    cpu.set_v(i.rd, (d >> 64 | n << 64) ^ d ^ m);
    Ok(Flow::Next)
}

fn sha1_schedule1(cpu: &mut Cpu, i: &Insn) -> Done {
    let mixed = words(cpu.v(i.rd) ^ cpu.v(i.rn) >> 32);
    let mut result = mixed.map(|word| word.rotate_left(1));
    result[3] ^= mixed[0].rotate_left(2);
    cpu.set_v(i.rd, joined(result));
    Ok(Flow::Next)
}

fn sha1_rotate(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_v(i.rd, (cpu.v(i.rn) as u32).rotate_left(30).into());
    Ok(Flow::Next)
}

/// SHA256H, whose first part is wanted, or SHA256H2: four rounds.
fn sha256_hash<const FIRST: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (d, n) = (words(cpu.v(i.rd)), words(cpu.v(i.rn)));
    let (mut x, mut y) = if FIRST { (d, n) } else { (n, d) };
    for word in words(cpu.v(i.rm)) {
        let choice = ((y[1] ^ y[2]) & y[0]) ^ y[2];
        let majority = (x[0] & x[1]) | ((x[0] | x[1]) & x[2]);
        let sigma = |v: u32, a, b, c| v.rotate_right(a) ^ v.rotate_right(b) ^ v.rotate_right(c);
        let t = y[3].wrapping_add(sigma(y[0], 6, 11, 25)).wrapping_add(choice).wrapping_add(word);
        let sum = t.wrapping_add(sigma(x[0], 2, 13, 22)).wrapping_add(majority);
        let carried = x[3].wrapping_add(t);
        (x, y) = ([sum, x[0], x[1], x[2]], [carried, y[0], y[1], y[2]]);
    }
    cpu.set_v(i.rd, joined(if FIRST { x } else { y }));
    Ok(Flow::Next)
}

fn sha256_schedule0(cpu: &mut Cpu, i: &Insn) -> Done {
    let (d, n) = (words(cpu.v(i.rd)), words(cpu.v(i.rn)));
    let next = [d[1], d[2], d[3], n[0]];
    let result = std::array::from_fn(|at| {
        let word: u32 = next[at];
        d[at].wrapping_add(word.rotate_right(7) ^ word.rotate_right(18) ^ word >> 3)
    });
    cpu.set_v(i.rd, joined(result));
    Ok(Flow::Next)
}

fn sha256_schedule1(cpu: &mut Cpu, i: &Insn) -> Done {
    let (d, n, m) = (words(cpu.v(i.rd)), words(cpu.v(i.rn)), words(cpu.v(i.rm)));
    let before = [n[1], n[2], n[3], m[0]];
    let sigma = |word: u32| word.rotate_right(17) ^ word.rotate_right(19) ^ word >> 10;
    let mut result = [0_u32; 4];
    for at in 0..4 {
        let word = if at < 2 { m[at + 2] } else { result[at - 2] };
        result[at] = d[at].wrapping_add(sigma(word)).wrapping_add(before[at]);
    }
    cpu.set_v(i.rd, joined(result));
    Ok(Flow::Next)
}
