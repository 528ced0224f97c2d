//! Translation: guest code becomes host code.
//!
//! A block that was executed often enough is translated for the address that it is executed at.
//! Most guest registers live in host registers, vector registers and flags included; GS points into
//! the vCPU ([`Translating`]), where the rest is. What is not worth translating calls its generic implementation,
//! and whatever is unusual (a fault, a device, a page crossing) leaves translated code with the
//! state as it is before the instruction, which is then executed by itself. So the interpreter
//! remains the one place where faults and exits are made.

#![allow(
    rustdoc::private_intra_doc_links,
    reason = "this documentation is for those who work here, and made with private items"
)]

mod again;
mod arena;
mod asm;
#[cfg(test)]
mod at_once_tests;
mod calls;
mod codes;
mod cold;
mod context;
mod copy;
mod engine;
mod flags;
mod flow;
mod generic;
mod homes;
mod host;
mod kept;
mod legacy;
mod links;
mod lower;
mod memory;
mod moving;
mod narrow;
#[cfg(test)]
mod nested_tests;
mod pieces;
#[cfg(test)]
mod promptness_tests;
mod reach;
#[cfg(test)]
mod spaces_tests;
#[cfg(test)]
mod stride_tests;
mod strings;
mod stubs;
mod system;
mod targets;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod trace;
mod translate;
mod vcpu;
mod vector;
#[cfg(test)]
mod warm_tests;
mod window;
mod x87;

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex};

use satori_code::Arena;
use satori_engine::{CodeWatcher, Made, Origin};
use satori_lock::Held;
use satori_memory::PageState;
use satori_soft::block::{AddressHasher, Addresses as BlockAddresses, Block};
use satori_soft::code_mode::{self, CodeKey};
use satori_soft::mmu::{BUCKETS, Fetches, Mode, SIDES, Scope, Side, bucket};

use asm::Asm;
use codes::Codes;
use context::Context;
pub use engine::Translator;
use host::Host;
use kept::{Part, Source, Use};
use moving::{Groups, Parts};
use pieces::Place;
use reach::{Page, Reach, jump};
use stubs::Stubs;
use vcpu::Translating;

/// Executions of a block before it is translated.
const HOT: u32 = 12;
/// Instructions between two looks at whether somebody wants something of the vCPU.
const CHUNK: i64 = 2048;

/// Why translated code was left. The rest of the word is the number of a link.
mod reason {
    /// Go on at RIP.
    pub(crate) const DISPATCH: u32 = 0;
    /// Execute the instruction at RIP by itself.
    pub(crate) const STEP: u32 = 1;
    /// Go on at RIP, and let the link whose number follows lead there directly.
    pub(crate) const LINK: u32 = 2;
    /// Execute the instruction at RIP by itself; it branches, to where the table shall lead next time.
    pub(crate) const BRANCH: u32 = 3;
    /// A generic implementation raised an exception.
    pub(crate) const FAULT: u32 = 4;
    /// A generic implementation needs the machine.
    pub(crate) const EXIT: u32 = 5;
    /// Go on at RIP, and let the table lead there next time.
    pub(crate) const ARRIVE: u32 = 6;
    /// Bits of the reason.
    pub(crate) const BITS: u32 = 8;
}

/// Counts of what translation did.
#[derive(Clone, Copy, Debug, Default)]
struct JitCounts {
    /// Blocks translated.
    pub translated: u64,
    /// Instructions in them.
    pub instructions: u64,
    /// Of those, how many call their generic implementation.
    pub generic: u64,
    /// Bytes of code made.
    pub bytes: u64,
    /// Times that translated code was entered.
    pub entered: u64,
    /// Times that it was left, by [`reason`].
    pub left: [u64; 8],
    /// Jumps that were led directly to their target.
    pub linked: u64,
    /// Translated blocks whose bytes were written.
    pub dropped: u64,
    /// Translated blocks whose page was written elsewhere, and that were executed again.
    pub opened: u64,
    /// Times that the oldest piece of the code memory was emptied.
    pub pieces: u64,
    /// Data translations filled in for translated code.
    pub misses: u64,
    /// Instructions executed through calls of generic implementations.
    pub helped: u64,
    /// Indirect branches whose target was not in the table.
    pub unmet: u64,
    /// Pages whose translations were given another linear address.
    pub moved: u64,
    /// Jumps and targets that were found again with their pages.
    pub again: u64,
    /// Bytes of the code memory that were in use at once, at most.
    pub most: u64,
}

