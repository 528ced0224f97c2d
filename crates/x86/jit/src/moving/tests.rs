//! Random code in pages that are mapped anywhere, at several places at once, and otherwise a moment later: on the
//! interpreter and on the translator.

use satori_defs::x86::pte;
use satori_engine::{Exit, Resume, Until};
use satori_memory::Gpa;
use satori_state::{Segment, reg, seg};

use crate::testing::{Machine, machine64};
use crate::{Host, Jit, Manner, Pool};
use satori_soft::cpu::Cpu;
use satori_soft::testing::{Numbers, SCRATCH};

/// Programs in the gate, and pieces of each.
const PROGRAMS: u64 = 60;
const PIECES: u64 = 60;
/// Physical pages of code, and where they are.
const PAGES: u64 = 5;
const CODE: u64 = SCRATCH;
/// Linear pages, next to each other; what is below and above them is not mapped.
const SLOTS: u64 = 8;
const LINEAR: u64 = 0x5555_5540_0000;
/// The same for code of 32 bits.
const LINEAR_32: u64 = 0xf7c0_0000;
/// Their page table, and the tables above it.
const TABLE: u64 = SCRATCH + 0x10_0000;
const STACK: u64 = SCRATCH + 0x2_0000;
/// Offsets in a page at which code can be entered, whatever page it is. The last goes on in the next page.
const ENTRIES: [u64; 5] = [0, 0x200, 0x4c0, 0x9c3, 0xfc0];
/// Bytes that an entry's code has at most.
const LENGTH: usize = 0x100;
/// An instruction that exits at any privilege level.
const CPUID: [u8; 2] = [0x0f, 0xa2];

fn linear(narrow: bool) -> u64 {
    if narrow { LINEAR_32 } else { LINEAR }
}

/// The same in 32 bits: EBP for R13, EDI for R12, and CALL and POP where addresses are counted from RIP.
fn code_32(random: &mut Numbers, at: u64) -> Vec<u8> {
    let mut code = vec![0xff, 0xcd, 0x79, 2];
    code.extend(CPUID);
    let from = |code: &[u8], target: i64| ((target - (at as i64 + code.len() as i64)) as i32).to_le_bytes();
    for _ in 0..1 + random.below(7) {
        let data = 0xe00 + random.below(16) as i64 * 8;
        let entry = ENTRIES[random.below(ENTRIES.len() as u64) as usize] as i64;
        let beside = [0, 0, 0, 0x1000, -0x1000][random.below(5) as usize];
        let kind = random.below(9);
        if matches!(kind, 0..4 | 6) {
            code.extend([0xe8, 0, 0, 0, 0]);
        }
        // Where POP of EAX stands, whose address it has then.
        let near = |code: &[u8], target: i64| from(code, target);
        match kind {
            // ADD of EAX to EBX; ROL of it.
            0 | 1 => code.extend([0x58, 0x01, 0xc3, 0xc1, 0xc3, 1]),
            2 | 3 => {
                let near = near(&code, data);
                code.extend([0x58, 0x03, 0x98]);
                code.extend(near);
            }
            4 => {
                code.extend([0xf6, 0xc3, 1 << random.below(8), 0x0f, 0x84 | random.below(2) as u8]);
                let there = from(&[&code[..], &[0; 4]].concat(), entry + beside);
                code.extend(there);
            }
            5 => {
                code.push(0xe8);
                let there = from(&[&code[..], &[0; 4]].concat(), entry + beside);
                code.extend(there);
                code.extend([0x03, 0x5c, 0x24, 0xfc]);
            }
            6 => {
                let near = near(&code, entry + beside);
                code.extend([0x58, 0x05]);
                code.extend(near);
                code.extend([0xff, 0xd0]);
            }
            7 => code.extend([0xff, 0xd7]),
            _ => code.extend([0xff, 0xc3]),
        }
    }
    code.push(0xc3);
    code
}

