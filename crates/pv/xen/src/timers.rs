//! The vCPU's timer: singleshot and periodic, in system time, which is the machine's.

use satori_bus::Nanos;
use satori_defs::xen::virq;

use crate::hypercall::{Caller, Served, done};
use crate::{Partition, Vp};

/// A set_timer_op for what is long over, or too far ahead, is a guest's confusion: it fires this soon.
const CONFUSED: Nanos = 100_000_000;
/// How far ahead is too far.
const FAR: Nanos = 1 << 50;

/// A runstate: on a processor, and asleep.
pub(crate) const RUNNING: u32 = 0;
pub(crate) const BLOCKED: u32 = 2;

impl Vp {
    /// Time at which [`Partition::run_timers`] has something to do, or a poll is over.
    pub fn deadline(&self) -> Option<Nanos> {
        let poll = self.polling.as_ref().map(|(_, until)| *until).filter(|until| *until != Nanos::MAX);
        [self.singleshot, self.periodic.map(|(_, at)| at), poll].into_iter().flatten().min()
    }
}

impl Partition {
    /// System time now.
    pub(crate) fn system_time(&self) -> Nanos {
        self.clock.now()
    }

    /// The partition's TSC at which [`Vp::deadline`] has come.
    pub fn deadline_tsc(&self, vp: &Vp) -> Option<u64> {
        let ns = u128::from(vp.deadline()?);
        let tsc = (ns * u128::from(self.clock.counter_hz())).div_ceil(1_000_000_000);
        Some(u64::try_from(tsc).unwrap_or(u64::MAX))
    }

    /// Lets the timers of `vp` expire whose time has come; returns whether one did.
    pub fn run_timers(&self, vp: &mut Vp) -> bool {
        let now = self.system_time();
        let mut expired = vp.singleshot.take_if(|at| *at <= now).is_some();
        if let Some((period, at)) = &mut vp.periodic
            && *at <= now
        {
            // Missed periods are one.
            let missed = (now - *at) / *period;
            *at = at.saturating_add(missed.saturating_add(1).saturating_mul(*period));
            expired = true;
        }
        if expired {
            self.raise_virq(&mut self.state(), virq::TIMER, vp.index, Some(vp.index));
        }
        expired
    }

    pub(crate) fn set_timer_op(&self, vp: &mut Vp, _: &Caller<'_>, [at, ..]: [u64; 5]) -> Served {
        let now = self.system_time();
        vp.singleshot = match at {
            0 => None,
            _ if at >> 63 != 0 || at.saturating_sub(now) > FAR => Some(now.saturating_add(CONFUSED)),
            _ => Some(at),
        };
        done(0)
    }

    /// The vCPU sleeps, in HLT or in a poll.
    pub fn sleeps(&self, vp: &mut Vp) {
        if vp.asleep.is_none() {
            let now = self.system_time();
            vp.asleep = Some(now);
            self.change_runstate(vp.index, BLOCKED, now);
        }
    }

    /// The vCPU is about to be entered.
    pub fn enters(&self, vp: &mut Vp) {
        if vp.asleep.take().is_some() {
            self.change_runstate(vp.index, RUNNING, self.system_time());
        }
    }

    /// Whether the vCPU waits in a poll: not any more, if one of its ports is pending or the time is over.
    pub fn polls(&self, vp: &mut Vp) -> bool {
        let Some((ports, until)) = &vp.polling else { return false };
        let over = *until <= self.system_time() || self.any_pending(&self.state(), ports);
        if over {
            self.end_poll(vp);
        }
        !over
    }

    /// Ends a poll: an interrupt arrived.
    pub fn end_poll(&self, vp: &mut Vp) {
        vp.polling = None;
        self.state().vcpus[vp.index as usize].polling = false;
    }
}
