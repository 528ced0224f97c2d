//! SVM as values: the VMCB, its intercepts, and what VMRUN accepts (APM volume 2, chapter 15).
//!
//! Nothing here knows a processor. Whoever executes VMRUN copies a VMCB out of memory, asks [`check`] about the copy, and writes
//! back the parts that #VMEXIT changes.

#![forbid(unsafe_code)]

pub mod check;
pub mod event;
pub mod intercept;
pub mod npt;
pub mod vmcb;

pub use intercept::Intercept;
pub use vmcb::{Place, Vmcb};

/// The exit code of a VMRUN that was refused: VMEXIT_INVALID.
pub const INVALID: u64 = u64::MAX;

/// CPUID 8000000A.
pub mod cpuid {
    /// EAX: the revision.
    pub const REVISION: u32 = 1;
    /// EBX: how many address space identifiers there are; 0 is the host's own.
    pub const ASIDS: u32 = 0x100;
    /// EDX: nested paging.
    pub const NP: u32 = 1 << 0;
    /// EDX: the address behind an intercepted instruction is told.
    pub const NRIPS: u32 = 1 << 3;
    /// EDX: the guest's TSC has a ratio to the host's.
    pub const TSC_RATIO: u32 = 1 << 4;
    /// EDX: parts of a VMCB may be marked as unchanged.
    pub const VMCB_CLEAN: u32 = 1 << 5;
    /// EDX: translations of one ASID can be dropped.
    pub const FLUSH_BY_ASID: u32 = 1 << 6;
    /// EDX: exits tell operands, and instructions that faulted.
    pub const DECODE_ASSISTS: u32 = 1 << 7;
    /// EDX: only so many PAUSEs leave the guest.
    pub const PAUSE_FILTER: u32 = 1 << 10;
    /// EDX: of those, only such as follow each other closely.
    pub const PAUSE_THRESHOLD: u32 = 1 << 12;
    /// EDX: VMLOAD and VMSAVE of a guest pass its nested tables.
    pub const VIRTUAL_VMLOAD_VMSAVE: u32 = 1 << 15;
    /// EDX: a guest can have a global interrupt flag of its own.
    pub const VGIF: u32 = 1 << 16;
    /// EDX: a guest's NMIs can be virtual.
    pub const VNMI: u32 = 1 << 25;
    /// EDX: an intercept comes before the check of the address in rAX.
    pub const ADDRESS_CHECK: u32 = 1 << 28;
    /// EDX of the processor here.
    pub const FEATURES: u32 = NP
        | NRIPS
        | TSC_RATIO
        | VMCB_CLEAN
        | FLUSH_BY_ASID
        | DECODE_ASSISTS
        | PAUSE_FILTER
        | PAUSE_THRESHOLD
        | VIRTUAL_VMLOAD_VMSAVE
        | VGIF
        | VNMI
        | ADDRESS_CHECK;
}
