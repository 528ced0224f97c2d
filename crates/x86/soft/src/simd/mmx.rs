//! MMX: the packed integers on the x87 registers.
//!
//! MMi is the significand of *physical* x87 register i. Every MMX instruction sets TOP to 0 and
//! marks all registers valid (EMMS: empty); writing sets the exponent to ones (SDM volume 3, 13.2).

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::moves::store_masked;
use super::native::{self, Mmx};
use super::operand::{LOW64, mm, xmm};
use super::shuffle::shuffle_words;
use super::table::mmx_rows;
use crate::cpu::{Cpu, Exec, Handler};
use crate::fpu;
use crate::host::Scalar;

/// The implementation of `insn`, if it works on MMX registers and is not a conversion.
pub fn handler(insn: &Instruction) -> Option<Handler> {
    let mnemonic = insn.mnemonic();
    if mnemonic == Mnemonic::Emms {
        return Some(emms);
    }
    if !insn.op0_register().is_mm() && !insn.op1_register().is_mm() {
        return None;
    }
    let to_memory = insn.op0_kind() == OpKind::Memory;
    let to_mmx = insn.op0_register().is_mm();
    if insn.op1_kind() == OpKind::Immediate8 {
        return by_immediate(mnemonic);
    }
    Some(match mnemonic {
        Mnemonic::Movq | Mnemonic::Movntq if to_memory => store::<u64>,
        Mnemonic::Movd if to_memory => store::<u32>,
        Mnemonic::Movq if to_mmx && insn.op1_register().is_mm() => unary::<Copy>,
        Mnemonic::Movq | Mnemonic::Movd if to_mmx => from_general,
        Mnemonic::Movq | Mnemonic::Movd => to_general,
        Mnemonic::Movq2dq => movq2dq,
        Mnemonic::Movdq2q => movdq2q,
        Mnemonic::Punpcklbw => unpack_low::<native::Punpcklbw>,
        Mnemonic::Punpcklwd => unpack_low::<native::Punpcklwd>,
        Mnemonic::Punpckldq => unpack_low::<native::Punpckldq>,
        Mnemonic::Pshufw => pshufw,
        Mnemonic::Palignr => palignr,
        Mnemonic::Pinsrw => pinsrw,
        Mnemonic::Pextrw => pextrw,
        Mnemonic::Pmovmskb => pmovmskb,
        Mnemonic::Maskmovq => maskmovq,
        _ => return row(mnemonic),
    })
}

macro_rules! dispatch {
    ($($feature:tt { $($name:ident $op:literal;)* })*) => {
        fn row(mnemonic: Mnemonic) -> Option<Handler> {
            Some(match mnemonic {
                $($(Mnemonic::$name if is_x86_feature_detected!($feature) => unary::<native::$name>,)*)*
                _ => return None,
            })
        }
    };
}
mmx_rows!(dispatch);

fn by_immediate(mnemonic: Mnemonic) -> Option<Handler> {
    Some(match mnemonic {
        Mnemonic::Psllw => shift::<native::Psllw>,
        Mnemonic::Pslld => shift::<native::Pslld>,
        Mnemonic::Psllq => shift::<native::Psllq>,
        Mnemonic::Psrlw => shift::<native::Psrlw>,
        Mnemonic::Psrld => shift::<native::Psrld>,
        Mnemonic::Psrlq => shift::<native::Psrlq>,
        Mnemonic::Psraw => shift::<native::Psraw>,
        Mnemonic::Psrad => shift::<native::Psrad>,
        _ => return None,
    })
}

/// Whether MMX instructions may execute: #UD, #NM, or a pending x87 exception.
pub fn usable(cpu: &mut Cpu) -> Exec<()> {
    if cpu.state.cr0 & satori_defs::x86::cr0::EM != 0 {
        return Err(cpu.raise(satori_engine::Exception::ud()));
    }
    fpu::available(cpu)?;
    fpu::check_pending(cpu)
}

/// The transition from x87 to MMX: TOP 0, all valid.
pub fn enter(cpu: &mut Cpu) {
    fpu::set_top(&mut cpu.state.fpu, 0);
    cpu.state.fpu.ftw = 0xff;
}

/// MMi.
fn get(cpu: &Cpu, i: usize) -> u64 {
    let fpu = &cpu.state.fpu;
    fpu.st[i.wrapping_sub(fpu::top(fpu)) & 7] as u64
}

/// Enters MMX mode and sets MMi.
pub fn set(cpu: &mut Cpu, i: usize, value: u64) {
    enter(cpu);
    cpu.state.fpu.st[i & 7] = u128::from(value) | 0xffff << 64;
}

/// An MMX register or 64 bits of memory.
pub fn source(cpu: &mut Cpu, insn: &Instruction, op: u32) -> Exec<u64> {
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
