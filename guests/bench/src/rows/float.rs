//! Floating point: SSE one at a time and four at a time, AVX2 with FMA, x87.

use std::arch::x86_64::{
    _mm_add_ps, _mm_loadu_ps, _mm_mul_ps, _mm_set1_ps, _mm_storeu_ps, _mm256_fmadd_ps, _mm256_loadu_ps,
    _mm256_set1_ps, _mm256_storeu_ps,
};
use std::arch::{asm, is_x86_feature_detected};
use std::hint::black_box;

use crate::measure::Meter;

const SIDE: usize = 32;
/// A matrix that no vector in a row of it crosses a cache line in: an array would lie wherever the stack
/// does, which is somewhere else in each run.
#[repr(align(64))]
struct Matrix([[f32; SIDE]; SIDE]);

fn matrices() -> (Matrix, Matrix) {
    let fill = |seed: usize| {
        let mut m = Matrix([[0f32; SIDE]; SIDE]);
        for (i, row) in m.0.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                *cell = ((i * 37 + j * 11 + seed) % 101) as f32 / 7.0 - 5.0;
            }
        }
        m
    };
    (fill(1), fill(2))
}

fn sum(m: &Matrix) -> u64 {
    m.0.iter().flatten().fold(0, |sum: u64, cell| sum.rotate_left(7) ^ u64::from(cell.to_bits()))
}

pub fn sse_scalar(m: &mut Meter) {
    const N: usize = 24;
    let (mut a, mut b) = ([[0f64; N]; N], [[0f64; N]; N]);
    for i in 0..N {
        for j in 0..N {
            a[i][j] = (i * 31 + j * 7) as f64 / 13.0;
            b[i][j] = 1.0 / (1 + i + 2 * j) as f64;
        }
    }
    m.each(|| {
        let (a, b) = (black_box(&a), black_box(&b));
        a.iter().fold(0u64, |sum, row| {
            (0..N).fold(sum, |sum, j| {
                // A sum in order cannot be made into vectors.
                let dot = (0..N).fold(0.0, |dot, k| dot + row[k] * b[k][j]);
                sum.rotate_left(7) ^ f64::to_bits(dot)
            })
        })
    });
}

pub fn sse_packed(m: &mut Meter) {
    let (a, b) = matrices();
    let mut c = Matrix([[0f32; SIDE]; SIDE]);
    m.each(|| {
        packed(black_box(&a), black_box(&b), &mut c);
        sum(&c)
    });
}

fn packed(a: &Matrix, b: &Matrix, c: &mut Matrix) {
    for (row, out) in a.0.iter().zip(&mut c.0) {
        out.fill(0.0);
        for (factor, line) in row.iter().zip(&b.0) {
            for (out, line) in out.chunks_exact_mut(4).zip(line.chunks_exact(4)) {
                // SAFETY: each chunk has four numbers, and SSE is part of x86-64.
                unsafe {
                    let product = _mm_mul_ps(_mm_set1_ps(*factor), _mm_loadu_ps(line.as_ptr()));
                    _mm_storeu_ps(out.as_mut_ptr(), _mm_add_ps(_mm_loadu_ps(out.as_ptr()), product));
                }
            }
        }
    }
}

pub fn avx2(m: &mut Meter) {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        m.absent = Some("the processor offers no AVX2 with FMA".into());
        return;
    }
    let (a, b) = matrices();
    let mut c = Matrix([[0f32; SIDE]; SIDE]);
    m.each(|| {
        // SAFETY: the processor has what the function needs.
        unsafe { fused(black_box(&a), black_box(&b), &mut c) };
        sum(&c)
    });
}

#[target_feature(enable = "avx2,fma")]
fn fused(a: &Matrix, b: &Matrix, c: &mut Matrix) {
    for (row, out) in a.0.iter().zip(&mut c.0) {
        out.fill(0.0);
        for (factor, line) in row.iter().zip(&b.0) {
            for (out, line) in out.chunks_exact_mut(8).zip(line.chunks_exact(8)) {
                // SAFETY: each chunk has eight numbers.
                unsafe {
                    let (line, old) = (_mm256_loadu_ps(line.as_ptr()), _mm256_loadu_ps(out.as_ptr()));
                    _mm256_storeu_ps(out.as_mut_ptr(), _mm256_fmadd_ps(_mm256_set1_ps(*factor), line, old));
                }
            }
        }
    }
}

pub fn x87(m: &mut Meter) {
    m.each(|| {
        let (mut value, step) = (black_box(1.5f64), 0.37f64);
        // SAFETY: reads and writes the two variables, and leaves the x87 stack empty.
        unsafe {
            asm!(
                "fld qword ptr [{step}]",
                "fld qword ptr [{value}]",
                "2:",
                "fmul st(0), st(1)",
                "fadd st(0), st(1)",
                "fld1",
                "faddp st(1), st(0)",
                "fld st(0)",
                "fsqrt",
                "fdivp st(1), st(0)",
                "dec {n:e}",
                "jnz 2b",
                "fstp qword ptr [{value}]",
                "fstp st(0)",
                step = in(reg) &step,
                value = in(reg) &mut value,
                n = inout(reg) 200u32 => _,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
        value.to_bits()
    });
}
