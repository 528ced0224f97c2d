//! CR4 (SDM 2.5; volume 2, MOV to control registers).

use satori_defs::x86::cr4;

use crate::cr3::PCID;

/// What beside CR4 decides whether it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// CR3.
    pub cr3: u64,
    /// Long mode is active (IA32_EFER.LMA).
    pub long: bool,
}

/// Whether CR4 may change from `old` to `new` on a processor that has the bits `exist`.
///
/// Long mode needs PAE and keeps the number of levels of paging. PCIDE is set in long mode only, and while CR3 names none.
pub const fn legal(old: u64, new: u64, exist: u64, around: Around) -> bool {
    let set = new & !old;
    let levels_change = (old ^ new) & cr4::LA57 != 0;
    crate::within(new, exist)
        && (!around.long || new & cr4::PAE != 0 && !levels_change)
        && (set & cr4::PCIDE == 0 || around.long && around.cr3 & PCID == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_one_bit_is_as_the_manual_says() {
        for long in [false, true] {
            for (old, cr3) in
                [(0, 0x1000), (cr4::PAE, 0), (cr4::PAE, 0x1001), (cr4::PAE | cr4::PCIDE, 0x1fff)]
            {
                for bit in 0..64 {
                    let new = old ^ 1 << bit;
                    let around = Around { cr3, long };
                    let has_pae = new >> 5 & 1 != 0;
                    let turns_pcids_on = bit == 17 && new >> 17 & 1 != 0;
                    let refused =
                        (long && (!has_pae || bit == 12)) || (turns_pcids_on && (!long || cr3 & 0xfff != 0));
                    assert_eq!(legal(old, new, u64::MAX, around), !refused, "{long} {old:#x} {bit} {cr3:#x}");
                    // What does not exist is reserved, whatever else holds.
                    assert_eq!(legal(old, new, !(1 << bit), around), !refused && new >> bit & 1 == 0);
                }
            }
        }
    }
}
