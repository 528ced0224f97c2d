//! Random loops on memory, on the interpreter and on the translator: the same registers, memory, accessed
//! and dirty bits and counts, wherever the run is cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use satori_defs::fpu::xsave;
use satori_defs::x86::{cr4, pte, rflags};
use satori_engine::{CodeWatcher, Exit, Made, TimeSource, Until};
use satori_memory::{Gpa, GuestMemory};
use satori_state::reg;

use super::{Jit, Manner, Pool};
use crate::testing::{Machine, machine64};
use satori_soft::cpu::Cpu;
use satori_soft::testing::{Numbers, PD, SCRATCH};

/// Linear address of the data, in the second GiB.
pub(super) const DATA: u64 = 0x5000_0000;
pub(super) const PAGES: u64 = 16;
/// The page table that maps it.
pub(super) const TABLE: u64 = 0x7000;
const CODE: u64 = 0x1_0000;
/// Loops to run.
const LOOPS: u64 = 4000;

pub(super) const BASES: [Register; 7] =
    [Register::RBX, Register::RSI, Register::RDI, Register::R8, Register::R10, Register::R14, Register::RSP];
pub(super) const VALUES: [Register; 6] =
    [Register::RAX, Register::RDX, Register::R9, Register::R11, Register::R12, Register::R15];
pub(super) const INDEX: Register = Register::RCX;
pub(super) const COUNTER: Register = Register::R13;

