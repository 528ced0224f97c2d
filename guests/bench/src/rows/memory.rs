//! Copies, REP strings, pointer chases and stores.

use std::arch::asm;
use std::hint::black_box;

use super::noise;
use crate::measure::Meter;

const BLOCK: usize = 16384;

fn sum(bytes: &[u8]) -> u64 {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    word(0) ^ word(bytes.len() / 2) ^ word(bytes.len() - 8)
}

pub fn copy(m: &mut Meter) {
    let (from, mut to) = (noise(BLOCK), vec![0u8; BLOCK]);
    m.each(|| {
        // SAFETY: both have BLOCK bytes, a multiple of 32.
        unsafe {
            asm!(
                "2:",
                "mov {t}, [{from}]",
                "mov [{to}], {t}",
                "mov {t}, [{from} + 8]",
                "mov [{to} + 8], {t}",
                "mov {t}, [{from} + 16]",
                "mov [{to} + 16], {t}",
                "mov {t}, [{from} + 24]",
                "mov [{to} + 24], {t}",
                "add {from}, 32",
                "add {to}, 32",
                "dec {n}",
                "jnz 2b",
                t = out(reg) _,
                from = inout(reg) from.as_ptr() => _,
                to = inout(reg) to.as_mut_ptr() => _,
                n = inout(reg) BLOCK / 32 => _,
                options(nostack),
            );
        }
        sum(&to)
    });
}

pub fn rep_movs(m: &mut Meter) {
    let (from, mut to) = (noise(BLOCK), vec![0u8; BLOCK]);
    m.each(|| {
        // SAFETY: both have BLOCK bytes.
        unsafe {
            asm!(
                "rep movsb",
                inout("rsi") from.as_ptr() => _,
                inout("rdi") to.as_mut_ptr() => _,
                inout("rcx") BLOCK => _,
                options(nostack, preserves_flags),
            );
        }
        sum(&to)
    });
}

pub fn rep_stos(m: &mut Meter) {
    let mut to = vec![0u8; BLOCK];
    m.each(|| {
        // SAFETY: there are BLOCK bytes, a multiple of eight.
        unsafe {
            asm!(
                "rep stosq",
                in("rax") 0x0123_4567_89ab_cdefu64,
                inout("rdi") to.as_mut_ptr() => _,
                inout("rcx") BLOCK / 8 => _,
                options(nostack, preserves_flags),
            );
        }
        sum(&to)
    });
}

pub fn chase_16k(m: &mut Meter) {
    chase(m, 16 << 10);
}

pub fn chase_32m(m: &mut Meter) {
    chase(m, 32 << 20);
}

/// One cycle through all lines of `bytes` in random order (Sattolo), so that each load needs the last.
fn chase(m: &mut Meter, bytes: usize) {
    const WORDS: usize = 64 / 8;
    let lines = bytes / 64;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut random = super::Random(7);
    for i in (1..lines).rev() {
        order.swap(i, random.next() as usize % i);
    }
    let mut ring = vec![0u64; lines * WORDS];
    for (i, &next) in order.iter().enumerate() {
        ring[i * WORDS] = u64::from(next) * WORDS as u64;
    }
    drop(order);
    // Long enough to leave the caches on its way; each operation goes on where the last one was.
    let mut at = 0;
    m.batches(|n| {
        for _ in 0..n * 1000 {
            at = ring[at as usize];
        }
        at = black_box(at);
        n
    });
    let visited = (0..lines.min(4096)).fold((0, 0u64), |(at, sum), _| {
        let next = ring[at];
        (next as usize, sum.rotate_left(3) ^ next)
    });
    m.sum = Some(visited.1);
}

pub fn stores(m: &mut Meter) {
    let mut area = vec![0u64; 4096];
    m.each(|| {
        let area = black_box(&mut area);
        let mut at = 1usize;
        for i in 0..4096u64 {
            at = (at * 5 + 1) & 4095;
            area[at] = i;
        }
        area[17] ^ area[4000] << 16
    });
}
