//! Translation: guest code becomes host code.
//!
//! A block that was executed often enough is translated for the address that it is executed at.
//! Most guest registers live in host registers, vector registers and flags included; GS points to
//! the [`Cpu`], where the rest is. What is not worth translating calls its generic implementation,
//! and whatever is unusual (a fault, a device, a page crossing) leaves translated code with the
//! state as it is before the instruction, which is then executed by itself. So the interpreter
//! remains the one place where faults and exits are made.

mod arena;
mod asm;
mod calls;
mod cold;
mod context;
mod copy;
mod flags;
mod flow;
mod generic;
mod homes;
mod host;
mod links;
mod lower;
mod memory;
mod moving;
mod narrow;
mod pieces;
#[cfg(test)]
mod promptness;
mod reach;
mod strings;
mod stubs;
mod system;
mod targets;
#[cfg(test)]
mod tests;
mod trace;
mod vector;
#[cfg(test)]
mod warm;
mod window;
mod x87;

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::{Arc, Mutex};

use satori_engine::{CodeWatcher, Doing, Made, Origin};
use satori_memory::PageState;

pub use arena::Arena;
use asm::Asm;
pub use context::Context;
pub use host::Host;
use moving::{Groups, Parts};
pub use narrow::{CODE_32, CODE_64, code_mode as segment_mode};
use pieces::Place;
use reach::{Page, Reach, jump};
use stubs::Stubs;
use targets::Targets;
pub use vector::{CODE_MODE as VECTOR_MODE, code_mode as vector_mode};

use crate::block::{AddressHasher, Addresses as BlockAddresses, BUCKETS, Block, Scope, bucket};
use crate::cpu::{CODE_USER, Cpu};
use crate::mmu::Mode;

/// Executions of a block before it is translated.
pub const HOT: u32 = 12;
/// Instructions between two looks at whether somebody wants something of the vCPU.
const CHUNK: i64 = 2048;

/// Why translated code was left. The rest of the word is the number of a link.
pub mod reason {
    /// Go on at RIP.
    pub const DISPATCH: u32 = 0;
    /// Execute the instruction at RIP by itself.
    pub const STEP: u32 = 1;
    /// Go on at RIP, and let the link whose number follows lead there directly.
    pub const LINK: u32 = 2;
    /// Execute the instruction at RIP by itself; it branches, to where the table shall lead next time.
    pub const BRANCH: u32 = 3;
    /// A generic implementation raised an exception.
    pub const FAULT: u32 = 4;
    /// A generic implementation needs the machine.
    pub const EXIT: u32 = 5;
    /// Go on at RIP, and let the table lead there next time.
    pub const ARRIVE: u32 = 6;
    /// Bits of the reason.
    pub const BITS: u32 = 8;
}

/// Counts of what translation did.
#[derive(Clone, Copy, Debug, Default)]
pub struct JitCounts {
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
    /// Translated blocks whose page was written.
    pub dropped: u64,
    /// Times that all code was forgotten.
    pub resets: u64,
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
    /// Bytes of the code memory that were in use at once, at most.
    pub most: u64,
}

/// A translated block.
struct Translated {
    block: *mut Block,
    /// Offset of its first instruction in the code memory.
    entry: usize,
    /// Offset of what leaves the code at its address.
    leave: usize,
    /// Where it stood when it was made, and in which mode it runs.
    rip: u64,
    mode: Mode,
    /// Its address then, and mode.
    key: u64,
    /// It is the rest of one whose windows failed.
    rest: bool,
    /// The number of that one, or its own.
    whole: u32,
    /// Links that were led here.
    incoming: Vec<u32>,
    /// Where it is, if that is in more than its own page.
    reach: Option<Box<Reach>>,
    /// What it is made of beside its code.
    parts: Parts,
}

