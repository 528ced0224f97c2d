//! What a memory type range register accepts (SDM volume 3, 12.11).

use satori_defs::msr::Gp;

const WRITE_BACK: u64 = 6;
const FIXED_ENABLE: u64 = 1 << 10;
const ENABLE: u64 = 1 << 11;
/// PHYSMASK: the range is in use.
pub(super) const VALID: u64 = 1 << 11;

/// IA32_MTRR_DEF_TYPE as firmware leaves it: without enabled MTRRs Linux 6.1 does without PAT too.
pub(super) const DEFAULT: u64 = ENABLE | FIXED_ENABLE | WRITE_BACK;
/// A fixed range as firmware leaves it.
pub(super) const FIXED: u64 = 0x0101_0101_0101_0101 * WRITE_BACK;

/// UC, WC, WT, WP and WB; others are reserved (SDM table 12-8).
fn memory_type(encoding: u8) -> Result<(), Gp> {
    if matches!(encoding, 0 | 1 | 4 | 5 | 6) { Ok(()) } else { Err(Gp) }
}

fn only(value: u64, allowed: u64) -> Result<(), Gp> {
    if value & !allowed == 0 { Ok(()) } else { Err(Gp) }
}

/// IA32_MTRR_DEF_TYPE.
pub(super) fn default(value: u64) -> Result<(), Gp> {
    only(value, ENABLE | FIXED_ENABLE | 0xff)?;
    memory_type(value as u8)
}

/// IA32_MTRR_FIX*.
pub(super) fn fixed(value: u64) -> Result<(), Gp> {
    value.to_le_bytes().into_iter().try_for_each(memory_type)
}

/// IA32_MTRR_PHYSBASEn, which are even, and PHYSMASKn.
pub(super) fn variable(register: u32, value: u64, physical_bits: u8) -> Result<(), Gp> {
    let address = ((1u64 << physical_bits) - 1) & !0xfff;
    if register & 1 != 0 {
        return only(value, address | VALID);
    }
    only(value, address | 0xff)?;
    memory_type(value as u8)
}
