//! What every write that goes through vm-memory does to decoded code.
//!
//! vm-memory tells a region's bitmap of each write behind it: `Bytes`, volatile slices, reads of files into guest
//! memory, whoever makes them. Here that bitmap is the states of the pages, so no device can leave a stale
//! translation behind by writing in a way that we did not think of. Only atomic references into guest
//! memory are not told; what takes one tells the page itself (see [`crate::GuestMemory::store_u32`]).

use std::sync::Arc;

use vm_memory::bitmap::{Bitmap, BitmapSlice, WithBitmapSlice};

use crate::{PAGE_SIZE, PageState};

/// The states of a region's pages.
#[derive(Clone, Debug)]
pub(crate) struct CodePages(pub Arc<[PageState]>);

/// The same from a byte of the region on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeSlice<'a> {
    states: &'a [PageState],
    start: usize,
}

impl CodeSlice<'_> {
    fn pages(&self, offset: usize, len: usize) -> &[PageState] {
        let first = self.start.saturating_add(offset);
        let end = first.saturating_add(len).div_ceil(PAGE_SIZE as usize).min(self.states.len());
        self.states.get(first / PAGE_SIZE as usize..end).unwrap_or_default()
    }
}

impl<'a> WithBitmapSlice<'a> for CodePages {
    type S = CodeSlice<'a>;
}

impl Bitmap for CodePages {
    fn mark_dirty(&self, offset: usize, len: usize) {
        self.slice_at(0).mark_dirty(offset, len);
    }
    fn dirty_at(&self, _offset: usize) -> bool {
        false
    }
    fn slice_at(&self, offset: usize) -> CodeSlice<'_> {
        CodeSlice { states: &self.0, start: offset }
    }
}

impl<'b> WithBitmapSlice<'b> for CodeSlice<'_> {
    type S = Self;
}

impl BitmapSlice for CodeSlice<'_> {}

impl Bitmap for CodeSlice<'_> {
    fn mark_dirty(&self, offset: usize, len: usize) {
        if len > 0 {
            for state in self.pages(offset, len) {
                state.wrote();
            }
        }
    }
    fn dirty_at(&self, _offset: usize) -> bool {
        false
    }
    fn slice_at(&self, offset: usize) -> Self {
        CodeSlice { states: self.states, start: self.start.saturating_add(offset) }
    }
}
