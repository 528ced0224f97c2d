//! Who may do what with a page (SDM 4.6).

use satori_defs::x86::{cr0, cr4, pf, pte};

use super::tlb::Mode;
use super::walk::Mapping;
use crate::cpu::Cpu;

/// What an access wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// It writes.
    pub write: bool,
    /// It is a user-mode access: made at privilege level 3, and not to a system structure.
    pub user: bool,
    /// It is an instruction fetch.
    pub fetch: bool,
    /// RFLAGS.AC lifts SMAP for it, as it is explicit.
    pub ac: bool,
}

impl Access {
    /// An access to data with the rights of `mode`.
    #[inline(always)]
    pub fn data(mode: Mode, write: bool) -> Self {
        Access { write, user: mode == Mode::User, fetch: false, ac: mode == Mode::SupervisorAc }
    }
}

/// What the entries that translate an address allow together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Every level allows writes.
    pub writable: bool,
    /// Every level allows user accesses: a user-mode address.
    pub user: bool,
    /// Every level allows fetches.
    pub executable: bool,
    /// The protection key, if it counts: of user-mode addresses with CR4.PKE.
    pub key: Option<u8>,
}

impl Rights {
    /// Everything is allowed.
    pub const ALL: Rights = Rights { writable: true, user: true, executable: true, key: None };

    /// What entries allow whose bits are set in `every` if all of them have them, and in `any` if one has.
    #[inline(always)]
    pub(super) fn of(every: u64, any: u64, wide: bool) -> Rights {
        Rights {
            writable: every & pte::W != 0,
            user: every & pte::U != 0,
            executable: !wide || any & pte::NX == 0,
            key: None,
        }
    }
}

impl Cpu {
    /// The bits of the error code that tell of rights if `access` is refused: a protection key
    /// is named even where something else refuses too (SDM 4.7).
    #[inline(always)]
    pub(super) fn refusal(&self, access: Access, rights: Rights) -> Option<u32> {
        let by_key = self.key_refuses(access, rights);
        (by_key || !self.modes_allow(access, rights)).then_some(if by_key { pf::PK } else { 0 })
    }

    /// Access and write disable of the page's protection key (SDM 4.6.2).
    #[inline(always)]
    fn key_refuses(&self, access: Access, rights: Rights) -> bool {
        let Some(key) = rights.key.filter(|_| !access.fetch) else { return false };
        let pkru = self.state.pkru >> (2 * key);
        let (access_disable, write_disable) = (pkru & 1 != 0, pkru & 2 != 0);
        let honours = access.user || self.state.cr0 & cr0::WP != 0;
        access_disable || (write_disable && access.write && honours)
    }

    /// The access rights that do not depend on keys (SDM 4.6.1).
    #[inline(always)]
    fn modes_allow(&self, access: Access, rights: Rights) -> bool {
        let state = &self.state;
        if access.fetch && !rights.executable {
            return false;
        }
        if access.user {
            return rights.user && (!access.write || rights.writable);
        }
        if access.fetch {
            return !(rights.user && state.cr4 & cr4::SMEP != 0);
        }
        if rights.user && state.cr4 & cr4::SMAP != 0 && !access.ac {
            return false;
        }
        !access.write || rights.writable || state.cr0 & cr0::WP == 0
    }

    /// Which accesses a mapping allows without another walk, by `2 * mode + write`.
    pub(super) fn allowed_everywhere(&self, mapping: &Mapping) -> [bool; 6] {
        let fits = |mode, write: bool| {
            (!write || mapping.dirty) && self.refusal(Access::data(mode, write), mapping.rights).is_none()
        };
        [
            fits(Mode::Supervisor, false),
            fits(Mode::Supervisor, true),
            fits(Mode::User, false),
            fits(Mode::User, true),
            fits(Mode::SupervisorAc, false),
            fits(Mode::SupervisorAc, true),
        ]
    }
}
