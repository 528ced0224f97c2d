//! Specialised operations against the generic implementation of the same instruction.

use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, Instruction};
use satori_cpuid::Offered;
use satori_engine::{PartitionParts, TimeSource, VcpuParts};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::{Segment, reg, seg};

use super::select;
use crate::block::op::{BLOCK_RIP, Flow, Op};
use crate::cpu::{Cpu, Stop};
use crate::insn;
use crate::testing::Numbers;

struct Stopped;

impl TimeSource for Stopped {
    fn counter(&self) -> u64 {
        0
    }
    fn retired(&self, _instructions: u64) {}
}

/// Operands are in this part of memory; everything else of it is a device.
const ARENA: u64 = 0x1_0000;
const ARENA_LEN: u64 = 0x1_0000;
const RIP: u64 = 0x2_0000;

/// A processor in 64-bit code whose addresses are physical: no real one can do that, but it
/// leaves page tables out of the test.
fn machine() -> Cpu {
    let region = Region { start: Gpa(0), len: 1 << 20 };
    let memory = GuestMemory::new(&[region]).unwrap();
    memory.page(Gpa(0)).unwrap().state.touch();
    let mut cpu = Cpu::new(
        PartitionParts {
            memory,
            time: Arc::new(Stopped),
            parallel: false,
            offered: Offered::EVERYTHING.into(),
        },
        VcpuParts { index: 0, entropy: Box::new(Numbers(1)) },
    );
    cpu.state.efer = satori_defs::x86::efer::LMA;
    cpu.state.cr0 = satori_defs::x86::cr0::PE;
    cpu.state.seg[seg::CS] = Segment::flat(8, 0xa09b);
    cpu.state.seg[seg::SS] = Segment::flat(16, 0xc093);
    cpu.state.seg[seg::GS].base = 0x80;
    cpu.mode_changed();
    cpu
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }
    fn value(&mut self) -> u64 {
        match self.below(4) {
            0 => [0, 1, 0x7f, 0x80, 0xff, 0x8000_0000, u64::MAX, 1 << 63][self.below(8) as usize],
            1 => self.next(),
            _ => ARENA + 0x400 + self.below(0x800),
        }
    }
}

/// A random instruction from the opcodes that have specialised forms.
fn instruction(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    if random.below(8) == 0 {
        bytes.push([0x66, 0x65, 0xf0][random.below(3) as usize]);
    }
    if random.below(2) == 0 {
        bytes.push(0x40 | random.below(16) as u8);
    }
    match random.below(4) {
        0 => bytes
            .extend([0x0f, [0x40, 0x90, 0xb6, 0xb7, 0xbe, 0xbf, 0xaf, 0x80, 0x1f][random.below(9) as usize]]),
        1 => bytes.push(random.below(0x40) as u8),
        _ => bytes.push(0x50 + random.below(0xb0) as u8),
    }
    if let [.., 0x0f, second @ (0x40 | 0x90 | 0x80)] = bytes.as_mut_slice() {
        *second |= random.below(16) as u8;
    }
    // ModRM: mostly registers and short displacements.
    bytes.push([0xc0, 0xc0, 0x40, 0x00, 0x80][random.below(5) as usize] | random.below(64) as u8);
    bytes.extend(
        (0..12).map(|_| if random.below(2) == 0 { random.below(0x40) as u8 } else { random.next() as u8 }),
    );
    bytes
}

#[derive(Debug, PartialEq)]
struct Outcome {
    gpr: [u64; 16],
    flags: u64,
    rip: Option<u64>,
    stopped: Option<Stop>,
    exit: Option<satori_engine::Exit>,
    fault: Option<u8>,
    memory: Vec<u8>,
}

fn outcome(cpu: &mut Cpu, stopped: Option<Stop>, rip: Option<u64>) -> Outcome {
    let mut memory = vec![0; ARENA_LEN as usize];
    cpu.memory.read(Gpa(ARENA), &mut memory).unwrap();
    let mut gpr = [0; 16];
    gpr.copy_from_slice(&cpu.state.gpr[..16]);
    Outcome {
        gpr,
        flags: cpu.flags.bits(),
        rip,
        stopped,
        exit: (stopped == Some(Stop::Exit)).then_some(cpu.pending.wanted),
        fault: cpu.pending.fault.map(|fault| fault.vector),
        memory,
    }
}

