//! XSAVE, XSAVEOPT, XSAVEC and XRSTOR against the real processor, for x87 and SSE state.

use std::arch::is_x86_feature_detected;

use satori_defs::fpu::{fcw, fxsave, mxcsr, xsave::*};
use satori_defs::x86::{cr4, vector};
use satori_memory::Gpa;
use satori_state::reg;

use crate::cpu::{Cpu, Stop};
use crate::testing::native::{Native, Registers};
use crate::testing::{Numbers, SCRATCH, decode, execute, machine64};

/// The area under test, and bytes of it.
const AREA: u64 = SCRATCH;
const AREA_LEN: usize = 0x400;
/// Where both processors' state is loaded from and stored to, as FXSAVE does.
const BEFORE: u64 = SCRATCH + 0x1000;
const AFTER: u64 = SCRATCH + 0x1200;
/// The MXCSR that Rust code expects.
const HOST_MXCSR: u64 = SCRATCH + 0x1400;
const LEN: usize = 0x2000;

/// An instruction on [`AREA`]: opcode bytes and the register field of ModRM.
const INSTRUCTIONS: [(&str, [u8; 2], u8); 4] = [
    ("XSAVE64", [0x0f, 0xae], 4),
    ("XSAVEOPT64", [0x0f, 0xae], 6),
    ("XSAVEC64", [0x0f, 0xc7], 4),
    ("XRSTOR64", [0x0f, 0xae], 5),
];

/// `opcode` with REX.W on the memory at `at`.
fn on(opcode: [u8; 2], register: u8, at: u64) -> Vec<u8> {
    [&[0x48][..], &opcode, &[register << 3 | 4, 0x25], &(at as u32).to_le_bytes()].concat()
}

/// An FXSAVE image, often with initial values in it.
fn image(numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = vec![0; fxsave::SIZE];
    bytes[fxsave::FCW..fxsave::FCW + 2].copy_from_slice(&0x37fu16.to_le_bytes());
    bytes[fxsave::MXCSR..fxsave::MXCSR + 4].copy_from_slice(&mxcsr::RESET.to_le_bytes());
    let mut fill = |numbers: &mut Numbers, range: std::ops::Range<usize>| {
        bytes[range].fill_with(|| numbers.any() as u8);
    };
    if numbers.below(2) == 0 {
        for i in 0..8 {
            fill(numbers, fxsave::ST0 + 16 * i..fxsave::ST0 + 16 * i + 10);
        }
        fill(numbers, fxsave::FTW..fxsave::FTW + 1);
        // TOP and condition codes: an exception would be pending when the test goes on.
        fill(numbers, fxsave::FSW + 1..fxsave::FSW + 2);
    }
    if numbers.below(2) == 0 {
        fill(numbers, fxsave::XMM0..fxsave::WRITTEN);
    }
    if numbers.below(2) == 0 {
        fill(numbers, fxsave::MXCSR..fxsave::MXCSR + 1);
    }
    bytes[fxsave::FSW + 1] &= 0x7f;
    bytes
}

/// A header that is mostly sound.
fn header(numbers: &mut Numbers) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_SIZE];
    let held = numbers.below(4);
    let placed = if numbers.below(2) == 0 { 0 } else { COMPACTED | held | numbers.below(4) };
    bytes[..8].copy_from_slice(&held.to_le_bytes());
    bytes[8..16].copy_from_slice(&placed.to_le_bytes());
    if numbers.below(4) == 0 {
        bytes[numbers.below(HEADER_SIZE as u64) as usize] ^= 1 << numbers.below(8);
    }
    // Components that the host's operating system manages and this test does not.
    bytes[0] &= 3;
    bytes[1..7].fill(0);
    bytes[8] &= 3;
    bytes[9..15].fill(0);
    bytes
}

struct Outcome {
    fault: Option<u8>,
    area: Vec<u8>,
    after: Vec<u8>,
}

