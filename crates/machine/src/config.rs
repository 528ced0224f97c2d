//! What a machine is made of, as plain data.

use std::sync::Arc;
use std::time::Duration;

use satori_boot::{Cmdline, Contents, Module, ProtocolChoice, Smbios};
use satori_cpuid::{Feature, Topology};
use satori_engine::VmxProcessor;
use satori_journal::Journal;
use satori_memory::GuestMemory;
use satori_symbols::Symbols;

use crate::Pins;

/// Everything that decides a run. Two machines of equal `Config` under a virtual clock, given the
/// same input, run alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The kernel file's bytes: bzImage or vmlinux, whatever its compression, or a multiboot kernel.
    pub kernel: Vec<u8>,
    /// What its payload unpacks to, where the caller has kept that ([`Packed`](satori_boot::Packed)).
    pub kernel_unpacked: Option<Contents>,
    /// The kernel file's name, which a multiboot kernel finds before its command line.
    pub kernel_name: String,
    /// Initial RAM disks, joined in this order; the modules of a multiboot kernel.
    pub initrds: Vec<Module>,
    /// The kernel's command line.
    pub cmdline: Cmdline,
    /// How the kernel is entered.
    pub protocol: ProtocolChoice,
    /// What the SMBIOS tables tell beside the machine's make-up.
    pub smbios: Smbios,
    /// RAM in bytes, 128 MiB to 64 GiB, a multiple of the page size.
    pub memory: u64,
    /// vCPUs, and how they make up cores, dies and sockets.
    pub topology: Topology,
    /// Nodes that share out vCPUs and memory, which is given to them in this order; none is one node, of which nothing is said.
    pub numa: Vec<NumaNode>,
    /// CPU model and changes to it, as `MODEL,+FEATURE,-FEATURE`; none is `max`.
    pub cpu_model: Option<String>,
    /// What is offered of Hyper-V.
    pub hyperv: satori_hyperv::Config,
    /// What is offered of KVM's guest interface, behind Hyper-V's leaves if there are any.
    pub kvm: satori_kvm::Config,
    /// What is offered of Xen's interface, behind Hyper-V's leaves if there are any.
    pub xen: Option<satori_xen::Config>,
    /// What executes the guest's instructions.
    pub engine: EngineKind,
    /// Who keeps the local APICs.
    pub apics: Apics,
    /// With KVM, exits that it handles by itself are counted, too, where the host permits.
    pub kvm_exits: bool,
    /// Why it is not a better one, for the line that tells which engine runs.
    pub engine_instead: Option<String>,
    /// What the host's processor is taken not to have, though it may.
    pub host_without: Vec<Feature>,
    /// The modelled VMX processor, which decides what exits.
    pub processor: VmxProcessor,
    /// Ticks a second of the modelled host under a virtual clock: each is an EXTERNAL_INTERRUPT of
    /// every vCPU that executes. 0 is none.
    pub host_tick: u32,
    /// Guest time that exits take under a virtual clock; none is no time.
    pub charges: Option<crate::Charges>,
    /// Which of the host's processors the machine's threads may use.
    pub pins: Pins,
    /// What records what comes from outside, or plays it again; that of the devices. The clock is virtual then.
    pub journal: Option<Journal>,
    /// Where time comes from.
    pub clock: ClockMode,
    /// Frequency of the guest's TSC in Hz; none is the host's own under the real clock and the
    /// instruction rate under the virtual one.
    pub tsc_hz: Option<u64>,
    /// What a guest's reset does.
    pub on_reset: OnReset,
    /// Wall-clock time after which the run ends.
    pub timeout: Option<Duration>,
    /// Guest time after which the run ends; under a virtual clock always at the same instruction.
    pub guest_timeout: Option<Duration>,
    /// Changes of the TSC's frequency while the guest runs, as migrations would make them.
    pub tsc_changes: Vec<TscChange>,
    /// Bytes on the console that mean a guest panic; empty for none.
    pub panic_pattern: String,
    /// What is on the PCI bus.
    pub devices: crate::Devices,
    /// Serial ports beyond the first.
    pub serials: crate::SerialPorts,
    /// QEMU's pc-testdev and fw_cfg, for bare-metal suites; the debug console is left out then.
    pub testdev: bool,
    /// What the guest's serial port receives, as it is ready for it, and always at the same instructions under a
    /// virtual clock.
    pub input: Vec<u8>,
    /// Whether exits are counted and timed.
    pub profile: bool,
    /// Whether the engine's time is sampled, and what costs time to count is counted.
    pub engine_stats: bool,
    /// Whether the process ends with the run: what vCPUs cached is left to the host then, and not freed piece by piece.
    pub ends_process: bool,
    /// Where names of guest functions come from.
    pub symbols: SymbolSource,
    /// Whether they are wanted at every end, and not only where the guest failed.
    pub names: bool,
}