pub(super) fn pick<T: Copy>(random: &mut Numbers, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

/// An operand in memory; most have one of few bases.
fn operand(random: &mut Numbers, bases: &[Register]) -> MemoryOperand {
    let base = pick(random, bases);
    let disp = match random.below(8) {
        0 => pick(random, &[-8, -64, 1, 3, 61, 300, 4090]),
        1..4 => random.below(12) as i64 * 8,
        _ => random.below(6) as i64 * 16,
    };
    if random.below(5) == 0 {
        let scale = pick(random, &[1, 2, 4, 8]);
        MemoryOperand::with_base_index_scale_displ_size(base, INDEX, scale, disp, 8)
    } else {
        MemoryOperand::with_base_displ(base, disp)
    }
}

/// One instruction of the loop's body.
pub(super) fn instruction(random: &mut Numbers, bases: &[Register]) -> Instruction {
    let value = pick(random, &VALUES);
    let memory = operand(random, bases);
    let small = random.below(64) as i32 - 32;
    let narrow = value.full_register32();
    let made = match random.below(27) {
        0..3 => Instruction::with2(Code::Mov_r64_rm64, value, memory),
        3..6 => Instruction::with2(Code::Mov_rm64_r64, memory, value),
        6 => Instruction::with2(Code::Add_rm32_r32, memory, narrow),
        7 => Instruction::with2(Code::Cmp_r64_rm64, value, memory),
        8 => Instruction::with1(Code::Push_r64, value),
        9 => Instruction::with1(Code::Pop_r64, value),
        10 => Instruction::with2(Code::Add_rm64_imm8, pick(random, bases), small),
        11 => {
            let base = pick(random, bases);
            let memory = MemoryOperand::with_base_displ(base, small.into());
            Instruction::with2(Code::Lea_r64_m, base, memory)
        }
        12 => Instruction::with2(Code::Movzx_r32_rm8, narrow, memory),
        13 => Instruction::with2(Code::Mov_rm32_imm32, memory, small),
        14 => Instruction::with1(Code::Inc_rm64, value),
        15 => Instruction::with2(Code::And_rm64_imm8, value, small),
        16 => Instruction::with2(Code::Adc_r64_rm64, value, memory),
        17 => Instruction::with2(Code::Movdqu_xmm_xmmm128, Register::XMM1, memory),
        18 => Instruction::with2(Code::Movdqu_xmmm128_xmm, memory, Register::XMM1),
        19 => Instruction::with2(Code::Bts_rm64_r64, memory, INDEX),
        20 => Instruction::with1(Code::Setb_rm8, memory),
        // These two fault where the address is no multiple of 16.
        21 => Instruction::with2(Code::Movaps_xmm_xmmm128, Register::XMM1, memory),
        22 => Instruction::with2(Code::Addps_xmm_xmmm128, Register::XMM2, memory),
        23 => Instruction::with2(Code::VEX_Vmovdqu_ymm_ymmm256, Register::YMM1, memory),
        24 => Instruction::with2(Code::VEX_Vmovdqu_ymmm256_ymm, memory, Register::YMM1),
        25 => Instruction::with3(Code::VEX_Vpaddd_ymm_ymm_ymmm256, Register::YMM1, Register::YMM2, memory),
        _ => Instruction::with2(Code::Sub_r64_rm64, value, memory),
    };
    made.expect("operands fit the code")
}

/// A loop and what follows it.
fn program(random: &mut Numbers) -> Vec<u8> {
    let bases: Vec<_> = (0..1 + random.below(3)).map(|_| pick(random, &BASES)).collect();
    let mut encoder = Encoder::new(64);
    let mut code: Vec<u8> = Vec::new();
    let encode = |encoder: &mut Encoder, insn: &Instruction, at: u64| {
        encoder.encode(insn, at).expect("it can be encoded");
        encoder.take_buffer()
    };
    for _ in 0..2 + random.below(10) {
        let next = encode(&mut encoder, &instruction(random, &bases), 0);
        if random.below(6) == 0 {
            // Some condition, over the next instruction.
            code.extend([0x70 | random.below(16) as u8, next.len() as u8]);
        }
        code.extend(next);
    }
    let count = Instruction::with1(Code::Dec_rm64, COUNTER).expect("operands fit the code");
    code.extend(encode(&mut encoder, &count, 0));
    let here = CODE + code.len() as u64;
    let back = Instruction::with_branch(Code::Jne_rel32_64, CODE).expect("operands fit the code");
    code.extend(encode(&mut encoder, &back, here));
    code.push(0xf4); // HLT
    code
}

/// A processor with the data mapped at random: pieces lie together or not, some are read-only or absent.
fn machine(random: &mut Numbers) -> Machine {
    let mut cpu = machine64();
    let table = TABLE | pte::P | pte::W | pte::U;
    let at = PD + 0x1000 + 8 * ((DATA - (1 << 30)) >> 21);
    cpu.memory().write(Gpa(at), &table.to_le_bytes()).expect("RAM");
    fill(&mut cpu, random);
    cpu
}

/// Maps the data at random, and fills it and the registers.
pub(super) fn fill(cpu: &mut Machine, random: &mut Numbers) {
    let write = |at: u64, value: u64| cpu.memory().write(Gpa(at), &value.to_le_bytes()).expect("RAM");
    let mut physical = random.below(PAGES);
    for page in 0..PAGES {
        physical = if random.below(2) == 0 { physical + 1 } else { random.below(PAGES) };
        let rights = match random.below(14) {
            0 => 0,
            1 => pte::P,
            _ => pte::P | pte::W,
        };
        write(TABLE + 8 * page, (SCRATCH + physical % PAGES * 0x1000) | rights);
    }
    for at in (0..PAGES * 0x1000).step_by(8) {
        write(SCRATCH + at, random.any());
    }
    cpu.state.cr4 |= cr4::OSXSAVE;
    cpu.state.xcr0 = xsave::X87 | xsave::SSE | xsave::AVX;
    for base in BASES {
        let near = DATA + (3 + random.below(PAGES - 6)) * 0x1000;
        let off = if random.below(2) == 0 { 16 * random.below(16) } else { random.below(256) };
        cpu.state.gpr[base.number()] = near.wrapping_sub(off);
    }
    for value in VALUES {
        cpu.state.gpr[value.number()] = random.any();
    }
    cpu.state.gpr[reg::RCX] = random.below(200);
    cpu.state.gpr[COUNTER.number()] = 1 + random.below(150);
}

/// Runs to the end, `slice` instructions at a time: the last exit, and the sum of where each slice ended.
fn run(cpu: &mut Machine, slice: u64) -> (String, u64) {
    let mut places = 0u64;
    loop {
        let until = Until { counter: None, instructions: Some(slice) };
        let exit = cpu.run(until);
        places = places.wrapping_mul(31).wrapping_add(cpu.state.rip ^ cpu.state.gpr[COUNTER.number()]);
        if exit != Exit::Budget {
            return (format!("{exit:?}"), places);
        }
    }
}

/// Everything that the guest can see, but for what the manual leaves undefined of the flags.
fn outcome(cpu: &Cpu) -> (Vec<u64>, Vec<u8>, u64) {
    let mut registers = cpu.state.gpr[..16].to_vec();
    registers.push(cpu.state.rip);
    registers.push(cpu.state.rflags & !rflags::AF);
    let mut memory = vec![0; (PAGES * 0x1000) as usize];
    cpu.memory().read(Gpa(SCRATCH), &mut memory).expect("RAM");
    let mut tables = vec![0; 0x2000];
    cpu.memory().read(Gpa(TABLE - 0x1000), &mut tables).expect("RAM");
    memory.extend(tables);
    (registers, memory, cpu.retired())
}

/// Executes `code` on the interpreter, and translated at once and later, on a machine that follows from `seed`.
fn the_same(pool: &Pool, seed: u64, code: &[u8], slice: u64) {
    let mut outcomes = Vec::new();
    for (hot, parallel) in [(None, false), (Some(0), false), (Some(3), true)] {
        let mut random = Numbers(seed ^ 0x5555_0000);
        let mut cpu = machine(&mut random);
        cpu.memory().write(Gpa(CODE), code).expect("RAM");
        cpu.set_parallel(parallel);
        cpu.put(hot.and_then(|hot| {
            Jit::new(pool, Manner { hot, counting: false, watcher: None, host: super::Host::default() })
        }));
        let ended = run(&mut cpu, slice);
        outcomes.push((ended, outcome(&cpu)));
    }
    for (i, other) in outcomes.iter().enumerate().skip(1) {
        assert_eq!(outcomes[0].0, other.0, "seed {seed}, way {i}: the end");
        assert_eq!(outcomes[0].1.0, other.1.0, "seed {seed}, way {i}: registers");
        assert_eq!(outcomes[0].1.2, other.1.2, "seed {seed}, way {i}: instructions");
        assert!(outcomes[0].1.1 == other.1.1, "seed {seed}, way {i}: memory");
    }
}

#[test]
fn loops_on_memory_are_as_the_interpreter_has_them() {
    let pool = Pool::default();
    for seed in 0..LOOPS {
        let mut random = Numbers(seed);
        let code = program(&mut random);
        let slice = pick(&mut random, &[7, 50, 333, 1 << 30]);
        the_same(&pool, seed, &code, slice);
    }
}

#[test]
fn displacements_may_be_as_far_apart_as_64_bits_go() {
    let pool = Pool::default();
    let far = [i64::MIN, i64::MIN + DATA as i64, i64::MIN + DATA as i64 + 8, i64::MAX, i64::MAX - 8, -1, -8];
    for (seed, far) in (0..).zip(far) {
        let [near, next] = [DATA + 0x3008, DATA + 0x3010].map(u64::to_le_bytes);
        let [load, store] = [[0x48, 0xa1], [0x48, 0xa3]];
        let far = far.to_le_bytes();
        for order in [[near, far, next], [near, next, far], [far, near, next]] {
            for (first, second) in [(load, load), (load, store), (store, store)] {
                let code = [&first[..], &order[0], &second, &order[1], &second, &order[2], &[0xf4]].concat();
                the_same(&pool, seed, &code, 1 << 30);
            }
        }
    }
}

/// The largest piece of code that was made.
#[derive(Debug, Default)]
struct Largest(AtomicUsize);

impl CodeWatcher for Largest {
    fn made(&self, made: &Made<'_>) {
        self.0.fetch_max(made.code.len(), Ordering::Relaxed);
    }
}

/// Guest code that becomes much: as many instructions as a block may have, in a loop, of accesses that stand alone, with
/// flags that can be made again only.
#[test]
fn the_longest_block_has_room() {
    // CMP of R10 and R11; then over and over, of each a few: MOV to and from [R14 + R15 * 8 + 0x7f], MOVUPS, XADD, PUSH of
    // [RSI], ADD to [RDI], DIV of [R8]; at last DEC of RCX, JNZ back.
    let pieces: [&[u8]; 7] = [
        &[0x4f, 0x89, 0x54, 0xfe, 0x7f],
        &[0x4f, 0x8b, 0x54, 0xfe, 0x7f],
        &[0x0f, 0x10, 0x06],
        &[0x0f, 0xc1, 0x06],
        &[0xff, 0x36],
        &[0x01, 0x07],
        &[0x41, 0xf7, 0x30],
    ];
    let largest = Arc::new(Largest::default());
    for piece in pieces {
        for parallel in [false, true] {
            let mut random = Numbers(1);
            let mut cpu = machine(&mut random);
            let mut code = vec![0x4d, 0x39, 0xda];
            while code.len() + piece.len() < 640 && code.len() / piece.len() < 126 {
                code.extend(piece);
            }
            code.extend([0x48, 0xff, 0xc9, 0x0f, 0x85]);
            code.extend((-(code.len() as i32) - 4).to_le_bytes());
            code.push(0xf4);
            cpu.memory().write(Gpa(CODE), &code).expect("RAM");
            cpu.state.rip = CODE;
            cpu.set_parallel(parallel);
            let manner = Manner {
                hot: 0,
                counting: false,
                watcher: Some(largest.clone()),
                host: super::Host::default(),
            };
            cpu.put(Jit::new(&Pool::default(), manner));
            cpu.run(Until { counter: None, instructions: Some(1000) });
            let counts = cpu.jit().expect("there is one").counts;
            assert!(counts.instructions > 100, "{counts:?}");
        }
    }
    let most = largest.0.load(Ordering::Relaxed);
    assert!((0x4000..super::translate::ROOM / 2).contains(&most), "{most:#x} bytes");
}

/// Time whose reading of a chosen number makes another vCPU decode code from a page.
struct Decoder {
    memory: GuestMemory,
    page: Gpa,
    readings: AtomicUsize,
}

impl TimeSource for Decoder {
    fn counter(&self) -> u64 {
        if self.readings.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.memory.page(self.page).expect("RAM").state.mark_code(true);
        }
        0
    }
    fn retired(&self, _instructions: u64) {}
}

