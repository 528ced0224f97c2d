//! The stopwatch in a vCPU's loop.

use satori_bus::Nanos;
use satori_defs::vmx::ExitReason;

use crate::ExitProfile;

/// Counts exits and times each until the next entry. One a vCPU, or off.
#[derive(Debug, Default)]
pub struct Meter {
    profile: Option<ExitProfile>,
    running: Option<(ExitReason, bool, Nanos)>,
}

impl Meter {
    /// A meter; one that is off counts nothing and reads no clock.
    pub fn new(on: bool) -> Self {
        Meter { profile: on.then(ExitProfile::default), running: None }
    }

    /// The vCPU exited, with APICv in force or not.
    pub fn exit(&mut self, reason: ExitReason, apicv: bool, now: impl FnOnce() -> Nanos) {
        if self.profile.is_some() {
            let now = now();
            self.stop(now);
            self.running = Some((reason, apicv, now));
        }
    }

    /// The vCPU is about to be entered, or will never be again.
    pub fn entry(&mut self, now: impl FnOnce() -> Nanos) {
        if self.running.is_some() {
            self.stop(now());
        }
    }

    fn stop(&mut self, now: Nanos) {
        if let (Some((reason, apicv, since)), Some(profile)) = (self.running.take(), &mut self.profile) {
            profile.record(reason, apicv, now.saturating_sub(since));
        }
    }

    /// What was counted; empty if the meter is off.
    pub fn into_profile(self) -> ExitProfile {
        self.profile.unwrap_or_default()
    }

    /// What was counted so far.
    pub fn profile(&self) -> Option<&ExitProfile> {
        self.profile.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_lasts_until_the_entry() {
        let mut meter = Meter::new(true);
        meter.entry(|| unreachable!("no exit to time"));
        meter.exit(ExitReason::Hlt, true, || 100);
        meter.entry(|| 350);
        meter.exit(ExitReason::Cpuid, false, || 400);
        meter.entry(|| 390);
        let profile = meter.into_profile();
        assert_eq!(profile.get(ExitReason::Hlt).total, 250);
        assert_eq!(profile.get(ExitReason::Cpuid).total, 0, "a clock that went back counts as none");
        let bare = |reason| profile.get(reason).without_apicv;
        assert_eq!((bare(ExitReason::Hlt), bare(ExitReason::Cpuid)), (0, 1));
    }

    #[test]
    fn off_reads_no_clock() {
        let mut meter = Meter::new(false);
        meter.exit(ExitReason::Hlt, true, || unreachable!());
        meter.entry(|| unreachable!());
        assert_eq!(meter.into_profile(), ExitProfile::default());
    }
}
