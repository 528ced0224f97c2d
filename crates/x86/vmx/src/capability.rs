//! The VMX capability MSRs (SDM appendix A): which controls the processor has.
//!
//! A control is offered where it is implemented, and its bit may be set only then: [`Pair::allows`] is what VM entry asks.

use crate::control::{entry, exit, pin, proc, proc2};
use crate::field::Field;

/// The VMCS revision identifier.
pub const REVISION: u32 = 0x5a70_0001;
/// Set beside it in the region of a shadow VMCS.
pub const SHADOW: u32 = 1 << 31;

/// Which bits of a word of controls must be one, and which may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Must be one: the low half of the capability MSR.
    pub must: u32,
    /// May be one: its high half.
    pub may: u32,
}

impl Pair {
    const fn new(must: u32, controls: u32) -> Self {
        Pair { must, may: must | controls }
    }

    /// The pair without `controls`, none of which must be one.
    const fn without(self, controls: u32) -> Self {
        Pair { must: self.must, may: self.may & !controls }
    }

    /// Whether the controls can have this value.
    pub const fn allows(self, value: u32) -> bool {
        value & self.must == self.must && value & !self.may == 0
    }

    /// The capability MSR.
    pub const fn msr(self) -> u64 {
        (self.may as u64) << 32 | self.must as u64
    }

    /// The MSR without "TRUE" in its name: controls that later processors can turn off must be one.
    const fn old(self, default1: u32) -> u64 {
        self.msr() | default1 as u64
    }
}

/// Pin-based controls.
pub const PIN: Pair = Pair::new(
    0x16,
    pin::EXTERNAL_INTERRUPT | pin::NMI | pin::VIRTUAL_NMIS | pin::PREEMPTION_TIMER | pin::POSTED_INTERRUPTS,
);
/// Primary processor-based controls.
pub const PROC: Pair = Pair::new(
    0x0400_6172,
    proc::INTERRUPT_WINDOW
        | proc::TSC_OFFSETTING
        | proc::HLT
        | proc::INVLPG
        | proc::MWAIT
        | proc::RDPMC
        | proc::RDTSC
        | proc::CR3_LOAD
        | proc::CR3_STORE
        | proc::CR8_LOAD
        | proc::CR8_STORE
        | proc::TPR_SHADOW
        | proc::NMI_WINDOW
        | proc::MOV_DR
        | proc::UNCONDITIONAL_IO
        | proc::IO_BITMAPS
        | proc::MONITOR_TRAP
        | proc::MSR_BITMAPS
        | proc::MONITOR
        | proc::PAUSE
        | proc::SECONDARY,
);
/// Secondary processor-based controls.
pub const PROC2: Pair = Pair::new(
    0,
    proc2::APIC_ACCESSES
        | proc2::EPT
        | proc2::DESCRIPTOR_TABLES
        | proc2::RDTSCP
        | proc2::X2APIC
        | proc2::VPID
        | proc2::WBINVD
        | proc2::UNRESTRICTED
        | proc2::APIC_REGISTERS
        | proc2::VIRTUAL_INTERRUPTS
        | proc2::PAUSE_LOOP
        | proc2::RDRAND
        | proc2::INVPCID
        | proc2::VM_FUNCTIONS
        | proc2::SHADOW_VMCS
        | proc2::RDSEED
        | proc2::PML
        | proc2::XSAVES
        | proc2::MODE_BASED_EXECUTE
        | proc2::TSC_SCALING,
);
/// VM-exit controls.
pub const EXIT: Pair = Pair::new(
    0x3_6dfb,
    exit::SAVE_DEBUG
        | exit::HOST_64
        | exit::ACKNOWLEDGE
        | exit::SAVE_PAT
        | exit::LOAD_PAT
        | exit::SAVE_EFER
        | exit::LOAD_EFER
        | exit::SAVE_TIMER,
);
/// VM-entry controls.
pub const ENTRY: Pair =
    Pair::new(0x11fb, entry::LOAD_DEBUG | entry::IA32E | entry::LOAD_PAT | entry::LOAD_EFER);

