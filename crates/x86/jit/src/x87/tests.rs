//! The x87's control word while hot code loads it, on both engines.

use satori_defs::fpu::fcw;
use satori_engine::{Exit, Until};
use satori_memory::Gpa;
use satori_state::reg;

use crate::testing::{Machine, machine64};
use crate::{Host, Jit, Manner, Pool, reason};

const CODE: u64 = 0x1_0000;
const DATA: u64 = 0x2_0000;
const ROUNDS: u64 = 1_000;
const CUTS_OFF: u16 = 0x0f7f;
/// Of single precision.
const SINGLE: u16 = 0x007f;
/// A division by zero is no fault only because none comes.
const UNMASKED: u16 = SINGLE & !4;

/// Each round: 2.7 to an integer under the first and second word, 1 / 2.7 under the third, and the word; HLT behind the last.
#[rustfmt::skip]
const LOOP: [u8; 37] = [
    0xd9, 0x2b, 0xdd, 0x43, 0x08, 0xdb, 0x5b, 0x10, // FLDCW [RBX]; FLD QWORD [RBX+8]; FISTP DWORD [RBX+16]
    0xd9, 0x6b, 0x02, 0xdd, 0x43, 0x08, 0xdb, 0x5b, 0x14, // FLDCW [RBX+2]; FLD QWORD [RBX+8]; FISTP DWORD [RBX+20]
    0xd9, 0x6b, 0x04, 0xd9, 0xe8, 0xdc, 0x73, 0x08, 0xdd, 0x5b, 0x18, // FLDCW [RBX+4]; FLD1; FDIV QWORD [RBX+8]; FSTP QWORD [RBX+24]
    0xd9, 0x7b, 0x20, // FNSTCW [RBX+32]
    0x49, 0xff, 0xcd, 0x75, 0xdc, // DEC R13; JNE to the start
    0xf4,
];

fn ran(third: u16, translates: bool) -> Machine {
    let mut cpu = machine64();
    let data = [CUTS_OFF.to_le_bytes(), fcw::INIT.to_le_bytes(), third.to_le_bytes(), [0; 2]].concat();
    cpu.memory().write(Gpa(CODE), &LOOP).expect("RAM");
    cpu.memory().write(Gpa(DATA), &[&data[..], &2.7f64.to_le_bytes()].concat()).expect("RAM");
    cpu.state.rip = CODE;
    cpu.state.gpr[reg::RBX] = DATA;
    cpu.state.gpr[reg::R13] = ROUNDS;
    if translates {
        let manner = Manner { hot: 2, counting: false, watcher: None, host: Host::default() };
        cpu.put(Jit::new(&Pool::default(), manner));
    }
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    cpu
}

/// What the loop stored: both integers, the quotient, the word.
fn stored(cpu: &Machine) -> (i32, i32, f64, u16) {
    let mut bytes = [0; 18];
    cpu.memory().read(Gpa(DATA + 16), &mut bytes).expect("RAM");
    let part = |from: usize| bytes[from..].first_chunk().expect("in the array");
    let quotient = f64::from_le_bytes(*bytes[8..].first_chunk().expect("in the array"));
    let word = u16::from_le_bytes(*bytes[16..].first_chunk().expect("in the array"));
    (i32::from_le_bytes(*part(0)), i32::from_le_bytes(*part(4)), quotient, word)
}

#[test]
fn a_control_word_counts_from_the_next_instruction_on_without_leaving_translated_code() {
    for (third, leaves) in [(SINGLE, false), (UNMASKED, true)] {
        let (interpreted, translated) = (ran(third, false), ran(third, true));
        let single = f64::from(1.0f32 / 2.7f32);
        for cpu in [&interpreted, &translated] {
            let (cut, nearest, quotient, word) = stored(cpu);
            assert_eq!((cut, nearest, word), (2, 3, third | fcw::FIXED));
            assert!((quotient - single).abs() < 1e-7 && quotient.to_bits() << 35 == 0, "it has 24 bits");
            assert_eq!(cpu.state.fpu.fcw, word);
        }
        assert_eq!(interpreted.retired(), translated.retired());
        let left = translated.jit().expect("it translates").counts.left[reason::STEP as usize];
        assert_eq!(left > ROUNDS / 2, leaves, "left {left} times");
    }
}
