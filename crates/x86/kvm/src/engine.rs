//! What /dev/kvm must have, and the engine that drives it.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use kvm_bindings::{
    KVM_CAP_SPLIT_IRQCHIP, KVM_CAP_VCPU_ATTRIBUTES, KVM_CAP_X2APIC_API, KVM_CAP_X86_MSR_FILTER,
    KVM_CAP_X86_USER_SPACE_MSR, KVM_SYNC_X86_VALID_FIELDS, KVM_XEN_HVM_CONFIG_INTERCEPT_HCALL,
};
use kvm_ioctls::Cap;
use satori_cpuid::Feature;
use satori_engine::{Capabilities, Capability, DebugPlan, Engine, Partition, PartitionParts, X86};
use satori_lock::lock;

use crate::exits::Exits;
use crate::partition::{KvmPartition, Vm};
use crate::{cpuid, debug, kick};

/// Why guests cannot be run by KVM here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device cannot be opened.
    #[error("/dev/kvm cannot be opened ({0}): load kvm_intel or kvm_amd, or ask for rights on it")]
    Open(kvm_ioctls::Error),
    /// Another interface than that of every kernel since 2.6.22.
    #[error("/dev/kvm speaks API version {0}, not 12")]
    Version(i32),
    /// Something that Satori builds upon.
    #[error("the host's KVM lacks {0}: Linux 5.16 has it")]
    Lacks(&'static str),
    /// A question that it does not answer.
    #[error("{0} failed: {1}")]
    Call(&'static str, kvm_ioctls::Error),
}

/// The engine: /dev/kvm, which is kept open, as a machine that starts again may not open files any more.
#[derive(Debug)]
pub struct Kvm {
    device: kvm_ioctls::Kvm,
    /// It can hand out VMCALL and VMMCALL.
    told: bool,
    /// It keeps the local APICs.
    keeps: bool,
    /// Its tracepoints are wanted, and what came of opening them, once.
    traced: bool,
    exits: OnceLock<Option<Arc<Exits>>>,
    /// The VM that was made last.
    made: Mutex<Weak<Vm>>,
}

impl Kvm {
    /// Opens the device, and looks whether it has what every machine needs.
    pub fn open() -> Result<Self, Error> {
        let device = kvm_ioctls::Kvm::new().map_err(Error::Open)?;
        let version = device.get_api_version();
        if version != 12 {
            return Err(Error::Version(version));
        }
        let has = |number: u32| device.check_extension_raw(number.into()) > 0;
        let registers = device.check_extension_int(Cap::SyncRegs) as u32;
        let needed = [
            (has(KVM_CAP_X86_USER_SPACE_MSR), "exits of MSRs (KVM_CAP_X86_USER_SPACE_MSR)"),
            (has(KVM_CAP_X86_MSR_FILTER), "filters of MSRs (KVM_CAP_X86_MSR_FILTER)"),
            (has(KVM_CAP_VCPU_ATTRIBUTES), "exact offsets of the TSC (KVM_VCPU_TSC_OFFSET)"),
            (device.check_extension(Cap::ImmediateExit), "KVM_CAP_IMMEDIATE_EXIT"),
            (
                registers & KVM_SYNC_X86_VALID_FIELDS == KVM_SYNC_X86_VALID_FIELDS,
                "registers with each exit (KVM_CAP_SYNC_REGS)",
            ),
        ];
        if let Some((_, what)) = needed.iter().find(|(has, _)| !has) {
            return Err(Error::Lacks(what));
        }
        kick::install();
        let told = device.check_extension_int(Cap::XenHvm) as u32 & KVM_XEN_HVM_CONFIG_INTERCEPT_HCALL != 0;
        Ok(Kvm { device, told, keeps: false, traced: false, exits: OnceLock::new(), made: Mutex::default() })
    }

    /// The same, and KVM keeps the local APICs; where it cannot, and that is not `needed`, it does not.
    pub fn open_with_apics(needed: bool) -> Result<Self, Error> {
        let kvm = Self::open()?;
        let has = |cap| kvm.device.check_extension(cap);
        let raw = |number: u32| kvm.device.check_extension_raw(number.into()) > 0;
        let parts = [
            (raw(KVM_CAP_SPLIT_IRQCHIP), "local APICs beside another's I/O APIC (KVM_CAP_SPLIT_IRQCHIP)"),
            (raw(KVM_CAP_X2APIC_API), "KVM_CAP_X2APIC_API"),
            (has(Cap::SignalMsi) && has(Cap::IrqRouting), "messages to its local APICs (KVM_CAP_SIGNAL_MSI)"),
            (has(Cap::MpState) && has(Cap::TscDeadlineTimer), "KVM_CAP_TSC_DEADLINE_TIMER"),
        ];
        match parts.iter().find(|(has, _)| !has) {
            Some((_, what)) if needed => Err(Error::Lacks(what)),
            Some(_) => Ok(kvm),
            None => Ok(Kvm { keeps: true, ..kvm }),
        }
    }

    /// Whether the machine is told of VMCALL and VMMCALL: the kernel was built with CONFIG_KVM_XEN.
    pub fn tells_of_hypercalls(&self) -> bool {
        self.told
    }

    /// The same, and all exits of its guests are counted by the kernel's tracepoints, where that is permitted.
    pub fn tracing(self, traced: bool) -> Self {
        Kvm { traced, ..self }
    }

    /// The tracepoints, which are opened before a sandbox forbids it.
    fn exits(&self) -> Option<Arc<Exits>> {
        let open = || {
            let opened = Exits::open();
            opened
                .inspect_err(|why| tracing::info!("exits that KVM handles by itself are not visible: {why}"))
                .ok()
        };
        self.traced.then(|| self.exits.get_or_init(open).clone()).flatten()
    }

    /// Whether it keeps the local APICs.
    pub fn keeps_apics(&self) -> bool {
        self.keeps
    }

    /// Of `wanted` and what the platform has beside the engine, the features that guests cannot have here.
    pub fn lacks(&self, wanted: &[Feature]) -> Result<Vec<Feature>, Error> {
        cpuid::lacking(&self.device, wanted, self.keeps)
            .map_err(|why| Error::Call("KVM_GET_SUPPORTED_CPUID", why))
    }
}

impl Engine<X86> for Kvm {
    fn name(&self) -> &'static str {
        "kvm"
    }

    fn capabilities(&self) -> Capabilities {
        use Capability::{
            BreakOnData, GivesPriority, HypercallsAsHost, HypercallsByPort, KeepsInterruptController,
        };
        // The other vendor's instruction KVM writes over with the host's, where the guest made it executable: in a page
        // that must not be written that is a page fault.
        let calls = if self.told { HypercallsAsHost } else { HypercallsByPort };
        match self.keeps {
            true => Capabilities::of(&[BreakOnData, GivesPriority, calls, KeepsInterruptController]),
            false => Capabilities::of(&[BreakOnData, GivesPriority, calls]),
        }
    }

    fn can_stop_at(&self, plan: &DebugPlan) -> bool {
        debug::fits(plan)
    }

    fn create_partition(&self, parts: PartitionParts<X86>) -> io::Result<Box<dyn Partition<X86>>> {
        let partition = KvmPartition::new(&self.device, parts, self.told, self.keeps, self.exits())?;
        *lock(&self.made) = Arc::downgrade(&partition.vm);
        Ok(Box::new(partition))
    }

    fn files(&self) -> Vec<RawFd> {
        let vm = lock(&self.made).upgrade();
        let device = [self.device.as_raw_fd()];
        let exits = self.exits.get().and_then(Option::as_ref);
        let exits = exits.iter().flat_map(|exits| exits.files());
        device.into_iter().chain(vm.iter().flat_map(|vm| vm.files())).chain(exits).collect()
    }
}
