//! One block of guest instructions becomes host code.
//!
//! At a block's edges the status flags are in [`super::Context`], and between them as often as
//! possible in the host's: they are put away before code that this module adds would change them, and
//! brought back before a guest instruction that needs them.

#[cfg(test)]
mod golden;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::rc::Rc;

use iced_x86::{Instruction, InstructionInfoFactory, OpKind};

use super::asm::{Alu, Asm, Label, cc};
use super::cold::{Cold, Seldom};
use super::flags::{Flags, Recipe, effect};
use super::generic::Site;
use super::homes::Homes;
use super::host::Host;
use super::reach::Page;
use super::stubs::{BUDGET, S1, S2, Stubs};
use super::vector::Units;
use super::window::{Range, Round, Step, Windows};
use super::{AddressHasher, Extent, Jit, narrow, reason, x87};
use satori_soft::block::{Block, ends_block};
use satori_soft::code_mode;
use satori_soft::cpu::Cpu;
use satori_soft::isa::Isa;
use satori_soft::mmu::Mode;

/// A jump between blocks that is not in memory yet.
pub(crate) struct NewLink {
    /// Where it goes, in its mode.
    pub key: u64,
    /// The jump's distance, unless there is a slot.
    pub place: usize,
    /// What goes to the dispatcher.
    pub unlinked: Label,
    /// The slot that it goes through, if the target is in another page.
    pub slot: Option<Label>,
    /// The target stays where it is when the block is elsewhere.
    pub fixed: bool,
}

/// Where the guest's general registers are in the code that is being emitted.
pub struct Places {
    /// The host register of each guest register that has one; the others are in the register file.
    pub homes: Homes,
    /// The guest register whose value S2 holds beside the register file, until S2 or that register changes.
    pub held: Option<usize>,
    /// The index of the first instruction at which another stretch of code with homes of its own may begin.
    pub stretch: usize,
    /// The homes that code off the path was entered with, and goes back to.
    pub back_home: Homes,
    /// The homes at the start of the second copy of a loop, which every round but the first is.
    loop_homes: Homes,
}

/// Where the guest's status flags are in the code that is being emitted.
pub struct Status {
    /// In the host's flags, in the context, or in both.
    pub flags: Flags,
    /// The comparison or addition that makes them again from registers that have not changed since, wherever they are.
    pub recipe: Option<Recipe>,
    /// The recipe that holds at the start of the second copy of a loop, where they are not in the context.
    carried: Option<Recipe>,
}

/// Which ways to host memory accesses share: windows, and pages that loops remember.
pub struct Views<'a> {
    /// The windows that are open.
    pub windows: Rc<Windows>,
    /// S1 holds the place of window `.0` as long as [`Asm::changes`] is `.1`.
    pub pointer: Option<(usize, u32)>,
    /// The window through which the current instruction stored, if through one.
    pub stored_in: Option<u8>,
    /// How far windows may reach, by the address and mode of their instruction; others as far as a group of accesses does.
    pub extents: &'a HashMap<u64, Extent, BuildHasherDefault<AddressHasher>>,
    /// Accesses may share a window at all: not in the rest of a block whose window failed.
    pub grouping: bool,
    /// The rounds of a loop that code is being emitted for.
    pub round: Round,
    /// The start of a loop whose first accesses were in two pages each, for rounds that find them so again.
    pub paired: Option<Label>,
    /// Accesses in a loop remember their pages.
    pub paged: bool,
    /// They remember neighbours, too, that lie together with their page on the host.
    pub wide: bool,
    /// The start of the second copy of a loop.
    again: Option<Label>,
    /// The windows that are open there: those whose registers no instruction of the loop changes.
    kept: Rc<Windows>,
    /// What each instruction of the block does that matters to windows.
    pub steps: Vec<Step>,
    /// The index of the current instruction, also among `steps`.
    pub at: usize,
    /// What looks for a window's range are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    pub ranges: Vec<Box<Range>>,
}

/// What is made beside the code on the path.
pub struct Output {
    /// Code that seldom runs, to be emitted behind all that is on the path.
    pub cold: Vec<Seldom>,
    /// Jumps to other blocks.
    links: Vec<NewLink>,
    /// The number that the first of them will have.
    pub first_link: usize,
    /// What generic implementations are called with.
    #[expect(clippy::vec_box, reason = "the code points to them")]
    sites: Vec<Box<Site>>,
}

