//! A VM: what the guest's memory and its vCPUs belong to.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex};

use kvm_bindings::{
    KVM_CAP_DISABLE_QUIRKS2, KVM_CAP_X86_USER_SPACE_MSR, KVM_MSR_EXIT_REASON_FILTER,
    KVM_MSR_EXIT_REASON_INVAL, KVM_MSR_EXIT_REASON_UNKNOWN, KVM_X86_QUIRK_MWAIT_NEVER_UD_FAULTS,
    kvm_enable_cap, kvm_userspace_memory_region,
};
use kvm_ioctls::{VcpuFd, VmFd};
use satori_bus::MsiSink;
use satori_cpuid::CpuidTable;
use satori_defs::cpuid::HYPERVISOR;
use satori_engine::{Partition, PartitionParts, Space, TimeSource, Vcpu, VcpuParts, X86};
use satori_lock::lock;
use satori_memory::{ALL_LINES, Error, Gpa, GuestMemory, Region};

use crate::exits::Exits;
use crate::routes::Routes;
use crate::stats::Statistics;
use crate::vcpu::KvmVcpu;
use crate::{apic, msrs, raw};

/// Where KVM keeps three pages of its own, on processors that execute no code in real mode by themselves, and one more below
/// them: in the hole for devices, where a PC has firmware.
const TSS: u64 = 0xfffb_d000;
const IDENTITY_MAP: u64 = TSS - 0x1000;

/// A slot's number and what it shows: where the guest has it, and where this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    number: u32,
    region: Region,
    host: u64,
}

/// How a guest makes hypercalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// Not at all: it is offered no interface.
    None,
    /// By a port ([`satori_engine::HYPERCALL_PORT`]).
    Port,
    /// By VMCALL and VMMCALL, which KVM hands out as Xen's.
    Instruction,
}

/// The VM, and what its vCPUs have in common.
pub(crate) struct Vm {
    pub(crate) fd: Arc<VmFd>,
    /// Outlives the VM's use of it.
    pub(crate) memory: GuestMemory,
    pub(crate) time: Arc<dyn TimeSource>,
    pub(crate) cpuid: Arc<CpuidTable>,
    /// Where the guest's hypercalls come out.
    pub(crate) calls: Calls,
    /// Where messages to the local APICs go, if KVM keeps these.
    pub(crate) routes: Option<Arc<Routes>>,
    /// What the kernel's tracepoints tell of exits.
    pub(crate) exits: Option<Arc<Exits>>,
    slots: Mutex<Slots>,
    /// Descriptors of the vCPUs and of their statistics.
    files: Vec<RawFd>,
}

/// The memory slots as KVM has them, and the state of the guest's memory that they were made from.
#[derive(Debug, Default)]
struct Slots {
    there: Vec<Slot>,
    made_of: Option<(u64, u64)>,
}

impl fmt::Debug for Vm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vm").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Vm {
    /// Its descriptors and those of its vCPUs.
    pub(crate) fn files(&self) -> Vec<RawFd> {
        self.files.iter().copied().chain([self.fd.as_raw_fd()]).collect()
    }

    /// Has the slots show the guest's memory as it is. Costs two loads where nothing changed.
    pub(crate) fn follow_memory(&self) -> io::Result<()> {
        let now = (self.memory.changes(), self.memory.lines());
        let mut slots = lock(&self.slots);
        if slots.made_of == Some(now) {
            return Ok(());
        }
        let wanted = self.wanted(now.1);
        let (kept, gone): (Vec<_>, Vec<_>) = slots.there.iter().copied().partition(|slot| {
            wanted.iter().any(|&(region, host)| (region, host) == (slot.region, slot.host))
        });
        for slot in gone {
            self.set(slot, 0)?;
        }
        slots.there = kept;
        for (region, host) in wanted {
            if slots.there.iter().any(|slot| (slot.region, slot.host) == (region, host)) {
                continue;
            }
            let free = (0..).find(|number| slots.there.iter().all(|slot| slot.number != *number));
            let slot = Slot { number: free.unwrap_or_default(), region, host };
            self.set(slot, region.len)?;
            slots.there.push(slot);
        }
        slots.made_of = Some(now);
        Ok(())
    }

    /// What the guest should have where: with a line held low, each piece that the line tells apart shows the one below.
    fn wanted(&self, lines: u64) -> Vec<(Region, u64)> {
        let host = |gpa: Gpa| self.memory.page(gpa).map(|page| page.host as u64);
        if lines == ALL_LINES {
            return self.memory.regions().filter_map(|region| Some((region, host(region.start)?))).collect();
        }
        let piece = 1 << (!lines).trailing_zeros();
        let mut pieces = Vec::new();
        for region in self.memory.regions() {
            let end = region.start.0 + region.len;
            let mut start = region.start.0;
            while start < end {
                let next = (start / piece + 1) * piece;
                let len = next.min(end) - start;
                pieces.extend(host(Gpa(start & lines)).map(|at| (Region { start: Gpa(start), len }, at)));
                start += len;
            }
        }
        pieces
    }

    fn set(&self, slot: Slot, len: u64) -> io::Result<()> {
        let region = kvm_userspace_memory_region {
            slot: slot.number,
            flags: 0,
            guest_phys_addr: slot.region.start.0,
            memory_size: len,
            userspace_addr: slot.host,
        };
        // SAFETY: the guest's memory stays mapped as long as `memory`, of which the VM has a clone; all of a region is one mapping.
        Ok(unsafe { self.fd.set_user_memory_region(region) }?)
    }
}

