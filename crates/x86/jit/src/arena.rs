//! How a vCPU's code memory is divided.

/// Bytes of it that hold code.
pub(crate) const SIZE: usize = 96 << 20;
/// From this offset on stands what seldom runs, so that the rest is dense.
pub(crate) const SELDOM: usize = 36 << 20;
/// Where the linear addresses of pages stand, behind all code: stores there are none to lines that are executed.
pub(crate) const CELLS: usize = SIZE;
/// As many as there are pages in 4 GiB.
pub(crate) const PAGES: usize = 1 << 20;
/// Bytes of the whole.
pub(crate) const WHOLE: usize = CELLS + 8 * PAGES;
