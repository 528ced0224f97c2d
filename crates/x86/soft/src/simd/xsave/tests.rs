//! The XSAVE family as the manual has it: formats, headers, refusals.

use satori_cpuid::{Feature, Offered};
use satori_defs::fpu::{fxsave, mxcsr, xsave::*};
use satori_defs::x86::{cr0, cr4, vector};
use satori_engine::Exception;
use satori_memory::Gpa;
use satori_state::{Segment, reg, seg};

use crate::cpu::{Cpu, Exec};
use crate::testing::{Machine, SCRATCH, SCRATCH_LEN, decode, execute, fault_of, machine64, machine64_with};

const XSAVE: [u8; 4] = [0x48, 0x0f, 0xae, 0x20];
const XSAVEOPT: [u8; 4] = [0x48, 0x0f, 0xae, 0x30];
const XSAVEC: [u8; 4] = [0x48, 0x0f, 0xc7, 0x20];
const XSAVES: [u8; 4] = [0x48, 0x0f, 0xc7, 0x28];
const XRSTOR: [u8; 4] = [0x48, 0x0f, 0xae, 0x28];
const XRSTORS: [u8; 4] = [0x48, 0x0f, 0xc7, 0x18];
const XGETBV: [u8; 3] = [0x0f, 0x01, 0xd0];

/// Bytes of memory that the tests look at.
const LEN: usize = 0x1000;
/// The page directory of `machine64`, by 2-MiB page.
const PAGE_DIRECTORY: u64 = 0x3000;
/// PKRU's place in the standard format.
const PKRU_AT: usize = 2688;

fn processor() -> Machine {
    let mut cpu = machine64();
    cpu.state.cr4 |= cr4::OSXSAVE;
    cpu.state.xcr0 = X87 | SSE | PKRU;
    cpu.state.gpr[reg::RCX] = SCRATCH;
    fill(&mut cpu, 0xcc);
    cpu
}

fn fill(cpu: &mut Cpu, byte: u8) {
    cpu.memory.write(Gpa(SCRATCH), &[byte; LEN]).unwrap();
}

/// Executes `code`, made for [RAX], on [RCX] with the component mask in RAX.
fn run(cpu: &mut Cpu, code: &[u8], mask: u64) -> Exec<()> {
    cpu.state.gpr[reg::RAX] = mask & 0xffff_ffff;
    cpu.state.gpr[reg::RDX] = mask >> 32;
    let mut code = code.to_vec();
    if let [.., modrm] = &mut code[..] {
        *modrm |= u8::from(*modrm < 0xc0);
    }
    let insn = decode(cpu, &code);
    let handler = cpu.isa.handler(&insn);
    execute(cpu, &insn, handler)
}

fn fault(cpu: &mut Cpu, code: &[u8], mask: u64) -> Exception {
    let outcome = run(cpu, code, mask);
    fault_of(cpu, outcome)
}

fn area(cpu: &Cpu) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    cpu.memory.read(Gpa(SCRATCH), &mut bytes).unwrap();
    bytes
}

fn word(cpu: &Cpu, at: usize) -> u64 {
    u64::from_le_bytes(area(cpu)[at..at + 8].try_into().unwrap())
}

fn put(cpu: &mut Cpu, at: usize, value: u64) {
    cpu.memory.write(Gpa(SCRATCH + at as u64), &value.to_le_bytes()).unwrap();
}

/// A header of zeroes but for these.
fn set_header(cpu: &mut Cpu, xstate: u64, xcomp: u64) {
    cpu.memory.write(Gpa(SCRATCH + HEADER as u64), &[0; HEADER_SIZE]).unwrap();
    put(cpu, XSTATE_BV, xstate);
    put(cpu, XCOMP_BV, xcomp);
}

fn xmm(cpu: &Cpu) -> [u128; 16] {
    cpu.state.fpu.ymm.map(|ymm| ymm.low)
}

fn set_xmm(cpu: &mut Cpu, value: impl Fn(usize) -> u128) {
    for (i, ymm) in cpu.state.fpu.ymm.iter_mut().enumerate() {
        ymm.low = value(i);
    }
}

fn busy(cpu: &mut Cpu) {
    set_xmm(cpu, |i| 0x1111_1111_1111_1111_1111 * (i as u128 + 1));
    cpu.state.fpu.st[2] = 0x4000_c000_0000_0000_0000;
    cpu.state.fpu.ftw = 4;
    cpu.state.fpu.mxcsr = mxcsr::RESET | mxcsr::FTZ;
    cpu.state.pkru = 0x5555_5554;
}

