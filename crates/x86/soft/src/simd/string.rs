//! PCMPESTRI, PCMPESTRM, PCMPISTRI and PCMPISTRM (SDM volume 2, 4.1).

use iced_x86::{Instruction, Mnemonic};
use satori_defs::x86::rflags;
use satori_state::reg;

use super::operand::{sse, unaligned, xmm};
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Pcmpestri | Pcmpestri64 => explicit::<true>,
    Pcmpestrm | Pcmpestrm64 => explicit::<false>,
    Pcmpistri => implicit::<true>,
    Pcmpistrm => implicit::<false>,
});

fn explicit<const INDEX: bool>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    explicit_operands::<INDEX>(cpu, insn)
}

fn implicit<const INDEX: bool>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    sse(cpu)?;
    implicit_operands::<INDEX>(cpu, insn)
}

/// Lengths in RAX and RDX (EAX and EDX without REX.W), whose absolute values saturate.
pub(super) fn explicit_operands<const INDEX: bool>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let b = unaligned::<u128>(cpu, insn, 1)?;
    let wide = matches!(
        insn.mnemonic(),
        Mnemonic::Pcmpestri64 | Mnemonic::Pcmpestrm64 | Mnemonic::Vpcmpestri64 | Mnemonic::Vpcmpestrm64
    );
    let imm = insn.immediate8();
    let length = |value: u64| {
        let magnitude =
            if wide { (value as i64).unsigned_abs() } else { (value as i32).unsigned_abs().into() };
        magnitude.min(elements(imm).into()) as u32
    };
    let (length_a, length_b) = (length(cpu.state.gpr[reg::RAX]), length(cpu.state.gpr[reg::RDX]));
    finish::<INDEX>(cpu, insn, b, length_a, length_b);
    Ok(())
}

/// Lengths by the first null element.
pub(super) fn implicit_operands<const INDEX: bool>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let b = unaligned::<u128>(cpu, insn, 1)?;
    let a = cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    let imm = insn.immediate8();
    let length = |v: u128| (0..elements(imm)).find(|i| element(v, imm, *i) == 0).unwrap_or(elements(imm));
    finish::<INDEX>(cpu, insn, b, length(a), length(b));
    Ok(())
}

fn finish<const INDEX: bool>(cpu: &mut Cpu, insn: &Instruction, b: u128, length_a: u32, length_b: u32) {
    let a = cpu.state.fpu.ymm[xmm(insn.op0_register())].low;
    let imm = insn.immediate8();
    let n = elements(imm);
    let found = compare(a, b, length_a, length_b, imm);
    if INDEX {
        let last = imm & 0x40 != 0;
        let index = match found {
            0 => n,
            _ if last => found.ilog2(),
            _ => found.trailing_zeros(),
        };
        cpu.state.gpr[reg::RCX] = index.into();
    } else if imm & 0x40 == 0 {
        cpu.state.fpu.ymm[0].low = found.into();
    } else {
        let bits = 128 / n;
        let full = u128::MAX >> (128 - bits);
        cpu.state.fpu.ymm[0].low =
            (0..n).filter(|i| found >> i & 1 != 0).fold(0, |mask, i| mask | full << (bits * i));
    }
    let flag = |set: bool, flag: u64| if set { flag } else { 0 };
    cpu.flags.set_bits(
        flag(found != 0, rflags::CF)
            | flag(length_b < n, rflags::ZF)
            | flag(length_a < n, rflags::SF)
            | flag(found & 1 != 0, rflags::OF),
    );
}

/// Elements of a string: 16 bytes or 8 words.
fn elements(imm: u8) -> u32 {
    if imm & 1 == 0 { 16 } else { 8 }
}

/// Element `i`, sign- or zero-extended as the immediate says.
fn element(value: u128, imm: u8, i: u32) -> i32 {
    match imm & 3 {
        0 => (value >> (8 * i)) as u8 as i32,
        1 => (value >> (16 * i)) as u16 as i32,
        2 => (value >> (8 * i)) as i8 as i32,
        _ => (value >> (16 * i)) as i16 as i32,
    }
}

/// IntRes2: aggregation and polarity, with the comparisons of invalid elements overridden.
fn compare(a: u128, b: u128, length_a: u32, length_b: u32, imm: u8) -> u32 {
    let n = elements(imm);
    let (at_a, at_b) = (|i| element(a, imm, i), |i| element(b, imm, i));
    let all = (1 << n) - 1;
    let each = |test: &dyn Fn(u32) -> bool| (0..n).fold(0, |bits, j| bits | u32::from(test(j)) << j);
    let aggregate = match imm >> 2 & 3 {
        // Equal any: is b[j] one of a?
        0 => each(&|j| j < length_b && (0..length_a).any(|i| at_a(i) == at_b(j))),
        // Ranges: is b[j] within one of the pairs of a?
        1 => each(&|j| {
            let within = |pair: u32| at_a(2 * pair) <= at_b(j) && at_b(j) <= at_a(2 * pair + 1);
            j < length_b && (0..length_a / 2).any(within)
        }),
        // Equal each: two ends compare as equal.
        2 => each(&|j| match (j < length_a, j < length_b) {
            (true, true) => at_a(j) == at_b(j),
            (valid_a, valid_b) => !valid_a && !valid_b,
        }),
        // Equal ordered: does a stand at b[j], as far as b is seen?
        _ => each(&|j| (0..(n - j).min(length_a)).all(|i| j + i < length_b && at_a(i) == at_b(j + i))),
    };
    match imm >> 4 & 3 {
        1 => aggregate ^ all,
        3 => aggregate ^ ((1u32 << length_b) - 1),
        _ => aggregate,
    }
}