/// A translated block. What leads to it and from it asks for what comes first.
#[repr(C)]
struct Translated {
    block: *mut Block,
    /// Where it stood when it was made.
    rip: u64,
    /// Its address then, and mode.
    key: CodeKey,
    /// Offset of its first instruction in the code memory.
    entry: usize,
    /// Where it is, if that is in more than its own page.
    reach: Option<Box<Reach>>,
    /// The value of its page's state that it is valid under: the block may be so under another one.
    value: u32,
    /// The number of the one that it is the rest of, or its own.
    whole: u32,
    /// What it is made of beside its code.
    parts: Parts,
    /// Offset of what leaves the code at its address.
    leave: usize,
    /// The mode that it runs in.
    mode: Mode,
    /// It is the rest of one whose windows failed.
    rest: bool,
    /// Whether it may be entered.
    used: Use,
    /// Links that were led here.
    incoming: Vec<u32>,
    /// The guest's bytes that it was made of.
    source: Part,
}

impl Translated {
    /// Whether none of its pages was written since.
    fn valid(&self) -> bool {
        match &self.reach {
            Some(reach) => reach.pages.iter().all(Page::valid),
            // SAFETY: `Blocks::sweep` and `Blocks::age` keep the blocks of translations. Page states
            // live as long as guest memory, which the Cpu holds.
            None => unsafe { (*(*self.block).state()).value() == self.value },
        }
    }

    /// Whether it is in use, and goes on in another page.
    fn reaches(&self) -> bool {
        self.reach.as_ref().is_some_and(|reach| reach.check != self.leave)
    }

    /// Whether it has code of the page with `state`.
    fn made_of(&self, state: *const PageState) -> bool {
        // SAFETY: as above.
        let own = unsafe { (*self.block).state() };
        own == state
            || self.reach.as_ref().is_some_and(|reach| reach.pages.iter().any(|page| page.state == state))
    }
}

/// A jump from one block to another.
#[derive(Clone, Copy)]
struct Link {
    /// The linear address that it goes to; with a group, counted from where the group's page is, unless the link is fixed.
    rip: u64,
    /// The mode of the code there.
    mode: u64,
    /// Offset of the jump's distance, or of the slot that it goes through.
    place: u32,
    /// What goes to the dispatcher.
    unlinked: u32,
    /// The target is in another page, whose translation may change: there is a slot.
    slot: bool,
    /// The code that the jump leads to now, as it was written last.
    code: u64,
    /// The number of the block of that code. The block lists this link, to take it back when it goes.
    target: u32,
    /// The number of the block that jumps.
    source: u32,
    /// What its block is moved with.
    group: Option<u32>,
    /// The target stays where it is when the block is elsewhere.
    fixed: bool,
}

/// What leads to pages by their linear addresses.
#[derive(Default)]
struct Dependents {
    /// Links to other pages.
    slots: Vec<u32>,
    /// Targets in use: table and set.
    targets: Vec<(u8, u16)>,
    /// Blocks that go on there.
    blocks: Vec<u32>,
    /// Pages that move and were found there.
    groups: Vec<u32>,
}

impl Dependents {
    /// None, for each side, scope and bucket.
    fn none() -> Box<[[[Self; BUCKETS]; 2]; SIDES]> {
        Box::new(std::array::from_fn(|_| std::array::from_fn(|_| std::array::from_fn(|_| Self::default()))))
    }
}

/// Arenas that no vCPU uses, for those of the machine's next life.
type Pool = Arc<Mutex<Vec<Arena>>>;

/// Bytes from an access to the first that a window for it may have, and behind the last; nothing at all if both are 0.
type Extent = (i64, i64);

/// Keys of code.
type Addresses = HashSet<CodeKey, BuildHasherDefault<AddressHasher>>;

/// How translation is done.
#[derive(Clone, Debug)]
struct Manner {
    /// Executions of a block before it is translated.
    pub hot: u32,
    /// Translated code counts the branches that met a known target.
    pub counting: bool,
    /// Who is told of what is made.
    pub watcher: Option<Arc<dyn CodeWatcher>>,
    pub host: Host,
}

