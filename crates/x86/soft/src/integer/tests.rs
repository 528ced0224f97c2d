//! What cannot be compared with the host: branches, faults, devices, decimal arithmetic, and
//! several processors on one memory.

use std::thread;

use satori_defs::x86::{pte, rflags, vector};
use satori_engine::{Exception, Exit, Resume};
use satori_memory::Gpa;
use satori_state::{reg, seg};

use crate::cpu::{Cpu, Exec, Stop};
use crate::insn::handler;
use crate::testing::{Machine, SCRATCH, decode, execute, fault_of, machine32, machine64};

/// An address without RAM.
const DEVICE: u64 = 0x3000_0000;
/// Entry of the page directory that maps SCRATCH's gigabyte.
const SCRATCH_PDE: u64 = 0x3000 + 8 * (SCRATCH >> 21);

fn run(cpu: &mut Cpu, bytes: &[u8]) -> Exec<()> {
    let insn = decode(cpu, bytes);
    assert!(!insn.is_invalid());
    execute(cpu, &insn, handler(&insn))
}

fn must_fault(cpu: &mut Cpu, bytes: &[u8]) -> Exception {
    let before = (cpu.state.clone(), cpu.rflags());
    let outcome = run(cpu, bytes);
    assert_eq!((cpu.state.clone(), cpu.rflags()), before, "a fault leaves nothing behind");
    fault_of(cpu, outcome)
}

#[test]
fn conditional_jumps_follow_every_condition() {
    for code in 0..16u8 {
        for bits in 0..64u64 {
            let places = [rflags::CF, rflags::PF, rflags::AF, rflags::ZF, rflags::SF, rflags::OF];
            let flags: u64 = (0..6).filter(|i| bits >> i & 1 != 0).map(|i| places[i]).sum();
            let mut cpu = machine64();
            cpu.flags.set_bits(flags);
            let holds = cpu.flags.condition(code);
            run(&mut cpu, &[0x70 | code, 0x40]).unwrap();
            assert_eq!(cpu.state.rip, if holds { 0x1_0042 } else { 0x1_0002 });
            run(&mut cpu, &[0x0f, 0x90 | code, 0xc0]).unwrap();
            assert_eq!(cpu.state.gpr[reg::RAX], u64::from(holds));
        }
    }
}

#[test]
fn loops_count_by_address_size() {
    let mut cpu = machine64();
    cpu.state.gpr[reg::RCX] = 0x1_0000_0001;
    run(&mut cpu, &[0xe2, 0x10]).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RCX]), (0x1_0012, 0x1_0000_0000));
    run(&mut cpu, &[0x67, 0xe3, 0x10]).unwrap();
    assert_eq!(cpu.state.rip, 0x1_0025, "JECXZ looks at the low half");
    cpu.state.gpr[reg::RCX] = 1;
    run(&mut cpu, &[0x67, 0xe2, 0x10]).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RCX]), (0x1_0028, 0));
    cpu.state.gpr[reg::RCX] = 5;
    cpu.flags.set_bits(rflags::ZF);
    run(&mut cpu, &[0xe0, 0x10]).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RCX]), (0x1_002a, 4), "LOOPNE ends on ZF");
    run(&mut cpu, &[0xe1, 0x10]).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RCX]), (0x1_003c, 3), "LOOPE goes on");
}

#[test]
fn calls_and_returns_use_the_stack() {
    let mut cpu = machine64();
    cpu.state.gpr[reg::RSP] = SCRATCH + 0x1000;
    run(&mut cpu, &[0xe8, 0x00, 0x01, 0x00, 0x00]).unwrap();
    assert_eq!(cpu.state.rip, 0x1_0105);
    assert_eq!(cpu.read::<u64>(SCRATCH + 0xff8), Ok(0x1_0005));
    run(&mut cpu, &[0xc2, 0x10, 0x00]).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RSP]), (0x1_0005, SCRATCH + 0x1010));
    // An indirect call reads its target before the stack moves.
    cpu.write(SCRATCH + 0x1010, 0x1_2345u64).unwrap();
    run(&mut cpu, &[0xff, 0x14, 0x24]).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RSP]), (0x1_2345, SCRATCH + 0x1008));
}

