//! XSAVE, XSAVEOPT, XSAVEC, XSAVES, XRSTOR and XRSTORS (SDM volume 1, chapter 13).
//!
//! A component is known by its bit: x87 and SSE state are in the legacy region, the others in the
//! extended one, at fixed places or, compacted, one behind the other. The init optimisation is the
//! manual's: a component is in use unless it has its initial values. There is no modified
//! optimisation, which is a processor's choice: XSAVEOPT and XSAVES write all that is in use.

use std::ops::Range;

use iced_x86::{Code, Instruction};
use satori_cpuid::Feature;
use satori_defs::fpu::xsave::{
    AVX, COMPACTED, COMPONENTS, EXTENDED, HEADER, HEADER_SIZE, PKRU, SIZE, SSE, X87, XCOMP_BV, XSTATE_BV,
};
use satori_defs::fpu::{fcw, fxsave, mxcsr};
use satori_defs::x86::{cr0, cr4, vector};
use satori_engine::Exception;
use satori_state::{FpuState, reg};

use super::legacy;
use super::operand::{load_bytes, store_run};
use crate::cpu::{Cpu, Exec};
use crate::insn::{Row, rows};

/// Alignment of an area.
const ALIGNMENT: u64 = 64;

/// What is implemented here.
pub(super) const ROWS: &[Row] = rows!(insn {
    Xsave | Xsave64 => |cpu, insn| save(cpu, insn, Form::STANDARD),
    Xsaveopt | Xsaveopt64 => |cpu, insn| save(cpu, insn, Form::OPTIMISED),
    Xsavec | Xsavec64 => |cpu, insn| save(cpu, insn, Form::COMPACTED),
    Xsaves | Xsaves64 => |cpu, insn| save(cpu, insn, Form::SUPERVISOR),
    Xrstor | Xrstor64 => |cpu, insn| restore(cpu, insn, false),
    Xrstors | Xrstors64 => |cpu, insn| restore(cpu, insn, true),
});

/// What the saving instructions differ in.
#[derive(Clone, Copy)]
struct Form {
    /// Components that have their initial values are not written.
    init: bool,
    compacted: bool,
    supervisor: bool,
}

impl Form {
    const STANDARD: Form = Form { init: false, compacted: false, supervisor: false };
    const OPTIMISED: Form = Form { init: true, ..Form::STANDARD };
    const COMPACTED: Form = Form { compacted: true, ..Form::OPTIMISED };
    const SUPERVISOR: Form = Form { supervisor: true, ..Form::COMPACTED };
}

/// With REX.W the x87 pointers have 64 bits.
fn wide(insn: &Instruction) -> bool {
    use Code::*;
    matches!(
        insn.code(),
        Xsave64_mem | Xsaveopt64_mem | Xsavec64_mem | Xsaves64_mem | Xrstor64_mem | Xrstors64_mem
    )
}

/// Whether the instruction may execute, and the components that it works on: those that are asked
/// for in EDX:EAX, of those that the operating system manages.
fn requested(cpu: &mut Cpu, supervisor: bool) -> Exec<(u64, u64)> {
    if cpu.state.cr4 & cr4::OSXSAVE == 0 {
        return Err(cpu.raise(Exception::ud()));
    }
    if supervisor {
        cpu.require_supervisor()?;
    }
    if cpu.state.cr0 & cr0::TS != 0 {
        return Err(cpu.raise(Exception::new(vector::NM)));
    }
    let managed = cpu.state.xcr0 | if supervisor { cpu.state.xss } else { 0 };
    let asked = cpu.state.gpr[reg::RDX] << 32 | cpu.state.gpr[reg::RAX] & 0xffff_ffff;
    Ok((managed, managed & asked))
}

/// The linear address of the area, of which `len` bytes are used.
fn area(cpu: &mut Cpu, insn: &Instruction, len: usize, write: bool) -> Exec<u64> {
    let (segment, offset) = (insn.memory_segment().number(), cpu.offset(insn));
    let linear = cpu.segment_linear(segment, offset, len as u64, write)?;
    if linear & (ALIGNMENT - 1) == 0 { Ok(linear) } else { Err(cpu.raise(Exception::gp(0))) }
}

/// Where the components of `present` stand in the extended region: bit and place.
fn places(present: u64, compacted: bool) -> impl Iterator<Item = (u64, Range<usize>)> {
    let mut next = EXTENDED;
    COMPONENTS.iter().filter(move |component| present & component.bit != 0).map(move |component| {
        let aligned = if component.aligned { next.next_multiple_of(ALIGNMENT as usize) } else { next };
        let at = if compacted { aligned } else { component.offset };
        next = at + component.size;
        (component.bit, at..next)
    })
}

/// Where the area's last component of `present` ends.
fn end(present: u64, compacted: bool) -> usize {
    places(present, compacted).map(|(_, place)| place.end).max().unwrap_or(EXTENDED)
}

