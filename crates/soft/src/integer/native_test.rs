//! Every integer instruction that user code of a 64-bit host can execute, in random encodings
//! with random operands, against the real processor.

use std::collections::BTreeMap;

use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, FastFormatter, Instruction, Mnemonic, OpKind, Register,
};
use satori_defs::x86::{rflags, vector};
use satori_memory::Gpa;
use satori_state::reg;

use super::handler;
use crate::cpu::{Cpu, Stop};
use crate::testing::native::{Native, Registers};
use crate::testing::{Numbers, SCRATCH, execute, machine64};

/// Bytes of memory on both sides.
const LEN: u64 = 0x4000;
/// Instructions of each opcode and prefix.
const SAMPLES: u32 = 12;
const SEED: u64 = 0x5a70_7269;

/// Prefixes of the legacy maps, in front of REX.
const PREFIXES: [&[u8]; 5] = [&[], &[0x66], &[0xf3], &[0xf2], &[0x67]];
/// Opcodes that hold several instructions.
const GROUPS: [(&[u8], u8); 13] = [
    (&[], 0xc0),
    (&[], 0xc1),
    (&[], 0xd0),
    (&[], 0xd1),
    (&[], 0xd2),
    (&[], 0xd3),
    (&[], 0xf6),
    (&[], 0xf7),
    (&[], 0xfe),
    (&[], 0xff),
    (&[0x0f], 0xba),
    (&[0x0f], 0xc7),
    (&[0x0f, 0x38], 0xf6),
];
const MAPS: [&[u8]; 3] = [&[], &[0x0f], &[0x0f, 0x38]];

fn legacy(numbers: &mut Numbers, prefix: &[u8], map: &[u8], opcode: u8, wide: bool) -> Vec<u8> {
    let mut bytes = prefix.to_vec();
    if numbers.below(8) == 0 {
        bytes.push(0xf0);
    }
    if wide || numbers.below(2) == 0 {
        bytes.push(0x40 | u8::from(wide) << 3 | numbers.below(8) as u8);
    }
    bytes.extend(map);
    bytes.push(opcode);
    if map.is_empty() && matches!(opcode, 0xa0..=0xa3) {
        bytes.extend((SCRATCH + 0x1000 + numbers.below(0x1000)).to_le_bytes());
    } else if map.is_empty() && opcode == 0xc8 {
        // ENTER with a small frame.
        bytes.extend([numbers.any() as u8, 0, numbers.any() as u8]);
    } else {
        bytes.push(numbers.any() as u8);
        bytes.extend(numbers.edgy().to_le_bytes());
    }
    bytes
}

fn vex(numbers: &mut Numbers, map: u8, prefix: u8, opcode: u8) -> Vec<u8> {
    let extensions = numbers.any() as u8 & 0xe0;
    let wide_and_source = numbers.any() as u8 & 0xf8;
    let mut bytes = vec![0xc4, extensions | map, wide_and_source | prefix, opcode];
    bytes.push(numbers.any() as u8);
    bytes.extend(numbers.edgy().to_le_bytes());
    bytes
}

fn host_has(feature: CpuidFeature) -> bool {
    match feature {
        CpuidFeature::BMI1 => is_x86_feature_detected!("bmi1"),
        CpuidFeature::BMI2 => is_x86_feature_detected!("bmi2"),
        CpuidFeature::ADX => is_x86_feature_detected!("adx"),
        CpuidFeature::LZCNT => is_x86_feature_detected!("lzcnt"),
        CpuidFeature::MOVBE => is_x86_feature_detected!("movbe"),
        CpuidFeature::POPCNT => is_x86_feature_detected!("popcnt"),
        CpuidFeature::SSE4_2 => is_x86_feature_detected!("sse4.2"),
        CpuidFeature::CET_SS => false,
        _ => true,
    }
}