/// Nothing if the operation leaves the case to the generic implementation.
fn by_operation(cpu: &mut Cpu, op: &Op) -> Option<Outcome> {
    cpu.state.gpr[BLOCK_RIP] = RIP;
    Some(match (op.run.get())(cpu, op) {
        Flow::Generic => return None,
        Flow::Next => outcome(cpu, None, Some(RIP + u64::from(op.len))),
        Flow::Jump => {
            let rip = cpu.state.rip;
            outcome(cpu, None, Some(rip))
        }
        Flow::Fault => outcome(cpu, Some(Stop::Fault), None),
        _ => outcome(cpu, Some(Stop::Exit), None),
    })
}

fn by_generic(cpu: &mut Cpu, insns: &[Instruction]) -> Outcome {
    cpu.state.rip = RIP;
    for insn in insns {
        cpu.next_rip = cpu.next_ip(insn);
        cpu.begin();
        if let Err(stop) = insn::handler(insn)(cpu, insn) {
            return outcome(cpu, Some(stop), None);
        }
        cpu.state.rip = cpu.next_rip;
    }
    let rip = cpu.state.rip;
    outcome(cpu, None, Some(rip))
}

fn prepare(cpu: &mut Cpu, gpr: &[u64; 16], flags: u64, memory: &[u8]) {
    cpu.state.gpr[..16].copy_from_slice(gpr);
    cpu.state.gpr[reg::ZERO] = 0;
    cpu.flags.set_bits(flags);
    cpu.pending.fault = None;
    cpu.memory.write(Gpa(ARENA), memory).unwrap();
}

#[test]
fn specialised_operations_do_what_the_generic_ones_do() {
    let (mut fast, mut generic) = (machine(), machine());
    let mut random = Random(0x5a70_1234_9876_0001);
    let memory: Vec<u8> = (0..ARENA_LEN).map(|_| random.next() as u8).collect();
    let (mut compared, mut fused) = (0, 0);
    while compared < 20_000 || fused < 1_000 {
        let bytes = instruction(&mut random);
        let insn = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE).decode();
        if insn.is_invalid() {
            continue;
        }
        let Some(mut op) = select(&insn, 0) else { continue };
        let mut insns = vec![insn];
        let jcc = [0x70 | random.below(16) as u8, 0x10];
        let branch = Decoder::with_ip(64, &jcc, insn.len() as u64, DecoderOptions::NONE).decode();
        if random.below(2) == 0 && super::fuse(Some(&mut op), &branch) {
            insns.push(branch);
            fused += 1;
        }
        let mut gpr = [0; 16];
        gpr.fill_with(|| random.value());
        gpr[reg::RSP] = ARENA + 0x800;
        let flags = random.next() & satori_defs::x86::rflags::STATUS;
        prepare(&mut fast, &gpr, flags, &memory);
        prepare(&mut generic, &gpr, flags, &memory);
        let Some(left) = by_operation(&mut fast, &op) else { continue };
        let right = by_generic(&mut generic, &insns);
        // What a multiplication or a shift leaves undefined may differ.
        let defined = match insn.mnemonic() {
            iced_x86::Mnemonic::Imul => satori_defs::x86::rflags::CF | satori_defs::x86::rflags::OF,
            iced_x86::Mnemonic::Shl | iced_x86::Mnemonic::Shr | iced_x86::Mnemonic::Sar => {
                let overflow = if insn.immediate(1) == 1 { 0 } else { satori_defs::x86::rflags::OF };
                !(satori_defs::x86::rflags::AF | overflow)
            }
            _ => u64::MAX,
        };
        let same = Outcome { flags: left.flags & defined, ..left }
            == Outcome { flags: right.flags & defined, ..right };
        if !same {
            prepare(&mut fast, &gpr, flags, &memory);
            prepare(&mut generic, &gpr, flags, &memory);
            let left = by_operation(&mut fast, &op).unwrap();
            let right = by_generic(&mut generic, &insns);
            let brief = |o: &Outcome| {
                format!("{:x?} {:x} {:x?} {:?} {:?}", o.gpr, o.flags, o.rip, o.stopped, o.fault)
            };
            panic!(
                "{insn} {:02x?}\nbefore {gpr:x?} {flags:x}\nfast    {}\ngeneric {}",
                &bytes[..insn.len()],
                brief(&left),
                brief(&right)
            );
        }
        compared += 1;
    }
}
