//! Arithmetic and logic of general registers.

use satori_arm_isa::{Op, logical_immediate};

use super::{Done, sized};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Flow};

const N: u32 = 1 << 31;
const Z: u32 = 1 << 30;
const C: u32 = 1 << 29;
const V: u32 = 1 << 28;

#[allow(clippy::too_many_lines, reason = "one line an instruction")]
pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    let raw = i.raw;
    let (d, n) = ((raw & 31) as u8, (raw >> 5 & 31) as u8);
    Some(match op {
        Op::Adr | Op::Adrp => {
            let offset = (u64::from(i.bits(23, 5)) << 2 | u64::from(i.bits(30, 29))) << 43;
            i.imm = ((offset as i64) >> 43) as u64;
            if op == Op::Adr { adr } else { adrp }
        }
        Op::AddImm | Op::SubImm | Op::AddsImm | Op::SubsImm => {
            i.imm = u64::from(i.bits(21, 10)) << (12 * i.bits(22, 22));
            i.rn = n;
            match op {
                Op::AddImm | Op::SubImm => {
                    i.rd = d;
                    if op == Op::SubImm {
                        i.imm = i.imm.wrapping_neg();
                    }
                    sized!(i, add_imm)
                }
                Op::AddsImm => sized!(i, adds_imm),
                _ => sized!(i, subs_imm),
            }
        }
        Op::AndImm | Op::OrrImm | Op::EorImm | Op::AndsImm => {
            let mask = logical_immediate(i.bits(22, 22), i.bits(15, 10), i.bits(21, 16), i.bit(31));
            i.imm = mask.unwrap_or_default();
            if op != Op::AndsImm {
                i.rd = d;
            }
            match op {
                Op::AndImm => sized!(i, logic_imm::<0>),
                Op::OrrImm => sized!(i, logic_imm::<1>),
                Op::EorImm => sized!(i, logic_imm::<2>),
                _ => sized!(i, logic_imm::<3>),
            }
        }
        Op::Movn | Op::Movz | Op::Movk => {
            i.ra = (i.bits(22, 21) * 16) as u8;
            i.imm = u64::from(i.bits(20, 5)) << i.ra;
            match op {
                Op::Movk => sized!(i, movk),
                Op::Movz => mov_imm,
                _ => {
                    i.imm = if i.bit(31) { !i.imm } else { !i.imm & 0xffff_ffff };
                    mov_imm
                }
            }
        }
        Op::Sbfm => sized!(i, sbfm),
        Op::Ubfm => {
            // Shifts, by far the most.
            let (r, s, top) = (i.bits(21, 16), i.bits(15, 10), if i.bit(31) { 63 } else { 31 });
            if s == top {
                i.imm = r.into();
                sized!(i, lsr_imm)
            } else if s + 1 == r {
                i.imm = (top - s).into();
                sized!(i, lsl_imm)
            } else {
                sized!(i, ubfm)
            }
        }
        Op::Bfm => sized!(i, bfm),
        Op::Extr => sized!(i, extr),
        Op::AndReg => sized!(i, logic_reg::<0, false>),
        Op::BicReg => sized!(i, logic_reg::<0, true>),
        Op::OrrReg if raw & 0x7fe0_ffe0 == 0x2a00_03e0 => sized!(i, mov_reg),
        Op::OrrReg => sized!(i, logic_reg::<1, false>),
        Op::OrnReg => sized!(i, logic_reg::<1, true>),
        Op::EorReg => sized!(i, logic_reg::<2, false>),
        Op::EonReg => sized!(i, logic_reg::<2, true>),
        Op::AndsReg => sized!(i, logic_reg::<3, false>),
        Op::BicsReg => sized!(i, logic_reg::<3, true>),
        Op::AddReg | Op::SubReg | Op::AddsReg | Op::SubsReg => {
            i.imm = i.bits(15, 10).into();
            let plain = i.bits(15, 10) == 0;
            match op {
                Op::AddReg if plain => sized!(i, add_plain),
                Op::SubReg if plain => sized!(i, sub_plain),
                Op::SubsReg if plain => sized!(i, subs_plain),
                Op::AddReg => sized!(i, add_reg::<false, false>),
                Op::SubReg => sized!(i, add_reg::<true, false>),
                Op::AddsReg => sized!(i, add_reg::<false, true>),
                _ => sized!(i, add_reg::<true, true>),
            }
        }
        Op::AddExt | Op::SubExt | Op::AddsExt | Op::SubsExt => {
            i.rn = n;
            if matches!(op, Op::AddExt | Op::SubExt) {
                i.rd = d;
            }
            match op {
                Op::AddExt => sized!(i, add_ext::<false, false>),
                Op::SubExt => sized!(i, add_ext::<true, false>),
                Op::AddsExt => sized!(i, add_ext::<false, true>),
                _ => sized!(i, add_ext::<true, true>),
            }
        }
        Op::Adc => sized!(i, adc::<false, false>),
        Op::Adcs => sized!(i, adc::<false, true>),
        Op::Sbc => sized!(i, adc::<true, false>),
        Op::Sbcs => sized!(i, adc::<true, true>),
        Op::CcmnReg => sized!(i, ccmp::<false, false>),
        Op::CcmpReg => sized!(i, ccmp::<true, false>),
        Op::CcmnImm => sized!(i, ccmp::<false, true>),
        Op::CcmpImm => sized!(i, ccmp::<true, true>),
        Op::Csel => sized!(i, csel::<0>),
        Op::Csinc => sized!(i, csel::<1>),
        Op::Csinv => sized!(i, csel::<2>),
        Op::Csneg => sized!(i, csel::<3>),
        Op::Udiv => sized!(i, udiv),
        Op::Sdiv => sized!(i, sdiv),
        Op::Lslv => sized!(i, shift_reg::<0>),
        Op::Lsrv => sized!(i, shift_reg::<1>),
        Op::Asrv => sized!(i, shift_reg::<2>),
        Op::Rorv => sized!(i, shift_reg::<3>),
        Op::Crc32 => crc::<0xedb8_8320>,
        Op::Crc32c => crc::<0x82f6_3b78>,
        Op::Rbit => sized!(i, rbit),
        Op::Rev16 => sized!(i, rev16),
        Op::Rev32 => rev32,
        Op::Rev64 => rev64,
        Op::Clz => sized!(i, clz),
        Op::Cls => sized!(i, cls),
        Op::Madd => sized!(i, madd::<false>),
        Op::Msub => sized!(i, madd::<true>),
        Op::Smaddl => madd_long::<true, false>,
        Op::Smsubl => madd_long::<true, true>,
        Op::Umaddl => madd_long::<false, false>,
        Op::Umsubl => madd_long::<false, true>,
        Op::Smulh => smulh,
        Op::Umulh => umulh,
        _ => return None,
    })
}

