//! MMX: the packed integers on the x87 registers.
//!
//! MMi is the significand of *physical* x87 register i. Every MMX instruction sets TOP to 0 and
//! marks all registers valid (EMMS: empty); writing sets the exponent to ones (SDM volume 3, 13.2).

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::moves::store_masked;
use super::native::{self, Mmx};
use super::operand::{LOW64, mm, xmm};
use super::packed::by_immediate;
use super::shuffle::shuffle_words;
use super::table::{mmx_rows, native_rows};
use crate::cpu::{Cpu, Exec};
use crate::fpu;
use crate::host::Scalar;
use crate::insn::{Row, rows, to_memory};

/// Whether `insn` works on MMX registers.
pub(super) fn works_on_mmx(insn: &Instruction) -> bool {
    insn.op0_register().is_mm() || insn.op1_register().is_mm() || insn.mnemonic() == Mnemonic::Emms
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Emms => emms,
    Psllw if by_immediate(insn) => shift::<native::Psllw>,
    Pslld if by_immediate(insn) => shift::<native::Pslld>,
    Psllq if by_immediate(insn) => shift::<native::Psllq>,
    Psrlw if by_immediate(insn) => shift::<native::Psrlw>,
    Psrld if by_immediate(insn) => shift::<native::Psrld>,
    Psrlq if by_immediate(insn) => shift::<native::Psrlq>,
    Psraw if by_immediate(insn) => shift::<native::Psraw>,
    Psrad if by_immediate(insn) => shift::<native::Psrad>,
    Movq | Movntq if to_memory(insn) => store::<u64>,
    Movd if to_memory(insn) => store::<u32>,
    Movq if insn.op0_register().is_mm() && insn.op1_register().is_mm() => unary::<Copy>,
    Movq | Movd if insn.op0_register().is_mm() => from_general,
    Movq | Movd => to_general,
    Movq2dq => movq2dq,
    Movdq2q => movdq2q,
    Punpcklbw => unpack_low::<native::Punpcklbw>,
    Punpcklwd => unpack_low::<native::Punpcklwd>,
    Punpckldq => unpack_low::<native::Punpckldq>,
    Pshufw => pshufw,
    Palignr => palignr,
    Pinsrw => pinsrw,
    Pextrw => pextrw,
    Pmovmskb => pmovmskb,
    Maskmovq => maskmovq,
});
pub(super) const PACKED: &[Row] = mmx_rows!(native_rows Mnemonics unary);

/// Whether MMX instructions may execute: #UD, #NM, or a pending x87 exception.
pub(super) fn usable(cpu: &mut Cpu) -> Exec<()> {
    if cpu.state.cr0 & satori_defs::x86::cr0::EM != 0 {
        return Err(cpu.raise(satori_engine::Exception::ud()));
    }
    fpu::available(cpu)?;
    fpu::check_pending(cpu)
}

/// The transition from x87 to MMX: TOP 0, all valid.
pub(super) fn enter(cpu: &mut Cpu) {
    fpu::set_top(&mut cpu.state.fpu, 0);
    cpu.state.fpu.ftw = 0xff;
}

/// MMi.
fn get(cpu: &Cpu, i: usize) -> u64 {
    let fpu = &cpu.state.fpu;
    fpu.st[i.wrapping_sub(fpu::top(fpu)) & 7] as u64
}

/// Enters MMX mode and sets MMi.
pub(super) fn set(cpu: &mut Cpu, i: usize, value: u64) {
    enter(cpu);
    cpu.state.fpu.st[i & 7] = u128::from(value) | 0xffff << 64;
}

/// An MMX register or 64 bits of memory.
pub(super) fn source(cpu: &mut Cpu, insn: &Instruction, op: u32) -> Exec<u64> {
    if insn.op_kind(op) == OpKind::Register {
        return Ok(get(cpu, mm(insn.op_register(op))));
    }
    let linear = cpu.ea(insn, op)?;
    cpu.read(linear)
}

/// MOVQ between registers, as a row.
struct Copy;
impl Mmx for Copy {
    fn run(_: u64, source: u64) -> u64 {
        source
    }
}

