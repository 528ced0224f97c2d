//! Linear memory: translation, its cache, and accesses through it.

mod access;
mod device;
mod inspect;
mod keys;
mod large;
mod paging;
mod rights;
mod slow;
mod stack;
mod tlb;
mod walk;

pub use large::{LargePages, Reach};
pub use paging::{MAXPHYADDR, Paging};
pub use rights::Access;
pub use tlb::{Mode, Tlb};
pub use walk::canonical;
