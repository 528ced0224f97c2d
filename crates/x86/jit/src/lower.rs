//! One block of guest instructions becomes host code.
//!
//! At a block's edges the status flags are in [`super::Context`], and between them as often as
//! possible in the host's: they are put away before code that this module adds would change them, and
//! brought back before a guest instruction that needs them.

#[cfg(test)]
mod golden_tests;
mod linking;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::mem;
use std::rc::Rc;

use iced_x86::{Instruction, InstructionInfoFactory, OpKind};

use super::asm::{Alu, Asm, Label, Reg, cc};
use super::cold::{Cold, Seldom};
use super::flags::{Effect, Flags, Recipe, effect};
use super::generic::Site;
use super::homes::Homes;
use super::host::Host;
use super::kept::Source;
use super::reach::Page;
use super::stubs::{BUDGET, S1, S2, Stubs};
use super::vector::Units;
use super::window::{Kept, Range, Round, Step, Windows};
use super::{AddressHasher, Extent, Jit, narrow, reason, window, x87};
use satori_soft::block::{Block, ends_block};
use satori_soft::code_mode::{self, CodeKey};
use satori_soft::cpu::Cpu;
use satori_soft::isa::Isa;
use satori_soft::mmu::Mode;

/// A jump to another block in code that is still in the assembler's buffer; whoever installs the code links it.
pub(crate) struct NewLink {
    /// The block that the jump goes to: its address, and the mode it is decoded for.
    pub key: CodeKey,
    pub rip: u64,
    /// Offset in the buffer of the jump's 32-bit distance, which linking patches; unused if `slot` is there.
    pub place: usize,
    /// Code that asks the dispatcher for the target: the jump leads there until it is linked.
    pub unlinked: Label,
    /// The 8-byte slot through which the jump goes if its target is in another page, so that unmapping that page changes no code.
    pub slot: Option<Label>,
    /// The target is an absolute address: it is the same when code of this page is found at another address.
    pub fixed: bool,
}

/// Where the guest's general registers are in the code that is being emitted.
pub(crate) struct Places {
    /// The host register that holds each guest register; a guest register without one is in the register file only.
    pub homes: Homes,
    /// The guest register whose value S2 holds beside the register file, until S2 or that register changes.
    pub held: Option<usize>,
    /// The index of the first instruction at which `homes` may be chosen anew; before it, a stretch of code relies on them.
    pub stretch: usize,
    /// `homes` as they were where the path jumped to the cold code that is being emitted: it restores them before it jumps back.
    pub back_home: Homes,
    /// What is still to be added to the stack pointer: a run of pushes or pops through a window moves it once, as no code
    /// leaves between them.
    pub deferred: i32,
    /// The host's registers that hold what leads to host memory in a loop's third copy, by the number of the window, and `homes`
    /// there: they are registers of the guest's elsewhere.
    pub pointers: [Option<Reg>; window::PLACES],
    pub strided: Homes,
    /// `homes` at the start of a loop's second copy. Its first round runs in the first copy, each later one in the second, so both
    /// copies end with these.
    pub loop_homes: Homes,
}

/// Where the guest's status flags are in the code that is being emitted.
pub(crate) struct Status {
    /// Which place holds the current values: the host's flags, `Context::flags`, both, or neither, when `recipe` does.
    pub flags: Flags,
    /// An instruction that computes the current values again; it is dropped when a register that it reads changes.
    pub recipe: Option<Recipe>,
    /// `recipe` at the start of a loop's second copy; if there is one, `Context::flags` is stale there.
    carried: Option<Recipe>,
}

