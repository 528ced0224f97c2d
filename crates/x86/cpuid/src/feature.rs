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
    Dtes64 "dtes64" 1 0 Ecx 2;
    Monitor "monitor" 1 0 Ecx 3;
    DsCpl "ds-cpl" 1 0 Ecx 4;
    Vmx "vmx" 1 0 Ecx 5;
    Smx "smx" 1 0 Ecx 6;
    Est "est" 1 0 Ecx 7;
    Tm2 "tm2" 1 0 Ecx 8;
    Ssse3 "ssse3" 1 0 Ecx 9;
    Fma "fma" 1 0 Ecx 12;
    Cx16 "cx16" 1 0 Ecx 13;
    Xtpr "xtpr" 1 0 Ecx 14;
    Pdcm "pdcm" 1 0 Ecx 15;
    Pcid "pcid" 1 0 Ecx 17;
    Dca "dca" 1 0 Ecx 18;
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
    Ds "ds" 1 0 Edx 21;
    Acpi "acpi" 1 0 Edx 22;
    Mmx "mmx" 1 0 Edx 23;
    Fxsr "fxsr" 1 0 Edx 24;
    Sse "sse" 1 0 Edx 25;
    Sse2 "sse2" 1 0 Edx 26;
    Ss "ss" 1 0 Edx 27;
    Tm "tm" 1 0 Edx 29;
    Pbe "pbe" 1 0 Edx 31;
    Arat "arat" 6 0 Eax 2;
    Fsgsbase "fsgsbase" 7 0 Ebx 0;
    TscAdjust "tsc_adjust" 7 0 Ebx 1;
    Sgx "sgx" 7 0 Ebx 2;
    Bmi1 "bmi1" 7 0 Ebx 3;
    Hle "hle" 7 0 Ebx 4;
    Avx2 "avx2" 7 0 Ebx 5;
    Smep "smep" 7 0 Ebx 7;
    Bmi2 "bmi2" 7 0 Ebx 8;
    Erms "erms" 7 0 Ebx 9;
    Invpcid "invpcid" 7 0 Ebx 10;
    Rtm "rtm" 7 0 Ebx 11;
    Mpx "mpx" 7 0 Ebx 14;
    Avx512f "avx512f" 7 0 Ebx 16;
    Avx512dq "avx512dq" 7 0 Ebx 17;
    Rdseed "rdseed" 7 0 Ebx 18;
    Adx "adx" 7 0 Ebx 19;
    Smap "smap" 7 0 Ebx 20;
    Avx512ifma "avx512ifma" 7 0 Ebx 21;
    Clflushopt "clflushopt" 7 0 Ebx 23;
    Clwb "clwb" 7 0 Ebx 24;
    IntelPt "intel-pt" 7 0 Ebx 25;
    Avx512cd "avx512cd" 7 0 Ebx 28;
    ShaNi "sha-ni" 7 0 Ebx 29;
    Avx512bw "avx512bw" 7 0 Ebx 30;
    Avx512vl "avx512vl" 7 0 Ebx 31;
    Prefetchwt1 "prefetchwt1" 7 0 Ecx 0;
    Avx512vbmi "avx512vbmi" 7 0 Ecx 1;
    Umip "umip" 7 0 Ecx 2;
    Pku "pku" 7 0 Ecx 3;
    Waitpkg "waitpkg" 7 0 Ecx 5;
    Avx512vbmi2 "avx512vbmi2" 7 0 Ecx 6;
    Shstk "shstk" 7 0 Ecx 7;
    Gfni "gfni" 7 0 Ecx 8;
    Vaes "vaes" 7 0 Ecx 9;
    Vpclmulqdq "vpclmulqdq" 7 0 Ecx 10;
    Avx512vnni "avx512vnni" 7 0 Ecx 11;
    Avx512bitalg "avx512bitalg" 7 0 Ecx 12;
    Avx512Vpopcntdq "avx512-vpopcntdq" 7 0 Ecx 14;
    La57 "la57" 7 0 Ecx 16;
    Rdpid "rdpid" 7 0 Ecx 22;
    BusLockDetect "bus-lock-detect" 7 0 Ecx 24;
    Cldemote "cldemote" 7 0 Ecx 25;
    Movdiri "movdiri" 7 0 Ecx 27;
    Movdir64b "movdir64b" 7 0 Ecx 28;
    Pks "pks" 7 0 Ecx 31;
    Fsrm "fsrm" 7 0 Edx 4;
    MdClear "md-clear" 7 0 Edx 10;
    Serialize "serialize" 7 0 Edx 14;
    ArchLbr "arch-lbr" 7 0 Edx 19;
    Ibt "ibt" 7 0 Edx 20;
    AmxTile "amx-tile" 7 0 Edx 24;
    SpecCtrl "spec-ctrl" 7 0 Edx 26;
    Stibp "stibp" 7 0 Edx 27;
    FlushL1d "flush-l1d" 7 0 Edx 28;
    ArchCapabilities "arch-capabilities" 7 0 Edx 29;
    Ssbd "ssbd" 7 0 Edx 31;
    AvxVnni "avx-vnni" 7 1 Eax 4;
    Fzrm "fzrm" 7 1 Eax 10;
    Fsrs "fsrs" 7 1 Eax 11;
    Fsrc "fsrc" 7 1 Eax 12;
    Xsaveopt "xsaveopt" 0xd 1 Eax 0;
    Xsavec "xsavec" 0xd 1 Eax 1;
    Xgetbv1 "xgetbv1" 0xd 1 Eax 2;
    Xsaves "xsaves" 0xd 1 Eax 3;
    LahfLm "lahf-lm" 0x80000001 0 Ecx 0;
    Svm "svm" 0x80000001 0 Ecx 2;
    Cr8Legacy "cr8legacy" 0x80000001 0 Ecx 4;
    Abm "abm" 0x80000001 0 Ecx 5;
    Sse4a "sse4a" 0x80000001 0 Ecx 6;
    Misalignsse "misalignsse" 0x80000001 0 Ecx 7;
    Prefetchw "3dnowprefetch" 0x80000001 0 Ecx 8;
    Osvw "osvw" 0x80000001 0 Ecx 9;
    Ibs "ibs" 0x80000001 0 Ecx 10;
    Xop "xop" 0x80000001 0 Ecx 11;
    Skinit "skinit" 0x80000001 0 Ecx 12;
    Fma4 "fma4" 0x80000001 0 Ecx 16;
    Tce "tce" 0x80000001 0 Ecx 17;
    Tbm "tbm" 0x80000001 0 Ecx 21;
    Topoext "topoext" 0x80000001 0 Ecx 22;
    PerfctrCore "perfctr-core" 0x80000001 0 Ecx 23;
    Syscall "syscall" 0x80000001 0 Edx 11;
    Nx "nx" 0x80000001 0 Edx 20;
    Mmxext "mmxext" 0x80000001 0 Edx 22;
    FxsrOpt "fxsr-opt" 0x80000001 0 Edx 25;
    Pdpe1gb "pdpe1gb" 0x80000001 0 Edx 26;
    Rdtscp "rdtscp" 0x80000001 0 Edx 27;
    Lm "lm" 0x80000001 0 Edx 29;
    Amd3dnowext "3dnowext" 0x80000001 0 Edx 30;
    Amd3dnow "3dnow" 0x80000001 0 Edx 31;
    Invtsc "invtsc" 0x80000007 0 Edx 8;
    Clzero "clzero" 0x80000008 0 Ebx 0;
    Wbnoinvd "wbnoinvd" 0x80000008 0 Ebx 9;
    Ibpb "ibpb" 0x80000008 0 Ebx 12;
    Ibrs "ibrs" 0x80000008 0 Ebx 14;
    AmdStibp "amd-stibp" 0x80000008 0 Ebx 15;
    AmdSsbd "amd-ssbd" 0x80000008 0 Ebx 24;
    AmdNoSsb "amd-no-ssb" 0x80000008 0 Ebx 26;
    NoNestedDataBp "no-nested-data-bp" 0x80000021 0 Eax 0;
    LfenceAlwaysSerializing "lfence-always-serializing" 0x80000021 0 Eax 2;
    NullSelClrBase "null-sel-clr-base" 0x80000021 0 Eax 6;
    AutoIbrs "auto-ibrs" 0x80000021 0 Eax 8;
    SrsoNo "srso-no" 0x80000021 0 Eax 29;
}

