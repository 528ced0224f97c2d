//! What is not compared, each with its reason.

use iced_x86::{Code, CpuidFeature, EncodingKind, Instruction, Mnemonic, OpKind, Register};
use satori_cpuid::Vendor;
use satori_defs::fpu::mxcsr;
use satori_defs::x86::vector;

use crate::case::{Case, Outcome};
use crate::generate::effective;
use crate::host;
use crate::layout::PAGE;

/// Why an instruction is not compared; nothing if it is. The reasons are printed.
pub fn reason(insn: &Instruction) -> Option<&'static str> {
    let info = insn.op_code();
    match info.encoding() {
        EncodingKind::Legacy => {}
        EncodingKind::VEX if offered_vex(insn) => {}
        EncodingKind::D3NOW => return Some("3DNow! is neither offered nor on current hosts"),
        _ => return Some("AVX-512, XOP and what of AVX came later are not offered: #UD here"),
    }
    by_mnemonic(insn).or_else(|| by_feature(insn.cpuid_features())).or_else(|| by_vendor(insn))
}

fn offered_vex(insn: &Instruction) -> bool {
    use CpuidFeature::{AVX, AVX2, BMI1, BMI2, F16C, FMA, VAES, VPCLMULQDQ};
    insn.cpuid_features()
        .iter()
        .any(|f| matches!(f, AVX | AVX2 | BMI1 | BMI2 | F16C | FMA | VAES | VPCLMULQDQ))
}

