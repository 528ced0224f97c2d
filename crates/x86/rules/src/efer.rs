//! IA32_EFER (SDM 2.2.1, 10.8.5).

use satori_defs::x86::efer;

/// What the register holds after a write of `value`, on a processor that has the bits `exist` for writing; none if the
/// write is refused. LMA is the processor's: it may be written and stays. LME cannot change while paging is on.
pub const fn written(old: u64, value: u64, exist: u64, paging: bool) -> Option<u64> {
    let exist = exist & !efer::LMA;
    if !crate::within(value, exist | efer::LMA) || paging && (value ^ old) & efer::LME != 0 {
        return None;
    }
    Some(value & exist | old & efer::LMA)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_kept_refused_or_the_processors() {
        for exist in [efer::SCE | efer::LME | efer::NXE, efer::LME | efer::LMA, 0] {
            for old in [0, efer::LME, efer::LME | efer::LMA] {
                for bit in 0..64 {
                    let value = old & exist ^ 1 << bit;
                    for paging in [false, true] {
                        let after = written(old, value, exist, paging);
                        let unknown = value & !(exist | efer::LMA) != 0;
                        let length = paging && (value ^ old) >> 8 & 1 != 0;
                        assert_eq!(after.is_none(), unknown || length, "{exist:#x} {old:#x} {bit} {paging}");
                        if let Some(after) = after {
                            assert_eq!(after & efer::LMA, old & efer::LMA, "the processor's");
                            assert_eq!(after & !efer::LMA, value & !efer::LMA);
                        }
                    }
                }
            }
        }
    }
}
