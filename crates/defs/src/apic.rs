//! Local APIC registers (SDM volume 3, chapter 11; xAPIC offsets in the 4-KiB page).

/// Local APIC ID.
pub const ID: u16 = 0x20;
/// Version and number of LVT entries.
pub const VERSION: u16 = 0x30;
/// Task priority.
pub const TPR: u16 = 0x80;
/// Arbitration priority.
pub const APR: u16 = 0x90;
/// Processor priority.
pub const PPR: u16 = 0xa0;
/// End of interrupt.
pub const EOI: u16 = 0xb0;
/// Logical destination.
pub const LDR: u16 = 0xd0;
/// Destination format.
pub const DFR: u16 = 0xe0;
/// Spurious-interrupt vector and software enable.
pub const SVR: u16 = 0xf0;
/// In-service, the first of eight.
pub const ISR: u16 = 0x100;
/// Trigger mode, the first of eight.
pub const TMR: u16 = 0x180;
/// Interrupt request, the first of eight.
pub const IRR: u16 = 0x200;
/// Error status.
pub const ESR: u16 = 0x280;
/// Interrupt command, low half.
pub const ICR: u16 = 0x300;
/// Interrupt command, high half: the destination.
pub const ICR_HIGH: u16 = 0x310;
/// LVT timer.
pub const LVT_TIMER: u16 = 0x320;
/// LVT thermal sensor.
pub const LVT_THERMAL: u16 = 0x330;
/// LVT performance counters.
pub const LVT_PERF: u16 = 0x340;
/// LVT LINT0.
pub const LVT_LINT0: u16 = 0x350;
/// LVT LINT1.
pub const LVT_LINT1: u16 = 0x360;
/// LVT error.
pub const LVT_ERROR: u16 = 0x370;
/// Timer initial count.
pub const TIMER_INITIAL: u16 = 0x380;
/// Timer current count.
pub const TIMER_CURRENT: u16 = 0x390;
/// Timer divide configuration.
pub const TIMER_DIVIDE: u16 = 0x3e0;
/// Self IPI (x2APIC only).
pub const SELF_IPI: u16 = 0x3f0;

/// Physical address of the registers after reset.
pub const DEFAULT_BASE: u64 = 0xfee0_0000;

/// IA32_APIC_BASE.
pub mod base {
    /// The bootstrap processor.
    pub const BSP: u64 = 1 << 8;
    /// x2APIC mode.
    pub const EXTD: u64 = 1 << 10;
    /// Global enable.
    pub const EN: u64 = 1 << 11;
}

/// Local vector table and interrupt command bits.
pub mod lvt {
    /// Vector.
    pub const VECTOR: u32 = 0xff;
    /// Delivery mode, 3 bits.
    pub const MODE: u32 = 7 << 8;
    /// Delivery status, read only.
    pub const STATUS: u32 = 1 << 12;
    /// Pin polarity: active low.
    pub const ACTIVE_LOW: u32 = 1 << 13;
    /// Remote IRR, read only.
    pub const REMOTE_IRR: u32 = 1 << 14;
    /// Level triggered.
    pub const LEVEL: u32 = 1 << 15;
    /// Masked.
    pub const MASKED: u32 = 1 << 16;
    /// Timer mode: periodic.
    pub const PERIODIC: u32 = 1 << 17;
    /// Timer mode: TSC deadline.
    pub const TSC_DEADLINE: u32 = 1 << 18;
}

/// Interrupt command register, low half, beyond what it shares with the LVT.
pub mod icr {
    /// Destination mode: logical.
    pub const LOGICAL: u32 = 1 << 11;
    /// Level: assert.
    pub const ASSERT: u32 = 1 << 14;
    /// Destination shorthand, 2 bits.
    pub const SHORTHAND: u32 = 3 << 18;
    /// Shorthand: no shorthand.
    pub const NONE: u32 = 0 << 18;
    /// Shorthand: self.
    pub const SELF: u32 = 1 << 18;
    /// Shorthand: all including self.
    pub const ALL: u32 = 2 << 18;
    /// Shorthand: all excluding self.
    pub const OTHERS: u32 = 3 << 18;
}

/// Spurious-interrupt vector register.
pub mod svr {
    /// APIC software enable.
    pub const ENABLE: u32 = 1 << 8;
    /// Focus processor checking off.
    pub const FOCUS: u32 = 1 << 9;
}

/// Error status register.
pub mod esr {
    /// Send illegal vector.
    pub const SEND_ILLEGAL_VECTOR: u32 = 1 << 5;
    /// Received illegal vector.
    pub const RECEIVED_ILLEGAL_VECTOR: u32 = 1 << 6;
    /// Illegal register address.
    pub const ILLEGAL_REGISTER: u32 = 1 << 7;
}

/// Version register value: version 0x14, six LVT entries, no EOI-broadcast suppression.
pub const VERSION_VALUE: u32 = 0x0005_0014;
