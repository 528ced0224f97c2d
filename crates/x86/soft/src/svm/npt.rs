//! Nested paging: a guest's physical addresses through the host's own tables (APM 15.25).

use satori_defs::svm::ExitCode;
use satori_defs::x86::{efer, pte};
use satori_svm::{Place, npt};

use super::SvmExit;
use crate::cpu::Cpu;
use crate::mmu::{Leads, MAXPHYADDR};
use crate::vmx::Nested;

/// Levels of the tables, which are those of long mode.
const LEVELS: u32 = 4;
/// Bits of a table's or a page's address.
pub(super) const ADDRESS: u64 = (1 << MAXPHYADDR) - 0x1000;
/// Bits of an address that no entry has.
const BEYOND: u64 = 0x000f_ffff_ffff_f000 & !ADDRESS;

/// What an entry leads to.
enum Step {
    Table(u64),
    Page(u64),
    /// A reserved bit is set.
    Reserved,
}

/// What the present `entry` of `level` leads to, where entries may have NX.
fn step(entry: u64, level: u32, nx: bool) -> Step {
    let large = entry & pte::PS != 0 && level > 0;
    let shift = 12 + 9 * level;
    // Below a large page's address only its PAT bit has a meaning.
    let low = if large { (1u64 << shift) - (1 << 13) } else { 0 };
    let reserved = BEYOND | low | if nx { 0 } else { pte::NX } | if level == 3 { pte::PS } else { 0 };
    if entry & reserved != 0 {
        Step::Reserved
    } else if level == 0 || large {
        Step::Page(entry & ADDRESS & !((1 << shift) - 1))
    } else {
        Step::Table(entry & ADDRESS)
    }
}

/// The same without rights: nothing for what is not present or no entry.
pub(super) fn leads(entry: u64, level: u32) -> Option<Leads> {
    match (entry & pte::P != 0).then(|| step(entry, level, true))? {
        Step::Table(next) => Some(Leads::Table(next)),
        Step::Page(page) => Some(Leads::Page(page)),
        Step::Reserved => None,
    }
}

impl Cpu {
    /// Where `gpa` of a guest is, and whether it may be written without another look; nothing if an entry changed under way.
    pub(crate) fn npt_once(&mut self, gpa: u64, access: Nested) -> Option<Result<(u64, bool), SvmExit>> {
        // Page walks of a guest count as writes of a user.
        let write = access.write || access.walk;
        let nx = self.svm.host.efer & efer::NXE != 0;
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        let code = npt::USER
            | bit(write, npt::WRITE)
            | bit(access.fetch && nx, npt::FETCH)
            | if access.walk { npt::WALK } else { npt::FINAL };
        let fault = |bits: u64| {
            let exit = SvmExit { info1: code | bits, info2: gpa, ..SvmExit::of(ExitCode::Npf) };
            Some(Err(exit))
        };
        let mut table = self.svm.vmcb.get(Place::NESTED_CR3) & ADDRESS;
        let (mut level, mut rights, mut forbidden) = (LEVELS, pte::U | pte::W, 0);
        if gpa >> 48 != 0 {
            return fault(0);
        }
        loop {
            level -= 1;
            let shift = 12 + 9 * level;
            let at = table + (gpa >> shift & 0x1ff) * 8;
            let entry = self.entry_load(at, true).unwrap_or(0);
            if entry & pte::P == 0 {
                return fault(0);
            }
            rights &= entry;
            forbidden |= entry & pte::NX;
            let page = match step(entry, level, nx) {
                Step::Reserved => return fault(npt::PRESENT | npt::RESERVED),
                Step::Table(next) => {
                    if entry & pte::A == 0 && !self.entry_set(at, true, entry, pte::A) {
                        return None;
                    }
                    table = next;
                    continue;
                }
                Step::Page(page) => page,
            };
            let refused =
                rights & pte::U == 0 || write && rights & pte::W == 0 || access.fetch && nx && forbidden != 0;
            if refused {
                return fault(npt::PRESENT);
            }
            let marks = pte::A | if write { pte::D } else { 0 };
            if entry & marks != marks && !self.entry_set(at, true, entry, marks) {
                return None;
            }
            let writable = rights & pte::W != 0 && (entry | marks) & pte::D != 0;
            return Some(Ok((page | gpa & ((1 << shift) - 1), writable)));
        }
    }

    /// Where `gpa` of a guest is, for who changes nothing and asks for no right.
    pub(crate) fn npt_look_up(&self, root: u64, gpa: u64) -> Option<u64> {
        let mut table = root & ADDRESS;
        for level in (0..LEVELS).rev() {
            let shift = 12 + 9 * level;
            let entry = self.entry_load(table + (gpa >> shift & 0x1ff) * 8, true)?;
            match leads(entry, level)? {
                Leads::Table(next) => table = next,
                Leads::Page(page) => return Some(page | gpa & ((1 << shift) - 1)),
            }
        }
        None
    }
}