fn adr(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_x(i.rd, cpu.s.pc.wrapping_add(i.imm));
    Ok(Flow::Next)
}

fn adrp(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_x(i.rd, (cpu.s.pc & !0xfff).wrapping_add(i.imm << 12));
    Ok(Flow::Next)
}

/// Sum, and the flags as they are for the width.
#[inline(always)]
fn add_flags<const W: bool>(a: u64, b: u64, carry: bool) -> (u64, u32) {
    let (result, c, v, n) = if W {
        let (sum, first) = a.overflowing_add(b);
        let (sum, second) = sum.overflowing_add(carry.into());
        (sum, first | second, (a ^ sum) & (b ^ sum) & 1 << 63 != 0, sum >> 63 != 0)
    } else {
        let wide = (a & 0xffff_ffff) + (b & 0xffff_ffff) + u64::from(carry);
        let sum = wide & 0xffff_ffff;
        (sum, wide >> 32 != 0, (a ^ sum) & (b ^ sum) & 1 << 31 != 0, sum >> 31 != 0)
    };
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    (result, flag(n, N) | flag(result == 0, Z) | flag(c, C) | flag(v, V))
}

fn add_imm<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_r::<W>(i.rd, cpu.x(i.rn).wrapping_add(i.imm));
    Ok(Flow::Next)
}

fn adds_imm<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (result, flags) = add_flags::<W>(cpu.r::<W>(i.rn), i.imm, false);
    cpu.s.pstate.nzcv = flags;
    cpu.set_x(i.rd, result);
    Ok(Flow::Next)
}

