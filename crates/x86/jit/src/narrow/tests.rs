//! Random programs of 32-bit code while they get hot, on the interpreter and on the translator: under a 64-bit kernel, with
//! segments that are flat, have a base, end somewhere or are not there, stacks of 16 and 32 bits, and upper halves of
//! registers that do not count.
//!
//! `SATORI_NARROW=FROM..TO` chooses the seeds.

use iced_x86::{Code, Decoder, DecoderOptions, Encoder, Instruction, MemoryOperand, Register, RflagsBits};
use satori_defs::x86::{pte, rflags};
use satori_engine::{Exit, Until};
use satori_memory::Gpa;
use satori_state::{Segment, reg, seg};

use super::super::tests::{DATA, PAGES, TABLE, fill, pick};
use super::super::warm_tests::{GDT, HANDLER, IDT, STACK, TSS, handlers};
use super::super::{Host, Jit, Manner, Pool};
use crate::testing::{Machine, machine64};
use satori_soft::cpu::Cpu;
use satori_soft::testing::{Numbers, PD, SCRATCH};

const SEEDS: std::ops::Range<u64> = 0..600;
/// Times that each is executed.
const ROUNDS: u64 = 4;
/// Instructions of one time at most.
const LONGEST: u64 = 12_000;
const CODE: u64 = 0x1_0000;
/// Selector of 32-bit code at privilege level 0.
const CS32: u16 = 0x28;
/// The last page before 4 GiB.
const TOP: u64 = 0xffff_f000;
/// The page table that maps it.
const LAST_TABLE: u64 = 0xd000;

const BASES: [Register; 4] = [Register::EBX, Register::ESI, Register::EDI, Register::ESP];
const VALUES: [Register; 3] = [Register::EAX, Register::EDX, Register::ECX];
const BYTES: [Register; 4] = [Register::AL, Register::DH, Register::CL, Register::AH];
const HALVES: [Register; 3] = [Register::AX, Register::DX, Register::CX];
const COUNTER: Register = Register::EBP;

fn encode(made: Result<Instruction, iced_x86::IcedError>) -> Vec<u8> {
    let mut encoder = Encoder::new(32);
    encoder.encode(&made.expect("operands fit the code"), 0).expect("it can be encoded");
    encoder.take_buffer()
}

/// An operand in memory; some through other segments, and some whose sum wraps.
fn operand(random: &mut Numbers, bases: &[Register]) -> MemoryOperand {
    let base = pick(random, bases);
    let disp = match random.below(9) {
        0 => pick(random, &[-8, -64, 1, 3, 61, 300, 4090]),
        1..4 => random.below(12) as i64 * 8,
        _ => random.below(6) as i64 * 16,
    };
    let segments = [Register::None, Register::None, Register::None, Register::None, Register::None];
    let others = [Register::FS, Register::GS, Register::ES, Register::SS, Register::DS, Register::CS];
    let segment = if random.below(8) == 0 { pick(random, &others) } else { pick(random, &segments) };
    match random.below(12) {
        0 | 1 => {
            let scale = pick(random, &[1, 2, 4, 8]);
            MemoryOperand::new(base, Register::ECX, scale, disp, 4, false, segment)
        }
        2 => MemoryOperand::new(
            Register::None,
            Register::None,
            1,
            (DATA + 0x4000) as i64 + disp,
            4,
            false,
            segment,
        ),
        // Through FS and GS an address by itself, as for a thread's own variables.
        3 => {
            let segment = pick(random, &[Register::FS, Register::GS]);
            let place = (random.below(64) as i64 * 4 - 128) as u32;
            MemoryOperand::new(Register::None, Register::None, 1, place.into(), 4, false, segment)
        }
        _ => MemoryOperand::new(base, Register::None, 1, disp, 1, false, segment),
    }
}