/// The translation of one block under way: the block, the current instruction, and four values that change as code is emitted.
pub struct Lower<'a> {
    pub asm: &'a mut Asm,
    pub stubs: &'a Stubs,
    pub host: &'a Host,
    pub info: InstructionInfoFactory,
    pub places: Places,
    pub status: Status,
    pub views: Views<'a>,
    pub output: Output,
    /// Whose rights accesses have.
    pub mode: Mode,
    /// At privilege level 0.
    pub privileged: bool,
    /// The mode that the block is translated for ([`Cpu::code_mode`]).
    pub code_mode: u64,
    /// Other vCPUs run at the same time.
    pub parallel: bool,
    /// Branches that met a known target are counted.
    pub counting: bool,
    /// The block's number.
    pub number: u32,
    /// The number of the block whose rest this is, or its own.
    pub whole: u32,
    /// The block's instructions.
    pub all: Rc<[Instruction]>,
    /// The guest's general registers when it is about to be executed.
    pub gpr: [u64; 16],
    /// Guest registers that the block changes, a bit each.
    pub changed: u16,
    /// What the block uses, which is loaded from its start on.
    pub units: Units,
    /// Address of the block.
    pub block_rip: u64,
    /// Address of the current instruction.
    pub rip: u64,
    /// Instructions of the block from the current one on.
    pub rest: u32,
    /// The current instruction stores, and has to look behind.
    pub stores: bool,
    /// The instruction behind the current one records itself as the x87's last.
    pub noted_by_next: bool,
}

/// Whether `insn`, the last of its block, goes on where that starts.
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
    /// What leaves at the block's address.
    pub leave: usize,
    /// What looks at the block's pages first, if they are several.
    pub check: Option<usize>,
}

/// What a translation is made of.
pub(crate) struct Order<'a> {
    pub block: &'a Block,
    /// The block's instructions, and the pages that they are in.
    pub all: Rc<[Instruction]>,
    pub pages: Vec<Page>,
    /// Where it stands, and that in its mode.
    pub rip: u64,
    pub key: u64,
    /// The number that it will have.
    pub number: u32,
    /// That of the block whose rest it is, without windows.
    pub whole: Option<u32>,
    /// What it is moved with.
    pub group: Option<u32>,
}

/// Makes host code of `order`, for the place that is next in the code memory of `jit`.
pub(crate) fn make(cpu: &Cpu, jit: &mut Jit, order: &Order<'_>) -> Translation {
    let &Order { ref all, rip, key, number, whole, group, .. } = order;
    let base = group.map(|group| jit.base_of(group, cpu.code_mode));
    jit.asm.restart(jit.address(jit.place.often), jit.address(jit.place.seldom), base);
    let mut lower = Lower {
        asm: &mut jit.asm,
        stubs: &jit.stubs,
        host: &jit.manner.host,
        info: InstructionInfoFactory::new(),
        places: Places {
            homes: Homes::USUAL,
            held: None,
            stretch: 0,
            back_home: Homes::USUAL,
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
            kept: Rc::default(),
            steps: Vec::new(),
            at: 0,
            ranges: Vec::new(),
        },
        output: Output {
            cold: Vec::new(),
            links: Vec::new(),
            first_link: jit.links.next(jit.place.piece) as usize,
            sites: Vec::new(),
        },
        mode: cpu.mode,
        privileged: cpu.cpl() == 0,
        code_mode: cpu.code_mode,
        parallel: cpu.parallel,
        counting: jit.manner.counting,
        number,
        whole: whole.unwrap_or(number),
        all: all.clone(),
        gpr: std::array::from_fn(|i| cpu.state.gpr[i]),
        changed: 0,
        units: Units::default(),
        block_rip: rip,
        rip,
        rest: all.len() as u32,
        stores: false,
        noted_by_next: false,
    };
    let (leave, check) = lower.block(&cpu.isa, all, &order.pages);
    lower.asm.resolve();
    Translation {
        leave: lower.asm.offset(leave),
        check: check.map(|check| lower.asm.offset(check)),
        links: lower.output.links,
        sites: lower.output.sites,
        ranges: lower.views.ranges,
    }
}

