//! BT, BTS, BTR, BTC; BSF, BSR, TZCNT, LZCNT, POPCNT; BSWAP and MOVBE.

use iced_x86::{Instruction, OpKind};
use satori_defs::x86::rflags;

use super::flag::set_cf;
use super::operand::{load, size, store, target};
use super::sized;
use crate::cpu::{Cpu, Exec};
use crate::flags::Int;
use crate::insn::{Row, rows};

/// What a bit test makes of the bits and the tested bit's mask.
trait Change {
    const WRITES: bool = true;
    fn change(bits: u64, mask: u64) -> u64;
}

struct Bt;
impl Change for Bt {
    const WRITES: bool = false;
    fn change(bits: u64, _mask: u64) -> u64 {
        bits
    }
}
struct Bts;
impl Change for Bts {
    fn change(bits: u64, mask: u64) -> u64 {
        bits | mask
    }
}
struct Btr;
impl Change for Btr {
    fn change(bits: u64, mask: u64) -> u64 {
        bits & !mask
    }
}
struct Btc;
impl Change for Btc {
    fn change(bits: u64, mask: u64) -> u64 {
        bits ^ mask
    }
}

fn bit_test<C: Change, T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let position = load::<T>(cpu, insn, 1)?;
    let mask = 1u64 << (position.into() & u64::from(T::BITS - 1));
    let old: u64 = if insn.op0_kind() == OpKind::Register {
        let old = cpu.reg(insn.op0_register());
        if C::WRITES {
            cpu.set_reg(insn.op0_register(), C::change(old, mask));
        }
        old
    } else {
        let mut addressed = *insn;
        if insn.op1_kind() == OpKind::Register {
            // The register is a signed position in a bit string that starts at the operand.
            let words = position.sext() as i64 >> T::BITS.trailing_zeros();
            let bytes = words.wrapping_mul(i64::from(T::BITS / 8)) as u64;
            let displacement = insn.memory_displacement64().wrapping_add(bytes);
            addressed.set_memory_displacement64(displacement);
        }
        if C::WRITES {
            let linear = target(cpu, &addressed, 0)?;
            let change = |old: T| T::from_u64(C::change(old.into(), mask));
            cpu.update(linear, insn.has_lock_prefix(), change)?.into()
        } else {
            load::<T>(cpu, &addressed, 0)?.into()
        }
    };
    set_cf(&mut cpu.flags, old & mask != 0);
    Ok(())
}

/// BSF and BSR: with no bit set, the destination stays.
fn scan<T: Int>(cpu: &mut Cpu, insn: &Instruction, find: fn(u64) -> u32) -> Exec<()> {
    let source = load::<T>(cpu, insn, 1)?;
    let bits: u64 = source.into();
    if bits != 0 {
        cpu.set_reg(insn.op0_register(), find(bits).into());
    }
    cpu.flags.logic(source);
    Ok(())
}

fn bsf<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    scan::<T>(cpu, insn, u64::trailing_zeros)
}

fn bsr<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    scan::<T>(cpu, insn, |bits| 63 - bits.leading_zeros())
}

/// TZCNT and LZCNT: CF tells that there was no bit, ZF that the count is zero.
fn count<T: Int>(cpu: &mut Cpu, insn: &Instruction, count: fn(u64) -> u32) -> Exec<()> {
    let bits: u64 = load::<T>(cpu, insn, 1)?.into();
    let result = T::from_u64(count(bits).into());
    cpu.set_reg(insn.op0_register(), result.into());
    cpu.flags.shifted(result, bits == 0, false);
    Ok(())
}

fn tzcnt<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    count::<T>(cpu, insn, |bits| bits.trailing_zeros().min(T::BITS))
}

fn lzcnt<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    count::<T>(cpu, insn, |bits| bits.leading_zeros() - (64 - T::BITS))
}

fn popcnt<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let bits: u64 = load::<T>(cpu, insn, 1)?.into();
    cpu.set_reg(insn.op0_register(), bits.count_ones().into());
    cpu.flags.set_bits(if bits == 0 { rflags::ZF } else { 0 });
    Ok(())
}

fn swapped<T: Int>(value: T) -> T {
    T::from_u64(value.into().swap_bytes() >> (64 - T::BITS))
}

/// BSWAP. Of a 16-bit register it is undefined and gives 0, as on every known processor.
fn bswap<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let register = insn.op0_register();
    let value = if T::BITS == 16 { T::from_u64(0) } else { swapped(T::from_u64(cpu.reg(register))) };
    cpu.set_reg(register, value.into());
    Ok(())
}

fn movbe<T: Int>(cpu: &mut Cpu, insn: &Instruction) -> Exec<()> {
    let value = load::<T>(cpu, insn, 1)?;
    store(cpu, insn, 0, swapped(value))
}

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Bt => sized!(size(insn, 0), bit_test, Bt),
    Bts => sized!(size(insn, 0), bit_test, Bts),
    Btr => sized!(size(insn, 0), bit_test, Btr),
    Btc => sized!(size(insn, 0), bit_test, Btc),
    Bsf => sized!(size(insn, 0), bsf),
    Bsr => sized!(size(insn, 0), bsr),
    Tzcnt => sized!(size(insn, 0), tzcnt),
    Lzcnt => sized!(size(insn, 0), lzcnt),
    Popcnt => sized!(size(insn, 0), popcnt),
    Bswap => sized!(size(insn, 0), bswap),
    Movbe => sized!(size(insn, 0), movbe),
});
