//! Exits that are answered while the vCPU goes on executing: CPUID, ports and devices in memory, which need the partition and
//! little of their vCPU.
//!
//! They are exits all the same. Whoever runs the vCPU allows a number of them before each entry, those that it would count and not
//! time, and is told how many there were. So counts are the same, and now and then one takes the long way,
//! is timed, and has timers and turns looked at.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use satori_defs::vmx::ExitReason;
use satori_engine::{Exit, Kick, Resume, VmxProcessor, X86};
use satori_lapic::{Lapic, Mode};
use satori_state::CpuState;

use crate::{Platform, View, cpuid, io, mmio};

/// The reasons of such exits.
pub const AT_ONCE: [ExitReason; 3] = [ExitReason::Cpuid, ExitReason::IoInstruction, ExitReason::EptMisconfig];

/// Exits of one reason that were answered at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// All of them.
    pub all: u64,
    /// Those while APICv was not in force.
    pub bare: u64,
}

/// What answers them for one vCPU. Only that one's thread uses it; it is shared as the engine and the machine have it.
pub struct AtOnce {
    platform: Arc<Platform>,
    kick: Arc<Kick>,
    processor: VmxProcessor,
    vcpu: u32,
    /// How many more may be answered, and a bit for each of [`AT_ONCE`] that may be.
    left: AtomicU32,
    allowed: AtomicU32,
    answered: [(AtomicU64, AtomicU64); AT_ONCE.len()],
    apic_id: AtomicU32,
    apic_enabled: AtomicBool,
    misc_enable: AtomicU64,
}

impl AtOnce {
    /// For vCPU `vcpu`, that has `kick`. Nothing is allowed yet.
    pub fn new(platform: Arc<Platform>, kick: Arc<Kick>, processor: VmxProcessor, vcpu: u32) -> Self {
        AtOnce {
            platform,
            kick,
            processor,
            vcpu,
            left: AtomicU32::new(0),
            allowed: AtomicU32::new(0),
            answered: Default::default(),
            apic_id: AtomicU32::new(0),
            apic_enabled: AtomicBool::new(false),
            misc_enable: AtomicU64::new(0),
        }
    }

    /// Allows `most` exits of those among [`AT_ONCE`] whose bits are set, until the next entry. Of the vCPU, CPUID wants to know
    /// its local APIC and its IA32_MISC_ENABLE, which only exits of other kinds change.
    pub fn allow(&self, most: u32, allowed: u32, lapic: &Lapic, misc_enable: u64) {
        self.left.store(most, Relaxed);
        if most > 0 {
            self.allowed.store(allowed, Relaxed);
            self.apic_id.store(lapic.id(), Relaxed);
            self.apic_enabled.store(lapic.mode() != Mode::Disabled, Relaxed);
            self.misc_enable.store(misc_enable, Relaxed);
        }
    }

    /// How many there were of each of [`AT_ONCE`] since this was asked last.
    pub fn take(&self) -> [Answered; AT_ONCE.len()] {
        let take = |counter: &AtomicU64| {
            let value = counter.load(Relaxed);
            counter.store(0, Relaxed);
            value
        };
        std::array::from_fn(|i| Answered { all: take(&self.answered[i].0), bare: take(&self.answered[i].1) })
    }

    fn count(&self, which: usize) {
        let more =
            |counter: &AtomicU64, by: bool| counter.store(counter.load(Relaxed) + u64::from(by), Relaxed);
        let (all, bare) = &self.answered[which];
        more(all, true);
        more(bare, !View::in_force(self.processor, self.platform.hyperv.as_deref()));
    }

    /// Has the vCPU come out if the map of memory, or the address lines, are others than `before`: it looks only at an entry.
    fn notice(&self, before: (u64, u64)) {
        if before != self.seen() {
            self.kick.kick();
        }
    }

    fn seen(&self) -> (u64, u64) {
        (self.platform.memory.changes(), self.platform.memory.lines())
    }
}

impl satori_engine::AtOnce<X86> for AtOnce {
    fn answer(&self, exit: &Exit, state: &CpuState) -> Option<Resume> {
        let which = match exit {
            Exit::Cpuid { .. } => 0,
            Exit::IoRead { .. } | Exit::IoWrite { .. } => 1,
            Exit::MmioRead { .. } | Exit::MmioWrite { .. } => 2,
            _ => return None,
        };
        let left = self.left.load(Relaxed);
        if left == 0 || self.allowed.load(Relaxed) >> which & 1 == 0 {
            return None;
        }
        self.left.store(left - 1, Relaxed);
        self.count(which);
        let (platform, before) = (&*self.platform, self.seen());
        platform.settle();
        let answer = match *exit {
            Exit::Cpuid { leaf, subleaf } => {
                let asker = satori_cpuid::Context {
                    apic_id: self.apic_id.load(Relaxed),
                    cr4: state.cr4,
                    xcr0: state.xcr0,
                    apic_enabled: self.apic_enabled.load(Relaxed),
                    misc_enable: self.misc_enable.load(Relaxed),
                };
                return Some(cpuid::answer(platform, self.vcpu, (leaf, subleaf), &asker));
            }
            Exit::IoRead { port, size } => io::read(platform, port, size),
            Exit::IoWrite { port, size, value } => io::write(platform, port, size, value),
            Exit::MmioRead { gpa, size } => mmio::read(platform, gpa, size),
            Exit::MmioWrite { gpa, size, value } => mmio::write(platform, gpa, size, value),
            _ => return None,
        };
        self.notice(before);
        Some(answer)
    }
}