/// Code for the entry at `at`, in pages that are entered at [`ENTRIES`] only.
fn code(random: &mut Numbers, at: u64) -> Vec<u8> {
    // DEC of R13; JNS over CPUID.
    let mut code = vec![0x49, 0xff, 0xcd, 0x79, 2];
    code.extend(CPUID);
    let distance = |code: &[u8], opcode: usize, target: i64| {
        ((target - (at as i64 + (code.len() + opcode + 4) as i64)) as i32).to_le_bytes()
    };
    for _ in 0..1 + random.below(7) {
        let data = 0xe00 + random.below(16) as i64 * 8;
        let entry = ENTRIES[random.below(ENTRIES.len() as u64) as usize] as i64;
        // Mostly in this page, else in one beside it.
        let beside = [0, 0, 0, 0x1000, -0x1000][random.below(5) as usize];
        match random.below(12) {
            // ADD of three numbers that lie around RSI to RBX, which a window may serve; then RSI goes on.
            9 | 10 => {
                for near in [0, 0x10, 0xf8] {
                    code.extend([0x48, 0x03, 0x5e, near]);
                }
                code.extend([0x48, 0x8d, 0x76, 8 * random.below(3) as u8]);
            }
            // LEA of what is near into RAX; ADD to RBX; ROL of it.
            0 | 1 => {
                let near = distance(&code, 3, data + beside);
                code.extend([0x48, 0x8d, 0x05]);
                code.extend(near);
                code.extend([0x48, 0x01, 0xc3, 0x48, 0xc1, 0xc3, 1]);
            }
            // ADD of data in the page to RBX.
            2 | 3 => {
                let near = distance(&code, 3, data);
                code.extend([0x48, 0x03, 0x1d]);
                code.extend(near);
            }
            // TEST of RBX's bits; JNZ or JZ.
            4 => {
                code.extend([0xf6, 0xc3, 1 << random.below(8)]);
                let there = distance(&code, 2, entry + beside);
                code.extend([0x0f, 0x84 | random.below(2) as u8]);
                code.extend(there);
            }
            // CALL; ADD of the address that was pushed last to RBX.
            5 => {
                let there = distance(&code, 1, entry + beside);
                code.push(0xe8);
                code.extend(there);
                code.extend([0x48, 0x03, 0x5c, 0x24, 0xf8]);
            }
            // LEA of an entry into RAX; CALL of it.
            6 => {
                let there = distance(&code, 3, entry + beside);
                code.extend([0x48, 0x8d, 0x05]);
                code.extend(there);
                code.extend([0xff, 0xd0]);
            }
            // CALL through R12, which nothing changes: here or far away.
            7 => code.extend([0x41, 0xff, 0xd4]),
            // INC of RBX.
            _ => code.extend([0x48, 0xff, 0xc3]),
        }
    }
    match random.below(5) {
        0 | 1 => {
            let other = ENTRIES[random.below(ENTRIES.len() as u64) as usize] as i64;
            let there = distance(&code, 1, if random.below(2) == 0 { at as i64 } else { other });
            code.push(0xe9);
            code.extend(there);
        }
        _ => code.push(0xc3),
    }
    code
}

/// A page of code and data.
fn page(random: &mut Numbers, narrow: bool) -> Vec<u8> {
    let mut page = vec![0xc3; 0x1000];
    for at in (0xe00..0xe80).step_by(8) {
        page[at..at + 8].copy_from_slice(&random.any().to_le_bytes());
    }
    for at in ENTRIES {
        let code = match at {
            // NOPs, an INC whose bytes are in two pages, or just in this one.
            0xfc0 if narrow => [&vec![0x90; 62 + random.below(3) as usize][..], &[0xff, 0xc3]].concat(),
            0xfc0 => [&vec![0x90; 61 + random.below(3) as usize][..], &[0x48, 0xff, 0xc3]].concat(),
            _ => loop {
                let code = if narrow { code_32(random, at) } else { code(random, at) };
                if code.len() <= LENGTH {
                    break code;
                }
            },
        };
        // What does not fit is the start of the next page.
        let some = code.len().min(0x1000 - at as usize);
        page[at as usize..at as usize + some].copy_from_slice(&code[..some]);
    }
    page
}