#[test]
fn a_target_that_is_not_canonical_faults_at_the_branch() {
    let mut cpu = machine64();
    cpu.state.gpr[reg::RSP] = SCRATCH + 0x1000;
    cpu.state.gpr[reg::RAX] = 1 << 63;
    cpu.write(SCRATCH + 0x1000, 1u64 << 63).unwrap();
    cpu.write(SCRATCH + 0xff8, 7u64).unwrap();
    for bytes in [&[0xc3][..], &[0xff, 0xd0], &[0xff, 0xe0], &[0xc2, 8, 0]] {
        assert_eq!(must_fault(&mut cpu, bytes), Exception::gp(0));
    }
    assert_eq!(cpu.read::<u64>(SCRATCH + 0xff8), Ok(7), "CALL pushed nothing");
}

#[test]
fn faults_leave_nothing_behind() {
    let mut cpu = machine64();
    let unmapped = SCRATCH + 0x20_0000;
    cpu.memory.write(Gpa(SCRATCH_PDE + 8), &0u64.to_le_bytes()).unwrap();
    cpu.state.gpr[reg::RBX] = unmapped;
    cpu.state.gpr[reg::RCX] = 3;
    cpu.state.gpr[reg::RSP] = SCRATCH + 0x1000;
    cpu.set_rflags(rflags::CF | rflags::OF | rflags::FIXED);
    let instructions: [&[u8]; 13] = [
        &[0x00, 0x03],                   // ADD [RBX], AL
        &[0xf0, 0x0f, 0xc1, 0x03],       // LOCK XADD [RBX], EAX
        &[0x0f, 0xb1, 0x03],             // CMPXCHG [RBX], EAX
        &[0x87, 0x03],                   // XCHG [RBX], EAX
        &[0xd3, 0x23],                   // SHL [RBX], CL
        &[0x8f, 0x03],                   // POP [RBX]
        &[0xff, 0x33],                   // PUSH [RBX]
        &[0x0f, 0xab, 0x03],             // BTS [RBX], EAX
        &[0x0f, 0x92, 0x03],             // SETB [RBX]
        &[0x0f, 0x44, 0x03],             // CMOVE EAX, [RBX], not taken
        &[0xf7, 0x33],                   // DIV [RBX]
        &[0x48, 0x0f, 0xc7, 0x0b],       // CMPXCHG16B [RBX]
        &[0xc4, 0xe2, 0x7b, 0xf6, 0x03], // MULX EAX, EAX, [RBX]
    ];
    for bytes in instructions {
        let fault = must_fault(&mut cpu, bytes);
        assert_eq!((fault.vector, fault.payload), (vector::PF, unmapped), "{bytes:x?}");
    }
    cpu.state.gpr[reg::RBX] = SCRATCH + 8;
    assert_eq!(must_fault(&mut cpu, &[0x48, 0x0f, 0xc7, 0x0b]), Exception::gp(0), "alignment");
    // The first doubleword would fit.
    cpu.state.gpr[reg::RBX] = unmapped - 4;
    let fault = must_fault(&mut cpu, &[0x48, 0x89, 0x03]);
    assert_eq!(fault.payload, unmapped);
    assert_eq!(cpu.read::<u32>(unmapped - 4), Ok(0));
}

#[test]
fn pop_to_memory_addresses_by_the_moved_stack_pointer() {
    let mut cpu = machine64();
    cpu.state.gpr[reg::RSP] = SCRATCH;
    cpu.write(SCRATCH, 0x1234u64).unwrap();
    run(&mut cpu, &[0x8f, 0x44, 0x24, 0x08]).unwrap();
    assert_eq!(cpu.read::<u64>(SCRATCH + 16), Ok(0x1234));
    cpu.state.gpr[reg::RSP] = SCRATCH;
    run(&mut cpu, &[0x5c]).unwrap();
    assert_eq!(cpu.state.gpr[reg::RSP], 0x1234, "POP RSP ends with what was popped");
}

#[test]
fn a_repeated_move_stops_at_the_element_that_faults() {
    let mut cpu = machine64();
    let end = SCRATCH + 0x20_0000;
    cpu.memory.write(Gpa(SCRATCH_PDE + 8), &0u64.to_le_bytes()).unwrap();
    cpu.state.gpr[reg::RSI] = SCRATCH;
    cpu.state.gpr[reg::RDI] = end - 0x1804;
    cpu.state.gpr[reg::RCX] = 0x1000;
    let outcome = run(&mut cpu, &[0xf3, 0x48, 0xa5]);
    let fault = fault_of(&mut cpu, outcome);
    assert_eq!((fault.vector, fault.payload), (vector::PF, end));
    assert_eq!(cpu.state.gpr[reg::RDI], end - 4, "the element that crosses is whole or not at all");
    assert_eq!(cpu.state.gpr[reg::RSI], SCRATCH + 0x1800);
    assert_eq!(cpu.state.gpr[reg::RCX], 0x1000 - 0x300);
    assert_eq!(cpu.state.rip, 0x1_0000);
}

