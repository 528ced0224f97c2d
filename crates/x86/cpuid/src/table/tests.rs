use super::*;
use crate::{Topology, crystal_hz};

const ENGINE: &[Feature] = &[
    Feature::Fpu,
    Feature::De,
    Feature::Pse,
    Feature::Tsc,
    Feature::Msr,
    Feature::Pae,
    Feature::Cx8,
    Feature::Sep,
    Feature::Pge,
    Feature::Cmov,
    Feature::Clflush,
    Feature::Mmx,
    Feature::Fxsr,
    Feature::Sse,
    Feature::Sse2,
    Feature::Syscall,
    Feature::Nx,
    Feature::Lm,
    Feature::Sse3,
    Feature::Ssse3,
    Feature::Cx16,
    Feature::Sse4_1,
    Feature::Sse4_2,
    Feature::Popcnt,
    Feature::LahfLm,
    Feature::Rdrand,
    Feature::Smep,
];

pub(crate) fn table(cpu: &str, cpus: &str) -> CpuidTable {
    let hypervisor = vec![
        Leaf { leaf: 0x4000_0000, subleaf: 0, value: Registers { eax: 0x4000_0005, ..Registers::default() } },
        Leaf { leaf: 0x4000_0001, subleaf: 0, value: Registers { eax: 0x1234, ..Registers::default() } },
    ];
    CpuidTable::new(Params {
        cpu: &cpu.parse().unwrap(),
        engine_features: ENGINE,
        host_lacks: &[],
        topology: cpus.parse().unwrap(),
        tsc_hz: 2_599_998_000,
        crystal_hz: 2_599_998_000,
        physical_bits: 46,
        hypervisor,
    })
    .unwrap()
}

pub(crate) fn on(apic_id: u32) -> Context {
    Context { apic_id, xcr0: 1, apic_enabled: true, ..Context::default() }
}

#[test]
fn the_vendor_is_intel_and_the_signature_one_that_does_not_speculate() {
    let table = table("max", "1");
    let leaf = table.query(0, 0, &on(0));
    let text: Vec<u8> = [leaf.ebx, leaf.edx, leaf.ecx].iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!((leaf.eax, text.as_slice()), (0x1f, b"GenuineIntel".as_slice()));
    let signature = table.query(1, 0, &on(0)).eax;
    let (family, model) = (signature >> 8 & 0xf, signature >> 4 & 0xf | signature >> 12 & 0xf0);
    assert_eq!((family, model), (6, 0x36), "INTEL_ATOM_SALTWELL");
    assert!(table.has(Feature::ArchCapabilities) && table.has(Feature::Hypervisor));
}

#[test]
fn models_and_the_user_take_away_but_never_invent() {
    let v1 = table("x86-64-v1,+smep", "1");
    assert!(v1.has(Feature::Sse2) && !v1.has(Feature::Sse3) && v1.has(Feature::Smep));
    assert!(v1.has(Feature::X2apic), "the platform's features belong to no model");
    assert_eq!(v1.origin(1, 0, Register::Ecx, 0), Some(Layer::Model));
    assert_eq!(v1.origin(7, 0, Register::Ebx, 7), Some(Layer::User));
    assert_eq!(v1.origin(1, 0, Register::Edx, 26), Some(Layer::Engine));
    assert_eq!(v1.origin(1, 0, Register::Ecx, 25), None, "no engine has AES here");
    assert_eq!(v1.origin(0x4000_0001, 0, Register::Eax, 0), Some(Layer::Hypervisor));
    assert!(!table("max,-rdrand", "1").has(Feature::Rdrand));
    assert!(!table("x86-64-v2", "1").has(Feature::Rdrand));

    let build = |cpu: &str, engine_features| {
        CpuidTable::new(Params {
            cpu: &cpu.parse().unwrap(),
            engine_features,
            host_lacks: &[],
            topology: Topology::default(),
            tsc_hz: 1_000_000_000,
            crystal_hz: 1_000_000_000,
            physical_bits: 46,
            hypervisor: vec![],
        })
        .unwrap_err()
    };
    assert_eq!(build("max,+aes", ENGINE), Error::NotImplemented("aes"));
    let missing = Error::ModelNeeds { model: "x86-64-v2", feature: "lahf-lm" };
    assert_eq!(build("x86-64-v2", &ENGINE[..24]), missing);
}

