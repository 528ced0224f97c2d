//! The state that all virtual processors share, and that of one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use satori_bus::Clock;
use satori_defs::hyperv::EXPOSE_INVARIANT_TSC;
use satori_lock::Held;
use satori_memory::GuestMemory;
use serde::{Deserialize, Serialize};

use crate::msr::HypercallPage;
use crate::overlay::Overlays;
use crate::stimer::Stimers;
use crate::synic::{Interrupts, Synic};
use crate::{Config, Enlightenment, Error, Interrupt, ReferenceClock, Slots, Usage, VpSet};

/// Frequencies that the guest is told, in Hz.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frequencies {
    /// The TSC.
    pub tsc_hz: u64,
    /// The APIC timer's clock before its divider.
    pub apic_hz: u64,
}

/// What the guest told about its death (TLFS 2.7.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// P0 to P4; Linux gives error, its OS identity, RIP, RAX and RSP.
    pub parameters: [u64; 5],
    /// The end of the guest's log, where it gave one.
    pub message: Option<String>,
}

/// What the machine has to do after an access.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Nothing.
    Done,
    /// The virtual processor waits for another: it shall give its time away.
    Yield,
    /// A fixed interrupt goes to each of these virtual processors.
    Interrupt {
        /// The vector.
        vector: u8,
        /// To whom. Who does not exist gets none.
        targets: Box<VpSet>,
    },
    /// The guest crashed.
    Crash(Crash),
    /// The guest wants a reset.
    Reset,
}

/// The state of one virtual processor, owned by its thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vp {
    index: u32,
    /// VP_ASSIST_PAGE.
    pub(crate) assist: u64,
    /// The guest was told that no EOI is required.
    pub(crate) eoi_spared: bool,
    pub(crate) stimers: Stimers,
}

impl Vp {
    /// The virtual processor with this VP index, which is its vCPU number.
    pub fn new(index: u32) -> Self {
        Vp { index, assist: 0, eoi_spared: false, stimers: Stimers::default() }
    }

    /// The VP index.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Partition TSC at which [`Partition::run_timers`] has something to do.
    pub fn deadline_tsc(&self) -> Option<u64> {
        self.stimers.deadline_tsc()
    }
}

/// What changes rarely, and is locked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shared {
    pub hypercall: u64,
    pub reference_tsc: u64,
    pub tsc_sequence: u32,
    pub crash: [u64; 5],
    /// What the guest told when it died.
    pub crashed: Option<Crash>,
    /// REENLIGHTENMENT_CONTROL.
    pub reenlightenment: u64,
    /// TSC_EMULATION_CONTROL.
    pub tsc_emulation: u64,
    /// The TSC's new frequency, while the old one is emulated.
    pub next_tsc_hz: Option<u64>,
    pub overlays: Overlays,
}

/// The Hyper-V side of a partition.
pub struct Partition {
    pub(crate) config: Config,
    pub(crate) frequencies: Frequencies,
    pub(crate) hypercall_page: HypercallPage,
    /// Hypercalls of the page have [`crate::BESIDE_XEN`] in EAX.
    pub(crate) beside_xen: bool,
    pub(crate) memory: GuestMemory,
    pub(crate) clock: Arc<dyn Clock>,
    /// How reference time follows from the partition's TSC.
    pub(crate) reference: ReferenceClock,
    /// How it follows from what guests see of it, which may have changed its frequency. No other
    /// lock is taken behind this one.
    pub(crate) guest_reference: RwLock<ReferenceClock>,
    /// Read at every hypercall, hence not under the lock.
    pub(crate) guest_os_id: AtomicU64,
    /// TSC_INVARIANT_CONTROL; asked for at every CPUID.
    pub(crate) tsc_invariant: AtomicU64,
    shared: Mutex<Shared>,
    pub(crate) synic: Synic,
    pub(crate) slots: Slots,
    pub(crate) usage: Usage,
}

impl Partition {
    /// A partition that offers what `config` says, with `apic_hz` the clock of its APIC timers.
    pub fn new(
        config: Config,
        memory: GuestMemory,
        clock: Arc<dyn Clock>,
        apic_hz: u64,
    ) -> Result<Self, Error> {
        let tsc_hz = clock.counter_hz();
        let reference = ReferenceClock::new(tsc_hz).ok_or(Error::SlowTsc(tsc_hz))?;
        Ok(Partition {
            usage: Usage::new(&config),
            config,
            frequencies: Frequencies { tsc_hz, apic_hz },
            hypercall_page: HypercallPage::Intel,
            beside_xen: false,
            memory,
            clock,
            reference,
            guest_reference: RwLock::new(reference),
            guest_os_id: AtomicU64::new(0),
            tsc_invariant: AtomicU64::new(0),
            shared: Mutex::default(),
            synic: Synic::default(),
            slots: Slots::new(Vec::new()),
        })
    }

    /// Its processors are AMD's: hypercalls are made by VMMCALL.
    pub fn with_vmmcall(self) -> Self {
        Partition { hypercall_page: HypercallPage::Amd, ..self }
    }

    /// Hypercalls are made by writing AL to `port`, which changes no register either.
    pub fn with_call_port(self, port: u8) -> Self {
        Partition { hypercall_page: HypercallPage::Port(port), ..self }
    }

    /// Xen's interface stands beside, whose guests make hypercalls by the same instruction: those of the page say that they are meant.
    pub fn beside_xen(self) -> Self {
        Partition { beside_xen: true, ..self }
    }

    /// Gives each of `vps` virtual processors a synthetic interrupt controller that interrupts through
    /// `interrupts`.
    pub fn with_synic(self, vps: u32, interrupts: Arc<dyn Interrupts>) -> Self {
        Partition { synic: Synic::new(vps, interrupts), ..self }
    }

    /// Says how to bring each of the partition's virtual processors out of the guest; it has as
    /// many.
    pub fn with_processors(self, processors: Vec<Box<dyn Interrupt>>) -> Self {
        Partition { slots: Slots::new(processors), ..self }
    }

    /// What the partition offers.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Reference time now, in units of 100 ns since the machine started.
    pub fn reference_time(&self) -> u64 {
        // Locked while the clock is read, so that a change of frequency comes before or after.
        let reference = self.guest_reference.read().held();
        reference.at(self.clock.guest_counter())
    }

    /// What the guest told when it died, if it did.
    pub fn crashed(&self) -> Option<Crash> {
        self.shared().crashed.clone()
    }

    /// Whether the guest has told its identity, without which it has no hypercalls.
    pub fn is_identified(&self) -> bool {
        self.guest_os_id.load(Ordering::SeqCst) != 0
    }

    /// Whether CPUID tells of an invariant TSC: where the guest's consent is offered, only with it.
    pub fn shows_invariant_tsc(&self) -> bool {
        !self.config.set.has(Enlightenment::TscInvariant)
            || self.tsc_invariant.load(Ordering::Relaxed) & EXPOSE_INVARIANT_TSC != 0
    }

    /// What others may do to each virtual processor.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// What the guest has used until now.
    pub fn usage(&self) -> Vec<satori_pv::Used> {
        self.usage.0.report()
    }

    /// Notes a use of `one` that is neither an MSR access nor a hypercall.
    pub(crate) fn used(&self, one: Enlightenment) {
        self.usage.note(one, self.clock.now());
    }

    /// Notes hypercall `code`, and whether its parameters came in XMM registers.
    pub(crate) fn used_call(&self, code: u16, xmm: bool) {
        let now = self.clock.now();
        self.usage.call(code, now);
        if xmm {
            self.usage.note(Enlightenment::XmmInput, now);
        }
    }

    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().held()
    }
}
