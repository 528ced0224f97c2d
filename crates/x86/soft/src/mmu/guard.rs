//! Stores that do not look whether somebody has to know of them, as of those to decoded code: the TLB keeps such pages from them.

use satori_memory::PageState;

use crate::cpu::Cpu;

impl Cpu {
    /// From here on the TLB lets nobody write to pages of decoded code: all such stores miss, and are seen.
    pub fn guard_code(&mut self) {
        self.mmu.tlb.seen_marks = Some(0);
    }

    /// Takes note of pages that others decoded code from, or that are logged anew.
    pub fn notice_watched(&mut self) {
        let marks = PageState::marks();
        if self.mmu.tlb.seen_marks.is_some_and(|seen| seen != marks) {
            self.mmu.tlb.seen_marks = Some(marks);
            self.mmu.tlb.protect_watched();
        }
    }

    /// Code is about to be decoded from the page with `state`: its value from now on.
    pub fn mark_code(&mut self, state: &PageState) -> u32 {
        let Some(seen) = self.mmu.tlb.seen_marks else { return state.mark_code(!self.parallel()) };
        let known = state.has_code();
        // What others mark meanwhile is noticed later, with all the rest of it.
        let others = PageState::marks() != seen;
        let value = state.mark_code(!self.parallel());
        if !known {
            self.mmu.tlb.protect(state);
            if !others && PageState::marks() == seen + 1 {
                self.mmu.tlb.seen_marks = Some(seen + 1);
            }
        }
        value
    }
}