#[test]
fn what_the_host_lacks_is_not_offered_and_its_lack_is_told() {
    use Feature::{Abm, Avx, Avx2, Bmi1, Bmi2, Cx16, F16c, Fma, LahfLm, Movbe, Popcnt, Xsave, Xsavec};
    let more = [Xsave, Xsavec, Avx, Avx2, Fma, F16c, Bmi1, Bmi2, Abm, Movbe, Cx16, Popcnt, LahfLm];
    let engine: Vec<_> = ENGINE.iter().chain(&more).copied().collect();
    let build = |cpu: &str, host_lacks: &[Feature]| {
        CpuidTable::new(Params {
            cpu: &cpu.parse().unwrap(),
            engine_features: &engine,
            host_lacks,
            topology: Topology::default(),
            tsc_hz: 1_000_000_000,
            crystal_hz: 1_000_000_000,
            physical_bits: 46,
            hypervisor: vec![],
        })
    };
    let table = build("max", &[Avx2]).unwrap();
    assert!(table.has(Avx) && table.has(Fma) && !table.has(Avx2));
    assert_eq!(table.origin(7, 0, Register::Ebx, 5), Some(Layer::Engine));
    assert_eq!(table.query(0xd, 0, &on(0)).eax & 7, 7);
    let table = build("max", &[Avx]).unwrap();
    assert!([Avx, Avx2, Fma, F16c].iter().all(|feature| !table.has(*feature)) && table.has(Xsavec));
    assert_eq!(table.query(0xd, 0, &on(0)).eax & 7, 3);
    assert_eq!(build("max,+avx2", &[Avx2]).unwrap_err(), Error::HostLacks("avx2"));
    assert_eq!(build("max,+fma", &[Avx]).unwrap_err(), Error::HostLacks("fma"));
    let error = build("x86-64-v3", &[Avx2]).unwrap_err();
    assert_eq!(error, Error::HostLacksOfModel { model: "x86-64-v3", feature: "avx2" });
    let table = build("x86-64-v3", &[]).unwrap();
    assert!(table.has(Avx2) && !table.has(Xsavec), "a level is no more than its name says");
    for (cpu, feature, missing) in [
        ("x86-64-v1,+avx2", "avx2", &["xsave", "avx"][..]),
        ("x86-64-v1,+avx2,+xsave", "avx2", &["avx"]),
        ("max,-xsave,+fma", "fma", &["xsave", "avx"]),
        ("max,+xsavec,-xsave,xsavec=on", "xsavec", &["xsave"]),
    ] {
        let wanted = Error::FeatureNeeds { feature, missing: missing.to_vec() };
        assert_eq!(build(cpu, &[]).unwrap_err(), wanted, "{cpu}");
    }
    let table = build("x86-64-v1,+avx2,+avx,+xsave", &[]).unwrap();
    assert!(table.has(Avx2), "in whatever order");
    assert!(!build("max,+avx2,-avx", &[]).unwrap().has(Avx2), "the last word counts");
    let table = build("max,-avx", &[]).unwrap();
    assert!([Avx, Avx2, Fma, F16c].iter().all(|feature| !table.has(*feature)));
}

#[test]
fn leaves_out_of_range_answer_as_the_highest_basic_leaf() {
    let table = table("max", "1");
    let highest = table.query(0x1f, 3, &on(0));
    assert_eq!(table.query(0x16, 0, &on(0)).eax, 2599);
    for leaf in [0x20, 0x3fff_ffff, 0x4000_0006, 0x4000_0100, 0x5000_0000, 0x8000_0009, 0xc000_0000, u32::MAX]
    {
        assert_eq!(table.query(leaf, 3, &on(0)), highest, "{leaf:#x}");
    }
    assert_eq!(table.query(0x4000_0003, 0, &on(0)), Registers::default(), "a gap in a class");
    assert_eq!(table.query(3, 0, &on(0)), Registers::default());
    assert_eq!(table.query(7, 1, &on(0)), Registers::default(), "a subleaf that is not there");
    assert_eq!(table.query(1, 77, &on(0)), table.query(1, 0, &on(0)), "no subleaves: ECX is ignored");
}