impl Lower<'_> {
    /// Whether it is 32-bit code.
    pub fn narrow(&self) -> bool {
        self.code_mode & code_mode::BITS_64 == 0
    }

    /// Emits the whole block; returns the labels of what leaves at its address and, if it is in several pages, of what
    /// looks at them first.
    fn block(&mut self, isa: &Isa, all: &[Instruction], pages: &[Page]) -> (Label, Option<Label>) {
        let start = self.asm.bound();
        let (refill, leave) = (self.asm.label(), self.asm.label());
        self.head(pages, all.len(), refill, leave);
        self.units = Units::of(all, self.code_mode);
        // Loading one loses vectors.
        let check_x87 = self.units.x87.then(|| self.check_x87());
        let check_vectors = self.units.vectors.then(|| self.check_vectors());
        let goes_back = all.last().is_some_and(goes_back);
        if all.len() > 1 && (self.views.grouping || goes_back) {
            let (info, rip, mode) = (&mut self.info, self.block_rip, self.code_mode);
            self.views.steps = all.iter().map(|insn| Step::of(info, insn, rip, mode)).collect();
            self.changed = Step::changes(&self.views.steps);
            self.views.paired = (!self.views.grouping && self.pairs()).then_some(start);
            if goes_back && (self.views.grouping || self.views.paired.is_some()) {
                self.views.round = Round::First;
            }
        }
        self.body(isa, all);
        let again = self.views.again.map(|again| {
            let (refill, gone, round) = (self.asm.label(), self.asm.label(), self.asm.bound());
            self.head(pages, all.len(), refill, gone);
            self.views.round = Round::Next;
            self.views.grouping = true;
            self.views.windows = self.views.kept.clone();
            self.views.again = Some(round);
            self.rest = all.len() as u32;
            self.places.homes = self.places.loop_homes;
            self.status.recipe = self.status.carried;
            self.status.flags = if self.status.carried.is_some() { Flags::Recipe } else { Flags::Saved };
            self.places.held = None;
            self.body(isa, all);
            (refill, gone, again, round)
        });
        self.asm.depart();
        if let Some((refill, _, _, round)) = again {
            self.asm.bind(refill);
            self.asm.alu_imm(Alu::Add, BUDGET, all.len() as i32);
            self.asm.call_to(self.stubs.more);
            self.asm.jcc(cc::NE, round);
            self.leave_round();
            self.asm.jmp(leave);
        }
        self.asm.bind(refill);
        self.asm.alu_imm(Alu::Add, BUDGET, all.len() as i32);
        self.asm.linear(S2, self.block_rip);
        self.asm.call_to(self.stubs.poll);
        self.asm.jmp(start);
        if let Some((_, gone, again, round)) = again {
            self.asm.bind(again);
            self.forget_pages(self.views.windows.pages);
            self.places.homes = Homes::USUAL;
            self.move_to(self.places.loop_homes);
            self.asm.jmp(round);
            self.asm.bind(gone);
            self.leave_round();
        }
        self.asm.bind(leave);
        self.asm.linear(S2, self.block_rip);
        self.asm.constant(S1, reason::DISPATCH.into());
        self.asm.jmp_to(self.stubs.leave);
        let check = pages.iter().any(|page| !page.has(self.block_rip)).then(|| {
            let check = self.asm.bound();
            self.asm.constant(S1, self.number.into());
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
        (leave, check)
    }

    /// Looks whether the block is still what it was, and pays for it.
    fn head(&mut self, pages: &[Page], count: usize, refill: Label, leave: Label) {
        if self.parallel {
            // Others may have written to the page.
            for page in pages {
                self.asm.constant(S1, page.state as u64);
                self.asm.compare_at(S1, page.value);
                self.asm.jcc(cc::NE, leave);
            }
        }
        self.asm.alu_imm(Alu::Sub, BUDGET, count as i32);
        self.asm.jcc(cc::S, refill);
    }

    /// At the start of the second copy, out of the way: all is where it usually is.
    fn leave_round(&mut self) {
        self.places.homes = self.places.loop_homes;
        if self.status.carried.is_some() {
            (self.status.flags, self.status.recipe) = (Flags::Recipe, self.status.carried);
            self.put_flags_away();
        }
        self.come_home();
    }

    /// Emits all instructions.
    fn body(&mut self, isa: &Isa, all: &[Instruction]) {
        let mut ended = false;
        for (i, insn) in all.iter().enumerate() {
            self.noted_by_next = all.get(i + 1).is_some_and(|next| isa.exists(next) && x87::notes(next));
            self.rip = self.block_rip.wrapping_add(insn.ip());
            self.views.at = i;
            if self.views.round == Round::Only || self.views.round == Round::First && i + 1 < all.len() {
                self.begin_stretch(i);
            } else if self.views.round == Round::First {
                // The second copy is entered with all at home.
                self.come_home();
            }
            if i + 1 == all.len() {
                self.plan_loop();
            }
            if self.status.recipe.is_some() {
                let registers = match self.views.steps.get(i) {
                    Some(step) => step.registers(),
                    None => Step::of(&mut self.info, insn, self.block_rip, self.code_mode).registers(),
                };
                self.keep_recipe(insn, registers);
            }
            let before = self.status.recipe;
            ended = self.instruction(isa, insn);
            if effect(insn).changes {
                // However it was done, that is how they can be made again.
                self.status.recipe = Recipe::of(insn, before);
            }
            if let Some(step) = self.views.steps.get(i)
                && self.views.windows.concerns(step)
            {
                Rc::make_mut(&mut self.views.windows).pass(step);
            }
            self.rest -= 1;
        }
        if !ended {
            let next = self.block_rip.wrapping_add(all.last().map_or(0, Instruction::next_ip));
            // The last of them is the current one still.
            self.rest = 1;
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
            && let Some(kept) = self.views.windows.kept(self.changed)
        {
            self.views.kept = Rc::new(kept);
            self.views.again = Some(self.asm.label());
            if self.output.sites.is_empty() {
                self.places.loop_homes = Homes::for_loop(&mut self.info, &self.all, self.code_mode);
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
                    self.stores = false;
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
                self.look_behind(self.block_rip.wrapping_add(insn.next_ip()), false);
                return false;
            }
            if !ends_block(insn) {
                for way in [Self::copied, Self::bit_string, Self::vector, Self::x87] {
                    self.places.held = held;
                    if way(self, insn) {
                        self.look_behind(self.block_rip.wrapping_add(insn.next_ip()), false);
                        return false;
                    }
                    self.stores = false;
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
    pub fn site(&mut self, isa: &Isa, insn: &Instruction) -> u64 {
        let original = if self.narrow() { narrow::narrowed(*insn) } else { *insn };
        let site = Box::new(Site {
            handler: isa.handler(&original),
            insn: original,
            block: self.number,
            block_rip: self.block_rip,
            rip: self.rip,
            rest: self.rest,
            last: ends_block(insn),
        });
        let address = std::ptr::from_ref(&*site) as u64;
        self.output.sites.push(site);
        address
    }

    pub fn call_generic(&mut self, site: u64) {
        let homes = self.places.homes;
        self.come_home();
        self.asm.constant(S1, site);
        self.asm.call_to(self.stubs.generic);
        if self.units.x87 {
            self.asm.call_to(self.stubs.load_x87);
        }
        self.reload_vectors();
        self.move_to(homes);
    }

    /// Where a jump to `rip` goes until it is linked, and the place of its distance, which is the
    /// next four bytes to be emitted. Nothing if the target is in another page.
    fn near_link(&mut self, rip: u64) -> Option<Label> {
        ((rip ^ self.block_rip) >> 12 == 0).then(|| {
            let unlinked = self.asm.label();
            let index = self.output.links.len();
            self.seldom(Cold::Link { label: unlinked, slot: None, index, rip, fixed: false });
            unlinked
        })
    }

    fn note_link(&mut self, rip: u64, place: usize, unlinked: Label, slot: Option<Label>, fixed: bool) {
        self.output.links.push(NewLink { key: rip ^ self.code_mode, place, unlinked, slot, fixed });
    }

    /// The second copy of this block, if that is where the last instruction goes back to.
    fn again_at(&self, rip: u64) -> Option<Label> {
        self.views.again.filter(|_| rip == self.block_rip && self.rest == 1)
    }

    /// Where to go on if that is at the second copy of this block; unless there is a recipe, the flags are put away
    /// then.
    pub fn go_again(&mut self, rip: u64) -> Option<Label> {
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

    /// Jumps to the block at `rip`.
    pub fn link(&mut self, rip: u64) {
        if let Some(unlinked) = self.near_link(rip) {
            self.asm.jmp(unlinked);
            self.note_link(rip, self.asm.here() - 4, unlinked, None, false);
            return;
        }
        self.link_far(rip, false);
    }

    /// Jumps to the block at `rip` in another page, which stays there if this block is moved and it is `fixed`.
    pub fn link_far(&mut self, rip: u64, fixed: bool) {
        let (unlinked, slot) = (self.asm.label(), self.asm.label());
        self.seldom(Cold::Link {
            label: unlinked,
            slot: Some(slot),
            index: self.output.links.len(),
            rip,
            fixed,
        });
        self.asm.jmp_slot(slot);
        self.note_link(rip, 0, unlinked, Some(slot), fixed);
    }

    /// Jumps to the block at `rip` if `condition` holds.
    pub fn link_if(&mut self, condition: u8, rip: u64) {
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

    /// The label of code that leaves for the current instruction to be executed by itself.
    pub fn step(&mut self, why: u32) -> Label {
        let label = self.asm.label();
        self.seldom(Cold::Step { label, rip: self.rip, rest: self.rest, why });
        label
    }

    /// Behind a call of the monitor: loads the vectors again. Flags stay.
    pub fn reload_vectors(&mut self) {
        if self.units.vectors {
            self.asm.call_to(self.stubs.load_vectors);
        }
    }
}