/// The five words of controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controls {
    /// Pin-based.
    pub pin: Pair,
    /// Primary processor-based.
    pub proc: Pair,
    /// Secondary processor-based.
    pub proc2: Pair,
    /// VM-exit.
    pub exit: Pair,
    /// VM-entry.
    pub entry: Pair,
}

impl Controls {
    /// All that the processor has.
    pub const ALL: Controls = Controls { pin: PIN, proc: PROC, proc2: PROC2, exit: EXIT, entry: ENTRY };
    /// What a hypervisor may see that is offered the enlightened VMCS: the preemption timer, APIC accesses, APIC registers, virtual and
    /// posted interrupts, PAUSE loops, PML, VM functions and shadow VMCSs have no field in its version 1, and that of the TSC multiplier is one that KVM uses for nothing. Linux 6.1 does not leave them out by itself.
    pub const ENLIGHTENED: Controls = Controls {
        pin: PIN.without(pin::PREEMPTION_TIMER | pin::POSTED_INTERRUPTS),
        proc2: PROC2.without(
            proc2::APIC_ACCESSES
                | proc2::APIC_REGISTERS
                | proc2::VIRTUAL_INTERRUPTS
                | proc2::PAUSE_LOOP
                | proc2::TSC_SCALING
                | proc2::VM_FUNCTIONS
                | proc2::SHADOW_VMCS
                | proc2::PML,
        ),
        exit: EXIT.without(exit::SAVE_TIMER),
        ..Controls::ALL
    };

    /// Those of a processor that offers the enlightened VMCS, or does not.
    pub const fn of(enlightened: bool) -> &'static Controls {
        if enlightened { &Controls::ENLIGHTENED } else { &Controls::ALL }
    }
}

/// Bits of CR0 that are one in VMX operation; PE and PG may be zero in an unrestricted guest.
pub const CR0_FIXED0: u64 = 0x8000_0021;
/// Bits of CR4 that are one in VMX operation.
pub const CR4_FIXED0: u64 = 0x2000;

/// How far the TSC is shifted to count the preemption timer (IA32_VMX_MISC 4:0).
pub const TIMER_SHIFT: u32 = 5;
/// CR3-target values (IA32_VMX_MISC 24:16).
pub const CR3_TARGETS: u32 = 4;
/// Entries that an MSR list may have: 512 times one more than IA32_VMX_MISC 27:25.
pub const MSR_LIST: u32 = 512;

/// IA32_VMX_BASIC: a VMCS of 4 KiB, write-back, INS and OUTS information, the TRUE registers.
pub const BASIC: u64 = 1 << 55 | 1 << 54 | 6 << 50 | 0x1000 << 32 | REVISION as u64;
/// IA32_VMX_MISC: LMA is saved, HLT, the wait for a SIPI, VMWRITE to any field, injection with length 0.
pub const MISC: u64 =
    1 << 30 | 1 << 29 | (CR3_TARGETS as u64) << 16 | 1 << 8 | 1 << 6 | 1 << 5 | TIMER_SHIFT as u64;
/// IA32_VMX_EPT_VPID_CAP: execute-only, 4 levels, UC and WB, 2 MiB and 1 GiB, accessed and dirty bits; INVEPT and INVVPID
/// with all their types.
pub const EPT_VPID: u64 = 0xf01 << 32
    | 1 << 26
    | 1 << 25
    | 1 << 21
    | 1 << 20
    | 1 << 17
    | 1 << 16
    | 1 << 14
    | 1 << 8
    | 1 << 6
    | 1 << 0;

/// IA32_VMX_VMFUNC, and VM function 0: EPTP switching.
pub const EPTP_SWITCHING: u64 = 1 << 0;
/// EPTPs of the list of EPTP switching.
pub const EPTPS: u64 = 512;

/// The first capability MSR, IA32_VMX_BASIC.
pub const FIRST_MSR: u32 = 0x480;
/// How many there are: up to IA32_VMX_VMFUNC.
pub const MSRS: u32 = 0x12;