fn map(cpu: &Cpu, slot: u64, page: u64) {
    let entry = (CODE + 0x1000 * page) | pte::P | pte::W | pte::U;
    cpu.memory().write(Gpa(TABLE + 8 * slot), &entry.to_le_bytes()).expect("RAM");
}

fn machine(random: &mut Numbers, narrow: bool) -> Machine {
    let mut cpu = machine64();
    if narrow {
        cpu.state.seg[seg::CS] = Segment::flat(0x23, 0xc0fb);
        cpu.state.seg[seg::SS] = Segment::flat(0x2b, 0xc0f3);
        cpu.mode_changed();
    }
    let write = |at: u64, value: u64| {
        cpu.memory().write(Gpa(at), &(value | pte::P | pte::W | pte::U).to_le_bytes()).expect("RAM");
    };
    let index = |level: u64| linear(narrow) >> (12 + 9 * level) & 511;
    if narrow {
        write(0x2000 + 8 * index(2), TABLE + 0x2000);
    } else {
        write(cpu.state.cr3 + 8 * index(3), TABLE + 0x1000);
        write(TABLE + 0x1000 + 8 * index(2), TABLE + 0x2000);
    }
    write(TABLE + 0x2000 + 8 * index(1), TABLE);
    for number in 0..PAGES {
        cpu.memory().write(Gpa(CODE + 0x1000 * number), &page(random, narrow)).expect("RAM");
    }
    for slot in 0..SLOTS {
        map(&cpu, slot, random.below(PAGES));
    }
    cpu
}

/// The tables that lead to all others, without what the processor notes in them.
fn upper_tables(cpu: &Cpu) -> Vec<u64> {
    let mut bytes = vec![0; 0x4000];
    cpu.memory().read(Gpa(cpu.state.cr3), &mut bytes).expect("RAM");
    let entries = bytes.chunks_exact(8).map(|entry| u64::from_le_bytes(entry.try_into().expect("8 bytes")));
    entries.map(|entry| entry & !(pte::A | pte::D)).collect()
}

/// Something happens to the mappings, to the code, or to the privilege level.
fn change(cpu: &mut Machine, random: &mut Numbers, narrow: bool) {
    match random.below(8) {
        0 => {
            // INVLPG, behind a change of the mapping.
            let slot = random.below(SLOTS);
            map(cpu, slot, random.below(PAGES));
            cpu.flush_page(linear(narrow) + 0x1000 * slot);
        }
        1 => {
            // Another process: all is elsewhere.
            for slot in 0..SLOTS {
                map(cpu, slot, random.below(PAGES));
            }
            cpu.flush_tlb(true);
        }
        2 => cpu.flush_tlb(random.below(2) == 0),
        3 => {
            // Another vCPU writes to the data, or makes an entry a return.
            let at = Gpa(CODE + 0x1000 * random.below(PAGES));
            let offset = if random.below(4) == 0 { 0x200 } else { 0xe00 + random.below(0x80) };
            cpu.memory().write(Gpa(at.0 + offset), &[if offset == 0x200 { 0xc3 } else { 7 }]).expect("RAM");
            cpu.memory().page(at).expect("RAM").state.wrote();
        }
        4 if !narrow => {
            let user = random.below(2) == 0;
            let dpl = if user { 0x60 } else { 0 };
            cpu.state.seg[seg::CS] = Segment::flat(if user { 0x2b } else { 8 }, 0xa09b | dpl);
            cpu.state.seg[seg::SS] = Segment::flat(if user { 0x33 } else { 0x10 }, 0xc093 | dpl);
            cpu.mode_changed();
        }
        _ => {}
    }
}

