//! Finds what is not compared; the list of reasons is in `exclusions`.

use iced_x86::{Code, CpuidFeature, EncodingKind, Instruction, Mnemonic, OpKind, Register};
use satori_cpuid::Vendor;
use satori_defs::fpu::{fsw, mxcsr};
use satori_defs::x86::vector;

use crate::case::{Case, Fpu, Outcome};
use crate::exclusions::Exclusion;
use crate::generate::{MASKMOV, effective};
use crate::host;
use crate::layout::{PAGE, writable};

/// Why an instruction is not compared; nothing if it is. The reasons are printed.
pub fn reason(insn: &Instruction) -> Option<Exclusion> {
    let info = insn.op_code();
    match info.encoding() {
        EncodingKind::Legacy => {}
        EncodingKind::VEX if offered_vex(insn) => {}
        EncodingKind::D3NOW => return Some(Exclusion::Amd3dNow),
        _ => return Some(Exclusion::NotOffered),
    }
    by_mnemonic(insn).or_else(|| by_feature(insn.cpuid_features())).or_else(|| by_vendor(insn))
}

fn offered_vex(insn: &Instruction) -> bool {
    use CpuidFeature::{AVX, AVX2, BMI1, BMI2, F16C, FMA, VAES, VPCLMULQDQ};
    insn.cpuid_features()
        .iter()
        .any(|f| matches!(f, AVX | AVX2 | BMI1 | BMI2 | F16C | FMA | VAES | VPCLMULQDQ))
}

fn by_mnemonic(insn: &Instruction) -> Option<Exclusion> {
    use Mnemonic::*;
    Some(match insn.mnemonic() {
        Syscall | Sysenter => Exclusion::EntersKernel,
        Int if insn.immediate8() == 0x80 => Exclusion::EntersKernel,
        Sgdt | Sidt | Smsw | Sldt | Str => Exclusion::Umip,
        Vmcall | Vmmcall | Vmgexit | Vmrun | Vmload | Vmsave | Stgi | Clgi | Skinit | Invlpga => {
            Exclusion::Hypervisor
        }
        Cpuid => Exclusion::Cpuid,
        Rdtsc | Rdtscp | Rdpmc => Exclusion::Time,
        Rdrand | Rdseed => Exclusion::Random,
        Rdpid => Exclusion::Processor,
        Xgetbv | Xsetbv => Exclusion::Xcr0,
        Int1 => Exclusion::Int1,
        Xsave | Xsave64 | Xsaveopt | Xsaveopt64 | Xsavec | Xsavec64 | Xrstor | Xrstor64 => {
            Exclusion::XsaveArea
        }
        Monitor | Mwait | Monitorx | Mwaitx | Umonitor | Umwait | Tpause => Exclusion::Monitor,
        Xbegin | Xabort | Xend | Xtest => Exclusion::Transactions,
        Clzero | Mcommit | Rdpru | Pvalidate | Rmpadjust | Rmpupdate | Psmash | Extrq | Insertq | Movntsd
        | Movntss
            if insn.op_code().cpuid_is_amd() =>
        {
            Exclusion::OnlyAmd
        }
        _ => return None,
    })
}

trait Amd {
    fn cpuid_is_amd(&self) -> bool;
}

impl Amd for iced_x86::OpCodeInfo {
    fn cpuid_is_amd(&self) -> bool {
        self.code().cpuid_features().iter().any(|f| {
            matches!(
                f,
                CpuidFeature::CLZERO
                    | CpuidFeature::MCOMMIT
                    | CpuidFeature::RDPRU
                    | CpuidFeature::SEV_SNP
                    | CpuidFeature::SSE4A
            )
        })
    }
}

