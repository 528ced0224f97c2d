//! What beside its address tells code apart: one word, in which an address leaves its bits free.
//!
//! Code is decoded, and translated, for the word that it is executed under ([`Derived::code_mode`](crate::cpu::Derived::code_mode)), so neither asks at run time
//! what the word says. [`Cpu::mode_changed`] makes it anew; who keeps something that depends on it compares.
//!
//! ```text
//! bit  63   62   61   60  59       58    57      56 .. 39      38       37 .. 32              31 .. 0
//!      X87  two bits  AC  BITS_64  USER  NESTED  the address   BITS_16  a flat segment each   the address
//!           61: SSE   62: LOW   both: AVX
//! ```
//!
//! The highest sixteen bits of a canonical address of 48 bits repeat the one below them, and the highest seven one of 57 bits: 64-bit code has
//! these seven for its mode. Other code has addresses of 32 bits, and no address bit from 32 on: what comes
//! for such code alone has room there. A nested guest's code is decoded alike, but what is made of it accesses memory by the caches
//! of its own [`Side`].

use satori_defs::fpu::{fcw, mxcsr, xsave};
use satori_defs::x86::{cr0, cr4, rflags};
use satori_state::{CpuState, Segment, seg};

use crate::cpu::Cpu;
use crate::mmu::Side;

/// Where code is and what tells it apart: its address and the word of its mode. No two pairs that can be have the same key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CodeKey(u64);

impl CodeKey {
    /// No code has this key together with an entry: an address of 0 in 32-bit code that has nothing else.
    pub(crate) const NONE: CodeKey = CodeKey(0);

    /// The key of code at `linear`, executed in `mode`.
    #[inline(always)]
    pub const fn of(linear: u64, mode: u64) -> Self {
        CodeKey(linear ^ mode)
    }

    /// The mode, for whoever knows the address.
    #[inline(always)]
    pub const fn mode_at(self, linear: u64) -> u64 {
        self.0 ^ linear
    }

    /// The address, for whoever knows the mode.
    #[inline(always)]
    pub const fn linear_in(self, mode: u64) -> u64 {
        self.0 ^ mode
    }

    /// The same code `distance` further on, in the same half of the address space.
    #[inline(always)]
    #[must_use]
    pub const fn moved(self, distance: u64) -> Self {
        CodeKey(self.0.wrapping_add(distance))
    }

    /// The key of code at that offset of any page, for code at `linear`.
    #[inline(always)]
    #[must_use]
    pub const fn in_page_of(self, linear: u64) -> Self {
        CodeKey(self.0 ^ (linear & !0xfff))
    }

    /// How far into its page it is.
    #[inline(always)]
    pub const fn offset(self) -> u64 {
        self.0 & 0xfff
    }

    /// The low bits, of which a cache makes a place: those of the address.
    #[inline(always)]
    pub(crate) const fn low(self) -> u64 {
        self.0
    }
}

/// Code in VMX non-root operation.
pub const NESTED: u64 = 1 << 57;
/// Code at privilege level 3.
pub const USER: u64 = 1 << 58;
/// 64-bit code.
pub const BITS_64: u64 = 1 << 59;
/// RFLAGS.AC at privilege levels 0 to 2.
pub const AC: u64 = 1 << 60;
/// Instructions of SSE may be executed by the host's own: they exist, and MXCSR masks all exceptions.
pub const SSE: u64 = 1 << 61;
/// The same for AVX, and SSE beside it: all bits of this.
pub const AVX: u64 = SSE | LOW;
/// Without SSE: code at privilege levels 1 and 2, where none on vectors or the x87 is executed by the host's own.
const LOW: u64 = 1 << 62;
/// The same for the x87 and MMX, whose control word masks the exceptions.
pub const X87: u64 = 1 << 63;
/// 16-bit code.
pub const BITS_16: u64 = 1 << 38;
/// The bits that are about vectors and the x87, and tell levels 1 and 2 from 0.
pub const VECTORS: u64 = AVX | X87;
/// 32-bit code whose segment of code is flat.
pub const FLAT_32: u64 = flat(seg::CS);
/// All that is about segments.
pub const SEGMENTS: u64 = 0x3f << 32;

/// The bits of a linear address of 57 bits; those above repeat its highest.
const LINEAR: u64 = !0 >> (64 - 57);
// A word for 64-bit code leaves those to the address; other code's are beyond the 32 bits of its addresses.
const _: () = assert!((NESTED | USER | BITS_64 | AC | VECTORS) & LINEAR == 0);
const _: () = assert!((BITS_16 | SEGMENTS) & !(LINEAR ^ u32::MAX as u64) == 0 && BITS_16 & SEGMENTS == 0);

/// Whether code of `mode` is at privilege level 1 or 2.
pub const fn is_low(mode: u64) -> bool {
    mode & AVX == LOW
}

/// Whose caches code executed in `mode` uses.
#[inline(always)]
pub const fn side(mode: u64) -> Side {
    if mode & NESTED != 0 { Side::Nested } else { Side::Own }
}

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

/// What follows from the control registers and masks that instructions on vectors and the x87 depend on, and from privilege levels 1 and 2.
#[inline(always)]
pub fn of_vectors(state: &CpuState) -> u64 {
    let low = matches!(state.cpl(), 1 | 2);
    if low || state.cr0 & cr0::TS != 0 {
        return if low { LOW } else { 0 };
    }
    let masked = state.fpu.mxcsr & mxcsr::MASKS == mxcsr::MASKS;
    let sse = state.cr0 & cr0::EM == 0 && state.cr4 & cr4::OSFXSR != 0;
    let enabled = xsave::SSE | xsave::AVX;
    let avx = sse && state.cr4 & cr4::OSXSAVE != 0 && state.xcr0 & enabled == enabled;
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
        if of_vectors(&self.state) != self.derived.code_mode & VECTORS {
            self.mode_changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_57_bits_and_modes_do_not_meet() {
        let bits = [NESTED, USER, AC, LOW, SSE, X87];
        let modes = |fixed: u64| {
            (0..1 << bits.len()).map(move |set: u64| {
                let chosen = bits.iter().enumerate().filter(move |(at, _)| set >> at & 1 != 0);
                chosen.fold(fixed, |mode, (_, bit)| mode | bit)
            })
        };
        let far = [0, 0x1234, 0x7fff_f000, u64::MAX >> 17, u64::MAX >> 8, !0 << 56, !0 << 47, !0xfff];
        let near = [0, 0x1234, 0x7fff_f000, 0xffff_ffff];
        let wide = far.into_iter().flat_map(|linear| modes(BITS_64).map(move |mode| (linear, mode)));
        let narrow = [0, BITS_16, FLAT_32, SEGMENTS].into_iter().flat_map(|fixed| {
            near.into_iter().flat_map(move |linear| modes(fixed).map(move |mode| (linear, mode)))
        });
        let all: Vec<(u64, u64)> = wide.chain(narrow).collect();
        let keys: std::collections::HashSet<_> =
            all.iter().map(|&(linear, mode)| CodeKey::of(linear, mode)).collect();
        assert_eq!(keys.len(), all.len());
        let (linear, mode) = (0xff00_1234_5678_9abc, BITS_64 | AC);
        let key = CodeKey::of(linear, mode);
        assert_eq!((key.mode_at(linear), key.linear_in(mode)), (mode, linear));
        assert_eq!(key.moved(0x5000), CodeKey::of(linear + 0x5000, mode));
        assert_eq!(key.in_page_of(linear), CodeKey::of(0xabc, mode));
    }
}
