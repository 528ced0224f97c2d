//! What is compared.

/// How worlds are switched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Design {
    /// The host's kernel is at EL2, by VHE; without it at EL1, and all that follows is off.
    pub vhe: bool,
    /// EL1's state is the guest's from when its vCPU is loaded until it is put, not from entry to exit.
    pub el1_stays: bool,
    /// Traps and stage 2 stay armed: at each entry and exit only HCR_EL2, CPTR_EL2 and VBAR_EL2 are written.
    pub traps_stay: bool,
    /// The virtual timer stays the guest's.
    pub timer_stays: bool,
    /// The virtual CPU interface's controls and priorities, and the floating-point registers, are moved when a vCPU is loaded and put.
    pub vgic_stays: bool,
    /// VHE has a function of its own that runs a vCPU, with nothing called by a pointer.
    pub own_run: bool,
}

/// Split mode.
const SPLIT: Design = Design {
    vhe: false,
    el1_stays: false,
    traps_stay: false,
    timer_stays: false,
    vgic_stays: false,
    own_run: false,
};

/// VHE at first glance.
const PLAIN: Design = Design { vhe: true, ..SPLIT };

/// All that are compared, in the talk's order.
pub const DESIGNS: &[(&str, Design)] = &[
    ("split mode", SPLIT),
    ("VHE", PLAIN),
    ("VHE, EL1 stays", Design { el1_stays: true, ..PLAIN }),
    ("VHE, traps stay", Design { traps_stay: true, ..PLAIN }),
    ("VHE, timer stays", Design { timer_stays: true, ..PLAIN }),
    ("VHE, vGIC stays", Design { vgic_stays: true, ..PLAIN }),
    ("VHE, own run", Design { own_run: true, ..PLAIN }),
    (
        "VHE, all five",
        Design {
            vhe: true,
            el1_stays: true,
            traps_stay: true,
            timer_stays: true,
            vgic_stays: true,
            own_run: true,
        },
    ),
];

/// What the guest does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Benchmark {
    /// HVC, answered by the host's kernel.
    Hypercall,
    /// A load from the interrupt controller, which the host's kernel emulates.
    IoKernel,
    /// A load from a device that a program at EL0 emulates.
    IoUser,
    /// An interrupt of one vCPU for another that executes, until its handler has run.
    Ipi,
    /// A hypercall by a guest that uses floating-point registers each time.
    Fp,
}

impl Benchmark {
    /// All of them.
    pub const ALL: [Benchmark; 5] =
        [Benchmark::Hypercall, Benchmark::IoKernel, Benchmark::IoUser, Benchmark::Ipi, Benchmark::Fp];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Benchmark::Hypercall => "hypercall",
            Benchmark::IoKernel => "I/O kernel",
            Benchmark::IoUser => "I/O user",
            Benchmark::Ipi => "virtual IPI",
            Benchmark::Fp => "FP, hypercall",
        }
    }

    /// vCPUs that it needs.
    pub const fn vcpus(self) -> u32 {
        match self {
            Benchmark::Ipi => 2,
            _ => 1,
        }
    }

    /// What the guest has added up behind so many rounds.
    pub const fn sum(self, rounds: u32) -> u64 {
        let rounds = rounds as u64;
        match self {
            Benchmark::Hypercall => rounds * PSCI_1_1,
            Benchmark::IoKernel => rounds * TYPER,
            Benchmark::IoUser => rounds * (rounds + 1) / 2,
            Benchmark::Ipi => rounds,
            // The number of each round, kept in a vector register.
            Benchmark::Fp => rounds * (rounds + 1) / 2,
        }
    }
}

/// What the hypercall PSCI_VERSION returns.
pub(crate) const PSCI_1_1: u64 = 0x1_0001;
/// GICD_TYPER as the emulated interrupt controller has it.
pub(crate) const TYPER: u64 = 0x37;
