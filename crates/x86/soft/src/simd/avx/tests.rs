//! What the comparison with the real processor leaves out: control bits, modes, devices, watched
//! data, and what of XCR0 is needed.

use satori_cpuid::{Feature, FeatureSet, Offered};
use satori_defs::fpu::{mxcsr, xsave};
use satori_defs::x86::{cr0, cr4, rflags, vector};
use satori_engine::{Exception, Exit, Resume};
use satori_memory::Gpa;
use satori_state::{Ymm, reg};

use crate::cpu::{Cpu, Exec, Stop};
use crate::testing::{
    LOW_LEN, Machine, PD, SCRATCH, decode, execute, fault_of, machine32, machine64, machine64_with,
};

const VADDPS_YMM: [u8; 4] = [0xc5, 0xf4, 0x58, 0xc2];
const VADDPS_XMM: [u8; 4] = [0xc5, 0xf0, 0x58, 0xc2];
const VDIVSD: [u8; 4] = [0xc5, 0xfb, 0x5e, 0xc1];
const VZEROUPPER: [u8; 3] = [0xc5, 0xf8, 0x77];
const VZEROALL: [u8; 3] = [0xc5, 0xfc, 0x77];
const ADDPS: [u8; 3] = [0x0f, 0x58, 0xc2];
/// vpgatherdd ymm0, [rax + ymm1], ymm2
const GATHER: [u8; 6] = [0xc4, 0xe2, 0x6d, 0x90, 0x04, 0x08];
/// vmovdqu ymm0, [rax] and back
const LOAD: [u8; 4] = [0xc5, 0xfe, 0x6f, 0x00];
const STORE: [u8; 4] = [0xc5, 0xfe, 0x7f, 0x00];
/// vpmaskmovd [rax], ymm1, ymm0
const STORE_MASKED: [u8; 5] = [0xc4, 0xe2, 0x75, 0x8e, 0x00];
/// Where there is no RAM.
const DEVICE: u64 = 0x3000_0000;

fn allow(cpu: &mut Cpu) {
    cpu.state.cr4 |= cr4::OSXSAVE;
    cpu.state.xcr0 = xsave::X87 | xsave::SSE | xsave::AVX;
    cpu.mode_changed();
}

fn processor() -> Machine {
    let mut cpu = machine64();
    allow(&mut cpu);
    for (i, ymm) in cpu.state.fpu.ymm.iter_mut().enumerate() {
        *ymm = Ymm { low: 0x11 * (i as u128 + 1), high: (0x11 * (i as u128 + 1)) << 64 };
    }
    cpu.state.gpr[reg::RAX] = SCRATCH;
    cpu
}

fn run(cpu: &mut Cpu, bytes: &[u8]) -> Exec<()> {
    let insn = decode(cpu, bytes);
    let handler = cpu.isa.handler(&insn);
    execute(cpu, &insn, handler)
}

fn fault(cpu: &mut Cpu, bytes: &[u8]) -> Exception {
    let outcome = run(cpu, bytes);
    fault_of(cpu, outcome)
}

fn from_dwords(words: [u32; 8]) -> Ymm {
    super::operand::from_dwords(words)
}

#[test]
fn the_operating_system_decides_whether_avx_executes() {
    let all = xsave::X87 | xsave::SSE | xsave::AVX;
    let os = cr4::OSXSAVE;
    for (set, allowed, enabled, expected) in [
        (0, os, all, None),
        // Neither EM nor OSFXSR matters.
        (cr0::EM, os, all, None),
        (cr0::TS, os, all, Some(vector::NM)),
        (cr0::TS, 0, all, Some(vector::UD)),
        (0, cr4::OSFXSR, all, Some(vector::UD)),
        (0, os, xsave::X87 | xsave::SSE, Some(vector::UD)),
        (cr0::TS, os, xsave::X87, Some(vector::UD)),
    ] {
        for code in [&VADDPS_YMM[..], &VADDPS_XMM, &VZEROUPPER, &LOAD, &GATHER, &STORE_MASKED] {
            let mut cpu = processor();
            cpu.state.cr0 |= set;
            cpu.state.cr4 = cpu.state.cr4 & !(cr4::OSXSAVE | cr4::OSFXSR) | allowed;
            cpu.state.xcr0 = enabled;
            cpu.mode_changed();
            cpu.state.fpu.ymm[1] = Ymm::default();
            let found = run(&mut cpu, code).err().and_then(|_| cpu.pending.fault.take()).map(|e| e.vector);
            assert_eq!(found, expected, "{code:02x?}, CR0 {set:#x}, CR4 {allowed:#x}, XCR0 {enabled:#x}");
        }
    }
}