#[test]
fn a_state_survives_every_pair_of_save_and_restore() {
    for (save, restore) in
        [(XSAVE, XRSTOR), (XSAVEOPT, XRSTOR), (XSAVEC, XRSTOR), (XSAVES, XRSTORS), (XSAVEC, XRSTORS)]
    {
        for used in [false, true] {
            let mut cpu = processor();
            // The standard format keeps what it finds in the header.
            set_header(&mut cpu, 0, 0);
            if used {
                busy(&mut cpu);
            }
            let (fpu, pkru) = (cpu.state.fpu.clone(), cpu.state.pkru);
            run(&mut cpu, &save, u64::MAX).unwrap();
            let held = if used { X87 | SSE | PKRU } else { 0 };
            assert_eq!(word(&cpu, XSTATE_BV), held, "{save:02x?}");
            set_xmm(&mut cpu, |_| 7);
            cpu.state.fpu.fcw = 0x40;
            cpu.state.fpu.mxcsr = 0;
            cpu.state.pkru = 3;
            run(&mut cpu, &restore, u64::MAX).unwrap();
            assert_eq!((&cpu.state.fpu, cpu.state.pkru), (&fpu, pkru), "{save:02x?}, used: {used}");
        }
    }
}

#[test]
fn only_what_is_asked_for_is_written() {
    let mut cpu = processor();
    busy(&mut cpu);
    run(&mut cpu, &XSAVE, PKRU).unwrap();
    let bytes = area(&cpu);
    let changed: Vec<_> = (0..LEN).filter(|i| bytes[*i] != 0xcc).collect();
    let expected: Vec<_> = [XSTATE_BV + 1].into_iter().chain(PKRU_AT..PKRU_AT + 8).collect();
    assert_eq!(changed, expected);
    assert_eq!(word(&cpu, XSTATE_BV), 0xcccc_cccc_cccc_cccc | PKRU);
    assert_eq!(word(&cpu, PKRU_AT), 0x5555_5554);

    // XSAVEC writes both fields whole, and the component right behind the header.
    fill(&mut cpu, 0xcc);
    run(&mut cpu, &XSAVEC, PKRU | SSE).unwrap();
    assert_eq!((word(&cpu, XSTATE_BV), word(&cpu, XCOMP_BV)), (PKRU | SSE, PKRU | SSE | COMPACTED));
    assert_eq!(word(&cpu, XCOMP_BV + 8), 0xcccc_cccc_cccc_cccc);
    assert_eq!(word(&cpu, EXTENDED), 0x5555_5554);
    assert_eq!(word(&cpu, fxsave::FCW), 0xcccc_cccc_cccc_cccc);
    assert_eq!(word(&cpu, fxsave::MXCSR) as u32, cpu.state.fpu.mxcsr);
}

#[test]
fn components_with_initial_values_are_left_out() {
    for (code, writes_mxcsr) in [(XSAVEOPT, true), (XSAVEC, false)] {
        let mut cpu = processor();
        set_header(&mut cpu, 0, 0);
        run(&mut cpu, &code, u64::MAX).unwrap();
        assert_eq!(word(&cpu, XSTATE_BV), 0);
        let bytes = area(&cpu);
        let written = (0..HEADER).any(|i| bytes[i] != 0xcc);
        assert_eq!(written, writes_mxcsr, "{code:02x?}");
        assert_eq!(word(&cpu, fxsave::XMM0), 0xcccc_cccc_cccc_cccc);
        // MXCSR alone makes SSE state in use for XSAVEC.
        cpu.state.fpu.mxcsr = mxcsr::RESET | 1;
        run(&mut cpu, &code, u64::MAX).unwrap();
        assert_eq!(word(&cpu, XSTATE_BV), if writes_mxcsr { 0 } else { SSE });
    }
    // XSAVE writes them, but says what they are.
    let mut cpu = processor();
    set_header(&mut cpu, X87 | 4, 0);
    run(&mut cpu, &XSAVE, u64::MAX).unwrap();
    assert_eq!(word(&cpu, XSTATE_BV), 4);
    assert_eq!(word(&cpu, fxsave::XMM0), 0);
    assert_eq!(word(&cpu, fxsave::FCW) as u16, 0x37f);
}

