//! Translations that are valid wherever their page is mapped.
//!
//! The same page of a program or library is mapped at another linear address in each process, as those are chosen at
//! random. Its bytes are the same, and so is its code: no linear address is in it. Each page has a cell in the code memory
//! with the linear address that it is executed at, and the code of the page counts its addresses from there. To execute a
//! page elsewhere, its cell is written.
//!
//! Jumps within the page stay as they are. What leads there from elsewhere, and from there to elsewhere, depends on the
//! address space, and is taken back by each flush of that. So a page whose cell is of the time before the last flush may
//! be given any address at once; if it is executed at two addresses between two flushes, what was found for one of them is
//! taken back first, and that only while no translated code runs.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use super::again::{Known, Pair};
use super::asm::Base;
use super::pieces::piece_of;
use super::reach::{Page, jump};
use super::{AddressHasher, Context, Jit, arena, generic, targets, window};
use satori_soft::block::Block;
use satori_soft::code_mode;
use satori_soft::code_mode::{BITS_64, CodeKey};
use satori_soft::mmu::{SIDES, Side};

/// What is nearer than this to a block may be reached from it by a displacement of 32 bits.
pub(crate) const NEAR: u64 = 1 << 31;
/// Addresses whose surroundings of [`NEAR`] bytes are canonical and need more than 32 bits: where Linux maps
/// position-independent programs, libraries and the vDSO. A translation of code elsewhere is valid at its own address alone.
const ANYWHERE: Range<u64> = 1 << 33..(1 << 47) - NEAR - 0x1_0000;

/// The same for programs of 32 bits: above where those of a fixed address are loaded.
const ANYWHERE_32: Range<u64> = 1 << 30..(1 << 32) - 0x1_0000;

/// Whether translations of code at `rip`, of `code_mode`, may be valid elsewhere, too.
pub(crate) fn may_move(rip: u64, code_mode: u64) -> bool {
    if code_mode & BITS_64 != 0 {
        ANYWHERE.contains(&rip)
    } else {
        code_mode & code_mode::USER != 0 && ANYWHERE_32.contains(&rip)
    }
}

/// What a translated block is made of beside its code.
#[repr(C)]
pub(crate) struct Parts {
    /// What it is moved with.
    pub group: Option<u32>,
    /// What it is found again with, if it does not move.
    pub anchor: Option<u32>,
    /// The numbers of its links.
    pub links: Range<u32>,
    /// What generic implementations are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    pub sites: Vec<Box<generic::Site>>,
    /// What looks for a window's range are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    pub ranges: Vec<Box<window::Range>>,
    /// Where in the code memory its pages' values are compared, and of which page.
    pub values: Vec<(usize, u8)>,
}

/// All translations that begin in one page and may be anywhere; or, as an *anchor*, those that begin in one page at one address, are
/// valid at that alone.
pub(crate) struct Group {
    /// Whose code it is.
    pub side: Side,
    /// The linear address of the page now, as its cell has it.
    pub linear: u64,
    /// The flush since which it is there, by [`Jit::epochs`]. What leads there, and from there to other pages, was found
    /// since.
    epoch: u64,
    blocks: Vec<u32>,
    /// It was found there by a translation that is not global, and no flush concerned that since.
    pub sure: bool,
    /// The pairs that it is one of, and targets in it.
    pub pairs: Vec<u32>,
    pub known: Vec<Known>,
}

/// What is moved together.
#[derive(Default)]
pub(crate) struct Groups {
    pub all: Vec<Group>,
    /// Pages between which there are jumps, also by both and their distance.
    pub pairs: Vec<Pair>,
    pub by_pair: HashMap<(u32, u32, u64), u32, BuildHasherDefault<AddressHasher>>,
    /// By the page's first byte on the host, for each side.
    by_page: [HashMap<*const u8, u32, BuildHasherDefault<AddressHasher>>; SIDES],
    /// Anchors by that and the page's linear address.
    anchors: [HashMap<(*const u8, u64), u32, BuildHasherDefault<AddressHasher>>; SIDES],
}

impl Groups {
    /// A new one for the page at `linear`, which it is known to be at since the flush `epoch`.
    fn add(&mut self, side: Side, linear: u64, epoch: u64) -> u32 {
        let (blocks, pairs, known) = (Vec::new(), Vec::new(), Vec::new());
        self.all.push(Group { side, linear, epoch, blocks, sure: false, pairs, known });
        self.all.len() as u32 - 1
    }
}

/// Anchors of one side: more than there are pages of programs with fixed addresses. Code of further ones is not found again at once.
const ANCHORS: usize = 1 << 17;

