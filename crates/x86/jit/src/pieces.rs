//! Code memory that ages: it is used piece by piece, and when all of it was used, the oldest piece is emptied.
//!
//! Numbers of blocks and links say which piece they are in, so that those of a piece begin anew with it. What is left
//! behind elsewhere is harmless: a number of a link among those that lead to a block, or that depend on a page, takes
//! back a jump too many, which is found again.

use std::collections::HashSet;
use std::ops::{Index, IndexMut};

use satori_memory::PageState;

use super::moving::place_in_table;
use super::{Context, Jit, Link, Translated, arena, targets, translate};

/// Pieces of the code memory.
pub(crate) const PIECES: usize = 8;
/// Bits of a number that count within a piece; with those for the pieces, a link's fits beside why code was left.
const BITS: u32 = 20;

/// Index of the piece of code memory that holds the block or link with this `number`: its upper bits.
pub(crate) fn piece_of(number: u32) -> usize {
    (number >> BITS) as usize
}

const _: () = assert!(
    arena::SELDOM / PIECES > translate::ROOM && (arena::SIZE - arena::SELDOM) / PIECES > translate::ROOM
);

/// What has numbers.
pub(crate) struct Numbered<T>([Vec<T>; PIECES]);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Numbered(std::array::from_fn(|_| Vec::new()))
    }
}

impl<T> Numbered<T> {
    /// The number of the next one in `piece`.
    pub(crate) fn next(&self, piece: usize) -> u32 {
        (piece as u32) << BITS | self.0[piece].len() as u32
    }

    /// Whether `count` more have numbers in `piece`.
    fn has_room(&self, piece: usize, count: usize) -> bool {
        self.0[piece].len() + count < 1 << BITS
    }

    pub(crate) fn push(&mut self, piece: usize, one: T) {
        self.0[piece].push(one);
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.0[piece_of(number)].get(number as usize & ((1 << BITS) - 1))
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.0[piece_of(number)].get_mut(number as usize & ((1 << BITS) - 1))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }

    /// Takes all entries of `piece` out; their numbers may be given anew from then on.
    fn take(&mut self, piece: usize) -> Vec<T> {
        std::mem::take(&mut self.0[piece])
    }
}

impl<T> Index<u32> for Numbered<T> {
    type Output = T;
    fn index(&self, number: u32) -> &T {
        &self.0[piece_of(number)][number as usize & ((1 << BITS) - 1)]
    }
}

impl<T> IndexMut<u32> for Numbered<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.0[piece_of(number)][number as usize & ((1 << BITS) - 1)]
    }
}

/// Bytes of the code memory, at a multiple of which each block begins.
const ALIGN: usize = 16;

/// Numbers of blocks by the offset of their code. The host gives memory only for parts of the table that are used.
pub(crate) struct Entries(Vec<u32>);

impl Default for Entries {
    fn default() -> Self {
        Entries(vec![0; arena::SELDOM / ALIGN])
    }
}

impl Entries {
    /// Block `number` is at `offset`, or none.
    pub(crate) fn set(&mut self, offset: usize, number: Option<u32>) {
        debug_assert!(offset.is_multiple_of(ALIGN));
        self.0[offset / ALIGN] = number.map_or(0, |number| number + 1);
    }

    pub(crate) fn get(&self, offset: usize) -> Option<u32> {
        debug_assert!(offset.is_multiple_of(ALIGN));
        self.0.get(offset / ALIGN)?.checked_sub(1)
    }
}

/// Where in the code memory the next block comes.
pub(crate) struct Place {
    /// Bytes of a piece's two parts: for code that runs often, and for code that seldom runs.
    sizes: (usize, usize),
    pub piece: usize,
    /// The first free bytes of it.
    pub often: usize,
    pub seldom: usize,
    /// Bytes used of each.
    used: [usize; PIECES],
}

impl Place {
    /// The whole code memory, of which `begin` bytes are taken for good.
    pub(crate) fn new(begin: usize) -> Self {
        let sizes = (arena::SELDOM / PIECES, (arena::SIZE - arena::SELDOM) / PIECES);
        Place { sizes, piece: 0, often: begin, seldom: arena::SELDOM, used: [0; PIECES] }
    }

    /// Pieces of these sizes.
    #[cfg(test)]
    pub(crate) fn shrink(&mut self, often: usize, seldom: usize) {
        self.sizes = (often, seldom);
    }

