//! A personality at a CPUID base: guests look for one at each multiple of 0x100 above 0x40000000.

use satori_cpuid::{Leaf, Registers};

/// Where the first personality's leaves begin.
pub const BASE: u32 = 0x4000_0000;
/// How far the next personality's begin above them.
pub const STEP: u32 = 0x100;

/// The first leaf of a personality: its highest leaf, and its name in EBX, ECX and EDX.
pub fn signature(base: u32, highest: u32, name: [u8; 12]) -> Leaf {
    let word = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]);
    let value = Registers { eax: base + highest, ebx: word(0), ecx: word(4), edx: word(8) };
    Leaf { leaf: base, subleaf: 0, value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_in_three_registers() {
        let leaf = signature(BASE + STEP, 1, *b"KVMKVMKVM\0\0\0");
        assert_eq!((leaf.leaf, leaf.value.eax), (0x4000_0100, 0x4000_0101));
        assert_eq!((leaf.value.ebx, leaf.value.ecx, leaf.value.edx), (0x4b4d_564b, 0x564b_4d56, 0x4d));
    }
}
