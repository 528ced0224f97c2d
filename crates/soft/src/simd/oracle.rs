//! Compares single vector and x87 instructions with the real processor: the same registers and
//! memory before, everything visible after.

use iced_x86::{Instruction, Mnemonic, OpKind};
use satori_defs::fpu::{fsw, fxsave, mxcsr};
use satori_defs::x86::{rflags, vector};
use satori_memory::Gpa;
use satori_state::{FpuState, reg};

use crate::cpu::{Cpu, Handler, Stop};
use crate::fpu;
use crate::testing::native::{Native, Registers};
use crate::testing::{Numbers, SCRATCH, decode, execute, machine64};

/// Bytes of memory on both sides.
const LEN: usize = 0x2000;
/// Where instructions find their memory operand, and bytes that are compared.
const OPERANDS: usize = 0x1000;
/// Where the native state is loaded from, saved to, and the MXCSR that Rust code expects.
const BEFORE: usize = 0;
const AFTER: usize = 0x200;
const HOST_MXCSR: usize = 0x400;

/// The real processor and ours, side by side.
pub struct Oracle {
    native: Native,
    cpu: Cpu,
    /// The source of every choice.
    pub numbers: Numbers,
}

impl Oracle {
    /// Both processors, and choices from `seed`.
    pub fn new(seed: u64) -> Self {
        Oracle { native: Native::new(SCRATCH, LEN), cpu: machine64(), numbers: Numbers(seed) }
    }

    /// An encoding of `prefix`, REX, `opcode` and ModRM, whose memory operand, if it has one, is in
    /// the scratch memory; aligned to 16 bytes but for a few.
    pub fn encoding(&mut self, prefix: &[u8], opcode: &[u8], modrm: u8) -> Vec<u8> {
        let numbers = &mut self.numbers;
        let mut bytes = prefix.to_vec();
        let memory = modrm < 0xc0;
        if numbers.below(2) == 0 {
            // REX.X would add an index to a memory operand.
            bytes.push(0x40 | numbers.any() as u8 & if memory { 0xd } else { 0xf });
        }
        bytes.extend(opcode);
        if memory {
            let misaligned = if numbers.below(8) == 0 { numbers.below(16) } else { 0 };
            let at = SCRATCH as u32 + OPERANDS as u32 + 0x100 + misaligned as u32;
            bytes.extend([modrm & 0x38 | 4, 0x25]);
            bytes.extend(at.to_le_bytes());
        } else {
            bytes.push(modrm);
        }
        bytes.push(numbers.any() as u8);
        bytes
    }

    /// Decodes for the processor under test.
    pub fn decode(&self, bytes: &[u8]) -> Instruction {
        decode(&self.cpu, bytes)
    }

