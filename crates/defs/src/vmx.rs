//! VMX basic exit reasons (SDM appendix C), with the names of Linux's uapi `vmx.h`.

macro_rules! exit_reasons {
    ($($number:literal $ident:ident $name:literal;)*) => {
        /// A basic VM-exit reason.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        #[allow(missing_docs, reason = "each variant is its manual name")]
        pub enum ExitReason { $($ident = $number,)* }

        impl ExitReason {
            /// Every reason, by ascending number.
            pub const ALL: &'static [ExitReason] = &[$(ExitReason::$ident,)*];

            /// The name in Linux's uapi `vmx.h`, without its `EXIT_REASON_` prefix.
            pub const fn name(self) -> &'static str {
                match self { $(ExitReason::$ident => $name,)* }
            }

            /// What the counters of all such exits of the host's processor are called: of how many there were, and how long.
            pub const fn counted(self) -> [&'static str; 2] {
                match self { $(ExitReason::$ident => [concat!("VM exits: ", $name), concat!("ns of VM exits: ", $name)],)* }
            }

            /// What an engine's counter of such exits of a guest's guest is called.
            pub const fn nested(self) -> &'static str {
                match self { $(ExitReason::$ident => concat!("exits of L2: ", $name),)* }
            }

            /// What its counter of those is called of which the guest that is a hypervisor knows nothing.
            pub const fn nested_kept(self) -> &'static str {
                match self { $(ExitReason::$ident => concat!("exits of L2 that L1 does not see: ", $name),)* }
            }

            /// What its counter of `work` of the hypervisor that handles such exits is called.
            pub const fn nested_work(self, work: NestedWork) -> &'static str {
                match self { $(ExitReason::$ident => match work {
                    NestedWork::VmreadShadowed => concat!("L1 for ", $name, ": VMREAD, of shadowed fields"),
                    NestedWork::Vmread => concat!("L1 for ", $name, ": VMREAD"),
                    NestedWork::VmwriteShadowed => concat!("L1 for ", $name, ": VMWRITE, of shadowed fields"),
                    NestedWork::Vmwrite => concat!("L1 for ", $name, ": VMWRITE"),
                    NestedWork::Entry => concat!("L1 for ", $name, ": VMLAUNCH and VMRESUME"),
                    NestedWork::Switch => concat!("L1 for ", $name, ": VMPTRLD and VMCLEAR"),
                    NestedWork::Invalidate => concat!("L1 for ", $name, ": INVEPT and INVVPID"),
                    NestedWork::Other => concat!("L1 for ", $name, ": other exits"),
                },)* }
            }
        }
    };
}

/// Hyper-V's synthetic exit reason behind a flush that was served for a nested hypervisor (TLFS,
/// HV_VMX_SYNTHETIC_EXIT_REASON_TRAP_AFTER_FLUSH).
pub const TRAP_AFTER_FLUSH: u32 = 0x1000_0031;

/// What a hypervisor that is a guest executes between an exit of its guest and the next entry, each of which would be an exit
/// to whoever is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestedWork {
    /// VMREAD of a field that a shadow VMCS holds where Linux is below: no exit there.
    VmreadShadowed,
    /// VMREAD of another field.
    Vmread,
    /// VMWRITE of a field that a shadow VMCS holds.
    VmwriteShadowed,
    /// VMWRITE of another field.
    Vmwrite,
    /// VMLAUNCH, VMRESUME.
    Entry,
    /// VMPTRLD, VMPTRST, VMCLEAR, VMXON, VMXOFF.
    Switch,
    /// INVEPT, INVVPID.
    Invalidate,
    /// What is none of VMX's instructions: exits of its own, while it handles one.
    Other,
}

impl NestedWork {
    /// Every kind.
    pub const ALL: &'static [NestedWork] = &[
        NestedWork::VmreadShadowed,
        NestedWork::Vmread,
        NestedWork::VmwriteShadowed,
        NestedWork::Vmwrite,
        NestedWork::Entry,
        NestedWork::Switch,
        NestedWork::Invalidate,
        NestedWork::Other,
    ];
}

exit_reasons! {
    0 ExceptionNmi "EXCEPTION_NMI";
    1 ExternalInterrupt "EXTERNAL_INTERRUPT";
    2 TripleFault "TRIPLE_FAULT";
    3 InitSignal "INIT_SIGNAL";
    4 SipiSignal "SIPI_SIGNAL";
    6 OtherSmi "OTHER_SMI";
    7 InterruptWindow "INTERRUPT_WINDOW";
    8 NmiWindow "NMI_WINDOW";
    9 TaskSwitch "TASK_SWITCH";
    10 Cpuid "CPUID";
    12 Hlt "HLT";
    13 Invd "INVD";
    14 Invlpg "INVLPG";
    15 Rdpmc "RDPMC";
    16 Rdtsc "RDTSC";
    18 Vmcall "VMCALL";
    19 Vmclear "VMCLEAR";
    20 Vmlaunch "VMLAUNCH";
    21 Vmptrld "VMPTRLD";
    22 Vmptrst "VMPTRST";
    23 Vmread "VMREAD";
    24 Vmresume "VMRESUME";
    25 Vmwrite "VMWRITE";
    26 Vmoff "VMOFF";
    27 Vmon "VMON";
    28 CrAccess "CR_ACCESS";
    29 DrAccess "DR_ACCESS";
    30 IoInstruction "IO_INSTRUCTION";
    31 MsrRead "MSR_READ";
    32 MsrWrite "MSR_WRITE";
    33 InvalidState "INVALID_STATE";
    34 MsrLoadFail "MSR_LOAD_FAIL";
    36 MwaitInstruction "MWAIT_INSTRUCTION";
    37 MonitorTrapFlag "MONITOR_TRAP_FLAG";
    39 MonitorInstruction "MONITOR_INSTRUCTION";
    40 PauseInstruction "PAUSE_INSTRUCTION";
    41 MceDuringVmentry "MCE_DURING_VMENTRY";
    43 TprBelowThreshold "TPR_BELOW_THRESHOLD";
    44 ApicAccess "APIC_ACCESS";
    45 EoiInduced "EOI_INDUCED";
    46 GdtrIdtr "GDTR_IDTR";
    47 LdtrTr "LDTR_TR";
    48 EptViolation "EPT_VIOLATION";
    49 EptMisconfig "EPT_MISCONFIG";
    50 Invept "INVEPT";
    51 Rdtscp "RDTSCP";
    52 PreemptionTimer "PREEMPTION_TIMER";
    53 Invvpid "INVVPID";
    54 Wbinvd "WBINVD";
    55 Xsetbv "XSETBV";
    56 ApicWrite "APIC_WRITE";
    57 Rdrand "RDRAND";
    58 Invpcid "INVPCID";
    59 Vmfunc "VMFUNC";
    60 Encls "ENCLS";
    61 Rdseed "RDSEED";
    62 PmlFull "PML_FULL";
    63 Xsaves "XSAVES";
    64 Xrstors "XRSTORS";
    67 Umwait "UMWAIT";
    68 Tpause "TPAUSE";
    74 BusLock "BUS_LOCK";
    75 Notify "NOTIFY";
}
