//! What is not offered does not exist, and what its encodings meant before comes back.

use satori_cpuid::{CpuModel, Feature, FeatureSet, Offered, Vendor};
use satori_defs::x86::{rflags, vector};
use satori_engine::{Exit, Until};
use satori_memory::Gpa;
use satori_state::reg;

use super::MAX_LENGTH;
use crate::testing::{Machine, machine64, machine64_with};

const CODE: u64 = 0x5_0000;

fn model(model: CpuModel) -> Offered {
    let features = Feature::ALL.iter().copied().filter(|f| model.offers(*f)).collect();
    Offered { vendor: Vendor::Intel, features }
}

/// What became of an instruction.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Fault(u8),
}

/// Runs one instruction from the bytes at `at`, through the block decoder where it fits a page.
fn run_at(cpu: &mut Machine, at: u64, code: &[u8]) -> Outcome {
    cpu.memory.write(Gpa(at), code).unwrap();
    cpu.memory.page(Gpa(at)).unwrap().state.touch();
    cpu.state.rip = at;
    cpu.state.gpr[reg::RSP] = 0x8_0000;
    // No exception can be delivered.
    cpu.state.idtr.limit = 0;
    go(cpu)
}

fn go(cpu: &mut Machine) -> Outcome {
    let before = *cpu.count.exceptions();
    match cpu.run(Until { counter: None, instructions: Some(1) }) {
        Exit::Budget => Outcome::Done,
        Exit::TripleFault => {
            cpu.state.activity = Default::default();
            let raised = |v: &usize| cpu.count.exceptions()[*v] != before[*v];
            Outcome::Fault((0..32).find(raised).expect("an exception was counted") as u8)
        }
        other => panic!("{other:?}"),
    }
}

fn run(cpu: &mut Machine, code: &[u8]) -> Outcome {
    run_at(cpu, CODE, code)
}

const UD: Outcome = Outcome::Fault(vector::UD);

/// Instructions beyond x86-64-v1: feature, encoding. Memory operands are at 0x60000.
const BEYOND_V1: &[(Feature, &[u8])] = &[
    (Feature::Sse3, &[0xf2, 0x0f, 0x7c, 0xc1]),         // HADDPS
    (Feature::Sse3, &[0xdb, 0x0c, 0x25, 0, 0, 6, 0]),   // FISTTP m32
    (Feature::Ssse3, &[0x66, 0x0f, 0x38, 0x00, 0xc1]),  // PSHUFB
    (Feature::Ssse3, &[0x0f, 0x38, 0x00, 0xc1]),        // PSHUFB mm
    (Feature::Sse4_1, &[0x66, 0x0f, 0x38, 0x17, 0xc1]), // PTEST
    (Feature::Sse4_2, &[0x66, 0x0f, 0x38, 0x37, 0xc1]), // PCMPGTQ
    (Feature::Sse4_2, &[0xf2, 0x0f, 0x38, 0xf1, 0xc1]), // CRC32
    (Feature::Popcnt, &[0xf3, 0x0f, 0xb8, 0xc1]),       // POPCNT
    (Feature::Cx16, &[0x48, 0x0f, 0xc7, 0x0c, 0x25, 0, 0, 6, 0]), // CMPXCHG16B
    (Feature::LahfLm, &[0x9f]),                         // LAHF
    (Feature::LahfLm, &[0x9e]),                         // SAHF
    (Feature::Aes, &[0x66, 0x0f, 0x38, 0xdc, 0xc1]),    // AESENC
    (Feature::Pclmulqdq, &[0x66, 0x0f, 0x3a, 0x44, 0xc1, 0]), // PCLMULQDQ
    (Feature::ShaNi, &[0x0f, 0x38, 0xc8, 0xc1]),        // SHA1NEXTE
    (Feature::Movbe, &[0x0f, 0x38, 0xf0, 0x04, 0x25, 0, 0, 6, 0]),
    (Feature::Adx, &[0x66, 0x0f, 0x38, 0xf6, 0xc1]),  // ADCX
    (Feature::Bmi1, &[0xc4, 0xe2, 0x78, 0xf2, 0xc1]), // ANDN
    (Feature::Bmi2, &[0xc4, 0xe2, 0x7b, 0xf6, 0xc1]), // MULX
    (Feature::Rdrand, &[0x0f, 0xc7, 0xf0]),
    (Feature::Rdseed, &[0x0f, 0xc7, 0xf8]),
    (Feature::Rdtscp, &[0x0f, 0x01, 0xf9]),
    (Feature::Smap, &[0x0f, 0x01, 0xca]), // CLAC
    (Feature::Clflushopt, &[0x66, 0x0f, 0xae, 0x3c, 0x25, 0, 0, 6, 0]),
    (Feature::Clwb, &[0x66, 0x0f, 0xae, 0x34, 0x25, 0, 0, 6, 0]),
    (Feature::Serialize, &[0x0f, 0x01, 0xe8]),
    (Feature::Invpcid, &[0x66, 0x0f, 0x38, 0x82, 0x04, 0x25, 0, 0, 6, 0]),
];

