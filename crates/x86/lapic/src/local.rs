//! The half that belongs to the vCPU's thread: registers, priorities, LVT and timer.

use std::sync::Arc;

use satori_defs::apic::{self, base, esr, icr, lvt, svr};
use satori_defs::msr::Gp;

use crate::bits::Bits;
use crate::bus::{ApicBus, Shorthand, Slot};
use crate::timer::{Timer, TimerMode};
use crate::{DeliveryMode, InterruptMessage};

/// What IA32_APIC_BASE makes of the APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Globally disabled.
    Disabled = 0,
    /// Registers in a page of physical memory.
    Xapic = 1,
    /// Registers are MSRs.
    X2apic = 2,
}

/// Frequencies that the timer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// The partition's TSC, in Hz.
    pub tsc_hz: u64,
    /// The timer's clock before its divider, in Hz: what CPUID leaf 0x15 gives as the crystal,
    /// and the APIC_FREQUENCY MSR to Hyper-V guests.
    pub timer_hz: u64,
}

/// A local interrupt pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lint {
    /// LINT0, where a PC has its PIC.
    Lint0,
    /// LINT1, where a PC has its NMI.
    Lint1,
}

/// Entries of the local vector table, in the order of their registers.
pub(crate) const LVT_ENTRIES: usize = 6;
pub(crate) const TIMER: usize = 0;
const LINT0: usize = 3;
const LINT1: usize = 4;
const ERROR: usize = 5;

/// The bits of each LVT entry that software may set (SDM 11.5.1).
pub(crate) const LVT_WRITABLE: [u32; LVT_ENTRIES] = {
    let common = lvt::VECTOR | lvt::MASKED;
    let pin = common | lvt::MODE | lvt::ACTIVE_LOW | lvt::LEVEL;
    let timer = common | lvt::PERIODIC | lvt::TSC_DEADLINE;
    [timer, common | lvt::MODE, common | lvt::MODE, pin, pin, common]
};

/// One local APIC.
pub struct Lapic {
    bus: Arc<ApicBus>,
    vcpu: u32,
    pub(crate) base: u64,
    pub(crate) physical_bits: u8,
    pub(crate) tpr: u8,
    pub(crate) ldr: u32,
    pub(crate) dfr: u32,
    pub(crate) svr: u32,
    pub(crate) isr: Bits,
    pub(crate) esr: u32,
    pub(crate) icr: u64,
    pub(crate) lvt: [u32; LVT_ENTRIES],
    pub(crate) timer: Timer,
    /// The vector that the last EOI ended, until somebody asks.
    pub(crate) ended: Option<u8>,
}

impl Lapic {
    /// The local APIC of `vcpu` on `bus` after power-up; vCPU 0 is the BSP.
    /// `physical_bits` is MAXPHYADDR.
    ///
    /// The BSP's LINT0 passes the PIC's interrupts through, as firmware leaves it in virtual
    /// wire mode, and as KVM does.
    pub fn new(bus: Arc<ApicBus>, vcpu: u32, clocks: Clocks, physical_bits: u8) -> Self {
        let bsp = if vcpu == 0 { base::BSP } else { 0 };
        let mut apic = Lapic {
            bus,
            vcpu,
            base: apic::DEFAULT_BASE | base::EN | bsp,
            physical_bits,
            tpr: 0,
            ldr: 0,
            dfr: u32::MAX,
            svr: 0xff,
            isr: Bits::default(),
            esr: 0,
            icr: 0,
            lvt: [lvt::MASKED; LVT_ENTRIES],
            timer: Timer::new(clocks),
            ended: None,
        };
        apic.init();
        apic
    }

    /// The reset that INIT makes. ID and IA32_APIC_BASE stay (SDM 11.4.7.3).
    pub fn init(&mut self) {
        self.tpr = 0;
        self.dfr = u32::MAX;
        self.svr = 0xff;
        self.isr = Bits::default();
        self.esr = 0;
        self.icr = 0;
        self.lvt = [lvt::MASKED; LVT_ENTRIES];
        if self.is_bsp() {
            self.lvt[LINT0] = (DELIVERY_EXTINT << 8) & lvt::MODE;
        }
        self.timer.reset();
        let slot = self.slot();
        slot.irr.reset();
        slot.tmr.reset();
        self.ldr = if self.mode() == Mode::X2apic { self.x2apic_ldr() } else { 0 };
        self.publish();
    }

    pub(crate) fn slot(&self) -> &Slot {
        self.bus.slot(self.vcpu)
    }