/// What tables of translations have one of `block` by, whose key at `rip` is `key`.
pub(crate) fn place_in_table(key: CodeKey, rip: u64, block: *const Block, moves: bool) -> (CodeKey, usize) {
    if moves {
        // Blocks are aligned, so that the lowest bit tells these from the others.
        (key.in_page_of(rip), block as usize | 1)
    } else {
        (key, block as usize)
    }
}

const _: () = assert!(align_of::<Block>() > 1);

impl Jit {
    /// What a translation of code at `rip`, in `page`, is moved with, if it is moved at all; `whole` is the block that it
    /// belongs to, which may be running.
    pub(crate) fn group_for(
        &mut self,
        context: &mut Context,
        page: &Page,
        (rip, key): (u64, CodeKey),
        whole: Option<u32>,
    ) -> Option<u32> {
        let linear = rip & !0xfff;
        if !may_move(rip, key.mode_at(rip)) {
            return None;
        }
        let side = code_mode::side(key.mode_at(rip));
        let known = self.groups.by_page[side as usize].get(&page.host).copied();
        if let Some(whole) = whole {
            // It is entered from that one without a look at where both are.
            let own = self.blocks[whole].parts.group;
            return known.filter(|group| own == known && self.groups.all[*group as usize].linear == linear);
        }
        let group = match known {
            Some(group) => group,
            None if self.groups.all.len() < arena::PAGES => {
                let number = self.groups.add(side, 0, self.epochs[side as usize]);
                self.groups.by_page[side as usize].insert(page.host, number);
                self.place_group(number, linear);
                number
            }
            None => return None,
        };
        self.bring(context, group, linear, false).then_some(group)
    }

    /// What a translation of code at `rip`, in `page`, is found again with, if it is not moved.
    pub(crate) fn anchor_for(&mut self, page: &Page, rip: u64, code_mode: u64) -> Option<u32> {
        if may_move(rip, code_mode) {
            return None;
        }
        let side = code_mode::side(code_mode);
        let place = (page.host, rip & !0xfff);
        let anchors = &mut self.groups.anchors[side as usize];
        if let Some(known) = anchors.get(&place) {
            return Some(*known);
        }
        if anchors.len() >= ANCHORS {
            return None;
        }
        let number = self.groups.add(side, place.1, 0);
        self.groups.anchors[side as usize].insert(place, number);
        Some(number)
    }

    /// What code of `group` counts its addresses from.
    pub(crate) fn base_of(&self, group: u32, code_mode: u64) -> Base {
        let cell = self.address(arena::CELLS + 8 * group as usize);
        Base { cell, linear: self.groups.all[group as usize].linear, narrow: code_mode & BITS_64 == 0 }
    }

    /// Block `number` is moved with `group` from now on.
    pub(crate) fn join(&mut self, group: Option<u32>, number: u32) {
        if let Some(group) = group {
            self.groups.all[group as usize].blocks.push(number);
        }
    }

    /// The translation of `block` for `key`, at `rip`, if there is one. Its page is there then. If translated code is
    /// `running`, none is found that had to be taken from elsewhere first. The page's translation is `local` if it is not global.
    pub(crate) fn find(
        &mut self,
        context: &mut Context,
        block: *mut Block,
        (key, rip): (CodeKey, u64),
        local: bool,
        running: bool,
    ) -> Option<u64> {
        if may_move(rip, key.mode_at(rip)) {
            let place = place_in_table(key, rip, block, true);
            // SAFETY: `Blocks::sweep` and `Blocks::age` keep the blocks of translations.
            let known = unsafe { (*block).moving_translation(place.0) };
            let found = known.or_else(|| {
                let code = *self.table.get(&place)?;
                let group = self.blocks[self.number_at(code)?].parts.group?;
                // SAFETY: as above.
                unsafe { (*block).set_moving_translation(place.0, code, group) };
                Some((code, group))
            });
            if let Some((code, group)) = found {
                let there = self.go_to(context, group, (rip, key.mode_at(rip)), local, running);
                return there.then_some(code);
            }
        }
        self.table.get(&place_in_table(key, rip, block, false)).copied()
    }

    /// Brings the page of `group` to where `rip` is, which is about to be executed in `code_mode`, and what leads there with it;
    /// whether that could be done while translated code is `running` or not. The page's translation is `local` if it is not global.
    pub(crate) fn go_to(
        &mut self,
        context: &mut Context,
        group: u32,
        (rip, code_mode): (u64, u64),
        local: bool,
        running: bool,
    ) -> bool {
        let there = self.bring(context, group, rip & !0xfff, running);
        if there {
            self.arrive(context, group, code_mode, local);
        }
        there
    }

