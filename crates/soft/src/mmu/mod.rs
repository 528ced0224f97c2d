//! Linear memory: translation, its cache, and accesses through it.

mod access;
mod tlb;
mod walk;

pub use tlb::{Mode, Tlb};
pub use walk::{Access, MAXPHYADDR, canonical};
