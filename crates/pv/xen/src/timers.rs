//! The vCPU's timer: singleshot and periodic, in system time, which is the machine's.

use satori_bus::Nanos;
use satori_defs::xen::virq;

use crate::hypercall::{Caller, Served, done};
use crate::{Domain, Vcpu};

/// A set_timer_op for what is long over, or too far ahead, is a guest's confusion: it fires this soon.
const CONFUSED: Nanos = 100_000_000;
/// How far ahead is too far.
const FAR: Nanos = 1 << 50;

/// A runstate: on a processor, and asleep.
pub(crate) const RUNNING: u32 = 0;
pub(crate) const BLOCKED: u32 = 2;

impl Vcpu {
    /// Time at which [`Domain::run_timers`] has something to do, or a poll is over.
    pub fn deadline(&self) -> Option<Nanos> {
        let poll = self.polling.as_ref().map(|(_, until)| *until).filter(|until| *until != Nanos::MAX);
        [self.singleshot, self.periodic.map(|(_, at)| at), poll].into_iter().flatten().min()
    }
}

impl Domain {
    /// System time now.
    pub(crate) fn system_time(&self) -> Nanos {
        self.clock.now()
    }

    /// The domain's TSC at which [`Vcpu::deadline`] has come.
    pub fn deadline_tsc(&self, this: &Vcpu) -> Option<u64> {
        let ns = u128::from(this.deadline()?);
        let tsc = (ns * u128::from(self.clock.counter_hz())).div_ceil(1_000_000_000);
        Some(u64::try_from(tsc).unwrap_or(u64::MAX))
    }

    /// Lets the timers of `this` expire whose time has come; returns whether one did.
    pub fn run_timers(&self, this: &mut Vcpu) -> bool {
        let now = self.system_time();
        let mut expired = this.singleshot.take_if(|at| *at <= now).is_some();
        if let Some((period, at)) = &mut this.periodic
            && *at <= now
        {
            // Missed periods are one.
            let missed = (now - *at) / *period;
            *at = at.saturating_add(missed.saturating_add(1).saturating_mul(*period));
            expired = true;
        }
        if expired {
            self.raise_virq(&mut self.state(), virq::TIMER, this.index, Some(this.index));
        }
        expired
    }

    pub(crate) fn set_timer_op(&self, this: &mut Vcpu, _: &Caller<'_>, [at, ..]: [u64; 5]) -> Served {
        let now = self.system_time();
        this.singleshot = match at {
            0 => None,
            _ if at >> 63 != 0 || at.saturating_sub(now) > FAR => Some(now.saturating_add(CONFUSED)),
            _ => Some(at),
        };
        done(0)
    }

    /// The vCPU sleeps, in HLT or in a poll.
    pub fn sleeps(&self, this: &mut Vcpu) {
        if this.asleep.is_none() {
            let now = self.system_time();
            this.asleep = Some(now);
            self.change_runstate(this.index, BLOCKED, now);
        }
    }

    /// The vCPU is about to be entered.
    pub fn enters(&self, this: &mut Vcpu) {
        if this.asleep.take().is_some() {
            self.change_runstate(this.index, RUNNING, self.system_time());
        }
    }

    /// Whether the vCPU waits in a poll: not any more, if one of its ports is pending or the time is over.
    pub fn polls(&self, this: &mut Vcpu) -> bool {
        let Some((ports, until)) = &this.polling else { return false };
        let over = *until <= self.system_time() || self.any_pending(&self.state(), ports);
        if over {
            self.end_poll(this);
        }
        !over
    }

    /// Ends a poll: an interrupt arrived.
    pub fn end_poll(&self, this: &mut Vcpu) {
        this.polling = None;
        self.state().vcpus[this.index as usize].polling = false;
    }
}