fn native(native: &mut Native, code: &[u8], mask: u64, memory: &[u8]) -> Outcome {
    native.scratch().copy_from_slice(memory);
    let before = on([0x0f, 0xae], 1, BEFORE);
    // FXSAVE64, FNINIT, LDMXCSR.
    let host_mxcsr = on([0x0f, 0xae], 2, HOST_MXCSR);
    let after = [on([0x0f, 0xae], 0, AFTER), vec![0xdb, 0xe3], host_mxcsr].concat();
    let mut registers = Registers::default();
    registers.gpr[reg::RAX] = mask;
    let fault = native.run_between(&before, code, &after, &mut registers).err();
    let at = (AFTER - SCRATCH) as usize;
    let scratch = native.scratch();
    Outcome { fault, area: scratch[..AREA_LEN].to_vec(), after: scratch[at..at + fxsave::WRITTEN].to_vec() }
}

fn ours(cpu: &mut Cpu, code: &[u8], mask: u64, memory: &[u8]) -> Outcome {
    cpu.memory.write(Gpa(SCRATCH), memory).unwrap();
    cpu.state.gpr = [0; 18];
    cpu.state.gpr[reg::RAX] = mask;
    let mut run = |code: &[u8]| {
        let insn = decode(cpu, code);
        let handler = cpu.isa.handler(&insn);
        match execute(cpu, &insn, handler) {
            Err(Stop::Fault) => cpu.pending.fault.take().map(|exception| exception.vector),
            outcome => {
                outcome.expect("nothing leaves for the machine");
                None
            }
        }
    };
    assert_eq!(run(&on([0x0f, 0xae], 1, BEFORE)), None);
    let fault = run(code);
    assert_eq!(run(&on([0x0f, 0xae], 0, AFTER)), None);
    let (mut area, mut after) = (vec![0; AREA_LEN], vec![0; fxsave::WRITTEN]);
    cpu.memory.read(Gpa(AREA), &mut area).unwrap();
    cpu.memory.read(Gpa(AFTER), &mut after).unwrap();
    Outcome { fault, area, after }
}

/// Where a component's registers are in an area's legacy region, with their initial values but for what is 0.
fn registers(component: u64, compacted: bool) -> Vec<(std::ops::Range<usize>, Vec<u8>)> {
    let mxcsr = || (fxsave::MXCSR..fxsave::MXCSR_MASK, mxcsr::RESET.to_le_bytes().to_vec());
    match component {
        X87 => vec![
            (0..fxsave::MXCSR, fcw::INIT.to_le_bytes().to_vec()),
            (fxsave::ST0..fxsave::XMM0, Vec::new()),
        ],
        // The other instructions store it whatever is in use.
        _ if compacted => vec![mxcsr(), (fxsave::XMM0..fxsave::WRITTEN, Vec::new())],
        _ => vec![(fxsave::XMM0..fxsave::WRITTEN, Vec::new())],
    }
}

/// Makes `theirs` what it had been without the components that the processor calls in use although they have their
/// initial values, as it may (SDM volume 1, 13.6): such a component is stored, with these values.
fn disuse(theirs: &mut [u8], ours: &[u8], requested: u64, compacted: bool) {
    for component in [X87, SSE].into_iter().filter(|component| requested & component != 0) {
        let bit = component as u8;
        if theirs[HEADER] & bit == 0 || ours[HEADER] & bit != 0 {
            continue;
        }
        theirs[HEADER] &= !bit;
        for (range, values) in registers(component, compacted) {
            assert!(is_initial(&theirs[range.clone()], &values), "{component} is not initial");
            theirs[range.clone()].copy_from_slice(&ours[range]);
        }
    }
}

/// Whether `bytes` begin with `values` and are 0 behind them.
fn is_initial(bytes: &[u8], values: &[u8]) -> bool {
    bytes.iter().zip(values.iter().chain(std::iter::repeat(&0))).all(|(a, b)| a == b)
}