fn by_feature(features: &[CpuidFeature]) -> Option<Exclusion> {
    use CpuidFeature::*;
    let absent = |has: bool| (!has).then_some(Exclusion::HostLacks);
    features.iter().find_map(|feature| match feature {
        SSE3 => absent(is_x86_feature_detected!("sse3")),
        SSSE3 => absent(is_x86_feature_detected!("ssse3")),
        SSE4_1 => absent(is_x86_feature_detected!("sse4.1")),
        SSE4_2 => absent(is_x86_feature_detected!("sse4.2")),
        POPCNT => absent(is_x86_feature_detected!("popcnt")),
        LZCNT => absent(is_x86_feature_detected!("lzcnt")),
        BMI1 => absent(is_x86_feature_detected!("bmi1")),
        BMI2 => absent(is_x86_feature_detected!("bmi2")),
        ADX => absent(is_x86_feature_detected!("adx")),
        MOVBE => absent(is_x86_feature_detected!("movbe")),
        AES => absent(is_x86_feature_detected!("aes")),
        PCLMULQDQ => absent(is_x86_feature_detected!("pclmulqdq")),
        SHA => absent(is_x86_feature_detected!("sha")),
        AVX => absent(is_x86_feature_detected!("avx")),
        AVX2 => absent(is_x86_feature_detected!("avx2")),
        FMA => absent(is_x86_feature_detected!("fma")),
        F16C => absent(is_x86_feature_detected!("f16c")),
        VAES => absent(is_x86_feature_detected!("vaes")),
        VPCLMULQDQ => absent(is_x86_feature_detected!("vpclmulqdq")),
        CMPXCHG16B => absent(is_x86_feature_detected!("cmpxchg16b")),
        PADLOCK_ACE | PADLOCK_PHE | PADLOCK_PMM | PADLOCK_RNG | PADLOCK_GMI | PADLOCK_UNDOC => {
            Some(Exclusion::OnlyVia)
        }
        FXSR => absent(is_x86_feature_detected!("fxsr")),
        GFNI | MOVDIRI | MOVDIR64B | ENQCMD | CET_SS | CET_IBT | WAITPKG | SERIALIZE | CLDEMOTE | PTWRITE
        | HRESET | UINTR | KL | AESKLE | WIDE_KL | PCONFIG | WBNOINVD | AMX_TILE | SGX1 | MPX | PKU
        | INVPCID | PREFETCHWT1 | PREFETCHITI | RAO_INT | FRED | LKGS | WRMSRNS | MSRLIST | CMPCCXADD
        | SMAP | SMX | CLWB | CLFSH | CLFLUSHOPT | XSAVES | XSAVEC | XSAVEOPT => {
            feature_of_one_side(*feature)
        }
        _ => None,
    })
}

/// Features of which the host may have one state and the guest another.
fn feature_of_one_side(feature: CpuidFeature) -> Option<Exclusion> {
    use CpuidFeature::*;
    match feature {
        // Their absence and their privilege check fault alike on both sides.
        INVPCID | SMAP | CLFSH | PREFETCHWT1 => None,
        CLWB => (!is_x86_feature_detected!("adx")).then_some(Exclusion::HostLacks),
        CLFLUSHOPT => (!is_x86_feature_detected!("adx")).then_some(Exclusion::HostLacks),
        _ => Some(Exclusion::OneSide),
    }
}

/// Encodings that Intel's and AMD's processors execute differently; the guest is Intel's.
fn by_vendor(insn: &Instruction) -> Option<Exclusion> {
    use Mnemonic::*;
    Some(match insn.mnemonic() {
        Mov if matches!(insn.op1_register(), Register::DR4 | Register::DR5)
            || matches!(insn.op0_register(), Register::DR4 | Register::DR5) =>
        {
            Exclusion::Dr4
        }
        Vmread | Vmwrite if host::vendor() == Vendor::Amd => Exclusion::Sse4a,
        Movsxd if insn.op0_register().size() == 2 && insn.op1_kind() == OpKind::Memory => Exclusion::Movsxd16,
        Ud0 | Ud1 => Exclusion::Ud0,
        Reservednop => Exclusion::ReservedNop,
        Lss | Lfs | Lgs => Exclusion::FarPointer,
        Cvtpi2ps if insn.op1_kind() == OpKind::Memory => Exclusion::Cvtpi2ps,
        Jmp | Call if matches!(insn.code(), Code::Jmp_m1664 | Code::Call_m1664) => Exclusion::FarBranch,
        _ => return None,
    })
}

