//! Code that seldom runs, which stands behind its block, or rather in another part of the code memory.

use super::asm::{Alu, Label, Mem, cc};
use super::flags::{Flags, Recipe};
use super::homes::Homes;
use super::lower::Lower;
use super::memory::Address;
use super::reason;
use super::stubs::{BUDGET, S1};
use super::window::{Paged, Paired};

/// Code that stands behind the block, as it seldom runs.
pub(crate) enum Cold {
    Miss {
        label: Label,
        retry: Label,
        /// Where the distance to the host's memory, at S1, is used.
        have: Label,
        address: Address,
        describe: u32,
        rip: u64,
        rest: u32,
    },
    Step {
        label: Label,
        rip: u64,
        rest: u32,
        why: u32,
    },
    /// The TLB does not have the range of a window that the access at `address` opens.
    Range {
        label: Label,
        have: Label,
        address: Address,
        /// The address of the window's [`Range`](super::window::Range).
        range: u64,
        write: bool,
        rip: u64,
        rest: u32,
    },
    /// An access in a loop left the page that it was in the round before.
    Paged {
        paged: Paged,
        range: u64,
        rip: u64,
        rest: u32,
    },
    /// The accesses at a loop's start left the two pages that they were in the round before.
    Paired {
        paired: Paired,
        rest: u32,
    },
    /// A store hit code: what comes next may be another instruction now, unless a jump does.
    Wrote {
        label: Label,
        back: Option<Label>,
        window: Option<u8>,
        next: u64,
        rest: u32,
    },
    /// A branch whose target, at S2, is not in its place of the table.
    Branch {
        label: Label,
        have: Label,
        rip: u64,
        rest: u32,
    },
    /// A return goes elsewhere, to S2.
    Return {
        label: Label,
        rip: u64,
        rest: u32,
    },
    /// A target, at S2, is not in its place of the table at S1: it may be in the other one.
    Second {
        label: Label,
        retry: Label,
        other: Label,
    },
    /// What was not done here is left to the generic implementation.
    Generic {
        label: Label,
        back: Label,
        site: u64,
    },
    /// A conditional branch out of the middle of the block.
    Exit {
        label: Label,
        /// The flags are in the host only.
        flags: bool,
        rest: u32,
        target: u64,
        /// It is left there often, so that this stands in the block itself.
        often: bool,
    },
    /// The way to the dispatcher of link `index` of this block; `slot` is where it jumps through.
    Link {
        label: Label,
        slot: Option<Label>,
        index: usize,
    },
}

impl Cold {
    fn label(&mut self) -> &mut Label {
        match self {
            Cold::Paged { paged, .. } => paged.label(),
            Cold::Paired { paired, .. } => paired.label(),
            Cold::Miss { label, .. }
            | Cold::Step { label, .. }
            | Cold::Range { label, .. }
            | Cold::Wrote { label, .. }
            | Cold::Branch { label, .. }
            | Cold::Return { label, .. }
            | Cold::Second { label, .. }
            | Cold::Generic { label, .. }
            | Cold::Exit { label, .. }
            | Cold::Link { label, .. } => label,
        }
    }
}

/// Code that seldom runs.
pub(crate) struct Seldom {
    /// How the flags are made first, if they are nowhere.
    recipe: Option<Recipe>,
    /// Where the registers are.
    homes: Homes,
    what: Cold,
}