/// `mm = op(mm, mm/m64)`.
fn unary<O: Mmx>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let s = source(cpu, insn, 1)?;
    let d = mm(insn.op0_register());
    let new = O::run(get(cpu, d), s);
    set(cpu, d, new);
    Ok(())
}

/// The low unpacks, whose memory operand is 32 bits.
fn unpack_low<O: Mmx>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let s = if insn.op1_kind() == OpKind::Register {
        get(cpu, mm(insn.op1_register()))
    } else {
        let linear = cpu.ea(insn, 1)?;
        cpu.read::<u32>(linear)?.into()
    };
    let d = mm(insn.op0_register());
    let new = O::run(get(cpu, d), s);
    set(cpu, d, new);
    Ok(())
}

fn shift<O: Mmx>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let d = mm(insn.op0_register());
    let new = O::run(get(cpu, d), insn.immediate8().into());
    set(cpu, d, new);
    Ok(())
}

fn store<T: Scalar>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let linear = super::operand::store_address(cpu, insn, 0)?;
    let value = get(cpu, mm(insn.op1_register()));
    cpu.write(linear, T::from_bytes(&u128::from(value).to_le_bytes()))?;
    enter(cpu);
    Ok(())
}

/// MOVD and MOVQ to an MMX register, from a general register or memory.
fn from_general(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let s = cpu.operand(insn, 1)?;
    set(cpu, mm(insn.op0_register()), s);
    Ok(())
}

fn to_general(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let s = get(cpu, mm(insn.op1_register()));
    enter(cpu);
    cpu.set_reg(insn.op0_register(), s);
    Ok(())
}

fn movq2dq(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    super::operand::sse(cpu)?;
    usable(cpu)?;
    let s = get(cpu, mm(insn.op1_register()));
    enter(cpu);
    cpu.state.fpu.ymm[xmm(insn.op0_register())].low = s.into();
    Ok(())
}

fn movdq2q(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    super::operand::sse(cpu)?;
    usable(cpu)?;
    let s = cpu.state.fpu.ymm[xmm(insn.op1_register())].low;
    set(cpu, mm(insn.op0_register()), (s & LOW64) as u64);
    Ok(())
}

fn pshufw(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let s = source(cpu, insn, 1)?;
    set(cpu, mm(insn.op0_register()), shuffle_words(s, insn.immediate8()));
    Ok(())
}

fn palignr(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let s = source(cpu, insn, 1)?;
    let d = mm(insn.op0_register());
    let both = u128::from(get(cpu, d)) << 64 | u128::from(s);
    let new = both.checked_shr(8 * u32::from(insn.immediate8())).unwrap_or(0);
    set(cpu, d, new as u64);
    Ok(())
}

fn pinsrw(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let new = cpu.operand(insn, 1)? & 0xffff;
    let d = mm(insn.op0_register());
    let shift = 16 * u32::from(insn.immediate8() & 3);
    let value = get(cpu, d) & !(0xffff << shift) | new << shift;
    set(cpu, d, value);
    Ok(())
}

fn pextrw(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let s = get(cpu, mm(insn.op1_register()));
    enter(cpu);
    cpu.set_reg(insn.op0_register(), s >> (16 * u32::from(insn.immediate8() & 3)) & 0xffff);
    Ok(())
}

fn pmovmskb(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let s = get(cpu, mm(insn.op1_register()));
    enter(cpu);
    cpu.set_reg(insn.op0_register(), native::pmovmskb(s.into()));
    Ok(())
}

fn maskmovq(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    let register = |cpu: &Cpu, r: Register| get(cpu, mm(r)).to_le_bytes();
    let (data, mask) = (register(cpu, insn.op1_register()), register(cpu, insn.op2_register()));
    store_masked(cpu, insn, &data, &mask)?;
    enter(cpu);
    Ok(())
}

fn emms(cpu: &mut Cpu, _insn: &Instruction) -> Exec<()> {
    usable(cpu)?;
    enter(cpu);
    cpu.state.fpu.ftw = 0;
    Ok(())
}