/// XINUSE: the components that do not have their initial values.
pub(super) fn in_use(cpu: &Cpu) -> u64 {
    let state = &cpu.state.fpu;
    let words = (state.fcw, state.fsw, state.ftw, state.fop) != (fcw::INIT, 0, 0, 0);
    let x87 = words || (state.fip, state.fdp) != (0, 0) || state.st != [0; 8];
    let bit = |bit: u64, on: bool| if on { bit } else { 0 };
    bit(X87, x87)
        | bit(SSE, state.ymm.iter().any(|ymm| ymm.low != 0))
        | bit(AVX, state.ymm.iter().any(|ymm| ymm.high != 0))
        | bit(PKRU, cpu.state.pkru != 0)
}

/// XINUSE as XGETBV, XSAVEC and XSAVES see it: MXCSR counts.
pub(crate) fn in_use_with_mxcsr(cpu: &Cpu) -> u64 {
    in_use(cpu) | if cpu.state.fpu.mxcsr == mxcsr::RESET { 0 } else { SSE }
}

/// Pieces of an area that are written.
struct Pieces {
    area: [u8; SIZE],
    ranges: [Range<usize>; MAX_PIECES],
    count: usize,
}

/// Header, x87 in two pieces, MXCSR, XMM, and the extended components.
const MAX_PIECES: usize = 5 + COMPONENTS.len();

impl Pieces {
    fn add(&mut self, range: Range<usize>) {
        self.ranges[self.count] = range;
        self.count += 1;
    }

    /// Writes every piece, or none.
    fn store(&self, cpu: &mut Cpu, linear: u64) -> Exec<()> {
        let ranges = &self.ranges[..self.count];
        for range in ranges {
            cpu.probe_write(linear.wrapping_add(range.start as u64), range.len() as u64)?;
        }
        for range in ranges {
            let at = linear.wrapping_add(range.start as u64);
            // All pieces are made of aligned quadwords.
            let words = self.area[range.clone()].as_chunks::<8>().0;
            if store_run(cpu, at, words) {
                continue;
            }
            for (i, word) in words.iter().enumerate() {
                cpu.write(at.wrapping_add(8 * i as u64), u64::from_le_bytes(*word))?;
            }
        }
        Ok(())
    }
}

fn save(cpu: &mut Cpu, insn: &Instruction, form: Form) -> Exec<()> {
    let (_, requested) = requested(cpu, form.supervisor)?;
    let linear = area(cpu, insn, end(requested, form.compacted), true)?;
    let in_use = if form.compacted { in_use_with_mxcsr(cpu) } else { in_use(cpu) };
    let saved = if form.init { requested & in_use } else { requested };

    let mut pieces = Pieces { area: [0; SIZE], ranges: std::array::from_fn(|_| 0..0), count: 0 };
    let state = &cpu.state.fpu;
    if saved & X87 != 0 {
        legacy::put_x87(&mut pieces.area, state, wide(insn));
        pieces.add(0..fxsave::MXCSR);
        pieces.add(fxsave::ST0..fxsave::XMM0);
    }
    // The standard format keeps MXCSR for AVX too, and whether or not it is in use.
    let mxcsr = if form.compacted { saved & SSE } else { requested & (SSE | AVX) };
    if mxcsr != 0 {
        legacy::put_mxcsr(&mut pieces.area, state);
        pieces.add(fxsave::MXCSR..fxsave::ST0);
    }
    if saved & SSE != 0 {
        let end = fxsave::XMM0 + 16 * legacy::registers(cpu);
        legacy::put_xmm(&mut pieces.area[..end], &cpu.state.fpu);
        pieces.add(fxsave::XMM0..end);
    }
    for (bit, place) in places(requested, form.compacted).filter(|(bit, _)| saved & bit != 0) {
        // Outside 64-bit code YMM8 to YMM15 stay out (SDM volume 1, 13.5.3).
        let size = if bit == AVX { 16 * legacy::registers(cpu) } else { place.len() };
        let place = place.start..place.start + size;
        put_extended(cpu, bit, &mut pieces.area[place.clone()]);
        pieces.add(place);
    }
    let held = if form.compacted {
        pieces.area[XCOMP_BV..XCOMP_BV + 8].copy_from_slice(&(requested | COMPACTED).to_le_bytes());
        pieces.add(XSTATE_BV..XCOMP_BV + 8);
        requested & in_use
    } else {
        let old: u64 = cpu.read(linear.wrapping_add(XSTATE_BV as u64))?;
        pieces.add(XSTATE_BV..XCOMP_BV);
        old & !requested | requested & in_use
    };
    pieces.area[XSTATE_BV..XCOMP_BV].copy_from_slice(&held.to_le_bytes());
    pieces.store(cpu, linear)
}

/// Stores a component of the extended region.
fn put_extended(cpu: &Cpu, bit: u64, place: &mut [u8]) {
    match bit {
        AVX => {
            for (place, value) in place.as_chunks_mut().0.iter_mut().zip(cpu.state.fpu.ymm) {
                *place = value.high.to_le_bytes();
            }
        }
        _ => place[..4].copy_from_slice(&cpu.state.pkru.to_le_bytes()),
    }
}

