//! Linear memory: translation, its cache, and accesses through it.

mod access;
mod device;
mod fetch;
mod fetched;
mod guard;
mod inspect;
mod keys;
mod large;
#[cfg(test)]
mod matrix_tests;
#[cfg(test)]
mod model_tests;
mod paging;
mod rights;
mod slots;
mod slow;
mod spaces;
mod stack;
#[cfg(test)]
mod tests;
mod tlb;
mod walk;

pub(crate) use fetch::Fetch;
pub use fetch::{BUCKETS, Fetches, Scope, bucket};
pub(crate) use inspect::Leads;
pub use paging::{MAXPHYADDR, Paging};
pub use rights::Access;
pub use satori_rules::canonical;
pub use spaces::{SIDES, Side, Space, World};
pub use tlb::{Mode, Tlb};

/// What a vCPU remembers of its page tables, and of which address space.
pub struct Mmu {
    /// Data translations.
    pub tlb: Tlb,
    /// Translations of addresses that code was fetched from.
    pub fetches: Fetches,
    /// Whose caches are in use.
    side: Side,
    /// The address space of each side: the current one, and that which the other side had last.
    spaces: [Space; SIDES],
    /// What decided rights in them ([`Cpu::manner`](crate::cpu::Cpu::manner)) since they were entered or last lost all.
    manners: [u64; SIDES],
    /// [`GuestMemory::changes`](satori_memory::GuestMemory::changes) when translations were last dropped for it.
    map_changes: u64,
    /// Loads of CR3.
    cr3_loads: u64,
}

impl Mmu {
    /// One that knows nothing yet, of memory whose map changed so often.
    pub(crate) fn new(map_changes: u64) -> Self {
        let (tlb, fetches) = (Tlb::new(), Fetches::new());
        let (side, spaces, manners) = (Side::Own, Default::default(), [0; SIDES]);
        Mmu { tlb, fetches, side, spaces, manners, map_changes, cr3_loads: 0 }
    }

    /// CR3 is loaded.
    pub(crate) fn count_cr3_load(&mut self) {
        self.cr3_loads += 1;
    }

    /// How often CR3 was loaded.
    pub(crate) fn cr3_loads(&self) -> u64 {
        self.cr3_loads
    }

    /// Drops translations, also those of address spaces that are not current, which is `space` from now on.
    pub(crate) fn flush(&mut self, keep_global: bool, space: Space, manner: u64) {
        self.name(space, manner);
        self.tlb.flush(keep_global, self.side);
        self.fetches.flush(keep_global, self.side);
    }

    /// Drops the translation of one page of the current address space, or a global one.
    pub(crate) fn flush_page(&mut self, linear: u64) {
        self.tlb.counts.page_flushes += 1;
        self.forget_page(linear);
    }

    /// The same, where the processor does it by itself.
    pub(crate) fn forget_page(&mut self, linear: u64) {
        self.tlb.flush_page(linear);
        self.fetches.flush_page(linear);
    }

    /// The current address space.
    pub(crate) fn space(&self) -> Space {
        self.spaces[self.side as usize]
    }

    fn name(&mut self, space: Space, manner: u64) -> (Space, u64) {
        self.side = space.world.side();
        let side = self.side as usize;
        (std::mem::replace(&mut self.spaces[side], space), std::mem::replace(&mut self.manners[side], manner))
    }

    /// Goes over to an address space; the one that its side had, what decided rights in it, and whether the other side was in use.
    pub(crate) fn enter(&mut self, space: Space, manner: u64) -> (Space, u64, bool) {
        let before = self.side;
        let (from, decided) = self.name(space, manner);
        (from, decided, before != self.side)
    }

    /// Whether the map of memory has changed since this was asked last.
    pub(crate) fn map_changed(&mut self, changes: u64) -> bool {
        std::mem::replace(&mut self.map_changes, changes) != changes
    }
}
