use super::*;

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

fn table(cpu: &str, cpus: u32) -> CpuidTable {
    let hypervisor = vec![
        Leaf { leaf: 0x4000_0000, subleaf: 0, value: Registers { eax: 0x4000_0005, ..Registers::default() } },
        Leaf { leaf: 0x4000_0001, subleaf: 0, value: Registers { eax: 0x1234, ..Registers::default() } },
    ];
    CpuidTable::new(Params {
        cpu: &cpu.parse().unwrap(),
        engine_features: ENGINE,
        cpus,
        tsc_hz: 2_599_998_000,
        physical_bits: 46,
        hypervisor,
    })
    .unwrap()
}

fn on(apic_id: u32) -> Context {
    Context { apic_id, cr4: 0, xcr0: 1, apic_enabled: true }
}

#[test]
fn the_vendor_is_intel_and_the_signature_one_that_does_not_speculate() {
    let table = table("max", 1);
    let leaf = table.query(0, 0, &on(0));
    let text: Vec<u8> = [leaf.ebx, leaf.edx, leaf.ecx].iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!((leaf.eax, text.as_slice()), (0x16, b"GenuineIntel".as_slice()));
    let signature = table.query(1, 0, &on(0)).eax;
    let (family, model) = (signature >> 8 & 0xf, signature >> 4 & 0xf | signature >> 12 & 0xf0);
    assert_eq!((family, model), (6, 0x36), "INTEL_ATOM_SALTWELL");
    assert!(table.has(Feature::ArchCapabilities) && table.has(Feature::Hypervisor));
}

#[test]
fn models_and_the_user_take_away_but_never_invent() {
    let v1 = table("x86-64-v1,+smep", 1);
    assert!(v1.has(Feature::Sse2) && !v1.has(Feature::Sse3) && v1.has(Feature::Smep));
    assert!(v1.has(Feature::X2apic), "the platform's features belong to no model");
    assert_eq!(v1.origin(1, 0, Register::Ecx, 0), Some(Layer::Model));
    assert_eq!(v1.origin(7, 0, Register::Ebx, 7), Some(Layer::User));
    assert_eq!(v1.origin(1, 0, Register::Edx, 26), Some(Layer::Engine));
    assert_eq!(v1.origin(1, 0, Register::Ecx, 25), None, "no engine has AES here");
    assert_eq!(v1.origin(0x4000_0001, 0, Register::Eax, 0), Some(Layer::Hypervisor));
    assert!(!table("max,-rdrand", 1).has(Feature::Rdrand));
    assert!(!table("x86-64-v2", 1).has(Feature::Rdrand));

    let build = |cpu: &str, engine_features| {
        CpuidTable::new(Params {
            cpu: &cpu.parse().unwrap(),
            engine_features,
            cpus: 1,
            tsc_hz: 1_000_000_000,
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
fn leaves_out_of_range_answer_as_the_highest_basic_leaf() {
    let table = table("max", 1);
    let highest = table.query(0x16, 0, &on(0));
    assert_eq!(highest.eax, 2599);
    for leaf in [0x17, 0x3fff_ffff, 0x4000_0006, 0x4000_0100, 0x5000_0000, 0x8000_0009, 0xc000_0000, u32::MAX]
    {
        assert_eq!(table.query(leaf, 3, &on(0)), highest, "{leaf:#x}");
    }
    assert_eq!(table.query(0x4000_0003, 0, &on(0)), Registers::default(), "a gap in a class");
    assert_eq!(table.query(3, 0, &on(0)), Registers::default());
    assert_eq!(table.query(7, 1, &on(0)), Registers::default(), "a subleaf that is not there");
    assert_eq!(table.query(1, 77, &on(0)), table.query(1, 0, &on(0)), "no subleaves: ECX is ignored");
}

#[test]
fn topology_counts_cores_and_numbers_every_processor() {
    for (cpus, shift) in [(1, 0), (2, 1), (3, 2), (4, 2), (255, 8), (300, 9)] {
        let table = table("max", cpus);
        let id = cpus - 1;
        assert_eq!(table.query(1, 0, &on(id)).ebx >> 24, id & 0xff);
        assert_eq!(table.query(1, 0, &on(0)).edx >> 28 & 1, u32::from(cpus > 1), "HTT");
        let smt = table.query(0xb, 0, &on(id));
        assert_eq!((smt.eax, smt.ebx, smt.ecx, smt.edx), (0, 1, 0x100, id));
        let core = table.query(0xb, 1, &on(id));
        assert_eq!((core.eax, core.ebx, core.ecx, core.edx), (shift, cpus, 0x201, id));
        let end = table.query(0xb, 2, &on(id));
        assert_eq!((end.eax, end.ebx, end.ecx, end.edx), (0, 0, 2, id));
        let l3 = table.query(4, 3, &on(id));
        assert_eq!(l3.eax >> 14 & 0xfff, (1 << shift) - 1, "the L3 is everybody's");
        let size = ((l3.ebx >> 22) + 1) * ((l3.ebx & 0xfff) + 1) * (l3.ecx + 1);
        assert_eq!(size, 16 << 20);
        assert_eq!(table.query(4, 4, &on(id)).eax & 0x1f, 0, "no more caches");
    }
}

#[test]
fn linux_computes_the_exact_tsc_frequency() {
    for hz in [1_000_000_000, 2_599_998_000, 4_294_967_295, 5_200_000_000, 10_000_000_001u64] {
        let spec = CpuSpec::default();
        let params = Params {
            cpu: &spec,
            engine_features: ENGINE,
            cpus: 1,
            tsc_hz: hz,
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
fn answers_follow_the_processors_state() {
    let mut state = on(5);
    let table = table("max", 8);
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
        cpus: 1,
        tsc_hz: 1_000_000_000,
        physical_bits: 46,
        hypervisor: vec![],
    };
    let xsave = CpuidTable::new(params).unwrap();
    let ebx = |xcr0| xsave.query(0xd, 0, &Context { xcr0, ..on(0) }).ebx;
    assert_eq!((ebx(1), ebx(7), xsave.query(0xd, 0, &on(0)).ecx), (576, 832, 832));
    assert_eq!(table.query(0xd, 0, &on(0)), Registers::default());
}
