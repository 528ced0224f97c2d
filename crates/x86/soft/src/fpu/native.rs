//! x87 instructions executed by the host, on a guest's register file.
//!
//! The only `unsafe` code of this folder. The caller makes sure that no exception is pending in
//! the state that is loaded.

use std::arch::asm;

use satori_defs::fpu::{fsw, fxsave, mxcsr};
use satori_state::FpuState;

use super::stack::{REGISTER, set_words};

/// The r/m bits of `[rdi]`, where [`run`] keeps the memory operand.
pub(super) const MEMORY: u8 = 7;

/// ZF, PF and CF.
pub(super) const COMPARE_FLAGS: u64 = 0x45;

/// The area of FXSAVE, 64-bit form.
#[repr(C, align(64))]
pub struct Image([u8; fxsave::SIZE]);

impl Image {
    /// The x87 part of `fpu`; the rest as a Rust program has it.
    pub fn new(fpu: &FpuState) -> Self {
        let mut image = Image([0; fxsave::SIZE]);
        image.put(fxsave::FCW, &fpu.fcw.to_le_bytes());
        image.put(fxsave::FSW, &(fpu.fsw & !(fsw::ES | fsw::B)).to_le_bytes());
        image.put(fxsave::FTW, &[fpu.ftw]);
        image.put(fxsave::MXCSR, &mxcsr::RESET.to_le_bytes());
        for (i, value) in fpu.st.iter().enumerate() {
            image.put(fxsave::ST0 + 16 * i, &value.to_le_bytes());
        }
        image
    }

    /// Takes back what an x87 instruction can have changed.
    pub fn store(&self, fpu: &mut FpuState) {
        let word = u16::from_le_bytes(self.take(fxsave::FSW));
        set_words(fpu, fpu.fcw, word);
        fpu.ftw = self.0[fxsave::FTW];
        for (i, value) in fpu.st.iter_mut().enumerate() {
            *value = u128::from_le_bytes(self.take(fxsave::ST0 + 16 * i)) & REGISTER;
        }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn take<const N: usize>(&self, at: usize) -> [u8; N] {
        *self.0[at..].first_chunk().expect("the image has all of its fields")
    }
}

/// Executes the x87 instruction `OP MODRM` on the state in `image`. A memory operand, at `[rdi]`,
/// is `memory`. Takes RFLAGS' low byte for FCMOVcc and gives it back for FCOMI.
pub(super) fn run<const OP: u8, const MODRM: u8>(
    image: &mut Image,
    memory: &mut [u8; 16],
    flags: u64,
) -> u64 {
    const { assert!(OP >= 0xd8 && OP <= 0xdf && (MODRM >= 0xc0 || MODRM & 0xc7 == MEMORY)) };
    let mut flags = (flags & 0xff) << 8;
    // SAFETY: the image is 512 bytes and aligned, with a valid MXCSR; x87 memory operands of the
    // forms in the tables have at most 10 bytes. No exception is pending, one that arises is
    // discarded by FNINIT before a waiting instruction could report it, and FNINIT and the image's
    // MXCSR leave the state that Rust code expects. FXRSTOR replaces all XMM registers.
    unsafe {
        asm!(
            "fxrstor64 [{image}]",
            "sahf",
            ".byte {op}, {modrm}",
            "lahf",
            "fxsave64 [{image}]",
            "fninit",
            image = in(reg) image.0.as_mut_ptr(),
            op = const OP,
            modrm = const MODRM,
            in("rdi") memory.as_mut_ptr(),
            inout("rax") flags,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
            out("mm0") _, out("mm1") _, out("mm2") _, out("mm3") _,
            out("mm4") _, out("mm5") _, out("mm6") _, out("mm7") _,
            options(nostack)
        );
    }
    flags >> 8 & 0xff
}
