//! What a case is: an instruction, and registers that suit it.

use satori_arm_isa::{Op, ROWS, Row};

/// A generator of random numbers, the same for the same seed.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.draw() >> 11) % end
    }

    /// A value of the kind that breaks things.
    fn value(&mut self) -> u64 {
        match self.below(8) {
            0 => [0, 1, u64::MAX, 1 << 63, i64::MAX as u64, 1 << 31, 0x7fff_ffff, 0xffff_ffff]
                [self.below(8) as usize],
            1 => self.below(300),
            2 => u64::MAX << self.below(64),
            3 => self.draw() >> self.below(64),
            4 => u64::from(self.float32()) | u64::from(self.float32()) << 32,
            5 => self.float64(),
            _ => self.draw(),
        }
    }

    /// A single: zeros, denormals, infinities, NaNs, integers and the rest.
    fn float32(&mut self) -> u32 {
        let sign = (self.draw() >> 63 << 31) as u32;
        let fraction = self.draw() as u32 & 0x007f_ffff;
        sign | match self.below(12) {
            0 => 0,
            1 => fraction >> self.below(23),
            2 => 0x7f80_0000,
            3 => 0x7fc0_0000 | fraction,
            4 => 0x7f80_0001 | fraction >> 2,
            5 => 0x3f80_0000,
            6 => (self.below(1000) as f32).to_bits(),
            7 => 0x7f7f_ffff,
            8 => (0x40 + self.below(0x80) as u32) << 23 | fraction,
            9 => (0x75 + self.below(0x30) as u32) << 23 | fraction & 0x007f_0000,
            _ => self.draw() as u32 & 0x7fff_ffff,
        }
    }

    fn float64(&mut self) -> u64 {
        let sign = self.draw() >> 63 << 63;
        let fraction = self.draw() & 0x000f_ffff_ffff_ffff;
        sign | match self.below(12) {
            0 => 0,
            1 => fraction >> self.below(52),
            2 => 0x7ff0_0000_0000_0000,
            3 => 0x7ff8_0000_0000_0000 | fraction,
            4 => 0x7ff0_0000_0000_0001 | fraction >> 2,
            5 => 0x3ff0_0000_0000_0000,
            6 => (self.below(100_000) as f64).to_bits(),
            7 => 0x7fef_ffff_ffff_ffff,
            8 => (0x380 + self.below(0x100)) << 52 | fraction,
            9 => (0x3f5 + self.below(0x50)) << 52 | fraction & 0x000f_ff00_0000_0000,
            _ => self.draw() & i64::MAX as u64,
        }
    }
}

/// One instruction and the registers before it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its row.
    pub row: &'static Row,
    /// Its word.
    pub word: u32,
    /// X0 to X30.
    pub x: [u64; 31],
    /// V0 to V31.
    pub v: [u128; 32],
    /// NZCV.
    pub nzcv: u64,
    /// FPCR.
    pub fpcr: u64,
    /// The window that it may access.
    pub window: Vec<u8>,
}

/// What a program of EL0 without an environment cannot show, or may not do.
fn is_comparable(op: Op) -> bool {
    !(Op::B..=Op::Eret).contains(&op)
}

/// Whether the row accesses memory.
fn accesses(op: Op) -> bool {
    (Op::LdrLitW..=Op::StLanePost).contains(&op)
}

