//! What the comparison with the real processor leaves out: control bits, control words, FXSAVE.

use satori_defs::fpu::{fsw, fxsave, mxcsr};
use satori_defs::x86::{cr0, cr4, vector};
use satori_engine::Exception;
use satori_memory::Gpa;
use satori_state::{Ymm, reg};

use crate::cpu::{Cpu, Exec};
use crate::insn::handler;
use crate::testing::{Machine, SCRATCH, decode, execute, fault_of, machine32, machine64};

const ADDPS: [u8; 3] = [0x0f, 0x58, 0xc1];
const DIVSD: [u8; 4] = [0xf2, 0x0f, 0x5e, 0xc1];
const PADDB_MM: [u8; 3] = [0x0f, 0xfc, 0xc1];
const FXSAVE: [u8; 3] = [0x0f, 0xae, 0x00];
const FXSAVE64: [u8; 4] = [0x48, 0x0f, 0xae, 0x00];
const FXRSTOR64: [u8; 4] = [0x48, 0x0f, 0xae, 0x08];
const LDMXCSR: [u8; 3] = [0x0f, 0xae, 0x10];
const MOVNTI: [u8; 3] = [0x0f, 0xc3, 0x08];
const CRC32: [u8; 5] = [0xf2, 0x0f, 0x38, 0xf1, 0xc1];

fn run(cpu: &mut Cpu, bytes: &[u8]) -> Exec<()> {
    let insn = decode(cpu, bytes);
    execute(cpu, &insn, handler(&insn))
}

fn fault(cpu: &mut Cpu, bytes: &[u8]) -> Exception {
    let outcome = run(cpu, bytes);
    fault_of(cpu, outcome)
}

fn bytes(cpu: &Cpu, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    cpu.memory.read(Gpa(SCRATCH), &mut bytes).expect("scratch memory is RAM");
    bytes
}

#[test]
fn control_registers_forbid_vector_instructions() {
    let cases: [(u64, u64, &[u8], Option<u8>); 10] = [
        (0, cr4::OSFXSR, &ADDPS, None),
        (0, 0, &ADDPS, Some(vector::UD)),
        (cr0::TS, cr4::OSFXSR, &ADDPS, Some(vector::NM)),
        (cr0::TS | cr0::EM, cr4::OSFXSR, &ADDPS, Some(vector::UD)),
        (0, 0, &PADDB_MM, None),
        (cr0::TS, 0, &PADDB_MM, Some(vector::NM)),
        (cr0::TS | cr0::EM, 0, &PADDB_MM, Some(vector::UD)),
        (cr0::EM, cr4::OSFXSR, &FXSAVE, Some(vector::NM)),
        (cr0::TS | cr0::EM, 0, &MOVNTI, None),
        (cr0::TS | cr0::EM, 0, &CRC32, None),
    ];
    for (set, allowed, code, expected) in cases {
        let mut cpu = machine64();
        cpu.state.gpr[reg::RAX] = SCRATCH;
        cpu.state.cr0 |= set;
        cpu.state.cr4 = cpu.state.cr4 & !cr4::OSFXSR | allowed;
        cpu.mode_changed();
        let vector = run(&mut cpu, code).err().and_then(|_| cpu.pending.fault.take()).map(|e| e.vector);
        assert_eq!(vector, expected, "{code:02x?} with CR0 bits {set:#x}");
    }
}

#[test]
fn unmasked_simd_exceptions_need_the_systems_consent() {
    for (allowed, expected) in [(cr4::OSXMMEXCPT, vector::XM), (0, vector::UD)] {
        let mut cpu = machine64();
        cpu.state.cr4 = cpu.state.cr4 & !cr4::OSXMMEXCPT | allowed;
        cpu.state.fpu.mxcsr = mxcsr::RESET & !(1 << 9);
        cpu.state.fpu.ymm[0].low = 1.0f64.to_bits().into();
        assert_eq!(fault(&mut cpu, &DIVSD), Exception::new(expected), "a division by zero");
        assert_eq!(cpu.state.fpu.ymm[0].low, 1.0f64.to_bits().into(), "the destination is untouched");
        assert_eq!(cpu.state.fpu.mxcsr & mxcsr::FLAGS, 1 << 2, "ZE is flagged");
    }
}

#[test]
fn masked_exceptions_accumulate_in_mxcsr() {
    let mut cpu = machine64();
    cpu.state.fpu.mxcsr |= 1;
    cpu.state.fpu.ymm[0].low = 1.0f64.to_bits().into();
    cpu.state.fpu.ymm[1].low = 3.0f64.to_bits().into();
    run(&mut cpu, &DIVSD).expect("all exceptions are masked");
    assert_eq!(cpu.state.fpu.mxcsr, mxcsr::RESET | 1 | mxcsr::PE);
    assert_eq!(cpu.state.fpu.ymm[0].low, (1.0f64 / 3.0).to_bits().into());
}

#[test]
fn ldmxcsr_refuses_reserved_bits() {
    let mut cpu = machine64();
    cpu.state.gpr[reg::RAX] = SCRATCH;
    cpu.memory.write(Gpa(SCRATCH), &0x1_1f80u32.to_le_bytes()).expect("scratch memory is RAM");
    assert_eq!(fault(&mut cpu, &LDMXCSR), Exception::gp(0));
    assert_eq!(cpu.state.fpu.mxcsr, mxcsr::RESET);
    cpu.memory.write(Gpa(SCRATCH), &0x9fc0u32.to_le_bytes()).expect("scratch memory is RAM");
    run(&mut cpu, &LDMXCSR).expect("FTZ and DAZ exist");
    assert_eq!(cpu.state.fpu.mxcsr, 0x9fc0);
}

