//! Random programs while they get hot, on the interpreter and on the translator.
//!
//! A program is executed several times by one vCPU, with other registers and data each time, so what is compared
//! is what a guest executes for long: blocks that go on behind branches that were seldom taken, second copies
//! of loops, windows and pages that are kept from round to round, calls and indirect branches that meet a known
//! target. Pages come and go meanwhile, by the program itself and by its handler of page faults, and the
//! code changes itself. Most programs are at another linear address each time.
//!
//! `SATORI_WARM=FROM..TO` chooses the seeds. A program that differs is made smaller before it is told.

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use satori_defs::x86::{pte, rflags};
use satori_engine::{Exit, Until};
use satori_memory::Gpa;
use satori_state::{CpuState, Segment, reg};

use super::tests::{BASES, COUNTER, DATA, INDEX, PAGES, TABLE, VALUES, fill, instruction, pick};
use super::{Host, Jit, Manner, Pool};
use crate::testing::{Machine, machine64};
use satori_soft::cpu::Cpu;
use satori_soft::testing::{Numbers, PD, SCRATCH, SCRATCH_LEN};

/// Programs in the gate.
const SEEDS: std::ops::Range<u64> = 0..600;
/// Times that each is executed.
const ROUNDS: u64 = 5;
/// Instructions of one time at most.
const LONGEST: u64 = 20_000;
const CODE: u64 = 0x1_0000;
const SUBROUTINES: u64 = 0x1_2000;
pub(super) const IDT: u64 = 0x9000;
pub(super) const GDT: u64 = 0xa000;
pub(super) const TSS: u64 = 0xb000;
pub(super) const HANDLER: u64 = 0xc000;
pub(super) const STACK: u64 = 0xe000;
/// Where the first GiBs are mapped again: programs are at some of these, one after another.
const PLACES: [u64; 4] = [0, 0x5580_0000_0000, 0x7f00_0000_0000, 1 << 39];
/// The counter of inner loops.
const INNER: Register = Register::RBP;

/// A part of a program.
#[derive(Clone, Debug)]
enum Part {
    Plain(Vec<u8>),
    /// A short branch over what follows, on any condition.
    Over(u8, Vec<u8>),
    /// A branch that a few bits of the loop's counter decide: over code in line, or away to other code and back.
    Seldom {
        mask: u8,
        unless: bool,
        away: bool,
        code: Vec<u8>,
    },
    /// A loop in the loop, of so many rounds, with a way out in between.
    Inner {
        rounds: u8,
        code: Vec<u8>,
        out: Option<u8>,
        rest: Vec<u8>,
    },
    /// A call of a subroutine, or through a register if so.
    Call {
        code: Vec<u8>,
        indirect: bool,
    },
    /// A jump through a register to what follows.
    Jump,
    /// An immediate, and a store to it, before it or behind.
    Patch {
        register: u8,
        before: bool,
    },
}

/// A program: where it starts, and its parts.
#[derive(Clone, Debug)]
struct Program {
    at: u64,
    parts: Vec<Part>,
}

fn encoded(insn: &Instruction) -> Vec<u8> {
    let mut encoder = Encoder::new(64);
    encoder.encode(insn, 0).expect("it can be encoded");
    encoder.take_buffer()
}

