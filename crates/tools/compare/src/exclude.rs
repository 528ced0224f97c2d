//! Finds what is not compared; the list of reasons is in `exclusions`, the differences that are allowed in `allowed`.

use iced_x86::{Code, CpuidFeature, EncodingKind, Instruction, Mnemonic, OpKind, Register};
use satori_cpuid::Vendor;
use satori_defs::fpu::mxcsr;

use crate::case::Case;
use crate::exclusions::Exclusion;
use crate::generate::effective;
use crate::host;
use crate::layout::LINE;

/// Why an instruction is not compared; nothing if it is. The reasons are printed.
pub(crate) fn reason(insn: &Instruction) -> Option<Exclusion> {
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
    let host = host::get();
    features.iter().find_map(|feature| match feature {
        PADLOCK_ACE | PADLOCK_PHE | PADLOCK_PMM | PADLOCK_RNG | PADLOCK_GMI | PADLOCK_UNDOC => {
            Some(Exclusion::OnlyVia)
        }
        // Without it the privilege check of CLAC and STAC is the same exception.
        SMAP => None,
        _ => match host.has(*feature) {
            Some(true) => None,
            Some(false) => Some(Exclusion::HostLacks),
            None if BASE.contains(feature) => None,
            None => Some(Exclusion::OneSide),
        },
    })
}

/// What each processor of today has, or none, so that it is no question.
const BASE: &[CpuidFeature] = {
    use CpuidFeature::*;
    &[
        INTEL8086,
        INTEL8086_ONLY,
        INTEL186,
        INTEL286,
        INTEL286_ONLY,
        INTEL386,
        INTEL386_ONLY,
        INTEL386_A0_ONLY,
        INTEL486,
        INTEL486_A_ONLY,
        FPU,
        FPU287,
        FPU287XL_ONLY,
        FPU387,
        FPU387SL_ONLY,
        CPUID,
        CMOV,
        CX8,
        X64,
        MMX,
        SSE,
        SSE2,
        SEP,
        SYSCALL,
        MSR,
        TSC,
        RDPMC,
        RDTSCP,
        MULTIBYTENOP,
        PAUSE,
        CLFSH,
        PREFETCHW,
        PREFETCHWT1,
        SMM,
        // What no processor of today has, and is #UD everywhere.
        MOV_TR,
        UMOV,
        IA64,
        D3NOW,
        D3NOWEXT,
        CL1INVMB,
        CENTAUR_AIS,
        CYRIX_FPU,
        CYRIX_SMM,
        CYRIX_SMINT,
        CYRIX_SMINT_0F7E,
        CYRIX_SHR,
        CYRIX_DDI,
        CYRIX_EMMI,
        CYRIX_DMI,
        CYRIX_D3NOW,
        KNC,
        // Not AMD's; `by_vendor` leaves them out on Intel's.
        VMX,
        INVEPT,
        INVVPID,
    ]
};

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
        // Whether they are #UD, #GP or leave for a hypervisor depends on who uses VMX on this host.
        Vmread | Vmwrite | Vmptrld | Vmptrst | Vmclear | Vmxon | Vmxoff | Vmlaunch | Vmresume | Vmfunc
        | Invept | Invvpid
            if host::vendor() != Vendor::Amd =>
        {
            Exclusion::Hypervisor
        }
        Int if host::get().fred => Exclusion::Fred,
        Ud0 | Ud1 => Exclusion::Ud0,
        Reservednop => Exclusion::ReservedNop,
        // The rest is what only AMD's do.
        _ if host::vendor() != Vendor::Amd => return None,
        Movsxd if insn.op0_register().size() == 2 && insn.op1_kind() == OpKind::Memory => Exclusion::Movsxd16,
        Lss | Lfs | Lgs => Exclusion::FarPointer,
        Jmp | Call if matches!(insn.code(), Code::Jmp_m1664 | Code::Call_m1664) => Exclusion::FarBranch,
        _ => return None,
    })
}

/// Why a case is not compared although its instruction is.
pub(crate) fn case_reason(case: &Case, insn: &Instruction) -> Option<Exclusion> {
    let prefixes = &case.code()[..case.code().len().min(insn.len())];
    let repeated = prefixes.iter().take_while(|b| is_prefix(**b)).any(|b| matches!(b, 0xf2 | 0xf3));
    let of_amd = host::vendor() == Vendor::Amd;
    if of_amd && repeated && matches!(insn.mnemonic(), Mnemonic::Loope | Mnemonic::Loopne) {
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
    if of_amd
        && memory
        && insn.cpuid_features().contains(&CpuidFeature::SHA)
        && effective(case, insn) & 15 != 0
    {
        return Some(Exclusion::ShaAlignment);
    }
    if host::get().split_locks && locks(case, insn) && crosses_line(case, insn) {
        return Some(Exclusion::SplitLock);
    }
    None
}

/// Whether the memory operand is accessed with the bus or its line locked.
fn locks(case: &Case, insn: &Instruction) -> bool {
    let memory = (0..insn.op_count()).any(|op| insn.op_kind(op) == OpKind::Memory);
    memory && (insn.mnemonic() == Mnemonic::Xchg || case.code().contains(&0xf0))
}

fn crosses_line(case: &Case, insn: &Instruction) -> bool {
    // A bit string's operand lies anywhere: its offset counts too.
    let strings = matches!(insn.mnemonic(), Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
    let first = effective(case, insn) % LINE as u64;
    strings || first + insn.memory_size().size() as u64 > LINE as u64
}

/// Whether `byte` may stand before an opcode, REX among them.
pub(crate) fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3 | 0x40..=0x4f)
}