#[test]
fn mxcsr_follows_the_format() {
    // Standard: loaded for SSE although the area does not hold it.
    let mut cpu = processor();
    fill(&mut cpu, 0);
    put(&mut cpu, fxsave::MXCSR, 0x1f81);
    run(&mut cpu, &XRSTOR, SSE).unwrap();
    assert_eq!(cpu.state.fpu.mxcsr, 0x1f81);
    // Not loaded for x87 alone.
    put(&mut cpu, fxsave::MXCSR, 0x1_0000);
    run(&mut cpu, &XRSTOR, X87).unwrap();
    assert_eq!(fault(&mut cpu, &XRSTOR, SSE), Exception::gp(0));
    // Compacted: initialised if the area does not hold SSE state.
    set_header(&mut cpu, 0, COMPACTED | SSE);
    run(&mut cpu, &XRSTOR, SSE).unwrap();
    assert_eq!(cpu.state.fpu.mxcsr, mxcsr::RESET);
    set_header(&mut cpu, SSE, COMPACTED | SSE);
    assert_eq!(fault(&mut cpu, &XRSTOR, SSE), Exception::gp(0));
    run(&mut cpu, &XRSTOR, X87).unwrap();
}

#[test]
fn a_reserved_bit_in_the_header_is_refused_before_anything_changes() {
    // XSTATE_BV, XCOMP_BV, word of the header that is not 0; XRSTOR's and XRSTORS's opinion.
    let cases = [
        (X87, 0, 8, true, false),
        (AVX, 0, 8, false, false),
        (1 << 63, 0, 8, false, false),
        (X87, 1, 8, false, false),
        (X87, 0, 2, false, false),
        (X87, 0, 3, true, false),
        (X87, COMPACTED | X87 | SSE, 8, true, true),
        (X87, COMPACTED | SSE, 8, false, false),
        (X87, COMPACTED | X87 | AVX, 8, false, false),
        // Bit 63 is of XCOMP_BV alone, as a real processor (Zen 5) has it.
        (1 << 63, COMPACTED | X87, 8, false, false),
        (X87, COMPACTED | X87, 2, false, false),
        (X87, COMPACTED | X87, 7, false, false),
    ];
    for (xstate, xcomp, word, user, supervisor) in cases {
        for (code, sound) in [(XRSTOR, user), (XRSTORS, supervisor)] {
            let mut cpu = processor();
            fill(&mut cpu, 0);
            set_header(&mut cpu, xstate, xcomp);
            if word < 8 {
                put(&mut cpu, HEADER + 8 * word, 1);
            }
            busy(&mut cpu);
            let before = cpu.state.fpu.clone();
            if sound {
                run(&mut cpu, &code, u64::MAX).unwrap();
                assert_eq!(xmm(&cpu), [0; 16]);
            } else {
                assert_eq!(fault(&mut cpu, &code, 0), Exception::gp(0), "{xstate:x} {xcomp:x} {word}");
                assert_eq!(cpu.state.fpu, before);
            }
        }
    }
    // Without XSAVEC there is no compacted format.
    let mut offered = Offered::EVERYTHING;
    offered.features.set(Feature::Xsavec, false);
    let mut cpu = machine64_with(offered);
    cpu.state.cr4 |= cr4::OSXSAVE;
    cpu.state.xcr0 = X87 | SSE;
    cpu.state.gpr[reg::RCX] = SCRATCH;
    set_header(&mut cpu, 0, COMPACTED);
    assert_eq!(fault(&mut cpu, &XRSTOR, 0), Exception::gp(0));
}