/// Whether an instruction can be compared: it goes on behind itself, does not depend on where
/// it lies or on selectors, and the host has it.
fn comparable(insn: &Instruction) -> bool {
    let branches = (0..insn.op_count()).any(|op| {
        matches!(insn.op_kind(op), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
    });
    let selectors = (0..insn.op_count()).any(|op| insn.op_register(op).is_segment_register());
    let leaves = matches!(insn.mnemonic(), Mnemonic::Ret | Mnemonic::Call | Mnemonic::Jmp);
    // 0F 0D between registers is a NOP for Intel and #UD for AMD.
    let hint = insn.mnemonic() == Mnemonic::Reservednop;
    let large = insn.mnemonic() == Mnemonic::Enter && insn.immediate16() > 0xff;
    !branches
        && !selectors
        && !leaves
        && !hint
        && !large
        && !insn.is_ip_rel_memory_operand()
        && !matches!(insn.segment_prefix(), Register::FS | Register::GS)
        && insn.cpuid_features().iter().all(|feature| host_has(*feature))
}

fn memory_operand(insn: &Instruction) -> Option<u32> {
    (0..insn.op_count()).find(|op| insn.op_kind(*op) == OpKind::Memory)
}

/// Chooses registers so that memory operands and the stack lie in the scratch memory. Nothing
/// if this instruction cannot be made to.
fn operands(numbers: &mut Numbers, insn: &Instruction) -> Option<Registers> {
    let mut registers = Registers { gpr: [0; 16], rflags: 0 };
    for register in &mut registers.gpr {
        *register = numbers.edgy();
    }
    let gpr = &mut registers.gpr;
    let near_boundary = numbers.below(4) == 0;
    let mut place = || {
        SCRATCH + if near_boundary { 0x1fe0 + numbers.below(0x40) } else { 0x1800 + numbers.below(0x1000) }
    };
    let target = place();
    if insn.is_stack_instruction() {
        gpr[reg::RSP] = place();
        if matches!(insn.mnemonic(), Mnemonic::Enter | Mnemonic::Leave) {
            gpr[reg::RBP] = place();
        }
    }
    if insn.is_string_instruction() {
        gpr[reg::RSI] = place();
        gpr[reg::RDI] = place();
        gpr[reg::RCX] = numbers.below(40);
    } else if memory_operand(insn).is_some_and(|_| insn.mnemonic() != Mnemonic::Lea) {
        let (base, index) = (insn.memory_base(), insn.memory_index());
        if base == Register::None {
            let direct = insn.memory_displacement64();
            return (SCRATCH + 0x1000..SCRATCH + 0x3000).contains(&direct).then_some(registers);
        }
        let stack_moves = insn.is_stack_instruction() && [base, index].contains(&Register::RSP);
        if base.full_register() == index.full_register() || stack_moves {
            return None;
        }
        let bit_string =
            matches!(insn.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc)
                && insn.op1_kind() == OpKind::Register;
        if bit_string {
            let position = insn.op1_register();
            if [base, index].iter().any(|r| r.full_register() == position.full_register()) {
                return None;
            }
            gpr[position.full_register().number()] = numbers.below(0x2000).wrapping_sub(0x1000);
        }
        // Locked accesses across a cache line would trap on some hosts.
        let locked = insn.has_lock_prefix() || insn.mnemonic() == Mnemonic::Xchg;
        let wide = insn.mnemonic() == Mnemonic::Cmpxchg16b && numbers.below(4) != 0;
        let target = if wide {
            target & !15
        } else if locked {
            target & !7
        } else {
            target
        };
        let value = |gpr: &[u64; 16], r: Register| match r.size() {
            _ if r == Register::None => 0,
            1 => gpr[r.full_register().number()] & 0xff,
            4 => gpr[r.full_register().number()] & 0xffff_ffff,
            _ => gpr[r.full_register().number()],
        };
        let index = value(gpr, index).wrapping_mul(insn.memory_index_scale().into());
        let wanted = target.wrapping_sub(insn.memory_displacement64()).wrapping_sub(index);
        let slot = &mut gpr[base.full_register().number()];
        *slot = if base.size() == 4 { *slot << 32 | wanted & 0xffff_ffff } else { wanted };
    }
    // Quotients fit more often with a small dividend.
    if matches!(insn.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) && numbers.below(2) == 0 {
        let used = memory_operand(insn).is_some()
            && [insn.memory_base(), insn.memory_index()].iter().any(|r| r.full_register() == Register::RDX);
        if !used {
            registers.gpr[reg::RDX] = if numbers.below(2) == 0 { 0 } else { u64::MAX };
        }
    }
    let direction = if insn.is_string_instruction() { rflags::DF } else { 0 };
    registers.rflags = numbers.any() & (rflags::STATUS | direction);
    Some(registers)
}

/// The flags that the manual leaves undefined, more exactly than a table by opcode can.
fn undefined_flags(insn: &Instruction, registers: &Registers) -> u64 {
    let table = [
        (iced_x86::RflagsBits::OF, rflags::OF),
        (iced_x86::RflagsBits::SF, rflags::SF),
        (iced_x86::RflagsBits::ZF, rflags::ZF),
        (iced_x86::RflagsBits::AF, rflags::AF),
        (iced_x86::RflagsBits::CF, rflags::CF),
        (iced_x86::RflagsBits::PF, rflags::PF),
    ];
    let (shifts, rotates, double) = match insn.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => (true, false, false),
        Mnemonic::Shld | Mnemonic::Shrd => (true, false, true),
        Mnemonic::Rol | Mnemonic::Ror | Mnemonic::Rcl | Mnemonic::Rcr => (false, true, false),
        _ => (false, false, false),
    };
    if !shifts && !rotates {
        let undefined = insn.rflags_undefined();
        return table.iter().filter(|(iced, _)| undefined & iced != 0).map(|(_, flag)| flag).sum();
    }
    let count = shift_count(insn, registers);
    let bits = 8 * super::operand::size(insn, 0) as u32;
    let mut undefined = 0;
    if count > 1 {
        undefined |= rflags::OF;
    }
    if shifts && count > 0 {
        undefined |= rflags::AF;
    }
    if shifts && count >= bits && insn.mnemonic() != Mnemonic::Sar {
        undefined |= rflags::CF;
    }
    if double && count > bits {
        undefined |= rflags::STATUS;
    }
    undefined
}