/// One instruction; behind those that leave flags undefined comes TEST of EAX with itself.
fn instruction(random: &mut Numbers, bases: &[Register]) -> Vec<u8> {
    let mut bytes = any(random, bases);
    let insn = Decoder::new(32, &bytes, DecoderOptions::NONE).decode();
    if insn.rflags_undefined() & !RflagsBits::AF != 0 {
        bytes.extend([0x85, 0xc0]);
    }
    bytes
}

fn any(random: &mut Numbers, bases: &[Register]) -> Vec<u8> {
    let value = pick(random, &VALUES);
    let memory = operand(random, bases);
    let small = random.below(64) as i32 - 32;
    let base = pick(random, bases);
    let half = pick(random, &HALVES);
    encode(match random.below(46) {
        // PUSHA, POPA, DAA, CDQ, CWDE, PUSHF; BSF, LEAVE; MOVSB, MOVSD, STOSB, STOSD, LODSB, LODSD, SCASB, CMPSW, LODSD
        // through GS; STD and CLD.
        42 => {
            let others: [&[u8]; 18] = [
                &[0x60],
                &[0x61],
                &[0x27],
                &[0x99],
                &[0x98],
                &[0x9c],
                &[0x0f, 0xbc, 0xc2],
                &[0xc9],
                &[0xa4],
                &[0xa5],
                &[0xaa],
                &[0xab],
                &[0xac],
                &[0xad],
                &[0xae],
                &[0x66, 0xa7],
                &[0x65, 0xad],
                &[0xfd, 0xa4, 0xfc],
            ];
            return pick(random, &others).to_vec();
        }
        0..4 => Instruction::with2(Code::Mov_r32_rm32, value, memory),
        4..8 => Instruction::with2(Code::Mov_rm32_r32, memory, value),
        8 => Instruction::with2(Code::Add_rm32_r32, memory, value),
        9 => Instruction::with2(Code::Cmp_r32_rm32, value, memory),
        10 | 11 => Instruction::with1(Code::Push_r32, pick(random, &[value, base])),
        12 => Instruction::with1(Code::Pop_r32, value),
        13 => Instruction::with1(Code::Push_rm32, memory),
        14 => Instruction::with1(Code::Pushd_imm8, small),
        15 => Instruction::with2(Code::Add_rm32_imm8, base, small),
        16 => Instruction::with2(Code::Lea_r32_m, base, MemoryOperand::with_base_displ(base, small.into())),
        17 => Instruction::with2(Code::Lea_r32_m, value, memory),
        18 => Instruction::with2(Code::Movzx_r32_rm8, value, memory),
        19 => Instruction::with2(Code::Mov_rm32_imm32, memory, small),
        20 => Instruction::with1(Code::Inc_r32, value),
        21 => Instruction::with1(Code::Dec_r32, value),
        22 => Instruction::with1(Code::Inc_r16, half),
        23 => Instruction::with2(Code::Adc_r32_rm32, value, memory),
        24 => Instruction::with2(Code::Movdqu_xmm_xmmm128, Register::XMM1, memory),
        25 => Instruction::with2(Code::Movdqu_xmmm128_xmm, memory, Register::XMM1),
        26 => Instruction::with2(Code::Bts_rm32_r32, memory, value),
        27 => Instruction::with1(Code::Setb_rm8, memory),
        28 => Instruction::with2(Code::Movaps_xmm_xmmm128, Register::XMM1, memory),
        29 => Instruction::with2(Code::Mov_r8_rm8, pick(random, &BYTES), memory),
        30 => Instruction::with2(Code::Add_rm8_r8, memory, pick(random, &BYTES)),
        31 => Instruction::with2(Code::Mov_rm16_r16, memory, half),
        32 => Instruction::with2(Code::Sub_r16_rm16, half, memory),
        33 => Instruction::with2(Code::Xadd_rm32_r32, memory, value),
        34 => Instruction::with2(Code::Cmpxchg_rm32_r32, memory, value),
        35 => Instruction::with1(Code::Cmpxchg8b_m64, memory),
        36 => Instruction::with3(Code::Shld_rm32_r32_imm8, memory, value, 5),
        37 => Instruction::with3(Code::Imul_r32_rm32_imm8, value, memory, small),
        38 => Instruction::with1(Code::Fld_m64fp, memory),
        39 => Instruction::with1(Code::Fstp_m64fp, memory),
        40 => Instruction::with1(Code::Mul_rm32, memory),
        41 => Instruction::with2(Code::Cmova_r32_rm32, value, memory),
        43 => Instruction::with2(Code::Mov_r32_imm32, Register::ECX, random.below(40) as i32),
        44 => Instruction::with2(Code::Xchg_rm32_r32, memory, value),
        _ => Instruction::with2(Code::Sub_r32_rm32, value, memory),
    })
}

