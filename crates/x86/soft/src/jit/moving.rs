//! Translations that go along with their page.
//!
//! The same page of a program or library is mapped at another linear address in each process, as those are chosen at
//! random. Its bytes are the same, and so is its code but for the constants that are linear addresses: places of those
//! are kept, and all translations of a page are moved to where it is executed now by adding to them. Jumps within the page
//! stay as they are; what leads there from elsewhere, and from there to elsewhere, is found anew.
//!
//! Pages are moved only between two runs of translated code. A page has one linear address at a time; what has to be
//! made for another one meanwhile stays where it is, and is found by that address alone.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;

use super::pieces::piece_of;
use super::reach::{Page, jump};
use super::{AddressHasher, Context, Jit, generic, targets, window};

/// What is nearer than this to a block may be reached from it by a displacement of 32 bits.
pub const NEAR: u64 = 1 << 31;
/// Addresses at which all that is near has 64-bit constants, and is canonical: where Linux maps programs that may be
/// anywhere, libraries and the vDSO. What is elsewhere is not moved.
const ANYWHERE: Range<u64> = 1 << 33..(1 << 47) - NEAR - 0x1_0000;

/// What a translated block is made of beside its code.
pub struct Parts {
    /// What generic implementations are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    pub sites: Vec<Box<generic::Site>>,
    /// What looks for a window's range are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    pub ranges: Vec<Box<window::Range>>,
    /// The numbers of its links.
    pub links: Range<u32>,
    /// Offsets, in the code memory, of the constants that are linear addresses.
    pub places: Box<[u32]>,
    /// What it is moved with.
    pub group: Option<u32>,
}

/// All translations that begin in one page and may be moved.
struct Group {
    /// The linear address of the page that they are made for now.
    linear: u64,
    blocks: Vec<u32>,
}

/// What is moved together.
#[derive(Default)]
pub struct Groups {
    all: Vec<Group>,
    /// By the page's first byte on the host.
    by_page: HashMap<*const u8, u32, BuildHasherDefault<AddressHasher>>,
}

impl Jit {
    /// What a translation of code at `rip`, in `page`, is moved with, if it is moved at all; `whole` is the block that it
    /// belongs to.
    pub fn group_for(&mut self, page: &Page, rip: u64, whole: Option<u32>) -> Option<u32> {
        let linear = rip & !0xfff;
        if !ANYWHERE.contains(&rip) {
            return None;
        }
        let known = self.groups.by_page.get(&page.host).copied();
        if let Some(whole) = whole {
            // It is entered from that one without a look at where both are.
            let own = self.blocks[whole].parts.group;
            let same = |group: &u32| own == Some(*group) && self.groups.all[*group as usize].linear == linear;
            return known.filter(same);
        }
        match known {
            Some(group) => (self.groups.all[group as usize].linear == linear).then_some(group),
            None => {
                let number = self.groups.all.len() as u32;
                self.groups.all.push(Group { linear, blocks: Vec::new() });
                self.groups.by_page.insert(page.host, number);
                Some(number)
            }
        }
    }

    /// Block `number` is moved with `group` from now on.
    pub fn join(&mut self, group: Option<u32>, number: u32) {
        if let Some(group) = group {
            self.groups.all[group as usize].blocks.push(number);
        }
    }

    /// Moves the translations of the page at `host` to where that is executed now, at `rip`; whether there are some that
    /// were elsewhere. No translated code may be running.
    pub fn move_page(&mut self, context: &mut Context, host: *const u8, rip: u64) -> bool {
        let Some(&number) = self.groups.by_page.get(&host) else { return false };
        let group = &mut self.groups.all[number as usize];
        let linear = rip & !0xfff;
        let distance = linear.wrapping_sub(group.linear);
        if distance == 0 || !ANYWHERE.contains(&rip) {
            return false;
        }
        group.linear = linear;
        self.counts.moved += 1;
        let mut blocks = std::mem::take(&mut group.blocks);
        blocks.retain(|block| {
            let stays = self.in_use_still(*block);
            if !stays {
                // Nothing may lead from what is moved to what is not.
                self.blocks[*block].parts.group = None;
            }
            stays
        });
        for block in &blocks {
            self.move_block(context, *block, distance, number);
        }
        self.groups.all[number as usize].blocks = blocks;
        true
    }

    /// The blocks of `group` that are in `piece` of the code memory are gone.
    pub fn leave_group(&mut self, group: Option<u32>, piece: usize) {
        if let Some(group) = group {
            self.groups.all[group as usize].blocks.retain(|number| piece_of(*number) != piece);
        }
    }

    /// Whether block `number` was not taken out of use.
    fn in_use_still(&self, number: u32) -> bool {
        let block = &self.blocks[number];
        let table = if block.rest { &self.rests } else { &self.table };
        table.get(&(block.key, block.block as usize)) == Some(&self.address(block.entry))
    }

    fn move_block(&mut self, context: &mut Context, number: u32, distance: u64, group: u32) {
        let code = self.address(self.blocks[number].entry);
        let block = &mut self.blocks[number];
        let before = (block.key, block.block as usize);
        context.targets[targets::table(block.mode, block.key ^ block.rip)].forget(block.rip);
        // Both are user addresses, so that nothing is carried into what says the mode.
        block.key = block.key.wrapping_add(distance);
        block.rip = block.rip.wrapping_add(distance);
        let after = (block.key, block.block as usize);
        // SAFETY: blocks live until `Blocks::reset`, which resets the translator first; `Blocks::sweep` keeps these.
        unsafe { (*block.block).forget_translation() };
        for site in &block.parts.sites {
            site.moved(distance);
        }
        for range in &block.parts.ranges {
            range.moved(distance);
        }
        if let Some(reach) = &mut block.reach {
            // The other page may be another one here.
            for (i, page) in reach.pages.iter_mut().enumerate() {
                page.linear = page.linear.wrapping_add(distance);
                page.sure &= i == 0;
            }
        }
        let guard = block.reach.as_ref().map(|reach| (block.entry, jump(block.entry, reach.check)));
        let (rest, links) = (block.rest, block.parts.links.clone());
        let places = std::mem::take(&mut block.parts.places);
        let incoming = std::mem::take(&mut block.incoming);
        for place in &places {
            self.arena().add(*place as usize, distance);
        }
        if let Some((entry, jump)) = guard {
            self.arena().write(entry, &jump);
        }
        let table = if rest { &mut self.rests } else { &mut self.table };
        table.remove(&before);
        table.insert(after, code);
        for link in &incoming {
            let source = self.links.get(*link).map(|link| link.source);
            if source.is_some_and(|source| self.group_of(source) != Some(group)) {
                self.unlink(*link);
            }
        }
        for number in links {
            let link = &mut self.links[number];
            if !link.fixed {
                link.key = link.key.wrapping_add(distance);
            }
            let (slot, target) = (link.slot, (link.code != 0).then_some(link.target));
            // Within the page, what is moved too stays where it is.
            if slot || target.is_none_or(|target| self.group_of(target) != Some(group)) {
                self.unlink(number);
            }
        }
        let block = &mut self.blocks[number];
        (block.parts.places, block.incoming) = (places, incoming);
    }

    /// What block `number` is moved with.
    fn group_of(&self, number: u32) -> Option<u32> {
        self.blocks[number].parts.group
    }
}