/// A processor whose FPU registers all differ.
fn filled() -> Machine {
    let mut cpu = machine64();
    cpu.state.gpr[reg::RAX] = SCRATCH;
    let state = &mut cpu.state.fpu;
    for i in 0..16 {
        state.ymm[i].low = 0x0101_0101_0101_0101_0101_0101_0101_0101 * (i as u128 + 1);
    }
    for i in 0..8 {
        state.st[i] = 0x3fff_8000_0000_0000_0000 + i as u128;
    }
    state.fcw = 0x27f;
    state.fsw = 0x3a20;
    state.ftw = 0xf1;
    state.fop = 0x123;
    state.fip = 0x1111_2222_3333_4444;
    state.fdp = 0x5555_6666_7777_8888;
    state.mxcsr = 0x1fa0;
    cpu
}

#[test]
fn fxsave_has_the_manuals_layout() {
    let mut cpu = filled();
    cpu.memory.write(Gpa(SCRATCH), &[0xee; fxsave::SIZE]).expect("scratch memory is RAM");
    run(&mut cpu, &FXSAVE64).expect("nothing forbids it");
    let area = bytes(&cpu, fxsave::SIZE);
    assert_eq!(area[..8], [0x7f, 2, 0x20, 0x3a, 0xf1, 0, 0x23, 1]);
    assert_eq!(area[8..16], 0x1111_2222_3333_4444u64.to_le_bytes());
    assert_eq!(area[16..24], 0x5555_6666_7777_8888u64.to_le_bytes());
    assert_eq!(area[24..32], [0xa0, 0x1f, 0, 0, 0xff, 0xff, 0, 0]);
    assert_eq!(area[32..48], [0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f, 0, 0, 0, 0, 0, 0]);
    assert_eq!(area[160 + 15 * 16..416], [0x10; 16]);
    assert!(area[416..].iter().all(|byte| *byte == 0xee), "the rest is software's");

    run(&mut cpu, &FXSAVE).expect("nothing forbids it");
    assert_eq!(
        bytes(&cpu, 24)[8..],
        [0x44, 0x44, 0x33, 0x33, 0, 0, 0, 0, 0x88, 0x88, 0x77, 0x77, 0, 0, 0, 0]
    );
}

#[test]
fn fxrstor_takes_back_what_fxsave_stored() {
    let mut cpu = filled();
    let before = cpu.state.fpu.clone();
    run(&mut cpu, &FXSAVE64).expect("nothing forbids it");
    cpu.state.fpu = Default::default();
    run(&mut cpu, &FXRSTOR64).expect("nothing forbids it");
    assert_eq!(cpu.state.fpu, before);

    cpu.memory.write(Gpa(SCRATCH + 26), &[1]).expect("scratch memory is RAM");
    cpu.state.fpu = Default::default();
    assert_eq!(fault(&mut cpu, &FXRSTOR64), Exception::gp(0), "a reserved bit of MXCSR");
    assert_eq!(cpu.state.fpu, Default::default());
    cpu.state.gpr[reg::RAX] = SCRATCH + 8;
    assert_eq!(fault(&mut cpu, &FXSAVE64), Exception::gp(0), "misaligned");
}

#[test]
fn fxrstor_makes_an_unmasked_flag_pending() {
    let mut cpu = filled();
    run(&mut cpu, &FXSAVE64).expect("nothing forbids it");
    cpu.memory.write(Gpa(SCRATCH), &[0x5f, 2]).expect("scratch memory is RAM");
    run(&mut cpu, &FXRSTOR64).expect("loading is not a waiting instruction");
    assert_eq!(cpu.state.fpu.fsw & (fsw::ES | fsw::B), fsw::ES | fsw::B);
    assert_eq!(fault(&mut cpu, &PADDB_MM), Exception::new(vector::MF));
}

#[test]
fn outside_64_bit_code_fxsave_knows_eight_registers() {
    let mut cpu = machine32();
    cpu.state.cr4 |= cr4::OSFXSR;
    cpu.mode_changed();
    cpu.state.gpr[reg::RAX] = SCRATCH;
    cpu.state.fpu.ymm = [Ymm { low: u128::MAX, high: 0 }; 16];
    run(&mut cpu, &FXSAVE).expect("nothing forbids it");
    let area = bytes(&cpu, fxsave::WRITTEN);
    assert!(area[160..288].iter().all(|byte| *byte == 0xff));
    assert!(area[288..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_store_across_an_unmapped_page_leaves_nothing() {
    let mut cpu = machine64();
    // MOVUPS [RAX], XMM0 over the end of the first 4 GiB, where nothing is mapped beyond.
    cpu.state.gpr[reg::RAX] = 0x1_0000_0000 - 8;
    cpu.state.fpu.ymm[0].low = u128::MAX;
    let before = cpu.state.clone();
    assert_eq!(fault(&mut cpu, &[0x0f, 0x11, 0x00]).vector, vector::PF);
    assert_eq!(cpu.state.fpu, before.fpu);
    assert_eq!(cpu.state.rip, before.rip);
}