/// Which ways to host memory accesses share: windows, and pages that loops remember.
pub(crate) struct Views<'a> {
    /// The windows that are open: each names a range, and a place in the context that leads to its host memory.
    pub windows: Rc<Windows>,
    /// S1 holds what the context holds for window `.0` as long as [`Asm::changes`], which counts what may have written S1, is `.1`.
    pub pointer: Option<(usize, u32)>,
    /// The window through which the current instruction stored, if through one.
    pub stored_in: Option<u8>,
    /// How far the window of the instruction at an address and mode may reach, where one that reached farther crossed pages too often.
    pub extents: &'a HashMap<CodeKey, Extent, BuildHasherDefault<AddressHasher>>,
    /// Whether accesses may share windows: false in the code that goes on behind a window whose range is in two pages.
    pub grouping: bool,
    /// Which rounds of the loop the code that is being emitted executes.
    pub round: Round,
    /// The start of this code, if it is a loop for accesses that lie in two pages; a round that finds them so again jumps to it.
    pub paired: Option<Label>,
    /// Whether an access of a loop keeps its page in the context from one round to the next: false where rounds left it too often.
    pub paged: bool,
    /// Whether it keeps neighbouring pages, too, if the host has them side by side in the same order.
    pub wide: bool,
    /// Where a round goes that another one follows: first the code between the copies, then the start of the second copy.
    pub again: Option<Label>,
    /// The accesses of the second copy that keep their pages, for the third one.
    pub plan: Vec<Kept>,
    /// The third copy has other accesses than the second one.
    pub astray: bool,
    /// The windows that are open at the start of the second copy: no instruction of the loop changes the registers of their addresses.
    kept: Rc<Windows>,
    /// The registers and memory that each instruction of the block uses; empty if windows are of no use to the block.
    pub steps: Vec<Step>,
    /// What looks for a window's range are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    pub ranges: Vec<Box<Range>>,
}

/// What is made beside the code on the path.
pub(crate) struct Output {
    /// Code that seldom runs: emitted last, into the part of code memory for such code.
    pub cold: Vec<Seldom>,
    /// What of it is being emitted, which may add to it; empty in between.
    pub taken: Vec<Seldom>,
    /// The jumps to other blocks, in the order of their numbers.
    pub links: Vec<NewLink>,
    /// What leads to [`Stubs::step`] and [`Stubs::alone`], if something does.
    pub step: Option<Label>,
    pub alone: Option<Label>,
    /// The number of the first of `links`; code passes numbers to the dispatcher.
    pub first_link: usize,
    /// What generic implementations are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    pub sites: Vec<Box<Site>>,
    /// Offsets of the values that pages' states are compared with, and of which page.
    pub values: Vec<(usize, u8)>,
}

/// What is translated: the block, and the mode and manner that its code is made for.
pub(crate) struct Subject {
    /// The rights that memory accesses have: those of a supervisor or user, with or without EFLAGS.AC.
    pub mode: Mode,
    /// Whether the privilege level is 0.
    pub privileged: bool,
    /// The mode that the block is translated for ([`Derived::code_mode`](satori_soft::cpu::Derived::code_mode)).
    pub code_mode: u64,
    /// Whether other vCPUs run at the same time: their stores may change decoded pages.
    pub parallel: bool,
    /// Whether code counts the indirect branches that met a known target (`--engine-stats`).
    pub counting: bool,
    /// The number of this translation.
    pub number: u32,
    /// The number of the translation that goes on here when a window's range is in two pages; otherwise `number`.
    pub whole: u32,
    /// Its instructions, and what each does with the status flags.
    pub all: Rc<Vec<Instruction>>,
    pub effects: Vec<Effect>,
    /// A bit for each that often branches out of the block.
    pub often: u128,
    /// The guest's general registers when the translation was asked for: a guess at what the addresses of its accesses are.
    pub gpr: [u64; 16],
    /// Guest registers that the block changes, a bit each.
    pub changed: u16,
    /// Whether it uses vector or x87 registers, which its start then loads into the host's.
    pub units: Units,
    /// The address of its first instruction.
    pub rip: u64,
}

/// The instruction that code is being emitted for.
pub(crate) struct Current {
    /// Its index in the block, also among [`Views::steps`].
    pub at: usize,
    pub rip: u64,
    /// Instructions of the block from this one on.
    pub rest: u32,
    /// Whether code behind it has to look if its store hit decoded code.
    pub stores: bool,
    /// Whether the next instruction records itself as the x87's last (FIP, FDP), so that this one need not.
    pub noted_by_next: bool,
}

/// The translation of one block under way: its tools, the block, and five values that change as code is emitted.
pub(crate) struct Lower<'a> {
    pub asm: &'a mut Asm,
    pub stubs: &'a Stubs,
    pub host: &'a Host,
    pub info: &'a mut InstructionInfoFactory,
    pub block: Subject,
    pub current: Current,
    pub places: Places,
    pub status: Status,
    pub views: Views<'a>,
    pub output: Output,
}

