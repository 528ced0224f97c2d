//! Page tables: a pool of pages, and four-level spaces that keep the kernel's own mappings.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use satori_defs::x86::pte;

use crate::insn;

const POOL: usize = 1024;

#[repr(C, align(4096))]
struct Pool(UnsafeCell<[[u64; 512]; POOL]>);

// SAFETY: `page` gives each page to one owner.
unsafe impl Sync for Pool {}

static PAGES: Pool = Pool(UnsafeCell::new([[0; 512]; POOL]));
static USED: AtomicUsize = AtomicUsize::new(0);

/// The address of a page that nobody has, zeroed. Linear and physical are the same.
pub fn page() -> u64 {
    let number = USED.fetch_add(1, Ordering::Relaxed);
    assert!(number < POOL, "no page is left");
    let at = PAGES.0.get() as u64 + 4096 * number as u64;
    // SAFETY: nobody else has it.
    unsafe { (at as *mut [u64; 512]).write([0; 512]) };
    at
}

/// `count` pages in a row.
pub fn pages(count: usize) -> u64 {
    let first = page();
    for _ in 1..count {
        page();
    }
    first
}

/// Where the case's own mappings may be: beyond the kernel's 512 GiB.
pub const FREE: u64 = 1 << 39;

unsafe extern "C" {
    static boot_pml4: [u64; 512];
}

/// The kernel's own CR3.
pub fn kernel_cr3() -> u64 {
    &raw const boot_pml4 as u64
}

/// A four-level space: the kernel's first 512 GiB, and what is mapped here.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Physical address of its PML4.
    pub root: u64,
}

impl Space {
    /// With the kernel's mappings alone.
    pub fn new() -> Space {
        let root = page();
        // SAFETY: both are page tables that live for ever.
        unsafe { *(root as *mut u64) = boot_pml4[0] };
        Space { root }
    }

    /// Loads CR3 with it.
    pub fn enter(&self) {
        insn::set_cr3(self.root);
    }

    /// The entry for `linear` at `level` (0 is the page table, 3 the PML4); missing tables above it
    /// are made, open to everything.
    pub fn entry(&self, linear: u64, level: u32) -> *mut u64 {
        let mut table = self.root;
        for above in (level + 1..4).rev() {
            let at = index(table, linear, above);
            // SAFETY: `table` is a page of the pool or one of the kernel's.
            unsafe {
                if *at & pte::P == 0 {
                    *at = page() | pte::P | pte::W | pte::U;
                }
                assert!(*at & pte::PS == 0, "a large page is in the way");
                table = *at & pte::ADDR;
            }
        }
        index(table, linear, level)
    }

    /// Writes the entry for `linear` at `level`.
    pub fn set(&self, linear: u64, level: u32, entry: u64) {
        // SAFETY: `entry` finds a place in a table.
        unsafe { self.entry(linear, level).write_volatile(entry) };
    }

    /// Reads the entry for `linear` at `level`.
    pub fn get(&self, linear: u64, level: u32) -> u64 {
        // SAFETY: as in `set`.
        unsafe { self.entry(linear, level).read_volatile() }
    }

    /// Maps the 4-KiB page at `linear` to `physical` with these bits beside P.
    pub fn map(&self, linear: u64, physical: u64, bits: u64) {
        self.set(linear, 0, physical | bits | pte::P);
    }
}

impl Default for Space {
    fn default() -> Self {
        Space::new()
    }
}

fn index(table: u64, linear: u64, level: u32) -> *mut u64 {
    (table + (linear >> (12 + 9 * level) & 511) * 8) as *mut u64
}

/// Leaves whatever space is loaded for the kernel's.
pub fn leave() {
    insn::set_cr3(kernel_cr3());
}