fn subs_imm<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (result, flags) = add_flags::<W>(cpu.r::<W>(i.rn), !i.imm, true);
    cpu.s.pstate.nzcv = flags;
    cpu.set_x(i.rd, result);
    Ok(Flow::Next)
}

#[inline(always)]
fn logic_flags<const W: bool>(value: u64) -> u32 {
    let value = if W { value } else { value & 0xffff_ffff };
    let negative = value >> if W { 63 } else { 31 } != 0;
    (if negative { N } else { 0 }) | if value == 0 { Z } else { 0 }
}

#[inline(always)]
fn logic<const KIND: u8, const W: bool>(cpu: &mut Cpu, rd: u8, a: u64, b: u64) -> Done {
    let result = match KIND {
        0 | 3 => a & b,
        1 => a | b,
        _ => a ^ b,
    };
    if KIND == 3 {
        cpu.s.pstate.nzcv = logic_flags::<W>(result);
    }
    cpu.set_r::<W>(rd, result);
    Ok(Flow::Next)
}

fn logic_imm<const KIND: u8, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    logic::<KIND, W>(cpu, i.rd, cpu.x(i.rn), i.imm)
}

#[inline(always)]
fn shifted<const W: bool>(value: u64, kind: u32, by: u32) -> u64 {
    let narrow = value as u32;
    match (kind, W) {
        (0, true) => value << (by & 63),
        (1, true) => value >> (by & 63),
        (2, true) => (value as i64 >> (by & 63)) as u64,
        (_, true) => value.rotate_right(by),
        (0, false) => (narrow << (by & 31)).into(),
        (1, false) => (narrow >> (by & 31)).into(),
        (2, false) => ((narrow as i32 >> (by & 31)) as u32).into(),
        (_, false) => narrow.rotate_right(by).into(),
    }
}

fn logic_reg<const KIND: u8, const INVERT: bool, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let second = shifted::<W>(cpu.x(i.rm), i.bits(23, 22), i.bits(15, 10));
    logic::<KIND, W>(cpu, i.rd, cpu.x(i.rn), if INVERT { !second } else { second })
}

fn mov_reg<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_r::<W>(i.rd, cpu.x(i.rm));
    Ok(Flow::Next)
}

fn mov_imm(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_x(i.rd, i.imm);
    Ok(Flow::Next)
}

fn movk<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let kept = cpu.x(i.rd) & !(0xffff << (i.ra & 63));
    cpu.set_r::<W>(i.rd, kept | i.imm);
    Ok(Flow::Next)
}

fn lsr_imm<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_x(i.rd, cpu.r::<W>(i.rn) >> (i.imm & 63));
    Ok(Flow::Next)
}

fn lsl_imm<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_r::<W>(i.rd, cpu.x(i.rn) << (i.imm & 63));
    Ok(Flow::Next)
}

/// The field that SBFM and UBFM move, at its place, and its highest bit there.
#[inline(always)]
fn field<const W: bool>(cpu: &Cpu, i: &Insn) -> (u64, u32, u32) {
    let (r, s, width) = (i.bits(21, 16), i.bits(15, 10), if W { 64 } else { 32 });
    let value = cpu.r::<W>(i.rn);
    let mask = u64::MAX >> (63 - s);
    match s >= r {
        true => ((value & mask) >> r, 0, s - r),
        false => ((value & mask) << (width - r), width - r, width - r + s),
    }
}

fn ubfm<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (value, _, _) = field::<W>(cpu, i);
    cpu.set_r::<W>(i.rd, value);
    Ok(Flow::Next)
}

fn sbfm<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (value, _, top) = field::<W>(cpu, i);
    let up = 63 - top;
    cpu.set_r::<W>(i.rd, ((value << up) as i64 >> up) as u64);
    Ok(Flow::Next)
}

fn bfm<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (value, low, top) = field::<W>(cpu, i);
    let mask = (u64::MAX >> (63 - top)) & (u64::MAX << low);
    cpu.set_r::<W>(i.rd, (cpu.x(i.rd) & !mask) | (value & mask));
    Ok(Flow::Next)
}

fn extr<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let by = i.bits(15, 10);
    let (high, low) = (cpu.r::<W>(i.rn), cpu.r::<W>(i.rm));
    let width = if W { 64 } else { 32 };
    let result = if by == 0 { low } else { low >> by | high << (width - by) };
    cpu.set_r::<W>(i.rd, result);
    Ok(Flow::Next)
}

