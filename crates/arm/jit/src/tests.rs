//! Both engines side by side.

use std::sync::Arc;

use satori_arm_engine::{Answer, Arm, Exit, Offered};
use satori_arm_isa::ROWS;
use satori_arm_soft::Interpreter;
use satori_arm_state::{CpuState, El, SP, Sys};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_seam::{Engine, Entropy, Partition, PartitionParts, TimeSource, Until, Vcpu, VcpuParts};

use crate::Translator;

struct NoTime;

impl TimeSource for NoTime {
    fn counter(&self) -> u64 {
        0
    }
    fn retired(&self, _: u64) {}
}

struct NoEntropy;

impl Entropy for NoEntropy {
    fn next(&mut self) -> Option<u64> {
        None
    }
}

const TABLES: u64 = 0x1000;
const VECTORS: u64 = 0x2000;
const DATA: u64 = 0x10_0000;
const CODE: u64 = 0x20_0000;
const MEMORY: u64 = 0x40_0000;

/// A vCPU with its memory.
struct Side {
    memory: GuestMemory,
    vcpu: Box<dyn Vcpu<Arm>>,
    _partition: Box<dyn Partition<Arm>>,
}

impl Side {
    /// At EL0, whose exceptions skip an instruction.
    fn new(engine: &dyn Engine<Arm>, code: &[u32], x: &[u64]) -> Side {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: MEMORY }]).expect("memory");
        let put = |at: u64, words: &[u32]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            memory.write(Gpa(at), &bytes).expect("it is within memory");
        };
        put(CODE, code);
        // Blocks of 1 GiB: for user code, and the same memory again for EL1.
        put(TABLES, &[0x745, 0, 0x705, 0]);
        // MRS X9, ELR_EL1; ADD X9, X9, #4; MSR ELR_EL1, X9; ERET
        put(VECTORS + 0x400, &[0xd538_4029, 0x9100_1129, 0xd518_4029, 0xd69f_03e0]);
        let parts = PartitionParts {
            memory: memory.clone(),
            time: Arc::new(NoTime),
            parallel: false,
            offered: Offered { el2: false, vhe: false, counter_hz: 1_000_000_000 },
        };
        let partition = engine.create_partition(parts).expect("a partition");
        let mut vcpu = partition.create_vcpu(VcpuParts { index: 0, entropy: Box::new(NoEntropy) });
        let state = vcpu.state_mut(());
        state.set(Sys::TTBR0_EL1, TABLES);
        state.set(Sys::TCR_EL1, 25 | 1 << 23 | 5 << 32);
        state.set(Sys::MAIR_EL1, 0xff << 8);
        state.set(Sys::SCTLR_EL1, state.get(Sys::SCTLR_EL1) | 1);
        state.set(Sys::CPACR_EL1, 3 << 20);
        state.set(Sys::VBAR_EL1, 1 << 30 | VECTORS);
        state.pstate.daif = 0;
        state.enter(El::Zero, false);
        state.pc = CODE;
        state.x[..31].copy_from_slice(x);
        state.x[SP] = DATA + 0x8000;
        // Numbers of all sizes, and NaNs.
        let mut random = Random(x[0]);
        state.v = std::array::from_fn(|at| match at % 4 {
            0 => u128::from((at as f64 * 0.37).to_bits()) * (1 << 64 | 1),
            1 => u128::from((at as f32 * -1.5e20).to_bits()) * (1 << 96 | 1 << 64 | 1 << 32 | 1),
            _ => u128::from(random.next()) << 64 | u128::from(random.next()),
        });
        Side { memory, vcpu, _partition: partition }
    }

    fn run(&mut self, instructions: u64) -> Exit {
        let exit = self.vcpu.run(Until { instructions: Some(instructions), ..Until::default() });
        if let Exit::MmioRead { .. } | Exit::MmioWrite { .. } | Exit::Call = exit {
            self.vcpu.resume(Answer::Refused);
        }
        exit
    }

    /// All registers but the scratch ones.
    fn seen(&self) -> CpuState {
        let mut state = self.vcpu.state().clone();
        state.x[33..].fill(0);
        state
    }

    fn code(&self) -> Vec<u32> {
        let mut bytes = vec![0; 8192];
        self.memory.read(Gpa(CODE), &mut bytes).expect("it is within memory");
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
    }

    fn data(&self) -> Vec<u8> {
        let mut data = vec![0; 0x2_0000];
        self.memory.read(Gpa(DATA - 0x1_0000), &mut data).expect("it is within memory");
        data
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Two pages of random instructions and a way back to the first, with branches that stay near.
fn random_code(random: &mut Random) -> Vec<u32> {
    let mut code: Vec<u32> = (0..2047)
        .map(|_| {
            loop {
                // The first rows are integer instructions, branches and accesses; the others floating point and vectors.
                let rows = if random.next() & 1 == 0 { 200.min(ROWS.len()) } else { ROWS.len() };
                let row = &ROWS[random.next() as usize % rows];
                let word = random.next() as u32;
                if let Some(word) = row.sample(word) {
                    break match word {
                        // B, BL, CBZ, TBZ, B.cond: some instructions ahead.
                        _ if word >> 26 & 0x1f == 5 => word & 0xfc00_0000 | (1 + (word & 15)),
                        _ if word >> 25 & 0x3f == 0x1a || word >> 24 == 0x54 => {
                            word & 0xff00_001f | (1 + (word >> 5 & 15)) << 5
                        }
                        _ if word >> 25 & 0x3f == 0x1b => word & 0xfff8_001f | (1 + (word >> 5 & 15)) << 5,
                        _ => word,
                    };
                }
            }
        })
        .collect();
    code.push(0x1400_0000 | (0_u32.wrapping_sub(2047) & 0x03ff_ffff));
    code
}

#[test]
fn random_code_does_on_both_engines_the_same_after_any_number_of_instructions() {
    let (mut blocks, mut entered) = (0, 0);
    for seed in 1..41_u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let code = random_code(&mut random);
        let x: Vec<u64> = (0..31).map(|_| DATA + (random.next() & 0x7ff8)).collect();
        let translator = if seed & 1 == 0 { Translator::eager(1) } else { Translator::new(1) };
        let mut sides = [Side::new(&Interpreter { vcpus: 1 }, &code, &x), Side::new(&translator, &code, &x)];
        for round in 0..200 {
            let instructions = 1 + random.next() % 300;
            let exits = sides.each_mut().map(|side| side.run(instructions));
            // Code that was written and is not synchronised may be executed as it was, or not.
            if sides[0].code() != code {
                break;
            }
            assert_eq!(exits[0], exits[1], "seed {seed}, round {round}");
            let [first, second] = sides.each_ref().map(Side::seen);
            assert!(first == second, "seed {seed}, round {round}, {}", difference(&first, &second));
            let retired = sides.each_ref().map(|side| side.vcpu.retired());
            assert_eq!(retired[0], retired[1], "seed {seed}, round {round}");
            // They go on at good addresses.
            for side in &mut sides {
                side.vcpu.state_mut(()).x[..31].copy_from_slice(&x);
                side.vcpu.state_mut(()).x[SP] = DATA + 0x8000;
                // Rounding modes, FZ and DN.
                side.vcpu.state_mut(()).fpcr = (round as u32 & 15) << 22;
            }
        }
        assert!(sides[0].code() != code || sides[0].data() == sides[1].data(), "seed {seed}: memory");
        let stats = sides[1].vcpu.stats();
        let of = |wanted: &str| stats.iter().find(|(name, _)| *name == wanted).map_or(0, |(_, count)| *count);
        blocks += of("translated blocks");
        entered += of("translated code entered");
    }
    assert!(blocks > 500 && entered > 2000, "{blocks} {entered}");
}

