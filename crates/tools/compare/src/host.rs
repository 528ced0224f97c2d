//! What kind of processor this is, and what its kernel makes of it.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::fmt;
use std::sync::OnceLock;

use iced_x86::{CpuidFeature, DecoderOptions};
use satori_cpuid::Vendor;
use satori_defs::cpuid;

/// Linux's AT_HWCAP2: programs may use RDFSBASE and its like (`arch/x86/include/uapi/asm/hwcap2.h`).
const HWCAP2_FSGSBASE: u64 = 1 << 1;

/// The processor that cases are executed on.
#[derive(Debug)]
pub struct Host {
    /// Whose processor this is; the guest is offered one of the same vendor.
    pub vendor: Vendor,
    name: String,
    /// Family, model and stepping as CPUID has them, with what extends them.
    signature: (u32, u32, u32),
    microcode: String,
    /// RDFSBASE and its like, which Linux permits since 5.9.
    pub fsgsbase: bool,
    /// Linear addresses have 57 bits.
    pub la57: bool,
    /// A locked access across cache lines may be an exception.
    pub split_locks: bool,
    /// Events are delivered by FRED, in whose way INT n is another event.
    pub fred: bool,
    clwb: bool,
    clflushopt: bool,
    invpcid: bool,
    smap: bool,
}

/// This one.
pub fn get() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| Host::look(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default()))
}

/// Whose processor this is.
pub fn vendor() -> Vendor {
    get().vendor
}

/// How the decoder reads this processor's instructions.
pub fn decoder_options() -> u32 {
    if vendor() == Vendor::Amd { DecoderOptions::AMD } else { DecoderOptions::NONE }
}

/// The value of a line of /proc/cpuinfo.
fn line<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) =
        cpuinfo.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name)?;
    Some(value.trim())
}

impl Host {
    fn look(cpuinfo: &str) -> Self {
        let leaf = __cpuid(cpuid::VENDOR);
        let mut string = [0; 12];
        for (chunk, word) in string.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        let extended = if leaf.eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let has = |bit: u32| extended >> bit & 1 != 0;
        // What the kernel has switched on is told there, and nowhere else.
        let flags = line(cpuinfo, "flags").unwrap_or("");
        let flag = |name: &str| flags.split_whitespace().any(|flag| flag == name);
        // SAFETY: reads the process's auxiliary vector.
        let hwcap2 = unsafe { libc::getauxval(libc::AT_HWCAP2) };
        Host {
            vendor: Vendor::of(&string),
            name: String::from_utf8_lossy(&string).into_owned(),
            signature: signature(__cpuid(1).eax),
            microcode: line(cpuinfo, "microcode").unwrap_or("unknown").to_owned(),
            fsgsbase: hwcap2 & HWCAP2_FSGSBASE != 0,
            la57: flag("la57"),
            split_locks: flag("split_lock_detect") || flag("bus_lock_detect"),
            fred: flag("fred"),
            clwb: has(24),
            clflushopt: has(23),
            invpcid: has(10),
            smap: has(20),
        }
    }

    /// Whether programs can use what needs `feature`; nothing if that is no question here.
    pub fn has(&self, feature: CpuidFeature) -> Option<bool> {
        use CpuidFeature::*;
        Some(match feature {
            SSE3 => is_x86_feature_detected!("sse3"),
            SSSE3 => is_x86_feature_detected!("ssse3"),
            SSE4_1 => is_x86_feature_detected!("sse4.1"),
            SSE4_2 => is_x86_feature_detected!("sse4.2"),
            POPCNT => is_x86_feature_detected!("popcnt"),
            LZCNT => is_x86_feature_detected!("lzcnt"),
            BMI1 => is_x86_feature_detected!("bmi1"),
            BMI2 => is_x86_feature_detected!("bmi2"),
            ADX => is_x86_feature_detected!("adx"),
            MOVBE => is_x86_feature_detected!("movbe"),
            AES => is_x86_feature_detected!("aes"),
            PCLMULQDQ => is_x86_feature_detected!("pclmulqdq"),
            SHA => is_x86_feature_detected!("sha"),
            AVX => is_x86_feature_detected!("avx"),
            AVX2 => is_x86_feature_detected!("avx2"),
            FMA => is_x86_feature_detected!("fma"),
            F16C => is_x86_feature_detected!("f16c"),
            VAES => is_x86_feature_detected!("vaes"),
            VPCLMULQDQ => is_x86_feature_detected!("vpclmulqdq"),
            CMPXCHG16B => is_x86_feature_detected!("cmpxchg16b"),
            FXSR => is_x86_feature_detected!("fxsr"),
            FSGSBASE => self.fsgsbase,
            CLWB => self.clwb,
            CLFLUSHOPT => self.clflushopt,
            INVPCID => self.invpcid,
            SMAP => self.smap,
            _ => return None,
        })
    }

    /// What cannot be compared on this processor, as its kernel or it itself is otherwise; empty if nothing.
    pub fn limits(&self) -> Vec<&'static str> {
        [
            (self.la57, "linear addresses of 57 bits: accesses that 48 bits do not hold are left out"),
            (self.split_locks, "split locks are trapped: locked accesses across cache lines are left out"),
            (self.fred, "FRED delivers events: INT n is left out"),
            (!self.fsgsbase, "the kernel does not let programs use FSGSBASE"),
            (!is_x86_feature_detected!("avx"), "no AVX: YMM registers are left out"),
        ]
        .into_iter()
        .filter_map(|(so, what)| so.then_some(what))
        .collect()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (family, model, stepping) = self.signature;
        write!(
            f,
            "{} family {family} model {model} stepping {stepping} microcode {}",
            self.name, self.microcode
        )
    }
}

/// Family, model and stepping of leaf 1's EAX (SDM volume 2, CPUID; APM volume 3, E.3.2).
fn signature(eax: u32) -> (u32, u32, u32) {
    let (family, model, stepping) = (eax >> 8 & 15, eax >> 4 & 15, eax & 15);
    let extended = if matches!(family, 6 | 15) { eax >> 16 & 15 } else { 0 };
    let family = if family == 15 { family + (eax >> 20 & 255) } else { family };
    (family, extended << 4 | model, stepping)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_vendors_lists() {
        assert_eq!(signature(0x00a0_0f11), (25, 1, 1), "Zen 3");
        assert_eq!(signature(0x00a1_0f11), (25, 17, 1), "Zen 4");
        assert_eq!(signature(0x0005_0657), (6, 0x55, 7), "Cascade Lake");
        assert_eq!(signature(0x0000_0f29), (15, 2, 9), "NetBurst");
    }

    #[test]
    fn what_the_kernel_switched_on_is_read_from_its_flags() {
        let limited = Host::look("microcode\t: 0x2b\nflags\t\t: fpu la57 split_lock_detect fred\n");
        assert!(limited.la57 && limited.split_locks && limited.fred);
        assert!(limited.limits().len() >= 3);
        assert!(limited.to_string().ends_with("microcode 0x2b"));
        let plain = Host::look("flags : fpu la57x\n");
        assert!(!plain.la57 && !plain.split_locks && !plain.fred);
    }
}
