//! The legacy region of a saved state: the 512 bytes that FXSAVE and the XSAVE family share.

use satori_defs::fpu::{fxsave, mxcsr};
use satori_engine::Exception;
use satori_state::FpuState;

use crate::cpu::{Cpu, Exec};
use crate::fpu;

/// XMM registers that are saved and restored: 16 in 64-bit code, else 8.
pub(super) fn registers(cpu: &Cpu) -> usize {
    if cpu.derived.code64 { 16 } else { 8 }
}

fn put(area: &mut [u8], at: usize, bytes: &[u8]) {
    area[at..at + bytes.len()].copy_from_slice(bytes);
}

fn take<const N: usize>(area: &[u8], at: usize) -> [u8; N] {
    *area[at..].first_chunk().expect("the area has all of its legacy region")
}

/// The pointers of 64 bits with REX.W; else an offset of 32 and a selector, which is 0 as on
/// processors that deprecate FCS and FDS.
fn pointer_mask(wide: bool) -> u64 {
    if wide { u64::MAX } else { 0xffff_ffff }
}

/// Stores all that is x87.
pub(super) fn put_x87(area: &mut [u8], state: &FpuState, wide: bool) {
    let pointers = pointer_mask(wide);
    put(area, fxsave::FCW, &state.fcw.to_le_bytes());
    put(area, fxsave::FSW, &state.fsw.to_le_bytes());
    put(area, fxsave::FTW, &[state.ftw, 0]);
    put(area, fxsave::FOP, &state.fop.to_le_bytes());
    put(area, fxsave::FIP, &(state.fip & pointers).to_le_bytes());
    put(area, fxsave::FDP, &(state.fdp & pointers).to_le_bytes());
    for (i, value) in state.st.iter().enumerate() {
        put(area, fxsave::ST0 + 16 * i, &value.to_le_bytes());
    }
}

/// Stores MXCSR and its mask.
pub(super) fn put_mxcsr(area: &mut [u8], state: &FpuState) {
    put(area, fxsave::MXCSR, &state.mxcsr.to_le_bytes());
    put(area, fxsave::MXCSR_MASK, &mxcsr::MASK.to_le_bytes());
}

/// Stores the XMM registers that `area` has room for.
pub(super) fn put_xmm(area: &mut [u8], state: &FpuState) {
    for (place, value) in area[fxsave::XMM0..].as_chunks_mut().0.iter_mut().zip(state.ymm) {
        *place = value.low.to_le_bytes();
    }
}

/// Loads all that is x87.
pub(super) fn take_x87(area: &[u8], state: &mut FpuState, wide: bool) {
    let pointers = pointer_mask(wide);
    state.ftw = area[fxsave::FTW];
    state.fop = u16::from_le_bytes(take(area, fxsave::FOP)) & 0x7ff;
    state.fip = u64::from_le_bytes(take(area, fxsave::FIP)) & pointers;
    state.fdp = u64::from_le_bytes(take(area, fxsave::FDP)) & pointers;
    let (control, status) = (take(area, fxsave::FCW), take(area, fxsave::FSW));
    fpu::set_words(state, u16::from_le_bytes(control), u16::from_le_bytes(status));
    for (i, value) in state.st.iter_mut().enumerate() {
        *value = u128::from_le_bytes(take(area, fxsave::ST0 + 16 * i)) & fpu::REGISTER;
    }
}

/// The MXCSR of an area.
pub(super) fn mxcsr_of(area: &[u8]) -> u32 {
    u32::from_le_bytes(take(area, fxsave::MXCSR))
}

/// #GP(0) for a value that MXCSR cannot have.
pub(super) fn check_mxcsr(cpu: &mut Cpu, value: u32) -> Exec<()> {
    if value & !mxcsr::MASK == 0 { Ok(()) } else { Err(cpu.raise(Exception::gp(0))) }
}

/// Loads the XMM registers that `area` has room for.
pub(super) fn take_xmm(area: &[u8], state: &mut FpuState) {
    for (value, place) in state.ymm.iter_mut().zip(area[fxsave::XMM0..].as_chunks().0) {
        value.low = u128::from_le_bytes(*place);
    }
}
