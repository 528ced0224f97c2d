//! Intercepts: which bit of the VMCB's vectors makes what leave the guest (APM volume 2, appendix B).

/// A bit of one of the words of intercepts, by the word's offset into the VMCB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intercept {
    /// Bytes from the start of the VMCB.
    pub word: usize,
    /// The bit in 32 bits there.
    pub bit: u32,
}

/// Reads of CR0 to CR15 in bits 15:0, writes in bits 31:16.
pub const CONTROL_REGISTERS: usize = 0x000;
/// Reads of DR0 to DR15 in bits 15:0, writes in bits 31:16.
pub const DEBUG_REGISTERS: usize = 0x004;
/// Exceptions by their vectors.
pub const EXCEPTIONS: usize = 0x008;
/// What is intercepted beside those.
const THIRD: usize = 0x00c;
const FOURTH: usize = 0x010;
const FIFTH: usize = 0x014;

macro_rules! intercepts {
    ($($word:ident $bit:literal $name:ident;)*) => {
        impl Intercept {
            $(#[allow(missing_docs, reason = "the manual's name")]
            pub const $name: Intercept = Intercept { word: $word, bit: $bit };)*
        }
    };
}

intercepts! {
    THIRD 0 INTR;
    THIRD 1 NMI;
    THIRD 3 INIT;
    THIRD 4 VINTR;
    THIRD 5 CR0_SELECTIVE;
    THIRD 6 READ_IDTR;
    THIRD 7 READ_GDTR;
    THIRD 8 READ_LDTR;
    THIRD 9 READ_TR;
    THIRD 10 WRITE_IDTR;
    THIRD 11 WRITE_GDTR;
    THIRD 12 WRITE_LDTR;
    THIRD 13 WRITE_TR;
    THIRD 14 RDTSC;
    THIRD 15 RDPMC;
    THIRD 16 PUSHF;
    THIRD 17 POPF;
    THIRD 18 CPUID;
    THIRD 19 RSM;
    THIRD 20 IRET;
    THIRD 21 INT_N;
    THIRD 22 INVD;
    THIRD 23 PAUSE;
    THIRD 24 HLT;
    THIRD 25 INVLPG;
    THIRD 26 INVLPGA;
    THIRD 27 IO;
    THIRD 28 MSR;
    THIRD 29 TASK_SWITCH;
    THIRD 31 SHUTDOWN;
    FOURTH 0 VMRUN;
    FOURTH 1 VMMCALL;
    FOURTH 2 VMLOAD;
    FOURTH 3 VMSAVE;
    FOURTH 4 STGI;
    FOURTH 5 CLGI;
    FOURTH 6 SKINIT;
    FOURTH 7 RDTSCP;
    FOURTH 8 ICEBP;
    FOURTH 9 WBINVD;
    FOURTH 10 MONITOR;
    FOURTH 11 MWAIT;
    FOURTH 12 MWAIT_ARMED;
    FOURTH 13 XSETBV;
    FIFTH 2 INVPCID;
}

/// Bit and byte of an MSR in the permission map, of its read; that of its write is the next one. Nothing for those that the map
/// does not have, which always leave the guest (APM 15.11).
pub const fn msr_bit(number: u32) -> Option<(u64, u32)> {
    let vector = match number {
        0..=0x1fff => 0,
        0xc000_0000..=0xc000_1fff => 0x800,
        0xc001_0000..=0xc001_1fff => 0x1000,
        _ => return None,
    };
    let bit = (number & 0x1fff) * 2;
    Some((vector + (bit / 8) as u64, bit % 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn msrs_are_where_the_manual_has_them() {
        assert_eq!(msr_bit(0x10), Some((4, 0)));
        assert_eq!(msr_bit(0xc000_0080), Some((0x820, 0)));
        assert_eq!(msr_bit(0xc000_0083), Some((0x820, 6)));
        assert_eq!(msr_bit(0xc001_1fff), Some((0x17ff, 6)));
        assert_eq!((msr_bit(0x2000), msr_bit(0x4000_0000)), (None, None));
    }
}
