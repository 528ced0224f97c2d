//! What becomes of a changed TSC frequency (TLFS, "Reenlightenment").
//!
//! A guest that hosts guests has to tell them before it runs on. So it may ask that the old
//! frequency be emulated after a change (TSC_EMULATION_CONTROL) and that one of its processors be
//! interrupted (REENLIGHTENMENT_CONTROL). It then stops its guests, ends the emulation by
//! writing 0 to TSC_EMULATION_STATUS, and reads TSC_FREQUENCY. Only then do the TSC and its page
//! change. Without emulation both change at once.

use satori_defs::hyperv::{REENLIGHTENMENT_ENABLE, ReferenceTscPage, TSC_EMULATION};
use satori_lock::Held;

use crate::clock::next_sequence;
use crate::overlay::Kind;
use crate::partition::Shared;
use crate::{Enlightenment, Partition, ReferenceClock};

impl Partition {
    /// The TSC goes on at `hz`, as on the processor that a migration leads to. A frequency that
    /// reference time cannot follow changes nothing.
    pub fn change_tsc_frequency(&self, hz: u64) {
        if ReferenceClock::new(hz).is_none() {
            return;
        }
        let mut shared = self.shared();
        let emulate = shared.tsc_emulation & TSC_EMULATION != 0;
        match emulate && self.config.set.has(Enlightenment::Reenlightenment) {
            true => shared.next_tsc_hz = Some(hz),
            false => self.retune(&mut shared, hz),
        }
        let control = shared.reenlightenment;
        drop(shared);
        let target = (control >> 32) as u32;
        if control & REENLIGHTENMENT_ENABLE != 0 && target < self.slots.count() {
            self.used(Enlightenment::Reenlightenment);
            self.synic.interrupts().request(target, control as u8, false);
        }
    }

    /// The guest knows the new frequency.
    pub(crate) fn end_tsc_emulation(&self) {
        let mut shared = self.shared();
        if let Some(hz) = shared.next_tsc_hz.take() {
            self.retune(&mut shared, hz);
        }
    }

    /// Changes the frequency of the TSC and what its page tells. The page is not valid meanwhile:
    /// who reads it asks the counter MSR, which waits.
    fn retune(&self, shared: &mut Shared, hz: u64) {
        shared.overlays.show(&self.memory, Kind::ReferenceTsc, &0u32.to_le_bytes());
        {
            let mut reference = self.guest_reference.write().held();
            // From the partition's own time, by which timers expire: what passes between two
            // readings is not lost.
            self.clock.set_guest_counter_hz(hz, &mut |tsc, guest| match ReferenceClock::through(
                hz,
                (&self.reference, tsc),
                (&reference, guest),
            ) {
                Some((changed, begin)) => {
                    *reference = changed;
                    begin
                }
                None => guest,
            });
        }
        self.show_reference_tsc(shared);
    }

    /// Shows the reference TSC page anew, if there is one: fields first, then the next sequence.
    pub(crate) fn show_reference_tsc(&self, shared: &mut Shared) {
        let sequence = next_sequence(shared.tsc_sequence);
        let reference = *self.guest_reference.read().held();
        let page = bytes(reference.page(0));
        shared.overlays.show(&self.memory, Kind::ReferenceTsc, &page);
        shared.overlays.show(&self.memory, Kind::ReferenceTsc, &sequence.to_le_bytes());
        shared.tsc_sequence = sequence;
    }
}

fn bytes(page: ReferenceTscPage) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[0..4].copy_from_slice(&page.sequence.to_le_bytes());
    bytes[8..16].copy_from_slice(&page.scale.to_le_bytes());
    bytes[16..24].copy_from_slice(&page.offset.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests;
