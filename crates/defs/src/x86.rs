//! Architectural bits of control registers, flags, descriptors and exceptions (SDM volume 3).

/// Control register 0 (SDM 2.5).
pub mod cr0 {
    /// Protection enable.
    pub const PE: u64 = 1 << 0;
    /// Monitor coprocessor.
    pub const MP: u64 = 1 << 1;
    /// Emulation: x87 instructions raise #NM.
    pub const EM: u64 = 1 << 2;
    /// Task switched.
    pub const TS: u64 = 1 << 3;
    /// Extension type; fixed to 1.
    pub const ET: u64 = 1 << 4;
    /// Numeric error: x87 errors raise #MF.
    pub const NE: u64 = 1 << 5;
    /// Write protect: supervisor writes honour read-only pages.
    pub const WP: u64 = 1 << 16;
    /// Alignment mask.
    pub const AM: u64 = 1 << 18;
    /// Not write-through.
    pub const NW: u64 = 1 << 29;
    /// Cache disable.
    pub const CD: u64 = 1 << 30;
    /// Paging.
    pub const PG: u64 = 1 << 31;
}

/// Control register 4 (SDM 2.5).
pub mod cr4 {
    /// Virtual-8086 mode extensions.
    pub const VME: u64 = 1 << 0;
    /// Protected-mode virtual interrupts.
    pub const PVI: u64 = 1 << 1;
    /// RDTSC only at privilege level 0.
    pub const TSD: u64 = 1 << 2;
    /// Debugging extensions.
    pub const DE: u64 = 1 << 3;
    /// 4-MiB pages with 32-bit paging.
    pub const PSE: u64 = 1 << 4;
    /// Physical address extension.
    pub const PAE: u64 = 1 << 5;
    /// Machine-check enable.
    pub const MCE: u64 = 1 << 6;
    /// Global pages.
    pub const PGE: u64 = 1 << 7;
    /// RDPMC at any privilege level.
    pub const PCE: u64 = 1 << 8;
    /// FXSAVE, FXRSTOR and SSE enabled.
    pub const OSFXSR: u64 = 1 << 9;
    /// Unmasked SIMD exceptions raise #XM.
    pub const OSXMMEXCPT: u64 = 1 << 10;
    /// User-mode instruction prevention.
    pub const UMIP: u64 = 1 << 11;
    /// 57-bit linear addresses.
    pub const LA57: u64 = 1 << 12;
    /// VMX enable.
    pub const VMXE: u64 = 1 << 13;
    /// RDFSBASE and its kin.
    pub const FSGSBASE: u64 = 1 << 16;
    /// Process-context identifiers.
    pub const PCIDE: u64 = 1 << 17;
    /// XSAVE and extended states.
    pub const OSXSAVE: u64 = 1 << 18;
    /// Supervisor-mode execution prevention.
    pub const SMEP: u64 = 1 << 20;
    /// Supervisor-mode access prevention.
    pub const SMAP: u64 = 1 << 21;
    /// Protection keys for user pages.
    pub const PKE: u64 = 1 << 22;
}

/// IA32_EFER (SDM 2.2.1).
pub mod efer {
    /// SYSCALL enable.
    pub const SCE: u64 = 1 << 0;
    /// Long mode enable.
    pub const LME: u64 = 1 << 8;
    /// Long mode active.
    pub const LMA: u64 = 1 << 10;
    /// Execute-disable enable.
    pub const NXE: u64 = 1 << 11;
    /// AMD: SVM enable.
    pub const SVME: u64 = 1 << 12;
    /// AMD: automatic IBRS enable.
    pub const AIBRSE: u64 = 1 << 21;
}

/// RFLAGS (SDM volume 1, 3.4.3).
pub mod rflags {
    /// Carry.
    pub const CF: u64 = 1 << 0;
    /// Always one.
    pub const FIXED: u64 = 1 << 1;
    /// Parity.
    pub const PF: u64 = 1 << 2;
    /// Auxiliary carry.
    pub const AF: u64 = 1 << 4;
    /// Zero.
    pub const ZF: u64 = 1 << 6;
    /// Sign.
    pub const SF: u64 = 1 << 7;
    /// Trap: single step.
    pub const TF: u64 = 1 << 8;
    /// Interrupt enable.
    pub const IF: u64 = 1 << 9;
    /// Direction.
    pub const DF: u64 = 1 << 10;
    /// Overflow.
    pub const OF: u64 = 1 << 11;
    /// I/O privilege level, two bits.
    pub const IOPL: u64 = 3 << 12;
    /// Nested task.
    pub const NT: u64 = 1 << 14;
    /// Resume: masks instruction breakpoints once.
    pub const RF: u64 = 1 << 16;
    /// Virtual-8086 mode.
    pub const VM: u64 = 1 << 17;
    /// Alignment check, and SMAP override.
    pub const AC: u64 = 1 << 18;
    /// Virtual interrupt flag.
    pub const VIF: u64 = 1 << 19;
    /// Virtual interrupt pending.
    pub const VIP: u64 = 1 << 20;
    /// CPUID available.
    pub const ID: u64 = 1 << 21;
    /// The six arithmetic status flags.
    pub const STATUS: u64 = CF | PF | AF | ZF | SF | OF;
}

