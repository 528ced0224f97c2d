//! The synthetic interrupt controller and the synthetic timers (TLFS 11 and 12).

/// SCONTROL bit 0: messages and event flags may come to this processor.
pub const SCONTROL_ENABLE: u64 = 1 << 0;
/// What SVERSION reads as.
pub const VERSION: u64 = 1;

/// Synthetic interrupt sources of a virtual processor.
pub const SINTS: usize = 16;
/// SINTx bits 7:0: the vector.
pub const SINT_VECTOR: u64 = 0xff;
/// SINTx bit 16: no interrupt comes from it. Alone, the value after reset.
pub const SINT_MASKED: u64 = 1 << 16;
/// SINTx bit 17: its interrupt is ended when it is delivered.
pub const SINT_AUTO_EOI: u64 = 1 << 17;
/// SINTx bit 18: not masked, but the guest looks by itself.
pub const SINT_POLLING: u64 = 1 << 18;
/// The lowest vector that a source may have.
pub const FIRST_VECTOR: u64 = 16;

/// Bytes that each source has in the message page, and in the event flags page.
pub const SLOT_BYTES: u64 = 256;
/// Offsets within a message slot (HV_MESSAGE).
pub mod message {
    /// Type, 4 bytes; 0 says that the slot is empty.
    pub const TYPE: u64 = 0;
    /// Payload size, flags and two reserved bytes, as one word.
    pub const SIZE_AND_FLAGS: u64 = 4;
    /// Who sent it, 8 bytes.
    pub const SENDER: u64 = 8;
    /// The payload.
    pub const PAYLOAD: u64 = 16;
    /// Most bytes of payload.
    pub const PAYLOAD_MAX: usize = 240;
    /// In [`SIZE_AND_FLAGS`]: more messages wait (HV_MESSAGE_FLAGS.MessagePending).
    pub const PENDING: u32 = 1 << 8;
    /// HvMessageTypeNone.
    pub const NONE: u32 = 0;
    /// HvMessageTimerExpired.
    pub const TIMER_EXPIRED: u32 = 0x8000_0010;
    /// Set in the types that only the hypervisor may send.
    pub const HYPERVISOR: u32 = 1 << 31;
}
/// Event flags of a source.
pub const EVENT_FLAGS: u32 = 2048;
/// Message buffers of a port (TLFS 11.4.1).
pub const PORT_BUFFERS: usize = 16;

/// Synthetic timers of a virtual processor.
pub const STIMERS: usize = 4;
/// STIMERx_CONFIG (HV_STIMER_CONFIG).
pub mod stimer {
    /// Bit 0: it runs.
    pub const ENABLE: u64 = 1 << 0;
    /// Bit 1: the count is a period, else the time of the expiry.
    pub const PERIODIC: u64 = 1 << 1;
    /// Bit 2: expiries that were missed are not made up for.
    pub const LAZY: u64 = 1 << 2;
    /// Bit 3: a write of the count enables.
    pub const AUTO_ENABLE: u64 = 1 << 3;
    /// Lowest bit of the vector in direct mode, bits 11:4.
    pub const VECTOR_SHIFT: u32 = 4;
    /// Bits 11:4.
    pub const VECTOR: u64 = 0xff << VECTOR_SHIFT;
    /// Bit 12: an interrupt of the local APIC instead of a message.
    pub const DIRECT: u64 = 1 << 12;
    /// Lowest bit of the source, bits 19:16.
    pub const SINT_SHIFT: u32 = 16;
    /// Bits 19:16.
    pub const SINT: u64 = 0xf << SINT_SHIFT;
}
