//! The list of what is not compared: each with its reason, and where that is to be found.

use std::fmt;

/// When it is known that something is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Instructions of this form are never compared.
    Form,
    /// Some cases of the instruction are not.
    Case,
    /// The two outcomes differ, and this one way of differing is allowed.
    Outcome,
}

macro_rules! exclusions {
    ($($name:ident, $when:ident, $why:literal, $source:literal;)*) => {
        /// Why something is not compared.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "each has its reason in the table")]
        pub enum Exclusion {
            $($name,)*
        }

        impl Exclusion {
            /// All of them.
            pub const ALL: &[Exclusion] = &[$(Exclusion::$name,)*];

            const fn row(self) -> (When, &'static str, &'static str) {
                match self {
                    $(Exclusion::$name => (When::$when, $why, $source),)*
                }
            }
        }
    };
}

// Sources are the entries of instructions in volume 2 of the SDM and volumes 3 to 5 of the APM, by name, as numbers of
// sections change from edition to edition. "Seen" is what AMD's processors of families 19h and 1Ah and Intel's model 207
// did under this tool, where the manuals are silent or differ from each other.
exclusions! {
    Amd3dNow, Form, "3DNow! is neither offered nor on current hosts", "APM volume 3, appendix D: Fn8000_0001_EDX[3DNow]";
    NotOffered, Form, "AVX-512, XOP and what of AVX came later are not offered: #UD here", "ARCHITECTURE.md, what is deliberately absent";
    EntersKernel, Form, "enters the host's kernel", "SDM, SYSCALL, SYSENTER; Linux, INT 0x80 (arch/x86/entry)";
    Umip, Form, "with UMIP the host's kernel emulates it", "SDM, SGDT: CR4.UMIP; Linux, arch/x86/kernel/umip.c";
    Hypervisor, Form, "belongs to a hypervisor, under which the host may run", "SDM, VMCALL; APM volume 2, secure virtual machine";
    Cpuid, Form, "answers are the machine's", "SDM, CPUID";
    Time, Form, "time differs", "SDM, RDTSC, RDTSCP, RDPMC";
    Random, Form, "random numbers differ", "SDM, RDRAND, RDSEED";
    Processor, Form, "IA32_TSC_AUX is the host's processor number", "SDM, RDPID; Linux, arch/x86/kernel/cpu/common.c";
    Xcr0, Form, "XCR0 is the machine's", "SDM, XGETBV, XSETBV";
    Int1, Form, "hypervisors deliver it with the address of INT1 itself, and hosts run under them", "seen; SDM, INT1, has the address behind it";
    XsaveArea, Form, "the components in the area are those of XCR0, which differs", "SDM volume 1, managing state with XSAVE";
    Monitor, Form, "whether it is enabled is the host's choice", "SDM, MONITOR: IA32_MISC_ENABLE[18]; APM volume 3, MONITORX";
    Transactions, Form, "transactional memory is not offered", "SDM, XBEGIN, XTEST: #UD without RTM";
    OnlyAmd, Form, "only AMD's processors have it", "APM volume 3, CLZERO, MCOMMIT, RDPRU; volume 4, EXTRQ, MOVNTSS";
    OnlyVia, Form, "only VIA's processors have it", "VIA PadLock programming guide";
    HostLacks, Form, "the host does not have it", "CPUID of the host";
    OneSide, Form, "the host has it and it is not offered here, or the other way about", "CPUID of either";
    Dr4, Form, "vendors disagree on whether CR4.DE or privilege is looked at first", "SDM and APM volume 3, MOV to and from debug registers";
    Sse4a, Form, "SSE4a's EXTRQ and INSERTQ have its opcode", "APM volume 4, EXTRQ, INSERTQ; SDM, VMREAD";
    Movsxd16, Form, "AMD's processors read 32 bits for 16", "SDM, MOVSXD r16, r/m16; seen";
    Ud0, Form, "vendors disagree on whether it has a ModRM byte", "SDM, UD: notes on UD0 and UD1";
    ReservedNop, Form, "reserved NOPs are #UD on some processors", "SDM volume 2, opcode map: 0F 0D and 0F 18 to 0F 1F";
    FarPointer, Form, "REX.W means a 64-bit offset to Intel's processors only", "SDM, LSS, LFS, LGS: m16:64; APM volume 3, LSS";
    FarBranch, Form, "64-bit far pointers are Intel's", "SDM, JMP and CALL m16:64; APM volume 3, CALL (Far)";
    Fred, Form, "FRED delivers INT n as another event", "Intel, Flexible Return and Event Delivery: event types; Linux, arch/x86/entry/entry_fred.c";
    Loopcc, Case, "F2 and F3 before LOOPcc are reserved, and choose the condition on AMD's processors", "SDM volume 2, instruction prefixes; seen";
    DotProduct, Case, "in which steps DPPS and DPPD find unmasked exceptions is not defined", "SDM, DPPS: exceptions of each addition and multiplication";
    ShaAlignment, Case, "some of AMD's processors let SHA operands be misaligned", "SDM, SHA1MSG1: #GP; seen";
    Bswap16, Case, "BSWAP of 16 bits is undefined", "SDM, BSWAP";
    DoubleShift, Case, "SHLD and SHRD by more than the operand are undefined", "SDM, SHLD, SHRD";
    SplitLock, Case, "locked accesses across cache lines are trapped on this host", "SDM volume 3, MEMORY_CTRL: #AC for split locks; Linux, split_lock_detect";
    Endless, Case, "it branches to itself or goes on for long", "the processor might not come back";
    FetchedBytes, Outcome, "how many bytes of an undefined opcode are fetched is not defined", "SDM volume 3, priority among exceptions: fetching before decoding";
    MaskedBytes, Outcome, "whether MASKMOV faults for bytes that it leaves alone is not defined", "SDM, MASKMOVQ, MASKMOVDQU: mask of all 0s; APM volume 4, MASKMOVDQU: bytes not selected";
    MaskedHalves, Outcome, "AMD's processors check MASKMOVDQU's halves one by one, each for an alignment of 8", "seen; SDM, MASKMOVDQU: #AC and addressing as of one operand";
    MmxBeforeFault, Outcome, "processors enter MMX mode before MASKMOVQ faults, Intel's also before other stores do", "seen; SDM volume 3, restarting after faults, has state unchanged";
    FaultOrder, Outcome, "which of the faults that an instruction may raise comes first, and with which byte of its operands, is not defined", "SDM volume 3, priority among concurrent events: within a class it is the processor's; APM volume 2, 8.5";
    MaskedElements, Outcome, "whether VMASKMOV faults for elements that it leaves alone is not defined", "APM volume 4, VMASKMOVPS: unselected elements; SDM, VMASKMOV";
    SystemRegister, Outcome, "whether a control or debug register that is not there, or the privilege, is looked at first is not defined", "SDM and APM volume 3, MOV CRn, MOV DRn: #UD and #GP";
    ShiftByNothing, Outcome, "whether a shift by 0 writes its operand is not defined", "SDM and APM volume 3, SAL, ROL, SHLD: a count of 0 says flags only";
    WideAlignment, Outcome, "whether operands of more than 8 bytes are checked for alignment is not defined", "SDM volume 3, alignment check exception: MOVUPS and its like are the implementation's; volume 1, table of exception classes";
    NothingToFind, Outcome, "BSF and BSR of 0 leave their destination undefined; the upper half of one of 32 bits may be cleared or kept", "SDM, BSF, BSR; APM volume 3, BSF";
    GatherProgress, Outcome, "which elements a gather that faults has loaded is not defined", "SDM, VPGATHERDD: faults are delivered right to left, others may be gathered";
    PartlyStored, Outcome, "what of several stores is in memory when a later one faults is not defined", "SDM, FXSAVE, FNSAVE, ENTER, PUSHA: faults between stores";
    SelectorSlot, Outcome, "whether a pushed selector fills its place on the stack is not defined", "SDM, PUSH: a 16-bit move, the upper portion unmodified";
    Newer, Outcome, "the host is newer than the decoder, or the other way about: new instructions come here", "SDM volume 2, opcode maps: empty places";
    WideAddresses, Outcome, "linear addresses have 57 bits on this host and 48 here", "SDM volume 1, canonical addressing: CR4.LA57; CPUID of the host";
    AreaAlignment, Outcome, "whether a misaligned area is #GP or #AC is not defined", "SDM, FXSAVE, FXRSTOR: #AC";
    EnterAlignment, Outcome, "whether the new top of ENTER's stack, which it only looks at, must be aligned is not defined", "SDM, ENTER: #PF of a write to the new stack pointer only";
    PopaRegisters, Outcome, "processors write registers before a later pop of POPA faults", "seen; SDM volume 3, restarting after faults, has them unchanged";
    FarOrder, Outcome, "which check of a far transfer comes first is not defined", "SDM volume 3, priority among exceptions: within a class it is the processor's";
    TwoPrefixes, Outcome, "66 together with F2 or F3 is reserved, and AMD's processors let either choose the instruction", "SDM volume 2, instruction prefixes; seen";
    VpermqW, Outcome, "AMD's processors do not look at W of VPERMQ and VPERMPD", "SDM, VPERMQ: VEX.W1; seen";
    MaskNumbers, Outcome, "AMD's processors with AVX-512, which is not offered here, take numbers of mask registers that there are not", "SDM volume 2, KANDW: #UD; seen on Zen 4";
    VpinsrqW, Outcome, "AMD's processors refuse VPINSRQ and VPEXTRQ outside 64-bit code, Intel's ignore W", "SDM, VPINSRD/VPINSRQ: W ignored outside 64-bit mode; seen";
    LockedSystem, Outcome, "AMD's processors let LOCK stand before some system instructions", "APM volume 3, MOV CRn: LOCK for CR8; SDM, LOCK: #UD; seen";
    BasedSum, Outcome, "AMD's processors refuse some sums of base and offset that are canonical", "seen";
    Mxcsr17, Outcome, "bit 17 of MXCSR exists on AMD's processors", "APM volume 2, MXCSR: misaligned exception mask; SDM volume 1, MXCSR: reserved";
    ComparedFlags, Outcome, "Intel's processors write the flags of FCOMI also when an unmasked exception follows", "seen; SDM, FCOMI: an unmasked invalid-operation leaves them to the processor";
    PauseOrXchg, Outcome, "F3 90 with REX.B is PAUSE to AMD's processors, XCHG with R8 to Intel's", "SDM, PAUSE: F3 90; APM volume 3, XCHG; seen";
    StoredNumber, Outcome, "Intel's processors find a number's unmasked exception before they look at the operand in memory", "seen; SDM volume 3, priority among concurrent events: within a class it is the processor's";
    ConvertedNumber, Outcome, "Intel's processors note a conversion's exceptions before its result finds no place in memory", "seen; SDM, VCVTPS2PH: exceptions of both classes";
    SelectorPopped, Outcome, "Intel's processors read two bytes of the stack where POP loads a segment register", "seen; SDM, POP: 16 bits of a wider operand are the selector; PUSH, of which recent processors write two bytes";
    HalvesAlignment, Outcome, "Intel's processors do not check the alignment of four halves in memory", "seen; SDM volume 2, exceptions type 11, has #AC for 4 and 8 bytes";
    DenormalHalves, Outcome, "Intel's processors call a half that is made of a denormal float inexact also where underflow is unmasked", "seen; SDM volume 1, 4.9.1.5: by the result of unbounded range it is exact";
    NarrowReturn, Outcome, "Intel's processors take the lower half of the offset of a far return from 64-bit to 32-bit code", "seen; SDM, RET: #GP(0) for an offset beyond the segment's limit";
    NarrowCounts, Outcome, "Intel's processors clear the upper halves of registers where REP with 32-bit addresses has done nothing yet", "seen; SDM volume 1, 3.4.1.1: 32-bit results are zero-extended; Linux, arch/x86/kvm/emulate.c, string_registers_quirk";
    LimitOfProcessor, Outcome, "the limit of Linux's per-processor segment is the processor's number", "Linux, arch/x86/include/asm/segment.h: GDT_ENTRY_CPUNODE";
}

impl Exclusion {
    /// When it is known.
    pub const fn when(self) -> When {
        self.row().0
    }

    /// The reason.
    pub const fn why(self) -> &'static str {
        self.row().1
    }

    /// Where the reason is to be found.
    pub const fn source(self) -> &'static str {
        self.row().2
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} ({})", self.why(), self.source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_reason_is_given_twice() {
        for (index, one) in Exclusion::ALL.iter().enumerate() {
            assert!(!one.why().is_empty() && !one.source().is_empty(), "{one:?}");
            for other in &Exclusion::ALL[index + 1..] {
                assert_ne!(one.why(), other.why(), "{one:?} and {other:?}");
            }
        }
    }
}
