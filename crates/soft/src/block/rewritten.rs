//! Pages that are written again and again while code on them runs.

use satori_memory::PageState;

use super::decode::MAX_INSTRUCTIONS;

/// Decodings in a row that found their page written, before blocks become short.
const MANY: u32 = 8;
/// What is counted at most, so that blocks become long again soon after the writing ended.
const ENOUGH: u32 = 2 * MANY;
/// Instructions of a block at most, where the rest of it would hardly be executed.
const SHORT: usize = 4;

/// How often decoding lately found that its page had been written since a block was decoded there.
/// A guest whose every instruction writes the page that it stands on would have a whole block decoded for each.
pub struct Rewritten {
    page: *const PageState,
    value: u32,
    streak: u32,
}

impl Rewritten {
    pub const fn new() -> Self {
        Rewritten { page: std::ptr::null(), value: 0, streak: 0 }
    }

    /// A block of `page` is decoded, whose state is `value`: how many instructions it may have.
    pub fn longest(&mut self, page: *const PageState, value: u32) -> usize {
        let written = self.page == page && self.value != value;
        self.streak = if written { ENOUGH.min(self.streak + 1) } else { self.streak.saturating_sub(1) };
        (self.page, self.value) = (page, value);
        if self.streak < MANY { MAX_INSTRUCTIONS } else { SHORT }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_short_while_their_page_is_rewritten() {
        let page = std::ptr::without_provenance(0x1000);
        let other = std::ptr::without_provenance(0x2000);
        let mut rewritten = Rewritten::new();
        for value in 0..MANY {
            assert_eq!(rewritten.longest(page, value), MAX_INSTRUCTIONS, "a few writes are usual");
        }
        for value in MANY..100 {
            assert_eq!(rewritten.longest(page, value), SHORT);
        }
        for _ in 0..MANY {
            rewritten.longest(other, 0);
        }
        assert_eq!(rewritten.longest(other, 0), MAX_INSTRUCTIONS, "and it is forgotten");
    }
}