/// A loop that stores to a page, and loads from one whose translation takes the same place: what others decode from the
/// first meanwhile is noticed at the next store.
#[test]
fn stores_see_the_mark_of_their_own_page() {
    let (stored, loaded) = (SCRATCH + 0x5000, 0x5000);
    // MOV [RBX], RAX; MOV RDX, [RSI]; RDTSC; MOV [RBX + 8], RAX; DEC RCX; JNE back; HLT.
    let code = [
        0x48, 0x89, 0x03, 0x48, 0x8b, 0x16, 0x0f, 0x31, 0x48, 0x89, 0x43, 0x08, 0x48, 0xff, 0xc9, 0x75, 0xef,
        0xf4,
    ];
    for hot in [0, 3] {
        let mut cpu = machine64();
        cpu.memory().write(Gpa(CODE), &code).expect("RAM");
        (cpu.state.gpr[reg::RBX], cpu.state.gpr[reg::RSI], cpu.state.gpr[reg::RCX]) = (stored, loaded, 100);
        let readings = AtomicUsize::new(50);
        let memory = cpu.memory().clone();
        cpu.set_time(Arc::new(Decoder { memory, page: Gpa(stored), readings }));
        cpu.set_parallel(true);
        let manner = Manner { hot, counting: false, watcher: None, host: super::Host::default() };
        cpu.put(Jit::new(&Pool::default(), manner));
        assert_eq!(cpu.run(Until { counter: None, instructions: Some(10_000) }), Exit::Hlt);
        let state = cpu.memory().page(Gpa(stored)).expect("RAM").state;
        assert!(!state.has_code(), "a store to code was not noticed");
    }
}