    #[cfg(test)]
    pub(crate) fn slot_bus(&self) -> &ApicBus {
        &self.bus
    }

    /// Logical x2APIC ID: cluster in \[31:16\], one bit of 16 below (SDM 11.12.10.2).
    fn x2apic_ldr(&self) -> u32 {
        let id = self.slot().id;
        id >> 4 << 16 | 1 << (id & 0xf)
    }

    pub(crate) fn publish(&self) {
        let logical = if self.mode() == Mode::X2apic { self.ldr } else { self.ldr >> 24 };
        // DFR model 1111 is flat, 0000 is cluster.
        self.slot().publish(self.mode(), self.software_enabled(), logical, self.dfr >> 28 == 0);
    }

    /// Whether the spurious interrupt vector register has it take interrupts.
    pub fn software_enabled(&self) -> bool {
        self.svr & svr::ENABLE != 0
    }

    /// Whether an interrupt that is sent to it waits in its IRR.
    pub fn takes_interrupts(&self) -> bool {
        self.software_enabled() && self.mode() != Mode::Disabled
    }

    /// IA32_APIC_BASE.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The mode that IA32_APIC_BASE selects.
    pub fn mode(&self) -> Mode {
        match (self.base & base::EN != 0, self.base & base::EXTD != 0) {
            (false, _) => Mode::Disabled,
            (true, false) => Mode::Xapic,
            (true, true) => Mode::X2apic,
        }
    }

    /// Physical address of the xAPIC registers, where accesses reach them now.
    pub fn mmio_base(&self) -> Option<u64> {
        (self.mode() == Mode::Xapic).then_some(self.base & !0xfff)
    }

    /// The initial APIC ID.
    pub fn id(&self) -> u32 {
        self.slot().id
    }

    /// Whether this is the bootstrap processor.
    pub fn is_bsp(&self) -> bool {
        self.base & base::BSP != 0
    }

    /// Writes IA32_APIC_BASE, where x2APIC mode is offered or not. Disabling loses all state but the ID.
    pub fn write_base(&mut self, value: u64, x2apic: bool) -> Result<(), Gp> {
        if !satori_rules::apic_base::legal(self.base, value, x2apic, self.physical_bits.clamp(32, 52)) {
            return Err(Gp);
        }
        let before = self.mode();
        self.base = value & !base::BSP | self.base & base::BSP;
        if before != self.mode() {
            match self.mode() {
                Mode::Disabled => self.init(),
                Mode::X2apic => self.ldr = self.x2apic_ldr(),
                Mode::Xapic => {}
            }
            self.publish();
        }
        Ok(())
    }

    /// Task priority, 8 bits.
    pub fn tpr(&self) -> u8 {
        self.tpr
    }

    /// Takes the task priority, for instance from the TPR shadow. CR8 is its high nibble.
    pub fn set_tpr(&mut self, tpr: u8) {
        self.tpr = tpr;
    }

    /// Processor priority (SDM 11.8.3.1).
    pub fn ppr(&self) -> u8 {
        let in_service = self.isr.highest().unwrap_or(0) & 0xf0;
        if self.tpr & 0xf0 >= in_service { self.tpr } else { in_service }
    }

    /// The vector that would be delivered now: the highest in the IRR, if its class is above
    /// the processor priority's.
    pub fn pending(&self) -> Option<u8> {
        if self.mode() == Mode::Disabled {
            return None;
        }
        self.slot().irr.highest().filter(|vector| vector & 0xf0 > self.ppr() & 0xf0)
    }

    /// The vector that the next EOI ends.
    pub fn in_service(&self) -> Option<u8> {
        self.isr.highest()
    }

    /// Whether `vector` came level-triggered, so that its end is broadcast.
    pub fn level_triggered(&self, vector: u8) -> bool {
        self.slot().tmr.get(vector)
    }

    /// The highest requested vector, whatever the priorities.
    pub fn highest_irr(&self) -> Option<u8> {
        self.slot().irr.highest()
    }

    /// The TPR threshold below which a requested vector that the TPR holds back becomes
    /// deliverable; 0 if none is held back.
    pub fn tpr_threshold(&self) -> u8 {
        match self.highest_irr() {
            Some(vector) if self.mode() != Mode::Disabled && vector >> 4 <= self.tpr >> 4 => vector >> 4,
            _ => 0,
        }
    }

