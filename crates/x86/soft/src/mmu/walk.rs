//! The page walk (SDM chapter 4), with accessed and dirty bits set by compare-and-exchange.

use satori_defs::x86::{cr4, efer, pf, pte};
use satori_engine::Exception;
use satori_memory::Gpa;

use super::paging::Paging;
use super::rights::{Access, Rights};
use crate::cpu::Cpu;
use crate::host::Scalar;
use crate::vmx::Nested;

/// The outcome of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Physical address of the byte.
    pub gpa: u64,
    /// What every level together allows.
    pub rights: Rights,
    /// The leaf's dirty bit is set.
    pub dirty: bool,
    /// The leaf is global (and CR4.PGE is on).
    pub global: bool,
    /// Log2 of the bytes that the leaf maps.
    pub shift: u32,
}

impl Cpu {
    /// Translates `linear` for `access`, or tells the page fault. Non-canonical addresses have
    /// been refused before; outside long mode there are 32 bits of address.
    pub fn walk(&mut self, linear: u64, access: Access) -> Result<Mapping, Exception> {
        // Nearly all walks are of one kind, for which the compiler makes code of its own.
        if Paging::of(&self.state) == Paging::FourLevel && !self.nested_paging() {
            self.walk_as(linear, access, Paging::FourLevel, false)
        } else {
            self.walk_otherwise(linear, access)
        }
    }

    #[inline(never)]
    fn walk_otherwise(&mut self, linear: u64, access: Access) -> Result<Mapping, Exception> {
        let paging = Paging::of(&self.state);
        let linear = if paging == Paging::FourLevel { linear } else { linear & 0xffff_ffff };
        self.walk_as(linear, access, paging, self.nested_paging())
    }

    #[inline(always)]
    fn walk_as(
        &mut self,
        linear: u64,
        access: Access,
        paging: Paging,
        nested: bool,
    ) -> Result<Mapping, Exception> {
        // An accessed or dirty bit that another vCPU's change beat sends us around again.
        loop {
            if let Some(outcome) = self.walk_once(linear, access, paging, nested) {
                let mut mapping = outcome?;
                if nested {
                    let nested = Nested {
                        write: access.write,
                        fetch: access.fetch,
                        walk: false,
                        user: mapping.rights.user,
                        linear,
                    };
                    let (gpa, writable) = self.nested_address(mapping.gpa, nested)?;
                    mapping.gpa = gpa;
                    mapping.dirty &= writable;
                }
                return Ok(Mapping { gpa: self.memory.addressed(mapping.gpa), ..mapping });
            }
        }
    }

    /// The error code of a page fault, but for what the walk found (SDM 4.7).
    fn fault_code(&self, access: Access) -> u32 {
        let (cr4, nxe) = (self.state.cr4, self.state.efer & efer::NXE != 0);
        let fetches_told = cr4 & cr4::SMEP != 0 || (cr4 & cr4::PAE != 0 && nxe);
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        bit(access.write, pf::W) | bit(access.user, pf::U) | bit(access.fetch && fetches_told, pf::I)
    }

