//! AArch64's side of the seam between a machine and what executes its instructions.
//!
//! What leaves the core is little: accesses to devices, the CPU interface of the interrupt controller, calls of firmware,
//! idleness. Traps to EL2 happen inside, as they do on hardware.

#![forbid(unsafe_code)]

pub mod reasons;

use satori_arm_state::{CpuState, Sys};
use satori_seam::{DebugCause, Isa, Reason};

/// The instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Arm;

/// Why a vCPU stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exit {
    /// A load where no RAM is.
    MmioRead {
        /// Guest-physical address.
        gpa: u64,
        /// Bytes: 1, 2, 4 or 8.
        size: u8,
    },
    /// A store where no RAM is.
    MmioWrite {
        /// Guest-physical address.
        gpa: u64,
        /// Bytes: 1, 2, 4 or 8.
        size: u8,
        /// The value.
        value: u64,
    },
    /// MRS of a register of the interrupt controller.
    SysRead(Sys),
    /// MSR to a register of the interrupt controller.
    SysWrite(Sys, u64),
    /// HVC without EL2, or SMC: a call of firmware by the SMC calling convention, arguments in X0 to X7.
    Call,
    /// A timer's register was written, or one of the virtual CPU interface: lines and deadlines may differ. The instruction
    /// is complete.
    Timer,
    /// WFI: nothing to do until an interrupt.
    Idle,
    /// WFE or YIELD: it waits for another vCPU.
    Yield,
    /// It was kicked.
    Kicked,
    /// The run's time or instructions are over.
    Over,
    /// A debugger waits for this.
    Debug(DebugCause),
    /// It cannot fetch its exception vector either, and would take that exception for ever: at this address.
    Lost(u64),
}

impl Exit {
    /// Why a hypervisor at EL2 would have been entered, by the names of `perf kvm stat`; none where it would not.
    pub const fn reason(&self) -> Option<Reason> {
        Some(match self {
            Exit::MmioRead { .. } | Exit::MmioWrite { .. } => reasons::DABT_LOW,
            Exit::SysWrite(Sys::ICC_SGI1R_EL1, _) => reasons::SYS64,
            Exit::Call => reasons::HVC64,
            Exit::Idle => reasons::WFX,
            Exit::Kicked => reasons::IRQ,
            // What the processor does by itself: the CPU interface of the interrupt controller but interrupts sent to others,
            // timers, and waits in which others may run. What it cannot fetch it takes at EL1.
            Exit::SysRead(_) | Exit::SysWrite(..) | Exit::Timer | Exit::Yield => return None,
            Exit::Debug(_) | Exit::Over | Exit::Lost(_) => return None,
        })
    }
}

/// What an exit is answered. Those without an answer go on by themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// What was read, or X0 behind a call.
    Value(u64),
    /// It was written.
    Done,
    /// Nothing is there: an external abort, or UNDEFINED for a register.
    Refused,
}

/// Interrupt lines into the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controls {
    /// IRQ is asserted.
    pub irq: bool,
}

/// What a guest is offered of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// EL2 is there.
    pub el2: bool,
    /// EL2 has the Virtualization Host Extensions.
    pub vhe: bool,
    /// Frequency of the system counter in Hz.
    pub counter_hz: u64,
}

/// No event is injected: interrupts are lines ([`Controls`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoEvent {}

impl Isa for Arm {
    type State = CpuState;
    type Parts = ();
    type Exit = Exit;
    type Answer = Answer;
    type Event = NoEvent;
    type Signal = NoEvent;
    type Window = NoEvent;
    type Controls = Controls;
    type Controller = ();
    type Offered = Offered;

    const REASONS: &'static [Reason] = reasons::REASONS;

    fn reason(exit: &Exit) -> Option<Reason> {
        exit.reason()
    }

    fn can_take(_: &CpuState, window: NoEvent) -> bool {
        match window {}
    }
}