#[test]
fn real_and_virtual_8086_mode_have_no_avx() {
    let mut cpu = machine32();
    allow(&mut cpu);
    run(&mut cpu, &VADDPS_XMM).expect("protected mode has it");
    cpu.state.rflags |= rflags::VM;
    assert_eq!(fault(&mut cpu, &VADDPS_XMM), Exception::ud());
    cpu.state.rflags &= !rflags::VM;
    cpu.state.cr0 &= !cr0::PE;
    assert_eq!(fault(&mut cpu, &VADDPS_XMM), Exception::ud());
}

#[test]
fn each_feature_brings_its_own_instructions() {
    let cases: [(&[Feature], &[u8]); 6] = [
        (&[Feature::Avx], &VADDPS_YMM),
        (&[Feature::Avx2], &[0xc5, 0xf5, 0xfc, 0xc2]), // vpaddb ymm
        (&[Feature::Fma], &[0xc4, 0xe2, 0x75, 0xa8, 0xc2]), // vfmadd213ps ymm
        (&[Feature::F16c], &[0xc4, 0xe2, 0x7d, 0x13, 0xc1]), // vcvtph2ps ymm
        (&[Feature::Avx, Feature::Aes], &[0xc4, 0xe2, 0x71, 0xdc, 0xc2]), // vaesenc xmm
        (&[Feature::Vaes], &[0xc4, 0xe2, 0x75, 0xdc, 0xc2]), // vaesenc ymm
    ];
    for (needs, code) in cases {
        for missing in needs {
            let mut features = Offered::EVERYTHING.features;
            features.set(*missing, false);
            let mut cpu = machine64_with(Offered { features, ..Offered::EVERYTHING });
            allow(&mut cpu);
            assert_eq!(fault(&mut cpu, code), Exception::ud(), "{code:02x?} without {missing:?}");
        }
        let features = FeatureSet::of(needs);
        let mut cpu = machine64_with(Offered { features, ..Offered::EVERYTHING });
        allow(&mut cpu);
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            run(&mut cpu, code).unwrap_or_else(|_| panic!("{code:02x?} with {needs:?}"));
        }
    }
}

#[test]
fn unmasked_simd_exceptions_need_the_systems_consent() {
    for (allowed, expected) in [(cr4::OSXMMEXCPT, vector::XM), (0, vector::UD)] {
        let mut cpu = processor();
        cpu.state.cr4 = cpu.state.cr4 & !cr4::OSXMMEXCPT | allowed;
        cpu.state.fpu.mxcsr = mxcsr::RESET & !(1 << 9);
        cpu.state.fpu.ymm[0].low = 1.0f64.to_bits().into();
        cpu.state.fpu.ymm[1].low = 0;
        let before = cpu.state.fpu.ymm;
        assert_eq!(fault(&mut cpu, &VDIVSD), Exception::new(expected), "a division by zero");
        assert_eq!(cpu.state.fpu.ymm, before);
        assert_eq!(cpu.state.fpu.mxcsr & mxcsr::FLAGS, 1 << 2, "ZE is flagged");
    }
}

#[test]
fn only_instructions_of_avx_clear_the_upper_half() {
    let mut cpu = processor();
    let before = cpu.state.fpu.ymm[0].high;
    run(&mut cpu, &ADDPS).unwrap();
    assert_eq!(cpu.state.fpu.ymm[0].high, before);
    run(&mut cpu, &VADDPS_XMM).unwrap();
    assert_eq!(cpu.state.fpu.ymm[0].high, 0);
}

#[test]
fn outside_64_bit_code_there_are_eight_registers_to_clear() {
    for (code, low) in [(VZEROUPPER, 7), (VZEROALL, 0)] {
        let mut cpu = machine32();
        allow(&mut cpu);
        cpu.state.fpu.ymm = [Ymm { low: 7, high: 7 }; 16];
        run(&mut cpu, &code).unwrap();
        assert_eq!(cpu.state.fpu.ymm[..8], [Ymm { low, high: 0 }; 8]);
        assert_eq!(cpu.state.fpu.ymm[8..], [Ymm { low: 7, high: 7 }; 8]);
    }
}

#[test]
fn a_gather_that_faults_goes_on_where_it_stopped() {
    let mut cpu = processor();
    let words: Vec<u8> = (1..=8u32).flat_map(|word| (word * 0x1111).to_le_bytes()).collect();
    cpu.memory.write(Gpa(SCRATCH), &words).unwrap();
    // The fourth element is below address 0.
    let away = 0xc000_0000;
    cpu.state.fpu.ymm[0] = from_dwords([0; 8]);
    cpu.state.fpu.ymm[1] = from_dwords([0, 4, 8, away, 16, 20, 24, 28]);
    cpu.state.fpu.ymm[2] = from_dwords([u32::MAX; 8]);
    cpu.state.gpr[reg::RAX] = SCRATCH;
    assert_eq!(fault(&mut cpu, &GATHER).vector, vector::PF);
    assert_eq!(cpu.state.fpu.ymm[0], from_dwords([0x1111, 0x2222, 0x3333, 0, 0, 0, 0, 0]));
    let left = u32::MAX;
    assert_eq!(cpu.state.fpu.ymm[2], from_dwords([0, 0, 0, left, left, left, left, left]));
    // What is in the mask no more is not loaded again.
    cpu.memory.write(Gpa(SCRATCH), &[0xff; 12]).unwrap();
    cpu.state.fpu.ymm[1] = from_dwords([away, away, away, 12, 16, 20, 24, 28]);
    run(&mut cpu, &GATHER).unwrap();
    let all = std::array::from_fn(|i| (i as u32 + 1) * 0x1111);
    assert_eq!((cpu.state.fpu.ymm[0], cpu.state.fpu.ymm[2]), (from_dwords(all), Ymm::default()));
}

