//! Bits and layouts of the x87 FPU and of SSE (SDM volume 1, chapters 8, 10 and 11).

/// SSE control and status (SDM volume 1, 10.2.3).
pub mod mxcsr {
    /// The six exception flags, IE to PE, in bits 5:0.
    pub const FLAGS: u32 = 0x3f;
    /// The flags of exceptions that are detected before an operation: IE, DE, ZE.
    pub const PRE_COMPUTATION: u32 = 0x07;
    /// Overflow flag.
    pub const OE: u32 = 1 << 3;
    /// Underflow flag.
    pub const UE: u32 = 1 << 4;
    /// Precision flag.
    pub const PE: u32 = 1 << 5;
    /// Denormals are zeros.
    pub const DAZ: u32 = 1 << 6;
    /// The six exception masks, bits 12:7.
    pub const MASKS: u32 = 0x1f80;
    /// Places from an exception's flag to its mask.
    pub const MASK_SHIFT: u32 = 7;
    /// Underflow mask.
    pub const UM: u32 = 1 << 11;
    /// Flush to zero.
    pub const FTZ: u32 = 1 << 15;
    /// Value after reset: all masked, round to nearest.
    pub const RESET: u32 = 0x1f80;
    /// The bits that exist; a 1 elsewhere is #GP(0). FXSAVE stores it as MXCSR_MASK.
    pub const MASK: u32 = 0xffff;
}

/// x87 control word (SDM volume 1, 8.1.5).
pub mod fcw {
    /// The six exception masks.
    pub const MASKS: u16 = 0x3f;
    /// The bits that can be written: masks, PC, RC and the historical infinity control.
    pub const WRITABLE: u16 = 0x1f3f;
    /// Bit 6, which reads as one.
    pub const FIXED: u16 = 0x40;
    /// Value after FNINIT.
    pub const INIT: u16 = 0x37f;
}

/// x87 status word (SDM volume 1, 8.1.3).
pub mod fsw {
    /// The six exception flags.
    pub const FLAGS: u16 = 0x3f;
    /// Invalid operation.
    pub const IE: u16 = 1 << 0;
    /// Precision.
    pub const PE: u16 = 1 << 5;
    /// Stack fault.
    pub const SF: u16 = 1 << 6;
    /// Error summary: an unmasked exception is pending.
    pub const ES: u16 = 1 << 7;
    /// Condition code 1.
    pub const C1: u16 = 1 << 9;
    /// Busy; follows [`ES`].
    pub const B: u16 = 1 << 15;
    /// Lowest bit of TOP, three bits.
    pub const TOP_SHIFT: u32 = 11;
    /// TOP.
    pub const TOP: u16 = 7 << TOP_SHIFT;
}

/// Offsets in the 512 bytes of FXSAVE (SDM volume 1, table 10-2), which are also the legacy
/// region of XSAVE.
pub mod fxsave {
    #![allow(missing_docs, reason = "each constant is its field's name")]
    pub const FCW: usize = 0;
    pub const FSW: usize = 2;
    pub const FTW: usize = 4;
    pub const FOP: usize = 6;
    pub const FIP: usize = 8;
    pub const FDP: usize = 16;
    pub const MXCSR: usize = 24;
    pub const MXCSR_MASK: usize = 28;
    pub const ST0: usize = 32;
    pub const XMM0: usize = 160;
    /// Bytes of the area.
    pub const SIZE: usize = 512;
    /// The bytes that FXSAVE writes; the rest is left to software.
    pub const WRITTEN: usize = 416;
}

const _: () = assert!(fxsave::ST0 + 8 * 16 == fxsave::XMM0 && fxsave::XMM0 + 16 * 16 == fxsave::WRITTEN);

/// The area of the XSAVE family, and what it holds (SDM volume 1, 13.4 and 13.5).
pub mod xsave {
    /// The header: XSTATE_BV, XCOMP_BV and zeroes.
    pub const HEADER: usize = 512;
    /// Which components the area holds.
    pub const XSTATE_BV: usize = HEADER;
    /// Which components have a place in the compacted format.
    pub const XCOMP_BV: usize = HEADER + 8;
    /// Bytes of the header.
    pub const HEADER_SIZE: usize = 64;
    /// First byte of the components that are not in the legacy region.
    pub const EXTENDED: usize = HEADER + HEADER_SIZE;
    /// In XCOMP_BV: the compacted format.
    pub const COMPACTED: u64 = 1 << 63;

    /// x87 state, in bits of XCR0 and of the fields.
    pub const X87: u64 = 1 << 0;
    /// XMM registers and MXCSR.
    pub const SSE: u64 = 1 << 1;
    /// Upper halves of the YMM registers.
    pub const AVX: u64 = 1 << 2;
    /// PKRU.
    pub const PKRU: u64 = 1 << 9;

    /// A component of the extended region.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Component {
        /// Its bit in XCR0.
        pub bit: u64,
        /// Bytes.
        pub size: usize,
        /// Where it stands in the standard format.
        pub offset: usize,
        /// Whether the compacted format aligns it to 64 bytes.
        pub aligned: bool,
    }

    /// The components of the extended region, by bit. The offsets are those of Intel's processors.
    pub const COMPONENTS: &[Component] = &[
        Component { bit: AVX, size: 256, offset: EXTENDED, aligned: false },
        Component { bit: PKRU, size: 8, offset: 2688, aligned: false },
    ];
    /// Bytes of the standard format with every component.
    pub const SIZE: usize = 2696;
}
