//! Which stops of an engine are VM exits of the modelled processor, and why.
//!
//! An engine stops wherever the machine has to do something. What hardware does by itself under the
//! controls in force (APIC virtualisation, SDM volume 3 chapter 30) is done all the same, but is no exit.

use satori_defs::apic;
use satori_defs::msr::X2APIC_BASE;
use satori_defs::vmx::ExitReason;
use satori_engine::{Exit, Vmx, VmxProcessor};
use satori_hyperv::Partition;
use satori_lapic::{Lapic, Mode};

/// What the answer depends on.
pub struct View<'a> {
    /// The modelled processor.
    pub processor: VmxProcessor,
    /// The local APIC, before the exit is handled.
    pub lapic: &'a Lapic,
    /// The Hyper-V interface, and which of its virtual processors this is.
    pub hyperv: Option<&'a Partition>,
    /// The vCPU's index.
    pub vcpu: u32,
    /// An interrupt of the PIC waits: it is injected, also under APICv.
    pub extint: bool,
    /// The time that ran out is the local APIC timer's.
    pub apic_timer: bool,
}

/// ICR bits that neither of the two virtualisations of IPIs looks at: vector and level.
const ICR_FREE: u32 = 0xff | apic::icr::ASSERT;
/// The last of the eight registers of the IRR, behind ISR and TMR.
const IRR_LAST: u16 = apic::IRR + 0x70;
/// Bits 7:4 of a vector, its class; those of class 0 are not legal (SDM 11.5.2).
const CLASS: u64 = 0xf0;

/// The writable registers that APIC-register virtualisation has (SDM 30.4.3.2).
const fn virtual_write(offset: u16) -> bool {
    matches!(
        offset,
        apic::ID
            | apic::TPR
            | apic::EOI
            | apic::LDR
            | apic::DFR
            | apic::SVR
            | apic::ESR
            | apic::ICR
            | apic::ICR_HIGH
            | apic::LVT_TIMER..=apic::LVT_ERROR | apic::TIMER_INITIAL | apic::TIMER_DIVIDE
    )
}

/// The readable ones (SDM 30.4.2): no PPR, and not the timer's current count.
const fn virtual_read(offset: u16) -> bool {
    virtual_write(offset) || matches!(offset, apic::VERSION | apic::ISR..=IRR_LAST)
}

