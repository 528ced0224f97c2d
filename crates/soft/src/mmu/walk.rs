//! The page walk (SDM chapter 4), with accessed and dirty bits set by compare-and-exchange.

use satori_defs::x86::{cr0, cr4, efer, pf, pte};
use satori_engine::Exception;
use satori_memory::{Gpa, GuestMemory};

use crate::cpu::Cpu;
use crate::host::Scalar;

/// What an access wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// It writes.
    pub write: bool,
    /// It is made at privilege level 3.
    pub user: bool,
    /// It is an instruction fetch.
    pub fetch: bool,
    /// RFLAGS.AC lifts SMAP for it.
    pub ac: bool,
}

/// The outcome of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Physical address of the byte.
    pub gpa: u64,
    /// Every level allows writes.
    pub writable: bool,
    /// Every level allows user accesses.
    pub user: bool,
    /// Every level allows fetches.
    pub executable: bool,
    /// The leaf's dirty bit is set.
    pub dirty: bool,
    /// The leaf is global (and CR4.PGE is on).
    pub global: bool,
    /// Log2 of the bytes that the leaf maps.
    pub shift: u32,
}

/// Physical addresses have this many bits (CPUID 0x80000008).
pub const MAXPHYADDR: u32 = 46;
/// Address bits that entries must leave clear.
const BEYOND: u64 = pte::ADDR & !((1 << MAXPHYADDR) - 1);

/// Whether bits 63:47 of `linear` are all alike.
#[inline(always)]
pub fn canonical(linear: u64) -> bool {
    ((linear as i64) << 16 >> 16) as u64 == linear
}

fn entry_load(memory: &GuestMemory, at: u64, wide: bool) -> u64 {
    let Some(page) = memory.page(Gpa(at)) else { return u64::MAX };
    // SAFETY: entries are naturally aligned, so they lie within the page.
    unsafe {
        let at = page.host.add((at & 0xfff) as usize);
        if wide { u64::load(at) } else { u64::from(u32::load(at)) }
    }
}

/// Sets `bits` in the entry at `at` if it still is `old`.
fn entry_set(memory: &GuestMemory, at: u64, wide: bool, old: u64, bits: u64) -> bool {
    let Some(page) = memory.page(Gpa(at)) else { return true };
    // SAFETY: entries are naturally aligned, so they lie within the page.
    let done = unsafe {
        let host = page.host.add((at & 0xfff) as usize);
        if wide {
            u64::compare_exchange(host, old, old | bits) == old
        } else {
            u32::compare_exchange(host, old as u32, (old | bits) as u32) == old as u32
        }
    };
    page.state.wrote();
    done
}

/// The shape of a paging mode: index bits, entry width and levels.
struct Shape {
    levels: u32,
    index_bits: u32,
    wide: bool,
}

impl Cpu {
    /// Translates `linear` for `access`, or tells the page fault. Non-canonical addresses have
    /// been refused before.
    pub fn walk(&self, linear: u64, access: Access) -> Result<Mapping, Exception> {
        let state = &self.state;
        if state.cr0 & cr0::PG == 0 {
            return Ok(Mapping {
                gpa: linear & 0xffff_ffff,
                writable: true,
                user: true,
                executable: true,
                dirty: true,
                global: false,
                shift: 12,
            });
        }
        let shape = if state.efer & efer::LMA != 0 {
            Shape { levels: 4, index_bits: 9, wide: true }
        } else if state.cr4 & cr4::PAE != 0 {
            Shape { levels: 3, index_bits: 9, wide: true }
        } else {
            Shape { levels: 2, index_bits: 10, wide: false }
        };
        // An accessed or dirty bit that another vCPU's change beat sends us around again.
        loop {
            if let Some(outcome) = self.walk_once(linear, access, &shape) {
                return outcome;
            }
        }
    }