/// Takes back what Intel's do to the registers before they refuse the MXCSR of a compacted area: all others are loaded, and have
/// their initial values where the area does not hold them.
fn take_back(theirs: &mut [u8], ours: &[u8], area: &[u8], requested: u64) {
    let compacted = area[HEADER + 15] & (COMPACTED >> 56) as u8 != 0;
    for component in [X87, SSE].into_iter().filter(|component| compacted && requested & component != 0) {
        for (range, values) in registers(component, false) {
            let held = u64::from(area[HEADER]) & component != 0;
            let loaded = held && theirs[range.clone()] == area[range.clone()];
            if loaded || !held && is_initial(&theirs[range.clone()], &values) {
                theirs[range.clone()].copy_from_slice(&ours[range]);
            }
        }
    }
}

#[test]
fn saved_and_restored_states_are_the_real_processors() {
    // To AMD's processors a component is in use if it does not have its initial values, as it is here.
    let exact = std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|told| told.contains("AuthenticAMD"));
    if !is_x86_feature_detected!("xsave") {
        eprintln!("skipped: the host has no XSAVE");
        return;
    }
    let mut numbers = Numbers(0x7873_6176);
    let mut host = Native::new(SCRATCH, LEN);
    let mut cpu = machine64();
    cpu.state.cr4 |= cr4::OSXSAVE;
    cpu.state.xcr0 = X87 | SSE;
    let (mut faults, mut done) = (0, 0);
    for (name, opcode, register) in INSTRUCTIONS {
        let present = match name {
            "XSAVEOPT64" => is_x86_feature_detected!("xsaveopt"),
            "XSAVEC64" => is_x86_feature_detected!("xsavec"),
            _ => true,
        };
        for _ in 0..if present { 2000 } else { 0 } {
            let mut memory = vec![0; LEN];
            memory[..fxsave::SIZE].copy_from_slice(&image(&mut numbers));
            memory[HEADER..EXTENDED].copy_from_slice(&header(&mut numbers));
            if numbers.below(16) == 0 {
                memory[fxsave::MXCSR + 2] = 1;
            }
            let before = (BEFORE - SCRATCH) as usize;
            memory[before..before + fxsave::SIZE].copy_from_slice(&image(&mut numbers));
            let host_mxcsr = (HOST_MXCSR - SCRATCH) as usize;
            memory[host_mxcsr..host_mxcsr + 4].copy_from_slice(&mxcsr::RESET.to_le_bytes());
            let mask = numbers.below(4);
            let misaligned = if numbers.below(32) == 0 { 8 * numbers.below(8) } else { 0 };
            let code = on(opcode, register, AREA + misaligned);
            let ours = ours(&mut cpu, &code, mask, &memory);
            let mut theirs = native(&mut host, &code, mask, &memory);
            // A kernel that switches away in between restores what is in its initial state as not in
            // use, and XSTATE_BV tells.
            for _ in 0..2 {
                if theirs.area[..fxsave::MXCSR_MASK] != ours.area[..fxsave::MXCSR_MASK]
                    || theirs.area[HEADER..] != ours.area[HEADER..]
                {
                    theirs = native(&mut host, &code, mask, &memory);
                }
            }
            if !exact && name != "XRSTOR64" {
                disuse(&mut theirs.area, &ours.area, mask, name == "XSAVEC64");
            }
            if !exact && name == "XRSTOR64" && theirs.fault == Some(vector::GP) {
                take_back(&mut theirs.after, &ours.after, &memory, mask);
            }
            let case = format!("{name} of {mask} with header {:02x?}", &memory[HEADER..EXTENDED]);
            assert_eq!(ours.fault, theirs.fault, "{case}");
            for (what, ours, theirs) in
                [("area", &ours.area, &theirs.area), ("state", &ours.after, &theirs.after)]
            {
                // Some of AMD's processors have one more bit in MXCSR, and so in its mask.
                let compared = (0..ours.len()).filter(|i| !(fxsave::MXCSR_MASK..fxsave::ST0).contains(i));
                let differ: Vec<_> = compared.filter(|i| ours[*i] != theirs[*i]).collect();
                assert!(differ.is_empty(), "{case}: {what} differs at {differ:?}");
            }
            match ours.fault {
                None => done += 1,
                Some(fault) => {
                    assert_eq!(fault, vector::GP);
                    faults += 1;
                }
            }
        }
    }
    assert!(done > 1000 && faults > 50, "{done} cases without and {faults} with a fault");
}