/// A program, and where its loop ends.
fn program(random: &mut Numbers) -> (Vec<u8>, u64) {
    let bases: Vec<_> = (0..1 + random.below(3)).map(|_| pick(random, &BASES)).collect();
    let mut code: Vec<u8> = Vec::new();
    // Calls to be led to subroutines: the place of the distance.
    let mut calls: Vec<usize> = Vec::new();
    for _ in 0..3 + random.below(12) {
        let next = instruction(random, &bases);
        match random.below(24) {
            // Some condition, over the next instruction.
            0..4 => code.extend([0x70 | random.below(16) as u8, next.len() as u8]),
            4 => {
                code.push(0xe8);
                calls.push(code.len());
                code.extend([0; 4]);
            }
            // MOV of a place to EAX; CALL EAX.
            5 => {
                code.push(0xb8);
                calls.push(code.len() | 1 << 20);
                code.extend([0; 4]);
                code.extend([0xff, 0xd0]);
            }
            // MOV of a number to ECX, and REP MOVSB, MOVSD, STOSD.
            6 => {
                code.push(0xb9);
                code.extend((random.below(60) as u32).to_le_bytes());
                code.extend(pick(random, &[[0xf3, 0xa4], [0xf3, 0xa5], [0xf3, 0xab]]));
            }
            // MOV of an immediate to EDX, and of EAX to that immediate.
            7 => {
                code.push(0xba);
                let place = CODE as u32 + code.len() as u32;
                code.extend([1, 0, 0, 0, 0xa3]);
                code.extend(place.to_le_bytes());
            }
            _ => {}
        }
        code.extend(next);
    }
    let end = CODE + code.len() as u64;
    // DEC of EBP; JNZ back; HLT.
    code.extend([0x4d, 0x0f, 0x85]);
    code.extend((-(code.len() as i32) - 4).to_le_bytes());
    code.push(0xf4);
    let far = random.below(3) == 0;
    for call in calls {
        let (place, absolute) = (call & 0xf_ffff, call >> 20 != 0);
        if far && code.len() < 0x1000 {
            code.resize(0x1000, 0xf4);
        }
        let to =
            if absolute { CODE as i32 + code.len() as i32 } else { code.len() as i32 - place as i32 - 4 };
        code[place..place + 4].copy_from_slice(&to.to_le_bytes());
        for _ in 0..random.below(3) {
            code.extend(instruction(random, &bases));
        }
        // RET, or RET of 8 bytes more.
        code.extend(if random.below(6) == 0 { vec![0xc2, 8, 0] } else { vec![0xc3] });
    }
    (code, end)
}

