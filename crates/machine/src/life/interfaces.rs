//! The interfaces that guests are offered, each with what it asks of the machine.

use std::sync::{Arc, Mutex};

use satori_boot::layout;
use satori_bus::{ByteSink, InterruptLine};
use satori_chipset::IrqRouter;
use satori_cpuid::Vendor;
use satori_engine::{Capability, HYPERCALL_PORT, Kick};
use satori_hyperv::Interrupts;
use satori_lapic::ApicBus;

use super::Blueprint;
use super::processors::Processors;
use crate::Error;
use crate::shared::{Bells, Shared};

/// The local APICs, for the sources of the Hyper-V interface.
struct Sources(Arc<ApicBus>);

impl Interrupts for Sources {
    fn request(&self, vp: u32, vector: u8, own: bool) {
        self.0.request(vp, vector, own);
    }
    fn requested(&self, vp: u32, vector: u8) -> bool {
        self.0.requested(vp, vector)
    }
    fn set_auto_eoi(&self, vp: u32, vectors: [u32; 8]) {
        self.0.set_auto_eoi(vp, vectors);
    }
}

/// What Xen's interface asks of the machine.
struct XenHost {
    apics: Arc<ApicBus>,
    bells: Arc<Bells>,
    /// By global system interrupt.
    lines: Vec<Arc<dyn InterruptLine>>,
    console: Mutex<Box<dyn ByteSink>>,
    shared: Arc<Shared>,
}

impl satori_xen::Host for XenHost {
    fn request(&self, vcpu: u32, vector: u8, own: bool) {
        self.apics.request(vcpu, vector, own);
    }
    fn wake(&self, vcpu: u32) {
        self.bells.wake(vcpu);
    }
    fn line(&self, gsi: u8, asserted: bool) {
        if let Some(line) = self.lines.get(usize::from(gsi)) {
            line.set(asserted);
        }
    }
    fn intx(&self, device: u8, pin: u8) -> u8 {
        layout::pci_interrupt(device.wrapping_add(pin))
    }
    fn console(&self, bytes: &[u8]) {
        if !bytes.is_empty() {
            satori_lock::lock(&self.console).put(bytes);
        }
        // It may have taken what was typed, too.
        self.shared.timer.ring();
    }
}

/// Those that a life's guest is offered.
pub(super) struct Interfaces {
    pub hyperv: Option<Arc<satori_hyperv::Partition>>,
    pub kvm: Option<Arc<satori_kvm::Vm>>,
    pub xen: Option<Arc<satori_xen::Domain>>,
    /// Its devices, which the partition keeps.
    pub xen_bus: Option<Arc<satori_xenback::Bus>>,
}

impl Interfaces {
    pub(super) fn new(plan: &Blueprint, processors: &Processors, router: &IrqRouter) -> Result<Self, Error> {
        let (memory, clock) = (processors.memory(), plan.time.clock());
        let hyperv = match plan.config.hyperv.set.is_empty() {
            true => None,
            false => Some(Arc::new(hyperv(plan, processors)?)),
        };
        let xen = plan.config.xen.map(|config| {
            let console = Mutex::new(plan.console.port(clock.clone(), plan.shared.clone()));
            let host = Arc::new(XenHost {
                apics: processors.apics.clone(),
                bells: processors.bells.clone(),
                lines: (0..=u8::MAX).map_while(|gsi| router.line(gsi)).collect(),
                console,
                shared: plan.shared.clone(),
            });
            let amd = calls_of(plan, processors.cpuid.offered().vendor) == Vendor::Amd;
            let cpus = plan.config.topology.cpus();
            Arc::new(satori_xen::Domain::new(config, memory.clone(), clock.clone(), cpus, amd, host))
        });
        let kvm = (!plan.config.kvm.set.is_empty()).then(|| {
            let ids = plan.config.topology.apic_ids().collect();
            let wake = processors.bells.clone();
            let wake = Arc::new(move |vcpu| wake.wake(vcpu));
            Arc::new(satori_kvm::Vm::new(plan.config.kvm, memory, clock, ids, wake))
        });
        let (devices, moved) = (plan.config.devices.xen(), &plan.shared.moved);
        let xen_bus =
            xen.as_ref().map(|xen| satori_xenback::Bus::wire(devices, xen, plan.time.is_virtual(), moved));
        Ok(Interfaces { hyperv, kvm, xen, xen_bus })
    }
}

fn hyperv(plan: &Blueprint, processors: &Processors) -> Result<satori_hyperv::Partition, Error> {
    let config = plan.config.hyperv.clone();
    let (memory, clock) = (processors.memory(), plan.time.clock());
    let partition = satori_hyperv::Partition::new(config, memory, clock, processors.clocks.timer_hz)?;
    let kicks = processors.vcpus.iter().map(|vcpu| interrupt(vcpu.kick())).collect();
    let partition = partition.with_processors(kicks);
    let by_port = plan.engine.capabilities().has(Capability::HypercallsByPort);
    let partition = match (by_port, calls_of(plan, processors.cpuid.offered().vendor)) {
        (true, _) => partition.with_call_port(HYPERCALL_PORT),
        (false, Vendor::Amd) => partition.with_vmmcall(),
        (false, Vendor::Intel | Vendor::Other) => partition,
    };
    let partition = if plan.config.xen.is_some() { partition.beside_xen() } else { partition };
    let sources = Arc::new(Sources(processors.apics.clone()));
    Ok(partition.with_synic(plan.config.topology.cpus(), sources))
}

/// Whose instruction hypercall pages have, where the guest's processor is `vendor`'s.
pub(crate) fn calls_of(plan: &Blueprint, vendor: Vendor) -> Vendor {
    if plan.engine.capabilities().has(Capability::HypercallsAsHost) { Vendor::host() } else { vendor }
}

/// What brings a vCPU out of the guest and, as it need not look at anything, does not wake it.
fn interrupt(kick: Arc<Kick>) -> Box<dyn satori_hyperv::Interrupt> {
    Box::new(move || kick.kick())
}
