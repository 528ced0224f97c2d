//! The synthetic timers (TLFS 12.3): four a virtual processor, in units of reference time.
//!
//! [`Stimer`] is a timer by itself: what is written to its registers and when it expires. It belongs
//! to its processor's thread, which also looks when it is due, as it does for the local APIC's
//! timer. What an expiry leads to, a message or an interrupt, is the partition's.

#[cfg(test)]
mod tests;

use satori_defs::hyperv::msr;
use satori_defs::hyperv::synic::message::TIMER_EXPIRED;
use satori_defs::hyperv::synic::stimer::{
    AUTO_ENABLE, DIRECT, ENABLE, LAZY, PERIODIC, SINT, SINT_SHIFT, VECTOR, VECTOR_SHIFT,
};
use satori_defs::hyperv::synic::{FIRST_VECTOR, STIMERS};
use satori_defs::msr::Gp;
use serde::{Deserialize, Serialize};

use crate::synic::Source;
use crate::{Enlightenment, Message, Partition, Vp};

/// The shortest time between two expiries of a periodic timer, 100 microseconds: a guest must not
/// keep the host busy with them. What is shorter counts as missed.
const SHORTEST: u64 = 1000;
/// Missed periods that are made up for; what is beyond is skipped.
const MADE_UP: u64 = 8;

/// Where an expiry is signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By an interrupt of the local APIC.
    Direct(u8),
    /// By a message to a source.
    Sint(u8),
}

/// One timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Stimer {
    config: u64,
    count: u64,
    /// Reference time of the expiry that is to be signalled next.
    expiry: u64,
    /// Reference time at which something is to be done; none while it does not run.
    wake: Option<u64>,
}

impl Stimer {
    fn has(&self, bit: u64) -> bool {
        self.config & bit != 0
    }

    fn way(&self) -> Way {
        match self.has(DIRECT) {
            true => Way::Direct(((self.config & VECTOR) >> VECTOR_SHIFT) as u8),
            false => Way::Sint(((self.config & SINT) >> SINT_SHIFT) as u8),
        }
    }

    fn write_config(&mut self, value: u64, now: u64) {
        self.config = value;
        self.start(now);
    }

    fn write_count(&mut self, value: u64, now: u64) {
        self.count = value;
        if value == 0 {
            self.config &= !ENABLE;
        } else if self.has(AUTO_ENABLE) {
            self.config |= ENABLE;
        }
        self.start(now);
    }

    /// Begins anew, as every write of a register does. A timer whose messages would go to SINT0,
    /// the hypervisor's own, is not enabled.
    fn start(&mut self, now: u64) {
        if self.way() == Way::Sint(0) {
            self.config &= !ENABLE;
        }
        self.wake = None;
        if !self.has(ENABLE) || self.count == 0 {
            return;
        }
        if self.has(PERIODIC) {
            self.expiry = now.saturating_add(self.count);
            self.wake = Some(self.expiry.max(now.saturating_add(SHORTEST)));
        } else {
            self.expiry = self.count;
            self.wake = Some(self.expiry);
        }
    }

    fn due(&self, now: u64) -> bool {
        self.wake.is_some_and(|wake| wake <= now)
    }

    /// Takes what is due at `now`; returns the expiry to be signalled. `open` says whether the last
    /// signal was taken, so that another does not vanish in it.
    fn expire(&mut self, now: u64, open: bool) -> Option<u64> {
        if !self.due(now) {
            return None;
        }
        if !self.has(PERIODIC) {
            self.config &= !ENABLE;
            self.wake = None;
            return Some(self.expiry);
        }
        // Writes that leave the count at 0 stop the timer.
        let period = self.count.max(1);
        let expiry = self.expiry;
        let late = now.saturating_sub(expiry);
        let (signal, wake) = match (self.has(LAZY), open) {
            (true, _) => {
                // One for all that were missed, and none if the next one is near.
                self.expiry = expiry.saturating_add((late / period).saturating_add(1).saturating_mul(period));
                let near = self.expiry - now <= period / 8;
                (open && !near, self.expiry)
            }
            (false, false) => (false, now.saturating_add(period / 2)),
            (false, true) => {
                // The expiries that are due now, without this one.
                let missed = late / period;
                let skipped = missed.saturating_sub(MADE_UP).saturating_mul(period);
                self.expiry = expiry.saturating_add(period).saturating_add(skipped);
                // Made up for at twice the rate.
                (true, if missed > 0 { now.saturating_add(period / 2) } else { self.expiry })
            }
        };
        self.wake = Some(if period < SHORTEST { wake.max(now.saturating_add(SHORTEST)) } else { wake });
        signal.then_some(expiry)
    }
}

