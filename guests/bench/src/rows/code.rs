//! Code that is written while it runs.

use super::fail;
use crate::measure::Meter;
use crate::sys::{EXECUTE, Mapping, READ, WRITE};

pub fn patch(m: &mut Meter) {
    let page = Mapping::anonymous(4096, READ | WRITE | EXECUTE).unwrap_or_else(|e| fail("mmap", &e));
    // mov eax, imm32; ret
    page.copy_in(0, &[0xb8, 0, 0, 0, 0, 0xc3]);
    let (mut value, mut wrong) = (0u32, 0);
    m.batches(|n| {
        for _ in 0..n {
            value = value.wrapping_add(0x0101_0107);
            page.copy_in(1, &value.to_le_bytes());
            // SAFETY: the function above.
            wrong += u64::from(unsafe { page.call(0) } != u64::from(value));
        }
        n
    });
    m.sum = Some(wrong);
}

/// Instructions of a fresh function.
const LENGTH: usize = 16;
/// Bytes from one function to the next.
const STRIDE: usize = 128;

pub fn fresh(m: &mut Meter) {
    const AREA: usize = 64 << 10;
    let area = Mapping::anonymous(AREA, READ | WRITE | EXECUTE).unwrap_or_else(|e| fail("mmap", &e));
    let (mut at, mut seed, mut wrong) = (0, 1u32, 0);
    m.batches(|n| {
        for _ in 0..n {
            seed = seed.wrapping_mul(0x915f_77f5).wrapping_add(1);
            let (code, expected) = function(seed);
            area.copy_in(at, &code);
            // SAFETY: the function that was just written.
            wrong += u64::from(unsafe { area.call(at) } != u64::from(expected));
            at = (at + STRIDE) % AREA;
        }
        n
    });
    m.sum = Some(wrong);
}

/// mov eax, imm32; then add, xor and sub of immediates; ret. And what it returns.
fn function(seed: u32) -> ([u8; STRIDE], u32) {
    let mut code = [0x90; STRIDE];
    let (mut at, mut value) = (0, seed);
    let mut put = |opcode: u8, operand: u32| {
        code[at] = opcode;
        code[at + 1..at + 5].copy_from_slice(&operand.to_le_bytes());
        at += 5;
    };
    put(0xb8, seed);
    for i in 1..LENGTH as u32 - 1 {
        let operand = seed.rotate_left(i) ^ i;
        match (seed >> i) % 3 {
            0 => {
                put(0x05, operand);
                value = value.wrapping_add(operand);
            }
            1 => {
                put(0x35, operand);
                value ^= operand;
            }
            _ => {
                put(0x2d, operand);
                value = value.wrapping_sub(operand);
            }
        }
    }
    code[at] = 0xc3;
    (code, value)
}
