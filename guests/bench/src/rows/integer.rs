//! Integer computation, calls and jumps.

use std::arch::global_asm;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::hint::black_box;

use super::noise;
use crate::measure::Meter;

pub fn mix(m: &mut Meter) {
    m.each(|| {
        let (mut a, mut b, mut odd) = (black_box(0x9e37_79b9_7f4a_7c15u64), 1u64, 0u64);
        for i in 0..1000u64 {
            a = a.wrapping_mul(0xd129_0f5a_33c1_4d1d).wrapping_add(b ^ i);
            b = b.rotate_left((a & 31) as u32) ^ (a >> 29);
            if a > b {
                odd += 1;
            } else {
                b = b.wrapping_sub(a & 0xffff);
            }
        }
        a ^ b ^ odd
    });
}

pub fn sha256(m: &mut Meter) {
    let data = noise(1024);
    m.each(|| super::sha::digest(black_box(&data)));
}

pub fn qsort(m: &mut Meter) {
    let data: Vec<u32> =
        noise(2048).chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    let mut work = data.clone();
    let order: fn(&u32, &u32) -> bool = black_box(|a, b| a < b);
    m.each(|| {
        work.copy_from_slice(&data);
        sort(&mut work, order);
        work.iter().enumerate().fold(0, |sum, (i, v)| sum ^ u64::from(*v) << (i & 31))
    });
}

/// Quicksort, with the comparator behind a pointer as qsort(3) has it.
fn sort(data: &mut [u32], less: fn(&u32, &u32) -> bool) {
    if data.len() <= 8 {
        for i in 1..data.len() {
            let mut j = i;
            while j > 0 && less(&data[j], &data[j - 1]) {
                data.swap(j, j - 1);
                j -= 1;
            }
        }
        return;
    }
    let pivot = data[data.len() / 2];
    let (mut i, mut j) = (0, data.len() - 1);
    loop {
        while less(&data[i], &pivot) {
            i += 1;
        }
        while less(&pivot, &data[j]) {
            j -= 1;
        }
        if i >= j {
            break;
        }
        data.swap(i, j);
        i += 1;
        j -= 1;
    }
    let (low, high) = data.split_at_mut(i);
    sort(low, less);
    sort(high, less);
}

// In assembly, as a compiler turns half of the calls into a loop.
global_asm!(
    ".globl satori_bench_fib",
    "satori_bench_fib:",
    "cmp edi, 2",
    "jb 2f",
    "push rbx",
    "push rbp",
    "mov ebx, edi",
    "lea edi, [rbx - 1]",
    "call satori_bench_fib",
    "mov rbp, rax",
    "lea edi, [rbx - 2]",
    "call satori_bench_fib",
    "add rax, rbp",
    "pop rbp",
    "pop rbx",
    "ret",
    "2: mov eax, edi",
    "ret",
);

unsafe extern "C" {
    safe fn satori_bench_fib(n: u32) -> u64;
}

pub fn fib(m: &mut Meter) {
    m.each(|| satori_bench_fib(black_box(16)));
}

pub fn indirect(m: &mut Meter) {
    macro_rules! table {
        ($($n:literal)*) => { [$({ fn f(x: u64) -> u64 { x.rotate_left($n) ^ (0x1234_5678 * $n) } f as fn(u64) -> u64 }),*] };
    }
    let table: [fn(u64) -> u64; 16] = black_box(table!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16));
    m.each(|| (0..1000usize).fold(black_box(1), |x, i| table[i.wrapping_mul(7) & 15](x)));
}

pub fn sieve(m: &mut Meter) {
    let mut composite = vec![false; 16384];
    m.each(|| {
        let composite = black_box(&mut composite);
        composite.fill(false);
        let (mut sum, mut count) = (0u64, 0);
        for i in 2..composite.len() {
            if !composite[i] {
                sum += i as u64;
                count += 1;
                for j in (i * i..composite.len()).step_by(i) {
                    composite[j] = true;
                }
            }
        }
        sum << 16 | count
    });
}

pub fn crc32(m: &mut Meter) {
    let table: Vec<u32> = (0..256u32)
        .map(|i| (0..8).fold(i, |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 }))
        .collect();
    let data = noise(4096);
    m.each(|| {
        let crc = black_box(&data).iter().fold(!0u32, |c, b| table[(c as u8 ^ b) as usize] ^ c >> 8);
        u64::from(!crc)
    });
}

pub fn hashmap(m: &mut Meter) {
    type Map = HashMap<u64, u64, BuildHasherDefault<DefaultHasher>>;
    m.each(|| {
        let mut map = Map::default();
        for i in 0..256u64 {
            *map.entry(i.wrapping_mul(0x9e37_79b9) & 0x1ff).or_default() += i;
        }
        (0..256u64).filter_map(|i| map.get(&(i * 2))).sum()
    });
}
