//! KVM's guest interface (Linux, Documentation/virt/kvm/x86/{cpuid,msr,hypercalls}.rst).

/// The name in a KVM guest's first leaf.
pub const SIGNATURE: [u8; 12] = *b"KVMKVMKVM\0\0\0";

/// MSRs.
pub mod msr {
    /// Wall clock, by its first number.
    pub const WALL_CLOCK_OLD: u32 = 0x11;
    /// System time, by its first number.
    pub const SYSTEM_TIME_OLD: u32 = 0x12;
    /// The first of those with numbers of their own.
    pub const FIRST: u32 = 0x4b56_4d00;
    /// Wall clock.
    pub const WALL_CLOCK: u32 = 0x4b56_4d00;
    /// System time.
    pub const SYSTEM_TIME: u32 = 0x4b56_4d01;
    /// Asynchronous page faults.
    pub const ASYNC_PF_EN: u32 = 0x4b56_4d02;
    /// Steal time.
    pub const STEAL_TIME: u32 = 0x4b56_4d03;
    /// End of interrupt without an exit.
    pub const PV_EOI_EN: u32 = 0x4b56_4d04;
    /// Whether the host may poll on HLT.
    pub const POLL_CONTROL: u32 = 0x4b56_4d05;
    /// Vector of "page ready".
    pub const ASYNC_PF_INT: u32 = 0x4b56_4d06;
    /// Acknowledgement of "page ready".
    pub const ASYNC_PF_ACK: u32 = 0x4b56_4d07;
    /// Whether migration is allowed.
    pub const MIGRATION_CONTROL: u32 = 0x4b56_4d08;
    /// The last of them.
    pub const LAST: u32 = 0x4b56_4d08;
}

/// Bit 0 of the MSRs that hold an address: the area is in use.
pub const ENABLED: u64 = 1;

/// Hypercalls, by number in RAX.
pub mod call {
    /// Ask for an interrupt, which the host does by itself.
    pub const VAPIC_POLL_IRQ: u64 = 1;
    /// Wake a vCPU from HLT.
    pub const KICK_CPU: u64 = 5;
    /// Pair of wall clock and counter.
    pub const CLOCK_PAIRING: u64 = 9;
    /// IPIs to a mask of vCPUs.
    pub const SEND_IPI: u64 = 10;
    /// Give the time to a vCPU.
    pub const SCHED_YIELD: u64 = 11;
    /// Change the encryption of pages.
    pub const MAP_GPA_RANGE: u64 = 12;
}

/// Results of hypercalls that are errors.
pub mod error {
    /// The call does not exist, or is not offered.
    pub const ENOSYS: i64 = -1000;
    /// Only the kernel may call.
    pub const EPERM: i64 = -1;
    /// An argument cannot be.
    pub const EINVAL: i64 = -22;
    /// An address leads nowhere.
    pub const EFAULT: i64 = -14;
    /// What is asked for is not supported.
    pub const EOPNOTSUPP: i64 = -95;
}

/// The steal-time area, 64 bytes.
pub mod steal {
    /// Size, and alignment.
    pub const BYTES: u64 = 64;
    /// Version, odd while the host writes.
    pub const VERSION: u64 = 8;
    /// The word whose low byte says whether the vCPU is off its processor.
    pub const PREEMPTED: u64 = 16;
    /// In it: the host stopped the vCPU.
    pub const STOPPED: u32 = 1;
    /// In it: a guest wants its TLB flushed before it goes on.
    pub const FLUSH_TLB: u32 = 2;
}