#[test]
fn what_a_model_does_not_offer_is_undefined() {
    for (feature, code) in BEYOND_V1 {
        let mut v1 = machine64_with(model(CpuModel::V1));
        assert_eq!(run(&mut v1, code), UD, "{feature:?} on x86-64-v1");
        let mut all = machine64();
        assert_eq!(run(&mut all, code), Outcome::Done, "{feature:?} with everything");
        let mut but = Offered::EVERYTHING;
        but.features.set(*feature, false);
        assert_eq!(run(&mut machine64_with(but), code), UD, "with everything but {feature:?}");
    }
}

#[test]
fn even_specialised_operations_do_not_exist_without_their_feature() {
    let none = Offered { vendor: Vendor::Intel, features: FeatureSet::EMPTY };
    // CMOVZ, MOVUPS, FLD1, MOVQ mm, CLFLUSH, CMPXCHG8B, RDTSC, SYSCALL.
    let codes: [&[u8]; 8] = [
        &[0x0f, 0x44, 0xc1],
        &[0x0f, 0x10, 0xc1],
        &[0xd9, 0xe8],
        &[0x0f, 0x6f, 0xc1],
        &[0x0f, 0xae, 0x3c, 0x25, 0, 0, 6, 0],
        &[0x0f, 0xc7, 0x0c, 0x25, 0, 0, 6, 0],
        &[0x0f, 0x31],
        &[0x0f, 0x05],
    ];
    for code in codes {
        assert_eq!(run(&mut machine64_with(none), code), UD, "{code:02x?}");
        assert_eq!(run(&mut machine64(), code), Outcome::Done, "{code:02x?}");
    }
}

#[test]
fn bit_counts_are_bit_scans_where_they_are_not_offered() {
    // LZCNT EAX, ECX and TZCNT EAX, ECX.
    for (code, count, scan) in [([0xf3, 0x0f, 0xbd, 0xc1], 27, 4), ([0xf3, 0x0f, 0xbc, 0xc1], 4, 4)] {
        for (offered, expected) in [(Offered::EVERYTHING, count), (model(CpuModel::V2), scan)] {
            let mut cpu = machine64_with(offered);
            cpu.state.gpr[reg::RCX] = 0x10;
            assert_eq!(run(&mut cpu, &code), Outcome::Done);
            assert_eq!(cpu.state.gpr[reg::RAX], expected);
        }
        // Of zero, a count is the operand's size with CF, a scan sets ZF and leaves EAX alone.
        for (offered, expected, flag) in
            [(Offered::EVERYTHING, 32, rflags::CF), (model(CpuModel::V2), 7, rflags::ZF)]
        {
            let mut cpu = machine64_with(offered);
            cpu.state.gpr[reg::RAX] = 7;
            assert_eq!(run(&mut cpu, &code), Outcome::Done);
            assert_eq!(cpu.state.gpr[reg::RAX], expected);
            assert_ne!(cpu.state.rflags & flag, 0);
        }
    }
}

#[test]
fn hints_are_nops_on_every_processor() {
    let codes: [&[u8]; 9] = [
        &[0xf3, 0x90],                         // PAUSE
        &[0xf3, 0x0f, 0x1e, 0xfa],             // ENDBR64
        &[0xf3, 0x48, 0x0f, 0x1e, 0xc8],       // RDSSPQ
        &[0x0f, 0x0d, 0x0c, 0x25, 0, 0, 0, 0], // PREFETCHW of nothing mapped
        &[0x0f, 0x0d, 0x14, 0x25, 0, 0, 0, 0], // PREFETCHWT1
        &[0x0f, 0x18, 0x0c, 0x25, 0, 0, 0, 0], // PREFETCHT0
        &[0x0f, 0x1c, 0x04, 0x25, 0, 0, 0, 0], // CLDEMOTE
        &[0x0f, 0x18, 0x3d, 0, 0, 0, 0],       // PREFETCHIT0
        &[0x66, 0x0f, 0x1f, 0x44, 0, 0],       // NOP
    ];
    for offered in [Offered::EVERYTHING, model(CpuModel::V1)] {
        for code in codes {
            assert_eq!(run(&mut machine64_with(offered), code), Outcome::Done, "{code:02x?}");
        }
    }
}