impl Translated {
    /// Whether none of its pages was written since.
    fn valid(&self) -> bool {
        // SAFETY: blocks live until `Blocks::reset`, which resets the translator first; `Blocks::sweep` keeps these.
        let valid = unsafe { (*self.block).valid() };
        valid && self.reach.as_ref().is_none_or(|reach| reach.pages.iter().all(Page::valid))
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
    /// Where it goes, and in which mode; unless it is fixed, from where the block was made.
    key: u64,
    /// Offset of the jump's distance, or of the slot that it goes through.
    place: usize,
    /// What goes to the dispatcher.
    unlinked: usize,
    /// The target is in another page, whose translation may change: there is a slot.
    slot: bool,
    /// Where it was led last, and the number of that block, which knows of it.
    code: u64,
    target: u32,
    /// The number of the block that jumps.
    source: u32,
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
}

/// Arenas that no vCPU uses, for those of the machine's next life.
pub type Pool = Arc<Mutex<Vec<Arena>>>;

/// Bytes from an access to the first that a window for it may have, and behind the last; nothing at all if both are 0.
type Extent = (i64, i64);

/// Addresses in modes.
type Addresses = HashSet<u64, BuildHasherDefault<AddressHasher>>;

/// How translation is done.
#[derive(Clone, Debug)]
pub struct Manner {
    /// Executions of a block before it is translated.
    pub hot: u32,
    /// Translated code counts the branches that met a known target.
    pub counting: bool,
    /// Who is told of what is made.
    pub watcher: Option<Arc<dyn CodeWatcher>>,
    pub host: Host,
}

/// The translator of one vCPU.
pub struct Jit {
    arena: Option<Arena>,
    pool: Pool,
    stubs: Stubs,
    /// Where the next block comes.
    place: Place,
    asm: Asm,
    blocks: pieces::Blocks,
    links: pieces::Links,
    /// What is moved together, and by page on the host.
    groups: Groups,
    /// Flushes of what belongs to an address space.
    epoch: u64,
    /// How far the windows of instructions may reach, in bytes from the access to the first and behind the last, where they
    /// crossed pages again and again.
    extents: HashMap<u64, Extent, BuildHasherDefault<AddressHasher>>,
    /// Loops whose accesses are in another page every other round: they look for pages that lie together.
    wide: Addresses,
    /// Those where that does not help.
    scattered: Addresses,
    /// How often blocks were made in vain that go on in other pages, by address and mode.
    in_vain: HashMap<u64, u8, BuildHasherDefault<AddressHasher>>,
    /// Translations by mode, address and block.
    table: HashMap<(u64, usize), u64, BuildHasherDefault<AddressHasher>>,
    /// The same of what goes on without windows in the middle of a block.
    rests: HashMap<(u64, usize), u64, BuildHasherDefault<AddressHasher>>,
    /// Translated blocks by the address of their code.
    by_code: HashMap<u64, u32, BuildHasherDefault<AddressHasher>>,
    pages: HashMap<*const PageState, Vec<u32>, BuildHasherDefault<AddressHasher>>,
    /// What depends on translations of linear addresses, by [`Scope`] and [`bucket`].
    dependents: Box<[[Dependents; BUCKETS]; 2]>,
    /// The state of things that all this was last brought up to date with.
    stamps: [u64; 2],
    written: u64,
    /// The segments of 32-bit code that targets are known for, of the kernel and of the user.
    segments: [u64; 2],
    manner: Manner,
    pub counts: JitCounts,
}

// SAFETY: the pointers are to blocks and page states that the owning Cpu keeps; see `Blocks`.
unsafe impl Send for Jit {}

impl Drop for Jit {
    fn drop(&mut self) {
        if let Some(arena) = self.arena.take() {
            self.pool.lock().unwrap_or_else(|e| e.into_inner()).push(arena);
        }
    }
}

impl Jit {
    /// A translator with code memory from `pool`, or fresh. Nothing if the host refuses any.
    pub fn new(pool: &Pool, manner: Manner) -> Option<Box<Self>> {
        let spare = pool.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let mut arena = match spare {
            Some(arena) => arena,
            None => Arena::new().ok()?,
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
            asm,
            blocks: pieces::Blocks::default(),
            links: pieces::Links::default(),
            groups: Groups::default(),
            epoch: 0,
            extents: HashMap::default(),
            wide: HashSet::default(),
            scattered: HashSet::default(),
            in_vain: HashMap::default(),
            table: HashMap::default(),
            rests: HashMap::default(),
            by_code: HashMap::default(),
            pages: HashMap::default(),
            dependents: Box::new(std::array::from_fn(|_| std::array::from_fn(|_| Dependents::default()))),
            stamps: [0; 2],
            written: 0,
            segments: [0; 2],
            manner,
            counts: JitCounts::default(),
        }))
    }

    /// Whether translated code counts the branches that met a known target.
    pub fn counting(&self) -> bool {
        self.manner.counting
    }

    fn arena(&mut self) -> &mut Arena {
        self.arena.as_mut().expect("only a drop takes it")
    }

    fn address(&self, offset: usize) -> u64 {
        self.arena.as_ref().expect("only a drop takes it").address(offset)
    }

    /// Where the byte at `offset` of the code that is being made will be in the code memory.
    fn placed(&self, offset: usize) -> usize {
        (self.asm.address(offset) - self.address(0)) as usize
    }

    /// The blocks that were translated, as long as that is not forgotten.
    pub fn translated(&self) -> BlockAddresses {
        self.blocks.iter().map(|one| one.block).collect()
    }

    /// Forgets all code.
    pub fn reset(&mut self, context: &mut Context) {
        self.counts.resets += 1;
        for one in self.blocks.iter() {
            // SAFETY: blocks live until `Blocks::reset`, which resets this first.
            unsafe { (*one.block).forget_translation() };
        }
        self.blocks.clear();
        self.links.clear();
        self.groups = Groups::default();
        self.extents.clear();
        self.wide.clear();
        self.scattered.clear();
        self.in_vain.clear();
        self.table.clear();
        self.rests.clear();
        self.by_code.clear();
        self.pages.clear();
        self.dependents.as_flattened_mut().fill_with(Dependents::default);
        context.targets.iter_mut().for_each(Targets::clear_all);
        self.place = Place::new(self.stubs.end);
    }

    /// Forgets the targets of indirect branches, which are of the mode that is left.
    pub fn forget_targets(&mut self, context: &mut Context) {
        self.forget_tables(context, |_| true);
    }

    /// The same in those tables that `which` picks.
    fn forget_tables(&mut self, context: &mut Context, which: impl Fn(u8) -> bool) {
        for dependents in self.dependents.iter_mut().flatten() {
            for (table, set) in dependents.targets.extract_if(.., |(table, _)| which(*table)) {
                context.targets[usize::from(table)].clear(set.into());
            }
        }
    }

    /// Sees to it that targets of 32-bit code are of `code_mode`, which says more than the choice of their table.
    pub fn choose_targets(&mut self, context: &mut Context, code_mode: u64) {
        let segments = code_mode & narrow::SEGMENTS;
        let user = code_mode & CODE_USER != 0;
        if std::mem::replace(&mut self.segments[usize::from(user)], segments) != segments {
            self.forget_tables(context, |table| targets::narrow(table) == Some(user));
        }
    }

    /// Unlinks what leads to translations of `scope` in one of `buckets`, which are void now.
    fn flush(&mut self, context: &mut Context, scope: Scope, buckets: impl Iterator<Item = usize>) {
        for bucket in buckets {
            let dependents = &mut self.dependents[scope as usize][bucket];
            for (table, set) in dependents.targets.drain(..) {
                context.targets[usize::from(table)].clear(set.into());
            }
            let (links, blocks) =
                (std::mem::take(&mut dependents.slots), std::mem::take(&mut dependents.blocks));
            links.into_iter().for_each(|link| self.unlink(link));
            blocks.into_iter().for_each(|number| self.guard(number, bucket));
        }
    }

    /// Lets a link go to the dispatcher again.
    fn unlink(&mut self, link: u32) {
        // Those of a piece that was emptied need nothing.
        let Some(&Link { place, unlinked, slot, .. }) = self.links.get(link) else { return };
        if slot {
            let unlinked = self.address(unlinked);
            self.arena().write(place, &unlinked.to_le_bytes());
        } else {
            let distance = unlinked as i32 - (place as i32 + 4);
            self.arena().write(place, &distance.to_le_bytes());
        }
    }

    /// Takes translated blocks of pages that were written out of use: nothing leads to them any more,
    /// and who is about to enter one leaves at once.
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
            self.counts.dropped += 1;
            if self.blocks[one].reaches() {
                self.note_in_vain(one);
            }
            self.retire(context, one);
        }
    }

    /// Takes one translated block out of use.
    fn retire(&mut self, context: &mut Context, number: u32) {
        let Translated { block, entry, leave, rip, mode, key, rest, .. } = self.blocks[number];
        let (place, now) =
            (moving::place_in_table(key, rip, block, self.group_of(number).is_some()), self.rip_of(number));
        for link in std::mem::take(&mut self.blocks[number].incoming) {
            self.unlink_for_good(link);
        }
        context.targets[targets::table(mode, key ^ rip)].forget(now);
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
        // SAFETY: as in `reset`.
        unsafe { (*block).forget_translation() };
    }
}