/// Whether `insn`, the last of its block, can continue at the block's first instruction.
fn goes_back(insn: &Instruction) -> bool {
    let conditional = insn.is_jcc_short_or_near();
    let branches = conditional || insn.is_jmp_short_or_near();
    branches && insn.op0_kind() == OpKind::NearBranch64 && insn.near_branch_target() == 0
        || (conditional || !ends_block(insn)) && insn.next_ip() == 0
}

/// Code that was made and is installed nowhere: it stands in the assembler's buffer, from whose start offsets are counted.
pub(crate) struct Translation {
    /// Jumps to other blocks.
    pub links: Vec<NewLink>,
    /// What generic implementations are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    pub sites: Vec<Box<Site>>,
    /// What looks for a window's range are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    pub ranges: Vec<Box<Range>>,
    /// Offsets of the values that its pages' states are compared with, and of which page.
    pub values: Vec<(usize, u8)>,
    /// Offset of the code that leaves with RIP at the block's address.
    pub leave: usize,
    /// Offset of the entry that checks where the block's pages are mapped, if they are several; the block's start relies on that.
    pub check: Option<usize>,
}

/// What a translation is made of.
pub(crate) struct Order<'a> {
    pub block: &'a Block,
    /// The block's instructions, and the pages that they are in.
    pub all: Rc<Vec<Instruction>>,
    pub pages: Vec<Page>,
    /// The guest's bytes that those are.
    pub source: Source,
    /// A bit for each instruction that often branches out of the block.
    pub often: u128,
    /// The linear address of its first instruction, and the key that this has in its mode.
    pub rip: u64,
    pub key: CodeKey,
    /// The number of this translation.
    pub number: u32,
    /// The number of the translation that goes on here where a window failed; none for one from the start.
    pub whole: Option<u32>,
    /// The group of blocks that keep their distances when their page is found at another address, or the anchor of those that do not.
    pub group: Option<u32>,
    pub anchor: Option<u32>,
}

/// Makes host code of `order`, for the place that is next in the code memory of `jit`.
pub(crate) fn make(cpu: &Cpu, jit: &mut Jit, order: &Order<'_>) -> Translation {
    let &Order { ref all, rip, key, number, whole, group, .. } = order;
    let base = group.map(|group| jit.base_of(group, cpu.derived.code_mode));
    let (mut effects, mut steps) = (mem::take(&mut jit.spare.effects), mem::take(&mut jit.spare.steps));
    let (cold, taken) = (mem::take(&mut jit.spare.cold), mem::take(&mut jit.spare.taken));
    effects.clear();
    steps.clear();
    effects.extend(all.iter().map(effect));
    jit.asm.restart(jit.address(jit.place.often), jit.address(jit.place.seldom), base);
    let mut lower = Lower {
        asm: &mut jit.asm,
        stubs: &jit.stubs,
        host: &jit.manner.host,
        info: &mut jit.spare.info,
        places: Places {
            homes: Homes::USUAL,
            held: None,
            stretch: 0,
            back_home: Homes::USUAL,
            deferred: 0,
            pointers: [None; window::PLACES],
            strided: Homes::USUAL,
            loop_homes: Homes::USUAL,
        },
        status: Status { flags: Flags::Saved, recipe: None, carried: None },
        views: Views {
            windows: Rc::default(),
            pointer: None,
            stored_in: None,
            extents: &jit.extents,
            grouping: whole.is_none(),
            round: Round::Only,
            paired: None,
            paged: !jit.scattered.contains(&key),
            wide: jit.wide.contains(&key),
            again: None,
            plan: Vec::new(),
            astray: false,
            kept: Rc::default(),
            steps,
            ranges: Vec::new(),
        },
        output: Output {
            cold,
            taken,
            links: mem::take(&mut jit.spare.links),
            step: None,
            alone: None,
            first_link: jit.links.next(jit.place.piece) as usize,
            sites: Vec::new(),
            values: Vec::new(),
        },
        block: Subject {
            mode: cpu.derived.mode,
            privileged: cpu.cpl() == 0,
            code_mode: cpu.derived.code_mode,
            parallel: cpu.parallel(),
            counting: jit.manner.counting,
            number,
            whole: whole.unwrap_or(number),
            all: all.clone(),
            effects,
            often: order.often,
            gpr: std::array::from_fn(|i| cpu.state.gpr[i]),
            changed: 0,
            units: Units::default(),
            rip,
        },
        current: Current { at: 0, rip, rest: all.len() as u32, stores: false, noted_by_next: false },
    };
    let (leave, check) = lower.emit_block(cpu.isa(), all, &order.pages);
    lower.asm.resolve();
    let Lower { asm, output, views, block, .. } = lower;
    let translation = Translation {
        leave: asm.offset(leave),
        check: check.map(|check| asm.offset(check)),
        links: output.links,
        values: output.values,
        sites: output.sites,
        ranges: views.ranges,
    };
    (jit.spare.effects, jit.spare.steps) = (block.effects, views.steps);
    (jit.spare.cold, jit.spare.taken) = (output.cold, output.taken);
    translation
}