/// Why a case is not compared although its instruction is.
pub fn case_reason(case: &Case, insn: &Instruction) -> Option<Exclusion> {
    let prefixes = &case.code()[..case.code().len().min(insn.len())];
    let repeated = prefixes.iter().take_while(|b| is_prefix(**b)).any(|b| matches!(b, 0xf2 | 0xf3));
    if repeated && matches!(insn.mnemonic(), Mnemonic::Loope | Mnemonic::Loopne) {
        return Some(Exclusion::Loopcc);
    }
    // VMCALL with 66, F2 or F3 is no instruction, and what is under the host takes it for VMCALL.
    let mut opcode = case.code().iter().skip_while(|byte| is_prefix(**byte));
    if insn.is_invalid() && [0x0f, 0x01, 0xc1].iter().all(|byte| opcode.next() == Some(byte)) {
        return Some(Exclusion::Hypervisor);
    }
    let dot = matches!(insn.mnemonic(), Mnemonic::Dpps | Mnemonic::Dppd | Mnemonic::Vdpps | Mnemonic::Vdppd);
    if dot && case.fpu.mxcsr & mxcsr::MASKS != mxcsr::MASKS {
        return Some(Exclusion::DotProduct);
    }
    let memory = insn.op1_kind() == OpKind::Memory;
    if memory && insn.cpuid_features().contains(&CpuidFeature::SHA) && effective(case, insn) & 15 != 0 {
        return Some(Exclusion::ShaAlignment);
    }
    None
}

/// Why outcomes that differ need not be equal. Where it is an order of faults: that of the exceptions
/// within one class is the processor's own (SDM volume 3, table 6-2).
pub fn outcome_reason(
    case: &Case,
    insn: &Instruction,
    real: &Outcome,
    engine: &Outcome,
) -> Option<Exclusion> {
    let (pf, gp) = (u32::from(vector::PF), u32::from(vector::GP));
    let fetches = real.vector == pf && real.cr2 & (PAGE - 1) == 0 && real.rip == case.at;
    let undefined = insn.is_invalid() && real.rip == case.at && engine.rip == case.at;
    let ud = u32::from(vector::UD);
    if undefined && (fetches && engine.vector == ud || real.vector == ud && engine.vector == pf) {
        return Some(Exclusion::FetchedBytes);
    }
    if MASKMOV.contains(&insn.mnemonic()) {
        let halves = insn.mnemonic() != Mnemonic::Maskmovq && matches!(engine.vector, 12 | 13 | 17);
        if halves && real.vector != engine.vector {
            return Some(Exclusion::MaskedHalves);
        }
        if [real, engine].iter().any(|outcome| (12..=14).contains(&outcome.vector))
            && leaves_bytes_alone(case, insn)
        {
            return Some(Exclusion::MaskedBytes);
        }
        let alike = real.vector == engine.vector && (real.vector != pf || real.cr2 == engine.cr2);
        if alike && (12..=17).contains(&real.vector) && real.fpu.ftw & 0xff == 0xff && top(&real.fpu) == 0 {
            return Some(Exclusion::MmxBeforeFault);
        }
    }
    if state_area(insn) && real.vector == pf && (12..=14).contains(&engine.vector) {
        return Some(Exclusion::FirstByte);
    }
    if state_area(insn) && real.vector == u32::from(vector::AC) {
        return Some(Exclusion::AreaAlignment);
    }
    if insn.mnemonic() == Mnemonic::Enter && real.vector == u32::from(vector::AC) {
        return Some(Exclusion::EnterAlignment);
    }
    if matches!(insn.mnemonic(), Mnemonic::Popa | Mnemonic::Popad) && real.vector == pf {
        return Some(Exclusion::PopaRegisters);
    }
    let call = insn.mnemonic() == Mnemonic::Call;
    if call && real.vector == pf && engine.vector == gp {
        return Some(Exclusion::CallOrder);
    }
    let far = matches!(
        insn.mnemonic(),
        Mnemonic::Retf | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq | Mnemonic::Jmp | Mnemonic::Call
    );
    if far && [real, engine].iter().all(|outcome| matches!(outcome.vector, 11..=14 | 17)) {
        return Some(Exclusion::FarOrder);
    }
    let both = insn.is_invalid()
        && case.code().contains(&0x66)
        && case.code().iter().any(|b| matches!(b, 0xf2 | 0xf3));
    if both && engine.vector == ud && matches!(real.vector, 3 | 12..=14 | 17) {
        return Some(Exclusion::TwoPrefixes);
    }
    if insn.is_invalid() && engine.vector == ud && is_vpermq_without_w(case.code()) {
        return Some(Exclusion::VpermqW);
    }
    let element = matches!(insn.mnemonic(), Mnemonic::Vpinsrd | Mnemonic::Vpextrd);
    if case.bits == 32 && element && real.vector == ud {
        return Some(Exclusion::VpinsrqW);
    }
    let locked = case.code().contains(&0xf0) && insn.is_invalid();
    if locked && engine.vector == ud && matches!(real.vector, 3 | 12..=14 | 17) {
        return Some(Exclusion::LockedSystem);
    }
    let moves = (0..insn.op_count()).filter(|op| string_operand(insn.op_kind(*op))).count() == 2;
    if moves && [real, engine].iter().all(|outcome| matches!(outcome.vector, 13 | 14 | 17)) {
        return Some(Exclusion::MovsOrder);
    }
    let based = matches!(insn.memory_segment(), Register::FS | Register::GS);
    let ac = u32::from(vector::AC);
    if based && real.vector == gp && (engine.vector == pf || engine.vector == ac) {
        return Some(Exclusion::BasedSum);
    }
    let loads = matches!(
        insn.mnemonic(),
        Mnemonic::Fxrstor | Mnemonic::Fxrstor64 | Mnemonic::Ldmxcsr | Mnemonic::Vldmxcsr
    );
    if loads && host::vendor() == Vendor::Amd && engine.vector == gp {
        return Some(Exclusion::Mxcsr17);
    }
    let size = insn.memory_size().size();
    // Areas of state have to be aligned to 16 bytes only.
    let alignment = if size == 32 { 32 } else { 16 };
    let misaligned = size >= 16 && !effective(case, insn).is_multiple_of(alignment);
    if misaligned && real.vector == gp && engine.vector == u32::from(vector::SS) {
        return Some(Exclusion::AlignmentOrder);
    }
    // Of all the segments that it may see, only this one has a limit of 0 in the guest.
    let loaded = insn.op0_register().full_register().number() & 15;
    if insn.mnemonic() == Mnemonic::Lsl && engine.gpr[loaded] & 0xffff == 0 && real.vector == engine.vector {
        return Some(Exclusion::LimitOfProcessor);
    }
    None
}