    /// One attempt; nothing if an entry changed under way.
    #[inline(always)]
    fn walk_once(
        &mut self,
        linear: u64,
        access: Access,
        paging: Paging,
        nested: bool,
    ) -> Option<Result<Mapping, Exception>> {
        let code = self.fault_code(access);
        let fault = |bits: u32| Some(Err(Exception::pf(linear, code | bits)));
        if paging == Paging::None {
            return Some(Ok(Mapping::identical(linear)));
        }
        let wide = paging.wide();
        let Some((mut table, mut level)) = self.top(paging, linear) else { return fault(0) };
        let (mut every, mut any) = (!0, 0);
        let reserved = self.reserved(paging, 0, false);
        loop {
            level -= 1;
            let shift = paging.shift(level);
            let mut at = table + paging.offset(linear, level);
            if nested {
                match self.nested_address(
                    at,
                    Nested { write: false, fetch: false, walk: true, user: false, linear },
                ) {
                    Ok((host, _)) if self.apic_access(host) => return Some(Err(self.apic_walk_exit())),
                    Ok((host, _)) => at = host,
                    Err(exit) => return Some(Err(exit)),
                }
            }
            // A table where there is no memory: KVM, which has to read it, finds nothing present.
            let Some(entry) = self.entry_load(at, wide) else { return fault(0) };
            if entry & pte::P == 0 {
                return fault(0);
            }
            let large = self.is_large(paging, level, entry, self.state.cr4);
            // Without PS all levels reserve the same bits.
            let reserved = if entry & pte::PS == 0 { reserved } else { self.reserved(paging, level, large) };
            if entry & reserved != 0 {
                return fault(pf::RSVD | pf::P);
            }
            every &= entry;
            any |= entry;
            if level > 0 && !large {
                if entry & pte::A == 0 && !self.entry_set(at, wide, entry, pte::A) {
                    return None;
                }
                table = paging.table(entry);
                continue;
            }
            let mut rights = Rights::of(every, any, wide);
            if paging == Paging::FourLevel && self.state.cr4 & cr4::PKE != 0 && rights.user {
                rights.key = Some((entry >> pte::KEY_SHIFT & 15) as u8);
            }
            if let Some(bits) = self.refusal(access, rights) {
                return fault(bits | pf::P);
            }
            let wanted = pte::A | if access.write { pte::D } else { 0 };
            if entry & wanted != wanted && !self.entry_set(at, wide, entry, wanted) {
                return None;
            }
            return Some(Ok(Mapping {
                gpa: paging.frame(entry, shift, large) | (linear & ((1 << shift) - 1)),
                rights,
                dirty: (entry | wanted) & pte::D != 0,
                global: entry & pte::G != 0 && self.state.cr4 & cr4::PGE != 0,
                shift,
            }));
        }
    }

    /// The first table of a walk and its level plus one; nothing behind a PDPTE that is not
    /// present. The processor reads PDPTEs when CR3 is loaded, not now (SDM 4.4.1).
    #[inline(always)]
    pub(super) fn top(&self, paging: Paging, linear: u64) -> Option<(u64, u32)> {
        let cr3 = self.state.cr3;
        if paging == Paging::Pae {
            let pdpte = self.state.pdpte[(linear >> 30) as usize & 3];
            return (pdpte & pte::P != 0).then_some((paging.table(pdpte), 2));
        }
        Some((paging.table(cr3), if paging == Paging::Bits32 { 2 } else { 4 }))
    }

    /// The entry at a physical address; nothing where there is no memory.
    #[inline(always)]
    pub(crate) fn entry_load(&self, at: u64, wide: bool) -> Option<u64> {
        let page = self.memory.page(Gpa(self.memory.addressed(at)))?;
        // SAFETY: entries are naturally aligned, so they lie within the page.
        unsafe {
            let at = page.host.add((at & 0xfff) as usize);
            Some(if wide { u64::load(at) } else { u64::from(u32::load(at)) })
        }
    }

    /// Sets `bits` in the entry at `at` if it still is `old`.
    pub(crate) fn entry_set(&mut self, at: u64, wide: bool, old: u64, bits: u64) -> bool {
        let Some(page) = self.memory.page(Gpa(self.memory.addressed(at))) else { return true };
        // SAFETY: entries are naturally aligned, so they lie within the page.
        let done = unsafe {
            let host = page.host.add((at & 0xfff) as usize);
            if wide {
                u64::compare_exchange(host, old, old | bits) == old
            } else {
                u32::compare_exchange(host, old as u32, (old | bits) as u32) == old as u32
            }
        };
        if page.state.wrote() {
            self.code_written();
        }
        done
    }
}

impl Mapping {
    /// Without paging, linear addresses are physical ones.
    fn identical(linear: u64) -> Self {
        Mapping { gpa: linear, rights: Rights::ALL, dirty: true, global: false, shift: 12 }
    }
}