fn shift_count(insn: &Instruction, registers: &Registers) -> u32 {
    let last = insn.op_count() - 1;
    let count = if insn.op_kind(last) == OpKind::Register {
        registers.gpr[reg::RCX] as u32
    } else {
        insn.immediate(last) as u32
    };
    count & if super::operand::size(insn, 0) == 8 { 63 } else { 31 }
}

/// Results that the manual leaves undefined, and processors do not agree on.
fn undefined_result(insn: &Instruction, registers: &Registers) -> bool {
    let bits = 8 * super::operand::size(insn, 0) as u32;
    match insn.mnemonic() {
        Mnemonic::Bswap => bits == 16,
        Mnemonic::Shld | Mnemonic::Shrd => shift_count(insn, registers) > bits,
        _ => false,
    }
}

/// What an instruction left behind.
#[derive(PartialEq)]
struct Outcome {
    registers: Registers,
    fault: Option<u8>,
    memory: Vec<u8>,
}

struct Comparison {
    native: Native,
    cpu: Cpu,
    numbers: Numbers,
    compared: BTreeMap<String, u32>,
    faults: u32,
    failures: Vec<String>,
}

impl Comparison {
    fn ours(&mut self, insn: &Instruction, before: &Registers, memory: &[u8]) -> Option<Outcome> {
        let function = handler(insn)?;
        let cpu = &mut self.cpu;
        cpu.memory.write(Gpa(SCRATCH), memory).unwrap();
        cpu.state.gpr[..16].copy_from_slice(&before.gpr);
        cpu.set_rflags(before.rflags | rflags::FIXED);
        cpu.state.rip = 0x1_0000;
        let fault = match execute(cpu, insn, function) {
            Ok(()) => None,
            // The host's signals do not tell protection from page faults.
            Err(Stop::Fault) => Some(match cpu.fault.take().unwrap().vector {
                vector::DE => vector::DE,
                vector::UD => vector::UD,
                _ => vector::GP,
            }),
            Err(Stop::Exit | Stop::Alone) => panic!("{insn:?} left for {:?}", cpu.wanted),
        };
        let mut registers = Registers { gpr: [0; 16], rflags: cpu.rflags() & !rflags::FIXED };
        registers.gpr.copy_from_slice(&cpu.state.gpr[..16]);
        let mut memory = vec![0; memory.len()];
        cpu.memory.read(Gpa(SCRATCH), &mut memory).unwrap();
        Some(Outcome { registers, fault, memory })
    }

    fn theirs(&mut self, bytes: &[u8], before: &Registers, memory: &[u8]) -> Outcome {
        self.native.scratch().copy_from_slice(memory);
        let mut registers = *before;
        let fault = self.native.run(bytes, &mut registers).err();
        Outcome { registers, fault, memory: self.native.scratch().to_vec() }
    }