/// What the machine offers whatever the engine: the local APIC, machine check, memory types,
/// time and the speculation controls, all kept outside the engine. Which of the last ones a
/// processor has is its vendor's matter (see [`Vendor::lacks`](crate::Vendor::lacks)).
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
    Feature::Topoext,
    Feature::Ibpb,
    Feature::Ibrs,
    Feature::AmdStibp,
    Feature::AmdSsbd,
    Feature::AmdNoSsb,
    Feature::NoNestedDataBp,
    Feature::LfenceAlwaysSerializing,
    Feature::NullSelClrBase,
    Feature::AutoIbrs,
    Feature::SrsoNo,
];

/// Features that cannot be had without another one, which comes first.
const NEEDS: &[(Feature, &[Feature])] = &[
    (Feature::Xsave, &[Feature::Xsaveopt, Feature::Xsavec, Feature::Xgetbv1, Feature::Xsaves, Feature::Avx]),
    (
        Feature::Avx,
        &[Feature::Avx2, Feature::Fma, Feature::F16c, Feature::Vaes, Feature::Vpclmulqdq, Feature::AvxVnni],
    ),
    (Feature::Aes, &[Feature::Vaes]),
    (Feature::Pclmulqdq, &[Feature::Vpclmulqdq]),
    (Feature::Sse, &[Feature::Sse2]),
    (Feature::Sse2, &[Feature::Sse3, Feature::Aes, Feature::Pclmulqdq, Feature::ShaNi]),
    (Feature::Sse3, &[Feature::Ssse3]),
    (Feature::Ssse3, &[Feature::Sse4_1]),
    (Feature::Sse4_1, &[Feature::Sse4_2]),
    (Feature::Apic, &[Feature::X2apic, Feature::TscDeadline]),
    (Feature::Mce, &[Feature::Mca]),
    (Feature::Lm, &[Feature::LahfLm, Feature::Pcid]),
];