/// The translator of one vCPU.
struct Jit {
    arena: Option<Arena>,
    pool: Pool,
    stubs: Stubs,
    /// Where the next block comes.
    place: Place,
    /// Retired instructions at which the next piece of the code memory is moved to a large page.
    enlarge_at: u64,
    asm: Asm,
    spare: translate::Spare,
    blocks: pieces::Blocks,
    links: pieces::Links,
    /// What is moved together, and by page on the host.
    groups: Groups,
    /// Flushes of what belongs to an address space, for each side.
    epochs: [u64; SIDES],
    /// How far the windows of instructions may reach, in bytes from the access to the first and behind the last, where they
    /// crossed pages again and again.
    extents: HashMap<CodeKey, Extent, BuildHasherDefault<AddressHasher>>,
    /// Loops whose accesses change pages about every other round: their windows reach over pages that are adjacent on the host.
    wide: Addresses,
    /// Loops of [`Jit::wide`] whose pages are not adjacent: they get no wide windows any more.
    scattered: Addresses,
    /// How often blocks were made in vain that go on in other pages, by address and mode.
    in_vain: HashMap<CodeKey, u8, BuildHasherDefault<AddressHasher>>,
    /// Translations by mode, address and block.
    table: HashMap<(CodeKey, usize), u64, BuildHasherDefault<AddressHasher>>,
    /// The same of what goes on without windows in the middle of a block.
    rests: HashMap<(CodeKey, usize), u64, BuildHasherDefault<AddressHasher>>,
    /// Those that were found when jumps and indirect branches asked for them.
    codes: Codes,
    /// Numbers of translated blocks by where their code is.
    by_entry: pieces::Entries,
    /// Translated blocks that are open, by the pages that they have code of.
    pages: HashMap<*const PageState, Vec<u32>, BuildHasherDefault<AddressHasher>>,
    /// Translated blocks that are closed ([`Use::Closed`]), by what they are translations of.
    closed: HashMap<*mut Block, Vec<u32>, BuildHasherDefault<AddressHasher>>,
    /// What blocks were made of, by their piece of the code memory.
    sources: [Source; pieces::PIECES],
    /// What depends on translations of linear addresses, by [`Side`], [`Scope`] and [`bucket`].
    dependents: Box<[[[Dependents; BUCKETS]; 2]; SIDES]>,
    /// The state of things that all this was last brought up to date with.
    written: u64,
    /// The segments of 32-bit code that targets are known for, of the kernel and of the user, for each side.
    segments: [[u64; 2]; SIDES],
    /// The mode that the tables of targets are of, for each side.
    code_modes: [u64; SIDES],
    manner: Manner,
    pub counts: JitCounts,
}

// SAFETY: the pointers are to blocks and page states that the owning Cpu keeps; see `Blocks`.
unsafe impl Send for Jit {}

impl Drop for Jit {
    fn drop(&mut self) {
        if let Some(arena) = self.arena.take() {
            self.pool.lock().held().push(arena);
        }
    }
}