/// The partition at the seam.
pub(crate) struct KvmPartition {
    pub(crate) vm: Arc<Vm>,
    /// The processors of the table that nobody has taken yet.
    vcpus: Mutex<Vec<Option<KvmVcpu>>>,
}

/// Has MONITOR and MWAIT raise #UD in guests without the feature, where KVM can: by itself it takes them for NOPs.
fn without_quirks(vm: &VmFd) -> io::Result<()> {
    let known = vm.check_extension_raw(KVM_CAP_DISABLE_QUIRKS2.into());
    let unwanted = known as u32 & KVM_X86_QUIRK_MWAIT_NEVER_UD_FAULTS;
    if known <= 0 || unwanted == 0 {
        return Ok(());
    }
    let mut quirks = kvm_enable_cap { cap: KVM_CAP_DISABLE_QUIRKS2, ..Default::default() };
    quirks.args[0] = unwanted.into();
    Ok(vm.enable_cap(&quirks)?)
}

impl KvmPartition {
    /// A VM with its memory, its MSR filter and the processors that the table describes. `told`: KVM can hand out hypercalls;
    /// `keeps`: it is to have the local APICs.
    pub(crate) fn new(
        kvm: &kvm_ioctls::Kvm,
        parts: PartitionParts<X86>,
        told: bool,
        keeps: bool,
        exits: Option<Arc<Exits>>,
    ) -> io::Result<Self> {
        if parts.time.of_host().is_none() {
            return Err(io::Error::other(
                "the guest's TSC is to have another frequency than the host's, which this engine does not scale",
            ));
        }
        let Some(cpuid) = parts.offered.cpuid.clone() else {
            return Err(io::Error::other("KVM answers CPUID, and there is no table of it"));
        };
        let fd = kvm.create_vm()?;
        fd.set_identity_map_address(IDENTITY_MAP)?;
        fd.set_tss_address(TSS as usize)?;
        let reasons = KVM_MSR_EXIT_REASON_INVAL | KVM_MSR_EXIT_REASON_UNKNOWN | KVM_MSR_EXIT_REASON_FILTER;
        let mut wanted = kvm_enable_cap { cap: KVM_CAP_X86_USER_SPACE_MSR, ..Default::default() };
        wanted.args[0] = reasons.into();
        fd.enable_cap(&wanted)?;
        without_quirks(&fd)?;
        if keeps {
            apic::split(&fd)?;
        }
        msrs::filter(&fd, &parts.offered.offered, &msrs::of_apic(keeps, &cpuid))?;
        let fd = Arc::new(fd);
        let routes = keeps.then(|| Arc::new(Routes::new(fd.clone())));
        let (memory, time) = (parts.memory.clone(), parts.time.clone());
        let calls = match (cpuid.leaves().any(|leaf| leaf.leaf == HYPERVISOR), told) {
            (false, _) => Calls::None,
            (true, false) => Calls::Port,
            (true, true) => {
                raw::intercept_hypercalls(&fd)?;
                Calls::Instruction
            }
        };
        let vcpus: io::Result<Vec<_>> =
            cpuid.topology().apic_ids().map(|id| Ok((fd.create_vcpu(id.into())?, id))).collect();
        let vcpus = vcpus?;
        // The first vCPU's tell of all.
        let mut traced = exits.clone();
        let statistics = |(vcpu, id): (VcpuFd, u32)| {
            let opened = Statistics::new(&vcpu, traced.take()).map(Arc::new);
            let statistics =
                opened.inspect_err(|why| tracing::debug!("KVM tells nothing of its exits: {why}"));
            (vcpu, id, statistics.ok())
        };
        let vcpus: Vec<_> = vcpus.into_iter().map(statistics).collect();
        let files = vcpus.iter().flat_map(|(vcpu, _, statistics)| {
            statistics.iter().map(|one| one.file().as_raw_fd()).chain([vcpu.as_raw_fd()])
        });
        let files = files.collect();
        let vm =
            Arc::new(Vm { fd, memory, time, cpuid, calls, routes, exits, slots: Mutex::default(), files });
        vm.follow_memory()?;
        let offered = &parts.offered.offered;
        let vcpu =
            |(vcpu, id, statistics)| Ok(Some(KvmVcpu::new(vcpu, vm.clone(), statistics, offered, id)?));
        let vcpus: io::Result<Vec<_>> = vcpus.into_iter().map(vcpu).collect();
        Ok(KvmPartition { vcpus: Mutex::new(vcpus?), vm })
    }

    /// Hands a changed map on.
    fn changed(&self, done: Result<(), Error>) -> Result<(), Error> {
        done?;
        let failed = |why: io::Error| Error::Reserve { bytes: 0, why: why.to_string() };
        self.vm.follow_memory().map_err(failed)
    }
}

impl Space for KvmPartition {
    fn memory(&self) -> &GuestMemory {
        &self.vm.memory
    }

    fn add_ram(&self, region: Region) -> Result<(), Error> {
        self.changed(self.memory().add(region))
    }

    fn relocate_ram(&self, start: Gpa, to: Gpa) -> Result<(), Error> {
        self.changed(self.memory().relocate(start, to))
    }

    fn remove_ram(&self, start: Gpa) -> Result<(), Error> {
        self.changed(self.memory().remove(start))
    }

    fn routes(&self) -> Option<Arc<dyn MsiSink>> {
        Some(self.vm.routes.clone()?)
    }
}

impl Partition<X86> for KvmPartition {
    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu<X86>> {
        let mut vcpus = lock(&self.vcpus);
        let vcpu = vcpus.get_mut(parts.index as usize).and_then(Option::take);
        Box::new(vcpu.expect("each processor that the table describes is made once"))
    }
}
