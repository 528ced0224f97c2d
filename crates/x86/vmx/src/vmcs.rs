//! A VMCS while the processor has it: its fields, and the region in memory that they come from.

use crate::capability::{REVISION, SHADOW};
use crate::field::{FIELDS, Field};

/// Where fields begin in the region; the revision, the abort indicator and the launch state come first.
const DATA: usize = 64;
/// Where the launch state is.
pub const LAUNCH: usize = 8;
/// Bytes of a region that are used.
pub const USED: usize = DATA + 8 * FIELDS;

const _: () = assert!(USED <= 4096);

/// Where a region has the 64 bits of a field.
pub const fn place(field: Field) -> usize {
    DATA + 8 * field as usize
}

/// The fields of a VMCS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vmcs {
    fields: [u64; FIELDS],
    /// The launch state is "launched".
    pub launched: bool,
    /// It is a shadow VMCS.
    pub shadow: bool,
}

impl Default for Vmcs {
    fn default() -> Self {
        Vmcs { fields: [0; FIELDS], launched: false, shadow: false }
    }
}

impl Vmcs {
    /// A field.
    #[inline]
    pub fn get(&self, field: Field) -> u64 {
        self.fields[field as usize]
    }

    /// The low half of a field.
    #[inline]
    pub fn get32(&self, field: Field) -> u32 {
        self.get(field) as u32
    }

    /// Sets a field, as wide as it is.
    #[inline]
    pub fn set(&mut self, field: Field, value: u64) {
        self.fields[field as usize] = value & field.mask();
    }

    /// VMREAD of a field or its upper half.
    pub fn read(&self, field: Field, high: bool) -> u64 {
        if high { self.get(field) >> 32 } else { self.get(field) }
    }

    /// VMWRITE to a field or its upper half.
    pub fn write(&mut self, field: Field, high: bool, value: u64) {
        if high {
            self.set(field, self.get(field) & 0xffff_ffff | value << 32);
        } else {
            self.set(field, value);
        }
    }

    /// The fields of the region whose first bytes are `region`.
    pub fn from_region(region: &[u8; USED]) -> Self {
        let word = |at: usize| region[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        let shadow = u32::from_le_bytes([region[0], region[1], region[2], region[3]]) & SHADOW != 0;
        let mut vmcs = Vmcs { launched: region[LAUNCH] != 0, shadow, ..Vmcs::default() };
        for field in Field::ALL {
            vmcs.set(*field, word(place(*field)));
        }
        vmcs
    }

    /// The region's first bytes with these fields; its abort indicator is `abort`.
    pub fn to_region(&self, abort: u32) -> [u8; USED] {
        let mut region = [0; USED];
        let revision = REVISION | if self.shadow { SHADOW } else { 0 };
        region[..4].copy_from_slice(&revision.to_le_bytes());
        region[4..8].copy_from_slice(&abort.to_le_bytes());
        region[LAUNCH] = self.launched.into();
        for field in Field::ALL {
            let at = place(*field);
            region[at..at + 8].copy_from_slice(&self.get(*field).to_le_bytes());
        }
        region
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_holds_every_field_as_wide_as_it_is() {
        let mut vmcs = Vmcs { launched: true, shadow: true, ..Vmcs::default() };
        for field in Field::ALL {
            vmcs.write(*field, false, 0x1122_3344_5566_7788 + *field as u64);
            assert_eq!(vmcs.get(*field) & !field.mask(), 0);
        }
        assert_eq!(Vmcs::from_region(&vmcs.to_region(0)), vmcs);
    }

    #[test]
    fn the_upper_half_is_a_field_of_its_own() {
        let mut vmcs = Vmcs::default();
        vmcs.write(Field::TscOffset, false, 0x1_0000_0002);
        vmcs.write(Field::TscOffset, true, 0xffff_ffff_0000_0007);
        assert_eq!(vmcs.get(Field::TscOffset), 0x7_0000_0002);
        assert_eq!(vmcs.read(Field::TscOffset, true), 7);
    }
}