#[test]
fn one_call_of_a_repeated_instruction_is_bounded() {
    let mut cpu = machine64();
    cpu.state.gpr[reg::RDI] = SCRATCH + 0x10;
    cpu.state.gpr[reg::RCX] = u64::MAX;
    cpu.state.gpr[reg::RAX] = 0x5a;
    let insn = decode(&cpu, &[0xf3, 0xaa]);
    cpu.next_rip = cpu.next_ip(&insn);
    handler(&insn)(&mut cpu, &insn).unwrap();
    assert_eq!(cpu.next_rip, cpu.state.rip, "it goes on at itself");
    assert_eq!(cpu.state.gpr[reg::RDI], SCRATCH + 0x1000);
    assert_eq!(cpu.state.gpr[reg::RCX], u64::MAX - 0xff0);
    assert_eq!(cpu.read::<u16>(SCRATCH + 0xfff), Ok(0x5a));
}

#[test]
fn strings_drop_decoded_code_that_they_overwrite() {
    let mut cpu = machine64();
    let state = |cpu: &Cpu| cpu.memory.page(Gpa(SCRATCH)).unwrap().state.value();
    for bytes in [&[0xf3, 0xaa][..], &[0xf3, 0xa4]] {
        let marked = cpu.memory.page(Gpa(SCRATCH)).unwrap().state.mark_code(true);
        cpu.state.gpr[reg::RSI] = SCRATCH + 0x2000;
        cpu.state.gpr[reg::RDI] = SCRATCH + 0x800;
        cpu.state.gpr[reg::RCX] = 16;
        run(&mut cpu, bytes).unwrap();
        assert_ne!(state(&cpu), marked);
    }
}

#[test]
fn an_overlapping_move_repeats_its_pattern() {
    let mut cpu = machine64();
    cpu.write(SCRATCH, 0x2211u16).unwrap();
    cpu.state.gpr[reg::RSI] = SCRATCH;
    cpu.state.gpr[reg::RDI] = SCRATCH + 2;
    cpu.state.gpr[reg::RCX] = 0x1800;
    run(&mut cpu, &[0xf3, 0xa4]).unwrap();
    for at in [0x2, 0xffe, 0x1000, 0x1800] {
        assert_eq!(cpu.read::<u16>(SCRATCH + at), Ok(0x2211), "at {at:#x}");
    }
    assert_eq!(cpu.read::<u16>(SCRATCH + 0x1802), Ok(0));
}

#[test]
fn each_element_from_a_device_asks_once() {
    let mut cpu = machine64();
    cpu.state.gpr[reg::RSI] = DEVICE;
    cpu.state.gpr[reg::RDI] = SCRATCH;
    cpu.state.gpr[reg::RCX] = 3;
    for index in 0..3 {
        // The answer to the element before is gone once that is complete.
        cpu.pending.forget_answers();
        let insn = decode(&cpu, &[0xf3, 0x66, 0xa5]);
        let function = handler(&insn);
        cpu.begin();
        assert_eq!(function(&mut cpu, &insn), Err(Stop::Exit));
        assert_eq!(cpu.pending.wanted, Exit::MmioRead { gpa: DEVICE + 2 * index, size: 2 });
        assert_eq!(cpu.state.gpr[reg::RCX], 3 - index, "an element without an answer is not done");
        cpu.pending.answer(Resume::Value(0x100 + index));
        cpu.begin();
        function(&mut cpu, &insn).unwrap();
    }
    assert_eq!(cpu.state.gpr[reg::RCX], 0);
    assert_eq!(cpu.read::<u64>(SCRATCH), Ok(0x0102_0101_0100));
}