fn add_plain<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_r::<W>(i.rd, cpu.x(i.rn).wrapping_add(cpu.x(i.rm)));
    Ok(Flow::Next)
}

fn sub_plain<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_r::<W>(i.rd, cpu.x(i.rn).wrapping_sub(cpu.x(i.rm)));
    Ok(Flow::Next)
}

fn subs_plain<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (result, flags) = add_flags::<W>(cpu.r::<W>(i.rn), !cpu.x(i.rm), true);
    cpu.s.pstate.nzcv = flags;
    cpu.set_x(i.rd, result);
    Ok(Flow::Next)
}

#[inline(always)]
fn add<const SUB: bool, const FLAGS: bool, const W: bool>(cpu: &mut Cpu, rd: u8, a: u64, b: u64) -> Done {
    let (result, flags) = add_flags::<W>(a, if SUB { !b } else { b }, SUB);
    if FLAGS {
        cpu.s.pstate.nzcv = flags;
    }
    cpu.set_x(rd, result);
    Ok(Flow::Next)
}

fn add_reg<const SUB: bool, const FLAGS: bool, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let second = shifted::<W>(cpu.x(i.rm), i.bits(23, 22), i.bits(15, 10));
    add::<SUB, FLAGS, W>(cpu, i.rd, cpu.r::<W>(i.rn), second)
}

/// A register extended by its option and shifted.
pub(super) fn extended(value: u64, option: u32, by: u32) -> u64 {
    let value = match option {
        0 => u64::from(value as u8),
        1 => u64::from(value as u16),
        2 => u64::from(value as u32),
        4 => value as i8 as u64,
        5 => value as i16 as u64,
        6 => value as i32 as u64,
        _ => value,
    };
    value << by
}

fn add_ext<const SUB: bool, const FLAGS: bool, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let second = extended(cpu.x(i.rm), i.bits(15, 13), i.bits(12, 10));
    add::<SUB, FLAGS, W>(cpu, i.rd, cpu.r::<W>(i.rn), second)
}

fn adc<const SUB: bool, const FLAGS: bool, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let second = if SUB { !cpu.x(i.rm) } else { cpu.x(i.rm) };
    let carry = cpu.s.pstate.nzcv & C != 0;
    let (result, flags) = add_flags::<W>(cpu.r::<W>(i.rn), second, carry);
    if FLAGS {
        cpu.s.pstate.nzcv = flags;
    }
    cpu.set_x(i.rd, result);
    Ok(Flow::Next)
}

/// Whether condition `code` holds.
#[inline(always)]
pub(super) fn holds(nzcv: u32, code: u32) -> bool {
    let (n, z, c, v) = (nzcv & N != 0, nzcv & Z != 0, nzcv & C != 0, nzcv & V != 0);
    let met = match code >> 1 {
        0 => z,
        1 => c,
        2 => n,
        3 => v,
        4 => c && !z,
        5 => n == v,
        6 => n == v && !z,
        _ => return true,
    };
    met != (code & 1 != 0)
}

fn ccmp<const SUB: bool, const IMM: bool, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.s.pstate.nzcv = match holds(cpu.s.pstate.nzcv, i.bits(15, 12)) {
        true => {
            let second = if IMM { i.bits(20, 16).into() } else { cpu.x(i.rm) };
            add_flags::<W>(cpu.r::<W>(i.rn), if SUB { !second } else { second }, SUB).1
        }
        false => i.bits(3, 0) << 28,
    };
    Ok(Flow::Next)
}

fn csel<const KIND: u8, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = match holds(cpu.s.pstate.nzcv, i.bits(15, 12)) {
        true => cpu.x(i.rn),
        false => {
            let other = cpu.x(i.rm);
            match KIND {
                0 => other,
                1 => other.wrapping_add(1),
                2 => !other,
                _ => other.wrapping_neg(),
            }
        }
    };
    cpu.set_r::<W>(i.rd, value);
    Ok(Flow::Next)
}

fn udiv<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let quotient = cpu.r::<W>(i.rn).checked_div(cpu.r::<W>(i.rm)).unwrap_or(0);
    cpu.set_x(i.rd, quotient);
    Ok(Flow::Next)
}

