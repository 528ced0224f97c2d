//! What engines can do or not.

/// Something that not every engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// A run ends after an exact number of instructions ([`Until::instructions`](crate::Until::instructions)).
    ExactStop,
    /// A vCPU stops at an access to data ([`DebugPlan::watchpoints`](crate::DebugPlan::watchpoints)).
    BreakOnData,
    /// The register file has the priority below which the guest takes no interrupt, as the guest set it without an exit.
    GivesPriority,
    /// The engine keeps the vCPUs' interrupt controllers itself, and injects what they deliver.
    KeepsInterruptController,
    /// The instruction for hypercalls does not stop it; what does is an access to a port that the instruction set's side of
    /// the seam names.
    HypercallsByPort,
    /// Of the instructions for hypercalls that different vendors have, guests have the host's, whatever their processor says.
    HypercallsAsHost,
}

impl Capability {
    /// What an engine that has it does, behind "the engine".
    pub const fn text(self) -> &'static str {
        match self {
            Capability::ExactStop => "stops after an exact number of instructions",
            Capability::BreakOnData => "stops at accesses to data",
            Capability::GivesPriority => "gives the task priority",
            Capability::KeepsInterruptController => "keeps the interrupt controllers itself",
            Capability::HypercallsByPort => "is told of hypercalls by a port",
            Capability::HypercallsAsHost => "takes hypercalls by the host's own instruction",
        }
    }
}

/// What an engine can do: a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(u8);

impl Capabilities {
    /// These, and no more.
    pub const fn of(all: &[Capability]) -> Self {
        let (mut bits, mut i) = (0, 0);
        while i < all.len() {
            bits |= 1 << all[i] as u8;
            i += 1;
        }
        Capabilities(bits)
    }

    /// Whether `one` is among them.
    pub const fn has(self, one: Capability) -> bool {
        self.0 >> one as u8 & 1 != 0
    }
}
