//! Address spaces: whose translations the caches hold, and what is kept of those that are not current.
//!
//! A processor tags translations with PCID, VPID and EP4TA (SDM 4.10.1, 28.3.1) and compares tags at each access. Here the caches
//! (the TLB, and what finds code) hold those of one address space only, so that translated code compares no tag: what is not global is taken
//! out when another one becomes current, and put back when the first returns with the leave to use it. What is kept of others is
//! reached by each invalidation that may concern it, or is forgotten.
//!
//! Each cache is there twice, once for the guest itself and once for a guest of its own ([`Side`]), and code is translated for one
//! of the two. So a VM exit, and the entry to the same guest behind it, move nothing.

use satori_defs::x86::{cr0, cr4, efer};
use satori_rules as rules;

use crate::cpu::Cpu;

/// Address spaces of which something is kept; Linux has 6 in use on a processor.
const PLACES: usize = 8;

/// Who runs: nobody's guest, or one of the guest's own guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum World {
    /// VMX root operation, or no VMX.
    #[default]
    Root,
    /// VMX non-root operation.
    Guest {
        /// The virtual-processor identifier; 0 without VPIDs, where entries and exits keep nothing.
        vpid: u16,
        /// The EPT pointer, or 0 without EPT.
        ept: u64,
    },
}

impl World {
    /// Whose caches it uses.
    pub(crate) fn side(self) -> Side {
        match self {
            World::Root => Side::Own,
            World::Guest { .. } => Side::Nested,
        }
    }
}

/// Sides that there are.
pub const SIDES: usize = 2;

/// Which of the caches is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(usize)]
pub enum Side {
    /// That of code outside VMX non-root operation.
    #[default]
    Own = 0,
    /// That of code in it.
    Nested = 1,
}

impl Side {
    /// Both.
    pub const ALL: [Side; SIDES] = [Side::Own, Side::Nested];

    /// The one that is not this.
    pub(super) fn other(self) -> Side {
        match self {
            Side::Own => Side::Nested,
            Side::Nested => Side::Own,
        }
    }
}

/// What a processor tags translations with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Global translations are the same throughout it.
    pub world: World,
    /// Bits 11:0 of CR3 with CR4.PCIDE, else 0.
    pub pcid: u16,
}

impl Space {
    /// What stands for all address spaces of its world.
    pub(super) fn of_world(self) -> Space {
        Space { pcid: 0, ..self }
    }
}

/// One address space becomes current in place of another, which is the one that its side had last.
pub(super) struct Change {
    from: Space,
    to: Space,
    /// The other side was in use until now.
    crosses: bool,
    /// What is known of the new one may be used.
    keep: bool,
    /// What decided rights in the old one ([`Cpu::manner`]), and decides them in the new one.
    manners: (u64, u64),
    /// Translated code runs, which does not look whether it writes to a page whose writes are to be noticed.
    pub(super) translates: bool,
}

/// Which part of a cache a change exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// What is not global in an address space.
    Local(Space),
    /// What is global in a world.
    Global(World),
}

impl Change {
    /// Whose caches are in use from here on.
    pub(super) fn side(&self) -> Side {
        self.to.world.side()
    }

    /// Nothing that the caches of the side have may be used.
    fn voids(&self) -> bool {
        !self.keep || self.crosses && self.manners.0 != self.manners.1
    }

    /// The address space is the one that its side had, and loses what is not global.
    pub(super) fn only_flushes(&self) -> bool {
        self.from == self.to && self.voids()
    }

    /// The world is the one that its side had, and loses what is global.
    pub(super) fn flushes_global(&self) -> bool {
        self.crosses && self.from.world == self.to.world && self.voids()
    }

    /// The parts to be put aside, each with the one that takes its place.
    pub(super) fn parts(&self) -> impl Iterator<Item = (Part, Part)> + use<> {
        let local = (self.from != self.to).then_some((Part::Local(self.from), Part::Local(self.to)));
        let (from, to) = (self.from.world, self.to.world);
        let global = (from != to).then_some((Part::Global(from), Part::Global(to)));
        local.into_iter().chain(global)
    }
}

/// What a cache keeps of parts that are not current, those that were so last at the end.
pub(super) struct Kept<T>(Vec<(Part, u64, T)>);

impl<T> Kept<T> {
    /// Nothing.
    pub(super) const fn new() -> Self {
        Kept(Vec::new())
    }

    /// Puts `content` aside, which was of `part`.
    pub(super) fn put(&mut self, part: Part, change: &Change, content: T) {
        self.0.retain(|(other, ..)| *other != part);
        if self.0.len() == PLACES {
            self.0.remove(0);
        }
        self.0.push((part, change.manners.0, content));
    }

    /// Takes what was kept of `part`, if it may be used.
    pub(super) fn take(&mut self, part: Part, change: &Change) -> Option<T> {
        let place = self.0.iter().position(|(other, ..)| *other == part)?;
        let (_, manner, content) = self.0.remove(place);
        (change.keep && manner == change.manners.1).then_some(content)
    }

    /// Forgets what is kept of address spaces that `which` picks; what is global there goes only with `all` of a world.
    pub(super) fn forget(&mut self, which: impl Fn(Space) -> bool, all: bool) {
        self.0.retain(|(part, ..)| match *part {
            Part::Local(space) => !which(space),
            Part::Global(world) => !(all && which(Space { world, pcid: 0 })),
        });
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Cpu {
    /// Another address space becomes current, or the same again, after the registers and the controls that tell which were loaded. With
    /// `keep`, what was known of it may still be used (as bit 63 of a value for CR3 says, or a VPID); else that is dropped,
    /// though not what is global if the world stays. What is known of the address space that is left is kept for its return.
    pub fn enter_space(&mut self, keep: bool) {
        let (to, manner) = (self.named_space(), self.manner());
        let (from, before, crosses) = self.mmu.enter(to, manner);
        if crosses && !keep {
            // Without VPIDs nothing is known of any address space behind a VM entry or exit.
            self.forget_spaces(|space| space.world == to.world, true);
        }
        let translates = self.mmu.tlb.guards_code();
        let change = Change { from, to, crosses, keep, manners: (before, manner), translates };
        self.mmu.tlb.change(&change);
        self.mmu.fetches.change(&change);
    }

    /// The address space that registers and VMX controls name.
    pub(crate) fn named_space(&self) -> Space {
        let pcids = self.state.cr4 & cr4::PCIDE != 0;
        let pcid = if pcids { (self.state.cr3 & rules::cr3::PCID) as u16 } else { 0 };
        Space { world: self.world(), pcid }
    }

    /// Drops what is kept of address spaces that are not current and that `which` picks, as INVPCID and INVVPID do; with `globals`,
    /// what is global in worlds that are not current too, of which `which` is asked with PCID 0.
    pub fn forget_spaces(&mut self, which: impl Fn(Space) -> bool, globals: bool) {
        let spaces = self.mmu.spaces;
        self.mmu.tlb.forget(&which, globals, spaces);
        self.mmu.fetches.forget(&which, globals, spaces);
    }

    /// What rights depend on beside page tables and the kind of access: a cached translation has their outcome.
    pub(crate) fn manner(&self) -> u64 {
        let state = &self.state;
        let cr4 =
            state.cr4 & (cr4::PGE | cr4::PSE | cr4::PAE | cr4::PCIDE | cr4::SMEP | cr4::SMAP | cr4::PKE);
        state.cr0 & (cr0::PG | cr0::WP | cr0::PE) | state.efer & (efer::NXE | efer::LMA) | cr4 << 32
    }
}