fn difference(first: &CpuState, second: &CpuState) -> String {
    let mut text = format!("pc {:x} {:x}, {:?} {:?}", first.pc, second.pc, first.pstate, second.pstate);
    for (register, (one, other)) in first.v.iter().zip(&second.v).enumerate() {
        if one != other {
            text.push_str(&format!(", v{register} {one:x} {other:x}"));
        }
    }
    text.push_str(&format!(", fpcr {:x}, fpsr {:x} {:x}", first.fpcr, first.fpsr, second.fpsr));
    for (register, (one, other)) in first.x.iter().zip(&second.x).enumerate() {
        if one != other {
            text.push_str(&format!(", x{register} {one:x} {other:x}"));
        }
    }
    text
}

#[test]
fn code_that_writes_code_executes_what_it_wrote() {
    // A function that returns a constant is called often, then written anew: 0x52800000 | n << 5 is MOV W0, #n.
    // mov x20, CODE + 0x1000; mov w21, #0; loop: blr x20; add x22, x22, x0; add w21, w21, #1; cmp w21, #40; b.ne 1f;
    // ldr w1, [x20]; add w1, w1, #32; str w1, [x20]; ic ivau, x20; isb; 1: b loop
    let code = [
        0xd2a0_0414_u32, // movz x20, #0x20, lsl 16
        0x9140_0694,     // add x20, x20, #1, lsl 12
        0xd63f_0280,     // loop: blr x20
        0x8b00_02d6,     // add x22, x22, x0
        0x1100_06b5,     // add w21, w21, #1
        0x7100_a2bf,     // cmp w21, #40
        0x5400_00c1,     // b.ne +6
        0xb940_0281,     // ldr w1, [x20]
        0x1100_8021,     // add w1, w1, #32
        0xb900_0281,     // str w1, [x20]
        0xd50b_7534,     // ic ivau, x20
        0xd503_3fdf,     // isb
        0x17ff_fff6,     // b loop
    ];
    let mut code = code.to_vec();
    code.resize(1024, 0);
    code.extend([0x5280_0020, 0xd65f_03c0]);
    let mut sums = Vec::new();
    for engine in [&Interpreter { vcpus: 1 } as &dyn Engine<Arm>, &Translator::eager(1), &Translator::new(1)]
    {
        let mut side = Side::new(engine, &code, &[0; 31]);
        // User code may maintain caches: UCI.
        let sctlr = side.vcpu.state().get(Sys::SCTLR_EL1) | 1 << 26;
        side.vcpu.state_mut(()).set(Sys::SCTLR_EL1, sctlr);
        assert_eq!(side.run(1000), Exit::Over);
        let state = side.vcpu.state();
        sums.push((state.x[21], state.x[22], state.pc));
    }
    assert_eq!(sums[0].1, 40 + 2 * (sums[0].0 - 40), "{sums:?}");
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
}