impl View<'_> {
    /// Whether APICv is in force: whole, and not inhibited by a SINT with auto-EOI.
    pub fn apicv(&self) -> bool {
        View::in_force(self.processor, self.hyperv)
    }

    /// The same, of a processor and an interface.
    pub(crate) fn in_force(processor: VmxProcessor, hyperv: Option<&Partition>) -> bool {
        processor.apicv() && !hyperv.is_some_and(Partition::apicv_inhibited)
    }

    /// Whether the processor knows accesses to the local APIC's page: KVM maps it nowhere but at its first address, and only
    /// while APICv is in force.
    pub fn apic_accesses(&self) -> bool {
        self.apicv() && self.apic_page()
    }

    /// Whether there is a page to be mapped: with a TPR shadow, and where the local APIC was at power-up.
    fn apic_page(&self) -> bool {
        self.processor.has(Vmx::TprShadow) && self.lapic.base() & !0xfff == apic::DEFAULT_BASE
    }

    /// The reason of the VM exit that `exit` is; none if it is not one.
    pub fn reason(&self, exit: &Exit) -> Option<ExitReason> {
        let apicv = self.apicv();
        let shadow = self.processor.has(Vmx::TprShadow);
        match *exit {
            // Without an APIC-access page the APIC is a device in memory.
            Exit::ApicRead { .. } | Exit::ApicWrite { .. } if !self.apic_page() => {
                Some(ExitReason::EptMisconfig)
            }
            Exit::ApicRead { .. } | Exit::ApicWrite { .. } if !apicv => Some(ExitReason::EptViolation),
            Exit::ApicRead { offset, size } if whole(offset, size) && virtual_read(offset & !3) => None,
            Exit::ApicWrite { offset, size, value } if whole(offset, size) && virtual_write(offset) => {
                self.write(offset, value as u32)
            }
            Exit::MsrRead { msr } => match self.x2apic(msr) {
                Some(apic::TPR) if shadow => None,
                Some(offset) if apicv && (virtual_read(offset) || offset == apic::PPR) && !no_msr(offset) => {
                    None
                }
                _ => exit.reason(),
            },
            Exit::MsrWrite { msr, value } => match self.x2apic(msr) {
                Some(apic::TPR) if shadow => None,
                // What is reserved faults before anything else.
                Some(apic::EOI) if apicv && value != 0 => None,
                Some(apic::EOI) if apicv => self.write(apic::EOI, 0),
                Some(apic::SELF_IPI) if apicv && value & CLASS == 0 => Some(ExitReason::ApicWrite),
                Some(apic::SELF_IPI) if apicv => None,
                Some(apic::ICR) if apicv && self.processor.has(Vmx::IpiVirtualization) => {
                    self.write(apic::ICR, value as u32)
                }
                _ => exit.reason(),
            },
            Exit::InterruptWindow if apicv && !self.extint => None,
            Exit::TprBelowThreshold if apicv || !shadow => None,
            Exit::ExternalInterrupt if self.posted() => None,
            Exit::PreemptionTimer => Some(self.timer()),
            _ => exit.reason(),
        }
    }

    /// Whether a kick was a posted interrupt's, which does not exit.
    pub fn posted(&self) -> bool {
        let other = self.lapic.signalled() || self.lapic.nmi_pending() || self.extint;
        self.apicv() && !other && self.lapic.highest_irr().is_some()
    }

    /// The exit of a timer that runs out while the guest executes.
    pub fn timer(&self) -> ExitReason {
        let preempts = self.apic_timer && self.processor.has(Vmx::PreemptionTimer);
        if preempts { ExitReason::PreemptionTimer } else { ExitReason::ExternalInterrupt }
    }

    /// A write that goes to the virtual-APIC page, and what follows it (SDM 30.1.2 to 30.1.6).
    fn write(&self, offset: u16, value: u32) -> Option<ExitReason> {
        match offset {
            apic::TPR | apic::ICR_HIGH => None,
            apic::EOI => self.eoi(),
            apic::ICR => {
                let ipi = self.processor.has(Vmx::IpiVirtualization) && value & !ICR_FREE == 0;
                let own = value & !(ICR_FREE | apic::icr::LOGICAL) == apic::icr::SELF;
                let virtualised = (ipi || own) && u64::from(value) & CLASS != 0;
                if virtualised { None } else { Some(ExitReason::ApicWrite) }
            }
            _ => Some(ExitReason::ApicWrite),
        }
    }

    /// EOI virtualisation exits for the vectors in the EOI-exit bitmap: those that are level-triggered,
    /// and the SINTs' where the processor's model has them.
    fn eoi(&self) -> Option<ExitReason> {
        let vector = self.lapic.in_service()?;
        let sint = || {
            self.processor.has(Vmx::SintEoiExits)
                && self.hyperv.is_some_and(|hyperv| hyperv.is_sint_vector(self.vcpu, vector))
        };
        (self.lapic.level_triggered(vector) || sint()).then_some(ExitReason::EoiInduced)
    }

    /// The register's offset, if `msr` is one of the local APIC's.
    fn x2apic(&self, msr: u32) -> Option<u16> {
        let offset = msr.checked_sub(X2APIC_BASE).filter(|&register| register < 0x100)?;
        (self.lapic.mode() == Mode::X2apic).then_some((offset as u16) << 4)
    }
}

/// Whether the access stays within the four bytes of a register.
const fn whole(offset: u16, size: u8) -> bool {
    (offset & 0xf) + size as u16 <= 4
}

/// Registers of the page that are no MSRs for reading (`kvm_lapic_readable_reg_mask`).
const fn no_msr(offset: u16) -> bool {
    matches!(offset, apic::EOI | apic::DFR | apic::ICR_HIGH)
}
