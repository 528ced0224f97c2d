//! The half that every thread may reach: where a message goes, and what waits there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use satori_bus::{Msi, MsiSink};
use satori_defs::apic::esr;

use crate::bits::SharedBits;
use crate::{DeliveryMode, InterruptMessage, Mode};

/// Brings a vCPU out of the guest, or out of its sleep, because something waits for it.
pub trait Waker: Send + Sync {
    /// Wakes vCPU number `vcpu`.
    fn wake(&self, vcpu: u32);
}

/// Broadcast in xAPIC mode, and for messages of devices in any mode.
const XAPIC_BROADCAST: u32 = 0xff;
/// Broadcast in x2APIC mode.
const X2APIC_BROADCAST: u32 = 0xffff_ffff;

/// Which processors an IPI goes to (SDM 11.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shorthand {
    None,
    Itself,
    All,
    Others,
}

mod signal {
    pub(super) const SIPI: u32 = 1 << 8;
    pub(super) const SIPI_AND_VECTOR: u32 = 0x1ff;
    pub(super) const INIT: u32 = 1 << 9;
    pub(super) const NMI: u32 = 1 << 10;
    pub(super) const ALL: u32 = SIPI_AND_VECTOR | INIT | NMI;
}

/// What one local APIC shows to the others.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The initial APIC ID, which is the x2APIC ID; its low byte is the xAPIC ID.
    pub id: u32,
    pub irr: SharedBits,
    pub tmr: SharedBits,
    /// Vectors that are ended when they are delivered.
    pub auto_eoi: SharedBits,
    /// Errors not yet in the ESR.
    errors: AtomicU32,
    signals: AtomicU32,
    /// [`Mode`], and above it whether SVR enables the APIC.
    mode: AtomicU32,
    /// Logical ID: LDR\[31:24\] in xAPIC mode, the whole LDR in x2APIC mode.
    logical: AtomicU32,
    /// DFR selects the cluster model.
    cluster: AtomicU32,
}

const SOFTWARE_ENABLED: u32 = 1 << 8;

impl Slot {
    fn new(id: u32) -> Self {
        Slot {
            id,
            irr: SharedBits::default(),
            tmr: SharedBits::default(),
            auto_eoi: SharedBits::default(),
            errors: AtomicU32::new(0),
            signals: AtomicU32::new(0),
            mode: AtomicU32::new(Mode::Xapic as u32),
            logical: AtomicU32::new(0),
            cluster: AtomicU32::new(0),
        }
    }

    /// Shows the owner's new addresses.
    pub(crate) fn publish(&self, mode: Mode, software_enabled: bool, logical: u32, cluster: bool) {
        self.logical.store(logical, Ordering::SeqCst);
        self.cluster.store(cluster.into(), Ordering::SeqCst);
        let enabled = if software_enabled { SOFTWARE_ENABLED } else { 0 };
        self.mode.store(mode as u32 | enabled, Ordering::SeqCst);
    }

    fn mode(&self) -> (Mode, bool) {
        let mode = self.mode.load(Ordering::SeqCst);
        let kind = match mode & 3 {
            0 => Mode::Disabled,
            1 => Mode::Xapic,
            _ => Mode::X2apic,
        };
        (kind, mode & SOFTWARE_ENABLED != 0)
    }

    /// Whether a message for `destination` is for this APIC. Without a `source` it comes from a
    /// device, whose 8-bit broadcast also reaches APICs in x2APIC mode.
    fn matches(&self, destination: u32, logical: bool, from_device: bool) -> bool {
        let logical_id = self.logical.load(Ordering::SeqCst);
        match self.mode().0 {
            Mode::Disabled => false,
            Mode::Xapic if destination == XAPIC_BROADCAST => true,
            Mode::Xapic if !logical => {
                // An ID above 255 stays reachable before its processor switches to x2APIC.
                destination == self.id & 0xff || (self.id > 0xff && destination == self.id)
            }
            Mode::Xapic if self.cluster.load(Ordering::SeqCst) != 0 => {
                logical_id >> 4 == destination >> 4 && logical_id & destination & 0xf != 0
            }
            Mode::Xapic => destination <= 0xff && logical_id & destination != 0,
            Mode::X2apic if destination == X2APIC_BROADCAST => true,
            Mode::X2apic if from_device && destination == XAPIC_BROADCAST => true,
            Mode::X2apic if !logical => destination == self.id,
            Mode::X2apic => logical_id >> 16 == destination >> 16 && logical_id & destination & 0xffff != 0,
        }
    }