    /// Moves `vector` from the IRR to the ISR, when it is injected; one that ends itself does not
    /// come into service.
    pub fn accept(&mut self, vector: u8) {
        self.slot().irr.clear(vector);
        if !self.slot().auto_eoi.get(vector) {
            self.isr.set(vector);
        }
    }

    /// Ends the highest interrupt in service. Returns its vector when it was level-triggered and
    /// the EOI has to be broadcast to the I/O APICs.
    #[must_use = "a level-triggered vector must be broadcast to the I/O APICs"]
    pub fn eoi(&mut self) -> Option<u8> {
        let vector = self.isr.highest()?;
        self.isr.clear(vector);
        self.ended = Some(vector);
        self.slot().tmr.get(vector).then_some(vector)
    }

    /// Whether nobody would miss it if the next EOI were noticed later: one interrupt is in
    /// service, it is an edge, and none waits.
    pub fn eoi_can_be_late(&self) -> bool {
        let slot = self.slot();
        let alone = self.isr.only().is_some_and(|vector| !slot.tmr.get(vector));
        alone && slot.irr.highest().is_none()
    }

    /// The vector that the last EOI ended, told once: messages may wait for it.
    pub fn take_ended(&mut self) -> Option<u8> {
        self.ended.take()
    }

    /// Whether an interrupt of the PIC may be injected: LINT0 lets ExtINT through, or the APIC
    /// is globally disabled.
    pub fn accepts_extint(&self) -> bool {
        self.mode() == Mode::Disabled || self.lvt[LINT0] & (lvt::MASKED | lvt::MODE) == (DELIVERY_EXTINT << 8)
    }

    /// An edge on a local pin, delivered as its LVT entry says; ExtINT is asked for instead.
    pub fn lint(&mut self, pin: Lint) {
        self.deliver_lvt(match pin {
            Lint::Lint0 => LINT0,
            Lint::Lint1 => LINT1,
        });
    }

    fn deliver_lvt(&mut self, entry: usize) {
        let value = self.lvt[entry];
        if self.mode() == Mode::Disabled || value & lvt::MASKED != 0 {
            return;
        }
        // The timer and error entries have no mode field: they are fixed.
        let mode = DeliveryMode::from_bits((value >> 8) as u8).unwrap_or(DeliveryMode::Fixed);
        let level = value & lvt::LEVEL != 0;
        match mode {
            DeliveryMode::Fixed => {
                self.slot().request(value as u8, level);
            }
            DeliveryMode::Nmi => self.send(Shorthand::Itself, value, 0, DeliveryMode::Nmi),
            _ => {}
        }
    }

    /// Whether an NMI, INIT or SIPI waits.
    pub fn signalled(&self) -> bool {
        self.slot().signalled()
    }

    /// Whether an NMI waits.
    pub fn nmi_pending(&self) -> bool {
        self.slot().nmi_pending()
    }

    /// Takes a waiting NMI, when it is injected.
    pub fn take_nmi(&mut self) -> bool {
        self.slot().take_nmi()
    }

    /// Whether an INIT waits.
    pub fn init_pending(&self) -> bool {
        self.slot().init_pending()
    }

    /// Takes a waiting INIT. The vCPU is reset then, and [`Lapic::init`] called.
    pub fn take_init(&mut self) -> bool {
        self.slot().take_init()
    }

    /// Takes a waiting SIPI: its vector is the page where the processor starts. Lost if the
    /// vCPU does not wait for one. None while an INIT waits.
    pub fn take_sipi(&mut self) -> Option<u8> {
        self.slot().take_sipi()
    }

    /// Takes a waiting SIPI, even while an INIT waits that the processor holds back.
    pub fn take_sipi_past_init(&mut self) -> Option<u8> {
        self.slot().take_sipi_past_init()
    }

    /// The partition TSC at which [`Lapic::timer_expired`] has something to do.
    pub fn deadline_tsc(&self) -> Option<u64> {
        let masked = self.lvt[TIMER] & lvt::MASKED != 0 || self.mode() == Mode::Disabled;
        if masked { None } else { self.timer.next() }
    }

    /// Takes the timer's expiries until partition TSC `tsc`; returns whether there was one, and
    /// requests its interrupt.
    pub fn timer_expired(&mut self, tsc: u64) -> bool {
        let expired = self.timer.expire(tsc);
        if expired {
            self.deliver_lvt(TIMER);
        }
        expired
    }

    /// Takes a new difference between the guest's TSC and the partition's, at partition TSC
    /// `tsc`: the guest wrote IA32_TSC or IA32_TSC_ADJUST.
    pub fn set_tsc_offset(&mut self, offset: u64, tsc: u64) {
        self.timer_expired(tsc);
        self.timer.set_tsc_offset(offset, tsc);
    }