    /// The page of `home`, whose translation is `local` if it is not global, was found where it is, and is about to be executed in
    /// `code_mode`.
    pub(crate) fn arrive(&mut self, context: &mut Context, home: u32, code_mode: u64, local: bool) {
        if local && !self.groups.all[home as usize].sure {
            self.find_again(context, home, code_mode);
        }
    }

    /// Gives the page of `group` the address `linear`; whether that could be done while translated code is `running` or not.
    fn bring(&mut self, context: &mut Context, group: u32, linear: u64, running: bool) -> bool {
        let (before, current) = {
            let group = &mut self.groups.all[group as usize];
            let epoch = self.epochs[group.side as usize];
            let current = std::mem::replace(&mut group.epoch, epoch) == epoch;
            (group.linear, current)
        };
        if before == linear {
            return true;
        }
        if current {
            if running {
                return false;
            }
            self.take_back(context, group);
        }
        self.counts.moved += 1;
        self.place_group(group, linear);
        self.groups.all[group as usize].sure = false;
        true
    }

    fn place_group(&mut self, group: u32, linear: u64) {
        self.groups.all[group as usize].linear = linear;
        self.arena().write(arena::CELLS + 8 * group as usize, &linear.to_le_bytes());
    }

    /// Takes back all that leads to the blocks of `group` from other pages, and from there to other pages.
    fn take_back(&mut self, context: &mut Context, group: u32) {
        let blocks = std::mem::take(&mut self.groups.all[group as usize].blocks);
        for number in &blocks {
            let rip = self.rip_of(*number);
            let block = &mut self.blocks[*number];
            context.targets[targets::table(block.mode, block.key.mode_at(block.rip))].forget(rip);
            if let Some(reach) = &mut block.reach {
                // The other page may be another one elsewhere.
                reach.pages.iter_mut().skip(1).for_each(|page| page.sure = false);
            }
            let guard = block.reach.as_ref().map(|reach| (block.entry, jump(block.entry, reach.check)));
            let (incoming, links) = (std::mem::take(&mut block.incoming), block.parts.links.clone());
            if let Some((entry, jump)) = guard {
                self.arena().write(entry, &jump);
            }
            for link in &incoming {
                let source = self.links.get(*link).map(|link| link.source);
                if source.is_some_and(|source| self.group_of(source) != Some(group)) {
                    self.unlink(*link);
                }
            }
            self.blocks[*number].incoming = incoming;
            for link in links {
                // Within the page, what is moved too stays where it is.
                if self.links[link].slot {
                    self.unlink(link);
                }
            }
        }
        self.groups.all[group as usize].blocks = blocks;
    }

    /// The blocks of `group` that are in `piece` of the code memory are gone.
    pub(crate) fn leave_group(&mut self, group: Option<u32>, piece: usize) {
        if let Some(group) = group {
            self.groups.all[group as usize].blocks.retain(|number| piece_of(*number) != piece);
        }
    }

    /// What block `number` is moved with.
    pub(crate) fn group_of(&self, number: u32) -> Option<u32> {
        self.blocks.get(number)?.parts.group
    }

    /// What block `number` is found again with: its group or its anchor.
    pub(crate) fn home_of(&self, number: u32) -> Option<u32> {
        let parts = &self.blocks.get(number)?.parts;
        parts.group.or(parts.anchor)
    }

    /// Whether it is known where `group` is, and a flush takes that back.
    pub(crate) fn is_current(&self, group: u32) -> bool {
        let group = &self.groups.all[group as usize];
        group.epoch == self.epochs[group.side as usize]
    }

    /// Whether `rip` is in the page that block `number` begins in.
    pub(crate) fn is_at(&self, number: u32, rip: u64) -> bool {
        self.blocks.get(number).is_some() && (self.rip_of(number) ^ rip) >> 12 == 0
    }

    /// How much further on block `number` is than where it was made.
    pub(crate) fn distance_of(&self, number: u32) -> u64 {
        let Some(block) = self.blocks.get(number) else { return 0 };
        let Some(group) = block.parts.group else { return 0 };
        self.groups.all[group as usize].linear.wrapping_sub(block.rip & !0xfff)
    }

    /// Where block `number` is.
    pub(crate) fn rip_of(&self, number: u32) -> u64 {
        self.blocks[number].rip.wrapping_add(self.distance_of(number))
    }

    /// The address of block `number`, and its mode.
    pub(crate) fn key_of(&self, number: u32) -> CodeKey {
        // Both are user addresses, so that nothing is carried into what says the mode.
        self.blocks[number].key.moved(self.distance_of(number))
    }
}