/// Registers and RIP, instructions, and the exit.
type Left = (Vec<u64>, u64, String);

/// What one vCPU leaves, piece by piece; how many pages were moved, pieces of code memory emptied, and jumps found again.
fn execute(seed: u64, hot: Option<u32>, parallel: bool, pool: &Pool) -> (Vec<Left>, [u64; 3]) {
    let narrow = seed % 3 == 2;
    let begin = linear(narrow);
    let mut random = Numbers(seed);
    let mut cpu = machine(&mut random, narrow);
    cpu.set_parallel(parallel);
    cpu.put(hot.and_then(|hot| {
        Jit::new(pool, Manner { hot, counting: false, watcher: None, host: Host::default() })
    }));
    if let Some(jit) = cpu.jit_mut().filter(|_| seed % 2 == 1) {
        // Code memory is emptied again and again.
        jit.place.shrink(2 << 10, 4 << 10);
    }
    let (mut left, tables) = (Vec::new(), upper_tables(&cpu));
    for _ in 0..PIECES {
        change(&mut cpu, &mut random, narrow);
        let place = |random: &mut Numbers| {
            let entry = ENTRIES[random.below(ENTRIES.len() as u64) as usize];
            begin + 0x1000 * random.below(SLOTS) + entry
        };
        let gpr = &mut cpu.state.gpr;
        (gpr[reg::RBX], gpr[reg::R13]) = (random.any(), 1 + random.below(400));
        // Where two pages meet, as often as not.
        let most = if random.below(2) == 0 { 5 } else { 500 };
        let below = 8 * random.below(most);
        gpr[reg::RSI] = begin + 0x1000 * (1 + random.below(SLOTS - 2)) - below;
        gpr[reg::R12] = if random.below(2) == 0 { place(&mut random) } else { CODE };
        if narrow {
            gpr[reg::RBX] &= 0xffff_ffff;
            (gpr[reg::RBP], gpr[reg::RDI]) = (gpr[reg::R13], gpr[reg::R12]);
        }
        gpr[reg::RSP] = STACK;
        // Where a return leads behind the last call.
        let word = if narrow { 4 } else { 8 };
        for (i, at) in [begin, begin + 0x1000, CODE + 0x2000].into_iter().enumerate() {
            cpu.memory().write(Gpa(STACK + word * i as u64), &at.to_le_bytes()).expect("RAM");
        }
        cpu.state.rip = place(&mut random);
        let length = if random.below(3) == 0 { 1 + random.below(300) } else { 5000 };
        let exit = cpu.run(Until { counter: None, instructions: Some(length) });
        if upper_tables(&cpu) != tables {
            // What changed its tables may see what they were or what they are (SDM 4.10.2.3).
            break;
        }
        let mut state = cpu.state.gpr[..16].to_vec();
        state.push(cpu.state.rip);
        left.push((state, cpu.retired(), format!("{exit:?}")));
        cpu.resume(Resume::Continue);
        if exit == Exit::TripleFault {
            // It ran out of its pages.
            cpu.state.activity = satori_state::Activity::Active;
        }
    }
    let counts = cpu.jit().map(|jit| jit.counts).unwrap_or_default();
    (left, [counts.moved, counts.pieces, counts.again])
}

#[test]
fn code_that_is_mapped_anywhere_is_as_the_interpreter_has_it() {
    let pool = Pool::default();
    let (mut moved, mut emptied, mut again) = (0, 0, 0);
    let seeds = match std::env::var("SATORI_MOVING") {
        Ok(count) => count.parse().expect("a number of programs"),
        Err(_) => PROGRAMS,
    };
    for seed in 0..seeds {
        let (right, _) = execute(seed, None, false, &pool);
        for (hot, parallel) in [(1, false), (3, true)] {
            let (left, [pages, pieces, jumps]) = execute(seed, Some(hot), parallel, &pool);
            moved += pages;
            again += jumps;
            emptied += pieces;
            for (piece, (right, left)) in right.iter().zip(&left).enumerate() {
                assert_eq!(right, left, "program {seed}, piece {piece}, hot {hot}, parallel {parallel}");
            }
        }
    }
    let counts = format!("{moved} pages moved, {emptied} pieces emptied, {again} jumps found again");
    println!("{counts}");
    assert!(moved > 10 * seeds && emptied > seeds && again > seeds, "{counts}");
}

