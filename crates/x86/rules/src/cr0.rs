//! CR0 (SDM 2.5; volume 2, MOV to control registers; 10.8.5 for long mode).

use satori_defs::x86::{cr0, cr4, efer};

/// Bits that exist; writes to the others of the low half are ignored, and ET reads as 1.
pub const EXIST: u64 =
    cr0::PE | cr0::MP | cr0::EM | cr0::TS | cr0::NE | cr0::WP | cr0::AM | cr0::NW | cr0::CD | cr0::PG;

/// Whether the value may be loaded at all: paging needs protection, NW needs CD, and the upper half is reserved.
pub const fn legal(value: u64) -> bool {
    let (paging, protection) = (value & cr0::PG != 0, value & cr0::PE != 0);
    let (write_through, cached) = (value & cr0::NW == 0, value & cr0::CD == 0);
    value >> 32 == 0 && (!paging || protection) && (write_through || !cached)
}

/// What the register holds once `value` was written.
pub const fn written(value: u64) -> u64 {
    value & EXIST | cr0::ET
}

/// What beside CR0 decides whether paging may be turned on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// CR4.
    pub cr4: u64,
    /// IA32_EFER.
    pub efer: u64,
    /// CS.L.
    pub code_long: bool,
    /// TR holds a 16-bit TSS.
    pub short_tss: bool,
}

/// IA32_EFER behind a change of CR0 from `old` to `new`; none if the change is refused.
///
/// Paging with LME activates long mode, which needs PAE, no 64-bit code segment and no 16-bit TSS (SDM 10.8.5). It is left
/// from compatibility mode only, and not with PCIDs.
pub const fn paging(old: u64, new: u64, around: Around) -> Option<u64> {
    let Around { cr4, efer, code_long, short_tss } = around;
    let (was, is) = (old & cr0::PG != 0, new & cr0::PG != 0);
    if is && !was && efer & efer::LME != 0 {
        let possible = cr4 & cr4::PAE != 0 && !code_long && !short_tss;
        return if possible { Some(efer | efer::LMA) } else { None };
    }
    if was && !is {
        let code64 = efer & efer::LMA != 0 && code_long;
        return if code64 || cr4 & cr4::PCIDE != 0 { None } else { Some(efer & !efer::LMA) };
    }
    Some(efer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bits 63 to 0 in the manual's words.
    fn by_the_manual(value: u64) -> bool {
        let set = |bit: u32| value >> bit & 1 == 1;
        let paged_unprotected = set(31) && !set(0);
        let through_uncached = set(29) && !set(30);
        !paged_unprotected && !through_uncached && (32..64).all(|bit| !set(bit))
    }

    #[test]
    fn every_combination_of_bits_is_as_the_manual_says() {
        let bits = [0, 1, 2, 3, 4, 5, 16, 18, 29, 30, 31];
        for chosen in 0_u64..1 << bits.len() {
            let value = bits.iter().enumerate().fold(0, |value, (at, bit)| value | (chosen >> at & 1) << bit);
            assert_eq!(legal(value), by_the_manual(value), "{value:#x}");
            for other in 0..64 {
                assert_eq!(
                    legal(value | 1 << other),
                    by_the_manual(value | 1 << other),
                    "{value:#x} {other}"
                );
                assert_eq!(written(value | 1 << other) & !(EXIST | cr0::ET), 0);
            }
        }
    }

    #[test]
    fn long_mode_begins_and_ends_with_paging() {
        let on = cr0::PE | cr0::PG;
        for word in 0..64_u32 {
            let bit = |at: u32| word >> at & 1 != 0;
            let around = Around {
                cr4: if bit(0) { cr4::PAE } else { 0 } | if bit(1) { cr4::PCIDE } else { 0 },
                efer: if bit(2) { efer::LME } else { 0 } | if bit(3) { efer::LMA } else { 0 },
                code_long: bit(4),
                short_tss: bit(5),
            };
            let enabled = paging(cr0::PE, on, around);
            match (bit(2), bit(0) && !bit(4) && !bit(5)) {
                (true, false) => assert_eq!(enabled, None, "{around:?}"),
                (true, true) => assert_eq!(enabled, Some(around.efer | efer::LMA), "{around:?}"),
                (false, _) => assert_eq!(enabled, Some(around.efer), "{around:?}"),
            }
            let disabled = paging(on, cr0::PE, around);
            let refused = bit(1) || bit(3) && bit(4);
            assert_eq!(disabled, (!refused).then_some(around.efer & !efer::LMA), "{around:?}");
            assert_eq!(paging(on, on, around), Some(around.efer), "no change");
        }
    }
}
