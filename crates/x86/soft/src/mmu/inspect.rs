//! Translation for a debugger: a walk that changes nothing and asks for no rights.

use satori_defs::x86::pte;

use super::canonical;
use super::paging::Paging;
use crate::cpu::Cpu;

impl Cpu {
    /// The physical address that `linear` is mapped to.
    pub fn look_up(&self, linear: u64) -> Option<u64> {
        let paging = Paging::of(&self.state);
        let fits = if paging == Paging::FourLevel { canonical(linear) } else { linear >> 32 == 0 };
        if !fits || paging == Paging::None {
            return if fits { self.nested_look_up(linear) } else { None };
        }
        let (mut table, mut level) = self.top(paging, linear)?;
        loop {
            level -= 1;
            let at = self.nested_look_up(table + paging.offset(linear, level))?;
            let entry = self.entry_load(at, paging.wide())?;
            if entry & pte::P == 0 {
                return None;
            }
            let large = self.is_large(paging, level, entry);
            if level == 0 || large {
                let shift = paging.shift(level);
                return self
                    .nested_look_up(paging.frame(entry, shift, large) | (linear & ((1 << shift) - 1)));
            }
            table = paging.table(entry);
        }
    }
}
