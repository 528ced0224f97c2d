//! Linear memory: translation, its cache, and accesses through it.

mod access;
mod device;
mod fetch;
mod fetched;
mod guard;
mod inspect;
mod keys;
mod large;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod model;
mod paging;
mod rights;
mod slow;
mod spaces;
mod stack;
#[cfg(test)]
mod tests;
mod tlb;
mod walk;

pub(crate) use fetch::Fetch;
pub use fetch::{BUCKETS, Fetches, Scope, bucket};
pub use paging::{MAXPHYADDR, Paging};
pub use rights::Access;
pub use satori_rules::canonical;
pub use spaces::{Change, Kept, Part, Space, World};
pub use tlb::{Mode, Tlb};