impl Lower<'_> {
    /// Whether the guest's code is of 32 bits.
    pub(crate) fn narrow(&self) -> bool {
        self.block.code_mode & code_mode::BITS_64 == 0
    }

    /// Emits the whole block; returns the labels of what leaves at its address and, if it is in several pages, of what
    /// looks at them first.
    fn emit_block(&mut self, isa: &Isa, all: &[Instruction], pages: &[Page]) -> (Label, Option<Label>) {
        let start = self.asm.bound();
        let (refill, leave) = (self.asm.label(), self.asm.label());
        self.head(pages, all.len(), refill, leave);
        self.block.units = Units::of(all, self.block.code_mode);
        // The x87 first: loading its registers overwrites the host's vectors.
        let check_x87 = self.block.units.x87.then(|| self.check_x87());
        let check_vectors = self.block.units.vectors.then(|| self.check_vectors());
        let goes_back = all.last().is_some_and(goes_back);
        if all.len() > 1 && (self.views.grouping || goes_back) {
            let (info, rip, mode) = (&mut *self.info, self.block.rip, self.block.code_mode);
            self.views.steps.extend(all.iter().map(|insn| Step::of(info, insn, rip, mode)));
            self.block.changed = Step::changes(&self.views.steps);
            self.views.paired = (!self.views.grouping && self.pairs()).then_some(start);
            if goes_back && (self.views.grouping || self.views.paired.is_some()) {
                self.views.round = Round::First;
            }
        }
        self.body(isa, all);
        let again = self.views.again.map(|again| {
            let (refill, gone, round) = (self.asm.label(), self.asm.label(), self.asm.bound());
            self.head(pages, all.len(), refill, gone);
            self.begin_round(Round::Next);
            let plan = self.strides().then(|| self.asm.label());
            self.views.again = Some(plan.unwrap_or(round));
            self.body(isa, all);
            let count = self.views.windows.paged.len();
            let over = plan.and_then(|plan| {
                self.asm.bind(plan);
                self.strided(isa, all, pages, round)
            });
            (refill, gone, again, round, count, over)
        });
        self.emit_ways_out();
        self.asm.depart();
        if let Some((refill, gone_of_round, _, round, _, over)) = again {
            if let Some(over) = over {
                self.end_strided(over, all.len(), (round, gone_of_round));
            }
            self.asm.bind(refill);
            self.asm.alu_imm(Alu::Add, BUDGET, all.len() as i32);
            self.asm.call_to(self.stubs.more);
            self.asm.jcc(cc::NE, round);
            self.leave_round();
            self.asm.jmp(leave);
        }
        self.asm.bind(refill);
        self.asm.alu_imm(Alu::Add, BUDGET, all.len() as i32);
        self.asm.linear(S2, self.block.rip);
        self.asm.call_to(self.stubs.poll);
        self.asm.jmp(start);
        if let Some((_, gone, again, round, pages, _)) = again {
            self.asm.bind(again);
            self.forget_pages(pages);
            self.places.homes = Homes::USUAL;
            self.move_to(self.places.loop_homes);
            self.asm.jmp(round);
            self.asm.bind(gone);
            self.leave_round();
        }
        self.asm.bind(leave);
        self.asm.linear(S2, self.block.rip);
        self.asm.constant(S1, reason::DISPATCH.into());
        self.asm.jmp_to(self.stubs.leave);
        let check = pages.iter().any(|page| !page.has(self.block.rip)).then(|| {
            let check = self.asm.bound();
            self.asm.constant(S1, self.block.number.into());
            self.asm.call_to(self.stubs.reaches);
            self.asm.jcc(cc::NE, start);
            self.asm.jmp(leave);
            check
        });
        if let Some(check) = check_x87 {
            self.emit_load(check, self.stubs.load_x87);
        }
        if let Some(check) = check_vectors {
            self.emit_load(check, self.stubs.load_vectors);
        }
        self.emit_cold();
        self.emit_tails();
        (leave, check)
    }

    /// The checks before a round: the code words of its pages still have the values of when it was decoded, and the budget has room
    /// for its instructions, which are taken off.
    pub(crate) fn head(&mut self, pages: &[Page], count: usize, refill: Label, leave: Label) {
        if self.block.parallel {
            // Another vCPU's store changes the page's code word and does not wait for this one.
            for (number, page) in pages.iter().enumerate() {
                self.asm.constant(S1, page.state as u64);
                self.asm.compare_at(S1, page.value);
                self.output.values.push((self.asm.here() - size_of::<u32>(), number as u8));
                self.asm.jcc(cc::NE, leave);
            }
        }
        self.asm.alu_imm(Alu::Sub, BUDGET, count as i32);
        self.asm.jcc(cc::S, refill);
    }

    /// To the state at the start of a later copy of a loop, which executes `round`.
    pub(crate) fn begin_round(&mut self, round: Round) {
        self.views.round = round;
        self.views.grouping = true;
        self.views.windows = self.views.kept.clone();
        self.views.pointer = None;
        self.current.rest = self.block.all.len() as u32;
        self.places.homes = self.places.loop_homes;
        self.status.recipe = self.status.carried;
        self.status.flags = if self.status.carried.is_some() { Flags::Recipe } else { Flags::Saved };
        self.places.held = None;
    }

    /// From the state at the start of the second copy to that at a block's edge: flags in the context, registers in their usual homes.
    fn leave_round(&mut self) {
        self.places.homes = self.places.loop_homes;
        if self.status.carried.is_some() {
            (self.status.flags, self.status.recipe) = (Flags::Recipe, self.status.carried);
            self.put_flags_away();
        }
        self.come_home();
    }

    /// Emits all instructions.
    pub(crate) fn body(&mut self, isa: &Isa, all: &[Instruction]) {
        let mut ended = false;
        for (i, insn) in all.iter().enumerate() {
            self.current.noted_by_next =
                all.get(i + 1).is_some_and(|next| x87::notes(next) && isa.exists(next));
            self.current.rip = self.block.rip.wrapping_add(insn.ip());
            self.current.at = i;
            if !self.runs_on(insn) {
                self.settle_stack();
            }
            if self.views.round == Round::Only || self.views.round == Round::First && i + 1 < all.len() {
                self.begin_stretch(i);
            } else if self.views.round == Round::First {
                // The jump to the second copy moves registers from their usual homes to those of the loop.
                self.come_home();
            }
            if i + 1 == all.len() {
                self.plan_loop();
            }
            if self.status.recipe.is_some() {
                let registers = match self.views.steps.get(i) {
                    Some(step) => step.registers(),
                    None => Step::of(self.info, insn, self.block.rip, self.block.code_mode).registers(),
                };
                self.keep_recipe(insn, registers);
            }
            let before = self.status.recipe;
            ended = self.instruction(isa, insn);
            if self.block.effects[i].changes {
                // The recipe is of the guest's instruction, however the host's code did it.
                self.status.recipe = Recipe::of(insn, before);
            }
            if let Some(step) = self.views.steps.get(i)
                && self.views.windows.concerns(step)
            {
                Rc::make_mut(&mut self.views.windows).pass(step);
            }
            self.current.rest -= 1;
        }
        self.settle_stack();
        if !ended {
            let next = self.block.rip.wrapping_add(all.last().map_or(0, Instruction::next_ip));
            // Code that leaves from here takes back the last instruction only.
            self.current.rest = 1;
            if let Some(again) = self.go_again(next) {
                self.asm.jmp(again);
                return;
            }
            self.put_flags_away();
            self.come_home();
            self.link(next);
        }
    }

    /// If the last instruction goes back to the block's start, and windows last that long, there is
    /// a second copy of the block for all rounds but the first: what does not change on the way around
    /// is open there, and the other accesses remember their pages.
    fn plan_loop(&mut self) {
        if self.views.round == Round::First
            && let Some(kept) = self.views.windows.kept(self.block.changed)
        {
            self.views.kept = Rc::new(kept);
            self.views.again = Some(self.asm.label());
            if self.output.sites.is_empty() {
                self.places.loop_homes = Homes::for_loop(self.info, &self.block.all, self.block.code_mode);
            }
        }
    }

    /// Emits one instruction; returns whether it ends the block.
    fn instruction(&mut self, isa: &Isa, insn: &Instruction) -> bool {
        let known = isa.exists(insn) && insn.cpuid_features().iter().all(|f| self.host.has(*f));
        if known {
            let (mark, flags, cold, links) =
                (self.asm.mark(), self.status.flags, self.output.cold.len(), self.output.links.len());
            let (windows, ranges, sites) =
                (self.views.windows.clone(), self.views.ranges.len(), self.output.sites.len());
            let (held, pointer) = (self.places.held.take(), self.views.pointer);
            match self.flow(isa, insn) {
                Some(ended) => return ended,
                None => {
                    self.current.stores = false;
                    self.asm.rollback(mark);
                    self.views.pointer = pointer;
                    self.status.flags = flags;
                    self.output.cold.truncate(cold);
                    self.output.links.truncate(links);
                    self.output.sites.truncate(sites);
                    self.views.ranges.truncate(ranges);
                    self.views.windows = windows.clone();
                }
            }
            if self.strings(isa, insn) || self.system(isa, insn) {
                self.look_behind(self.block.rip.wrapping_add(insn.next_ip()), false);
                return false;
            }
            if !ends_block(insn) {
                for way in [Self::copied, Self::bit_string, Self::vector, Self::x87] {
                    self.places.held = held;
                    if way(self, insn) {
                        self.look_behind(self.block.rip.wrapping_add(insn.next_ip()), false);
                        return false;
                    }
                    self.current.stores = false;
                    self.asm.rollback(mark);
                    self.views.pointer = pointer;
                    self.status.flags = flags;
                    self.output.cold.truncate(cold);
                    self.views.ranges.truncate(ranges);
                    self.views.windows = windows.clone();
                }
            }
        }
        self.places.held = None;
        self.generic(isa, insn);
        ends_block(insn)
    }

    /// Emits a call of the generic implementation.
    fn generic(&mut self, isa: &Isa, insn: &Instruction) {
        self.save_flags();
        Rc::make_mut(&mut self.views.windows).close_all();
        let site = self.site(isa, insn);
        self.call_generic(site);
    }

    /// What the generic implementation is called with; its address.
    pub(crate) fn site(&mut self, isa: &Isa, insn: &Instruction) -> u64 {
        let original = if self.narrow() { narrow::narrowed(*insn) } else { *insn };
        let site = Box::new(Site {
            handler: isa.handler(&original),
            insn: original,
            block: self.block.number,
            block_rip: self.block.rip,
            rip: self.current.rip,
            rest: self.current.rest,
            last: ends_block(insn),
        });
        let address = std::ptr::from_ref(&*site) as u64;
        self.output.sites.push(site);
        address
    }

    pub(crate) fn call_generic(&mut self, site: u64) {
        let homes = self.places.homes;
        self.come_home();
        self.asm.constant(S1, site);
        self.asm.call_to(self.stubs.generic);
        if self.block.units.x87 {
            self.asm.call_to(self.stubs.load_x87);
        }
        self.reload_vectors();
        self.move_to(homes);
    }

    /// The second copy of this block, if that is where the last instruction goes back to.
    fn again_at(&self, rip: u64) -> Option<Label> {
        self.views.again.filter(|_| rip == self.block.rip && self.current.rest == 1)
    }

    /// Where to go on if that is at the second copy of this block; unless there is a recipe, the flags are put away
    /// then.
    pub(crate) fn go_again(&mut self, rip: u64) -> Option<Label> {
        let again = self.again_at(rip)?;
        if self.views.round == Round::First {
            self.status.carried = self.status.recipe;
        }
        if self.status.carried.is_none() {
            self.put_flags_away();
        } else if self.status.recipe != self.status.carried {
            return None;
        }
        Some(again)
    }

    /// The label of code that leaves for the current instruction to be executed by itself.
    pub(crate) fn step(&mut self, why: u32) -> Label {
        let label = self.asm.label();
        self.seldom(Cold::Step { label, rip: self.current.rip, rest: self.current.rest, why });
        label
    }

    /// Behind a call of the monitor: loads the vectors again. Flags stay.
    pub(crate) fn reload_vectors(&mut self) {
        if self.block.units.vectors {
            self.asm.call_to(self.stubs.load_vectors);
        }
    }
}
