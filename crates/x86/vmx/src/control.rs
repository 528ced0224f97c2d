//! Bits of the VM-execution, VM-exit and VM-entry controls (SDM 24.6 to 24.8).

/// Pin-based VM-execution controls.
pub mod pin {
    #![allow(missing_docs, reason = "the manual's names")]
    pub const EXTERNAL_INTERRUPT: u32 = 1 << 0;
    pub const NMI: u32 = 1 << 3;
    pub const VIRTUAL_NMIS: u32 = 1 << 5;
    pub const PREEMPTION_TIMER: u32 = 1 << 6;
    pub const POSTED_INTERRUPTS: u32 = 1 << 7;
}

/// Primary processor-based VM-execution controls.
pub mod proc {
    #![allow(missing_docs, reason = "the manual's names")]
    pub const INTERRUPT_WINDOW: u32 = 1 << 2;
    pub const TSC_OFFSETTING: u32 = 1 << 3;
    pub const HLT: u32 = 1 << 7;
    pub const INVLPG: u32 = 1 << 9;
    pub const MWAIT: u32 = 1 << 10;
    pub const RDPMC: u32 = 1 << 11;
    pub const RDTSC: u32 = 1 << 12;
    pub const CR3_LOAD: u32 = 1 << 15;
    pub const CR3_STORE: u32 = 1 << 16;
    pub const CR8_LOAD: u32 = 1 << 19;
    pub const CR8_STORE: u32 = 1 << 20;
    pub const TPR_SHADOW: u32 = 1 << 21;
    pub const NMI_WINDOW: u32 = 1 << 22;
    pub const MOV_DR: u32 = 1 << 23;
    pub const UNCONDITIONAL_IO: u32 = 1 << 24;
    pub const IO_BITMAPS: u32 = 1 << 25;
    pub const MONITOR_TRAP: u32 = 1 << 27;
    pub const MSR_BITMAPS: u32 = 1 << 28;
    pub const MONITOR: u32 = 1 << 29;
    pub const PAUSE: u32 = 1 << 30;
    pub const SECONDARY: u32 = 1 << 31;
}

/// Secondary processor-based VM-execution controls.
pub mod proc2 {
    #![allow(missing_docs, reason = "the manual's names")]
    pub const APIC_ACCESSES: u32 = 1 << 0;
    pub const EPT: u32 = 1 << 1;
    pub const DESCRIPTOR_TABLES: u32 = 1 << 2;
    pub const RDTSCP: u32 = 1 << 3;
    pub const X2APIC: u32 = 1 << 4;
    pub const VPID: u32 = 1 << 5;
    pub const WBINVD: u32 = 1 << 6;
    pub const UNRESTRICTED: u32 = 1 << 7;
    pub const APIC_REGISTERS: u32 = 1 << 8;
    pub const VIRTUAL_INTERRUPTS: u32 = 1 << 9;
    pub const PAUSE_LOOP: u32 = 1 << 10;
    pub const RDRAND: u32 = 1 << 11;
    pub const INVPCID: u32 = 1 << 12;
    pub const VM_FUNCTIONS: u32 = 1 << 13;
    pub const SHADOW_VMCS: u32 = 1 << 14;
    pub const RDSEED: u32 = 1 << 16;
    pub const PML: u32 = 1 << 17;
    pub const XSAVES: u32 = 1 << 20;
    pub const MODE_BASED_EXECUTE: u32 = 1 << 22;
    pub const TSC_SCALING: u32 = 1 << 25;
}

/// VM-exit controls.
pub mod exit {
    #![allow(missing_docs, reason = "the manual's names")]
    pub const SAVE_DEBUG: u32 = 1 << 2;
    pub const HOST_64: u32 = 1 << 9;
    pub const ACKNOWLEDGE: u32 = 1 << 15;
    pub const SAVE_PAT: u32 = 1 << 18;
    pub const LOAD_PAT: u32 = 1 << 19;
    pub const SAVE_EFER: u32 = 1 << 20;
    pub const LOAD_EFER: u32 = 1 << 21;
    pub const SAVE_TIMER: u32 = 1 << 22;
}

/// VM-entry controls.
pub mod entry {
    #![allow(missing_docs, reason = "the manual's names")]
    pub const LOAD_DEBUG: u32 = 1 << 2;
    pub const IA32E: u32 = 1 << 9;
    pub const SMM: u32 = 1 << 10;
    pub const DEACTIVATE_DUAL: u32 = 1 << 11;
    pub const LOAD_PAT: u32 = 1 << 14;
    pub const LOAD_EFER: u32 = 1 << 15;
}

/// Guest interruptibility state (SDM 24.4.2).
pub mod interruptibility {
    #![allow(missing_docs, reason = "the manual's names")]
    pub const STI: u32 = 1 << 0;
    pub const MOV_SS: u32 = 1 << 1;
    pub const SMI: u32 = 1 << 2;
    pub const NMI: u32 = 1 << 3;
}

/// Guest activity state (SDM 24.4.2).
pub mod activity {
    #![allow(missing_docs, reason = "the manual's names")]
    pub const ACTIVE: u32 = 0;
    pub const HLT: u32 = 1;
    pub const WAIT_FOR_SIPI: u32 = 3;
}