impl Cpu {
    /// Takes note of pages that others decoded code from.
    pub(crate) fn notice_code(&mut self) {
        let marks = PageState::marks();
        if self.marks != marks {
            self.marks = marks;
            self.tlb.protect_code();
        }
    }

    /// Whether translations became void since the code was entered.
    pub(crate) fn translations_changed(&self) -> bool {
        let changed = |jit: &Jit| {
            jit.stamps != self.blocks.epochs()
                || self.blocks.flushed() != [0; 2]
                || jit.written != PageState::invalidations()
        };
        self.jit.as_ref().is_some_and(|jit| changed(jit))
    }

    /// Whether translated code may run now: nothing needs a look at each instruction, or at data. Breakpoints on
    /// instructions do not hinder it: their pages have no blocks, and nothing goes on into them ([`Cpu::make_sure`]).
    #[inline(always)]
    pub(crate) fn translates(&self) -> bool {
        self.jit.is_some()
            && self.code_mode & (CODE_64 | CODE_32) != 0
            && !self.aligned
            && !self.debug.hinders()
            && !self.intercepts_time()
    }

    /// The translation of `block` at RIP, made now if the block has become hot.
    #[inline(always)]
    pub(crate) fn translation(&mut self, block: *mut Block) -> Option<u64> {
        let key = self.code_key(self.state.rip);
        // SAFETY: `block` was just looked up.
        let found = unsafe { (*block).translation(key) };
        match found {
            Some(code) => Some(code),
            None => self.translate_if_hot(block, key),
        }
    }

