//! Loops whose accesses move by a constant, on the interpreter and on the translator: the same registers, memory, accessed and
//! dirty bits and counts, wherever the run is cut, and wherever the accesses end.

use iced_x86::{Code, Encoder, Instruction, MemoryOperand, Register};
use satori_defs::x86::{cr0, pte, rflags};
use satori_engine::{Exit, Until};
use satori_memory::Gpa;
use satori_state::{Segment, reg, seg};

use super::tests::{BASES, COUNTER, DATA, INDEX, PAGES, TABLE, VALUES, fill, pick};
use super::{Jit, Manner, Pool};
use crate::testing::{Machine, machine64};
use satori_soft::testing::{Numbers, PD, SCRATCH};

const CODE: u64 = 0x1_0000;
/// Random loops to run.
const LOOPS: u64 = 3000;
/// Ways to run each: executions until it is translated, and whether others run too.
const WAYS: [(Option<u32>, bool); 4] = [(None, false), (Some(0), false), (Some(3), false), (Some(3), true)];
/// Lengths of a run: whole, and cut.
const SLICES: [u64; 4] = [1 << 30, 5000, 333, 17];

/// Everything that the guest can see, and where each slice of `slice` instructions ended.
#[derive(PartialEq)]
struct Outcome {
    exit: String,
    places: u64,
    registers: Vec<u64>,
    memory: Vec<u8>,
    retired: u64,
}

fn outcome(cpu: &mut Machine, slice: u64) -> Outcome {
    let mut places = 0u64;
    let exit = loop {
        let exit = cpu.run(Until { counter: None, instructions: Some(slice) });
        places = places.wrapping_mul(31).wrapping_add(cpu.state.rip ^ cpu.state.gpr[COUNTER.number()]);
        if exit != Exit::Budget {
            break format!("{exit:?}");
        }
    };
    let mut registers = cpu.state.gpr[..16].to_vec();
    registers.extend([cpu.state.rip, cpu.state.rflags & !rflags::AF, cpu.state.cr2]);
    let mut memory = Vec::new();
    for (at, len) in [(SCRATCH, PAGES * 0x1000), (0, 0x2_0000)] {
        let mut some = vec![0; len as usize];
        cpu.memory().read(Gpa(at), &mut some).expect("RAM");
        memory.extend(some);
    }
    Outcome { exit, places, registers, memory, retired: cpu.retired() }
}

/// Executes `code` on a machine that `prepare` makes ready, in all ways; tells what came of it.
fn the_same(pool: &Pool, name: &str, code: &[u8], slice: u64, prepare: impl Fn(&mut Machine)) -> Outcome {
    let mut outcomes = WAYS.map(|(hot, parallel)| {
        let mut cpu = machine64();
        let table = TABLE | pte::P | pte::W | pte::U;
        let at = PD + 0x1000 + 8 * ((DATA - (1 << 30)) >> 21);
        cpu.memory().write(Gpa(at), &table.to_le_bytes()).expect("RAM");
        prepare(&mut cpu);
        cpu.memory().write(Gpa(CODE), code).expect("RAM");
        cpu.state.rip = CODE;
        cpu.set_parallel(parallel);
        let manner = |hot| Manner { hot, counting: false, watcher: None, host: super::Host::default() };
        cpu.put(hot.and_then(|hot| Jit::new(pool, manner(hot))));
        outcome(&mut cpu, slice)
    });
    let [first, others @ ..] = &mut outcomes;
    for (i, other) in others.iter().enumerate() {
        let way = WAYS[i + 1];
        assert_eq!((&first.exit, first.places), (&other.exit, other.places), "{name}, {way:?}: the end");
        assert_eq!(first.registers, other.registers, "{name}, {way:?}: registers");
        assert_eq!(first.retired, other.retired, "{name}, {way:?}: instructions");
        let differ = first.memory.iter().zip(&other.memory).position(|(one, other)| one != other);
        assert_eq!(differ, None, "{name}, {way:?}: memory");
    }
    let [first, ..] = outcomes;
    first
}

fn encode(made: Result<Instruction, iced_x86::IcedError>) -> Vec<u8> {
    let mut encoder = Encoder::new(64);
    encoder.encode(&made.expect("operands fit the code"), CODE).expect("it can be encoded");
    encoder.take_buffer()
}

