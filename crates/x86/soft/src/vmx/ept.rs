//! The second translation: a guest's physical addresses through the EPT (SDM 28.3).

use satori_defs::vmx::ExitReason;
use satori_engine::Exception;
use satori_vmx::Field::{Eptp, PmlAddress, PmlIndex};
use satori_vmx::control::proc2;
use satori_vmx::ept::{self, Entry, violation};

use super::{EXIT, VmExit};
use crate::cpu::Cpu;

/// What an access to a guest-physical address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nested {
    /// It writes.
    pub write: bool,
    /// It fetches an instruction.
    pub fetch: bool,
    /// It is of a page walk for the linear address, not of the translation's result.
    pub walk: bool,
    /// Paging has the linear address as one of user mode: each of its entries says so, or there is no paging.
    pub user: bool,
    /// The linear address.
    pub linear: u64,
}

impl Cpu {
    /// Where `gpa` of a guest is, and whether it may be written without another look. Addresses of others are what they are.
    pub fn nested_address(&mut self, gpa: u64, access: Nested) -> Result<(u64, bool), Exception> {
        if !self.nested_paging() {
            return Ok((gpa, true));
        }
        // An entry that another vCPU changed under way sends us around again.
        loop {
            if self.svm.guest {
                if let Some(outcome) = self.npt_once(gpa, access) {
                    return outcome.map_err(|exit| {
                        self.svm.exit = Some(exit);
                        EXIT
                    });
                }
                continue;
            }
            if let Some(outcome) = self.nested_once(gpa, access) {
                return outcome.map_err(|exit| {
                    self.vmx.exit = Some(exit);
                    EXIT
                });
            }
        }
    }

    fn nested_once(&mut self, gpa: u64, access: Nested) -> Option<Result<(u64, bool), VmExit>> {
        let eptp = self.vmx.vmcs.get(Eptp);
        let bits = eptp & ept::EPTP_ACCESSED_DIRTY != 0;
        // With accessed and dirty bits on, page walks count as writes (SDM 28.3.5).
        let write = access.write || access.walk && bits;
        let by_mode = self.vmx.proc2 & proc2::MODE_BASED_EXECUTE != 0;
        let wanted = if access.fetch && by_mode && access.user {
            ept::EXECUTE_USER
        } else if access.fetch {
            ept::EXECUTE
        } else if write && !access.write {
            ept::READ | ept::WRITE
        } else if write {
            ept::WRITE
        } else {
            ept::READ
        };
        let all = ept::RIGHTS | if by_mode { ept::EXECUTE_USER } else { 0 };
        let (mut table, mut level, mut allowed) = (eptp & ept::ADDRESS, 4, all);
        loop {
            level -= 1;
            let shift = 12 + 9 * level;
            let at = table + (gpa >> shift & 0x1ff) * 8;
            // Where there is no memory, all bits read as one: nothing that an entry can be.
            let entry = self.entry_load(at, true).unwrap_or(u64::MAX);
            let kind = ept::classify(entry, level, by_mode);
            let frame = match kind {
                Entry::Absent => return Some(Err(refused(gpa, access, write, 0))),
                Entry::Misconfigured => {
                    let reason = ExitReason::EptMisconfig as u32;
                    return Some(Err(VmExit { reason, gpa, ..VmExit::default() }));
                }
                Entry::Table(next) => {
                    allowed &= entry;
                    if bits && entry & ept::ACCESSED == 0 && !self.entry_set(at, true, entry, ept::ACCESSED) {
                        return None;
                    }
                    table = next;
                    continue;
                }
                Entry::Leaf(frame) => frame,
            };
            allowed &= entry;
            if allowed & wanted != wanted {
                return Some(Err(refused(gpa, access, write, allowed)));
            }
            let marks = ept::ACCESSED | if write { ept::DIRTY } else { 0 };
            if bits && entry & marks != marks {
                if marks & !entry & ept::DIRTY != 0 && !self.log_page(gpa) {
                    let reason = ExitReason::PmlFull as u32;
                    return Some(Err(VmExit { reason, ..VmExit::default() }));
                }
                if !self.entry_set(at, true, entry, marks) {
                    return None;
                }
            }
            let writable = allowed & ept::WRITE != 0 && (!bits || (entry | marks) & ept::DIRTY != 0);
            return Some(Ok((frame | gpa & ((1 << shift) - 1), writable)));
        }
    }

    /// Page-modification logging of a page whose dirty flag is about to be set; whether there was room (SDM 28.3.6).
    fn log_page(&mut self, gpa: u64) -> bool {
        if self.vmx.proc2 & proc2::PML == 0 {
            return true;
        }
        let index = self.vmx.vmcs.get(PmlIndex);
        if index >= 512 {
            return false;
        }
        let at = self.memory.addressed(self.vmx.vmcs.get(PmlAddress) + 8 * index);
        let _ = self.memory.write(satori_memory::Gpa(at), &(gpa & !0xfff).to_le_bytes());
        self.code_written();
        self.vmx.vmcs.set(PmlIndex, index.wrapping_sub(1));
        true
    }

    /// Where `gpa` of a guest is, for a debugger: nothing changes, and no right is asked for.
    pub fn nested_look_up(&self, gpa: u64) -> Option<u64> {
        if !self.nested_paging() {
            return Some(gpa);
        }
        if self.svm.guest {
            return self.npt_look_up(self.svm.nested_cr3(), gpa);
        }
        self.ept_look_up(self.vmx.vmcs.get(Eptp), self.vmx.proc2 & proc2::MODE_BASED_EXECUTE != 0, gpa)
    }

    /// The same by these tables.
    pub(super) fn ept_look_up(&self, eptp: u64, by_mode: bool, gpa: u64) -> Option<u64> {
        let (mut table, mut level) = (eptp & ept::ADDRESS, 4);
        loop {
            level -= 1;
            let shift = 12 + 9 * level;
            let entry = self.entry_load(table + (gpa >> shift & 0x1ff) * 8, true)?;
            match ept::classify(entry, level, by_mode) {
                Entry::Table(next) if level > 0 => table = next,
                Entry::Leaf(frame) => return Some(frame | gpa & ((1 << shift) - 1)),
                _ => return None,
            }
        }
    }
}

/// An EPT violation (SDM table 27-7).
fn refused(gpa: u64, access: Nested, write: bool, allowed: u64) -> VmExit {
    let bit = |set: bool, bit: u64| if set { bit } else { 0 };
    let read = !access.fetch && !access.write;
    let qualification = bit(read, violation::READ)
        | bit(write, violation::WRITE)
        | bit(access.fetch, violation::FETCH)
        | (allowed & ept::RIGHTS) << violation::ALLOWED_SHIFT
        | bit(allowed & ept::EXECUTE_USER != 0, violation::ALLOWED_USER_FETCH)
        | violation::LINEAR_VALID
        | bit(!access.walk, violation::FINAL);
    let reason = ExitReason::EptViolation as u32;
    VmExit { reason, qualification, gpa, linear: access.linear, ..VmExit::default() }
}
