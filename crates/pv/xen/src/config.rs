//! Which guest a domain has, what it is offered, and the one table of what that can be.

use satori_defs::xen::msr;
use satori_pv::{BASE, STEP};

/// What the guest takes its machine for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It entered at its PVH note: there are no emulated devices.
    Pvh,
    /// A PC with Xen's devices beside: the platform PCI device brings them, once the emulated ones are unplugged.
    Hvm,
}

/// What can be offered or left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Events come by one vector of all vCPUs, which passes no local APIC.
    CallbackVector,
    /// Each vCPU has a vector of its own for events, at its local APIC.
    UpcallVector,
    /// The FIFO ABI of event channels.
    Fifo,
}

/// A feature: its name, and what there is to say of it.
pub struct FeatureRow {
    /// Which it is.
    pub what: Feature,
    /// Its name.
    pub name: &'static str,
    /// Where a guest finds it.
    pub told: &'static str,
    /// What it brings.
    pub brings: &'static str,
    /// What guests do without it.
    pub without: &'static str,
    /// What Linux prints, or does, that shows it in use.
    pub proof: &'static str,
}

/// Every feature; all of them are offered unless somebody says otherwise.
pub const FEATURES: &[FeatureRow] = &[
    FeatureRow {
        what: Feature::CallbackVector,
        name: "callback-vector",
        told: "XENFEAT_hvm_callback_vector, bit 8 of xen_version's features; HVM_PARAM_CALLBACK_IRQ type 2",
        brings: "events of every vCPU by one vector, injected whenever interrupts are taken: no APIC, no EOI",
        without: "vectors of the vCPUs' own; without these, too, an HVM guest has events by the platform device's interrupt line, all at vCPU 0 (Linux expects that with xen_no_vector_callback alone)",
        proof: "Xen HVM callback vector for event delivery is enabled",
    },
    FeatureRow {
        what: Feature::UpcallVector,
        name: "upcall-vector",
        told: "bit 6 of EAX of leaf 4; HVMOP_set_evtchn_upcall_vector",
        brings: "an edge at the vCPU's own local APIC, so that posted interrupts and APICv carry it",
        without: "Linux, and all kernels before 6.0, take the callback vector",
        proof: "hvm_op set_evtchn_upcall_vector in the report, one a vCPU",
    },
    FeatureRow {
        what: Feature::Fifo,
        name: "fifo",
        told: "event_channel_op init_control",
        brings: "131,072 ports, and 16 priorities",
        without: "4,096 ports by the two-level ABI",
        proof: "xen:events: Using FIFO-based ABI",
    },
];

/// What the leaves say of the TSC (Xen public/arch-x86/cpuid.h, leaf 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TscMode {
    /// It is native while it counts as the domain began.
    #[default]
    Default,
    /// It is always emulated.
    Emulate,
    /// It is never emulated.
    Never,
}

impl TscMode {
    /// Each with its name and number.
    pub const ALL: [(TscMode, &'static str, u32); 3] =
        [(TscMode::Default, "default", 0), (TscMode::Emulate, "emulate", 1), (TscMode::Never, "never", 2)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|row| row.0 == self).map_or("", |row| row.1)
    }

    pub(crate) fn number(self) -> u32 {
        Self::ALL.iter().find(|row| row.0 == self).map_or(0, |row| row.2)
    }
}

/// What a domain is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which guest it has.
    pub kind: Kind,
    /// Its features, a bit each.
    features: u8,
    /// What it is told of the TSC.
    pub tsc: TscMode,
    /// Hyper-V's leaves come before its own.
    pub behind: bool,
}

impl Config {
    /// All that there is, for a guest of this kind.
    pub fn new(kind: Kind) -> Self {
        let features = FEATURES.iter().fold(0, |all, row| all | 1 << row.what as u8);
        Config { kind, features, tsc: TscMode::Default, behind: false }
    }

    /// With `one`, or without it.
    #[must_use]
    pub fn with(self, one: Feature, on: bool) -> Self {
        let bit = 1 << one as u8;
        Config { features: if on { self.features | bit } else { self.features & !bit }, ..self }
    }

    /// Whether `one` is offered.
    pub fn has(&self, one: Feature) -> bool {
        self.features & 1 << one as u8 != 0
    }

    /// Where its leaves begin.
    pub fn base(&self) -> u32 {
        if self.behind { BASE + STEP } else { BASE }
    }

    /// The MSR that puts the hypercall page where its value says.
    pub fn page_msr(&self) -> u32 {
        if self.behind { msr::PAGE_BEHIND } else { msr::PAGE }
    }

    /// The leaf that tells each vCPU its number in EBX.
    pub fn vcpu_leaf(&self) -> u32 {
        self.base() + 4
    }
}