/// `body`, then DEC of the counter, JNE back, HLT.
fn looped(body: &[u8]) -> Vec<u8> {
    let mut code = body.to_vec();
    code.extend(encode(Instruction::with1(Code::Dec_rm64, COUNTER)));
    code.extend([0x0f, 0x85]);
    code.extend((-(code.len() as i32) - 4).to_le_bytes());
    code.push(0xf4);
    code
}

fn load(to: Register, from: MemoryOperand) -> Vec<u8> {
    encode(Instruction::with2(Code::Mov_r64_rm64, to, from))
}

fn store(to: MemoryOperand, from: Register) -> Vec<u8> {
    encode(Instruction::with2(Code::Mov_rm64_r64, to, from))
}

fn add(to: Register, by: i32) -> Vec<u8> {
    encode(Instruction::with2(Code::Add_rm64_imm32, to, by))
}

fn at(base: Register) -> MemoryOperand {
    MemoryOperand::with_base(base)
}

/// Pages of the data one behind the other, and its bytes.
fn ordinary(cpu: &mut Machine) {
    let write = |at: u64, value: u64| cpu.memory().write(Gpa(at), &value.to_le_bytes()).expect("RAM");
    for page in 0..PAGES {
        write(TABLE + 8 * page, (SCRATCH + page * 0x1000) | pte::P | pte::W | pte::U);
    }
    for at in (0..PAGES * 0x1000).step_by(8) {
        write(SCRATCH + at, at.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}

/// The same, with other pages of RAM in between: none lies where the one before it does.
fn scattered(cpu: &mut Machine) {
    ordinary(cpu);
    for page in 0..PAGES {
        let entry = (SCRATCH + (page * 5 + 3) % PAGES * 0x1000) | pte::P | pte::W | pte::U;
        cpu.memory().write(Gpa(TABLE + 8 * page), &entry.to_le_bytes()).expect("RAM");
    }
}

/// An access through one of `bases`.
fn access(random: &mut Numbers, bases: &[Register]) -> Vec<u8> {
    let (value, base) = (pick(random, &VALUES), pick(random, bases));
    let narrow = value.full_register32();
    let disp = pick(random, &[0, 0, 0, 0, 8, -8, 16, 4, 1, -1, 64, 2000]);
    let memory = match random.below(3) {
        0 => {
            let scale = pick(random, &[1, 2, 4, 8]);
            MemoryOperand::with_base_index_scale_displ_size(base, INDEX, scale, disp, 8)
        }
        _ => MemoryOperand::with_base_displ(base, disp),
    };
    encode(match random.below(18) {
        0..3 => Instruction::with2(Code::Mov_r64_rm64, value, memory),
        3..6 => Instruction::with2(Code::Mov_rm64_r64, memory, value),
        6 => Instruction::with2(Code::Add_rm32_r32, memory, narrow),
        7 => Instruction::with2(Code::Cmp_r64_rm64, value, memory),
        8 => Instruction::with2(Code::Movzx_r32_rm8, narrow, memory),
        9 => Instruction::with2(Code::Adc_r64_rm64, value, memory),
        10 => Instruction::with2(Code::Movdqu_xmm_xmmm128, Register::XMM1, memory),
        11 => Instruction::with2(Code::Movdqu_xmmm128_xmm, memory, Register::XMM1),
        12 => Instruction::with2(Code::Movaps_xmm_xmmm128, Register::XMM1, memory),
        13 => Instruction::with2(Code::Addps_xmm_xmmm128, Register::XMM2, memory),
        14 => Instruction::with2(Code::VEX_Vmovdqu_ymm_ymmm256, Register::YMM1, memory),
        15 => Instruction::with1(Code::Setb_rm8, memory),
        16 => Instruction::with2(Code::Mov_rm8_r8, memory, Register::AL),
        _ => Instruction::with2(Code::Sub_r64_rm64, value, memory),
    })
}

/// What moves `register` by a constant.
fn shift(random: &mut Numbers, register: Register) -> Vec<u8> {
    let by = pick(random, &[1, 2, 3, 4, 8, 12, 16, 24, 32, 40, 64, 255, 256, 257, 4096])
        * pick(random, &[1, 1, -1]);
    encode(match random.below(8) {
        0..3 => Instruction::with2(Code::Add_rm64_imm32, register, by),
        3 => Instruction::with2(Code::Sub_rm64_imm32, register, by),
        4 | 5 => {
            let sum = MemoryOperand::with_base_displ(register, by.into());
            Instruction::with2(Code::Lea_r64_m, register, sum)
        }
        6 => Instruction::with1(Code::Inc_rm64, register),
        _ => Instruction::with1(Code::Dec_rm64, register),
    })
}

/// Adds RBP, which has a small number, or a multiple of it.
fn sum(random: &mut Numbers, register: Register) -> Vec<u8> {
    encode(match random.below(4) {
        0 => Instruction::with2(Code::Sub_rm64_r64, register, Register::RBP),
        1 => {
            let scale = pick(random, &[1, 2, 4, 8]);
            let sum = MemoryOperand::with_base_index_scale(register, Register::RBP, scale);
            Instruction::with2(Code::Lea_r64_m, register, sum)
        }
        2 if register != Register::RSP => {
            let sum = MemoryOperand::with_base_index(Register::RBP, register);
            Instruction::with2(Code::Lea_r64_m, register, sum)
        }
        _ => Instruction::with2(Code::Add_rm64_r64, register, Register::RBP),
    })
}

fn program(random: &mut Numbers) -> Vec<u8> {
    let bases: Vec<_> = (0..1 + random.below(4)).map(|_| pick(random, &BASES)).collect();
    let mut parts: Vec<Vec<u8>> = (0..1 + random.below(6)).map(|_| access(random, &bases)).collect();
    let mut moving = bases.clone();
    moving.push(INDEX);
    for register in moving {
        if random.below(5) != 0 {
            let part = if random.below(4) == 0 { sum(random, register) } else { shift(random, register) };
            parts.insert(random.below(parts.len() as u64 + 1) as usize, part);
        }
    }
    // An address that is another one each time: AND EAX, 1FF8h; MOV RDX, [RBX + RAX].
    if random.below(3) == 0 {
        let place = random.below(parts.len() as u64 + 1) as usize;
        parts.insert(place, vec![0x25, 0xf8, 0x1f, 0, 0, 0x48, 0x8b, 0x14, 0x03]);
    }
    if random.below(6) == 0 {
        // PUSH and POP of RAX.
        parts.insert(random.below(parts.len() as u64 + 1) as usize, vec![0x50]);
        parts.push(vec![0x58]);
    }
    let mut body = Vec::new();
    for part in parts {
        if random.below(12) == 0 {
            // Some condition, over the next instruction.
            body.extend([0x70 | random.below(16) as u8, part.len() as u8]);
        }
        body.extend(part);
    }
    looped(&body)
}

#[test]
fn loops_with_strides_are_as_the_interpreter_has_them() {
    let pool = Pool::default();
    for seed in 0..LOOPS {
        let mut random = Numbers(seed ^ 0x7777);
        let code = program(&mut random);
        let slice = pick(&mut random, &SLICES);
        let rounds = match random.below(4) {
            0 => 1 + random.below(8),
            1 => 1 + random.below(100),
            _ => 1 + random.below(2500),
        };
        let kind = random.below(3);
        the_same(&pool, &format!("seed {seed}"), &code, slice, |cpu| {
            fill(cpu, &mut Numbers(seed));
            match kind {
                0 => ordinary(cpu),
                1 => scattered(cpu),
                _ => {}
            }
            cpu.state.gpr[COUNTER.number()] = rounds;
            let by = [1i64, 2, 4, 8, 24, 256, 0, 255, 257, 5000, i64::MIN, i64::MAX];
            let by = pick(&mut Numbers(seed), &by);
            cpu.state.gpr[reg::RBP] = if seed % 3 == 0 { by.wrapping_neg() } else { by } as u64;
        });
    }
}

const SOURCE: Register = Register::RSI;
const TARGET: Register = Register::RDI;
const SUM: Register = Register::RAX;

fn place(cpu: &mut Machine, registers: &[(Register, u64)]) {
    for (register, value) in registers {
        cpu.state.gpr[register.number()] = *value;
    }
}

#[test]
fn arrays_are_walked_up_and_down() {
    let pool = Pool::default();
    for by in [1, 4, 8, 12, 24, 100, 256, 300, -1, -8, -24, -256] {
        for (prepare, slice) in [(ordinary as fn(&mut Machine), 1 << 30), (scattered, 1000)] {
            // y[i] += x[i]; the other one goes the other way.
            let body =
                [load(SUM, at(SOURCE)), encode(Instruction::with2(Code::Add_rm64_r64, at(TARGET), SUM))];
            let body = [&body.concat()[..], &add(SOURCE, by), &add(TARGET, -by)].concat();
            let rounds = 0x6000 / i64::from(by).unsigned_abs();
            let (from, to) = if by > 0 { (0x1038, 0xa038) } else { (0x7038, 0x9038) };
            let end = the_same(&pool, &format!("by {by}"), &looped(&body), slice, |cpu| {
                prepare(cpu);
                place(cpu, &[(SOURCE, DATA + from), (TARGET, DATA + to), (COUNTER, rounds)]);
            });
            assert_eq!(end.exit, "Hlt");
        }
    }
}

#[test]
fn what_must_be_aligned_is_so_in_each_round() {
    let pool = Pool::default();
    let vector = |disp: i64| {
        let memory = MemoryOperand::with_base_displ(SOURCE, disp);
        encode(Instruction::with2(Code::Movaps_xmm_xmmm128, Register::XMM1, memory))
    };
    for beside in [-24, -8, -4, 8, 16] {
        for by in [4, 8, 16, 24, 32, -8, -16, -24] {
            for first in [0, 8] {
                // Its group begins or ends somewhere else.
                let other = load(SUM, MemoryOperand::with_base_displ(SOURCE, beside));
                let body = [vector(first), other, vector(first + 16), add(SOURCE, by)].concat();
                let end =
                    the_same(&pool, &format!("{beside} beside, by {by}"), &looped(&body), 1 << 30, |cpu| {
                        ordinary(cpu);
                        place(cpu, &[(SOURCE, (DATA + 0x7000).wrapping_sub(first as u64)), (COUNTER, 500)]);
                    });
                assert_eq!(end.exit == "Hlt", by % 16 == 0);
            }
        }
    }
}

#[test]
fn what_is_stored_is_read_in_later_rounds() {
    let pool = Pool::default();
    for ahead in [-16, -8, -3, 0, 1, 4, 8, 16, 40] {
        // MOV RAX, [RSI]; ADD RAX, RDX; MOV [RSI + ahead], RAX.
        let there = MemoryOperand::with_base_displ(SOURCE, ahead);
        let body = [load(SUM, at(SOURCE)), vec![0x48, 0x01, 0xd0], store(there, SUM), add(SOURCE, 8)];
        let end = the_same(&pool, &format!("{ahead} ahead"), &looped(&body.concat()), 1 << 30, |cpu| {
            ordinary(cpu);
            place(cpu, &[(SOURCE, DATA + 0x1010), (Register::RDX, 3), (COUNTER, 3000)]);
        });
        assert_eq!(end.exit, "Hlt");
    }
}

#[test]
fn the_first_access_beyond_a_page_that_ends_them_faults() {
    let pool = Pool::default();
    for by in [1i32, 4, 8, 24, -1, -8, -24] {
        for offset in [0, 1, 3, 7] {
            for written in [false, true] {
                let pages = if written { pte::P | pte::U } else { 0 };
                let first = if written { store(at(TARGET), SUM) } else { load(SUM, at(TARGET)) };
                let body =
                    [encode(Instruction::with1(Code::Inc_rm64, Register::RDX)), first, add(TARGET, by)];
                let end = the_same(&pool, &format!("by {by}"), &looped(&body.concat()), 1 << 30, |cpu| {
                    ordinary(cpu);
                    // On either side of two pages.
                    for page in [2, 5] {
                        let entry = (SCRATCH + page * 0x1000) | pages;
                        cpu.memory().write(Gpa(TABLE + 8 * page), &entry.to_le_bytes()).expect("RAM");
                    }
                    cpu.state.cr0 |= cr0::WP;
                    place(cpu, &[(TARGET, DATA + 0x3800 + offset), (COUNTER, 10_000)]);
                });
                assert_ne!(end.exit, "Hlt");
                let address = end.registers[18];
                let page = (address - DATA) >> 12;
                assert_eq!(page, if by > 0 { 5 } else { 2 }, "faults at {address:#x}");
            }
        }
    }
}

#[test]
fn stores_that_reach_the_loops_own_code_change_it() {
    let pool = Pool::default();
    // ADD EDX, 1; MOV [RDI], BL; ADD RDI, 64: the store of one round is to the constant that is added.
    let change = encode(Instruction::with2(Code::Mov_rm8_r8, at(TARGET), Register::BL));
    let code = looped(&[&[0x83, 0xc2, 1][..], &change, &add(TARGET, 64)].concat());
    for slice in [1 << 30, 100] {
        let end = the_same(&pool, "a constant", &code, slice, |cpu| {
            ordinary(cpu);
            place(cpu, &[(TARGET, CODE + 2 - 64 * 200), (Register::RBX, 5), (COUNTER, 220)]);
        });
        // The round that stores has added already.
        assert_eq!(end.registers[reg::RDX], 201 + 19 * 5);
    }
    // MOV AL, [RDI]; MOV [RDI], AL; ADD RDI, 1, from the page before to behind the loop.
    let byte = [
        encode(Instruction::with2(Code::Mov_r8_rm8, Register::AL, at(TARGET))),
        encode(Instruction::with2(Code::Mov_rm8_r8, at(TARGET), Register::AL)),
    ];
    let end = the_same(
        &pool,
        "the same bytes",
        &looped(&[&byte.concat()[..], &add(TARGET, 1)].concat()),
        1 << 30,
        |cpu| {
            ordinary(cpu);
            place(cpu, &[(TARGET, CODE - 900), (COUNTER, 1200)]);
        },
    );
    assert_eq!(end.exit, "Hlt");
}

#[test]
fn strides_in_registers_may_be_others_later() {
    let pool = Pool::default();
    // 1: MOV RAX, [RSI]; ADD [RDI], RAX; ADD RSI, R8; SUB RDI, RBP; DEC RCX; JNE 1; then XCHG of the registers' values with others,
    // MOV ECX, 100; DEC R13; JNE 1; HLT.
    let body = [
        load(SUM, at(SOURCE)),
        encode(Instruction::with2(Code::Add_rm64_r64, at(TARGET), SUM)),
        encode(Instruction::with2(Code::Add_rm64_r64, SOURCE, Register::R8)),
        encode(Instruction::with2(Code::Sub_rm64_r64, TARGET, Register::RBP)),
        vec![0xff, 0xc9],
    ];
    let mut body = body.concat();
    body.extend([0x75, (-(body.len() as i8) - 2) as u8]);
    body.extend(encode(Instruction::with2(Code::Xchg_rm64_r64, Register::R8, Register::R9)));
    body.extend(encode(Instruction::with2(Code::Xchg_rm64_r64, Register::RBP, Register::R10)));
    body.extend([0xb9, 100, 0, 0, 0]);
    for other in [8i64, -8, 0, 1, 24, 256, 257, -256, -300] {
        for slice in [1 << 30, 500] {
            let end = the_same(&pool, &format!("{other}"), &looped(&body), slice, |cpu| {
                ordinary(cpu);
                let other = other as u64;
                place(cpu, &[(SOURCE, DATA + 0x7fe8), (TARGET, DATA + 0x8038), (COUNTER, 12)]);
                place(cpu, &[(Register::R8, 8), (Register::R9, other.wrapping_neg())]);
                place(cpu, &[(Register::RBP, 8), (Register::R10, other.wrapping_neg())]);
                cpu.state.gpr[reg::RCX] = 100;
            });
            assert_eq!(end.retired, if end.exit == "Hlt" { 12 * (600 + 5) + 1 } else { end.retired });
        }
    }
}

#[test]
fn few_rounds_end_where_they_should() {
    let pool = Pool::default();
    let body = [load(SUM, at(SOURCE)), store(at(TARGET), SUM), add(SOURCE, 8), add(TARGET, 16)].concat();
    for rounds in 1..12 {
        let end = the_same(&pool, "few rounds", &looped(&body), 1 << 30, |cpu| {
            ordinary(cpu);
            place(cpu, &[(SOURCE, DATA + 0x1000), (TARGET, DATA + 0x4fd0), (COUNTER, rounds)]);
        });
        assert_eq!(end.retired, rounds * 6 + 1);
    }
}

#[test]
fn strides_end_where_numbers_do() {
    let pool = Pool::default();
    // The last pages of all addresses, by tables of their own; the first are mapped to themselves.
    let high = |cpu: &mut Machine| {
        ordinary(cpu);
        let open = pte::P | pte::W | pte::U;
        let write =
            |at: u64, value: u64| cpu.memory().write(Gpa(at), &(value | open).to_le_bytes()).expect("RAM");
        write(0x1000 + 8 * 511, 0x9000);
        write(0x9000 + 8 * 511, 0xa000);
        write(0xa000 + 8 * 511, 0xb000);
        for page in 0..4 {
            write(0xb000 + 8 * (511 - page), SCRATCH + 0x1000 * (8 - page));
        }
    };
    for by in [8i32, 24, 1, -8, -24] {
        for slice in [1 << 30, 400] {
            let body = [
                load(SUM, at(SOURCE)),
                encode(Instruction::with2(Code::Add_rm64_r64, Register::RDX, SUM)),
                add(SOURCE, by),
                load(SUM, MemoryOperand::with_base_index_scale_displ_size(TARGET, INDEX, 8, 0x40, 8)),
                encode(Instruction::with2(Code::Add_rm64_r64, Register::RDX, SUM)),
                add(INDEX, by.signum()),
            ];
            let start = if by > 0 { 0x208u64.wrapping_neg() } else { 0x608 };
            let end = the_same(&pool, &format!("by {by}"), &looped(&body.concat()), slice, |cpu| {
                high(cpu);
                // Of the other address the index wraps around, too.
                let index = if by > 0 { u64::MAX - 99 } else { 99 };
                let target = 0x40u64.wrapping_neg();
                place(cpu, &[(SOURCE, start), (TARGET, target), (INDEX, index), (COUNTER, 600)]);
            });
            assert!(matches!(&end.exit[..], "Hlt"), "{}", end.exit);
        }
    }
}

/// Makes the code one of 32 bits.
fn narrow(cpu: &mut Machine) {
    cpu.state.seg[seg::CS] = Segment::flat(8, 0xc09b);
    cpu.state.seg[seg::SS] = Segment::flat(0x10, 0xc093);
    cpu.state.seg[seg::DS] = Segment::flat(0x10, 0xc093);
    cpu.state.seg[seg::ES] = Segment::flat(0x10, 0xc093);
    cpu.mode_changed();
}

#[test]
fn addresses_of_32_bits_wrap_around() {
    let pool = Pool::default();
    let last_table = 0xd000u64;
    // ADD EDX, [ESI + ECX*4 + 8]; ADD ESI, 4 or -4; ADD [EDI], EDX; ADD EDI, 12; ADD ECX, 1 or 0; DEC EBP; JNE back; HLT.
    for (by, index) in [(4i8, 0i8), (-4, 0), (4, 1), (0, 1), (-4, 1)] {
        // What would be added 0 stays as it is, with its upper half.
        let mut code = vec![0x03, 0x54, 0x8e, 0x08];
        if by != 0 {
            code.extend([0x83, 0xc6, by as u8]);
        }
        code.extend([0x01, 0x17, 0x83, 0xc7, 12]);
        if index != 0 {
            code.extend([0x83, 0xc1, index as u8]);
        }
        code.push(0x4d);
        code.extend([0x75, (-(code.len() as i8) - 2) as u8, 0xf4]);
        for slice in [1 << 30, 300] {
            for start in [0u32.wrapping_sub(0x808), 0x400, 0x8000_0400] {
                let end = the_same(&pool, &format!("by {by}, {index}"), &code, slice, |cpu| {
                    ordinary(cpu);
                    narrow(cpu);
                    // The last 16 pages before 4 GiB.
                    let open = pte::P | pte::W | pte::U;
                    let write = |at: u64, value: u64| {
                        cpu.memory().write(Gpa(at), &(value | open).to_le_bytes()).expect("RAM");
                    };
                    write(PD + 0x3000 + 8 * 511, last_table);
                    for page in 0..16 {
                        write(last_table + 8 * (511 - page), SCRATCH + 0x1000 * (15 - page));
                    }
                    // With an index the sum of both is what `start` says: one of them alone is no address.
                    let (base, index) = match start {
                        0x8000_0400 => (0x8000_0400, 0x2000_0000),
                        _ => (start, 0u32),
                    };
                    let garbage = 0x1234_5678u64 << 32;
                    cpu.state.gpr[reg::RSI] = garbage | u64::from(base);
                    cpu.state.gpr[reg::RCX] = garbage | u64::from(index);
                    cpu.state.gpr[reg::RDI] = garbage | (DATA + 0x2004);
                    cpu.state.gpr[reg::RBP] = 1200;
                });
                assert_eq!(end.exit, "Hlt", "by {by}, {index}, from {start:#x}");
            }
        }
    }
}
