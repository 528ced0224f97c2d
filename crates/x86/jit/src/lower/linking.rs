//! Jumps from a block to others, which are linked when both are translated.

use super::{Lower, NewLink};
use crate::asm::Label;
use crate::cold::Cold;
use satori_soft::code_mode::CodeKey;

impl Lower<'_> {
    /// Where a jump to `rip` goes until it is linked, and the place of its distance, which is the
    /// next four bytes to be emitted. Nothing if the target is in another page.
    fn near_link(&mut self, rip: u64) -> Option<Label> {
        ((rip ^ self.block.rip) >> 12 == 0).then(|| {
            let unlinked = self.asm.label();
            let index = self.output.links.len();
            self.seldom(Cold::Link { label: unlinked, slot: None, index });
            unlinked
        })
    }

    fn note_link(&mut self, rip: u64, place: usize, unlinked: Label, slot: Option<Label>, fixed: bool) {
        self.output.links.push(NewLink {
            key: CodeKey::of(rip, self.block.code_mode),
            rip,
            place,
            unlinked,
            slot,
            fixed,
        });
    }

    /// Jumps to the block at `rip`.
    pub(crate) fn link(&mut self, rip: u64) {
        if let Some(unlinked) = self.near_link(rip) {
            self.asm.jmp(unlinked);
            self.note_link(rip, self.asm.here() - 4, unlinked, None, false);
            return;
        }
        self.link_far(rip, false);
    }

    /// Jumps to the block at `rip` in another page, which stays there if this block is moved and it is `fixed`.
    pub(crate) fn link_far(&mut self, rip: u64, fixed: bool) {
        let (unlinked, slot) = (self.asm.label(), self.asm.label());
        self.seldom(Cold::Link { label: unlinked, slot: Some(slot), index: self.output.links.len() });
        self.asm.jmp_slot(slot);
        self.note_link(rip, 0, unlinked, Some(slot), fixed);
    }

    /// Jumps to the block at `rip` if `condition` holds.
    pub(crate) fn link_if(&mut self, condition: u8, rip: u64) {
        if let Some(unlinked) = self.near_link(rip) {
            self.asm.jcc(condition, unlinked);
            self.note_link(rip, self.asm.here() - 4, unlinked, None, false);
            return;
        }
        let over = self.asm.label();
        self.asm.jcc(condition ^ 1, over);
        self.link(rip);
        self.asm.bind(over);
    }
}
