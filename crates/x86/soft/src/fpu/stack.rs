//! The register stack and the words that describe it, as plain data.

use satori_defs::fpu::{fcw, fsw};
use satori_state::FpuState;

/// The 80 bits of a register.
pub const REGISTER: u128 = (1 << 80) - 1;

/// TOP: the physical register that is ST(0).
pub fn top(fpu: &FpuState) -> usize {
    usize::from((fpu.fsw & fsw::TOP) >> fsw::TOP_SHIFT)
}

/// Sets TOP while every physical register keeps its contents.
pub fn set_top(fpu: &mut FpuState, new: usize) {
    let turn = new.wrapping_sub(top(fpu)) & 7;
    fpu.st.rotate_left(turn);
    fpu.fsw = fpu.fsw & !fsw::TOP | ((new & 7) as u16) << fsw::TOP_SHIFT;
}

/// Whether an unmasked exception waits to be reported.
pub fn is_pending(fpu: &FpuState) -> bool {
    fpu.fsw & fsw::FLAGS & !fpu.fcw != 0
}

/// Sets control and status word; ES and B follow from the others.
pub fn set_words(fpu: &mut FpuState, control: u16, status: u16) {
    fpu.fcw = control & fcw::WRITABLE | fcw::FIXED;
    fpu.fsw = status & !(fsw::ES | fsw::B);
    if is_pending(fpu) {
        fpu.fsw |= fsw::ES | fsw::B;
    }
}

/// The full tag word: valid 0, zero 1, special 2, empty 3, two bits a physical register.
pub(super) fn tag_word(fpu: &FpuState) -> u16 {
    (0..8usize).fold(0, |word, physical| {
        let value = fpu.st[physical.wrapping_sub(top(fpu)) & 7];
        let tag = if fpu.ftw >> physical & 1 == 0 { 3 } else { tag(value) };
        word | tag << (2 * physical)
    })
}

fn tag(value: u128) -> u16 {
    let exponent = (value >> 64) as u16 & 0x7fff;
    let significand = value as u64;
    match exponent {
        0 if significand == 0 => 1,
        0 | 0x7fff => 2,
        _ if significand >> 63 == 0 => 2,
        _ => 0,
    }
}

/// The abridged tag byte of a full tag word.
pub(super) fn abridge(word: u16) -> u8 {
    (0..8).fold(0, |byte, i| byte | u8::from(word >> (2 * i) & 3 != 3) << i)
}

/// FNINIT: the registers keep their contents but are empty.
pub(super) fn init(fpu: &mut FpuState) {
    set_top(fpu, 0);
    set_words(fpu, fcw::INIT, 0);
    fpu.ftw = 0;
    fpu.fop = 0;
    fpu.fip = 0;
    fpu.fdp = 0;
}
