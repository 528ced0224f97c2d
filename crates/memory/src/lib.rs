//! Guest-physical memory: typed addresses, lazily allocated RAM that comes and goes, the dirty log, and per-page code tracking.
//!
//! [`GuestMemory`] wraps rust-vmm's regions. Its reads and writes are bounds-checked and
//! volatile, and every write tells the page's [`PageState`], so that decoded code is dropped
//! whoever writes it. Engines reach pages by host pointer through [`GuestMemory::page`] and
//! must do the same themselves (see [`PageState::wrote`]).

mod address;
mod atomic;
mod barrier;
mod code;
mod dirty;
mod map;
mod page;
mod ram;
mod scatter;

pub use address::Gpa;
pub use barrier::heavy_barrier;
pub use page::{Page, PageState};
pub use ram::{ALL_LINES, Error, GuestMemory, HOST_NODES, HostPolicy, Region};
pub use scatter::Scatter;

/// Bytes of a page: what code is tracked by, and the grain of regions. It is the smallest page of the instruction sets here.
pub const PAGE_SIZE: u64 = 4096;