    /// Takes a message that is for this APIC; returns whether the vCPU must look.
    fn accept(&self, mode: DeliveryMode, vector: u8, level: bool) -> bool {
        match mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => self.request(vector, level),
            DeliveryMode::Nmi => {
                self.signals.fetch_or(signal::NMI, Ordering::SeqCst);
                true
            }
            // INIT forgets a SIPI that came before it.
            DeliveryMode::Init => {
                self.change_signals(|s| s & !signal::SIPI_AND_VECTOR | signal::INIT);
                true
            }
            DeliveryMode::StartUp => {
                self.change_signals(|s| s & !signal::SIPI_AND_VECTOR | signal::SIPI | u32::from(vector));
                true
            }
            // No SMM; and the PIC is asked by whoever injects, see `Lapic::accepts_extint`.
            DeliveryMode::Smi | DeliveryMode::ExtInt => false,
        }
    }

    /// Sets the IRR bit of `vector`, unless the APIC is software-disabled or the vector illegal.
    pub(crate) fn request(&self, vector: u8, level: bool) -> bool {
        if !self.mode().1 {
            return false;
        }
        if vector < 16 {
            self.errors.fetch_or(esr::RECEIVED_ILLEGAL_VECTOR, Ordering::SeqCst);
            return false;
        }
        // The TMR first: whoever sees the IRR bit must see its trigger mode.
        if level {
            self.tmr.set(vector)
        } else {
            self.tmr.clear(vector)
        }
        self.irr.set(vector);
        true
    }

    fn change_signals(&self, change: impl Fn(u32) -> u32) -> u32 {
        let next = |signals| Some(change(signals));
        match self.signals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
            Ok(before) | Err(before) => before,
        }
    }

    /// Adds to the errors that the next write of the ESR collects; returns those before.
    pub(crate) fn add_errors(&self, bits: u32) -> u32 {
        self.errors.fetch_or(bits, Ordering::SeqCst)
    }
    pub(crate) fn take_errors(&self) -> u32 {
        self.errors.swap(0, Ordering::SeqCst)
    }

    /// Errors that no write of the ESR has collected, and signals that wait.
    pub(crate) fn waiting(&self) -> (u32, u32) {
        (self.errors.load(Ordering::SeqCst), self.signals.load(Ordering::SeqCst))
    }

    /// Sets both, while no vCPU executes.
    pub(crate) fn set_waiting(&self, errors: u32, signals: u32) {
        self.errors.store(errors, Ordering::SeqCst);
        self.signals.store(signals & signal::ALL, Ordering::SeqCst);
    }

    pub(crate) fn signalled(&self) -> bool {
        self.signals.load(Ordering::SeqCst) != 0
    }
    pub(crate) fn nmi_pending(&self) -> bool {
        self.signals.load(Ordering::SeqCst) & signal::NMI != 0
    }
    pub(crate) fn init_pending(&self) -> bool {
        self.signals.load(Ordering::SeqCst) & signal::INIT != 0
    }
    /// Whether an NMI and an INIT wait, and a SIPI with which vector; they wait no more.
    pub(crate) fn take_all(&self) -> (bool, bool, Option<u8>) {
        let before = self.signals.swap(0, Ordering::SeqCst);
        let has = |bit| before & bit != 0;
        (has(signal::NMI), has(signal::INIT), has(signal::SIPI).then_some(before as u8))
    }
    pub(crate) fn take_nmi(&self) -> bool {
        self.change_signals(|s| s & !signal::NMI) & signal::NMI != 0
    }
    pub(crate) fn take_init(&self) -> bool {
        self.change_signals(|s| s & !signal::INIT) & signal::INIT != 0
    }
    pub(crate) fn take_sipi(&self) -> Option<u8> {
        // A SIPI behind an INIT waits until the INIT was taken.
        let keep = |s: u32| if s & signal::INIT != 0 { s } else { s & !signal::SIPI_AND_VECTOR };
        let before = self.change_signals(keep);
        (before & (signal::INIT | signal::SIPI) == signal::SIPI).then_some(before as u8)
    }
    pub(crate) fn take_sipi_past_init(&self) -> Option<u8> {
        let before = self.change_signals(|s| s & !signal::SIPI_AND_VECTOR);
        (before & signal::SIPI != 0).then_some(before as u8)
    }
}

/// The bus between local APICs, I/O APICs and message-signalled devices.
///
/// vCPU numbers are indices in the order of the APIC IDs given to [`ApicBus::new`].
pub struct ApicBus {
    slots: Box<[Slot]>,
    waker: OnceLock<Arc<dyn Waker>>,
    /// Who has the local APICs instead.
    elsewhere: OnceLock<Arc<dyn MsiSink>>,
}

impl ApicBus {
    /// A bus of local APICs with the initial APIC IDs `ids`, one a vCPU, all different.
    pub fn new(ids: &[u32]) -> Arc<Self> {
        Arc::new(ApicBus {
            slots: ids.iter().map(|&id| Slot::new(id)).collect(),
            waker: OnceLock::new(),
            elsewhere: OnceLock::new(),
        })
    }

    /// Says who wakes vCPUs; to be called once, before the first vCPU runs. A later call is ignored.
    pub fn set_waker(&self, waker: Arc<dyn Waker>) {
        // The first waker stays, as documented.
        let _ = self.waker.set(waker);
    }

    /// From now on the local APICs are those behind `sink`, which gets all that is sent to these. A later call is ignored.
    pub fn hand_on(&self, sink: Arc<dyn MsiSink>) {
        let _ = self.elsewhere.set(sink);
    }