/// Whether no byte that MASKMOV writes lies where it cannot be written.
fn leaves_bytes_alone(case: &Case, insn: &Instruction) -> bool {
    let register = insn.op2_register();
    let (mask, size) = match register.is_mm() {
        // The area has x87 registers by their distance from the top.
        true => (case.fpu.st[(register.number() + 8 - top(&case.fpu)) & 7], 8),
        false => (case.fpu.xmm[register.number() & 15], 16),
    };
    let width = if case.bits == 64 { u64::MAX } else { u64::from(u32::MAX) };
    let start = effective(case, insn);
    (0..size)
        .filter(|byte| mask >> (8 * byte + 7) & 1 != 0)
        .all(|byte| writable(start.wrapping_add(byte) & width))
}

/// The x87 register that is ST0.
fn top(fpu: &Fpu) -> usize {
    usize::from((fpu.fsw & fsw::TOP) >> fsw::TOP_SHIFT)
}

fn is_vpermq_without_w(code: &[u8]) -> bool {
    let vex = code.iter().position(|byte| *byte == 0xc4).unwrap_or(code.len());
    matches!(code[vex..], [_, map, rest, 0 | 1, ..] if map & 0x1f == 3 && rest == 0x7d)
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 | 0x40..=0x4f)
}

/// Whether the operand is an area of processor state.
fn state_area(insn: &Instruction) -> bool {
    use Mnemonic::{Fldenv, Fnsave, Fnstenv, Frstor, Fxrstor, Fxrstor64, Fxsave, Fxsave64};
    matches!(insn.mnemonic(), Fldenv | Fnsave | Fnstenv | Frstor | Fxrstor | Fxrstor64 | Fxsave | Fxsave64)
}

fn string_operand(kind: OpKind) -> bool {
    use OpKind::{MemoryESEDI, MemoryESRDI, MemorySegEDI, MemorySegESI, MemorySegRDI, MemorySegRSI};
    matches!(kind, MemoryESEDI | MemoryESRDI | MemorySegEDI | MemorySegESI | MemorySegRDI | MemorySegRSI)
}
