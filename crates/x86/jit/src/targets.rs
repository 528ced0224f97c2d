//! The table of indirect branches' targets, which translated code looks into by itself.
//!
//! Two places make a set: what does not stand in its own place may stand in the other one, and
//! changes places with what is there when it is looked for.

use satori_soft::code_mode::BITS_64;
use satori_soft::mmu::Mode;

/// Tables: for each mode of 64-bit code, then for each of 32-bit code.
pub const TABLES: usize = 2 * MODES;
const MODES: usize = 3;

/// The number of the table for code of `mode`, of which `code_mode` says more.
pub const fn table(mode: Mode, code_mode: u64) -> usize {
    mode as usize + if code_mode & BITS_64 == 0 { MODES } else { 0 }
}

/// Whether table `number` is that of a user, if it is one of 32-bit code.
pub fn narrow(number: u8) -> Option<bool> {
    let mode = usize::from(number).checked_sub(MODES)?;
    Some(mode == Mode::User as usize)
}

/// Places of the table, for each mode.
pub const PLACES: usize = 32_768;
/// Spreads addresses over them: 2^32 by the golden ratio.
pub const SPREAD: u32 = 0x9e37_79b9;

/// A known target of indirect branches.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Target {
    pub rip: u64,
    pub code: u64,
}

/// Bytes from a place to the other one of its set: a bit of its address.
pub const OTHER: i32 = size_of::<Target>() as i32;

/// The targets of one mode. They are never moved: translated code has their address, and finds the other place of
/// a set by one bit of it.
pub struct Targets(Box<[Set]>);

#[derive(Clone, Copy)]
#[repr(C, align(32))]
struct Set([Target; 2]);

impl Set {
    /// What stands in set `number` while nothing is known: an address that is looked up elsewhere.
    const fn none(number: usize) -> Self {
        Set([Target { rip: if number == 0 { 1 } else { 0 }, code: 0 }; 2])
    }
}

const _: () = assert!(place(0) / 2 == 0 && place(1) / 2 != 0 && size_of::<Set>() == 2 * OTHER as usize);

/// Where a target is in the table, unless it is in the other place of that set; translated code computes
/// the same.
const fn place(rip: u64) -> usize {
    (rip as u32).wrapping_mul(SPREAD) as usize >> (32 - PLACES.ilog2())
}

/// The set that a target belongs to.
pub const fn set_of(rip: u64) -> usize {
    place(rip) / 2
}

impl Targets {
    pub fn new() -> Self {
        Targets((0..PLACES / 2).map(Set::none).collect())
    }

    pub fn address(&self) -> *const Target {
        self.0.as_ptr().cast()
    }

    /// The code at `rip`, if it is known.
    pub fn find(&self, rip: u64) -> Option<u64> {
        let set = &self.0[set_of(rip)].0;
        set.iter().find(|target| target.rip == rip).map(|target| target.code)
    }

    /// Notes the code at `rip`, in place of what was used longest ago.
    pub fn note(&mut self, rip: u64, code: u64) {
        let set = &mut self.0[set_of(rip)].0;
        let own = place(rip) % 2;
        if set[own].rip != rip {
            set[own ^ 1] = set[own];
        }
        set[own] = Target { rip, code };
    }

    /// The own place of the target at `rip`.
    pub fn place_of(&self, rip: u64) -> *const Target {
        &raw const self.0[set_of(rip)].0[place(rip) % 2]
    }

    /// Forgets the code at `rip`.
    pub fn forget(&mut self, rip: u64) {
        if self.find(rip).is_some() {
            self.clear(set_of(rip));
        }
    }

    /// Forgets what is in one set.
    pub fn clear(&mut self, set: usize) {
        self.0[set] = Set::none(set);
    }

    pub fn clear_all(&mut self) {
        for (number, set) in self.0.iter_mut().enumerate() {
            *set = Set::none(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_that_have_the_same_place_are_both_known() {
        let mut targets = Targets::new();
        let here = |rip: &u64| place(*rip) == place(0x40_1000);
        let same: Vec<u64> = (0x40_1000..).filter(here).take(3).collect();
        targets.note(same[0], 10);
        targets.note(same[1], 11);
        assert_eq!(same.iter().map(|rip| targets.find(*rip)).collect::<Vec<_>>(), [Some(10), Some(11), None]);
        targets.note(same[1], 12);
        assert_eq!(targets.find(same[0]), Some(10), "what is noted again pushes nothing out");
        targets.note(same[2], 13);
        assert_eq!(same.iter().map(|rip| targets.find(*rip)).collect::<Vec<_>>(), [None, Some(12), Some(13)]);
        targets.forget(same[0]);
        assert_eq!(targets.find(same[2]), Some(13), "it was not there");
        targets.forget(same[2]);
        assert_eq!(targets.find(same[2]), None);
    }

    #[test]
    fn nothing_is_known_at_first() {
        let targets = Targets::new();
        assert!((0..100_000).all(|rip| targets.find(rip).is_none()));
    }
}