    /// Executes `insn` on both with chosen operands.
    pub fn compare(&mut self, bytes: &[u8], insn: &Instruction, handler: Handler) {
        let bytes = &bytes[..insn.len()];
        let state = state(&mut self.numbers);
        let mut registers = Registers { gpr: [0; 16], rflags: self.numbers.any() & rflags::STATUS };
        for register in &mut registers.gpr {
            *register = if self.numbers.below(3) == 0 { self.numbers.below(20) } else { self.numbers.edgy() };
        }
        if matches!(insn.op0_kind(), OpKind::MemorySegRDI | OpKind::MemorySegEDI) {
            registers.gpr[reg::RDI] = SCRATCH + OPERANDS as u64 + self.numbers.below(0x100);
        }
        let operands: Vec<u8> = (0..0x40).flat_map(|_| value(&mut self.numbers).to_le_bytes()).collect();
        let given = (state.clone(), registers);

        self.cpu.state.fpu = state.clone();
        self.cpu.state.gpr[..16].copy_from_slice(&registers.gpr);
        self.cpu.state.rip = 0x1_0000;
        self.cpu.flags.set_bits(registers.rflags);
        let at = SCRATCH + OPERANDS as u64;
        self.cpu.memory.write(Gpa(at), &operands).expect("scratch memory is RAM");
        let fault = match execute(&mut self.cpu, insn, handler) {
            Ok(()) => None,
            Err(Stop::Fault) => self.cpu.fault.take().map(|exception| exception.vector),
            Err(Stop::Exit | Stop::Alone) => panic!("{bytes:02x?} left for the machine"),
        };
        let mut memory = vec![0; operands.len()];
        self.cpu.memory.read(Gpa(at), &mut memory).expect("scratch memory is RAM");
        let ours =
            Registers { gpr: std::array::from_fn(|i| self.cpu.state.gpr[i]), rflags: self.cpu.flags.bits() };

        let scratch = self.native.scratch();
        scratch[OPERANDS..OPERANDS + operands.len()].copy_from_slice(&operands);
        scratch[BEFORE..BEFORE + fxsave::SIZE].copy_from_slice(&image(&state));
        scratch[HOST_MXCSR..HOST_MXCSR + 4].copy_from_slice(&mxcsr::RESET.to_le_bytes());
        let address = |at: usize| (SCRATCH as u32 + at as u32).to_le_bytes();
        // FXRSTOR64, then FXSAVE64, FNINIT, LDMXCSR.
        let before = [&[0x48, 0x0f, 0xae, 0x0c, 0x25][..], &address(BEFORE)].concat();
        let after = [
            &[0x48, 0x0f, 0xae, 0x04, 0x25][..],
            &address(AFTER),
            &[0xdb, 0xe3, 0x0f, 0xae, 0x14, 0x25],
            &address(HOST_MXCSR),
        ]
        .concat();
        let native_fault = match self.native.run_between(&before, bytes, &after, &mut registers) {
            Ok(()) => None,
            // The signal for arithmetic does not tell its exceptions apart.
            Err(vector::DE) => Some(vector::XM),
            Err(vector) => Some(vector),
        };
        registers.rflags &= rflags::STATUS;
        let scratch = self.native.scratch();
        let mut native_state = parse(&scratch[AFTER..AFTER + fxsave::SIZE], &self.cpu.state.fpu);

        if native_fault == Some(vector::XM) {
            // AMD's processors enter MMX mode before a conversion faults; ours leaves nothing behind.
            let ours = &self.cpu.state.fpu;
            native_state.st = ours.st;
            native_state.fsw = ours.fsw;
            native_state.ftw = ours.ftw;
            // Whether an unmasked overflow or underflow was inexact too, ours does not know: it
            // sees PE of the masked result.
            if native_state.mxcsr & (mxcsr::OE | mxcsr::UE) != 0 {
                native_state.mxcsr |= ours.mxcsr & mxcsr::PE;
            }
            // A dot product faults at its first step that must, with the flags up to there.
            if matches!(insn.mnemonic(), Mnemonic::Dpps | Mnemonic::Dppd) {
                native_state.mxcsr = ours.mxcsr;
            }
        }
        let compares = matches!(
            insn.mnemonic(),
            Mnemonic::Fcomi | Mnemonic::Fcomip | Mnemonic::Fucomi | Mnemonic::Fucomip
        );
        if compares && fpu::is_pending(&native_state) {
            // On Intel's processors these leave RFLAGS when they fault; AMD's set it.
            registers.rflags = ours.rflags;
        }
        let told = format!("{bytes:02x?} {:?} from {given:x?}", insn.code());
        assert_eq!(fault, native_fault, "{told}");
        assert_eq!(ours, registers, "{told}");
        assert!(self.cpu.state.fpu == native_state, "{told}\n{:x?}\n{native_state:x?}", self.cpu.state.fpu);
        assert!(scratch[OPERANDS..OPERANDS + memory.len()] == memory, "memory of {told}");
    }
}

/// 128 bits as vector instructions like them.
fn value(numbers: &mut Numbers) -> u128 {
    let double = |numbers: &mut Numbers| match numbers.below(8) {
        0 => numbers.edgy(),
        1 => (numbers.below(200) as f64 - 100.0).to_bits(),
        2 => (numbers.any() as i64 as f64 * 0.37).to_bits(),
        3 => 0x7ff0_0000_0000_0000 ^ (numbers.below(4) << 62) ^ (numbers.below(3) << 50),
        4 => numbers.any() >> 12,
        5 => f64::MIN_POSITIVE.to_bits() + numbers.below(1 << 53),
        _ => 0x3ff0_0000_0000_0000 + (numbers.any() >> 11),
    };
    let single = |numbers: &mut Numbers| -> u64 {
        let bits = match numbers.below(8) {
            0 => numbers.any() as u32,
            1 => (numbers.below(200) as f32 - 100.0).to_bits(),
            2 => (numbers.any() as i32 as f32 * 0.37).to_bits(),
            3 => 0x7f80_0000 ^ (numbers.below(4) << 30) as u32 ^ (numbers.below(3) << 21) as u32,
            4 => numbers.any() as u32 >> 9,
            5 => f32::MIN_POSITIVE.to_bits() + numbers.below(1 << 24) as u32,
            _ => 0x3f80_0000 + (numbers.any() as u32 >> 8),
        };
        bits.into()
    };
    let half = |numbers: &mut Numbers, kind: u64| match kind {
        0 => double(numbers),
        1 => single(numbers) | single(numbers) << 32,
        // Short strings of few letters.
        2 => (0..8).fold(0, |text, i| text | ((numbers.below(5) * 0x61) & 0xff) << (8 * i)),
        3 => (0..4).fold(0, |text, i| text | ((numbers.below(5) * 0x4001) & 0xffff) << (16 * i)),
        _ => numbers.edgy(),
    };
    let kind = numbers.below(6);
    u128::from(half(numbers, kind)) | u128::from(half(numbers, kind)) << 64
}