impl Lower<'_> {
    /// Has `what` emitted behind the block, for the state of the flags that there is now.
    pub(crate) fn seldom(&mut self, what: Cold) {
        let recipe = self.status.recipe.filter(|_| self.status.flags == Flags::Recipe);
        self.output.cold.push(Seldom { recipe, homes: self.places.homes, what });
    }

    pub(crate) fn emit_cold(&mut self) {
        let mut some = std::mem::take(&mut self.output.taken);
        while !self.output.cold.is_empty() {
            std::mem::swap(&mut some, &mut self.output.cold);
            some.drain(..).for_each(|one| self.emit_seldom(one));
        }
        self.output.taken = some;
    }

    /// Emits the ways out of the block that are taken often.
    pub(crate) fn emit_ways_out(&mut self) {
        let often = |one: &mut Seldom| matches!(one.what, Cold::Exit { often: true, .. });
        let mut some = std::mem::take(&mut self.output.taken);
        some.extend(self.output.cold.extract_if(.., often));
        some.drain(..).for_each(|one| self.emit_seldom(one));
        self.output.taken = some;
    }

    fn emit_seldom(&mut self, Seldom { recipe, homes, mut what }: Seldom) {
        (self.places.homes, self.places.back_home) = (homes, homes);
        if recipe.is_some() || self.moved() {
            let inner = self.asm.label();
            self.asm.bind(std::mem::replace(what.label(), inner));
        }
        if recipe.is_some() {
            (self.status.flags, self.status.recipe) = (Flags::Recipe, recipe);
            self.save_flags();
        }
        self.come_home();
        self.emit_one(what);
    }

    /// Goes back from code that seldom runs to `label`.
    pub(crate) fn go_back(&mut self, label: Label) {
        self.move_to(self.places.back_home);
        if self.places.back_home == self.places.strided {
            self.load_pointers();
        }
        self.asm.jmp(label);
        // What follows comes from elsewhere.
        self.places.homes = Homes::USUAL;
    }

    fn emit_one(&mut self, cold: Cold) {
        match cold {
            Cold::Exit { label, flags, rest, target, .. } => {
                self.asm.bind(label);
                self.status.flags = if flags { Flags::Host } else { Flags::Both };
                self.put_flags_away();
                self.asm.lea(BUDGET, Mem::at(BUDGET, rest as i32));
                self.link(target);
            }
            Cold::Miss { label, retry, have, address, describe, rip, rest } => {
                self.asm.bind(label);
                self.emit_miss(&address, describe, have);
                self.reload_vectors();
                if describe & 0xff >= 16 {
                    let (step, again) = (self.asm.label(), self.asm.label());
                    self.asm.jcc(cc::E, step);
                    self.asm.alu_imm(Alu::Cmp, S1, 1);
                    self.asm.jcc(cc::E, again);
                    self.go_back(have);
                    self.asm.bind(again);
                    self.go_back(retry);
                    self.asm.bind(step);
                } else if self.places.back_home == Homes::USUAL {
                    self.asm.jcc(cc::NE, retry);
                } else {
                    let step = self.asm.label();
                    self.asm.jcc(cc::E, step);
                    self.go_back(retry);
                    self.asm.bind(step);
                }
                self.emit_step(rip, rest, reason::STEP);
            }
            Cold::Step { label, rip, rest, why } => {
                self.asm.bind(label);
                self.emit_step(rip, rest, why);
            }
            Cold::Branch { label, have, rip, rest } => {
                self.asm.bind(label);
                self.asm.call_to(self.stubs.branch);
                self.asm.jcc(cc::NE, have);
                self.emit_step(rip, rest, reason::BRANCH);
            }
            Cold::Return { label, rip, rest } => {
                self.asm.bind(label);
                (self.current.rip, self.current.rest, self.status.flags) = (rip, rest, Flags::Saved);
                self.look_up();
                self.asm.lea(BUDGET, Mem::at(BUDGET, rest as i32 - 1));
                self.jump_back(0);
            }
            Cold::Second { label, retry, other } => {
                self.asm.bind(label);
                self.asm.call_to(self.stubs.second);
                self.asm.jcc(cc::E, retry);
                self.asm.jmp(other);
            }
            Cold::Range { label, have, address, range, write, rip, rest } => {
                self.emit_range((label, have), &address, range, write, (rip, rest));
            }
            Cold::Paged { paged, range, rip, rest } => self.emit_paged(&paged, range, rip, rest),
            Cold::Paired { paired, rest } => self.emit_paired(&paired, rest),
            Cold::Wrote { label, back, window, next, rest } => {
                self.asm.bind(label);
                self.load_state(window);
                self.asm.call_to(self.stubs.wrote);
                match back {
                    Some(back) => self.go_back(back),
                    None => self.emit_step(next, rest - 1, reason::DISPATCH),
                }
            }
            Cold::Generic { label, back, site } => {
                self.asm.bind(label);
                self.call_generic(site);
                self.go_back(back);
            }
            Cold::Link { label, slot, index } => {
                self.asm.bind(label);
                let number = (self.output.first_link + index) as u32;
                self.asm.call_to(self.stubs.link);
                self.asm.bytes(&(number << reason::BITS | reason::LINK).to_le_bytes());
                if let Some(slot) = slot {
                    while !self.asm.address(self.asm.here()).is_multiple_of(8) {
                        self.asm.bytes(&[0xcc]);
                    }
                    self.asm.bind(slot);
                    self.asm.bytes(&[0; 8]);
                }
            }
        }
    }
}
