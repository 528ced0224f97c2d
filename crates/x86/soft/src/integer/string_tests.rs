//! Repeated string instructions, interrupted: by budgets, kicks and faults.

use std::sync::{Arc, OnceLock};

use satori_cpuid::Offered;
use satori_defs::x86::{pte, rflags, vector};
use satori_engine::{Exit, Kick, PartitionParts, TimeSource, Until, VcpuParts};
use satori_memory::Gpa;
use satori_state::reg;

use crate::cpu::Cpu;
use crate::testing::{Machine, Numbers, SCRATCH, SCRATCH_LEN, machine32, machine64, memory};

const CODE: u64 = 0x5_0000;

fn at_code(cpu: &mut Cpu, code: &[u8]) {
    cpu.memory.write(Gpa(CODE), code).unwrap();
    cpu.memory.page(Gpa(CODE)).unwrap().state.touch();
    cpu.state.rip = CODE;
}

fn some(instructions: u64) -> Until {
    Until { counter: None, instructions: Some(instructions) }
}

fn bytes(cpu: &Cpu, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    cpu.memory.read(Gpa(at), &mut bytes).unwrap();
    bytes
}

/// MOVS of `count` elements of `size` bytes, as the manual has it.
fn model(memory: &mut [u8], from: usize, to: usize, count: usize, size: usize, down: bool) {
    for i in 0..count {
        let step = |at: usize| if down { at - i * size } else { at + i * size };
        let element = memory[step(from)..step(from) + size].to_vec();
        memory[step(to)..step(to) + size].copy_from_slice(&element);
    }
}

#[test]
fn a_move_that_is_interrupted_anywhere_ends_like_one_that_is_not() {
    let mut numbers = Numbers(3);
    const LEN: usize = 0x8000;
    // REP MOVS of bytes, words, doublewords; addresses of 64 and 32, or 32 and 16 bits.
    let opcodes: [(&[u8], usize); 3] = [(&[0xf3, 0xa4], 1), (&[0x66, 0xf3, 0xa5], 2), (&[0xf3, 0xa5], 4)];
    for round in 0..600 {
        let long = round & 1 == 0;
        let narrow = round & 2 != 0;
        let down = numbers.below(3) == 0;
        let (opcode, size) = opcodes[numbers.below(3) as usize];
        let mut cpu = if long { machine64() } else { machine32() };
        // Addresses of 16 bits reach only the first 64 KiB, where the page tables are.
        let base = if long || !narrow { SCRATCH } else { 0x8000 - LEN as u64 + 0x8000 };
        let code = if narrow { [&[0x67], opcode].concat() } else { opcode.to_vec() };
        at_code(&mut cpu, &code);
        let before: Vec<u8> = (0..LEN).map(|_| numbers.any() as u8).collect();
        cpu.memory.write(Gpa(base), &before).unwrap();
        let count = numbers.below(0x1800 / size as u64);
        let span = count * size as u64;
        let place = |numbers: &mut Numbers| {
            let at = 0x2000 + numbers.below(0x1000);
            if down { at + span } else { at }
        };
        // Half of the time they overlap closely.
        let from = place(&mut numbers);
        let to = match numbers.below(4) {
            0 => from + numbers.below(9),
            1 => from + numbers.below(300) - 150,
            _ => place(&mut numbers),
        };
        cpu.state.gpr[reg::RSI] = base + from;
        cpu.state.gpr[reg::RDI] = base + to;
        cpu.state.gpr[reg::RCX] = count;
        cpu.state.rflags |= if down { rflags::DF } else { 0 };
        let mut interruptions = 0;
        while cpu.state.rip == CODE {
            let left = cpu.state.gpr[reg::RCX];
            let moved = (count - left) * size as u64;
            let at = if down { from.wrapping_sub(moved) } else { from + moved };
            assert_eq!(cpu.state.gpr[reg::RSI], base + at, "SI does not fit the count");
            assert_eq!(cpu.run(some(1 + numbers.below(3))), Exit::Budget);
            interruptions += 1;
            assert!(cpu.state.gpr[reg::RCX] < left || left == 0, "no progress");
            // What runs behind it, if it ended within the budget, is harmless.
            if cpu.state.gpr[reg::RCX] == 0 {
                break;
            }
        }
        let mut expected = before;
        model(&mut expected, from as usize, to as usize, count as usize, size, down);
        let case =
            format!("{code:02x?}, {count} from {from:#x} to {to:#x}, down: {down}, {interruptions} parts");
        assert!(bytes(&cpu, base, LEN) == expected, "{case}");
    }
}

/// Kicks the vCPU whenever it is told of retired instructions.
#[derive(Default)]
struct Kicker(OnceLock<Arc<Kick>>);

