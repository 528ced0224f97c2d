//! The VMX that guests are offered (SDM volume 3, chapters 24 to 31), as values: fields of the VMCS by encoding, capability
//! MSRs, the checks of VM entry, interruption information, EPT entries, and Hyper-V's enlightened VMCS.
//!
//! Nothing here has a processor or memory. The processor asks these functions where it executes VMLAUNCH, as the handlers
//! of exits do where it reads IA32_VMX_BASIC: what is offered and what is checked are one table.

#![forbid(unsafe_code)]

pub mod capability;
pub mod check;
pub mod control;
pub mod ept;
pub mod event;
pub mod evmcs;
pub mod field;
pub mod vmcs;

pub use field::Field;
pub use vmcs::Vmcs;

/// VM-instruction error numbers (SDM 31.4).
pub mod error {
    #![allow(missing_docs, reason = "the manual's list, in its order")]
    pub const VMCALL_IN_ROOT: u32 = 1;
    pub const VMCLEAR_ADDRESS: u32 = 2;
    pub const VMCLEAR_VMXON_POINTER: u32 = 3;
    pub const VMLAUNCH_NOT_CLEAR: u32 = 4;
    pub const VMRESUME_NOT_LAUNCHED: u32 = 5;
    pub const ENTRY_CONTROLS: u32 = 7;
    pub const ENTRY_HOST_STATE: u32 = 8;
    pub const VMPTRLD_ADDRESS: u32 = 9;
    pub const VMPTRLD_VMXON_POINTER: u32 = 10;
    pub const VMPTRLD_REVISION: u32 = 11;
    pub const UNSUPPORTED_COMPONENT: u32 = 12;
    pub const READ_ONLY_COMPONENT: u32 = 13;
    pub const VMXON_IN_ROOT: u32 = 15;
    pub const ENTRY_MOV_SS: u32 = 26;
    pub const INVALID_OPERAND: u32 = 28;
}

/// Physical-address width (CPUID 80000008H).
pub const MAXPHYADDR: u8 = 46;

/// Set in the exit reason of a VM entry that failed (SDM 24.9.1).
pub const ENTRY_FAILURE: u32 = 1 << 31;