#[test]
fn faults_come_in_the_manuals_order() {
    for code in [XSAVE, XSAVEOPT, XSAVEC, XSAVES, XRSTOR, XRSTORS] {
        let mut cpu = processor();
        set_header(&mut cpu, 0, COMPACTED);
        // Misaligned, without a register file to use, without the operating system's consent.
        cpu.state.gpr[reg::RCX] = SCRATCH + 32;
        assert_eq!(fault(&mut cpu, &code, 0), Exception::gp(0));
        cpu.state.cr0 |= cr0::TS;
        assert_eq!(fault(&mut cpu, &code, 0), Exception::new(vector::NM));
        cpu.state.cr4 &= !cr4::OSXSAVE;
        assert_eq!(fault(&mut cpu, &code, 0), Exception::ud());
        // CR0.EM does not matter.
        cpu = processor();
        cpu.state.cr0 |= cr0::EM;
        cpu.state.cr4 &= !cr4::OSFXSR;
        set_header(&mut cpu, 0, COMPACTED);
        run(&mut cpu, &code, 0).unwrap();
        // A page that is not there.
        cpu.state.gpr[reg::RCX] = 0x1_0000_0000;
        assert_eq!(fault(&mut cpu, &code, 0).vector, vector::PF);
    }
    for code in [XSAVES, XRSTORS] {
        let mut cpu = processor();
        cpu.state.seg[seg::SS] = Segment::flat(0x13, 0xc0f3);
        cpu.state.seg[seg::CS] = Segment::flat(0xb, 0xa0fb);
        cpu.mode_changed();
        assert_eq!(fault(&mut cpu, &code, 0), Exception::gp(0));
    }
}

#[test]
fn a_fault_in_the_area_leaves_nothing_behind() {
    let mut cpu = processor();
    busy(&mut cpu);
    // All but PKRU's place is on the last page of the scratch memory; the next one is not there.
    let entry = PAGE_DIRECTORY + 8 * ((SCRATCH + SCRATCH_LEN) >> 21);
    cpu.memory.write(Gpa(entry), &[0; 8]).unwrap();
    let at = SCRATCH + SCRATCH_LEN - 0x800;
    cpu.state.gpr[reg::RCX] = at;
    let read = |cpu: &Cpu| {
        let mut bytes = vec![0; 0x800];
        cpu.memory.read(Gpa(at), &mut bytes).unwrap();
        bytes
    };
    let before = read(&cpu);
    let raised = fault(&mut cpu, &XSAVE, u64::MAX);
    assert_eq!((raised.vector, raised.payload), (vector::PF, at + PKRU_AT as u64));
    assert!(read(&cpu) == before, "part of the area was written");
    run(&mut cpu, &XSAVE, X87 | SSE).unwrap();

    // XRSTOR changes no register either, and looks only where it has to.
    let held = u64::from_le_bytes(read(&cpu)[XSTATE_BV..XSTATE_BV + 8].try_into().unwrap());
    assert_eq!(held, X87 | SSE);
    cpu.memory.write(Gpa(at + XSTATE_BV as u64), &(X87 | SSE | PKRU).to_le_bytes()).unwrap();
    set_xmm(&mut cpu, |_| 5);
    assert_eq!(fault(&mut cpu, &XRSTOR, u64::MAX).vector, vector::PF);
    assert_eq!(xmm(&cpu), [5; 16]);
    run(&mut cpu, &XRSTOR, X87 | SSE).unwrap();
    assert_ne!(xmm(&cpu), [5; 16]);
}

#[test]
fn outside_64_bit_code_only_eight_registers_move() {
    let mut cpu = processor();
    busy(&mut cpu);
    cpu.state.seg[seg::CS] = Segment::flat(8, 0xc09b);
    cpu.mode_changed();
    run(&mut cpu, &XSAVE[1..], u64::MAX).unwrap();
    assert_ne!(word(&cpu, fxsave::XMM0 + 7 * 16), 0xcccc_cccc_cccc_cccc);
    assert_eq!(word(&cpu, fxsave::XMM0 + 8 * 16), 0xcccc_cccc_cccc_cccc);
    set_header(&mut cpu, 0, 0);
    run(&mut cpu, &XRSTOR[1..], u64::MAX).unwrap();
    assert_eq!(cpu.state.fpu.ymm[7].low, 0);
    assert_ne!(cpu.state.fpu.ymm[8].low, 0);
}

#[test]
fn xgetbv_tells_what_is_in_use() {
    let mut cpu = processor();
    let get = |cpu: &mut Cpu, index| {
        cpu.state.gpr[reg::RCX] = index;
        run(cpu, &XGETBV, 0)?;
        Ok(cpu.state.gpr[reg::RDX] << 32 | cpu.state.gpr[reg::RAX])
    };
    assert_eq!(get(&mut cpu, 0), Ok(X87 | SSE | PKRU));
    assert_eq!(get(&mut cpu, 1), Ok(0));
    busy(&mut cpu);
    assert_eq!(get(&mut cpu, 1), Ok(X87 | SSE | PKRU));
    let outcome = get(&mut cpu, 2).map(drop);
    assert_eq!(fault_of(&mut cpu, outcome), Exception::gp(0));
}