fn by_mnemonic(insn: &Instruction) -> Option<&'static str> {
    use Mnemonic::*;
    Some(match insn.mnemonic() {
        Syscall | Sysenter => "enters the host's kernel",
        Int if insn.immediate8() == 0x80 => "enters the host's kernel",
        Sgdt | Sidt | Smsw | Sldt | Str => "with UMIP the host's kernel emulates it",
        Vmcall | Vmmcall | Vmgexit | Vmrun | Vmload | Vmsave | Stgi | Clgi | Skinit | Invlpga => {
            "belongs to a hypervisor, under which the host may run"
        }
        Cpuid => "answers are the machine's",
        Rdtsc | Rdtscp | Rdpmc => "time differs",
        Rdrand | Rdseed => "random numbers differ",
        Rdpid => "IA32_TSC_AUX is the host's processor number",
        Xgetbv | Xsetbv => "XCR0 is the machine's",
        Int1 => "hypervisors deliver it with the address of INT1 itself, and hosts run under them",
        Xsave | Xsave64 | Xsaveopt | Xsaveopt64 | Xsavec | Xsavec64 | Xrstor | Xrstor64 => {
            "the components in the area are those of XCR0, which differs"
        }
        Monitor | Mwait | Monitorx | Mwaitx | Umonitor | Umwait | Tpause => {
            "whether it is enabled is the host's choice"
        }
        Xbegin | Xabort | Xend | Xtest => "transactional memory is not offered",
        Clzero | Mcommit | Rdpru | Pvalidate | Rmpadjust | Rmpupdate | Psmash | Extrq | Insertq | Movntsd
        | Movntss
            if insn.op_code().cpuid_is_amd() =>
        {
            "only AMD's processors have it"
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

fn by_feature(features: &[CpuidFeature]) -> Option<&'static str> {
    use CpuidFeature::*;
    let absent = |has: bool| (!has).then_some("the host does not have it");
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
            Some("only VIA's processors have it")
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
fn feature_of_one_side(feature: CpuidFeature) -> Option<&'static str> {
    use CpuidFeature::*;
    match feature {
        // Their absence and their privilege check fault alike on both sides.
        INVPCID | SMAP | CLFSH | PREFETCHWT1 => None,
        CLWB => (!is_x86_feature_detected!("adx")).then_some("the host does not have it"),
        CLFLUSHOPT => (!is_x86_feature_detected!("adx")).then_some("the host does not have it"),
        _ => Some("the host has it and it is not offered here, or the other way about"),
    }
}

/// Encodings that Intel's and AMD's processors execute differently; the guest is Intel's.
fn by_vendor(insn: &Instruction) -> Option<&'static str> {
    use Mnemonic::*;
    Some(match insn.mnemonic() {
        Mov if matches!(insn.op1_register(), Register::DR4 | Register::DR5)
            || matches!(insn.op0_register(), Register::DR4 | Register::DR5) =>
        {
            "vendors disagree on whether CR4.DE or privilege is looked at first"
        }
        Vmread | Vmwrite if host::vendor() == Vendor::Amd => "SSE4a's EXTRQ and INSERTQ have its opcode",
        Movsxd if insn.op0_register().size() == 2 && insn.op1_kind() == OpKind::Memory => {
            "AMD's processors read 32 bits for 16"
        }
        Ud0 | Ud1 => "vendors disagree on whether it has a ModRM byte",
        Reservednop => "reserved NOPs are #UD on some processors",
        Lss | Lfs | Lgs => "REX.W means a 64-bit offset to Intel's processors only",
        Cvtpi2ps | Cvtpi2pd if insn.op1_kind() == OpKind::Memory => {
            "enters MMX mode on Intel's processors only"
        }
        Jmp | Call if matches!(insn.code(), Code::Jmp_m1664 | Code::Call_m1664) => {
            "64-bit far pointers are Intel's"
        }
        _ => return None,
    })
}

/// Why a case is not compared although its instruction is.
pub fn case_reason(case: &Case, insn: &Instruction) -> Option<&'static str> {
    let prefixes = &case.code()[..case.code().len().min(insn.len())];
    let repeated = prefixes.iter().take_while(|b| is_prefix(**b)).any(|b| matches!(b, 0xf2 | 0xf3));
    if repeated && matches!(insn.mnemonic(), Mnemonic::Loope | Mnemonic::Loopne) {
        return Some("F2 and F3 before LOOPcc are reserved, and choose the condition on AMD's processors");
    }
    let dot = matches!(insn.mnemonic(), Mnemonic::Dpps | Mnemonic::Dppd | Mnemonic::Vdpps | Mnemonic::Vdppd);
    if dot && case.fpu.mxcsr & mxcsr::MASKS != mxcsr::MASKS {
        return Some("in which steps DPPS and DPPD find unmasked exceptions is not defined");
    }
    let memory = insn.op1_kind() == OpKind::Memory;
    if memory && insn.cpuid_features().contains(&CpuidFeature::SHA) && effective(case, insn) & 15 != 0 {
        return Some("some of AMD's processors let SHA operands be misaligned");
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
) -> Option<&'static str> {
    let (pf, gp) = (u32::from(vector::PF), u32::from(vector::GP));
    let fetches = real.vector == pf && real.cr2 & (PAGE - 1) == 0 && real.rip == case.at;
    let undefined = insn.is_invalid() && real.rip == case.at && engine.rip == case.at;
    let ud = u32::from(vector::UD);
    if undefined && (fetches && engine.vector == ud || real.vector == ud && engine.vector == pf) {
        return Some("how many bytes of an undefined opcode are fetched is not defined");
    }
    let mask = matches!(insn.mnemonic(), Mnemonic::Maskmovq | Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu);
    if mask && [real, engine].iter().any(|outcome| matches!(outcome.vector, 12 | 13 | 14 | 17)) {
        return Some("whether MASKMOV faults for bytes that it leaves alone, and when, is not defined");
    }
    if state_area(insn) && real.vector == pf && (12..=14).contains(&engine.vector) {
        return Some("which byte of a large operand faults first is not defined");
    }
    if state_area(insn) && real.vector == u32::from(vector::AC) {
        return Some("whether a misaligned area is #GP or #AC is not defined (SDM, FXSAVE)");
    }
    if insn.mnemonic() == Mnemonic::Enter && real.vector == u32::from(vector::AC) {
        return Some(
            "whether the new top of ENTER's stack, which it only looks at, must be aligned is not defined",
        );
    }
    if matches!(insn.mnemonic(), Mnemonic::Popa | Mnemonic::Popad) && real.vector == pf {
        return Some("AMD's processors write registers before a later pop of POPA faults");
    }
    let call = insn.mnemonic() == Mnemonic::Call;
    if call && real.vector == pf && engine.vector == gp {
        return Some("whether CALL looks at its target or at the stack first is not defined");
    }
    let far = matches!(
        insn.mnemonic(),
        Mnemonic::Retf | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq | Mnemonic::Jmp | Mnemonic::Call
    );
    if far && [real, engine].iter().all(|outcome| matches!(outcome.vector, 11..=14 | 17)) {
        return Some("which check of a far transfer comes first is not defined");
    }
    let both = insn.is_invalid()
        && case.code().contains(&0x66)
        && case.code().iter().any(|b| matches!(b, 0xf2 | 0xf3));
    if both && engine.vector == ud && matches!(real.vector, 3 | 12..=14 | 17) {
        return Some(
            "66 together with F2 or F3 is reserved, and AMD's processors let either choose the instruction",
        );
    }
    if insn.is_invalid() && engine.vector == ud && is_vpermq_without_w(case.code()) {
        return Some("AMD's processors do not look at W of VPERMQ and VPERMPD");
    }
    let element = matches!(insn.mnemonic(), Mnemonic::Vpinsrd | Mnemonic::Vpextrd);
    if case.bits == 32 && element && real.vector == ud {
        return Some("AMD's processors refuse VPINSRQ and VPEXTRQ outside 64-bit code, Intel's ignore W");
    }
    let locked = case.code().contains(&0xf0) && insn.is_invalid();
    if locked && engine.vector == ud && matches!(real.vector, 3 | 12..=14 | 17) {
        return Some("AMD's processors let LOCK stand before some system instructions");
    }
    let moves = (0..insn.op_count()).filter(|op| string_operand(insn.op_kind(*op))).count() == 2;
    if moves && [real, engine].iter().all(|outcome| matches!(outcome.vector, 13 | 14 | 17)) {
        return Some("which operand of MOVS and CMPS faults first is not defined");
    }
    let based = matches!(insn.memory_segment(), Register::FS | Register::GS);
    let ac = u32::from(vector::AC);
    if based && real.vector == gp && (engine.vector == pf || engine.vector == ac) {
        return Some("AMD's processors refuse some sums of base and offset that are canonical");
    }
    let loads = matches!(
        insn.mnemonic(),
        Mnemonic::Fxrstor | Mnemonic::Fxrstor64 | Mnemonic::Ldmxcsr | Mnemonic::Vldmxcsr
    );
    if loads && host::vendor() == Vendor::Amd && engine.vector == gp {
        return Some("bit 17 of MXCSR exists on AMD's processors");
    }
    let size = insn.memory_size().size();
    // Areas of state have to be aligned to 16 bytes only.
    let alignment = if size == 32 { 32 } else { 16 };
    let misaligned = size >= 16 && !effective(case, insn).is_multiple_of(alignment);
    if misaligned && real.vector == gp && engine.vector == u32::from(vector::SS) {
        return Some("whether alignment or the canonical form is looked at first is not defined");
    }
    // Of all the segments that it may see, only this one has a limit of 0 in the guest.
    let loaded = insn.op0_register().full_register().number() & 15;
    if insn.mnemonic() == Mnemonic::Lsl && engine.gpr[loaded] & 0xffff == 0 && real.vector == engine.vector {
        return Some("the limit of Linux's per-processor segment is the processor's number");
    }
    None
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