/// 80 bits as x87 instructions like them.
fn extended(numbers: &mut Numbers) -> u128 {
    let sign = (numbers.below(2) as u128) << 79;
    let integer = 1 << 63;
    let (exponent, significand) = match numbers.below(10) {
        0 => (0, 0),
        1 => (0x7fff, integer),
        2 => (0x7fff, integer | numbers.any() >> 1),
        3 => (0, numbers.any() >> 1 >> numbers.below(60)),
        4 => (numbers.below(0x8000), numbers.any()),
        5 => (numbers.below(0x8000), integer | numbers.any()),
        6 => (0x3fff + numbers.below(70), integer | numbers.any() << numbers.below(64)),
        _ => (0x3ff0 + numbers.below(32), integer | numbers.any()),
    };
    sign | u128::from(exponent) << 64 | u128::from(significand)
}

fn state(numbers: &mut Numbers) -> FpuState {
    let mut state = FpuState::default();
    for register in &mut state.xmm {
        *register = value(numbers);
    }
    for register in &mut state.st {
        *register = extended(numbers);
    }
    let masks = if numbers.below(2) == 0 { 0x3f } else { numbers.any() as u16 & 0x3f };
    // Nothing is pending: of the exceptions, only masked ones are flagged.
    let status = numbers.any() as u16 & !fsw::FLAGS | numbers.any() as u16 & masks;
    fpu::set_words(&mut state, numbers.any() as u16 & 0x1f00 | masks, status);
    state.ftw = match numbers.below(4) {
        0 => numbers.any() as u8,
        1 => 0,
        _ => 0xff,
    };
    let control = numbers.any() as u32 & mxcsr::MASK;
    state.mxcsr = if numbers.below(4) == 0 { control } else { control | mxcsr::MASKS };
    state
}

fn image(state: &FpuState) -> [u8; fxsave::SIZE] {
    let mut image = [0; fxsave::SIZE];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(fxsave::FCW, &state.fcw.to_le_bytes());
    put(fxsave::FSW, &state.fsw.to_le_bytes());
    put(fxsave::FTW, &[state.ftw]);
    put(fxsave::MXCSR, &state.mxcsr.to_le_bytes());
    for i in 0..8 {
        put(fxsave::ST0 + 16 * i, &state.st[i].to_le_bytes());
    }
    for i in 0..16 {
        put(fxsave::XMM0 + 16 * i, &state.xmm[i].to_le_bytes());
    }
    image
}

/// The state in `image`; the pointers, which differ by nature, are those of `ours`.
fn parse(image: &[u8], ours: &FpuState) -> FpuState {
    let mut state = ours.clone();
    let word = |at: usize| u16::from_le_bytes([image[at], image[at + 1]]);
    let wide = |at: usize| u128::from_le_bytes(std::array::from_fn(|i| image[at + i]));
    state.fcw = word(fxsave::FCW);
    state.fsw = word(fxsave::FSW);
    state.ftw = image[fxsave::FTW];
    state.mxcsr = u32::from(word(fxsave::MXCSR)) | u32::from(word(fxsave::MXCSR + 2)) << 16;
    for i in 0..8 {
        state.st[i] = wide(fxsave::ST0 + 16 * i) & fpu::REGISTER;
    }
    for i in 0..16 {
        state.xmm[i] = wide(fxsave::XMM0 + 16 * i);
    }
    state
}