/// CONSTRAINED UNPREDICTABLE combinations, of which each implementation makes its own.
fn is_unpredictable(op: Op, word: u32) -> bool {
    let (d, n, a, m) = (word & 31, word >> 5 & 31, word >> 10 & 31, word >> 16 & 31);
    let name = format!("{op:?}");
    let general = !name.contains('V') && !name.contains('Q');
    let single = (name.ends_with("Post") || name.ends_with("Pre")) && accesses(op);
    let pair = name.starts_with("Ldp") || name.starts_with("Stp");
    let pair_general = matches!(op, Op::Stp32 | Op::Stp64 | Op::Ldp32 | Op::Ldp64 | Op::Ldpsw);
    let writes_back = pair && word >> 23 & 1 != 0;
    (single && general && !name.contains('x') && n == d && n != 31 && !name.contains("Lane"))
        || (writes_back && pair_general && n != 31 && (n == d || n == a))
        || (name.starts_with("Ldp") && d == a)
        || (matches!(op, Op::Ldxp | Op::Ldaxp) && d == a)
        || (matches!(op, Op::Stxr | Op::Stlxr | Op::Stxp | Op::Stlxp)
            && (m == d || m == n || (m == a && matches!(op, Op::Stxp | Op::Stlxp))))
        || (op == Op::Stxr && m == n)
        || (matches!(op, Op::LdSxPost | Op::LdSxPre) && n == d && n != 31)
}

/// Keeps what a memory access reaches within its window, which begins 512 bytes before the base.
fn confine(op: Op, word: u32) -> u32 {
    let name = format!("{op:?}");
    if name.ends_with("Uns") || op == Op::Prfm {
        // 31 elements.
        word & !(0xfe0 << 10)
    } else if matches!(op, Op::StpQ | Op::LdpQ) {
        // 7 bits, signed: 31 of them at most.
        (word & !(0x7f << 15)) | (word >> 15 & 0x1f) << 15
    } else if name.contains("Lit") {
        // The code behind it.
        word & !(0x7ffff << 5) | (word >> 5 & 3) << 7
    } else {
        word
    }
}

impl Case {
    /// A random case of `row`, whose window's middle will be at `middle`.
    pub fn of(row: &'static Row, random: &mut Random, middle: u64) -> Option<Case> {
        if !is_comparable(row.op) {
            return None;
        }
        let word = confine(row.op, row.sample(random.draw() as u32)?);
        if !row.matches(word) || is_unpredictable(row.op, word) {
            return None;
        }
        let mut x = [0; 31];
        x.iter_mut().for_each(|x| *x = random.value());
        let mut v = [0; 32];
        for v in &mut v {
            *v = u128::from(random.value()) | u128::from(random.value()) << 64;
        }
        if accesses(row.op) {
            // An index, then the base: if they are one register, it is the base.
            let (base, index) = ((word >> 5 & 31) as usize, (word >> 16 & 31) as usize);
            let register = format!("{:?}", row.op).ends_with("Reg");
            if register && index == base {
                return None;
            }
            if register && index < 31 {
                x[index] = random.below(12);
            }
            if base < 31 {
                x[base] = middle + 16 * random.below(4);
                if !needs_alignment(row.op) {
                    x[base] += random.below(16);
                }
            }
        }
        let window = (0..1024).map(|_| random.draw() as u8).collect();
        // RMode, FZ and DN; AHP now and then.
        let fpcr = random.below(16) << 22 & random.draw() | u64::from(random.below(8) == 0) << 26;
        Some(Case { row, word, x, v, nzcv: random.below(16) << 28, fpcr, window })
    }

    /// Whether any row whose name contains `only` has cases that can be compared.
    pub fn any_of(only: &str) -> bool {
        let mut random = Random(1);
        ROWS.iter()
            .filter(|row| named(row, only))
            .any(|row| (0..100).any(|_| Case::of(row, &mut random, 0).is_some()))
    }

    /// A case of any row, or of any whose name contains `only`; there must be one ([`Case::any_of`]).
    pub fn any(random: &mut Random, only: Option<&str>, middle: u64) -> Case {
        loop {
            let row = &ROWS[random.below(ROWS.len() as u64) as usize];
            if only.is_some_and(|only| !named(row, only)) {
                continue;
            }
            if let Some(case) = Case::of(row, random, middle) {
                return case;
            }
        }
    }
}

fn named(row: &Row, part: &str) -> bool {
    format!("{:?}", row.op).contains(part)
}

fn needs_alignment(op: Op) -> bool {
    (Op::Stxr..=Op::Ldapr).contains(&op)
}