/// What `jit` made first, without the addresses of its own data.
fn made(jit: &Jit) -> Vec<u8> {
    let (arena, block) = (jit.arena.as_ref().expect("only a drop takes it"), &jit.blocks[0]);
    let often = jit.place.often - block.entry;
    let seldom = jit.place.seldom - crate::arena::SELDOM;
    let bytes = |from: usize, count: usize| (from..from + count).map(|at| arena.read::<1>(at)[0]);
    let mut code: Vec<u8> = bytes(block.entry, often).collect();
    code.extend(bytes(crate::arena::SELDOM, seldom));
    let own = block.parts.sites.iter().map(|site| std::ptr::from_ref(&**site) as u64);
    let own = own.chain(block.parts.ranges.iter().map(|range| std::ptr::from_ref(&**range) as u64));
    for own in own {
        for at in 0..code.len() - 8 {
            if code[at..at + 8] == own.to_le_bytes() {
                code[at..at + 8].fill(0);
            }
        }
    }
    code
}

/// Code is, byte for byte, the same wherever it is made: no address is in it.
#[test]
fn what_is_made_here_is_what_is_made_there() {
    const HERE: u64 = 0x5580_0000_0000;
    const THERE: u64 = 0x7f00_0000_0000 + 0x3_1000;
    // Code of 32 bits is nowhere where it may be moved.
    let entries = |line: &&str| !line.is_empty() && !line.starts_with(['#', 'n']);
    let lines = include_str!("../lower/golden.txt").lines().filter(entries);
    let mut compared = 0;
    let pool = Pool::default();
    for (number, line) in lines.enumerate() {
        let key = line.split('|').next().unwrap_or_default().trim();
        let parallel = key.starts_with("p ");
        let bytes: Vec<u8> = key
            .trim_start_matches("p ")
            .split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).expect("hex"))
            .collect();
        let mut cpu = machine64();
        cpu.set_parallel(parallel);
        // The first GiB is at HERE and, 0x31000 bytes further, at THERE, of which one page is enough.
        let write = |at: u64, value: u64| {
            cpu.memory().write(Gpa(at), &(value | pte::P | pte::W | pte::U).to_le_bytes()).expect("RAM");
        };
        let physical = 0x1_0000;
        write(0x1000 + 8 * (HERE >> 39), 0x2000);
        write(0x1000 + 8 * (THERE >> 39), TABLE + 0x1000);
        write(TABLE + 0x1000, TABLE + 0x2000);
        write(TABLE + 0x2000, TABLE);
        write(TABLE + 8 * ((THERE + physical) >> 12 & 511), physical);
        cpu.memory().write(Gpa(physical), &[&bytes[..], &[0xeb, 0]].concat()).expect("RAM");
        cpu.state.cr4 |= satori_defs::x86::cr4::OSXSAVE | satori_defs::x86::cr4::SMAP;
        cpu.state.xcr0 = 7;
        let manner = Manner { hot: 0, counting: false, watcher: None, host: Host::default() };
        let run = |cpu: &mut Machine, linear: u64, fresh: bool| {
            if fresh {
                // The code memory goes back to the pool first.
                cpu.put(None);
                cpu.put(Jit::new(&pool, manner.clone()));
            }
            cpu.state.gpr.iter_mut().take(16).for_each(|register| *register = SCRATCH);
            cpu.state.rip = linear + physical;
            let _ = cpu.run(Until { counter: None, instructions: Some(1) });
            // Where it faulted, there was no handler.
            cpu.state.activity = satori_state::Activity::Active;
            cpu.resume(Resume::Continue);
        };
        run(&mut cpu, HERE, true);
        let before = made(cpu.jit().expect("it was put there"));
        run(&mut cpu, THERE, false);
        let jit = cpu.jit().expect("it was put there");
        if (jit.counts.moved, jit.counts.translated) != (1, 1) {
            // It left the processor in another mode, or went on elsewhere in between.
            continue;
        }
        run(&mut cpu, THERE, true);
        let fresh = made(cpu.jit().expect("it was put there"));
        assert!(before == fresh, "line {number}: {line}\n{before:02x?}\n{fresh:02x?}");
        compared += 1;
    }
    assert!(compared > 300, "{compared} compared");
}

