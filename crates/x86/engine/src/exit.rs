//! Exits and their answers.

use satori_defs::vmx::ExitReason;
use satori_defs::x86::vector;
use serde::{Deserialize, Serialize};

use crate::DebugCause;

/// An exception, with what is pushed or set along with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// Vector, 0 to 31.
    pub vector: u8,
    /// Error code, for the vectors that have one.
    pub code: Option<u32>,
    /// Value for CR2 with #PF, for the pending bits of DR6 with #DB; else 0.
    pub payload: u64,
}

impl Exception {
    /// An exception without an error code.
    pub const fn new(vector: u8) -> Self {
        Exception { vector, code: None, payload: 0 }
    }
    /// An exception with an error code.
    pub const fn with_code(vector: u8, code: u32) -> Self {
        Exception { vector, code: Some(code), payload: 0 }
    }
    /// #GP(`code`).
    pub const fn gp(code: u32) -> Self {
        Self::with_code(vector::GP, code)
    }
    /// #UD.
    pub const fn ud() -> Self {
        Self::new(vector::UD)
    }
    /// #PF at linear address `address`.
    pub const fn pf(address: u64, code: u32) -> Self {
        Exception { vector: vector::PF, code: Some(code), payload: address }
    }
}

/// Answer to CPUID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuidResult {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// What a host backs of a guest's RAM at once: a large page.
pub const BACKED: u64 = 2 << 20;

/// Why a vCPU stopped. Sizes are in bytes.
///
/// Instructions that need an answer have not been completed: the engine executes them again
/// after [`Resume`], and they then take the answer. Nothing of them is visible before that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// CPUID; answered by [`Resume::Cpuid`].
    Cpuid {
        /// EAX.
        leaf: u32,
        /// ECX.
        subleaf: u32,
    },
    /// RDMSR outside the MSR bitmap's pass-through; answered by [`Resume::Value`] or a fault.
    MsrRead {
        /// The register.
        msr: u32,
    },
    /// WRMSR outside the MSR bitmap's pass-through; answered by [`Resume::Done`] or a fault.
    MsrWrite {
        /// The register.
        msr: u32,
        /// EDX:EAX.
        value: u64,
    },
    /// IN or INS, answered by [`Resume::Value`].
    IoRead {
        /// The port.
        port: u16,
        /// 1, 2 or 4.
        size: u8,
    },
    /// OUT or OUTS, answered by [`Resume::Done`].
    IoWrite {
        /// The port.
        port: u16,
        /// 1, 2 or 4.
        size: u8,
        /// Value in the low `size` bytes.
        value: u32,
    },
    /// A read where there is no RAM; answered by [`Resume::Value`].
    MmioRead {
        /// Guest-physical address.
        gpa: u64,
        /// 1, 2, 4 or 8.
        size: u8,
    },
    /// A write where there is no RAM; answered by [`Resume::Done`].
    MmioWrite {
        /// Guest-physical address.
        gpa: u64,
        /// 1, 2, 4 or 8.
        size: u8,
        /// Value in the low `size` bytes.
        value: u64,
    },
    /// A read of the APIC-access page; answered by [`Resume::Value`].
    ApicRead {
        /// Offset in the page.
        offset: u16,
        /// 1, 2, 4 or 8.
        size: u8,
    },
    /// A write to the APIC-access page; answered by [`Resume::Done`].
    ApicWrite {
        /// Offset in the page.
        offset: u16,
        /// 1, 2, 4 or 8.
        size: u8,
        /// Value in the low `size` bytes.
        value: u64,
    },
    /// First touch of a piece of RAM, of [`BACKED`] bytes; answered by [`Resume::Done`] once it is there.
    EptViolation {
        /// Guest-physical address.
        gpa: u64,
    },
    /// HLT, already completed; the vCPU's activity is `Halted`.
    Hlt,
    /// VMCALL or VMMCALL. The handler works on the registers; answered by [`Resume::Done`],
    /// which moves RIP past the instruction, or by a fault.
    Vmcall,
    /// VMCALL of a nested guest, a hypercall that flushes its TLBs and that its hypervisor lets be served for it. As
    /// [`Exit::Vmcall`] on the registers; answered by [`Resume::Done`] or, to be executed again, [`Resume::Continue`].
    NestedFlush {
        /// Where in the partition's memory the input's address leads, if it leads anywhere.
        block: Option<u64>,
    },
    /// MOV to CR0 or CR4 of bits that the host owns, or to CR8 without a TPR shadow; answered by
    /// [`Resume::Done`] (the engine then makes the change) or a fault.
    CrWrite {
        /// 0, 4 or 8.
        register: u8,
        /// The whole new value.
        value: u64,
    },
    /// MOV from CR8 without a TPR shadow; answered by [`Resume::Done`].
    Cr8Read,
    /// MOV to or from a debug register while the host holds them; answered by [`Resume::Done`].
    DrAccess,
    /// XSETBV; answered by [`Resume::Done`] (the engine then sets XCR0) or a fault.
    Xsetbv {
        /// EDX:EAX.
        value: u64,
    },
    /// WBINVD; answered by [`Resume::Done`].
    Wbinvd,
    /// INVD; answered by [`Resume::Done`].
    Invd,
    /// RDPMC; answered by [`Resume::Value`] or a fault.
    Rdpmc {
        /// ECX.
        counter: u32,
    },
    /// MONITOR; answered by [`Resume::Done`] or a fault.
    Monitor,
    /// MWAIT; answered by [`Resume::Done`] or a fault.
    Mwait,
    /// A PAUSE loop longer than the PLE window, already completed.
    Pause,
    /// A VMX instruction, or VMFUNC, that is not offered; answered by a fault.
    VmxInstruction(ExitReason),
    /// A hardware task switch, already completed.
    TaskSwitch,
    /// The TPR fell below its threshold.
    TprBelowThreshold,
    /// The interrupt window that was asked for is open.
    InterruptWindow,
    /// The NMI window that was asked for is open.
    NmiWindow,
    /// A kick from another thread, or a host timer that is not the preemption timer.
    ExternalInterrupt,
    /// [`Until::counter`](crate::Until::counter) was reached.
    PreemptionTimer,
    /// The guest ended a level-triggered interrupt at a local APIC that the engine keeps.
    EoiInduced {
        /// Its vector.
        vector: u8,
    },
    /// What a debugger outside waits for ([`Vcpu::set_debug`](crate::Vcpu::set_debug)).
    Debug(DebugCause),
    /// The vCPU's third fault in a row; its activity is `Shutdown`.
    TripleFault,
    /// The engine cannot go on, for a reason of its own or of the host's. No VM exit.
    Failed(Failure),
    /// [`Until::instructions`](crate::Until::instructions) were retired. No VM exit: it is
    /// neither counted nor timed.
    Budget,
}

