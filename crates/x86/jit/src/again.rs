//! What leads to and from pages, found again at once: pages that move, and those that code is executed in at one address.
//!
//! A flush takes back the jumps between pages and the targets of indirect branches, as the pages may be elsewhere in the next
//! address space, or others be there. Mostly they are not: a library's pages keep their distances. So two pages remember the
//! jumps between them, a page those of its addresses that were targets, and once both pages were found where they belong
//! (after that flush, by a translation that the guest's tables gave), all of them lead there again, and none has to be
//! found one by one.

use super::pieces::piece_of;
use super::{Context, Jit, targets};
use satori_soft::mmu::{Mode, Scope, Side, bucket};

/// The jumps from one page to another that is `distance` bytes on.
pub(crate) struct Pair {
    from: u32,
    to: u32,
    distance: u64,
    /// Their numbers, and where each led.
    links: Vec<(u32, u64)>,
}

/// An address in a page that indirect branches led to.
pub(crate) struct Known {
    offset: u64,
    /// The mode of the code there, and the number of the block.
    code_mode: u64,
    block: u32,
    code: u64,
    /// Whose table of targets had it.
    mode: Mode,
}

/// Most pairs of pages that are remembered: more than programs have. The bound is for pages whose distance changes each time.
const PAIRS: u32 = 1 << 16;
/// Jumps that a pair remembers.
const LINKS: usize = 512;
/// Targets that a page remembers.
const TARGETS: usize = 256;

impl Jit {
    /// Remembers that `link` leads to `code` of block `target`, in another page, if both are in pages that move.
    pub(crate) fn remember_link(&mut self, link: u32, source: u32, target: u32, code: u64) {
        let (Some(from), Some(to)) = (self.home_of(source), self.home_of(target)) else { return };
        if from == to {
            return;
        }
        let distance = self.linear_of(to).wrapping_sub(self.linear_of(from));
        let (next, key) = (self.groups.pairs.len() as u32, (from, to, distance));
        if next >= PAIRS && !self.groups.by_pair.contains_key(&key) {
            return;
        }
        let number = *self.groups.by_pair.entry(key).or_insert(next);
        if number == next {
            self.groups.pairs.push(Pair { from, to, distance, links: Vec::new() });
            self.groups.all[from as usize].pairs.push(number);
            self.groups.all[to as usize].pairs.push(number);
        }
        let links = &mut self.groups.pairs[number as usize].links;
        match links.iter().position(|(known, _)| *known == link) {
            Some(place) => links[place].1 = code,
            None if links.len() < LINKS => links.push((link, code)),
            None => {}
        }
    }

    /// Remembers that `code` at `rip` is a target of indirect branches that look into the table of `mode`.
    pub(crate) fn remember_target(&mut self, rip: u64, code: u64, mode: Mode, code_mode: u64) {
        let Some(block) = self.number_at(code) else { return };
        let Some(group) = self.home_of(block) else { return };
        let known = Known { offset: rip & 0xfff, code_mode, block, code, mode };
        let all = &mut self.groups.all[group as usize].known;
        match all.iter().position(|one| one.offset == known.offset && one.code_mode == code_mode) {
            Some(place) => all[place] = known,
            None if all.len() < TARGETS => all.push(known),
            None => {}
        }
    }

    /// The page of `group` was found at its address in the address space, by a translation that is not global; it is executed
    /// in `code_mode`.
    pub(crate) fn find_again(&mut self, context: &mut Context, group: u32, code_mode: u64) {
        let linear = self.linear_of(group);
        let here = bucket(linear);
        let side = self.groups.all[group as usize].side;
        self.groups.all[group as usize].sure = true;
        self.dependents(side, Scope::Local)[here].groups.push(group);
        for at in 0..self.groups.all[group as usize].pairs.len() {
            let pair = self.groups.all[group as usize].pairs[at] as usize;
            let Pair { from, to, distance, .. } = self.groups.pairs[pair];
            let (from, to) = (&self.groups.all[from as usize], &self.groups.all[to as usize]);
            if from.sure && to.sure && to.linear.wrapping_sub(from.linear) == distance {
                let there = bucket(to.linear);
                self.lead_again(pair, side, there);
            }
        }
        for known in &self.groups.all[group as usize].known {
            if known.code_mode == code_mode {
                let (rip, table) = (linear | known.offset, targets::table(known.mode, code_mode));
                self.counts.again += 1;
                context.targets[table].note(rip, known.code);
                let target = (table as u8, targets::set_of(rip) as u16);
                self.dependents[side as usize][Scope::Local as usize][here].targets.push(target);
            }
        }
    }

    fn lead_again(&mut self, pair: usize, side: Side, there: usize) {
        let links = std::mem::take(&mut self.groups.pairs[pair].links);
        for (link, code) in &links {
            // It may lead elsewhere since, or its target be gone.
            if let Some(known) = self.links.get(*link)
                && known.code == *code
            {
                let place = known.place as usize;
                self.counts.again += 1;
                self.arena().write(place, &code.to_le_bytes());
                self.dependents(side, Scope::Local)[there].slots.push(*link);
            }
        }
        self.groups.pairs[pair].links = links;
    }

    /// Translations of pages in `bucket` are void for `side`: none of them is known to be where it was.
    pub(crate) fn forget_places(&mut self, side: Side, bucket: usize) {
        let here = &mut self.dependents[side as usize][Scope::Local as usize][bucket].groups;
        for group in &*here {
            self.groups.all[*group as usize].sure = false;
        }
        here.clear();
    }

    /// Block `number` of `group` is no target any more.
    pub(crate) fn forget_target(&mut self, group: Option<u32>, number: u32) {
        if let Some(group) = group {
            self.groups.all[group as usize].known.retain(|known| known.block != number);
        }
    }

    /// The blocks and links of `piece` of the code memory are gone.
    pub(crate) fn forget_piece(&mut self, piece: usize) {
        for pair in &mut self.groups.pairs {
            pair.links.retain(|(link, _)| piece_of(*link) != piece);
        }
        for group in &mut self.groups.all {
            group.known.retain(|known| piece_of(known.block) != piece);
        }
    }

    /// Forgets all pairs once there are so many that none can be added: some are of pages that are nowhere any more.
    pub(crate) fn forget_pairs_if_full(&mut self) {
        if self.groups.pairs.len() as u32 >= PAIRS {
            self.groups.pairs.clear();
            self.groups.by_pair.clear();
            self.groups.all.iter_mut().for_each(|group| group.pairs.clear());
        }
    }

    fn linear_of(&self, group: u32) -> u64 {
        self.groups.all[group as usize].linear
    }
}