/// The timers of one virtual processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stimers {
    timers: [Stimer; STIMERS],
    /// Partition TSC of the first wake.
    deadline_tsc: Option<u64>,
}

impl Stimers {
    /// Partition TSC at which [`Partition::run_timers`] has something to do.
    pub(crate) fn deadline_tsc(&self) -> Option<u64> {
        self.deadline_tsc
    }
}

/// Timer and register, config or count.
fn place(register: u32) -> (usize, bool) {
    let index = register - msr::STIMER0_CONFIG;
    (index as usize / 2, index.is_multiple_of(2))
}

impl Partition {
    /// RDMSR of STIMER0_CONFIG to STIMER3_COUNT.
    pub(crate) fn stimer_read(&self, vp: &Vp, register: u32) -> u64 {
        let (index, config) = place(register);
        let timer = &vp.stimers.timers[index];
        if config { timer.config } else { timer.count }
    }

    /// WRMSR of STIMER0_CONFIG to STIMER3_COUNT. #GP for reserved bits, of which direct mode and
    /// its vector are some where it is not offered.
    pub(crate) fn stimer_write(&self, vp: &mut Vp, register: u32, value: u64) -> Result<(), Gp> {
        let (index, config) = place(register);
        let direct = match self.config.set.has(Enlightenment::StimerDirect) {
            true => DIRECT | VECTOR,
            false => 0,
        };
        if config && value & !(ENABLE | PERIODIC | LAZY | AUTO_ENABLE | SINT | direct) != 0 {
            return Err(Gp);
        }
        let now = self.reference_time();
        // A message of what the timer was before would confuse.
        self.withdraw(vp.index(), Source::Timer(index as u8));
        let timer = &mut vp.stimers.timers[index];
        match config {
            true => timer.write_config(value, now),
            false => timer.write_count(value, now),
        }
        self.run_timers(vp);
        Ok(())
    }

    /// Signals what is due of the timers of `vp`.
    pub fn run_timers(&self, vp: &mut Vp) {
        let now = self.reference_time();
        for index in 0..STIMERS {
            let timer = &vp.stimers.timers[index];
            if timer.due(now) {
                let open = !timer.has(PERIODIC) || self.open(vp.index(), index as u8, timer.way());
                let timer = &mut vp.stimers.timers[index];
                if let Some(expiry) = timer.expire(now, open) {
                    let way = timer.way();
                    self.expired(vp.index(), index as u8, way, expiry);
                }
            }
        }
        self.set_timer_deadline(vp);
    }

    /// Works out anew when the timers of `vp` are due: after a change of theirs, or of how
    /// reference time follows from the TSC.
    pub fn set_timer_deadline(&self, vp: &mut Vp) {
        let wake = vp.stimers.timers.iter().filter_map(|timer| timer.wake).min();
        // What is beyond the counter's end does not come.
        let tsc = wake.map(|wake| self.reference.first_tsc(wake));
        vp.stimers.deadline_tsc = tsc.filter(|tsc| *tsc != u64::MAX);
    }

    /// Whether the last signal of a timer was taken.
    fn open(&self, vp: u32, index: u8, way: Way) -> bool {
        match way {
            Way::Direct(vector) => !self.synic.requested(vp, vector),
            Way::Sint(_) => !self.awaits_delivery(vp, Source::Timer(index)),
        }
    }

    fn expired(&self, vp: u32, index: u8, way: Way, expiry: u64) {
        match way {
            // The local APIC takes no vector below 16: like a masked source, it is not heard.
            Way::Direct(vector) if u64::from(vector) < FIRST_VECTOR => {}
            Way::Direct(vector) => {
                self.used(Enlightenment::StimerDirect);
                self.synic.request_own(vp, vector);
            }
            Way::Sint(sint) => {
                // HV_TIMER_MESSAGE_PAYLOAD; the time of delivery comes with the delivery.
                let mut payload = [0; 24];
                payload[0] = index;
                payload[8..16].copy_from_slice(&expiry.to_le_bytes());
                if let Some(message) = Message::new(TIMER_EXPIRED, 0, &payload) {
                    // The buffer is free: this was looked at, or a write has emptied it. So the
                    // only thing that could be refused is a processor that does not exist.
                    let _ = self.post(vp, sint, Source::Timer(index), message);
                }
            }
        }
    }
}
