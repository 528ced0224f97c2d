//! Why a machine could not be made.

/// Failures of [`Machine::new`](crate::Machine::new); the text says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A part of the configuration makes no sense.
    #[error("{0}")]
    Config(String),
    /// The guest cannot be loaded.
    #[error(transparent)]
    Boot(#[from] satori_boot::Error),
    /// The same of AArch64.
    #[error(transparent)]
    ArmBoot(#[from] satori_arm_board::Error),
    /// A 64-bit kernel for processors without long mode.
    #[error(
        "the kernel has 64 bits, and the processor is to have no long mode; leave -lm out of --cpu, or use a kernel of 32 bits"
    )]
    NoLongMode,
    /// Guest memory could not be reserved.
    #[error(transparent)]
    Memory(#[from] satori_memory::Error),
    /// The CPU model is not known or not possible.
    #[error(transparent)]
    Cpu(#[from] satori_cpuid::Error),
    /// The enlightenments are not known or not possible.
    #[error(transparent)]
    Hyperv(#[from] satori_hyperv::Error),
    /// Two devices want the same place.
    #[error(transparent)]
    Chipset(#[from] satori_chipset::Error),
    /// A device cannot be had.
    #[error(transparent)]
    Device(#[from] satori_virtio::Error),
    /// The engine cannot do what the machine needs of it.
    #[error("{0}")]
    Capability(String),
    /// A saved state cannot be taken back, or the machine not be saved.
    #[error(transparent)]
    Saved(#[from] satori_save::Error),
    /// The host refused the engine.
    #[error("the engine cannot make a machine here: {0}; use --engine interpreter")]
    Engine(std::io::Error),
    /// This host's KVM cannot run machines.
    #[error("--engine kvm: {0}, or use --engine auto")]
    Kvm(#[from] satori_kvm_engine::Error),
    /// The host refused a thread.
    #[error("cannot start a thread: {0}; use fewer --cpus")]
    Thread(std::io::Error),
}