/// A processor that executes `code`, in compatibility mode.
fn machine(code: &[u8], end: u64, random: &mut Numbers) -> Machine {
    let mut cpu = machine64();
    let write = |at: u64, bytes: &[u8]| cpu.memory().write(Gpa(at), bytes).expect("RAM");
    let open = pte::P | pte::W | pte::U;
    write(PD + 0x1000 + 8 * ((DATA - (1 << 30)) >> 21), &(TABLE | open).to_le_bytes());
    // The last page below 4 GiB is data too; none is mapped behind it.
    write(PD + 0x3000 + 8 * 511, &(LAST_TABLE | open).to_le_bytes());
    write(LAST_TABLE + 8 * 511, &(SCRATCH | open).to_le_bytes());
    write(CODE, code);
    let (handlers, others) = handlers(end);
    write(HANDLER, &handlers);
    write(0, &[0xf4; 0x1000]);
    for (vector, at) in
        [(12, HANDLER + others), (13, HANDLER + others), (14, HANDLER), (17, HANDLER + others)]
    {
        write(IDT + 16 * vector, &(at | 8 << 16 | 1 << 32 | 0x8e00 << 32).to_le_bytes());
    }
    write(GDT + 8, &0x00af_9b00_0000_ffff_u64.to_le_bytes());
    write(GDT + 16, &0x00cf_9300_0000_ffff_u64.to_le_bytes());
    write(GDT + u64::from(CS32), &0x00cf_9b00_0000_ffff_u64.to_le_bytes());
    write(TSS + 0x24, &STACK.to_le_bytes());
    let state = &mut cpu.state;
    (state.idtr.base, state.idtr.limit) = (IDT, 0xfff);
    (state.gdtr.base, state.gdtr.limit) = (GDT, 0xff);
    state.tr = Segment { selector: 0x18, base: TSS, limit: 0x67, rights: 0x8b };
    for i in [seg::ES, seg::DS, seg::SS, seg::FS, seg::GS] {
        let odd = random.below(if i >= seg::FS { 3 } else { 12 }) == 0;
        let segment = &mut state.seg[i];
        if i >= seg::FS {
            segment.base = DATA + 0x2000 + 4 * random.below(100);
        }
        match random.below(5) {
            _ if !odd => {}
            0 => segment.base = segment.base.wrapping_add(0x1_0000) & 0xffff_ffff,
            1 => segment.limit = DATA as u32 + 0x8fff,
            // Read-only data; for a stack one of 16 bits.
            2 if i == seg::SS => segment.rights &= !0x4000,
            2 => segment.rights &= !2,
            3 if i != seg::SS => segment.rights |= Segment::UNUSABLE,
            // It expands down.
            _ => (segment.rights, segment.limit) = (segment.rights | 4, 0x1000),
        }
    }
    cpu
}

/// The tables that the processor walks, but for those of the data, and without what it notes in them.
fn tables(cpu: &Cpu) -> Vec<u64> {
    let mut bytes = vec![0; (STACK - 0x1000) as usize];
    cpu.memory().read(Gpa(0x1000), &mut bytes).expect("RAM");
    bytes[(TABLE - 0x1000) as usize..][..0x1000].fill(0);
    let entries = bytes.chunks_exact(8).map(|entry| u64::from_le_bytes(entry.try_into().expect("8 bytes")));
    entries.map(|entry| entry & !(pte::A | pte::D)).collect()
}

/// Registers and data for the next time.
fn begin(cpu: &mut Machine, seed: u64, round: u64) {
    let mut random = Numbers(seed ^ (round + 1) << 40);
    fill(cpu, &mut random);
    for number in 0..8 {
        // What 32-bit code does not see.
        if random.below(6) == 0 {
            cpu.state.gpr[number] |= random.any() << 32;
        }
    }
    if random.below(8) == 0 {
        cpu.state.gpr[pick(&mut random, &BASES).number()] = TOP + 0xf00 + random.below(256);
    }
    let most = if random.below(3) == 0 { 20 } else { 200 };
    cpu.state.gpr[COUNTER.number()] = 1 + random.below(most);
    cpu.state.seg[seg::CS] = Segment::flat(CS32, 0xc09b);
    cpu.state.rip = CODE;
    cpu.state.rflags = rflags::FIXED;
    cpu.flush_tlb(false);
}

type Left = Vec<(String, u64, Vec<u64>, Vec<u8>)>;