#[test]
fn topology_leaves_of_intel() {
    for (cpus, [core, die, package], [threads, in_die, in_package]) in [
        ("1", [0, 0, 0], [1, 1, 1]),
        ("2", [0, 1, 1], [1, 2, 2]),
        ("3", [0, 2, 2], [1, 3, 3]),
        ("255", [0, 8, 8], [1, 255, 255]),
        ("12,sockets=2,cores=3,threads=2", [1, 3, 3], [2, 6, 6]),
        ("24,sockets=2,dies=2,cores=3,threads=2", [1, 3, 4], [2, 6, 12]),
    ] {
        let table = table("max", cpus);
        let id = table.topology().apic_ids().last().unwrap();
        let signature = table.query(1, 0, &on(id));
        assert_eq!(signature.ebx >> 24, id & 0xff);
        assert_eq!(signature.ebx >> 16 & 0xff, (1 << package).min(255), "{cpus}: addressable IDs");
        assert_eq!(signature.edx >> 28 & 1, u32::from(in_package > 1), "HTT");
        let level = |leaf, subleaf| {
            let Registers { eax, ebx, ecx, edx } = table.query(leaf, subleaf, &on(id));
            assert_eq!(edx, id);
            [eax, ebx, ecx]
        };
        assert_eq!(level(0xb, 0), [core, threads, 0x100], "{cpus}");
        assert_eq!(level(0xb, 1), [package, in_package, 0x201], "{cpus}");
        assert_eq!(level(0xb, 2), [0, 0, 2]);
        assert_eq!(level(0x1f, 0), [core, threads, 0x100]);
        assert_eq!(level(0x1f, 1), [die, in_die, 0x201], "{cpus}");
        let dies = in_package > in_die;
        assert_eq!(level(0x1f, 2), if dies { [package, in_package, 0x502] } else { [0, 0, 2] }, "{cpus}");
        let sharing = |cache| table.query(4, cache, &on(id)).eax >> 14 & 0xfff;
        assert_eq!([0, 1, 2, 3].map(sharing), [core, core, core, die].map(|bits| (1 << bits) - 1), "{cpus}");
        assert_eq!(table.query(4, 0, &on(id)).eax >> 26, ((1 << (package - core)) - 1u32).min(63));
        let l3 = table.query(4, 3, &on(id));
        assert_eq!(((l3.ebx >> 22) + 1) * ((l3.ebx & 0xfff) + 1) * (l3.ecx + 1), 16 << 20);
        assert_eq!(table.query(4, 4, &on(id)).eax & 0x1f, 0, "no more caches");
        assert_eq!(table.query(0x8000_001e, 0, &on(id)), table.query(0x1f, 0, &on(id)), "AMD's alone");
    }
}

