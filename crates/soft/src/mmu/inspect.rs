//! Translation for a debugger: a walk that changes nothing and asks for no rights.

use satori_defs::x86::{cr0, cr4, pte};
use satori_memory::Gpa;

use super::canonical;
use crate::cpu::Cpu;

/// One level of a paging mode: address bits to its right, and entries as a mask.
type Level = (u32, u64);

const LONG: [Level; 4] = [(39, 511), (30, 511), (21, 511), (12, 511)];
const PAE: [Level; 3] = [(30, 3), (21, 511), (12, 511)];
const PLAIN: [Level; 2] = [(22, 1023), (12, 1023)];

impl Cpu {
    /// The physical address that `linear` is mapped to.
    pub fn look_up(&self, linear: u64) -> Option<u64> {
        let state = &self.state;
        if state.cr0 & cr0::PG == 0 {
            return (linear >> 32 == 0).then_some(linear);
        }
        if state.long_mode() {
            return if canonical(linear) { self.descend(&LONG, state.cr3 & pte::ADDR, linear) } else { None };
        }
        if linear >> 32 != 0 {
            return None;
        }
        if state.cr4 & cr4::PAE != 0 {
            self.descend(&PAE, state.cr3 & 0xffff_ffe0, linear)
        } else {
            self.descend(&PLAIN, state.cr3 & 0xffff_f000, linear)
        }
    }

    fn descend(&self, levels: &[Level], mut table: u64, linear: u64) -> Option<u64> {
        let wide = levels.len() > 2;
        for &(shift, mask) in levels {
            let entry = self.entry(table, linear >> shift & mask, wide)?;
            if entry & pte::P == 0 {
                return None;
            }
            let large = match shift {
                30 => levels.len() == 4,
                21 => true,
                22 => self.state.cr4 & cr4::PSE != 0,
                _ => false,
            };
            let offset = (1 << shift) - 1;
            if shift == 12 || (large && entry & pte::PS != 0) {
                let frame = match (wide, shift) {
                    (true, _) => entry & pte::ADDR & !offset,
                    // PSE-36: bits 20:13 of the entry are bits 39:32 of the address.
                    (false, 22) => entry & 0xffc0_0000 | (entry >> 13 & 0xff) << 32,
                    (false, _) => entry & 0xffff_f000,
                };
                return Some(frame | linear & offset);
            }
            table = if wide { entry & pte::ADDR } else { entry & 0xffff_f000 };
        }
        None
    }

    fn entry(&self, table: u64, index: u64, wide: bool) -> Option<u64> {
        let mut bytes = [0; 8];
        let width = if wide { 8 } else { 4 };
        self.memory.read(Gpa(table + index * width as u64), &mut bytes[..width]).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}