    /// Number of vCPUs.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no vCPUs.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn slot(&self, vcpu: u32) -> &Slot {
        &self.slots[vcpu as usize]
    }

    /// Makes an NMI pending on `vcpu`, as a watchdog or an NMI button wired to all LINT1 would.
    pub fn nmi(&self, vcpu: u32) {
        self.accept(vcpu, None, DeliveryMode::Nmi, 0, false);
    }

    /// Requests `vector` at `vcpu`, as an edge, past all addressing: a source of the Hyper-V
    /// interface belongs to its processor. Nothing comes of it where the APIC is off. If it is the
    /// vCPU's `own` thread that asks, it is not woken.
    pub fn request(&self, vcpu: u32, vector: u8, own: bool) {
        if self.slot(vcpu).mode().0 != Mode::Disabled {
            self.accept(vcpu, own.then_some(vcpu), DeliveryMode::Fixed, vector, false);
        }
    }

    /// Whether `vector` is requested at `vcpu`, and not yet delivered.
    pub fn requested(&self, vcpu: u32, vector: u8) -> bool {
        self.slot(vcpu).irr.get(vector)
    }

    /// Has the vectors whose bits are set ended as soon as `vcpu` takes them (TLFS 11.8.4,
    /// AutoEOI), and no others.
    pub fn set_auto_eoi(&self, vcpu: u32, vectors: [u32; 8]) {
        self.slot(vcpu).auto_eoi.store(vectors);
    }

    /// Requests a fixed interrupt at `vcpu`, if there is one; `source` is not woken.
    pub(crate) fn interrupt(&self, source: Option<u32>, vcpu: u32, vector: u8) {
        if self.slots.get(vcpu as usize).is_some_and(|slot| slot.mode().0 != Mode::Disabled) {
            self.accept(vcpu, source, DeliveryMode::Fixed, vector, false);
        }
    }

    /// Sends an NMI to `vcpu`, if there is one; `source` is not woken.
    pub(crate) fn nmi_from(&self, source: u32, vcpu: u32) {
        if self.slots.get(vcpu as usize).is_some_and(|slot| slot.mode().0 != Mode::Disabled) {
            self.accept(vcpu, Some(source), DeliveryMode::Nmi, 0, false);
        }
    }

    fn accept(&self, vcpu: u32, source: Option<u32>, mode: DeliveryMode, vector: u8, level: bool) {
        if let Some(sink) = self.elsewhere.get() {
            let destination = self.slot(vcpu).id;
            return sink
                .signal(InterruptMessage { destination, logical: false, mode, vector, level }.to_msi());
        }
        if self.slot(vcpu).accept(mode, vector, level)
            && source != Some(vcpu)
            && let Some(waker) = self.waker.get()
        {
            waker.wake(vcpu);
        }
    }

    /// Sends `message` from vCPU `source`, or from a device; a sender is not woken.
    pub(crate) fn send(&self, source: Option<u32>, shorthand: Shorthand, message: InterruptMessage) {
        let InterruptMessage { destination, logical, mode, vector, level } = message;
        let device = source.is_none();
        let reaches = |vcpu: u32| match shorthand {
            Shorthand::None => self.slot(vcpu).matches(destination, logical, device),
            Shorthand::Itself => source == Some(vcpu),
            Shorthand::All => self.slot(vcpu).mode().0 != Mode::Disabled,
            Shorthand::Others => source != Some(vcpu) && self.slot(vcpu).mode().0 != Mode::Disabled,
        };
        let count = self.slots.len() as u32;
        if mode == DeliveryMode::LowestPriority {
            // Arbitration is by vector over the enabled candidates, as KVM hashes vectors: every
            // vector keeps its processor, and the choice is the same in every run.
            let enabled = |&vcpu: &u32| reaches(vcpu) && self.slot(vcpu).mode().1;
            let candidates = (0..count).filter(enabled).count();
            if candidates != 0 {
                let chosen = usize::from(vector) % candidates;
                if let Some(vcpu) = (0..count).filter(enabled).nth(chosen) {
                    self.accept(vcpu, source, mode, vector, level);
                }
            }
            return;
        }
        // Most messages are physical ones to an ID that equals its index: look there first.
        let direct = shorthand == Shorthand::None && !logical && self.slots.len() <= 0xff;
        if direct && destination < count && self.slot(destination).id == destination {
            if reaches(destination) {
                self.accept(destination, source, mode, vector, level);
            }
            return;
        }
        for vcpu in (0..count).filter(|&vcpu| reaches(vcpu)) {
            self.accept(vcpu, source, mode, vector, level);
        }
    }
}

impl ApicBus {
    /// Delivers a device's `message`. One that nobody accepts is lost, as on hardware.
    pub fn deliver(&self, message: InterruptMessage) {
        self.send(None, Shorthand::None, message);
    }
}

impl MsiSink for ApicBus {
    fn signal(&self, msi: Msi) {
        if let Some(sink) = self.elsewhere.get() {
            return sink.signal(msi);
        }
        // An address that is no local APIC's is a write to memory, which a guest has other ways for.
        if let Some(message) = InterruptMessage::from_msi(msi) {
            self.deliver(message);
        }
    }
}
