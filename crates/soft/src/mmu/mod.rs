//! Linear memory: translation, its cache, and accesses through it.

mod access;
mod inspect;
mod large;
mod tlb;
mod walk;

pub use large::{LargePages, Reach};
pub use tlb::{Mode, Tlb};
pub use walk::{Access, MAXPHYADDR, canonical};