/// A loop is made in one place, what goes on without its windows in a second, and that meets pages that are apart in a third.
#[test]
fn the_rest_of_a_loop_knows_where_it_is_when_both_were_made_elsewhere() {
    const ROUNDS: u64 = 3000;
    let code: &[&[u8]] = &[
        &[0x48, 0xff, 0xc9], // DEC RCX
        &[0x74, 0x1a],       // JZ behind the loop
        &[0x48, 0x03, 0x1e], // ADD RBX, [RSI]; [RSI + 10h]; [RSI - 8]
        &[0x48, 0x03, 0x5e, 0x10],
        &[0x48, 0x03, 0x5e, 0xf8],
        &[0x48, 0x03, 0x1f], // ADD RBX, [RDI]; [RDI + 10h]; [RDI - 8]
        &[0x48, 0x03, 0x5f, 0x10],
        &[0x48, 0x03, 0x5f, 0xf8],
        &[0xeb, 0xe3],                   // JMP back
        &[0x90, 0x90],                   // NOP
        &[0x48, 0x8d, 0x05, 0, 0, 0, 0], // LEA RAX, [RIP]
        &CPUID,
    ];
    let code = code.concat();
    // The first seven slots: one page of code, then two of numbers that are apart.
    let (begin, border) = (LINEAR + 0x100, LINEAR + 0x7000);
    let mut cpu = machine(&mut Numbers(1), false);
    cpu.put(Jit::new(
        &Pool::default(),
        Manner { hot: 3, counting: false, watcher: None, host: Host::default() },
    ));
    cpu.memory().write(Gpa(CODE + 0x100), &code).expect("RAM");
    for (slot, page) in [(6, 1), (7, 4)] {
        map(&cpu, slot, page);
        cpu.memory().write(Gpa(CODE + 0x1000 * page), &[1; 0x1000]).expect("RAM");
    }
    let one = u64::from_le_bytes([1; 8]);
    let middle = border - 0x800;
    for (slot, rsi, rdi) in [
        (0, middle, middle),
        (0, middle, middle),
        (2, border, middle),
        (2, border, middle),
        (4, border, border),
        (1, border, border),
        (3, middle, border),
    ] {
        map(&cpu, slot, 0);
        cpu.flush_tlb(true);
        let gpr = &mut cpu.state.gpr;
        (gpr[reg::RBX], gpr[reg::RCX], gpr[reg::RSI], gpr[reg::RDI]) = (0, ROUNDS + 1, rsi, rdi);
        cpu.state.rip = begin + 0x1000 * slot;
        let exit = cpu.run(Until { counter: None, instructions: Some(20 * ROUNDS) });
        let end = begin + 0x1000 * slot + code.len() as u64;
        let found = (cpu.state.gpr[reg::RAX], cpu.state.gpr[reg::RBX]);
        assert_eq!(found, (end - 2, (6 * ROUNDS).wrapping_mul(one)), "in slot {slot}: {exit:?}");
        cpu.resume(Resume::Continue);
    }
    let counts = &cpu.jit().expect("it was put there").counts;
    assert!(counts.moved > 3 && counts.translated > 3, "{counts:?}");
}