/// What is left after each time, by the interpreter or a translator; and how many instructions were translated.
fn execute(seed: u64, hot: Option<u32>, parallel: bool, pool: &Pool) -> (Left, u64) {
    let mut random = Numbers(seed);
    let (code, end) = program(&mut random);
    let mut cpu = machine(&code, end, &mut random);
    cpu.set_parallel(parallel);
    cpu.put(hot.and_then(|hot| {
        Jit::new(pool, Manner { hot, counting: false, watcher: None, host: Host::default() })
    }));
    let slice = pick(&mut random, &[7, 333, LONGEST, LONGEST]);
    let mut left = Left::new();
    let fixed = tables(&cpu);
    for round in 0..ROUNDS {
        begin(&mut cpu, seed, round);
        let (until, mut places) = (cpu.retired() + LONGEST, 0u64);
        let exit = loop {
            let exit = cpu.run(Until { counter: None, instructions: Some(slice.min(until - cpu.retired())) });
            places = places.wrapping_mul(31).wrapping_add(cpu.state.rip ^ cpu.state.gpr[reg::RSP] << 32);
            if exit != Exit::Budget || cpu.retired() >= until {
                break exit;
            }
        };
        if tables(&cpu) != fixed {
            // It may see what they were or what they are (SDM 4.10.2.3).
            break;
        }
        let mut registers = cpu.state.gpr[..16].to_vec();
        // The manual leaves AF undefined behind much of this, and other flags until the next TEST.
        // Where a return led to data, anything was executed.
        let astray = exit == Exit::Budget || !(CODE..CODE + 0x4000).contains(&cpu.state.rip);
        let undefined = if astray { rflags::STATUS } else { rflags::AF };
        registers.extend([cpu.state.rip, cpu.state.rflags & !undefined, cpu.state.cr2, places]);
        let mut memory = vec![0; (PAGES * 0x1000) as usize];
        cpu.memory().read(Gpa(SCRATCH), &mut memory).expect("RAM");
        let mut tables = vec![0; 0x1000];
        cpu.memory().read(Gpa(TABLE), &mut tables).expect("RAM");
        memory.extend(tables);
        left.push((format!("{exit:?}"), cpu.retired(), registers, memory));
        cpu.resume(satori_engine::Resume::Continue);
        cpu.state.activity = satori_state::Activity::Active;
    }
    let made = cpu.jit().map_or(0, |jit| jit.counts.instructions);
    (left, made)
}

#[test]
fn programs_of_32_bits_are_as_the_interpreter_has_them() {
    let pool = Pool::default();
    let chosen = std::env::var("SATORI_NARROW").ok();
    let seeds = match chosen.as_deref().map(|chosen| chosen.split_once("..")) {
        Some(Some((from, to))) => from.parse().expect("a seed")..to.parse().expect("a seed"),
        Some(None) => panic!("SATORI_NARROW is no FROM..TO"),
        None => SEEDS,
    };
    let mut translated = 0;
    for seed in seeds.clone() {
        let (right, _) = execute(seed, None, false, &pool);
        for (hot, parallel) in [(0, false), (3, seed.is_multiple_of(2))] {
            let (left, made) = execute(seed, Some(hot), parallel, &pool);
            translated += made;
            for (round, (right, left)) in right.iter().zip(&left).enumerate() {
                let (code, _) = program(&mut Numbers(seed));
                let told = format!("seed {seed}, hot {hot}, round {round}: {code:02x?}");
                let registers = |all: &[u64]| format!("{all:x?}");
                assert_eq!(registers(&right.2), registers(&left.2), "{told}");
                assert_eq!((&right.0, right.1), (&left.0, left.1), "{told}");
                assert!(right.3 == left.3, "memory, {told}");
            }
        }
    }
    println!("{translated} instructions translated");
    assert!(translated > 20 * (seeds.end - seeds.start), "{translated} instructions translated");
}
