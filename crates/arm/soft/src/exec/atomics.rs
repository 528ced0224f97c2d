//! Exclusive and ordered accesses, and the atomic instructions of LSE.
//!
//! LDXR notes address, size and value; STXR exchanges if the value is still the same. A value that went and came back passes, as on
//! other emulators; what matters to a lock is the value.

use satori_arm_isa::Op;

use super::memory::{base, check_aligned, read_sized, write_sized};
use super::{Done, sink, zero};
use crate::code::{Handler, Insn};
use crate::cpu::{Cpu, Exclusive, Flow};
use crate::host::HostPage;

pub(super) fn handler(op: Op, i: &mut Insn) -> Option<Handler> {
    let rd = (i.raw & 31) as u8;
    let (rs, rn) = ((i.raw >> 16 & 31) as u8, (i.raw >> 5 & 31) as u8);
    i.imm = i.bits(31, 30).into();
    let found: Handler = match op {
        Op::Stxr | Op::Stlxr => stxr,
        Op::Ldxr | Op::Ldaxr => ldxr,
        Op::Stxp | Op::Stlxp => stxp,
        Op::Ldxp | Op::Ldaxp => ldxp,
        Op::Stllr | Op::Stlr => stlr,
        Op::Ldlar | Op::Ldar | Op::Ldapr => ldar,
        Op::Cas => cas,
        Op::Casp => casp,
        Op::Ldadd => rmw::<0>,
        Op::Ldclr => rmw::<1>,
        Op::Ldeor => rmw::<2>,
        Op::Ldset => rmw::<3>,
        Op::Ldsmax => rmw::<4>,
        Op::Ldsmin => rmw::<5>,
        Op::Ldumax => rmw::<6>,
        Op::Ldumin => rmw::<7>,
        Op::Swp => rmw::<8>,
        _ => return None,
    };
    i.rn = rn;
    match op {
        // Status goes to Rs; data come from Rt and Rt2.
        Op::Stxr | Op::Stlxr | Op::Stxp | Op::Stlxp => (i.rm, i.rd) = (sink(rs), zero(rd)),
        Op::Stllr | Op::Stlr => i.rd = zero(rd),
        Op::Ldxp | Op::Ldaxp => i.ra = sink((i.raw >> 10 & 31) as u8),
        Op::Cas => (i.rm, i.rd) = (rs, zero(rd)),
        Op::Casp => (i.rm, i.rd) = (rs, rd),
        // Of the atomic ones Rt is written, Rs read.
        _ => {}
    }
    Some(found)
}

/// The low `1 << size` bytes.
const fn low(value: u64, size: u32) -> u64 {
    if size == 3 { value } else { value & ((1 << (8 << size)) - 1) }
}

fn ldxr(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, size) = (base(cpu, i)?, i.imm as u32);
    check_aligned(cpu, address, size, false)?;
    let value = read_sized(cpu, cpu.mode, address, size)?;
    cpu.exclusive = Exclusive { address, size: 1 << size, value: value.into() };
    cpu.set_x(i.rd, value);
    Ok(Flow::Next)
}

fn ldxp(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, size) = (base(cpu, i)?, i.imm as u32);
    check_aligned(cpu, address, size + 1, false)?;
    let (first, second, value) = if size == 3 {
        let value = cpu.read16(cpu.mode, address)?;
        (value as u64, (value >> 64) as u64, value)
    } else {
        let value = cpu.read::<8>(cpu.mode, address)?;
        (value & 0xffff_ffff, value >> 32, value.into())
    };
    cpu.exclusive = Exclusive { address, size: 2 << size, value };
    cpu.set_x(i.rd, first);
    cpu.set_x(i.ra, second);
    Ok(Flow::Next)
}

fn exchange(page: HostPage, offset: usize, size: u32, old: u64, new: u64) -> Result<u64, u64> {
    match size {
        0 => page.compare_exchange::<1>(offset, old, new),
        1 => page.compare_exchange::<2>(offset, old, new),
        2 => page.compare_exchange::<4>(offset, old, new),
        _ => page.compare_exchange::<8>(offset, old, new),
    }
}

fn stxr(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, size) = (base(cpu, i)?, i.imm as u32);
    check_aligned(cpu, address, size, true)?;
    let noted = std::mem::take(&mut cpu.exclusive);
    let mut failed = 1;
    if noted.is(address, 1 << size) {
        let page = cpu.atomic(cpu.mode, address, 1 << size)?;
        let new = low(cpu.x(i.rd), size);
        let done = exchange(page, (address & 0xfff) as usize, size, noted.value as u64, new);
        failed = done.is_err().into();
    }
    cpu.set_x(i.rm, failed);
    Ok(Flow::Next)
}