    #[inline(never)]
    fn translate_if_hot(&mut self, block: *mut Block, key: u64) -> Option<u64> {
        let hot = self.jit.as_ref()?.manner.hot;
        // SAFETY: `block` was just looked up.
        if unsafe { !(*block).heat(hot) } {
            return None;
        }
        let mut jit = self.jit.take()?;
        // What is brought to an address is brought there after the last flush.
        self.refresh(&mut jit);
        let code = match jit.find(&mut self.context, block, key, self.state.rip, false) {
            Some(code) => Some(code),
            None => {
                self.doing.set(Doing::Translating);
                let code = lower::translate(self, &mut jit, block, key);
                self.doing.set(Doing::Interpreting);
                code
            }
        };
        if let Some(code) = code
            && !moving::may_move(self.state.rip, self.code_mode)
        {
            // SAFETY: as above; translating frees no block.
            unsafe { (*block).set_translation(key, code) };
        }
        self.jit = Some(jit);
        code
    }

    /// Brings the translations up to date with what happened outside.
    #[inline(always)]
    fn refresh(&mut self, jit: &mut Jit) {
        let stamps = self.blocks.epochs();
        if jit.stamps != stamps {
            for scope in [Scope::Local, Scope::Global] {
                if jit.stamps[scope as usize] != stamps[scope as usize] {
                    jit.flush(&mut self.context, scope, 0..BUCKETS);
                    jit.epoch += u64::from(scope == Scope::Local);
                }
            }
            jit.stamps = stamps;
        }
        if self.blocks.flushed() != [0; 2] {
            let flushed = self.blocks.take_flushed();
            for scope in [Scope::Local, Scope::Global] {
                let buckets = (0..BUCKETS).filter(|bucket| flushed[scope as usize] & 1 << bucket != 0);
                jit.flush(&mut self.context, scope, buckets);
            }
        }
        if jit.written != PageState::invalidations() {
            jit.drop_written(&mut self.context);
        }
    }