    fn compare(&mut self, bytes: &[u8]) {
        let insn = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).decode();
        if insn.is_invalid() || handler(&insn).is_none() || !comparable(&insn) {
            return;
        }
        let bytes = &bytes[..insn.len()];
        let Some(before) = operands(&mut self.numbers, &insn) else { return };
        let mut memory = vec![0; LEN as usize];
        // Equal neighbours let repeated comparisons run.
        let sparse = self.numbers.below(2) == 0;
        for word in memory.chunks_exact_mut(8) {
            let value = if sparse { 0 } else { self.numbers.any() };
            word.copy_from_slice(&value.to_le_bytes());
        }
        if sparse {
            let at = self.numbers.below(LEN) as usize;
            memory[at] = 1;
        }
        let mut ours = self.ours(&insn, &before, &memory).unwrap();
        let mut theirs = self.theirs(bytes, &before, &memory);
        let undefined = undefined_flags(&insn, &before);
        if ours.fault.is_none() {
            ours.registers.rflags |= undefined;
            theirs.registers.rflags |= undefined;
        }
        if undefined_result(&insn, &before) {
            return;
        }
        *self.compared.entry(format!("{:?}", insn.mnemonic())).or_default() += 1;
        self.faults += u32::from(theirs.fault.is_some());
        if ours != theirs {
            self.failures.push(describe(&insn, bytes, &before, &ours, &theirs));
            assert!(self.failures.len() < 12, "{}", self.failures.join("\n"));
        }
    }
}

fn describe(
    insn: &Instruction,
    bytes: &[u8],
    before: &Registers,
    ours: &Outcome,
    theirs: &Outcome,
) -> String {
    let mut text = String::new();
    FastFormatter::new().format(insn, &mut text);
    text = format!("{text}  {bytes:02x?}  flags before {:#x}", before.rflags);
    if ours.fault != theirs.fault {
        text += &format!("\n  fault: ours {:?}, theirs {:?}", ours.fault, theirs.fault);
    }
    let (a, b) = (ours.registers.rflags, theirs.registers.rflags);
    if a != b {
        text += &format!("\n  flags: ours {a:#x}, theirs {b:#x}");
    }
    for index in 0..16 {
        let (a, b) = (ours.registers.gpr[index], theirs.registers.gpr[index]);
        text += &format!("\n  gpr {index:2}: {:#x}", before.gpr[index]);
        if a != b {
            text += &format!(" -> ours {a:#x}, theirs {b:#x}");
        }
    }
    if let Some(at) = (0..ours.memory.len()).find(|at| ours.memory[*at] != theirs.memory[*at]) {
        text += &format!(
            "\n  memory at {:#x}: ours {:#x}, theirs {:#x}",
            SCRATCH + at as u64,
            ours.memory[at],
            theirs.memory[at]
        );
    }
    text
}

#[test]
fn instructions_equal_the_real_processor() {
    let mut comparison = Comparison {
        native: Native::new(SCRATCH, LEN as usize),
        cpu: machine64(),
        numbers: Numbers(SEED),
        compared: BTreeMap::new(),
        faults: 0,
        failures: Vec::new(),
    };
    for _ in 0..SAMPLES {
        for opcode in 0..=255 {
            for map in MAPS {
                for prefix in PREFIXES {
                    for wide in [false, true] {
                        let bytes = legacy(&mut comparison.numbers, prefix, map, opcode, wide);
                        comparison.compare(&bytes);
                    }
                }
            }
            // The 16-bit forms of POPCNT and its kin.
            let bytes = legacy(&mut comparison.numbers, &[0x66, 0xf3], &[0x0f], opcode, false);
            comparison.compare(&bytes);
        }
        for (map, opcode) in GROUPS {
            for prefix in [PREFIXES[0], PREFIXES[1]] {
                for wide in [false, true] {
                    for _ in 0..6 {
                        let bytes = legacy(&mut comparison.numbers, prefix, map, opcode, wide);
                        comparison.compare(&bytes);
                    }
                }
            }
        }
        for opcode in 0xf0..=0xf7 {
            for map in [2, 3] {
                for prefix in 0..4 {
                    for _ in 0..4 {
                        let bytes = vex(&mut comparison.numbers, map, prefix, opcode);
                        comparison.compare(&bytes);
                    }
                }
            }
        }
    }
    assert!(comparison.failures.is_empty(), "{}", comparison.failures.join("\n"));
    let total: u32 = comparison.compared.values().sum();
    eprintln!("{total} instructions, {} faults: {:?}", comparison.faults, comparison.compared);
    assert!(total > 10_000 && comparison.faults > 20);
    for name in ["Add", "Div", "Idiv", "Cmpxchg16b", "Rcl", "Shld", "Pop", "Enter", "Movsq", "Scasb", "Bts"] {
        assert!(comparison.compared.contains_key(name), "no {name} was compared");
    }
}