fn stxp(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, size) = (base(cpu, i)?, i.imm as u32);
    check_aligned(cpu, address, size + 1, true)?;
    let noted = std::mem::take(&mut cpu.exclusive);
    let mut failed = 1;
    if noted.is(address, 2 << size) {
        let page = cpu.atomic(cpu.mode, address, 2 << size)?;
        let (first, second, offset) = (cpu.x(i.rd), cpu.x(i.ra), (address & 0xfff) as usize);
        failed = if size == 3 {
            let new = u128::from(first) | u128::from(second) << 64;
            page.compare_exchange_pair(offset, noted.value, new).is_err().into()
        } else {
            let new = first & 0xffff_ffff | second << 32;
            page.compare_exchange::<8>(offset, noted.value as u64, new).is_err().into()
        };
    }
    cpu.set_x(i.rm, failed);
    Ok(Flow::Next)
}

fn stlr(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, size) = (base(cpu, i)?, i.imm as u32);
    check_aligned(cpu, address, size, true)?;
    write_sized(cpu, cpu.mode, address, size, cpu.x(i.rd))?;
    // A later LDAR does not pass it.
    Cpu::full_barrier();
    Ok(Flow::Next)
}

fn ldar(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, size) = (base(cpu, i)?, i.imm as u32);
    check_aligned(cpu, address, size, false)?;
    let value = read_sized(cpu, cpu.mode, address, size)?;
    cpu.set_x(i.rd, value);
    Ok(Flow::Next)
}

fn cas(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, size) = (base(cpu, i)?, i.imm as u32);
    let page = cpu.update(cpu.mode, address, 1 << size)?;
    let (old, new) = (low(cpu.x(zero(i.rm)), size), low(cpu.x(i.rd), size));
    let (Ok(was) | Err(was)) = exchange(page, (address & 0xfff) as usize, size, old, new);
    cpu.set_x(sink(i.rm), was);
    Ok(Flow::Next)
}

fn casp(cpu: &mut Cpu, i: &Insn) -> Done {
    let wide = i.bit(30);
    let address = base(cpu, i)?;
    let page = cpu.update(cpu.mode, address, if wide { 16 } else { 8 })?;
    let offset = (address & 0xfff) as usize;
    let get = |cpu: &Cpu, register: u8| (cpu.x(zero(register)), cpu.x(zero(register + 1)));
    let ((old0, old1), (new0, new1)) = (get(cpu, i.rm), get(cpu, i.rd));
    let (was0, was1) = if wide {
        let pair = |low: u64, high: u64| u128::from(low) | u128::from(high) << 64;
        let was = page.compare_exchange_pair(offset, pair(old0, old1), pair(new0, new1));
        let was = was.map_or_else(|was| was, |()| pair(old0, old1));
        (was as u64, (was >> 64) as u64)
    } else {
        let pair = |low: u64, high: u64| low & 0xffff_ffff | high << 32;
        let (Ok(was) | Err(was)) = page.compare_exchange::<8>(offset, pair(old0, old1), pair(new0, new1));
        (was & 0xffff_ffff, was >> 32)
    };
    cpu.set_x(sink(i.rm), was0);
    cpu.set_x(sink(i.rm + 1), was1);
    Ok(Flow::Next)
}

/// What an atomic instruction makes of the value in memory.
fn operate<const KIND: u8>(old: u64, operand: u64, size: u32) -> u64 {
    let up = 64 - (8 << size);
    let signed = |value: u64| (value << up) as i64;
    let unsigned = |value: u64| value << up;
    let choose = |first: bool| if first { old } else { operand };
    match KIND {
        0 => old.wrapping_add(operand),
        1 => old & !operand,
        2 => old ^ operand,
        3 => old | operand,
        4 => choose(signed(old) > signed(operand)),
        5 => choose(signed(old) < signed(operand)),
        6 => choose(unsigned(old) > unsigned(operand)),
        7 => choose(unsigned(old) < unsigned(operand)),
        _ => operand,
    }
}

fn rmw<const KIND: u8>(cpu: &mut Cpu, i: &Insn) -> Done {
    let (address, size) = (base(cpu, i)?, i.imm as u32);
    let page = cpu.update(cpu.mode, address, 1 << size)?;
    let offset = (address & 0xfff) as usize;
    let operand = cpu.x(i.rm);
    let mut old = read_page(page, offset, size);
    loop {
        match exchange(page, offset, size, old, low(operate::<KIND>(old, operand, size), size)) {
            Ok(_) => break,
            Err(now) => old = now,
        }
    }
    cpu.set_x(i.rd, old);
    Ok(Flow::Next)
}

fn read_page(page: HostPage, offset: usize, size: u32) -> u64 {
    match size {
        0 => page.read::<1>(offset),
        1 => page.read::<2>(offset),
        2 => page.read::<4>(offset),
        _ => page.read::<8>(offset),
    }
}