impl Exit {
    /// The VMX basic exit reason, or nothing for [`Exit::Failed`] and [`Exit::Budget`].
    pub const fn reason(&self) -> Option<ExitReason> {
        Some(match self {
            Exit::Cpuid { .. } => ExitReason::Cpuid,
            Exit::MsrRead { .. } => ExitReason::MsrRead,
            Exit::MsrWrite { .. } => ExitReason::MsrWrite,
            Exit::IoRead { .. } | Exit::IoWrite { .. } => ExitReason::IoInstruction,
            Exit::MmioRead { .. } | Exit::MmioWrite { .. } => ExitReason::EptMisconfig,
            Exit::ApicRead { .. } | Exit::ApicWrite { .. } => ExitReason::ApicAccess,
            Exit::EptViolation { .. } => ExitReason::EptViolation,
            Exit::Hlt => ExitReason::Hlt,
            Exit::Vmcall | Exit::NestedFlush { .. } => ExitReason::Vmcall,
            Exit::CrWrite { .. } | Exit::Cr8Read => ExitReason::CrAccess,
            Exit::DrAccess => ExitReason::DrAccess,
            Exit::Xsetbv { .. } => ExitReason::Xsetbv,
            Exit::Wbinvd => ExitReason::Wbinvd,
            Exit::Invd => ExitReason::Invd,
            Exit::Rdpmc { .. } => ExitReason::Rdpmc,
            Exit::Monitor => ExitReason::MonitorInstruction,
            Exit::Mwait => ExitReason::MwaitInstruction,
            Exit::Pause => ExitReason::PauseInstruction,
            Exit::VmxInstruction(reason) => *reason,
            Exit::TaskSwitch => ExitReason::TaskSwitch,
            Exit::TprBelowThreshold => ExitReason::TprBelowThreshold,
            Exit::InterruptWindow => ExitReason::InterruptWindow,
            Exit::NmiWindow => ExitReason::NmiWindow,
            Exit::ExternalInterrupt => ExitReason::ExternalInterrupt,
            Exit::PreemptionTimer => ExitReason::PreemptionTimer,
            Exit::EoiInduced { .. } => ExitReason::EoiInduced,
            // KVM debugs by intercepting #DB and #BP.
            Exit::Debug(_) => ExitReason::ExceptionNmi,
            Exit::TripleFault => ExitReason::TripleFault,
            Exit::Failed(_) | Exit::Budget => return None,
        })
    }
}

/// Why an engine cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What failed, as a sentence's beginning.
    pub what: &'static str,
    /// A number that goes with it: the host's error, or the reason that its kernel tells.
    pub detail: u64,
}

/// The answer to an [`Exit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resume {
    /// Nothing is owed: the exit's instruction was completed, or there was none.
    Continue,
    /// The exit's effect was made; the instruction completes.
    Done,
    /// What was read, in the low bytes.
    Value(u64),
    /// What CPUID answers.
    Cpuid(CpuidResult),
    /// The instruction faults instead.
    Fault(Exception),
}
