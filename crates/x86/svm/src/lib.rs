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
    /// EDX: parts of a VMCB may be marked as unchanged.
    pub const VMCB_CLEAN: u32 = 1 << 5;
    /// EDX: translations of one ASID can be dropped.
    pub const FLUSH_BY_ASID: u32 = 1 << 6;
    /// EDX: only so many PAUSEs leave the guest.
    pub const PAUSE_FILTER: u32 = 1 << 10;
    /// EDX of the processor here.
    pub const FEATURES: u32 = NP | NRIPS | VMCB_CLEAN | FLUSH_BY_ASID | PAUSE_FILTER;
}
