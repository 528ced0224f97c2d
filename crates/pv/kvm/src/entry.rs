//! What happens between a vCPU's entries: it sleeps, time is stolen from it, its TLB is flushed, an EOI is spared.

use satori_bus::Nanos;
use satori_defs::kvm::{ENABLED, steal};
use satori_memory::Gpa;

use crate::vm::Since;
use crate::{Feature, Vcpu, Vm};

/// The bit of the EOI word: no EOI is required.
const NO_EOI_REQUIRED: u32 = 1;
/// Stolen time is told at most so often: to ask how long a thread ran is a system call.
const TOLD_EVERY: Nanos = 1_000_000;

impl Vcpu {
    fn steal_area(&self) -> Option<Gpa> {
        (self.steal & ENABLED != 0).then_some(Gpa(self.steal & !(steal::BYTES - 1)))
    }

    /// Whether it has a word by which an EOI can be spared.
    pub fn spares_eoi(&self) -> bool {
        self.eoi & ENABLED != 0
    }

    fn eoi_word(&self) -> Gpa {
        Gpa(self.eoi & !ENABLED)
    }
}

impl Vm {
    /// The vCPU sleeps, at the boundary of an instruction: others read so in its steal-time area.
    pub fn sleeps(&self, this: &mut Vcpu) {
        let Some(area) = this.steal_area() else { return };
        if this.account.asleep.is_none() {
            this.account.asleep = Some(self.clock.now());
        }
        if !this.stopped {
            this.stopped = self.memory.fetch_or_u32(Gpa(area.0 + steal::PREEMPTED), steal::STOPPED).is_ok();
        }
    }

    /// The vCPU is about to be entered; `ran` tells how long it ran until now. Returns whether its TLB has to be flushed,
    /// global translations as well.
    pub fn enters(&self, this: &mut Vcpu, ran: impl FnOnce() -> Nanos) -> bool {
        let Some(area) = this.steal_area() else { return false };
        let now = self.clock.now();
        let slept = this.account.asleep.take().map(|since| now.saturating_sub(since));
        if let (Some(slept), Some(since)) = (slept, &mut this.account.since) {
            since.now = since.now.saturating_add(slept);
        }
        if this.account.since.is_none() || now >= this.account.next {
            self.account(this, area, now, ran());
        }
        if !std::mem::take(&mut this.stopped) {
            return false;
        }
        let before = self.memory.fetch_clear_u32(Gpa(area.0 + steal::PREEMPTED), 0xff).unwrap_or(0);
        let flush = before & steal::FLUSH_TLB != 0 && self.config.set.has(Feature::PvTlbFlush);
        if flush {
            self.used(Feature::PvTlbFlush);
        }
        flush
    }

    /// Tells what was stolen until `now`, of a vCPU that ran for `ran`.
    fn account(&self, this: &mut Vcpu, area: Gpa, now: Nanos, ran: Nanos) {
        let account = &mut this.account;
        account.next = now.saturating_add(TOLD_EVERY);
        if let Some(since) = account.since.replace(Since { now, ran }) {
            let awake = now.saturating_sub(since.now);
            account.stolen =
                account.stolen.saturating_add(awake.saturating_sub(ran.saturating_sub(since.ran)));
        }
        let odd = account.version.wrapping_add(1) | 1;
        account.version = odd.wrapping_add(1);
        let version = Gpa(area.0 + steal::VERSION);
        if self.memory.store_u32(version, odd).is_ok() {
            // The area is aligned to its size, so all of it is in memory where a part is.
            let _ = self.memory.write(area, &account.stolen.to_le_bytes());
            let _ = self.memory.store_u32(version, account.version);
        }
    }

    /// Tells the guest that the EOI of the interrupt in service is not required.
    pub fn spare_eoi(&self, this: &mut Vcpu) {
        this.eoi_spared = self.memory.fetch_or_u32(this.eoi_word(), NO_EOI_REQUIRED).is_ok();
    }

    /// Takes that back; returns whether the guest has ended the interrupt.
    pub fn take_spared_eoi(&self, this: &mut Vcpu) -> bool {
        if !std::mem::take(&mut this.eoi_spared) {
            return false;
        }
        let before = self.memory.fetch_clear_u32(this.eoi_word(), NO_EOI_REQUIRED);
        let ended = before.is_ok_and(|before| before & NO_EOI_REQUIRED == 0);
        if ended {
            self.used(Feature::PvEoi);
        }
        ended
    }
}