#[test]
fn an_amd_processor_tells_in_its_own_way() {
    let table = table("max,vendor=AuthenticAMD", "24,sockets=2,dies=2,cores=3,threads=2");
    let ids: Vec<u32> = table.topology().apic_ids().collect();
    let id = ids[23];
    assert_eq!(id, 1 << 4 | 1 << 3 | 2 << 1 | 1);
    let query = |leaf, subleaf| table.query(leaf, subleaf, &on(id));
    let name = |leaf: Registers| [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat();
    assert_eq!((name(query(0, 0)), query(0, 0).eax), (b"AuthenticAMD".to_vec(), 0xd));
    assert_eq!(
        (name(query(0x8000_0000, 0)), query(0x8000_0000, 0).eax),
        (b"AuthenticAMD".to_vec(), 0x8000_0021)
    );
    assert_eq!((query(1, 0).eax, query(0x8000_0001, 0).eax), (0x00b0_0f21, 0x00b0_0f21));
    // LogicalProcessorCount counts; NC and ApicIdSize; CmpLegacy and TopologyExtensions.
    assert_eq!(query(1, 0).ebx >> 16 & 0xff, 12);
    assert_eq!(query(0x8000_0008, 0).ecx, 4 << 12 | 11);
    assert_eq!(query(0x8000_0001, 0).ecx & (1 << 22 | 1 << 1), 1 << 22 | 1 << 1);
    // Core 3 of the package's fields (die 1, core 2), two threads; node 3, two of them a package.
    let Registers { eax, ebx, ecx, .. } = query(0x8000_001e, 0);
    assert_eq!((eax, ebx, ecx), (id, 1 << 8 | 0b110, 1 << 8 | 3));
    assert_eq!(query(0x8000_001d, 3).eax >> 14 & 0xfff, 7, "an L3 for each die");
    assert_eq!(query(0x8000_0005, 0).ecx, 32 << 24 | 8 << 16 | 1 << 8 | 64);
    assert_eq!(query(0x8000_0006, 0).edx >> 18, 32, "512 KiB units");
    // Leaf 1's features again; not Intel's leaves, and none beyond the end.
    let edx = query(0x8000_0001, 0).edx;
    assert_eq!(edx & 0x0183_f3ff, query(1, 0).edx & 0x0183_f3ff);
    for leaf in [2, 4, 0x15, 0x1f, 0x8000_0022, 0x5000_0000, u32::MAX] {
        assert_eq!(query(leaf, 0), Registers::default(), "{leaf:#x}");
    }
    assert!(
        !table.has(Feature::ArchCapabilities) && !table.has(Feature::SpecCtrl) && table.has(Feature::Ibpb)
    );
    assert_eq!(table.origin(0, 0, Register::Ebx, 0), Some(Layer::User));
}

#[test]
fn misc_enable_limits_leaves_and_hides_nx() {
    let table = table("max", "1");
    let limited = Context { misc_enable: misc_enable::LIMIT_CPUID, ..on(0) };
    assert_eq!(table.query(0, 0, &limited).eax, 2);
    assert_eq!(table.query(7, 0, &limited), table.query(2, 0, &on(0)));
    assert_eq!(table.query(0x8000_0001, 0, &limited), table.query(0x8000_0001, 0, &on(0)));
    let nx = |misc_enable| table.query(0x8000_0001, 0, &Context { misc_enable, ..on(0) }).edx >> 20 & 1;
    assert_eq!((nx(0), nx(misc_enable::XD_DISABLE)), (1, 0));
}

#[test]
fn what_needs_a_feature_goes_with_it() {
    let table = table("max,-sse3", "1");
    for feature in [Feature::Sse3, Feature::Ssse3, Feature::Sse4_1, Feature::Sse4_2] {
        assert!(!table.has(feature), "{}", feature.name());
    }
    assert!(table.has(Feature::Sse2) && table.has(Feature::Popcnt));
}

#[test]
fn linux_computes_the_exact_tsc_frequency() {
    for hz in [1_000_000_000, 2_599_998_000, 4_294_967_295, 5_200_000_000, 10_000_000_001u64] {
        let spec = CpuSpec::default();
        let params = Params {
            cpu: &spec,
            engine_features: ENGINE,
            host_lacks: &[],
            topology: Topology::default(),
            tsc_hz: hz,
            crystal_hz: crystal_hz(hz),
            physical_bits: 46,
            hypervisor: vec![],
        };
        let leaf = CpuidTable::new(params).unwrap().query(0x15, 0, &on(0));
        // native_calibrate_tsc, in Linux's 32-bit arithmetic.
        let khz = (leaf.ecx / 1000).checked_mul(leaf.ebx).unwrap() / leaf.eax;
        assert!(u64::from(khz).abs_diff(hz / 1000) < u64::from(leaf.ebx), "{hz}: {khz}");
        assert_eq!(u64::from(leaf.ecx), crystal_hz(hz));
    }
}

#[test]
fn linux_computes_the_tsc_frequency_of_a_slow_crystal_nearly() {
    for hz in [1_000_000_000, 2_599_998_123, 3_792_871_000, 5_200_000_000u64] {
        let spec = CpuSpec::default();
        let params = Params {
            cpu: &spec,
            engine_features: ENGINE,
            host_lacks: &[],
            topology: Topology::default(),
            tsc_hz: hz,
            crystal_hz: 1_000_000_000,
            physical_bits: 46,
            hypervisor: vec![],
        };
        let leaf = CpuidTable::new(params).unwrap().query(0x15, 0, &on(0));
        assert_eq!(leaf.ecx, 1_000_000_000);
        let khz = (leaf.ecx / 1000).checked_mul(leaf.ebx).unwrap() / leaf.eax;
        assert!(u64::from(khz).abs_diff(hz / 1000) <= hz / 1_000_000_000, "a millionth: {hz}: {khz}");
    }
}

#[test]
fn answers_follow_the_processors_state() {
    let mut state = on(5);
    let table = table("max", "8");
    assert_eq!(table.query(1, 0, &state).ecx >> 27 & 1, 0);
    state.cr4 = cr4::OSXSAVE;
    assert_eq!(table.query(1, 0, &state).ecx >> 27 & 1, 1);
    assert_eq!(table.query(1, 0, &state).edx >> 9 & 1, 1);
    state.apic_enabled = false;
    assert_eq!(table.query(1, 0, &state).edx >> 9 & 1, 0);

    let engine: Vec<Feature> = ENGINE.iter().copied().chain([Feature::Xsave, Feature::Avx]).collect();
    let spec = CpuSpec::default();
    let params = Params {
        cpu: &spec,
        engine_features: &engine,
        host_lacks: &[],
        topology: Topology::default(),
        tsc_hz: 1_000_000_000,
        crystal_hz: 1_000_000_000,
        physical_bits: 46,
        hypervisor: vec![],
    };
    let xsave = CpuidTable::new(params).unwrap();
    let ebx = |xcr0| xsave.query(0xd, 0, &Context { xcr0, ..on(0) }).ebx;
    assert_eq!((ebx(1), ebx(7), xsave.query(0xd, 0, &on(0)).ecx), (576, 832, 832));
    assert_eq!(table.query(0xd, 0, &on(0)), Registers::default());
}