#[test]
fn an_instruction_of_sixteen_bytes_is_a_general_protection_fault() {
    let prefixed = |prefixes: usize, rest: &[u8]| [&[0x66].repeat(prefixes), rest].concat();
    let gp = || Outcome::Fault(vector::GP);
    // ADD EAX, [disp32], UD2 and an undefined opcode.
    let add: &[u8] = &[0x03, 0x04, 0x25, 0, 0, 6, 0];
    let cases = [
        (prefixed(8, add), Outcome::Done),
        (prefixed(9, add), gp()),
        (prefixed(13, &[0x0f, 0x0b]), UD),
        (prefixed(14, &[0x0f, 0x0b]), gp()),
        (prefixed(13, &[0x0f, 0xff]), gp()),
        (prefixed(12, &[0x0f, 0xff, 0xc0]), UD),
        (prefixed(20, &[]), gp()),
        ([&[0x48; 14][..], &[0x90]].concat(), Outcome::Done),
        ([&[0x48; 15][..], &[0x90]].concat(), gp()),
        // LOCK OR [RCX + disp32], imm32, with one of each prefix.
        (vec![0x66, 0xf0, 0x67, 0x2e, 0xf3, 0x4e, 0x81, 0x89, 0, 0, 0, 0, 0, 0x80, 0, 0], gp()),
    ];
    for (code, expected) in cases {
        // In the middle of a page, behind a NOP in the block, at its end, and across it.
        for at in
            [CODE, CODE + 0x1000 - 8, CODE + 0x1000 - code.len() as u64, CODE + 0x1000 - MAX_LENGTH as u64]
        {
            assert_eq!(run_at(&mut machine64(), at, &code), expected, "{code:02x?} at {at:#x}");
        }
        // Behind a NOP, of whose block it would be.
        let mut cpu = machine64();
        assert_eq!(run(&mut cpu, &[&[0x90][..], &code].concat()), Outcome::Done);
        assert_eq!(go(&mut cpu), expected, "{code:02x?}");
    }
}

/// Offered to the test only as all that has a name, or left to the machine to refuse: nothing
/// implements these.
fn is_nobodys(insn: &iced_x86::Instruction) -> bool {
    use iced_x86::CpuidFeature::{GFNI, MOVDIR64B, MOVDIRI, SMM, SSE4A, SVM};
    let later = [GFNI, MOVDIR64B, MOVDIRI, SMM, SSE4A, SVM];
    let undefined = matches!(
        insn.mnemonic(),
        iced_x86::Mnemonic::Ud0 | iced_x86::Mnemonic::Ud1 | iced_x86::Mnemonic::Ud2
    );
    undefined || insn.cpuid_features().iter().any(|feature| later.contains(feature))
}

#[test]
fn whatever_exists_is_implemented() {
    let cpu = machine64();
    let undefined: crate::cpu::Handler = crate::insn::undefined;
    let (mut missing, mut seen) = (std::collections::BTreeSet::new(), 0);
    let prefixes: [&[u8]; 7] = [&[], &[0x66], &[0xf3], &[0xf2], &[0x48], &[0x66, 0x48], &[0xf3, 0x48]];
    // Of 128 and of 256 bits, and with W.
    let vex: Vec<Vec<u8>> = (1..4)
        .flat_map(|map| (0..4).map(move |pp| (map, pp)))
        .flat_map(|(map, pp)| {
            [0x00, 0x04, 0x78, 0x7c, 0xf8, 0xfc].map(|rest| vec![0xc4, 0xe0 | map, rest | pp])
        })
        .collect();
    let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
    let legacy = prefixes.iter().flat_map(|prefix| maps.iter().map(move |map| [*prefix, *map].concat()));
    for (before, bits) in legacy.chain(vex).flat_map(|before| [16, 32, 64].map(|bits| (before.clone(), bits)))
    {
        for opcode in 0..=255 {
            for modrm in 0..=255 {
                let code = [&before[..], &[opcode, modrm, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
                let Some(insn) = cpu.isa.one(&code, bits) else { continue };
                if cpu.isa.exists(&insn) && !is_nobodys(&insn) {
                    seen += 1;
                    if std::ptr::fn_addr_eq(cpu.isa.handler(&insn), undefined) {
                        missing.insert(format!("{:?}", insn.code()));
                    }
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
    assert!(seen > 500_000, "{seen}");
}
