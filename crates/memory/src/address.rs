//! Addresses as types, so that a guest-virtual one is never used as a guest-physical one.

use std::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The address of the 4-KiB page that holds this one.
            pub const fn page(self) -> Self {
                Self(self.0 & !0xfff)
            }
            /// The offset within its 4-KiB page.
            pub const fn offset(self) -> usize {
                (self.0 & 0xfff) as usize
            }
            /// This address plus `bytes`, wrapping.
            #[allow(clippy::should_implement_trait, reason = "wraps, as addresses do")]
            pub const fn add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// A guest-physical address.
    Gpa
}
address! {
    /// A guest-virtual (linear) address.
    Gva
}