/// An instruction beside those of the loops on memory.
fn another(random: &mut Numbers, bases: &[Register]) -> Vec<u8> {
    let page = random.below(PAGES);
    let (entry, linear) = ((TABLE + 8 * page) as u32, (DATA + page * 0x1000) as u32);
    // INVLPG of that page.
    let dropped = [&[0x0f, 0x01, 0x3c, 0x25][..], &linear.to_le_bytes()].concat();
    let memory = MemoryOperand::with_base_displ(pick(random, bases), random.below(9) as i64 * 8);
    let value = pick(random, &VALUES);
    let made = match random.below(12) {
        // AND of the entry's byte: not present, or read-only.
        0 | 1 => {
            let rights = if random.below(2) == 0 { 0xfe } else { 0xfd };
            return [&[0x80, 0x24, 0x25][..], &entry.to_le_bytes(), &[rights], &dropped].concat();
        }
        // MOV of another physical page to it.
        2 => {
            let physical = (SCRATCH + random.below(PAGES) * 0x1000) as u32 | 3;
            let store = [&[0xc7, 0x04, 0x25][..], &entry.to_le_bytes(), &physical.to_le_bytes()].concat();
            return [store, dropped].concat();
        }
        // CR3 is loaded with what it holds, through RAX.
        3 => return vec![0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8],
        // MOV to ECX, and REP MOVSB, REP MOVSQ or REP STOSQ.
        4 => {
            let most = if random.below(4) == 0 { 600 } else { 20 };
            let count = random.below(most) as u32;
            // Or one element of MOVSB, MOVSW, STOSQ, LODSB, SCASB, CMPSQ, and of STOSD downwards.
            let string = pick(
                random,
                &[
                    &[0xf3, 0xa4][..],
                    &[0xf3, 0x48, 0xa5],
                    &[0xf3, 0x48, 0xab],
                    &[0xa4],
                    &[0x66, 0xa5],
                    &[0x48, 0xab],
                    &[0xac],
                    &[0xae],
                    &[0x48, 0xa7],
                    &[0xfd, 0xab, 0xfc],
                ],
            );
            return [&[0xb9][..], &count.to_le_bytes(), string].concat();
        }
        5 => Instruction::with2(Code::Xadd_rm64_r64, memory, value).map(|mut insn| {
            insn.set_has_lock_prefix(true);
            insn
        }),
        6 => Instruction::with2(Code::Cmpxchg_rm64_r64, memory, value),
        7 => Instruction::with2(Code::Xchg_rm64_r64, memory, value),
        8 => Instruction::with2(Code::Cmovb_r64_rm64, value, memory),
        9 => Instruction::with2(Code::Movaps_xmmm128_xmm, memory, Register::XMM2),
        10 => Instruction::with2(Code::Pxor_xmm_xmmm128, Register::XMM1, Register::XMM2),
        _ => Instruction::with2(Code::Mov_r32_imm32, INDEX.full_register32(), random.below(200) as i32),
    };
    encoded(&made.expect("operands fit the code"))
}

fn some(random: &mut Numbers, bases: &[Register], most: u64) -> Vec<u8> {
    let one = |random: &mut Numbers| {
        if random.below(7) == 0 { another(random, bases) } else { encoded(&instruction(random, bases)) }
    };
    (0..1 + random.below(most)).flat_map(|_| one(random)).collect()
}

fn part(random: &mut Numbers, bases: &[Register]) -> Part {
    match random.below(16) {
        0..6 => Part::Plain(some(random, bases, 3)),
        6 => {
            let mut over = some(random, bases, 2);
            over.truncate(127);
            Part::Over(0x70 | random.below(16) as u8, over)
        }
        7..11 => Part::Seldom {
            mask: pick(random, &[1, 3, 7, 7, 15, 31, 63, 127]),
            unless: random.below(4) == 0,
            away: random.below(3) > 0,
            code: some(random, bases, 4),
        },
        11 | 12 => Part::Inner {
            rounds: 1 + random.below(40) as u8,
            code: some(random, bases, 4),
            out: (random.below(3) == 0).then(|| pick(random, &[3, 15, 31])),
            rest: some(random, bases, 2),
        },
        13 => Part::Call { code: some(random, bases, 3), indirect: random.below(3) == 0 },
        14 => Part::Jump,
        _ => Part::Patch { register: pick(random, &[0, 2, 6]), before: random.below(2) == 0 },
    }
}

fn program(random: &mut Numbers) -> Program {
    let bases: Vec<_> = (0..1 + random.below(3)).map(|_| pick(random, &BASES)).collect();
    // Anywhere in a page: blocks and instructions cross its end.
    let at = CODE + if random.below(3) == 0 { 0x1000 - random.below(120) } else { random.below(64) };
    Program { at, parts: (0..1 + random.below(9)).map(|_| part(random, &bases)).collect() }
}

