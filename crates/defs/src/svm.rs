//! SVM intercept exit codes (APM volume 2, appendix C), with the names of Linux's uapi `svm.h`.
//!
//! `vmx.rs` is the same for the other vendor. Software's own codes of SEV-ES (`VMGEXIT`) are left out: they are a
//! protocol, no intercept.

/// Hyper-V's synthetic exit code, for what its hypervisor has to tell a nested one (TLFS, HV_SVM_EXITCODE_ENL).
pub const ENLIGHTENED: u64 = 0xf000_0000;
/// Its EXITINFO1 behind a flush that was served for the nested hypervisor (HV_SVM_ENL_EXITCODE_TRAP_AFTER_FLUSH).
pub const TRAP_AFTER_FLUSH: u64 = 1;

macro_rules! exit_codes {
    ($($number:literal $ident:ident $name:literal;)*) => {
        /// An exit code of the VMCB.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        #[allow(missing_docs, reason = "each variant is its manual name")]
        pub enum ExitCode { $($ident = $number,)* }

        impl ExitCode {
            /// Every code, by ascending number.
            pub const ALL: &'static [ExitCode] = &[$(ExitCode::$ident,)*];

            /// The name that Linux prints.
            pub const fn name(self) -> &'static str {
                match self { $(ExitCode::$ident => $name,)* }
            }

            /// What the counters of all such exits of the host's processor are called: of how many there were, and how long.
            pub const fn counted(self) -> [&'static str; 2] {
                match self { $(ExitCode::$ident => [concat!("VM exits: ", $name), concat!("ns of VM exits: ", $name)],)* }
            }

            /// What the counter of a nested guest's exits is called.
            pub const fn nested(self) -> &'static str {
                match self { $(ExitCode::$ident => concat!("exits of L2: ", $name),)* }
            }
        }
    };
}

exit_codes! {
    0x000 ReadCr0 "read_cr0";
    0x002 ReadCr2 "read_cr2";
    0x003 ReadCr3 "read_cr3";
    0x004 ReadCr4 "read_cr4";
    0x008 ReadCr8 "read_cr8";
    0x010 WriteCr0 "write_cr0";
    0x012 WriteCr2 "write_cr2";
    0x013 WriteCr3 "write_cr3";
    0x014 WriteCr4 "write_cr4";
    0x018 WriteCr8 "write_cr8";
    0x020 ReadDr0 "read_dr0";
    0x021 ReadDr1 "read_dr1";
    0x022 ReadDr2 "read_dr2";
    0x023 ReadDr3 "read_dr3";
    0x024 ReadDr4 "read_dr4";
    0x025 ReadDr5 "read_dr5";
    0x026 ReadDr6 "read_dr6";
    0x027 ReadDr7 "read_dr7";
    0x030 WriteDr0 "write_dr0";
    0x031 WriteDr1 "write_dr1";
    0x032 WriteDr2 "write_dr2";
    0x033 WriteDr3 "write_dr3";
    0x034 WriteDr4 "write_dr4";
    0x035 WriteDr5 "write_dr5";
    0x036 WriteDr6 "write_dr6";
    0x037 WriteDr7 "write_dr7";
    0x040 ExceptionDe "DE excp";
    0x041 ExceptionDb "DB excp";
    0x043 ExceptionBp "BP excp";
    0x044 ExceptionOf "OF excp";
    0x045 ExceptionBr "BR excp";
    0x046 ExceptionUd "UD excp";
    0x047 ExceptionNm "NM excp";
    0x048 ExceptionDf "DF excp";
    0x04a ExceptionTs "TS excp";
    0x04b ExceptionNp "NP excp";
    0x04c ExceptionSs "SS excp";
    0x04d ExceptionGp "GP excp";
    0x04e ExceptionPf "PF excp";
    0x050 ExceptionMf "MF excp";
    0x051 ExceptionAc "AC excp";
    0x052 ExceptionMc "MC excp";
    0x053 ExceptionXf "XF excp";
    0x060 Intr "interrupt";
    0x061 Nmi "nmi";
    0x062 Smi "smi";
    0x063 Init "init";
    0x064 Vintr "vintr";
    0x065 Cr0SelWrite "cr0_sel_write";
    0x066 ReadIdtr "read_idtr";
    0x067 ReadGdtr "read_gdtr";
    0x068 ReadLdtr "read_ldtr";
    0x069 ReadTr "read_rt";
    0x06a WriteIdtr "write_idtr";
    0x06b WriteGdtr "write_gdtr";
    0x06c WriteLdtr "write_ldtr";
    0x06d WriteTr "write_rt";
    0x06e Rdtsc "rdtsc";
    0x06f Rdpmc "rdpmc";
    0x070 Pushf "pushf";
    0x071 Popf "popf";
    0x072 Cpuid "cpuid";
    0x073 Rsm "rsm";
    0x074 Iret "iret";
    0x075 Swint "swint";
    0x076 Invd "invd";
    0x077 Pause "pause";
    0x078 Hlt "hlt";
    0x079 Invlpg "invlpg";
    0x07a Invlpga "invlpga";
    0x07b Ioio "io";
    0x07c Msr "msr";
    0x07d TaskSwitch "task_switch";
    0x07e FerrFreeze "ferr_freeze";
    0x07f Shutdown "shutdown";
    0x080 Vmrun "vmrun";
    0x081 Vmmcall "hypercall";
    0x082 Vmload "vmload";
    0x083 Vmsave "vmsave";
    0x084 Stgi "stgi";
    0x085 Clgi "clgi";
    0x086 Skinit "skinit";
    0x087 Rdtscp "rdtscp";
    0x088 Icebp "icebp";
    0x089 Wbinvd "wbinvd";
    0x08a Monitor "monitor";
    0x08b Mwait "mwait";
    0x08d Xsetbv "xsetbv";
    0x08f EferWriteTrap "write_efer_trap";
    0x090 Cr0WriteTrap "write_cr0_trap";
    0x094 Cr4WriteTrap "write_cr4_trap";
    0x098 Cr8WriteTrap "write_cr8_trap";
    0x0a2 Invpcid "invpcid";
    0x0a5 BusLock "buslock";
    0x0a6 IdleHlt "idle-halt";
    0x400 Npf "npf";
    0x401 AvicIncompleteIpi "avic_incomplete_ipi";
    0x402 AvicUnacceleratedAccess "avic_unaccelerated_access";
    0x403 Vmgexit "vmgexit";
}
