//! Guest-physical addresses as a type of their own, so that no linear address, a plain `u64`, is used as one.

use std::fmt;

/// A guest-physical address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gpa(pub u64);

impl Gpa {
    /// The address of the page that holds this one.
    pub const fn page(self) -> Self {
        Self(self.0 & !(crate::PAGE_SIZE - 1))
    }
    /// The offset within its page.
    pub const fn offset(self) -> usize {
        (self.0 & (crate::PAGE_SIZE - 1)) as usize
    }
    /// This address plus `bytes`, wrapping.
    #[allow(clippy::should_implement_trait, reason = "wraps, as addresses do")]
    pub const fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

impl fmt::LowerHex for Gpa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