/// The highest index of a field, in bits 9:1.
const fn highest_index() -> u64 {
    let (mut highest, mut i) = (0, 0);
    while i < Field::ALL.len() {
        let index = Field::ALL[i].encoding() & 0x3fe;
        if index > highest {
            highest = index;
        }
        i += 1;
    }
    highest as u64
}

/// What a capability MSR reads as, on a processor with these controls whose CR4 has the bits `cr4`.
pub const fn msr(number: u32, cr4: u64, controls: &Controls) -> u64 {
    match number.wrapping_sub(FIRST_MSR) {
        0x0 => BASIC,
        0x1 => controls.pin.msr(),
        0x2 => controls.proc.old(0x0401_e172),
        0x3 => controls.exit.old(0x3_6dff),
        0x4 => controls.entry.old(0x11ff),
        0x5 => MISC,
        0x6 => CR0_FIXED0,
        0x7 => 0xffff_ffff,
        0x8 => CR4_FIXED0,
        0x9 => cr4 | CR4_FIXED0,
        0xa => highest_index(),
        0xb => controls.proc2.msr(),
        0xc => EPT_VPID,
        0xd => controls.pin.msr(),
        0xe => controls.proc.msr(),
        0xf => controls.exit.msr(),
        0x10 => controls.entry.msr(),
        0x11 if controls.proc2.may & proc2::VM_FUNCTIONS != 0 => EPTP_SWITCHING,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_must_be_one_may_be_one() {
        for pair in [PIN, PROC, PROC2, EXIT, ENTRY] {
            assert_eq!(pair.must & !pair.may, 0);
            assert!(pair.allows(pair.must) && pair.allows(pair.may));
            for bit in (0..32).map(|bit| 1 << bit) {
                assert_eq!(pair.allows(pair.must | bit), pair.may & bit != 0);
                assert_eq!(pair.allows(pair.may & !bit), pair.must & bit == 0);
            }
        }
    }

    #[test]
    fn the_registers_are_those_that_hypervisors_ask_for() {
        let msr = |number| msr(number, 0, &Controls::ALL);
        // Linux 6.1 refuses to load without these.
        let basic = msr(0x480);
        assert_eq!(
            (basic >> 32 & 0x1fff, basic >> 48 & 1, basic >> 50 & 15, basic >> 31 & 1),
            (4096, 0, 6, 0)
        );
        assert_eq!(msr(0x48a), 0x32, "the TSC multiplier has the highest index");
        // The older registers allow the same, and more must be one.
        for (old, new) in [(0x481, 0x48d), (0x482, 0x48e), (0x483, 0x48f), (0x484, 0x490)] {
            let (old, new) = (msr(old), msr(new));
            assert_eq!(old >> 32, new >> 32);
            assert_eq!(old & new & 0xffff_ffff, new & 0xffff_ffff);
            assert_eq!(old & !(old >> 32) & 0xffff_ffff, 0, "what must be may be");
        }
    }

    #[test]
    fn an_enlightened_vmcs_lacks_the_timer_and_the_multiplier() {
        for number in FIRST_MSR..FIRST_MSR + MSRS {
            let (all, some) = (msr(number, 0, &Controls::ALL), msr(number, 0, &Controls::ENLIGHTENED));
            let gone = match number & 0x1f {
                0x01 | 0x0d => pin::PREEMPTION_TIMER | pin::POSTED_INTERRUPTS,
                0x03 | 0x0f => exit::SAVE_TIMER,
                0x0b => {
                    proc2::APIC_ACCESSES
                        | proc2::APIC_REGISTERS
                        | proc2::VIRTUAL_INTERRUPTS
                        | proc2::PAUSE_LOOP
                        | proc2::TSC_SCALING
                        | proc2::VM_FUNCTIONS
                        | proc2::SHADOW_VMCS
                        | proc2::PML
                }
                0x11 => {
                    assert_eq!((all, some), (EPTP_SWITCHING, 0));
                    continue;
                }
                _ => 0,
            };
            assert_eq!(all ^ some, u64::from(gone) << 32, "{number:#x}");
        }
    }
}