    fn walk_once(&self, linear: u64, access: Access, shape: &Shape) -> Option<Result<Mapping, Exception>> {
        let state = &self.state;
        let nxe = state.efer & efer::NXE != 0;
        let mut code = if access.write { pf::W } else { 0 } | if access.user { pf::U } else { 0 };
        if access.fetch && (nxe || state.cr4 & cr4::SMEP != 0) {
            code |= pf::I;
        }
        let fault = |bits: u32| Some(Err(Exception::pf(linear, code | bits)));
        let (mut writable, mut user, mut executable) = (true, true, true);
        let mut table = if shape.levels == 3 {
            state.cr3 & 0xffff_ffe0
        } else if shape.wide {
            state.cr3 & pte::ADDR
        } else {
            state.cr3 & 0xffff_f000
        };
        let mut level = shape.levels;
        loop {
            level -= 1;
            let shift = 12 + level * shape.index_bits;
            let width = if shape.wide { 8 } else { 4 };
            let pdpte = shape.levels == 3 && level == 2;
            let mask = if pdpte { 3 } else { (1u64 << shape.index_bits) - 1 };
            let at = table + ((linear >> shift) & mask) * width;
            let entry = entry_load(&self.memory, at, shape.wide);
            if entry & pte::P == 0 {
                return fault(0);
            }
            let large = entry & pte::PS != 0
                && !pdpte
                && match level {
                    0 => false,
                    1 => shape.wide || state.cr4 & cr4::PSE != 0,
                    _ => true,
                };
            let mut reserved = 0;
            if shape.wide {
                reserved |= BEYOND;
                if !nxe {
                    reserved |= pte::NX;
                }
                if large {
                    reserved |= ((1 << shift) - 1) & !0x1fff;
                } else if level >= 2 && !pdpte {
                    reserved |= pte::PS;
                }
                if shape.levels == 4 && level == 2 && !large {
                    reserved &= !pte::PS;
                }
                if level == 3 {
                    reserved |= pte::PS;
                }
            } else if large {
                reserved |= 1 << 21;
            }
            if entry & reserved != 0 {
                return fault(pf::RSVD | pf::P);
            }
            if !pdpte {
                writable &= entry & pte::W != 0;
                user &= entry & pte::U != 0;
                executable &= !shape.wide || entry & pte::NX == 0;
            }
            if level > 0 && !large {
                if !pdpte && entry & pte::A == 0 && !entry_set(&self.memory, at, shape.wide, entry, pte::A) {
                    return None;
                }
                table = if shape.wide { entry & pte::ADDR } else { entry & 0xffff_f000 };
                continue;
            }
            if !self.allowed(access, writable, user, executable) {
                return fault(pf::P);
            }
            let wanted = pte::A | if access.write { pte::D } else { 0 };
            if entry & wanted != wanted && !entry_set(&self.memory, at, shape.wide, entry, wanted) {
                return None;
            }
            let offset = (1u64 << shift) - 1;
            let frame = if shape.wide {
                entry & pte::ADDR & !offset
            } else if large {
                // PSE-36: bits 20:13 of the entry are bits 39:32 of the address.
                (entry & 0xffc0_0000) | (entry >> 13 & 0xff) << 32
            } else {
                entry & 0xffff_f000
            };
            return Some(Ok(Mapping {
                gpa: frame | (linear & offset),
                writable,
                user,
                executable,
                dirty: (entry | wanted) & pte::D != 0,
                global: entry & pte::G != 0 && state.cr4 & cr4::PGE != 0,
                shift,
            }));
        }
    }

    /// The rights check of SDM 4.6.
    fn allowed(&self, access: Access, writable: bool, user: bool, executable: bool) -> bool {
        let state = &self.state;
        if access.fetch && !executable {
            return false;
        }
        if access.user {
            return user && (!access.write || writable);
        }
        if access.fetch {
            return !(user && state.cr4 & cr4::SMEP != 0);
        }
        if user && state.cr4 & cr4::SMAP != 0 && !access.ac {
            return false;
        }
        !access.write || writable || state.cr0 & cr0::WP == 0
    }

    /// Which accesses a mapping allows without another walk, by `2 * mode + write`.
    pub(super) fn allowed_everywhere(&self, mapping: &Mapping) -> [bool; 6] {
        let mut allowed = [false; 6];
        for (mode, (user, ac)) in [(false, false), (true, false), (false, true)].into_iter().enumerate() {
            for write in [false, true] {
                let access = Access { write, user, fetch: false, ac };
                allowed[2 * mode + usize::from(write)] = (!write || mapping.dirty)
                    && self.allowed(access, mapping.writable, mapping.user, mapping.executable);
            }
        }
        allowed
    }
}
