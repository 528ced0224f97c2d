//! CR3, and the PDPTEs that PAE paging loads with it (SDM 4.4.1, 4.5; volume 2, MOV to control registers).

/// Process-context identifier, with CR4.PCIDE.
pub const PCID: u64 = 0xfff;
/// With CR4.PCIDE, in a value written: keep translations. It is not stored.
pub const KEEP: u64 = 1 << 63;
/// Bits of a PDPTE that must be 0 with PAE paging below the address: 2:1 and 8:5 (SDM table 4-8).
const PDPTE_RESERVED: u64 = 0x1e6;
const PRESENT: u64 = 1;

/// Whether CR3 may hold `value` in long mode, where bits beyond the physical address are reserved. Outside long mode it has
/// 32 bits, and none is.
pub const fn legal(value: u64, physical_bits: u8) -> bool {
    crate::within(value, crate::physical(physical_bits))
}

/// Whether PAE paging may load the entry: what is not present may be anything.
pub const fn pdpte(entry: u64, physical_bits: u8) -> bool {
    entry & PRESENT == 0 || entry & (PDPTE_RESERVED | !crate::physical(physical_bits)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_is_reserved_as_the_manual_says() {
        for width in [36, 46, 52] {
            for bit in 0..64 {
                let one = 1_u64 << bit;
                assert_eq!(legal(one, width), bit < u32::from(width), "{bit}");
                let reserved = matches!(bit, 1 | 2 | 5..=8) || bit >= u32::from(width);
                assert_eq!(pdpte(one | 1, width), !reserved, "{bit}");
                assert!(pdpte(one & !1, width), "not present: {bit}");
            }
        }
    }
}