/// Other spellings, of QEMU and Linux.
const ALIASES: &[(&str, &str)] = &[
    ("pni", "sse3"),
    ("pclmuldq", "pclmulqdq"),
    ("lzcnt", "abm"),
    ("cmpxchg16b", "cx16"),
    ("cmpxchg8b", "cx8"),
    ("prefetchw", "3dnowprefetch"),
    ("tsc-deadline-timer", "tsc-deadline"),
    ("clfsh", "clflush"),
    ("xd", "nx"),
    ("i64", "lm"),
    ("mwait", "monitor"),
    ("sha", "sha-ni"),
    ("ffxsr", "fxsr-opt"),
    ("cet-ss", "shstk"),
    ("cet-ibt", "ibt"),
];

/// Names are compared in lower case, with `-`, `_` and `.` alike.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

impl Feature {
    /// The feature called `name`, in QEMU's or Linux's spelling: `-`, `_` and `.` are alike.
    pub fn by_name(name: &str) -> Option<Self> {
        let name = plain(name);
        let wanted = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name.as_str(), |(_, real)| real);
        Self::ALL.iter().copied().find(|feature| plain(feature.name()) == wanted)
    }

    /// Names that `name` may have been meant for, the nearest first.
    pub fn near(name: &str) -> Vec<&'static str> {
        let name = plain(name);
        let mut near: Vec<_> = Self::ALL
            .iter()
            .map(|feature| (distance(&plain(feature.name()), &name), feature.name()))
            .filter(|&(far, known)| {
                far <= 1 || far == 2 && name.len() > 4 || name.len() > 2 && plain(known).contains(&name)
            })
            .collect();
        near.sort();
        near.into_iter().map(|(_, name)| name).take(3).collect()
    }

    /// The features that make no sense without this one.
    pub fn dependents(self) -> impl Iterator<Item = Feature> {
        NEEDS
            .iter()
            .filter(move |(needed, _)| *needed == self)
            .flat_map(|(_, needing)| needing.iter().copied())
    }

    /// The features that this one makes no sense without.
    pub fn needs(self) -> impl Iterator<Item = Feature> {
        NEEDS.iter().filter(move |(_, needing)| needing.contains(&self)).map(|(needed, _)| *needed)
    }
}

/// How many letters must be changed, added or left out to make `a` of `b` (Levenshtein).
pub fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            let fewest = changed.min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], fewest);
        }
    }
    row[b.len()]
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
        for (alias, real) in ALIASES {
            let found = Feature::by_name(alias);
            assert!(found.is_some() && found == Feature::by_name(real), "{alias}");
        }
    }

    #[test]
    fn misspelt_names_have_near_ones() {
        assert_eq!(Feature::near("popcount"), ["popcnt"]);
        assert_eq!(Feature::near("rdrnd")[0], "rdrand");
        assert!(Feature::near("deadline").contains(&"tsc-deadline"));
        assert_eq!(Feature::near("warp"), Vec::<&str>::new());
    }
}
