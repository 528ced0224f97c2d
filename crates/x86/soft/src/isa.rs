//! The instruction set that the guest is offered: what decodes, and to what.
//!
//! Everything here is asked when code is decoded, never when it runs. An instruction whose feature
//! is not offered is #UD, except where its encoding had an older meaning, which then comes back:
//! LZCNT and TZCNT are BSR and BSF with a prefix that means nothing, WBNOINVD is WBINVD, and hints
//! are the reserved NOPs that they were made of (SDM volume 2, each instruction's page).

pub(crate) mod recent;

use iced_x86::{Code, CpuidFeature, Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic, Register};
use satori_cpuid::{Feature, Offered, Vendor};

use crate::cpu::{Cpu, Handler};
use crate::{insn, svm, vmx};

/// Bytes of an instruction at most (SDM volume 2, 2.3.11).
pub const MAX_LENGTH: usize = 15;

/// The instruction set of one processor.
pub struct Isa {
    /// What the guest is offered.
    pub offered: Offered,
    options: u32,
    /// By the decoder's name of a feature: whether its instructions exist.
    exist: Box<[bool]>,
}

impl Isa {
    /// The instruction set with these features.
    pub fn new(offered: Offered) -> Self {
        let unless = |feature, option| if offered.has(feature) { 0 } else { option };
        let options = unless(Feature::Abm, DecoderOptions::NO_MPFX_0FBD)
            | unless(Feature::Bmi1, DecoderOptions::NO_MPFX_0FBC)
            | unless(Feature::LahfLm, DecoderOptions::NO_LAHF_SAHF_64)
            | unless(Feature::Wbnoinvd, DecoderOptions::NO_WBNOINVD)
            | if offered.vendor == Vendor::Amd { DecoderOptions::AMD } else { 0 };
        let exist = CpuidFeature::values().map(|feature| exists(&offered, feature)).collect();
        Isa { offered, options, exist }
    }

    /// A decoder of `bytes` as code of 16, 32 or 64 `bits` at address 0.
    pub fn decoder<'a>(&self, bytes: &'a [u8], bits: u32) -> Decoder<'a> {
        Decoder::with_ip(bits, bytes, 0, self.options)
    }

    /// Decodes one instruction as if at address 0; nothing if `bytes` end before it does.
    pub fn one(&self, bytes: &[u8], bits: u32) -> Option<Instruction> {
        let mut decoder = self.decoder(bytes, bits);
        let mut insn = self.mended(decoder.decode(), bytes, bits);
        if bits == 64 {
            drop_override(&mut insn);
        }
        (decoder.last_error() != DecoderError::NoMoreBytes).then_some(insn)
    }

    /// What `insn`, decoded from the start of `bytes`, is to a processor where the decoder errs:
    /// F3 90 is PAUSE, but with REX.B an exchange of rAX with R8, to which F3 means nothing.
    #[inline]
    pub fn mended(&self, insn: Instruction, bytes: &[u8], bits: u32) -> Instruction {
        if insn.code() == Code::Pause && bits == 64 && insn.len() > 2 {
            return self.exchanging(insn, bytes);
        }
        insn
    }

    #[cold]
    fn exchanging(&self, insn: Instruction, bytes: &[u8]) -> Instruction {
        /// A prefix that means nothing in 64-bit code.
        const DS: u8 = 0x3e;
        let len = insn.len().min(bytes.len());
        if !matches!(bytes[len - 2], 0x40..=0x4f if bytes[len - 2] & 1 != 0) {
            return insn;
        }
        let mut plain = [0; MAX_LENGTH];
        for (to, from) in plain.iter_mut().zip(&bytes[..len]) {
            *to = if *from == 0xf3 { DS } else { *from };
        }
        self.decoder(&plain[..len], 64).decode()
    }

    /// Whether `insn`, decoded from the start of `bytes`, is longer than an instruction may be.
    pub fn too_long(&self, insn: &Instruction, bytes: &[u8], bits: u32) -> bool {
        let Some(bytes) = bytes.first_chunk::<MAX_LENGTH>() else { return false };
        if !insn.is_invalid() || insn.len() < MAX_LENGTH {
            return false;
        }
        // The decoder gives up at the limit as it does for an undefined opcode. No instruction is
        // longer without prefixes that do not matter to its length; without those, it tells what is missing.
        self.one(&without_needless_prefixes(bytes, bits), bits).is_none()
    }

    /// What executes `insn`; #UD if the guest is not offered it.
    pub fn handler(&self, insn: &Instruction) -> Handler {
        // RSM is #UD outside SMM, which there is none of, but a guest of VMRUN can leave at it.
        let left = insn.mnemonic() == Mnemonic::Rsm && self.offered.has(Feature::Svm);
        if !left && !self.exists(insn) {
            return insn::undefined;
        }
        if self.offered.has(Feature::Vmx) && vmx::intercepted(insn) {
            return vmx::execute;
        }
        if self.offered.has(Feature::Svm) && svm::intercepted(insn) {
            return svm::execute;
        }
        insn::handler(insn)
    }

    /// Whether the guest is offered `insn`. What is invalid exists nowhere.
    pub fn exists(&self, insn: &Instruction) -> bool {
        !insn.is_invalid() && (is_hint(insn) || insn.cpuid_features().iter().all(|f| self.exist[*f as usize]))
    }
}