/// Executes `code` until it needs nothing more; what it asked for, each answered by `answer`.
fn asked(cpu: &mut Cpu, code: &[u8], answer: impl Fn(u64) -> Resume) -> Vec<Exit> {
    let mut exits = Vec::new();
    while let Err(stop) = run(cpu, code) {
        assert_eq!(stop, Stop::Exit);
        let exit = cpu.pending.wanted;
        let gpa = match exit {
            Exit::MmioRead { gpa, .. } | Exit::MmioWrite { gpa, .. } => gpa,
            other => panic!("{other:?}"),
        };
        exits.push(exit);
        cpu.resume(answer(gpa));
    }
    cpu.pending.forget_answers();
    exits
}

#[test]
fn a_gather_from_devices_asks_once_for_each_element() {
    let mut cpu = processor();
    cpu.memory.write(Gpa(SCRATCH), &0x77u32.to_le_bytes()).unwrap();
    let device = (DEVICE - SCRATCH) as u32;
    cpu.state.fpu.ymm[1] = from_dwords([device, 0, device + 8, 0, device + 16, 0, 0, device + 4]);
    cpu.state.fpu.ymm[2] = from_dwords([u32::MAX; 8]);
    let exits = asked(&mut cpu, &GATHER, |gpa| Resume::Value(0x100 + (gpa & 0xff)));
    assert_eq!(exits.len(), 4, "{exits:?}");
    assert_eq!(cpu.state.fpu.ymm[0], from_dwords([0x100, 0x77, 0x108, 0x77, 0x110, 0x77, 0x77, 0x104]));
    assert_eq!(cpu.state.fpu.ymm[2], Ymm::default());
}

#[test]
fn devices_take_256_bits_in_quadwords() {
    let mut cpu = processor();
    cpu.state.gpr[reg::RAX] = DEVICE;
    let exits = asked(&mut cpu, &LOAD, |gpa| Resume::Value(gpa & 0xff));
    assert_eq!(exits.len(), 4, "{exits:?}");
    assert_eq!(cpu.state.fpu.ymm[0], Ymm { low: 8 << 64, high: 16 | 24 << 64 });
    let exits = asked(&mut cpu, &STORE, |_| Resume::Done);
    let written: Vec<_> = exits
        .iter()
        .map(|exit| match exit {
            Exit::MmioWrite { gpa, size, value } => (*gpa - DEVICE, *size, *value),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(written, [(0, 8, 0), (8, 8, 8), (16, 8, 16), (24, 8, 24)]);
    // Of a masked store, what the mask names.
    cpu.state.fpu.ymm[0] = from_dwords([1, 2, 3, 4, 5, 6, 7, 8]);
    cpu.state.fpu.ymm[1] = from_dwords([0, u32::MAX, 0, 0, 0, 0, 1 << 31, 0x7fff_ffff]);
    let exits = asked(&mut cpu, &STORE_MASKED, |_| Resume::Done);
    let written: Vec<_> = exits
        .iter()
        .map(|exit| match exit {
            Exit::MmioWrite { gpa, size, value } => (*gpa - DEVICE, *size, *value),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(written, [(4, 4, 2), (24, 4, 7)]);
}

#[test]
fn a_store_across_a_page_that_faults_writes_nothing() {
    for code in [&STORE[..], &STORE_MASKED] {
        for before in [4, 16, 20, 28] {
            let mut cpu = processor();
            let page = LOW_LEN / 2;
            cpu.memory.write(Gpa(PD + 8), &[0; 8]).unwrap();
            cpu.memory.write(Gpa(page - 32), &[0xee; 32]).unwrap();
            cpu.state.gpr[reg::RAX] = page - before;
            cpu.state.fpu.ymm[1] = from_dwords([u32::MAX; 8]);
            assert_eq!(fault(&mut cpu, code), Exception::pf(page, 2), "{code:02x?} {before}");
            let mut bytes = [0; 32];
            cpu.memory.read(Gpa(page - 32), &mut bytes).unwrap();
            assert_eq!(bytes, [0xee; 32], "{code:02x?} {before}");
        }
    }
}