#[test]
fn locked_forms_are_atomic_among_processors() {
    const ROUNDS: u64 = 20_000;
    // A processor is large: not on the stacks of threads.
    let first = Box::new(machine64());
    let memory = first.memory.clone();
    let mut second = Box::new(machine64());
    second.memory = memory.clone();
    // LOCK INC word; LOCK XADD; LOCK BTC; LOCK CMPXCHG loops: all on one cache line.
    let worker = |mut cpu: Box<Machine>| {
        cpu.state.gpr[reg::RBX] = SCRATCH;
        for _ in 0..ROUNDS {
            run(&mut cpu, &[0xf0, 0x66, 0xff, 0x03]).unwrap();
            cpu.state.gpr[reg::RAX] = 3;
            run(&mut cpu, &[0xf0, 0x48, 0x0f, 0xc1, 0x43, 0x08]).unwrap();
            loop {
                run(&mut cpu, &[0x8b, 0x43, 0x10]).unwrap(); // MOV EAX, [RBX + 16]
                run(&mut cpu, &[0x8d, 0x48, 0x01]).unwrap(); // LEA ECX, [RAX + 1]
                run(&mut cpu, &[0xf0, 0x0f, 0xb1, 0x4b, 0x10]).unwrap();
                if cpu.flags.zf() {
                    break;
                }
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| worker(first));
        scope.spawn(|| worker(second));
    });
    assert_eq!(memory.read_u32(Gpa(SCRATCH)).unwrap(), 2 * ROUNDS as u32);
    assert_eq!(memory.read_u64(Gpa(SCRATCH + 8)).unwrap(), 6 * ROUNDS);
    assert_eq!(memory.read_u32(Gpa(SCRATCH + 16)).unwrap(), 2 * ROUNDS as u32);
}

#[test]
fn decimal_adjustments_make_decimal_sums_and_differences() {
    let packed = |n: u64| ((n / 10) << 4) | (n % 10);
    let mut cpu = machine32();
    for a in 0..100 {
        for b in 0..100 {
            for carry in 0..2 {
                cpu.state.gpr[reg::RAX] = packed(a);
                cpu.state.gpr[reg::RBX] = packed(b);
                cpu.flags.set_bits(carry * rflags::CF);
                run(&mut cpu, &[0x10, 0xd8]).unwrap(); // ADC AL, BL
                run(&mut cpu, &[0x27]).unwrap();
                let sum = a + b + carry;
                assert_eq!((cpu.state.gpr[reg::RAX], cpu.flags.cf()), (packed(sum % 100), sum > 99));
                cpu.state.gpr[reg::RAX] = packed(a);
                cpu.flags.set_bits(carry * rflags::CF);
                run(&mut cpu, &[0x18, 0xd8]).unwrap(); // SBB AL, BL
                run(&mut cpu, &[0x2f]).unwrap();
                let difference = 100 + a - b - carry;
                let expected = (packed(difference % 100), difference < 100);
                assert_eq!((cpu.state.gpr[reg::RAX], cpu.flags.cf()), expected);
                assert_eq!(cpu.flags.zf(), difference % 100 == 0);
            }
        }
    }
    for (a, b) in (0..10).flat_map(|a| (0..10).map(move |b| (a, b))) {
        cpu.state.gpr[reg::RAX] = 0x200 | a;
        cpu.state.gpr[reg::RBX] = b;
        run(&mut cpu, &[0x00, 0xd8]).unwrap(); // ADD AL, BL
        run(&mut cpu, &[0x37]).unwrap(); // AAA
        assert_eq!(cpu.state.gpr[reg::RAX], 0x200 + (((a + b) / 10) << 8) + (a + b) % 10);
        cpu.state.gpr[reg::RAX] = 0x200 | a;
        run(&mut cpu, &[0x28, 0xd8]).unwrap(); // SUB AL, BL
        run(&mut cpu, &[0x3f]).unwrap(); // AAS
        assert_eq!(cpu.state.gpr[reg::RAX], if a >= b { 0x200 + a - b } else { 0x10a + a - b });
        cpu.state.gpr[reg::RAX] = a * b;
        run(&mut cpu, &[0xd4, 0x0a]).unwrap(); // AAM
        assert_eq!(cpu.state.gpr[reg::RAX], ((a * b / 10) << 8) | (a * b % 10));
        run(&mut cpu, &[0xd5, 0x0a]).unwrap(); // AAD
        assert_eq!(cpu.state.gpr[reg::RAX], a * b);
    }
    assert_eq!(must_fault(&mut cpu, &[0xd4, 0x00]), Exception::new(vector::DE));
}