/// Hints occupy opcodes that were reserved NOPs before, and are again without their feature.
fn is_hint(insn: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(
        insn.mnemonic(),
        Nop | Reservednop
            | Pause
            | Endbr32
            | Endbr64
            | Rdsspd
            | Rdsspq
            | Cldemote
            | Prefetch
            | Prefetchw
            | Prefetchwt1
            | Prefetchit0
            | Prefetchit1
    )
}

/// Whether the instructions of what the decoder calls `feature` exist.
fn exists(offered: &Offered, feature: CpuidFeature) -> bool {
    use CpuidFeature::*;
    let feature = match feature {
        // Before there was CPUID, or since there is 64-bit mode.
        INTEL8086 | INTEL186 | INTEL286 | INTEL386 | INTEL486 | X64 | CPUID => return true,
        MULTIBYTENOP | PAUSE | RDPMC => return true,
        // These exit; the machine knows whether they exist.
        VMX | INVEPT | INVVPID | SVM | MONITOR => return true,
        // STGI, and SKINIT, which nobody has.
        SKINIT_or_SVM => Feature::Svm,
        FPU | FPU287 | FPU387 => Feature::Fpu,
        TSC => Feature::Tsc,
        MSR => Feature::Msr,
        CX8 => Feature::Cx8,
        SEP => Feature::Sep,
        CMOV => Feature::Cmov,
        CLFSH => Feature::Clflush,
        MMX => Feature::Mmx,
        FXSR => Feature::Fxsr,
        SSE => Feature::Sse,
        SSE2 => Feature::Sse2,
        SSE3 => Feature::Sse3,
        SSSE3 => Feature::Ssse3,
        SSE4_1 => Feature::Sse4_1,
        SSE4_2 => Feature::Sse4_2,
        SSE4A => Feature::Sse4a,
        AES => Feature::Aes,
        PCLMULQDQ => Feature::Pclmulqdq,
        SHA => Feature::ShaNi,
        GFNI => Feature::Gfni,
        AVX => Feature::Avx,
        AVX2 => Feature::Avx2,
        FMA => Feature::Fma,
        F16C => Feature::F16c,
        VAES => Feature::Vaes,
        VPCLMULQDQ => Feature::Vpclmulqdq,
        BMI1 => Feature::Bmi1,
        BMI2 => Feature::Bmi2,
        LZCNT => Feature::Abm,
        POPCNT => Feature::Popcnt,
        ADX => Feature::Adx,
        MOVBE => Feature::Movbe,
        CMPXCHG16B => Feature::Cx16,
        SYSCALL => Feature::Syscall,
        RDTSCP => Feature::Rdtscp,
        RDPID => Feature::Rdpid,
        RDRAND => Feature::Rdrand,
        RDSEED => Feature::Rdseed,
        FSGSBASE => Feature::Fsgsbase,
        SMAP => Feature::Smap,
        INVPCID => Feature::Invpcid,
        PKU => Feature::Pku,
        CLFLUSHOPT => Feature::Clflushopt,
        CLWB => Feature::Clwb,
        WBNOINVD => Feature::Wbnoinvd,
        SERIALIZE => Feature::Serialize,
        MOVDIRI => Feature::Movdiri,
        MOVDIR64B => Feature::Movdir64b,
        XSAVE => Feature::Xsave,
        XSAVEOPT => Feature::Xsaveopt,
        XSAVEC => Feature::Xsavec,
        XSAVES => Feature::Xsaves,
        _ => return false,
    };
    offered.has(feature)
}

/// The same instruction without LOCK and segments, which never make it longer, and without the legacy
/// prefixes that a later one of their group overrides.
fn without_needless_prefixes(bytes: &[u8; MAX_LENGTH], bits: u32) -> Vec<u8> {
    const NEEDLESS: usize = 0;
    let group = |byte: u8| match byte {
        0xf0 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => Some(NEEDLESS),
        0xf2 | 0xf3 => Some(1),
        0x66 => Some(2),
        0x67 => Some(3),
        // A REX prefix that is not the last prefix means nothing.
        0x40..=0x4f if bits == 64 => Some(4),
        _ => None,
    };
    let end = bytes.iter().position(|byte| group(*byte).is_none()).unwrap_or(MAX_LENGTH);
    let (prefixes, rest) = bytes.split_at(end);
    let mut last = [None; 5];
    for (place, byte) in prefixes.iter().enumerate() {
        if let Some(group) = group(*byte) {
            last[group] = Some(place);
        }
    }
    last[NEEDLESS] = None;
    last[4] = last[4].filter(|place| place + 1 == end);
    let kept = (0..end).filter(|place| last.contains(&Some(*place)));
    kept.map(|place| prefixes[place]).chain(rest.iter().copied()).collect()
}

impl Cpu {
    /// Whether the guest is offered `feature`.
    pub fn offers(&self, feature: Feature) -> bool {
        self.isa.offered.has(feature)
    }
}

/// In 64-bit mode the prefixes of ES, CS, SS and DS do nothing (SDM volume 1, 3.7.5.1): an address
/// with RSP or RBP as its base still is one of the stack, also if it is not canonical.
pub fn drop_override(insn: &mut Instruction) {
    if matches!(insn.segment_prefix(), Register::ES | Register::CS | Register::SS | Register::DS) {
        insn.set_segment_prefix(Register::None);
    }
}

#[cfg(test)]
mod tests;
