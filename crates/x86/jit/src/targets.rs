//! The table of indirect branches' targets, which translated code looks into by itself.
//!
//! Four places make a set: what does not stand in its own place may stand in another one, and changes places with what is there
//! when it is looked for. With two, three branches of an interpreter that had the same set pushed each other out for ever.

use satori_soft::code_mode::{BITS_64, side};
use satori_soft::mmu::{Mode, SIDES};

/// Tables: for each mode of 64-bit code, then for each of 32-bit code; then all of these for a nested guest's.
pub(crate) const TABLES: usize = SIDES * 2 * MODES;
const MODES: usize = 3;

/// The number of the table for code of `mode`, of which `code_mode` says more.
pub(crate) const fn table(mode: Mode, code_mode: u64) -> usize {
    mode as usize + if code_mode & BITS_64 == 0 { MODES } else { 0 } + 2 * MODES * side(code_mode) as usize
}

/// Whether table `number` is that of a user, if it is one of 32-bit code.
pub(crate) fn narrow(number: u8) -> Option<bool> {
    let mode = (usize::from(number) % (2 * MODES)).checked_sub(MODES)?;
    Some(mode == Mode::User as usize)
}

/// Places of the table, for each mode: a compiler comes back to some fifty thousand calls. The host gives memory to those that are used.
pub(crate) const PLACES: usize = 131_072;
/// Spreads addresses over them: 2^32 by the golden ratio.
pub(crate) const SPREAD: u32 = 0x9e37_79b9;

/// A known target of indirect branches.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Target {
    pub rip: u64,
    pub code: u64,
}

/// Places of a set.
pub(crate) const WAYS: usize = 4;
/// Bytes from one to the next: bits of its address tell it from the others.
pub(crate) const STEP: usize = size_of::<Target>();

/// The targets of one mode. They are never moved: translated code has their address, and finds the other places of
/// a set by two bits of it.
pub(crate) struct Targets {
    /// The places, and room to begin where a set may.
    memory: Box<[Target]>,
    /// The number of the first place in `memory`.
    first: usize,
}

type Set = [Target; WAYS];

/// What stands in set `number` while nothing is known: an address that is looked up elsewhere.
const fn none(number: usize) -> Set {
    [Target { rip: if number == 0 { 1 } else { 0 }, code: 0 }; WAYS]
}

const _: () = assert!(set_of(0) == 0 && set_of(1) != 0 && size_of::<Set>().is_power_of_two());
const _: () = assert!(PLACES / WAYS - 1 <= u16::MAX as usize, "a set's number has 16 bits");

/// Where a target is in the table, unless it is in another place of that set; translated code computes
/// the same.
const fn place(rip: u64) -> usize {
    (rip as u32).wrapping_mul(SPREAD) as usize >> (32 - PLACES.ilog2())
}

/// The set that a target belongs to.
pub(crate) const fn set_of(rip: u64) -> usize {
    place(rip) / WAYS
}

impl Targets {
    pub(crate) fn new() -> Self {
        // Zeroed memory is what nothing is known in, but for one set, and takes none of the host's until it is written.
        // SAFETY: all zeroes is a Target.
        let memory = unsafe { Box::<[Target]>::new_zeroed_slice(PLACES + WAYS).assume_init() };
        let first = (memory.as_ptr() as usize).wrapping_neg() % size_of::<Set>() / STEP;
        let mut targets = Targets { memory, first };
        targets.clear(0);
        targets
    }

    pub(crate) fn address(&self) -> *const Target {
        &raw const self.memory[self.first]
    }

    fn set(&mut self, number: usize) -> &mut Set {
        let at = self.first + WAYS * number;
        (&mut self.memory[at..at + WAYS]).try_into().expect("a set has so many places")
    }

    /// The code at `rip`, if it is known.
    pub(crate) fn find(&self, rip: u64) -> Option<u64> {
        let at = self.first + WAYS * set_of(rip);
        self.memory[at..at + WAYS].iter().find(|target| target.rip == rip).map(|target| target.code)
    }

    /// Notes the code at `rip` in its own place. What is there moves to where the target was, or makes others move on, of which
    /// the one that was noted first goes.
    pub(crate) fn note(&mut self, rip: u64, code: u64) {
        let set = self.set(set_of(rip));
        let own = place(rip) % WAYS;
        let until = (0..WAYS).find(|way| set[own ^ way].rip == rip).unwrap_or(WAYS - 1);
        for way in (0..until).rev() {
            set[own ^ (way + 1)] = set[own ^ way];
        }
        set[own] = Target { rip, code };
    }

    /// The own place of the target at `rip`.
    pub(crate) fn place_of(&self, rip: u64) -> *const Target {
        &raw const self.memory[self.first + place(rip)]
    }

    /// Forgets the code at `rip`.
    pub(crate) fn forget(&mut self, rip: u64) {
        if self.find(rip).is_some() {
            self.clear(set_of(rip));
        }
    }

    /// Forgets what is in one set.
    pub(crate) fn clear(&mut self, set: usize) {
        *self.set(set) = none(set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_a_set_has_places_are_known_though_they_have_the_same_one() {
        let mut targets = Targets::new();
        let here = |rip: &u64| place(*rip) == place(0x40_1000);
        let same: Vec<u64> = (0x40_1000..).filter(here).take(WAYS + 1).collect();
        let known = |targets: &Targets| -> Vec<_> { same.iter().map(|rip| targets.find(*rip)).collect() };
        for (code, rip) in (10..).zip(&same[..WAYS]) {
            targets.note(*rip, code);
        }
        assert_eq!(known(&targets), [Some(10), Some(11), Some(12), Some(13), None]);
        targets.note(same[1], 21);
        assert_eq!(known(&targets), [Some(10), Some(21), Some(12), Some(13), None], "it pushes nothing out");
        targets.note(same[WAYS], 14);
        assert_eq!(known(&targets), [None, Some(21), Some(12), Some(13), Some(14)]);
        targets.forget(same[0]);
        assert_eq!(targets.find(same[2]), Some(12), "it was not there");
        targets.forget(same[2]);
        assert_eq!(targets.find(same[2]), None);
    }

    #[test]
    fn a_set_is_where_two_bits_of_the_address_tell_its_places_apart() {
        let targets = Targets::new();
        assert!((targets.address() as usize).is_multiple_of(size_of::<Set>()));
    }

    #[test]
    fn nothing_is_known_at_first() {
        let targets = Targets::new();
        assert!((0..100_000).all(|rip| targets.find(rip).is_none()));
    }
}