#[test]
fn legacy_stack_forms_work_in_32_bit_code() {
    let mut cpu = machine32();
    for index in 0..8 {
        cpu.state.gpr[index] = 0x1000_0000 + index as u64;
    }
    cpu.state.gpr[reg::RSP] = SCRATCH + 0x100;
    run(&mut cpu, &[0x60]).unwrap(); // PUSHAD
    assert_eq!(cpu.state.gpr[reg::RSP], SCRATCH + 0xe0);
    assert_eq!(cpu.read::<u32>(SCRATCH + 0xec), Ok(SCRATCH as u32 + 0x100));
    let saved = cpu.state.gpr;
    cpu.state.gpr[..8].fill(0);
    cpu.state.gpr[reg::RSP] = saved[reg::RSP];
    run(&mut cpu, &[0x61]).unwrap(); // POPAD
    assert_eq!(cpu.state.gpr[reg::RSP], SCRATCH + 0x100);
    assert_eq!(cpu.state.gpr[..4], saved[..4]);
    assert_eq!(cpu.state.gpr[5..8], saved[5..8]);
    // PUSH imm8 extends its sign; a 16-bit POP keeps the upper half.
    run(&mut cpu, &[0x6a, 0xfe]).unwrap();
    run(&mut cpu, &[0x66, 0x58]).unwrap();
    assert_eq!((cpu.state.gpr[reg::RAX], cpu.state.gpr[reg::RSP]), (0x1000_fffe, SCRATCH + 0xfe));
}

#[test]
fn a_16_bit_stack_pointer_wraps_within_its_segment() {
    let mut cpu = machine32();
    cpu.state.seg[seg::SS].rights &= !(1 << 14);
    cpu.state.seg[seg::SS].base = SCRATCH;
    cpu.state.gpr[reg::RSP] = 0x7777_0000;
    run(&mut cpu, &[0x50]).unwrap(); // PUSH EAX
    assert_eq!(cpu.state.gpr[reg::RSP], 0x7777_fffc);
    cpu.write(SCRATCH + 0xfffc, 0x55u32).unwrap();
    run(&mut cpu, &[0x5b]).unwrap(); // POP EBX
    assert_eq!((cpu.state.gpr[reg::RBX], cpu.state.gpr[reg::RSP]), (0x55, 0x7777_0000));
}

#[test]
fn bound_and_arpl_judge_their_operands() {
    let mut cpu = machine32();
    cpu.write(SCRATCH, 0xffff_fff6u32).unwrap();
    cpu.write(SCRATCH + 4, 10u32).unwrap();
    cpu.state.gpr[reg::RBX] = SCRATCH;
    for (index, fits) in [(0xffff_fff6, true), (10, true), (11, false), (0xffff_fff5, false)] {
        cpu.state.gpr[reg::RAX] = index;
        if fits {
            run(&mut cpu, &[0x62, 0x03]).unwrap();
        } else {
            assert_eq!(must_fault(&mut cpu, &[0x62, 0x03]), Exception::new(vector::BR));
        }
    }
    cpu.state.gpr[reg::RAX] = 0x0008;
    cpu.state.gpr[reg::RCX] = 0x0003;
    run(&mut cpu, &[0x63, 0xc8]).unwrap(); // ARPL AX, CX
    assert!(cpu.flags.zf() && cpu.state.gpr[reg::RAX] == 0x000b);
    run(&mut cpu, &[0x63, 0xc8]).unwrap();
    assert!(!cpu.flags.zf() && cpu.state.gpr[reg::RAX] == 0x000b);
}

#[test]
fn writes_to_read_only_pages_fault_even_if_they_change_nothing() {
    let mut cpu = machine64();
    let large = SCRATCH | pte::P | pte::U | pte::PS;
    cpu.memory.write(Gpa(SCRATCH_PDE), &large.to_le_bytes()).unwrap();
    cpu.state.gpr[reg::RBX] = SCRATCH;
    cpu.state.gpr[reg::RAX] = 1;
    // A failing CMPXCHG, a shift by zero, a BTR of a clear bit.
    for bytes in [&[0x0f, 0xb1, 0x0b][..], &[0xd3, 0x23], &[0x0f, 0xb3, 0x03]] {
        assert_eq!(must_fault(&mut cpu, bytes).vector, vector::PF);
    }
    run(&mut cpu, &[0x0f, 0xa3, 0x03]).unwrap(); // BT only reads
}
