//! The flags that say what a guest's processors are, of commands that run one and of those that only tell.

use std::ops::Deref;
use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use satori_cpuid::Topology;

use crate::guest::Guest;

/// What the guest's processors are, and with --hyperv the part of what they show that is Hyper-V's.
#[derive(Debug, Args)]
pub struct ModelFlags {
    /// Virtual processors, 1 to 255: a number, or as QEMU's -smp has it, with
    /// sockets=, dies=, cores= and threads=; what is missing is worked out
    /// [default: 1]
    #[arg(long, visible_alias = "smp", value_name = "N[,NAME=N]..")]
    pub cpus: Option<Topology>,
    /// The processor's model (x86-64-v1, -v2, -v3, max), features added to or taken from it, and
    /// vendor=, family=, model=, stepping=, model-id=: x86-64-v2,-popcnt,vendor=AuthenticAMD;
    /// Hyper-V's as QEMU has them: max,hv-time,hv-crash=off,hv-vendor-id=NAME [default: max]
    #[arg(long, value_name = "MODEL[,±FEATURE]..")]
    pub cpu: Option<String>,
    /// Hyper-V enlightenments: auto (what suits most guests), off, all, or a list of names, which brings
    /// what these need; one that begins with a sign changes auto: +reset,-crash. What --cpu says comes
    /// after it. 'satori hyperv list' names them, 'satori hyperv check' tells what options come to
    /// [default: auto]
    #[arg(long, value_name = "auto|off|all|LIST", allow_hyphen_values = true)]
    pub hyperv: Option<String>,
    /// The modelled VMX processor, which decides what exits: haswell, skylake, sapphire-rapids, no-apicv; features
    /// with a sign change it: haswell,-posted-interrupts. They are apicv, the sum of
    /// apic-register-virtualization, virtual-interrupt-delivery and posted-interrupts;
    /// sint-eoi-exits, ipi-virtualization, tpr-shadow, preemption-timer and ple. With apicv, --hyperv auto deprecates auto-EOI
    /// and recommends no MSRs for the APIC, so that APICv stays in use
    /// [default: skylake]
    #[arg(long = "processor", value_name = "NAME[,±FEATURE]..")]
    pub vmx: Option<satori_machine::VmxProcessor>,
    /// Whether the guest can run guests of its own: vmx is Intel's way, for /dev/kvm by kvm_intel; svm is AMD's, by
    /// kvm_amd, and makes the processor one of AMD's unless --cpu names a vendor. The same as vmx or svm among --cpu's features
    /// [default: off]
    #[arg(long, value_name = "off|vmx|svm")]
    pub nested: Option<Nested>,
    /// A domain's XML, whole or in part: processors, enlightenments, memory, kernel and threads' processors
    /// are taken from it, as far as the other options do not say otherwise. What cannot be honoured
    /// is told with line and column
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub libvirt: Option<PathBuf>,
}

/// What the guest's processors are, and which interfaces of hypervisors it finds there.
#[derive(Debug, Args)]
pub struct CpuFlags {
    #[command(flatten)]
    #[allow(missing_docs, reason = "a doc comment on a flattened field would change the help's text")]
    pub model: ModelFlags,
    /// The interfaces that the guest finds, joined by +: hyperv, kvm, kvm+hyperv, or none of them; or xen-pvh, xen-hvm,
    /// xen-hvm+hyperv. Without hyperv among them --hyperv is off [default: hyperv]
    #[arg(long, value_name = "NAME[+NAME]..")]
    pub guest: Option<Guest>,
    /// Features of KVM's guest interface, with --guest kvm: auto, off, all, or a list of names, which brings what these need;
    /// one that begins with a sign changes auto: -pv-eoi. QEMU's names in --cpu (max,kvm-pv-eoi=off) come after it. 'satori
    /// kvm list' names them [default: auto]
    #[arg(long, value_name = "auto|off|all|LIST", allow_hyphen_values = true)]
    pub kvm: Option<String>,
    /// What of Xen's interface is offered, with --guest xen-pvh or xen-hvm: auto, or what changes it: -upcall-vector leaves one out, tsc=never says what the leaves
    /// tell of the TSC (default, emulate, never). 'satori xen list' names them [default: auto]
    #[arg(long, value_name = "auto|LIST", allow_hyphen_values = true)]
    pub xen: Option<String>,
}

// Most who look at the flags look at those of the model.
impl Deref for CpuFlags {
    type Target = ModelFlags;

    fn deref(&self) -> &ModelFlags {
        &self.model
    }
}

/// `--nested`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Nested {
    /// No virtualisation
    Off,
    /// Intel's VMX
    Vmx,
    /// AMD's SVM, on a processor of AMD's
    Svm,
}
