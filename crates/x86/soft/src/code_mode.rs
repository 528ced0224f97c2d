//! What beside its address tells code apart: one word, in which an address leaves its bits free.
//!
//! Code is decoded, and translated, for the word that it is executed under ([`Cpu::code_mode`]), so neither asks at run time
//! what the word says. [`Cpu::mode_changed`] makes it anew; who keeps something that depends on it compares.

use satori_defs::fpu::{fcw, mxcsr, xsave};
use satori_defs::x86::{cr0, cr4, rflags};
use satori_state::{CpuState, Segment, seg};

use crate::cpu::Cpu;

/// Code at privilege level 3.
pub const USER: u64 = 1 << 52;
/// 64-bit code.
pub const BITS_64: u64 = 1 << 53;
/// 16-bit code.
pub const BITS_16: u64 = 1 << 54;
/// RFLAGS.AC at privilege levels 0 to 2.
pub const AC: u64 = 1 << 55;
/// Code at privilege levels 1 and 2.
pub const LOW: u64 = 1 << 56;
/// Instructions of SSE may be executed by the host's own: they exist, and MXCSR masks all exceptions.
pub const SSE: u64 = 1 << 57;
/// The same for AVX.
pub const AVX: u64 = 1 << 58;
/// The same for the x87 and MMX, whose control word masks the exceptions.
pub const X87: u64 = 1 << 59;
/// The bits that are about vectors and the x87.
pub const VECTORS: u64 = SSE | AVX | X87;
/// 32-bit code whose segment of code is flat.
pub const FLAT_32: u64 = flat(seg::CS);
/// All that is about segments.
pub const SEGMENTS: u64 = 0x3f << 32;

/// The bit for segment register `i`: its segment is flat. Linear addresses of 32-bit code do not reach so far.
pub const fn flat(i: usize) -> u64 {
    1 << (32 + i)
}

/// Bits of a segment's type, and S: what tells data from code, which way it expands, and whether it can be written.
const TYPE: u32 = 0b1_1110;
const DATA: u32 = 0b1_0010;
const CODE: u32 = 0b1_1000;

/// Whether all of its 4 GiB can be read and written.
fn full(segment: &Segment) -> bool {
    !segment.unusable() && segment.limit == u32::MAX && segment.rights & TYPE == DATA
}

/// What follows from the segments of `state`; nothing in 64-bit code, and in code whose segment is not flat.
/// FS and GS may have bases.
#[inline(always)]
pub fn of_segments(state: &CpuState) -> u64 {
    if state.code64() {
        return 0;
    }
    let cs = &state.seg[seg::CS];
    let protected = state.cr0 & cr0::PE != 0 && state.rflags & rflags::VM == 0;
    let code = cs.rights & TYPE & CODE == CODE && cs.big() && cs.base == 0 && cs.limit == u32::MAX;
    if !protected || !code {
        return 0;
    }
    let bit = |i: usize, holds: bool| if holds { flat(i) } else { 0 };
    let [es, _, ss, ds, fs, gs] = &state.seg;
    FLAT_32
        | bit(seg::ES, full(es) && es.base == 0)
        | bit(seg::SS, full(ss) && ss.base == 0 && ss.big())
        | bit(seg::DS, full(ds) && ds.base == 0)
        | bit(seg::FS, full(fs))
        | bit(seg::GS, full(gs))
}

/// What follows from the control registers and masks that instructions on vectors and the x87 depend on.
#[inline(always)]
pub fn of_vectors(state: &CpuState) -> u64 {
    if state.cr0 & cr0::TS != 0 {
        return 0;
    }
    let masked = state.fpu.mxcsr & mxcsr::MASKS == mxcsr::MASKS;
    let sse = state.cr0 & cr0::EM == 0 && state.cr4 & cr4::OSFXSR != 0;
    let enabled = xsave::SSE | xsave::AVX;
    let avx = state.cr4 & cr4::OSXSAVE != 0 && state.xcr0 & enabled == enabled;
    let x87 = state.cr0 & cr0::EM == 0 && state.fpu.fcw & fcw::MASKS == fcw::MASKS && host_saves();
    let bit = |holds, bit| if holds { bit } else { 0 };
    bit(masked && sse, SSE) | bit(masked && avx, AVX) | bit(x87, X87)
}

/// Whether the host can load the x87's registers by themselves.
#[inline(always)]
fn host_saves() -> bool {
    is_x86_feature_detected!("xsave")
}

impl Cpu {
    /// MXCSR or the x87's control word was loaded, and may have other masks.
    pub(crate) fn masks_loaded(&mut self) {
        if of_vectors(&self.state) != self.code_mode & VECTORS {
            self.mode_changed();
        }
    }
}