impl Jit {
    /// Forgets what there are many of without freeing them, for a process that ends. No code may be entered any more.
    fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.blocks));
        std::mem::forget(std::mem::take(&mut self.links));
        std::mem::forget(std::mem::take(&mut self.table));
    }

    /// A translator with code memory from `pool`, or fresh. Nothing if the host refuses any.
    pub(crate) fn new(pool: &Pool, manner: Manner) -> Option<Box<Self>> {
        let spare = pool.lock().held().pop();
        let mut arena = match spare {
            Some(arena) => arena,
            None => Arena::new(arena::WHOLE).ok()?,
        };
        let mut asm = Asm::new(arena.address(0));
        let stubs = Stubs::emit(&mut asm, &manner.host);
        arena.write(0, &asm.code);
        let free = asm.code.len().next_multiple_of(64);
        if let Some(watcher) = &manner.watcher {
            let origin = Origin::Engine("calls and looks around");
            watcher.made(&Made { address: arena.address(0), code: &asm.code, origin });
        }
        Some(Box::new(Jit {
            arena: Some(arena),
            pool: pool.clone(),
            stubs,
            place: Place::new(free),
            enlarge_at: translate::ENLARGE_FROM,
            asm,
            spare: translate::Spare::default(),
            blocks: pieces::Blocks::default(),
            links: pieces::Links::default(),
            groups: Groups::default(),
            epochs: [0; SIDES],
            extents: HashMap::default(),
            wide: HashSet::default(),
            scattered: HashSet::default(),
            in_vain: HashMap::default(),
            table: HashMap::default(),
            rests: HashMap::default(),
            codes: Codes::new(),
            by_entry: pieces::Entries::default(),
            pages: HashMap::default(),
            closed: HashMap::default(),
            sources: Default::default(),
            dependents: Dependents::none(),
            written: 0,
            segments: [[0; 2]; SIDES],
            code_modes: [0; SIDES],
            manner,
            counts: JitCounts::default(),
        }))
    }

    /// Whether translated code counts the branches that met a known target.
    pub(crate) fn counting(&self) -> bool {
        self.manner.counting
    }

    fn arena(&mut self) -> &mut Arena {
        self.arena.as_mut().expect("only a drop takes it")
    }

    fn address(&self, offset: usize) -> u64 {
        self.arena.as_ref().expect("only a drop takes it").address(offset)
    }

    /// The number of the block whose code is executed from `code` on.
    fn number_at(&self, code: u64) -> Option<u32> {
        self.by_entry.get(code.wrapping_sub(self.address(0)) as usize)
    }

    /// Where the byte at `offset` of the code that is being made will be in the code memory.
    fn placed(&self, offset: usize) -> usize {
        (self.asm.address(offset) - self.address(0)) as usize
    }

    /// The blocks that were translated, as long as that is not forgotten.
    pub(crate) fn translated(&self) -> BlockAddresses {
        self.blocks.iter().map(|one| one.block).collect()
    }

    /// Takes note of the mode that code is executed in from here on. The tables of targets say less of it than translations
    /// depend on, so those of its side are of this one only.
    #[inline(always)]
    fn notice_mode(&mut self, context: &mut Context, code_mode: u64) {
        if self.code_modes[code_mode::side(code_mode) as usize] != code_mode {
            self.change_mode(context, code_mode);
        }
    }

    #[inline(never)]
    fn change_mode(&mut self, context: &mut Context, code_mode: u64) {
        let side = code_mode::side(code_mode);
        let before = std::mem::replace(&mut self.code_modes[side as usize], code_mode);
        if (before ^ code_mode) & code_mode::VECTORS != 0 {
            self.forget_tables(context, side, |_| true);
        }
        if code_mode & code_mode::BITS_64 == 0 {
            self.choose_targets(context, side, code_mode);
        }
    }

    /// Forgets the targets of indirect branches in those tables of `side` that `which` picks.
    fn forget_tables(&mut self, context: &mut Context, side: Side, which: impl Fn(u8) -> bool) {
        for dependents in self.dependents[side as usize].iter_mut().flatten() {
            for (table, set) in dependents.targets.extract_if(.., |(table, _)| which(*table)) {
                context.targets[usize::from(table)].clear(set.into());
            }
        }
    }

    /// Prepares the targets of 32-bit code for `code_mode`: the tables are chosen by privilege alone, so those of other segments are
    /// forgotten when the segments change.
    fn choose_targets(&mut self, context: &mut Context, side: Side, code_mode: u64) {
        let segments = code_mode & code_mode::SEGMENTS;
        let user = code_mode & code_mode::USER != 0;
        if std::mem::replace(&mut self.segments[side as usize][usize::from(user)], segments) != segments {
            self.forget_tables(context, side, |table| targets::narrow(table) == Some(user));
        }
    }

    /// What depends on translations of `scope` for `side`, by [`bucket`].
    fn dependents(&mut self, side: Side, scope: Scope) -> &mut [Dependents; BUCKETS] {
        &mut self.dependents[side as usize][scope as usize]
    }

    /// Whether translations became void since this was last brought up to date.
    fn is_behind(&self, fetches: &Fetches) -> bool {
        fetches.voided() || self.written != PageState::invalidations()
    }

    /// Brings the translations up to date with what happened outside, for code of `code_mode`.
    #[inline(always)]
    fn refresh(&mut self, context: &mut Context, fetches: &mut Fetches, code_mode: u64) {
        self.notice_mode(context, code_mode);
        if fetches.voided() {
            self.flush_voided(context, fetches);
        }
        if self.written != PageState::invalidations() {
            self.drop_written(context);
        }
    }

    #[inline(never)]
    fn flush_voided(&mut self, context: &mut Context, fetches: &mut Fetches) {
        let Some(voided) = fetches.take_voided() else { return };
        for side in Side::ALL {
            for scope in [Scope::Local, Scope::Global] {
                let void = voided.buckets[side as usize][scope as usize];
                if voided.all[side as usize][scope as usize] {
                    self.flush(context, side, scope, 0..BUCKETS);
                    self.epochs[side as usize] += u64::from(scope == Scope::Local);
                } else if void != 0 {
                    self.flush(context, side, scope, (0..BUCKETS).filter(|bucket| void & 1 << bucket != 0));
                }
            }
        }
    }

    /// Unlinks what leads to translations of `scope` for `side` in one of `buckets`, which are void now.
    fn flush(
        &mut self,
        context: &mut Context,
        side: Side,
        scope: Scope,
        buckets: impl Iterator<Item = usize>,
    ) {
        for bucket in buckets {
            self.forget_places(side, bucket);
            let here = &mut self.dependents[side as usize][scope as usize][bucket];
            if here.slots.is_empty() && here.targets.is_empty() && here.blocks.is_empty() {
                continue;
            }
            // It is put back empty: many spaces have as many of them again.
            let mut void = std::mem::take(here);
            for (table, set) in void.targets.drain(..) {
                context.targets[usize::from(table)].clear(set.into());
            }
            void.slots.drain(..).for_each(|link| self.unlink(link));
            void.blocks.drain(..).for_each(|number| self.guard(number, bucket));
            self.dependents[side as usize][scope as usize][bucket] = void;
        }
    }

    /// Lets a link go to the dispatcher again.
    fn unlink(&mut self, link: u32) {
        // Those of a piece that was emptied need nothing.
        let Some(&Link { place, unlinked, slot, .. }) = self.links.get(link) else { return };
        if slot {
            let unlinked = self.address(unlinked as usize);
            self.arena().write(place as usize, &unlinked.to_le_bytes());
        } else {
            let distance = unlinked as i32 - (place as i32 + 4);
            self.arena().write(place as usize, &distance.to_le_bytes());
        }
    }

    /// Takes translated blocks of pages that were written out of use: who is about to enter one leaves at once.
    fn drop_written(&mut self, context: &mut Context) {
        let mut stale: Vec<u32> = Vec::new();
        let mut written = Vec::new();
        if PageState::invalidated_since(&mut self.written, |page| written.push(page)) {
            for page in written {
                let Some(mut blocks) = self.pages.remove(&page) else { continue };
                // What was made of the page since is kept.
                let valid = |one: &u32| self.blocks[*one].valid();
                stale.extend(blocks.iter().filter(|one| !valid(one)));
                blocks.retain(valid);
                if !blocks.is_empty() {
                    self.pages.insert(page, blocks);
                }
            }
        } else {
            self.pages.retain(|_, blocks| {
                let valid = |one: &u32| self.blocks[*one].valid();
                stale.extend(blocks.iter().filter(|one| !valid(one)));
                blocks.retain(valid);
                !blocks.is_empty()
            });
        }
        for one in stale {
            self.close(context, one);
        }
    }

    /// Takes one translated block out of use.
    fn retire(&mut self, context: &mut Context, number: u32) {
        self.blocks[number].used = Use::Gone;
        let Translated { block, entry, leave, rip, mode, key, rest, .. } = self.blocks[number];
        let (place, now) =
            (moving::place_in_table(key, rip, block, self.group_of(number).is_some()), self.rip_of(number));
        for link in std::mem::take(&mut self.blocks[number].incoming) {
            self.unlink_for_good(link);
        }
        context.targets[targets::table(mode, key.mode_at(rip))].forget(now);
        self.forget_target(self.home_of(number), number);
        if let Some(reach) = &mut self.blocks[number].reach {
            // It may be running, and is made of those pages until it ends.
            reach.check = leave;
        }
        self.arena().write(entry, &jump(entry, leave));
        // It may have been taken out of use before, and another one be in its place.
        let code = self.address(entry);
        let table = if rest { &mut self.rests } else { &mut self.table };
        if table.get(&place) == Some(&code) {
            table.remove(&place);
        }
        // SAFETY: `Blocks::sweep` and `Blocks::age` keep the blocks of translations.
        let block = unsafe { &*block };
        block.forget_translation();
        self.codes.forget(block.host(), place.0);
    }
}