/// Code with places that are known later.
#[derive(Default)]
struct Draft {
    bytes: Vec<u8>,
    /// 32 bits that come to be the distance to a label.
    distances: Vec<(usize, usize)>,
    labels: Vec<Option<usize>>,
}

impl Draft {
    fn label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }
    fn bind(&mut self, label: usize) {
        self.labels[label] = Some(self.bytes.len());
    }
    /// `opcode` and the distance to `label`.
    fn to(&mut self, opcode: &[u8], label: usize) {
        self.bytes.extend(opcode);
        self.distances.push((self.bytes.len(), label));
        self.bytes.extend([0; 4]);
    }
    fn resolved(mut self) -> Vec<u8> {
        for (at, label) in self.distances {
            let distance = self.labels[label].expect("it is bound") as i32 - (at as i32 + 4);
            self.bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        }
        self.bytes
    }
}

const DEC_R13: [u8; 3] = [0x49, 0xff, 0xcd];
const DEC_EBP: [u8; 2] = [0xff, 0xcd];
/// TEST of R13B, and JZ, JNZ.
const TEST_R13B: [u8; 3] = [0x41, 0xf6, 0xc5];
const JZ: [u8; 2] = [0x0f, 0x84];
const JNZ: [u8; 2] = [0x0f, 0x85];
/// LEA of a place into RAX.
const LEA_RAX: [u8; 3] = [0x48, 0x8d, 0x05];

impl Program {
    /// Subroutines have a page of their own, behind what does not fit a page.
    fn text(&self) -> Text {
        let (mut text, mut patched) = (Draft::default(), Vec::new());
        let mut behind: Vec<(usize, Vec<u8>, Option<usize>)> = Vec::new();
        let mut subroutines = Vec::new();
        let again = text.label();
        text.bind(again);
        for part in &self.parts {
            match part {
                Part::Plain(code) => text.bytes.extend(code),
                Part::Over(opcode, code) => {
                    text.bytes.extend([*opcode, code.len() as u8]);
                    text.bytes.extend(code);
                }
                Part::Seldom { mask, unless, away, code } => {
                    text.bytes.extend(TEST_R13B);
                    text.bytes.push(*mask);
                    let label = text.label();
                    text.to(if *unless { &JNZ } else { &JZ }, label);
                    if *away {
                        let back = text.label();
                        text.bind(back);
                        behind.push((label, code.clone(), Some(back)));
                    } else {
                        text.bytes.extend(code);
                        text.bind(label);
                    }
                }
                Part::Inner { rounds, code, out, rest } => {
                    text.bytes.extend(encoded(
                        &Instruction::with2(Code::Mov_r32_imm32, INNER.full_register32(), u32::from(*rounds))
                            .expect("operands fit the code"),
                    ));
                    let (round, end) = (text.label(), text.label());
                    text.bind(round);
                    text.bytes.extend(code);
                    if let Some(mask) = out {
                        // TEST of BPL.
                        text.bytes.extend([0x40, 0xf6, 0xc5, *mask]);
                        text.to(&JZ, end);
                        text.bytes.extend(rest);
                    }
                    text.bytes.extend(DEC_EBP);
                    text.to(&JNZ, round);
                    text.bind(end);
                }
                Part::Call { code, indirect } => {
                    let label = text.label();
                    subroutines.push((label, code));
                    if *indirect {
                        text.to(&LEA_RAX, label);
                        text.bytes.extend([0xff, 0xd0]);
                    } else {
                        text.to(&[0xe8], label);
                    }
                }
                Part::Jump => {
                    let label = text.label();
                    text.to(&LEA_RAX, label);
                    text.bytes.extend([0xff, 0xe0]);
                    text.bind(label);
                }
                Part::Patch { register, before } => {
                    // MOV of an immediate to R9D; MOV of the register to the immediate.
                    let place = text.label();
                    let store = |text: &mut Draft| text.to(&[0x89, register << 3 | 5], place);
                    if *before {
                        store(&mut text);
                    }
                    text.bytes.extend([0x41, 0xb9]);
                    text.bind(place);
                    patched.push(text.bytes.len());
                    text.bytes.extend([1, 0, 0, 0]);
                    if !*before {
                        store(&mut text);
                    }
                }
            }
        }
        let next = text.bytes.len() as u64;
        text.bytes.extend(DEC_R13);
        text.to(&JNZ, again);
        text.bytes.push(0xf4);
        for (label, code, back) in behind {
            text.bind(label);
            text.bytes.extend(code);
            if let Some(back) = back {
                text.to(&[0xe9], back);
            }
        }
        let far = (SUBROUTINES - self.at) as usize;
        // In a page of their own, or else they may become part of what calls them.
        if text.bytes.len() < far && text.bytes.len().is_multiple_of(2) {
            text.bytes.resize(far, 0xf4);
        }
        for (label, code) in subroutines {
            text.bind(label);
            text.bytes.extend(code);
            text.bytes.push(0xc3);
        }
        Text { bytes: text.resolved(), next, patched }
    }
}

