//! The feature bits that a processor model may offer.

/// A register of a CPUID answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is its register's name")]
pub enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

macro_rules! features {
    ($($ident:ident $name:literal $leaf:literal $subleaf:literal $register:ident $bit:literal;)*) => {
        /// A feature that one CPUID bit announces.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is its feature's name")]
        pub enum Feature { $($ident,)* }

        impl Feature {
            /// Every known feature, by leaf.
            pub const ALL: &'static [Feature] = &[$(Feature::$ident,)*];

            /// The name in QEMU's spelling.
            pub const fn name(self) -> &'static str {
                match self { $(Feature::$ident => $name,)* }
            }

            /// Leaf, subleaf, register and bit.
            pub const fn place(self) -> (u32, u32, Register, u8) {
                match self { $(Feature::$ident => ($leaf, $subleaf, Register::$register, $bit),)* }
            }
        }
    };
}

features! {
    Sse3 "sse3" 1 0 Ecx 0;
    Pclmulqdq "pclmulqdq" 1 0 Ecx 1;
    Monitor "monitor" 1 0 Ecx 3;
    Ssse3 "ssse3" 1 0 Ecx 9;
    Fma "fma" 1 0 Ecx 12;
    Cx16 "cx16" 1 0 Ecx 13;
    Pcid "pcid" 1 0 Ecx 17;
    Sse4_1 "sse4.1" 1 0 Ecx 19;
    Sse4_2 "sse4.2" 1 0 Ecx 20;
    X2apic "x2apic" 1 0 Ecx 21;
    Movbe "movbe" 1 0 Ecx 22;
    Popcnt "popcnt" 1 0 Ecx 23;
    TscDeadline "tsc-deadline" 1 0 Ecx 24;
    Aes "aes" 1 0 Ecx 25;
    Xsave "xsave" 1 0 Ecx 26;
    Avx "avx" 1 0 Ecx 28;
    F16c "f16c" 1 0 Ecx 29;
    Rdrand "rdrand" 1 0 Ecx 30;
    Hypervisor "hypervisor" 1 0 Ecx 31;
    Fpu "fpu" 1 0 Edx 0;
    Vme "vme" 1 0 Edx 1;
    De "de" 1 0 Edx 2;
    Pse "pse" 1 0 Edx 3;
    Tsc "tsc" 1 0 Edx 4;
    Msr "msr" 1 0 Edx 5;
    Pae "pae" 1 0 Edx 6;
    Mce "mce" 1 0 Edx 7;
    Cx8 "cx8" 1 0 Edx 8;
    Apic "apic" 1 0 Edx 9;
    Sep "sep" 1 0 Edx 11;
    Mtrr "mtrr" 1 0 Edx 12;
    Pge "pge" 1 0 Edx 13;
    Mca "mca" 1 0 Edx 14;
    Cmov "cmov" 1 0 Edx 15;
    Pat "pat" 1 0 Edx 16;
    Pse36 "pse36" 1 0 Edx 17;
    Clflush "clflush" 1 0 Edx 19;
    Mmx "mmx" 1 0 Edx 23;
    Fxsr "fxsr" 1 0 Edx 24;
    Sse "sse" 1 0 Edx 25;
    Sse2 "sse2" 1 0 Edx 26;
    Ss "ss" 1 0 Edx 27;
    Arat "arat" 6 0 Eax 2;
    Fsgsbase "fsgsbase" 7 0 Ebx 0;
    TscAdjust "tsc_adjust" 7 0 Ebx 1;
    Bmi1 "bmi1" 7 0 Ebx 3;
    Avx2 "avx2" 7 0 Ebx 5;
    Smep "smep" 7 0 Ebx 7;
    Bmi2 "bmi2" 7 0 Ebx 8;
    Erms "erms" 7 0 Ebx 9;
    Invpcid "invpcid" 7 0 Ebx 10;
    Rdseed "rdseed" 7 0 Ebx 18;
    Adx "adx" 7 0 Ebx 19;
    Smap "smap" 7 0 Ebx 20;
    Clflushopt "clflushopt" 7 0 Ebx 23;
    Clwb "clwb" 7 0 Ebx 24;
    ShaNi "sha-ni" 7 0 Ebx 29;
    Prefetchwt1 "prefetchwt1" 7 0 Ecx 0;
    Umip "umip" 7 0 Ecx 2;
    Pku "pku" 7 0 Ecx 3;
    Gfni "gfni" 7 0 Ecx 8;
    La57 "la57" 7 0 Ecx 16;
    Rdpid "rdpid" 7 0 Ecx 22;
    Cldemote "cldemote" 7 0 Ecx 25;
    Movdiri "movdiri" 7 0 Ecx 27;
    Movdir64b "movdir64b" 7 0 Ecx 28;
    Fsrm "fsrm" 7 0 Edx 4;
    MdClear "md-clear" 7 0 Edx 10;
    Serialize "serialize" 7 0 Edx 14;
    SpecCtrl "spec-ctrl" 7 0 Edx 26;
    Stibp "stibp" 7 0 Edx 27;
    ArchCapabilities "arch-capabilities" 7 0 Edx 29;
    Ssbd "ssbd" 7 0 Edx 31;
    Xsaveopt "xsaveopt" 0xd 1 Eax 0;
    Xsavec "xsavec" 0xd 1 Eax 1;
    Xgetbv1 "xgetbv1" 0xd 1 Eax 2;
    Xsaves "xsaves" 0xd 1 Eax 3;
    LahfLm "lahf-lm" 0x80000001 0 Ecx 0;
    Abm "abm" 0x80000001 0 Ecx 5;
    Sse4a "sse4a" 0x80000001 0 Ecx 6;
    Prefetchw "3dnowprefetch" 0x80000001 0 Ecx 8;
    Syscall "syscall" 0x80000001 0 Edx 11;
    Nx "nx" 0x80000001 0 Edx 20;
    Pdpe1gb "pdpe1gb" 0x80000001 0 Edx 26;
    Rdtscp "rdtscp" 0x80000001 0 Edx 27;
    Lm "lm" 0x80000001 0 Edx 29;
    Invtsc "invtsc" 0x80000007 0 Edx 8;
    Wbnoinvd "wbnoinvd" 0x80000008 0 Ebx 9;
}

