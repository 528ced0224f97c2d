//! IA32_APIC_BASE (SDM 11.4.4, 11.12.5).

use satori_defs::apic::base;

use crate::{physical, within};

/// Whether the register may change from `old` to `new`: no reserved bits, x2APIC mode only where it is offered and the
/// local APIC is enabled, and only the transitions of SDM figure 11-27, which does not lead from x2APIC mode to xAPIC mode
/// nor from disabled to x2APIC mode.
pub const fn legal(old: u64, new: u64, x2apic: bool, physical_bits: u8) -> bool {
    let exist = physical(physical_bits) & !0xfff | base::BSP | base::EN | if x2apic { base::EXTD } else { 0 };
    let (enable, extd) = (new & base::EN != 0, new & base::EXTD != 0);
    let (enabled, was_extd) = (old & base::EN != 0, old & base::EXTD != 0);
    within(new, exist) && (!extd || enable && enabled) && !(was_extd && enable && !extd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transition_between_modes_is_as_the_figure_says() {
        let modes =
            [("off", 0), ("xapic", base::EN), ("x2apic", base::EN | base::EXTD), ("none", base::EXTD)];
        for (from, old) in modes.into_iter().take(3) {
            for (to, new) in modes {
                let drawn = matches!(
                    (from, to),
                    (_, "off") | ("off" | "xapic", "xapic") | ("xapic" | "x2apic", "x2apic")
                );
                assert_eq!(legal(old, new, true, 46), drawn, "{from} to {to}");
                assert_eq!(legal(old, new, false, 46), drawn && to != "x2apic", "{from} to {to}");
            }
        }
        for bit in 0..64 {
            let exists = matches!(bit, 8 | 11) || (12..46).contains(&bit);
            assert_eq!(legal(base::EN, base::EN | 1 << bit, false, 46), exists, "{bit}");
        }
    }
}
