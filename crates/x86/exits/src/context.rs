//! What handlers work on.

use std::sync::Arc;

use satori_bus::{Clock, MmioMap, Nanos, PortMap, PowerEvent, PowerSink};
use satori_cpuid::CpuidTable;
use satori_cpuid::msrs::PlatformMsrs;
use satori_engine::{Parts, Vcpu, X86};
use satori_hyperv as hyperv;
use satori_kvm as kvm;
use satori_lapic::Lapic;
use satori_memory::GuestMemory;
use satori_xen as xen;

use crate::msr::Refused;

/// Who hears the end of a level-triggered interrupt: the I/O APICs.
pub trait EoiSink: Send + Sync {
    /// A local APIC ended `vector`.
    fn eoi(&self, vector: u8);
}

/// The partition, as exits of all its vCPUs see it.
pub struct Platform {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// RAM.
    pub memory: GuestMemory,
    /// Devices by port.
    pub ports: PortMap,
    /// Devices by physical address.
    pub mmio: MmioMap,
    /// What CPUID answers.
    pub cpuid: CpuidTable,
    /// The Hyper-V interface; none if it is off.
    pub hyperv: Option<Arc<hyperv::Partition>>,
    /// KVM's guest interface; none if it is off.
    pub kvm: Option<Arc<kvm::Vm>>,
    /// Xen's; none if it is off.
    pub xen: Option<Arc<xen::Domain>>,
    /// Where EOIs are broadcast.
    pub eoi: Arc<dyn EoiSink>,
    /// Where resets and panics are announced.
    pub power: Arc<dyn PowerSink>,
    /// How long vCPUs ran.
    pub runtime: Arc<dyn Runtime>,
    /// The MSRs that do not exist and were asked for.
    pub refused: Refused,
}

impl Platform {
    /// Something came out of the guest: Xen's interrupt line falls, if the guest has looked at its events.
    pub(crate) fn settle(&self) {
        if let Some(xen) = &self.xen {
            xen.settle();
        }
    }
}

/// Tells how long a vCPU ran, and the host on its behalf; time that others took is not in it.
pub trait Runtime: Send + Sync {
    /// Nanoseconds of the vCPU whose thread calls and that has retired so many instructions.
    fn ran(&self, retired: u64) -> Nanos;
}

/// What an exit asks of whoever runs the vCPU, beyond being entered again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asked {
    /// Nothing.
    #[default]
    Nothing,
    /// It waits for another vCPU: let others run.
    Yield,
    /// It sleeps until an interrupt comes, masked or not.
    Idle,
}

/// One vCPU and its partition, during one exit.
pub struct Context<'a> {
    /// The vCPU that exited.
    pub vcpu: &'a mut dyn Vcpu<X86>,
    /// Its local APIC.
    pub lapic: &'a mut Lapic,
    /// Its platform MSRs.
    pub msrs: &'a mut PlatformMsrs,
    /// Its Hyper-V side.
    pub hyperv: &'a mut hyperv::Vp,
    /// Its side of KVM's guest interface.
    pub kvm: &'a mut kvm::Vcpu,
    /// Its side of Xen's.
    pub xen: &'a mut xen::Vcpu,
    /// Its partition.
    pub platform: &'a Platform,
    /// What is asked of whoever runs it.
    pub asked: Asked,
}

impl Context<'_> {
    /// Takes the task priority from the TPR shadow into the local APIC.
    pub(crate) fn load_tpr(&mut self) {
        self.lapic.set_tpr(self.vcpu.state().tpr);
    }

    /// Puts the local APIC's task priority, if a write changed it, into the TPR shadow.
    pub(crate) fn store_tpr(&mut self) {
        let tpr = self.lapic.tpr();
        if self.vcpu.state().tpr != tpr {
            self.vcpu.state_mut(Parts::SYSTEM).tpr = tpr;
        }
    }

    /// Tells Xen's interface if the local APIC takes interrupts since a write, before which it did or did not: what it refused
    /// is asked for again.
    pub(crate) fn apic_enabled(&self, took: bool) {
        if !took
            && self.lapic.software_enabled()
            && let Some(xen) = &self.platform.xen
        {
            xen.apic_enabled(self.xen.index());
        }
    }

    /// Tells the I/O APICs of an EOI, if the local APIC says that it is for them, and the
    /// synthetic interrupt controller, whose messages may wait for it.
    pub(crate) fn broadcast_eoi(&mut self, ended: Option<u8>) {
        if let Some(vector) = ended {
            self.platform.eoi.eoi(vector);
        }
        if let Some(vector) = self.lapic.take_ended()
            && let Some(hyperv) = &self.platform.hyperv
        {
            hyperv.end_of_interrupt(self.hyperv.index(), vector);
        }
    }

    /// Does what the Hyper-V interface asks for after an access.
    pub(crate) fn act(&mut self, outcome: hyperv::Outcome) {
        match outcome {
            hyperv::Outcome::Done => {}
            hyperv::Outcome::Yield => self.asked = Asked::Yield,
            hyperv::Outcome::Interrupt { vector, targets } => {
                let count = self.platform.hyperv.as_ref().map_or(0, |partition| partition.slots().count());
                targets.members(count).for_each(|vcpu| self.lapic.interrupt(vcpu, vector));
            }
            hyperv::Outcome::Crash(crash) => {
                // Whoever ran the guest tells it when it has ended.
                tracing::debug!("the guest told of its crash: P0..P4 {:x?}", crash.parameters);
                // A guest's text, so escaped: it must not command our terminal.
                if let Some(message) = crash.message {
                    tracing::debug!("the guest's crash message: {message:?}");
                }
                self.platform.power.power(PowerEvent::Panic("crash MSRs"));
            }
            hyperv::Outcome::Reset => self.platform.power.power(PowerEvent::Reset("Hyper-V reset MSR")),
        }
    }
    /// Does what Xen's interface asks for after a hypercall.
    pub(crate) fn act_xen(&mut self, outcome: xen::Outcome) {
        match outcome {
            // Who polls is found asleep when it is to be entered again.
            xen::Outcome::Done | xen::Outcome::Sleep => {}
            xen::Outcome::Yield => self.asked = Asked::Yield,
            xen::Outcome::Nmi(vcpu) => self.lapic.nmi(vcpu),
            xen::Outcome::Power(event) => self.platform.power.power(event),
        }
    }

    /// Does what KVM's interface asks for after a hypercall.
    pub(crate) fn act_kvm(&mut self, outcome: kvm::Outcome) {
        match outcome {
            kvm::Outcome::Done => {}
            kvm::Outcome::Yield => self.asked = Asked::Yield,
            kvm::Outcome::Ipi { vcpus, vector } => vcpus.into_iter().for_each(|vcpu| match vector {
                Some(vector) => self.lapic.interrupt(vcpu, vector),
                None => self.lapic.nmi(vcpu),
            }),
        }
    }
}