/// A program's code.
struct Text {
    /// The bytes from where it starts on.
    bytes: Vec<u8>,
    /// Where in them the parts end.
    next: u64,
    /// Where the immediates are that it stores to.
    patched: Vec<usize>,
}

impl Text {
    /// What of `cpu`'s memory is neither data nor patched: code, and the tables that lead to [`TABLE`] without what the processor
    /// notes in them.
    fn fixed(&self, cpu: &Cpu, at: u64) -> (Vec<u8>, Vec<u64>) {
        let read = |at: u64, length: usize| {
            let mut bytes = vec![0; length];
            cpu.memory().read(Gpa(at), &mut bytes).expect("RAM");
            bytes
        };
        let mut code = read(at, self.bytes.len());
        for place in &self.patched {
            code[*place..place + 4].fill(0);
        }
        let tables = read(0x1000, 0x6000);
        let entries =
            tables.chunks_exact(8).map(|entry| u64::from_le_bytes(entry.try_into().expect("8 bytes")));
        (code, entries.map(|entry| entry & !(pte::A | pte::D)).collect())
    }
}

/// What answers faults, and where in it those begin that are not for pages. A page of the data is mapped again; any
/// other fault gives the bases good values and goes on at `next`, as do those at other pages.
pub(super) fn handlers(next: u64) -> (Vec<u8>, u64) {
    // PUSH of RAX; MOV from CR2, SHR by 12, SUB of the first page, CMP with their number, JAE.
    let mut code = vec![0x50, 0x0f, 0x20, 0xd0, 0x48, 0xc1, 0xe8, 12, 0x48, 0x2d];
    code.extend(((DATA >> 12) as u32).to_le_bytes());
    code.extend([0x48, 0x83, 0xf8, PAGES as u8, 0x73, 21]);
    // OR of the entry's byte; INVLPG; POP, ADD of 8 to RSP, IRETQ.
    code.extend([0x80, 0x0c, 0xc5]);
    code.extend((TABLE as u32).to_le_bytes());
    code.extend([3, 0x0f, 0x20, 0xd0, 0x0f, 0x01, 0x38, 0x58, 0x48, 0x83, 0xc4, 8, 0x48, 0xcf]);
    code.push(0x58);
    let others = code.len() as u64;
    let good = (DATA as u32 + 0x8400).to_le_bytes();
    // ADD of 8 to RSP; MOV to the lower half of what RIP will be, as the program may be at any of its places, and to what
    // RSP will be.
    code.extend([0x48, 0x83, 0xc4, 8, 0xc7, 0x04, 0x24]);
    code.extend((next as u32).to_le_bytes());
    code.extend([0x48, 0xc7, 0x44, 0x24, 24]);
    code.extend(good);
    for base in BASES.into_iter().filter(|base| *base != Register::RSP) {
        let number = base.number() as u8;
        if number > 7 {
            code.push(0x41);
        }
        code.push(0xb8 | number & 7);
        code.extend(good);
    }
    code.extend([0x48, 0xcf]);
    (code, others)
}