/// Debug status register (SDM 17.2.3).
pub mod dr6 {
    /// B0 to B3: the conditions of these breakpoints were met.
    pub const HITS: u64 = 0xf;
    /// Debug register access detected.
    pub const BD: u64 = 1 << 13;
    /// Single step.
    pub const BS: u64 = 1 << 14;
    /// Task switch.
    pub const BT: u64 = 1 << 15;
    /// Bits that can be written, without RTM and bus-lock detection.
    pub const WRITABLE: u64 = HITS | BD | BS | BT;
    /// Bits that read as 1.
    pub const FIXED: u64 = 0xffff_0ff0;
}

/// Debug control register (SDM 17.2.4).
pub mod dr7 {
    /// General detect enable.
    pub const GD: u64 = 1 << 13;
    /// Bits that can be written, without RTM.
    pub const WRITABLE: u64 = 0xffff_23ff;
    /// Bits that read as 1.
    pub const FIXED: u64 = 0x400;
    /// L0 to L3 and G0 to G3: breakpoint `n` is enabled by bits `2 * n` and `2 * n + 1`.
    pub const ENABLED: u64 = 0xff;
    /// L0 to L3 and LE: what a task switch clears.
    pub const LOCAL: u64 = 0x155;
}

/// Exception vectors (SDM 6.15).
pub mod vector {
    /// Divide error.
    pub const DE: u8 = 0;
    /// Debug.
    pub const DB: u8 = 1;
    /// Non-maskable interrupt.
    pub const NMI: u8 = 2;
    /// Breakpoint.
    pub const BP: u8 = 3;
    /// Overflow.
    pub const OF: u8 = 4;
    /// BOUND range exceeded.
    pub const BR: u8 = 5;
    /// Invalid opcode.
    pub const UD: u8 = 6;
    /// Device not available.
    pub const NM: u8 = 7;
    /// Double fault.
    pub const DF: u8 = 8;
    /// Invalid TSS.
    pub const TS: u8 = 10;
    /// Segment not present.
    pub const NP: u8 = 11;
    /// Stack fault.
    pub const SS: u8 = 12;
    /// General protection.
    pub const GP: u8 = 13;
    /// Page fault.
    pub const PF: u8 = 14;
    /// x87 floating-point error.
    pub const MF: u8 = 16;
    /// Alignment check.
    pub const AC: u8 = 17;
    /// Machine check.
    pub const MC: u8 = 18;
    /// SIMD floating-point.
    pub const XM: u8 = 19;
    /// Security (APM 8.2.21).
    pub const SX: u8 = 30;
}

/// Page-fault error code (SDM 4.7).
pub mod pf {
    /// The translation was present.
    pub const P: u32 = 1 << 0;
    /// The access was a write.
    pub const W: u32 = 1 << 1;
    /// The access was made at privilege level 3.
    pub const U: u32 = 1 << 2;
    /// A reserved bit was set.
    pub const RSVD: u32 = 1 << 3;
    /// The access was an instruction fetch.
    pub const I: u32 = 1 << 4;
    /// The page's protection key refused the access.
    pub const PK: u32 = 1 << 5;
}

/// Page-table entry bits common to every level (SDM 4.5).
pub mod pte {
    /// Present.
    pub const P: u64 = 1 << 0;
    /// Writable.
    pub const W: u64 = 1 << 1;
    /// User.
    pub const U: u64 = 1 << 2;
    /// Accessed.
    pub const A: u64 = 1 << 5;
    /// Dirty.
    pub const D: u64 = 1 << 6;
    /// Page size: the entry maps a large page.
    pub const PS: u64 = 1 << 7;
    /// Global.
    pub const G: u64 = 1 << 8;
    /// Lowest of the four bits of the protection key, 62:59, in a leaf of 4-level paging.
    pub const KEY_SHIFT: u32 = 59;
    /// Execute disable.
    pub const NX: u64 = 1 << 63;
    /// Bits 51:12, the physical address of a 4-KiB page or table.
    pub const ADDR: u64 = 0x000f_ffff_ffff_f000;
}

/// Bytes in a page.
pub const PAGE_SIZE: u64 = 4096;
