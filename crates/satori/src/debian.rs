//! Debian's packages as the host's apt gives them, and what was taken out of them.

pub mod apt;
pub mod cache;