/// A processor that executes `program`.
fn machine(program: &Program, code: &Text) -> Machine {
    let mut cpu = machine64();
    let write = |at: u64, bytes: &[u8]| cpu.memory().write(Gpa(at), bytes).expect("RAM");
    write(PD + 0x1000 + 8 * ((DATA - (1 << 30)) >> 21), &(TABLE | pte::P | pte::W | pte::U).to_le_bytes());
    write(program.at, &code.bytes);
    for place in PLACES {
        write(0x1000 + 8 * (place >> 39), &(0x2000 | pte::P | pte::W | pte::U).to_le_bytes());
    }
    let (handlers, others) = handlers(program.at + code.next);
    write(HANDLER, &handlers);
    // HLT where a return to a small number leads.
    write(0, &[0xf4; 0x1000]);
    for (vector, at) in [(12, HANDLER + others), (13, HANDLER + others), (14, HANDLER)] {
        // An interrupt gate to code of 64 bits, on the first stack of the TSS.
        write(IDT + 16 * vector, &(at | 8 << 16 | 1 << 32 | 0x8e00 << 32).to_le_bytes());
    }
    write(GDT + 8, &0x00af_9b00_0000_ffff_u64.to_le_bytes());
    write(GDT + 16, &0x00cf_9300_0000_ffff_u64.to_le_bytes());
    write(TSS + 0x24, &STACK.to_le_bytes());
    let state = &mut cpu.state;
    (state.idtr.base, state.idtr.limit) = (IDT, 0xfff);
    (state.gdtr.base, state.gdtr.limit) = (GDT, 0xff);
    state.tr = Segment { selector: 0x18, base: TSS, limit: 0x67, rights: 0x8b };
    cpu
}

/// Registers, data and mappings for the next time.
fn begin(cpu: &mut Machine, program: &Program, seed: u64, round: u64) {
    let mut random = Numbers(seed ^ (round + 1) << 40);
    fill(cpu, &mut random);
    // Mostly much rounds, so that things get hot in the first time too; sometimes few.
    let most = if random.below(3) == 0 { 20 } else { 250 };
    cpu.state.gpr[COUNTER.number()] = 1 + random.below(most);
    cpu.state.gpr[INNER.number()] = 0;
    let place = if seed.is_multiple_of(3) { 0 } else { pick(&mut random, &PLACES) };
    cpu.state.rip = place + program.at;
    cpu.state.rflags = rflags::FIXED;
    cpu.flush_tlb(false);
}

/// How long the next piece of a run is.
fn piece(random: &mut Numbers, kind: u64) -> u64 {
    match kind {
        0 => 1 + random.below(40),
        1 => 1 + random.below(2000),
        _ => LONGEST,
    }
}

/// What the guest can see after each time, and where it was at each cut.
#[derive(PartialEq)]
struct Left {
    ends: Vec<(String, u64, u64)>,
    states: Vec<CpuState>,
    memory: Vec<Vec<u8>>,
}

/// Executes `program` [`ROUNDS`] times; `hot` as in [`Manner`], or the interpreter.
fn execute(program: &Program, seed: u64, hot: Option<u32>, parallel: bool, pool: &Pool) -> Left {
    let code = program.text();
    let mut cpu = machine(program, &code);
    cpu.set_parallel(parallel);
    cpu.put(hot.and_then(|hot| {
        Jit::new(pool, Manner { hot, counting: false, watcher: None, host: Host::default() })
    }));
    if let Some(jit) = cpu.jit_mut().filter(|_| seed % 4 == 1) {
        // Code memory is emptied again and again.
        jit.place.shrink(4 << 10, 8 << 10);
    }
    let fixed = code.fixed(&cpu, program.at);
    let mut left = Left { ends: Vec::new(), states: Vec::new(), memory: Vec::new() };
    let mut random = Numbers(!seed);
    let kind = random.below(4);
    for round in 0..ROUNDS {
        begin(&mut cpu, program, seed, round);
        let (end, mut places) = (cpu.retired() + LONGEST, 0u64);
        let exit = loop {
            let length = piece(&mut random, kind).min(end - cpu.retired());
            let exit = cpu.run(Until { counter: None, instructions: Some(length) });
            places =
                places.wrapping_mul(31).wrapping_add(cpu.state.rip ^ cpu.state.gpr[COUNTER.number()] << 32);
            if exit != Exit::Budget || cpu.retired() >= end {
                break exit;
            }
        };
        // A program that changed its tables may see what they were or what they are (SDM 4.10.2.3); one that changed its
        // code may execute what leaves flags undefined.
        if code.fixed(&cpu, program.at) != fixed {
            break;
        }
        left.ends.push((format!("{exit:?}"), places, cpu.retired()));
        let mut state = cpu.state.clone();
        state.gpr[reg::ZERO..].fill(0);
        // The manual leaves it undefined behind much of this.
        state.rflags &= !rflags::AF;
        left.states.push(state);
        let mut memory = vec![0; SCRATCH_LEN.min(PAGES * 0x1000) as usize];
        cpu.memory().read(Gpa(SCRATCH), &mut memory).expect("RAM");
        for (at, length) in [(TABLE, 0x1000), (CODE, 0x3000)] {
            let mut more = vec![0; length];
            cpu.memory().read(Gpa(at), &mut more).expect("RAM");
            memory.extend(more);
        }
        left.memory.push(memory);
        // A machine that was shut down by a triple fault stays so.
        cpu.resume(satori_engine::Resume::Continue);
        cpu.state.activity = satori_state::Activity::Active;
    }
    left
}

