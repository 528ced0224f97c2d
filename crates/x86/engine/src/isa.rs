//! The types of x86 at the seam.

use std::sync::Arc;

use satori_cpuid::{CpuidTable, Offered};
use satori_defs::x86::rflags;
use satori_seam::{Isa, Reason};
use satori_state::{CpuState, LocalApic, Parts};
use serde::{Deserialize, Serialize};

use crate::{Exception, Exit, REASONS, Resume};

/// The instruction set of AMD's and Intel's processors.
#[derive(Clone, Copy, Debug)]
pub enum X86 {}

impl Isa for X86 {
    type State = CpuState;
    type Parts = Parts;
    type Exit = Exit;
    type Answer = Resume;
    type Event = Event;
    type Signal = Signal;
    type Window = Window;
    type Controls = Controls;
    type Controller = LocalApic;
    type Offered = Processor;

    const REASONS: &'static [Reason] = REASONS;

    fn reason(exit: &Exit) -> Option<Reason> {
        exit.reason().map(crate::reason)
    }

    fn can_take(state: &CpuState, window: Window) -> bool {
        // Pending debug traps come first.
        let open = !state.interrupt_shadow && state.pending_debug == 0;
        open && match window {
            Window::Interrupt => state.rflags & rflags::IF != 0,
            Window::Nmi => !state.nmi_blocked,
        }
    }
}

/// What a guest is offered of its processors.
#[derive(Clone, Debug)]
pub struct Processor {
    /// Whose rules hold, and which features there are.
    pub offered: Offered,
    /// What CPUID answers, for an engine that does not exit by it.
    pub cpuid: Option<Arc<CpuidTable>>,
}

impl From<Offered> for Processor {
    fn from(offered: Offered) -> Self {
        Processor { offered, cpuid: None }
    }
}

/// The port whose byte, written, is a hypercall on an engine that is told of them so
/// ([`Capability::HypercallsByPort`](crate::Capability::HypercallsByPort)). It is none of a PC's devices': the second half of
/// what the ISA gave to DMA pages.
pub const HYPERCALL_PORT: u8 = 0x9f;

/// A window that can be asked for (SDM 26.6.1, "interrupt-window exiting" and "NMI-window exiting").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// RFLAGS.IF is set, and no shadow holds an interrupt back.
    Interrupt,
    /// No NMI is being handled, and no shadow holds one back.
    Nmi,
}

/// Which controls of the modelled VMX processor are on. The defaults are KVM's on a machine
/// with EPT, MSR bitmaps, TPR shadow and virtualised APIC accesses, without APICv.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controls {
    /// Guest-physical page whose accesses raise `ApicRead` and `ApicWrite`; none in x2APIC mode.
    pub apic_access_page: Option<u64>,
    /// The page is mapped, so that the processor knows its accesses: with the TPR shadow, its TPR register (0x80)
    /// is read and written without an exit.
    pub virtualize_apic_accesses: bool,
    /// `TprBelowThreshold` is raised when TPR bits 7:4 fall below this.
    pub tpr_threshold: u8,
    /// PAUSEs in a tight loop before `Pause` is raised; 0 never. KVM counts cycles, 4,096, of which a PAUSE takes 40
    /// to 140; a software processor takes as long for these as for some changes of threads.
    pub ple_window: u32,
    /// Whether the task priority is read and written without an exit, by CR8 and the MSR.
    pub tpr_shadow: bool,
    /// The last stop was no VM exit: what an exit takes from the guest, it still has.
    pub continued: bool,
    /// What Hyper-V's interface gives a hypervisor among the guests.
    pub nesting: Nesting,
    /// Vectors that are ended when they are delivered, a bit each, where the engine keeps the local APIC.
    pub auto_eoi: [u32; 8],
}

/// What of Hyper-V's interface the processor takes part in where a guest's hypervisor enters guests of its own (TLFS,
/// "Nested Virtualization").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nesting {
    /// VM entry may take an enlightened VMCS.
    pub evmcs: bool,
    /// A nested guest's hypercalls that flush TLBs may be served here.
    pub direct_flush: bool,
    /// The VP assist page, while it is enabled.
    pub assist: Option<u64>,
}

impl Default for Controls {
    fn default() -> Self {
        Controls {
            apic_access_page: None,
            virtualize_apic_accesses: true,
            tpr_threshold: 0,
            ple_window: 512,
            tpr_shadow: true,
            continued: false,
            nesting: Nesting::default(),
            auto_eoi: [0; 8],
        }
    }
}

/// What an interrupt controller has for its processor, before anything comes of it (SDM 11.4.7, 11.5.1, 29.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// INIT.
    Init,
    /// A SIPI with this vector.
    StartUp(u8),
    /// An external interrupt that is about to be injected. One that is taken is at its end.
    Interrupt(u8),
}

/// An event injected at the next entry (SDM 26.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// An external interrupt with this vector.
    Interrupt(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// A hardware exception.
    Exception(Exception),
}