/// What the machine offers whatever the engine: the local APIC, machine check, memory types,
/// time and the speculation controls, all kept outside the engine.
pub const PLATFORM_FEATURES: &[Feature] = &[
    Feature::Apic,
    Feature::X2apic,
    Feature::TscDeadline,
    Feature::TscAdjust,
    Feature::Mtrr,
    Feature::Mce,
    Feature::Mca,
    Feature::Pat,
    Feature::Arat,
    Feature::Invtsc,
    Feature::Hypervisor,
    Feature::ArchCapabilities,
    Feature::SpecCtrl,
    Feature::Stibp,
    Feature::Ssbd,
];

impl Feature {
    /// The feature called `name`, in QEMU's or Linux's spelling: `-`, `_` and `.` are alike.
    pub fn by_name(name: &str) -> Option<Self> {
        let plain = |text: &str| text.to_ascii_lowercase().replace(['_', '.'], "-");
        let wanted = match plain(name).as_str() {
            "pni" => "sse3".into(),
            "lzcnt" => "abm".into(),
            "cmpxchg16b" => "cx16".into(),
            "prefetchw" => "3dnowprefetch".into(),
            "tsc-deadline-timer" => "tsc-deadline".into(),
            "clfsh" => "clflush".into(),
            other => other.to_owned(),
        };
        Self::ALL.iter().copied().find(|feature| plain(feature.name()) == wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_features_share_a_bit_and_names_find_themselves() {
        for (index, feature) in Feature::ALL.iter().enumerate() {
            assert_eq!(Feature::by_name(feature.name()), Some(*feature));
            let (leaf, subleaf, register, bit) = feature.place();
            assert!(bit < 32);
            let same = |other: &&Feature| other.place() == (leaf, subleaf, register, bit);
            assert_eq!(Feature::ALL[index + 1..].iter().find(same), None);
        }
        assert_eq!(Feature::by_name("SSE4_1"), Some(Feature::Sse4_1));
        assert_eq!(Feature::by_name("lahf_lm"), Some(Feature::LahfLm));
        assert_eq!(Feature::by_name("sse5"), None);
    }
}