impl TimeSource for Kicker {
    fn counter(&self) -> u64 {
        0
    }
    fn retired(&self, _instructions: u64) {
        if let Some(kick) = self.0.get() {
            kick.kick();
        }
    }
}

#[test]
fn a_kick_interrupts_a_long_repetition() {
    let time = Arc::new(Kicker::default());
    let mut cpu = Machine::new(Cpu::new(
        PartitionParts {
            memory: memory(),
            time: time.clone(),
            parallel: false,
            offered: Offered::EVERYTHING.into(),
        },
        VcpuParts { index: 0, entropy: Box::new(Numbers(1)) },
    ));
    time.0.set(cpu.kick().clone()).expect("it is set once");
    cpu.state = machine32().state.clone();
    cpu.mode_changed();
    // REP LODSB goes element by element; STD makes REPNE SCASB do so too.
    for code in [[0xf3, 0xac], [0xf2, 0xae]] {
        at_code(&mut cpu, &code);
        cpu.state.rflags |= rflags::DF;
        let start = SCRATCH + SCRATCH_LEN - 1;
        let pointer = if code[1] == 0xac { reg::RSI } else { reg::RDI };
        cpu.state.gpr[pointer] = start;
        cpu.state.gpr[reg::RCX] = 0x10_0000;
        cpu.state.gpr[reg::RAX] = 0x5a;
        let mut kicks = 0;
        let mut left = cpu.state.gpr[reg::RCX];
        while left != 0 {
            // The end of the last run was told too.
            cpu.kick().take();
            let exit = cpu.run(Until::default());
            assert_eq!(exit, Exit::ExternalInterrupt);
            assert!(cpu.state.gpr[reg::RCX] < left);
            left = cpu.state.gpr[reg::RCX];
            assert_eq!(cpu.state.gpr[pointer], start - (0x10_0000 - left));
            assert!(left == 0 || cpu.state.rip == CODE);
            kicks += 1;
            if kicks > 8 {
                break;
            }
        }
        assert!(left != 0, "a million elements without a look at the kick");
    }
}

#[test]
fn a_fault_in_the_middle_finds_the_registers_at_its_element() {
    // The page behind the scratch memory is not there: 4 KiB pages would be too, 2 MiB is one entry.
    let mut cpu = machine64();
    let entry = 0x3000 + 8 * ((SCRATCH + SCRATCH_LEN) >> 21);
    cpu.memory.write(Gpa(entry), &0u64.to_le_bytes()).unwrap();
    let handler = CODE + 0x100;
    cpu.memory.write(Gpa(handler), &[0xf4]).unwrap();
    // An IDT with a gate for #PF: present interrupt gate, CS 8.
    let gate = [handler & 0xffff | 8 << 16 | 0x8e00 << 32 | handler >> 16 << 48, 0];
    cpu.memory.write(Gpa(0x6_0000 + 16 * 14), gate.map(u64::to_le_bytes).as_flattened()).unwrap();
    // A GDT with a 64-bit code segment for CS 8.
    cpu.memory.write(Gpa(0x7_0008), &0x00af_9b00_0000_ffffu64.to_le_bytes()).unwrap();
    (cpu.state.gdtr.base, cpu.state.gdtr.limit) = (0x7_0000, 0xf);
    (cpu.state.idtr.base, cpu.state.idtr.limit) = (0x6_0000, 0xfff);
    let (source, destination) = (SCRATCH + 0x100, SCRATCH + SCRATCH_LEN - 0x1803);
    // REP MOVSD: the element that would fault begins three bytes before the end.
    at_code(&mut cpu, &[0xf3, 0xa5]);
    cpu.state.gpr[reg::RSI] = source;
    cpu.state.gpr[reg::RDI] = destination;
    cpu.state.gpr[reg::RCX] = 0x1000;
    cpu.state.gpr[reg::RSP] = 0x8_0000;
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!(cpu.count.exceptions()[usize::from(vector::PF)], 1);
    assert_eq!(cpu.state.cr2, SCRATCH + SCRATCH_LEN);
    assert_eq!(cpu.state.gpr[reg::RCX], 0x1000 - 0x600);
    assert_eq!(cpu.state.gpr[reg::RSI], source + 0x1800);
    assert_eq!(cpu.state.gpr[reg::RDI], destination + 0x1800);
    // SS, RSP, RFLAGS, CS, RIP, error code: the return address is the instruction itself.
    let frame = bytes(&cpu, cpu.state.gpr[reg::RSP], 16);
    assert_eq!(frame[8..], CODE.to_le_bytes());
    assert_eq!(u64::from(frame[0]) & (pte::P | 2), 2, "a write to a page that is not there");
}