/// Loads a component of the extended region; nothing stands for its initial values.
fn take_extended(cpu: &mut Cpu, bit: u64, place: Option<&[u8]>) {
    match bit {
        AVX => {
            let values = place.map_or(&[][..], |place| place.as_chunks().0);
            let registers = legacy::registers(cpu);
            for (i, value) in cpu.state.fpu.ymm[..registers].iter_mut().enumerate() {
                value.high = values.get(i).map_or(0, |bytes| u128::from_le_bytes(*bytes));
            }
        }
        _ => {
            let value =
                place.and_then(|place| place.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes));
            cpu.set_pkru(value);
        }
    }
}

/// A header that was found to be sound.
struct Header {
    compacted: bool,
    /// What the area holds.
    held: u64,
    /// What has a place in it.
    placed: u64,
}

/// Reads the header, and refuses what is reserved in it (SDM volume 1, 13.8 and 13.12).
fn header(cpu: &mut Cpu, linear: u64, managed: u64, supervisor: bool) -> Exec<Header> {
    let mut bytes = [0; HEADER_SIZE];
    load_bytes(cpu, linear.wrapping_add(HEADER as u64), &mut bytes)?;
    let words = bytes.as_chunks::<8>().0;
    let (held, placed) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
    let compacted = placed & COMPACTED != 0;
    let zero = |words: &[[u8; 8]]| words.iter().all(|word| *word == [0; 8]);
    let sound = if compacted {
        (supervisor || cpu.offers(Feature::Xsavec))
            && placed & !COMPACTED & !managed == 0
            && held & (!placed | COMPACTED) == 0
            && zero(&words[2..])
    } else {
        !supervisor && held & !managed == 0 && zero(&words[1..3])
    };
    if sound { Ok(Header { compacted, held, placed }) } else { Err(cpu.raise(Exception::gp(0))) }
}

fn restore(cpu: &mut Cpu, insn: &Instruction, supervisor: bool) -> Exec<()> {
    let (managed, requested) = requested(cpu, supervisor)?;
    let linear = area(cpu, insn, EXTENDED, false)?;
    let Header { compacted, held, placed } = header(cpu, linear, managed, supervisor)?;
    let loaded = requested & held;
    // Where a component stands follows from all that have a place.
    let placed = if compacted { placed } else { requested };
    let parts = || places(placed, compacted).filter(move |(bit, _)| loaded & bit != 0);
    area(cpu, insn, parts().map(|(_, place)| place.end).max().unwrap_or(EXTENDED), false)?;

    let mut bytes = [0; SIZE];
    let mut load = |cpu: &mut Cpu, range: Range<usize>| {
        load_bytes(cpu, linear.wrapping_add(range.start as u64), &mut bytes[range])
    };
    let xmm = fxsave::XMM0..fxsave::XMM0 + 16 * legacy::registers(cpu);
    // The standard format loads MXCSR for AVX too, and whether or not the area holds it.
    let mxcsr = if compacted { loaded & SSE } else { requested & (SSE | AVX) } != 0;
    if loaded & X87 != 0 {
        load(cpu, 0..fxsave::MXCSR)?;
        load(cpu, fxsave::ST0..fxsave::XMM0)?;
    }
    if mxcsr {
        load(cpu, fxsave::MXCSR..fxsave::MXCSR_MASK)?;
    }
    if loaded & SSE != 0 {
        load(cpu, xmm.clone())?;
    }
    for (_, place) in parts() {
        load(cpu, place)?;
    }
    if mxcsr {
        legacy::check_mxcsr(cpu, legacy::mxcsr_of(&bytes))?;
        cpu.state.fpu.mxcsr = legacy::mxcsr_of(&bytes);
    } else if compacted && requested & SSE != 0 {
        cpu.state.fpu.mxcsr = mxcsr::RESET;
    }

    let state = &mut cpu.state.fpu;
    if loaded & X87 != 0 {
        legacy::take_x87(&bytes, state, wide(insn));
    } else if requested & X87 != 0 {
        let FpuState { fcw, fsw, ftw, fop, fip, fdp, st, .. } = FpuState::default();
        *state = FpuState { fcw, fsw, ftw, fop, fip, fdp, st, ..state.clone() };
    }
    if requested & SSE != 0 {
        // What was not loaded is zero.
        legacy::take_xmm(&bytes[..xmm.end], state);
    }
    for component in COMPONENTS.iter().filter(|component| requested & component.bit != 0) {
        let place = parts().find(|(bit, _)| *bit == component.bit);
        take_extended(cpu, component.bit, place.map(|(_, place)| &bytes[place]));
    }
    cpu.masks_loaded();
    Ok(())
}

#[cfg(test)]
mod native_tests;
#[cfg(test)]
mod tests;
