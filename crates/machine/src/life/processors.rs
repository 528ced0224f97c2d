//! The vCPUs of a life, and what connects them.

use std::sync::Arc;

use satori_bus::MsiSink;
use satori_chipset::Pic;
use satori_cpuid::msrs::{PlatformMsrs, Setup};
use satori_cpuid::{CpuidTable, PHYSICAL_BITS, Params};
use satori_engine::{Capability, Isa, Partition, PartitionParts, Processor, Vcpu, VcpuParts, X86};
use satori_exits::Platform;
use satori_lapic::{ApicBus, Clocks, Lapic};
use satori_memory::GuestMemory;
use satori_profile::{Meter, Timing};
use satori_state::{Activity, CpuState};

use super::{Blueprint, DEVICE_HOLE, Time};
use crate::shared::Bells;
use crate::x86::{MachineVcpu, VcpuPieces, after_reset};
use crate::{Error, entropy};

/// vCPUs without a machine around them yet.
pub(super) struct Processors {
    pub partition: Arc<dyn Partition<X86>>,
    pub vcpus: Vec<Box<dyn Vcpu<X86>>>,
    pub cpuid: CpuidTable,
    pub clocks: Clocks,
    pub bells: Arc<Bells>,
    pub apics: Arc<ApicBus>,
    /// Where message-signalled interrupts go: the engine's routes, or the APICs.
    pub messages: Arc<dyn MsiSink>,
}

impl Processors {
    /// Those that `plan` wants, on `memory`, which the engine has from now on.
    pub(super) fn new(plan: &Blueprint, memory: GuestMemory) -> Result<Self, Error> {
        let tsc_hz = plan.time.clock().counter_hz();
        let cpus = plan.config.topology.cpus();
        let kept = plan.engine.capabilities().has(Capability::KeepsInterruptController);
        let timer_hz = plan.config.apic_timer_hz(tsc_hz, kept);
        let apics = ApicBus::new(&plan.config.topology.apic_ids().collect::<Vec<_>>());
        let cpuid = CpuidTable::new(Params {
            cpu: &plan.cpu,
            engine_features: plan.features,
            host_lacks: &plan.host_lacks,
            topology: plan.config.topology,
            tsc_hz,
            crystal_hz: timer_hz,
            physical_bits: PHYSICAL_BITS,
            hypervisor: plan.config.personalities(tsc_hz),
        })?;
        let parts = PartitionParts {
            memory,
            time: plan.time.source(),
            parallel: !plan.time.is_virtual() && cpus > 1,
            offered: Processor { offered: cpuid.offered(), cpuid: Some(Arc::new(cpuid.clone())) },
        };
        let partition: Arc<dyn Partition<X86>> =
            plan.engine.create_partition(parts).map_err(Error::Engine)?.into();
        let parts = |index| VcpuParts {
            index,
            entropy: match plan.time {
                Time::Real(_) => Box::new(entropy::Host::new()),
                Time::Virtual(_) => Box::new(entropy::Seeded::new(index)),
            },
        };
        let vcpus: Vec<_> = (0..cpus).map(|index| partition.create_vcpu(parts(index))).collect();
        let bells = Bells::new(vcpus.iter().map(|vcpu| vcpu.kick()));
        apics.set_waker(bells.clone());
        let messages: Arc<dyn MsiSink> = partition.routes().unwrap_or_else(|| apics.clone());
        if kept {
            apics.hand_on(messages.clone());
        }
        let clocks = Clocks { tsc_hz, timer_hz };
        Ok(Processors { partition, vcpus, cpuid, clocks, bells, apics, messages })
    }

    /// The guest's memory.
    pub(super) fn memory(&self) -> GuestMemory {
        self.partition.memory().clone()
    }

    /// They become parts of a machine: the first one begins as `entry` says, the others wait for it.
    pub(super) fn into_vcpus(
        self,
        plan: &Blueprint,
        platform: &Arc<Platform>,
        pic: &Arc<Pic>,
        entry: CpuState,
    ) -> Vec<MachineVcpu> {
        let msrs = PlatformMsrs::new(&Setup {
            cpuid: &self.cpuid,
            tsc_hz: self.clocks.tsc_hz,
            physical_bits: PHYSICAL_BITS,
            uncached: Some(DEVICE_HOLE),
        });
        let timing = if plan.time.is_virtual() { Timing::Each } else { Timing::Sampled };
        let mut first = Some(entry);
        let made = self.vcpus.into_iter().zip(0..).map(|(vcpu, index)| {
            let mut vcpu = MachineVcpu::new(VcpuPieces {
                index,
                vcpu,
                lapic: Lapic::new(self.apics.clone(), index, self.clocks, PHYSICAL_BITS),
                msrs: msrs.clone(),
                platform: platform.clone(),
                pic: (index == 0).then(|| pic.clone()),
                meter: Meter::new(X86::REASONS, plan.config.profile, timing),
                processor: plan.config.processor,
                kept: plan.engine.capabilities().has(Capability::KeepsInterruptController),
            });
            vcpu.set_charges(plan.charges.clone().filter(|_| timing == Timing::Each));
            let waiting =
                || CpuState { activity: Activity::WaitForSipi, ..after_reset(platform.cpuid.signature()) };
            vcpu.set_state(first.take().unwrap_or_else(waiting));
            vcpu
        });
        made.collect()
    }
}