    /// Whether so many bytes fit.
    pub(crate) fn fits(&self, often: usize, seldom: usize) -> bool {
        self.often + often + 16 <= (self.piece + 1) * self.sizes.0
            && self.seldom + seldom + 8 <= arena::SELDOM + (self.piece + 1) * self.sizes.1
    }

    /// Takes so many bytes.
    pub(crate) fn take(&mut self, often: usize, seldom: usize) {
        let (often, seldom) = (often.next_multiple_of(ALIGN), seldom.next_multiple_of(8));
        self.often += often;
        self.seldom += seldom;
        self.used[self.piece] += often + seldom;
    }

    /// Bytes in use.
    pub(crate) fn in_use(&self) -> usize {
        self.used.iter().sum()
    }

    /// Goes on in the next piece, which is empty but for `begin` bytes of the first.
    fn advance(&mut self, begin: usize) {
        self.piece = (self.piece + 1) % PIECES;
        self.often = (self.piece * self.sizes.0).max(begin).next_multiple_of(64);
        self.seldom = arena::SELDOM + self.piece * self.sizes.1;
        self.used[self.piece] = 0;
    }
}

impl Jit {
    /// Whether a block of so many bytes, with so many links, fits.
    pub(crate) fn has_room(&self, often: usize, seldom: usize, links: usize) -> bool {
        let piece = self.place.piece;
        self.place.fits(often, seldom) && self.links.has_room(piece, links) && self.blocks.has_room(piece, 1)
    }

    /// Empties the oldest piece, for what comes next. No translated code may be running.
    pub(crate) fn next_piece(&mut self, context: &mut Context) {
        self.place.advance(self.stubs.end);
        let piece = self.place.piece;
        if piece == 0 {
            // What was learnt of addresses that may be nobody's any more.
            self.extents.clear();
            self.wide.clear();
            self.scattered.clear();
            self.in_vain.clear();
        }
        let first = (piece as u32) << BITS;
        let rips: Vec<u64> = (first..self.blocks.next(piece)).map(|number| self.rip_of(number)).collect();
        let gone = self.blocks.take(piece);
        self.counts.pieces += u64::from(!gone.is_empty());
        let kept = |number: &u32| piece_of(*number) != piece;
        let mut states: HashSet<*const PageState> = HashSet::new();
        for (one, rip) in gone.iter().zip(rips) {
            for link in one.incoming.iter().filter(|link| kept(link)) {
                self.unlink_for_good(*link);
            }
            context.targets[targets::table(one.mode, one.key.mode_at(one.rip))].forget(rip);
            let code = self.address(one.entry);
            let table = if one.rest { &mut self.rests } else { &mut self.table };
            let key = place_in_table(one.key, one.rip, one.block, one.parts.group.is_some());
            if table.get(&key) == Some(&code) {
                table.remove(&key);
            }
            self.by_entry.set(one.entry, None);
            // SAFETY: `Blocks::sweep` and `Blocks::age` keep the blocks of translations.
            unsafe {
                (*one.block).forget_translation();
                states.insert((*one.block).state());
            }
            states.extend(one.reach.iter().flat_map(|reach| reach.pages.iter().map(|page| page.state)));
            self.leave_group(one.parts.group, piece);
        }
        for state in states {
            if let Some(blocks) = self.pages.get_mut(&state) {
                blocks.retain(kept);
                if blocks.is_empty() {
                    self.pages.remove(&state);
                }
            }
        }
        self.links.take(piece);
        self.codes.clear();
        self.sources[piece].clear();
        self.closed.retain(|_, numbers| {
            numbers.retain(kept);
            !numbers.is_empty()
        });
        self.forget_piece(piece);
        self.forget_pairs_if_full();
        // A block's code without windows is entered only from that block, and reads what the block was made of:
        // where the block is gone, it must go too.
        let orphans: Vec<u32> = (0..PIECES as u32)
            .flat_map(|piece| (piece << BITS..self.blocks.next(piece as usize)).collect::<Vec<_>>())
            .filter(|number| !kept(&self.blocks[*number].whole))
            .collect();
        for orphan in orphans {
            self.retire(context, orphan);
        }
        for range in self.blocks.iter().flat_map(|one| &one.parts.ranges) {
            range.forget();
        }
    }

    /// Lets a link go to the dispatcher, as the block that it led to is gone.
    pub(crate) fn unlink_for_good(&mut self, link: u32) {
        if let Some(known) = self.links.get_mut(link) {
            known.code = 0;
            self.unlink(link);
        }
    }
}

pub(crate) type Blocks = Numbered<Translated>;
pub(crate) type Links = Numbered<Link>;