/// What differs on some translator, if anything does.
fn difference(program: &Program, seed: u64, pool: &Pool) -> Option<String> {
    let right = execute(program, seed, None, false, pool);
    let ways = [(2, false), (super::HOT, seed.is_multiple_of(2))];
    ways.into_iter().find_map(|(hot, parallel)| {
        let left = execute(program, seed, Some(hot), parallel, pool);
        let round = (0..right.ends.len()).find(|&round| {
            left.ends.get(round) != right.ends.get(round)
                || left.states[round] != right.states[round]
                || left.memory[round] != right.memory[round]
        })?;
        let mut told = format!("hot {hot}, parallel {parallel}, round {round}: ");
        if left.ends.len() <= round {
            return Some(told + "the program spoilt");
        }
        told += &format!("{:?} and {:?}\n", right.ends[round], left.ends[round]);
        told += &format!("at {:#x}\n", left.states[round].rip);
        let (a, b) = (format!("{:#x?}", right.states[round]), format!("{:#x?}", left.states[round]));
        for (a, b) in a.lines().zip(b.lines()).filter(|(a, b)| a != b) {
            told += &format!("{}   {}\n", a.trim(), b.trim());
        }
        let bytes = right.memory[round].iter().zip(&left.memory[round]).enumerate();
        for (at, (a, b)) in bytes.filter(|(_, (a, b))| a != b).take(8) {
            told += &format!("byte {at:#x}: {a:#x}   {b:#x}\n");
        }
        Some(told)
    })
}

/// `program` without the parts that make no difference to there being a difference.
fn smaller(mut program: Program, seed: u64, pool: &Pool) -> Program {
    let mut at = 0;
    while at < program.parts.len() {
        let mut shorter = program.clone();
        shorter.parts.remove(at);
        if difference(&shorter, seed, pool).is_some() { program = shorter } else { at += 1 }
    }
    program
}

#[test]
fn programs_that_get_hot_are_as_the_interpreter_has_them() {
    let pool = Pool::default();
    let chosen = std::env::var("SATORI_WARM").ok();
    let seeds = match chosen.as_deref().map(|chosen| chosen.split_once("..")) {
        Some(Some((from, to))) => from.parse().expect("a seed")..to.parse().expect("a seed"),
        Some(None) => panic!("SATORI_WARM is no FROM..TO"),
        None => SEEDS,
    };
    let mut whole = 0;
    for seed in seeds.clone() {
        let program = program(&mut Numbers(seed));
        if difference(&program, seed, &pool).is_some() {
            let program = smaller(program, seed, &pool);
            let told = difference(&program, seed, &pool).expect("it differed");
            panic!("seed {seed}: {program:02x?}\n{told}");
        }
        whole += u64::from(!program.parts.is_empty());
    }
    println!("{whole} programs of seeds {seeds:?}");
}