fn sdiv<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (a, b) = (cpu.x(i.rn), cpu.x(i.rm));
    let quotient = match W {
        true if b == 0 => 0,
        true => (a as i64).wrapping_div(b as i64) as u64,
        false if b as u32 == 0 => 0,
        false => (a as i32).wrapping_div(b as i32) as u32 as u64,
    };
    cpu.set_x(i.rd, quotient);
    Ok(Flow::Next)
}

fn shift_reg<const KIND: u32, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let by = cpu.x(i.rm) as u32 & if W { 63 } else { 31 };
    cpu.set_x(i.rd, shifted::<W>(cpu.x(i.rn), KIND, by));
    Ok(Flow::Next)
}

fn crc<const POLYNOMIAL: u32>(cpu: &mut Cpu, i: &Insn) -> Done {
    let mut sum = cpu.x(i.rn) as u32;
    let bytes = cpu.x(i.rm).to_le_bytes();
    for byte in &bytes[..1 << i.bits(11, 10)] {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = sum >> 1 ^ if sum & 1 != 0 { POLYNOMIAL } else { 0 };
        }
    }
    cpu.set_x(i.rd, sum.into());
    Ok(Flow::Next)
}

fn rbit<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.x(i.rn);
    cpu.set_x(i.rd, if W { value.reverse_bits() } else { (value as u32).reverse_bits().into() });
    Ok(Flow::Next)
}

fn rev16<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.r::<W>(i.rn);
    let low = 0x00ff_00ff_00ff_00ff;
    cpu.set_x(i.rd, (value & low) << 8 | value >> 8 & low);
    Ok(Flow::Next)
}

/// REV of 32 bits, or of both halves.
fn rev32(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.x(i.rn);
    let low = u64::from((value as u32).swap_bytes());
    let high = u64::from(((value >> 32) as u32).swap_bytes()) << 32;
    cpu.set_x(i.rd, if i.bit(31) { high | low } else { low });
    Ok(Flow::Next)
}

fn rev64(cpu: &mut Cpu, i: &Insn) -> Done {
    cpu.set_x(i.rd, cpu.x(i.rn).swap_bytes());
    Ok(Flow::Next)
}

fn clz<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.x(i.rn);
    cpu.set_x(i.rd, if W { value.leading_zeros() } else { (value as u32).leading_zeros() }.into());
    Ok(Flow::Next)
}

fn cls<const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let value = cpu.x(i.rn);
    // The sign itself does not count.
    let same = match W {
        true => (((value as i64) >> 63) as u64 ^ value).leading_zeros() - 1,
        false => (((value as i32) >> 31) as u32 ^ value as u32).leading_zeros() - 1,
    };
    cpu.set_x(i.rd, same.into());
    Ok(Flow::Next)
}

fn madd<const SUB: bool, const W: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (product, sum) = (cpu.x(i.rn).wrapping_mul(cpu.x(i.rm)), cpu.x(i.ra));
    let result = if SUB { sum.wrapping_sub(product) } else { sum.wrapping_add(product) };
    cpu.set_r::<W>(i.rd, result);
    Ok(Flow::Next)
}

fn madd_long<const SIGNED: bool, const SUB: bool>(cpu: &mut Cpu, i: &Insn) -> Done {
    let wide = |value: u64| if SIGNED { value as i32 as u64 } else { u64::from(value as u32) };
    let (product, sum) = (wide(cpu.x(i.rn)).wrapping_mul(wide(cpu.x(i.rm))), cpu.x(i.ra));
    cpu.set_x(i.rd, if SUB { sum.wrapping_sub(product) } else { sum.wrapping_add(product) });
    Ok(Flow::Next)
}

fn smulh(cpu: &mut Cpu, i: &Insn) -> Done {
    let product = i128::from(cpu.x(i.rn) as i64) * i128::from(cpu.x(i.rm) as i64);
    cpu.set_x(i.rd, (product >> 64) as u64);
    Ok(Flow::Next)
}

fn umulh(cpu: &mut Cpu, i: &Insn) -> Done {
    let product = u128::from(cpu.x(i.rn)) * u128::from(cpu.x(i.rm));
    cpu.set_x(i.rd, (product >> 64) as u64);
    Ok(Flow::Next)
}