    /// Drops what was decoded from the page with `state`, which translated code has just written to.
    fn translated_store(&mut self, state: &PageState) {
        if state.wrote() {
            self.code_written();
        }
        let Some(mut jit) = self.jit.take() else { return };
        self.refresh(&mut jit);
        self.jit = Some(jit);
    }

    /// Runs translated code from `code`, the translation of the block at RIP, for at most `budget`
    /// instructions. Returns why it was left; RIP says where.
    pub(crate) fn run_translated(&mut self, code: u64, budget: u64) -> u32 {
        let Some(mut jit) = self.jit.take() else { return reason::DISPATCH };
        self.refresh(&mut jit);
        jit.counts.entered += 1;
        let (enter, direct) = (jit.stubs.enter, jit.manner.host.fsgsbase);
        self.context.unknown.code = jit.stubs.arrive;
        self.jit = Some(jit);
        let budget = budget.min(1 << 40) as i64;
        let first = budget.min(CHUNK);
        self.context.cpu = std::ptr::from_mut(self);
        self.context.kick = self.kick.flag();
        self.context.budget = first;
        self.context.left = budget - first;
        self.started = budget;
        self.context.flags = stubs::packed(self.flags.bits());
        stubs::set_gs(std::ptr::from_mut(self), direct);
        self.doing.set(Doing::Translated);
        // SAFETY: the code was made for this vCPU, whose address GS holds; it keeps to the System V
        // convention at its outside.
        unsafe {
            let enter: extern "sysv64" fn(u64) = std::mem::transmute(enter);
            enter(code);
        }
        self.doing.set(Doing::Interpreting);
        self.collect_x87();
        self.flags.set_bits(stubs::unpacked(self.context.flags));
        let remaining = self.context.budget + self.context.left;
        self.retired = self.retired.wrapping_add((self.started - remaining) as u64);
        self.context.reason as u32
    }

    /// A store to RAM at `linear` is about to be made by the code of block `number`: if that holds decoded code, but
    /// not that of the block itself, it is taken out of use now, and the store can be made as any other.
    fn expect_store(&mut self, linear: u64, number: u32) {
        let Some((_, state)) = self.tlb.lookup(linear, 1, self.mode, false) else { return };
        // SAFETY: it is the state of a page of guest RAM, which lives as long as that.
        if self.parallel || unsafe { !(*state).has_code() } {
            return;
        }
        let own = self.jit.as_ref().and_then(|jit| jit.blocks.get(number));
        if own.is_none_or(|own| own.made_of(state)) {
            return;
        }
        // SAFETY: as above.
        if unsafe { (*state).wrote() } {
            self.code_written();
        }
        if let Some(mut jit) = self.jit.take() {
            self.refresh(&mut jit);
            self.jit = Some(jit);
        }
    }

    /// Whether there is nothing to look at before the next instruction, though an instruction asked
    /// for a look; the look is then as good as done.
    pub(crate) fn settled(&mut self) -> bool {
        let settled = self.nothing_to_see();
        if settled {
            self.attention = self.interrupt_window || self.nmi_window;
        }
        settled
    }
}