/// Nodes of the host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNodes {
    /// Their numbers.
    pub nodes: Vec<u32>,
    /// How memory is placed there.
    pub policy: satori_memory::HostPolicy,
}

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    /// Its vCPUs' numbers.
    pub cpus: Vec<u32>,
    /// Its memory in bytes; all nodes' are the machine's.
    pub memory: u64,
    /// How far each node is, 10 being here.
    pub distances: Vec<u8>,
    /// On which of the host's nodes its memory is, if that was said.
    pub host: Option<HostNodes>,
}

impl Config {
    /// The leaves of the paravirtual interfaces, for a TSC of `tsc_hz`: Hyper-V's first, the next behind it.
    pub(crate) fn personalities(&self, tsc_hz: u64) -> Vec<satori_cpuid::Leaf> {
        let mut leaves = self.hyperv.leaves(self.topology.cpus());
        if let Some(xen) = &self.xen {
            leaves.extend(satori_xen::leaves(xen, tsc_hz));
            return leaves;
        }
        let base = if leaves.is_empty() { satori_pv::BASE } else { satori_pv::BASE + satori_pv::STEP };
        leaves.extend(self.kvm.leaves(base));
        leaves
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            kernel: Vec::new(),
            kernel_unpacked: None,
            kernel_name: "kernel".into(),
            initrds: Vec::new(),
            cmdline: Cmdline::default(),
            protocol: ProtocolChoice::Auto,
            smbios: Smbios::default(),
            memory: 512 << 20,
            topology: Topology::default(),
            numa: Vec::new(),
            cpu_model: None,
            hyperv: satori_hyperv::Config::auto_on(VmxProcessor::default().apicv()),
            kvm: satori_kvm::Config::off(),
            xen: None,
            engine: EngineKind::Interpreter,
            apics: Apics::Auto,
            kvm_exits: false,
            engine_instead: None,
            host_without: Vec::new(),
            processor: VmxProcessor::default(),
            host_tick: 0,
            charges: None,
            pins: Pins::default(),
            journal: None,
            clock: ClockMode::Real,
            tsc_hz: None,
            on_reset: OnReset::Restart,
            timeout: None,
            guest_timeout: None,
            tsc_changes: Vec::new(),
            panic_pattern: PANIC_PATTERN.into(),
            devices: crate::Devices::default(),
            serials: crate::SerialPorts::default(),
            testdev: false,
            input: Vec::new(),
            profile: true,
            engine_stats: false,
            ends_process: false,
            symbols: SymbolSource::Auto,
            names: false,
        }
    }
}

/// Where names of guest functions come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SymbolSource {
    /// Functions are not named.
    Off,
    /// The kallsyms table in the guest's memory, if there is one when a name is asked for.
    #[default]
    Auto,
    /// A file's.
    Table(Arc<Symbols>),
}

impl SymbolSource {
    /// The symbols of a guest with this memory.
    pub(crate) fn of(&self, memory: &GuestMemory) -> Option<Arc<Symbols>> {
        match self {
            SymbolSource::Off => None,
            SymbolSource::Auto => Symbols::find(memory).map(Arc::new),
            SymbolSource::Table(symbols) => Some(symbols.clone()),
        }
    }
}

/// When the guest's TSC changes its frequency, and to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TscChange {
    /// Guest time.
    pub at: Duration,
    /// The new frequency in Hz.
    pub hz: u64,
}

/// What Linux prints when it panics (kernel/panic.c).
pub const PANIC_PATTERN: &str = "Kernel panic - not syncing";

/// An engine, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// The software CPU, one instruction at a time.
    #[default]
    Interpreter,
    /// The software CPU that translates hot code to host code.
    Translator,
    /// The same, which translates all code before its first execution: slower, and for trying
    /// the translation itself.
    EagerTranslator,
    /// The host's processor, by Linux's /dev/kvm.
    Kvm,
}

/// Who keeps the local APICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Apics {
    /// The engine, where it can and the guest is offered nothing that only the machine's have.
    #[default]
    Auto,
    /// The machine, whatever the engine: each interrupt, and each end of one, is seen.
    Machine,
    /// The engine. One that cannot has the machine's, with the timers of the host's kernel, so that a guest goes on by KVM.
    Kernel,
}

impl Apics {
    /// The clock of the timers of KVM's local APICs, in Hz (Linux arch/x86/kvm/lapic.h, APIC_BUS_FREQUENCY).
    pub(crate) const KERNEL_HZ: u64 = 1_000_000_000;
}

/// Where time comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockMode {
    /// The host's time-stamp counter.
    #[default]
    Real,
    /// Retired instructions, of which `rate` make a second; idle time is skipped.
    Virtual {
        /// Instructions a second.
        rate: u64,
    },
}

impl ClockMode {
    /// Virtual time at one instruction a nanosecond.
    pub const VIRTUAL: ClockMode = ClockMode::Virtual { rate: 1_000_000_000 };
}

/// What a guest's reset does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReset {
    /// The machine starts again.
    #[default]
    Restart,
    /// The run ends with [`Event::Reset`](crate::Event::Reset).
    Exit,
}