    /// Reads IA32_TSC_DEADLINE.
    pub fn tsc_deadline(&mut self, tsc: u64) -> u64 {
        self.timer_expired(tsc);
        self.timer.deadline()
    }

    /// Writes IA32_TSC_DEADLINE, in guest TSC units, at partition TSC `tsc`.
    pub fn set_tsc_deadline(&mut self, value: u64, tsc: u64) {
        self.timer_expired(tsc);
        self.timer.set_deadline(value, tsc);
    }

    /// A read of the register page, as KVM answers it: up to four bytes within a register.
    pub fn mmio_read(&mut self, offset: u16, size: u8, tsc: u64) -> u64 {
        let within = offset & 0xf;
        if within + u16::from(size) > 4 {
            return 0;
        }
        let value = self.read(offset & 0xff0, tsc) >> (8 * within);
        u64::from(value) & (u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8))))
    }

    /// A write to the register page; all but aligned 32-bit ones are ignored. Returns what
    /// [`Lapic::eoi`] returns.
    #[must_use = "a level-triggered vector must be broadcast to the I/O APICs"]
    pub fn mmio_write(&mut self, offset: u16, size: u8, value: u64, tsc: u64) -> Option<u8> {
        if size != 4 || offset & 0xf != 0 || self.mode() != Mode::Xapic {
            return None;
        }
        let value = value as u32;
        match offset {
            // The ID is read-only, as on processors since Skylake.
            apic::LDR => {
                self.ldr = value & 0xff00_0000;
                self.publish();
            }
            apic::DFR => {
                self.dfr = value | 0x0fff_ffff;
                self.publish();
            }
            apic::ICR_HIGH => self.icr = self.icr & 0xffff_ffff | u64::from(value & 0xff00_0000) << 32,
            apic::ICR => {
                let high = (self.icr >> 32) as u32;
                self.write_icr(value, high, high >> 24);
            }
            apic::EOI => return self.eoi(),
            _ => {
                self.write(offset, value, tsc);
            }
        }
        None
    }

    /// The register at `offset`, 32 bits; what does not exist reads 0 and is an error.
    pub(crate) fn read(&mut self, offset: u16, tsc: u64) -> u32 {
        let word = (offset >> 4 & 7) as u8;
        match offset {
            apic::ID if self.mode() == Mode::X2apic => self.id(),
            apic::ID => self.id() << 24,
            apic::VERSION => apic::VERSION_VALUE,
            apic::TPR => self.tpr.into(),
            apic::PPR => self.ppr().into(),
            apic::LDR => self.ldr,
            apic::DFR => self.dfr,
            apic::SVR => self.svr,
            0x100..=0x170 => self.isr.word(word),
            0x180..=0x1f0 => self.slot().tmr.word(word),
            0x200..=0x270 => self.slot().irr.word(word),
            apic::ESR => self.esr,
            apic::ICR => self.icr as u32,
            apic::ICR_HIGH => (self.icr >> 32) as u32,
            apic::LVT_TIMER..=apic::LVT_ERROR => self.lvt[lvt_index(offset)],
            apic::TIMER_INITIAL => self.timer.initial(),
            apic::TIMER_CURRENT => {
                self.timer_expired(tsc);
                self.timer.current(tsc)
            }
            apic::TIMER_DIVIDE => self.timer.divide(),
            apic::EOI | apic::APR => 0,
            _ => {
                self.error(esr::ILLEGAL_REGISTER);
                0
            }
        }
    }

    /// Writes the registers that both modes share; returns whether there is one at `offset`.
    pub(crate) fn write(&mut self, offset: u16, value: u32, tsc: u64) -> bool {
        match offset {
            apic::TPR => self.tpr = value as u8,
            apic::SVR => {
                self.svr = value & (svr::ENABLE | svr::FOCUS | 0xff);
                if self.svr & svr::ENABLE == 0 {
                    // SDM 11.4.7.2: masked while the APIC is software-disabled.
                    self.timer_expired(tsc);
                    self.lvt.iter_mut().for_each(|entry| *entry |= lvt::MASKED);
                }
                self.publish();
            }
            // A write collects the errors since the last one (SDM 11.5.3).
            apic::ESR => self.esr = self.slot().take_errors(),
            apic::LVT_TIMER..=apic::LVT_ERROR => {
                // What came before the write is delivered, or lost, by the old entry.
                self.timer_expired(tsc);
                let index = lvt_index(offset);
                let masked = if self.svr & svr::ENABLE == 0 { lvt::MASKED } else { 0 };
                self.lvt[index] = value & LVT_WRITABLE[index] | masked;
                if index == TIMER {
                    self.timer.set_mode(TimerMode::from_lvt(value));
                }
            }
            apic::TIMER_INITIAL => {
                self.timer_expired(tsc);
                self.timer.set_initial(value, tsc);
            }
            apic::TIMER_DIVIDE => {
                self.timer_expired(tsc);
                self.timer.set_divide(value, tsc);
            }
            _ => {
                self.error(esr::ILLEGAL_REGISTER);
                return false;
            }
        }
        true
    }

    /// Writes the ICR's low half `low`, which sends to `destination`; `high` is what its upper
    /// half reads as.
    pub(crate) fn write_icr(&mut self, low: u32, high: u32, destination: u32) {
        // The IPI leaves at once: the delivery status is never pending.
        let low = low & !lvt::STATUS;
        self.icr = u64::from(high) << 32 | u64::from(low);
        let shorthand = match low & icr::SHORTHAND {
            icr::SELF => Shorthand::Itself,
            icr::ALL => Shorthand::All,
            icr::OTHERS => Shorthand::Others,
            _ => Shorthand::None,
        };
        // 011 was remote read; processors with an x2APIC have none.
        let Some(mode) = DeliveryMode::from_bits((low >> 8) as u8) else { return };
        let fixed = matches!(mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority);
        if fixed && low & lvt::VECTOR < 16 {
            self.error(esr::SEND_ILLEGAL_VECTOR);
            return;
        }
        // INIT level de-assert synchronises arbitration IDs, which no longer exist.
        let deassert = low & lvt::LEVEL != 0 && low & icr::ASSERT == 0;
        if mode == DeliveryMode::Init && deassert {
            return;
        }
        self.send(shorthand, low, destination, mode);
    }

    fn send(&self, shorthand: Shorthand, low: u32, destination: u32, mode: DeliveryMode) {
        // IPIs are edges: the trigger mode only matters to INIT de-assert.
        let message = InterruptMessage {
            destination,
            logical: low & icr::LOGICAL != 0,
            mode,
            vector: low as u8,
            level: false,
        };
        self.bus.send(Some(self.vcpu), shorthand, message);
    }

    /// Sends a fixed interrupt to vCPU number `vcpu`, whatever its APIC's addresses are, as a
    /// hypervisor does for its guest. One that does not exist gets none.
    pub fn interrupt(&self, vcpu: u32, vector: u8) {
        self.bus.interrupt(Some(self.vcpu), vcpu, vector);
    }

    /// Sends an NMI to vCPU number `vcpu`, as [`Lapic::interrupt`] does an interrupt.
    pub fn nmi(&self, vcpu: u32) {
        self.bus.nmi_from(self.vcpu, vcpu);
    }

    /// Sends a message to this APIC.
    pub(crate) fn to_itself(&self, mode: DeliveryMode, vector: u8) {
        self.send(Shorthand::Itself, vector.into(), 0, mode);
    }

    /// SELF IPI (SDM 11.12.11).
    pub(crate) fn self_ipi(&mut self, vector: u8) {
        if vector < 16 {
            self.error(esr::SEND_ILLEGAL_VECTOR);
        } else {
            self.send(Shorthand::Itself, vector.into(), 0, DeliveryMode::Fixed);
        }
    }

    /// ICR, both halves.
    pub(crate) fn icr(&self) -> u64 {
        self.icr
    }

    fn error(&mut self, bits: u32) {
        // Only a new error interrupts; and an LVT error entry with an illegal vector, which is
        // an error itself, must not go round.
        if self.slot().add_errors(bits) & bits == 0 && self.lvt[ERROR] & lvt::VECTOR >= 16 {
            self.deliver_lvt(ERROR);
        }
    }
}

/// Delivery mode ExtINT.
const DELIVERY_EXTINT: u32 = 7;

fn lvt_index(offset: u16) -> usize {
    usize::from(offset - apic::LVT_TIMER) >> 4
}

/// The bits of the LVT entry at `offset` that are neither writable nor read-only status.
pub(crate) fn lvt_reserved(offset: u16) -> u32 {
    !(LVT_WRITABLE[lvt_index(offset)] | lvt::STATUS | lvt::REMOTE_IRR)
}
