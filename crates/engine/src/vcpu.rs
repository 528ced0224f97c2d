//! The traits an engine implements.

use std::sync::Arc;

use satori_cpuid::Offered;
use satori_defs::x86::rflags;
use satori_memory::GuestMemory;
use satori_state::CpuState;

use crate::{DebugPlan, Exception, Exit, Kick, Resume, Whereabouts};

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
        }
    }
}

/// An event injected at the next entry (SDM 26.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// An external interrupt with this vector.
    Interrupt(u8),
    /// A non-maskable interrupt.
    Nmi,
    /// A hardware exception.
    Exception(Exception),
}

/// When a run must end by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Until {
    /// Partition TSC at which `PreemptionTimer` is raised.
    pub tsc: Option<u64>,
    /// Instructions after which `Budget` is returned, exactly.
    pub instructions: Option<u64>,
}

/// The partition's time, as an engine needs it.
pub trait TimeSource: Send + Sync {
    /// The partition's time-stamp counter.
    fn tsc(&self) -> u64;
    /// What a guest's time-stamp counter shows, before a vCPU's own offset: the partition's, unless
    /// its frequency was changed.
    fn guest_tsc(&self) -> u64 {
        self.tsc()
    }
    /// Tells that the calling vCPU retired `instructions` more. Called before every
    /// [`TimeSource::tsc`] and at the end of every run; virtual time advances by it.
    fn retired(&self, instructions: u64);
}

/// A counter of an engine: its name and value.
pub type Stat = (&'static str, u64);

/// One virtual processor.
pub trait Vcpu: Send {
    /// Executes until something needs the machine.
    fn run(&mut self, until: Until) -> Exit;

    /// Takes the answer to the exit that [`Vcpu::run`] returned last.
    fn resume(&mut self, answer: Resume);

    /// Injects `event` at the next run. At most one; the caller has seen that it can be taken.
    fn inject(&mut self, event: Event);

    /// Asks for `InterruptWindow` as soon as an interrupt could be taken.
    fn request_interrupt_window(&mut self, wanted: bool);

    /// Asks for `NmiWindow` as soon as an NMI could be taken.
    fn request_nmi_window(&mut self, wanted: bool);

    /// The register file; complete outside [`Vcpu::run`].
    fn state(&self) -> &CpuState;

    /// The register file, for change; the engine then derives anew what it keeps beside it.
    fn state_mut(&mut self) -> &mut CpuState;

    /// The controls in force, for change.
    fn controls_mut(&mut self) -> &mut Controls;

    /// Drops every cached translation, as INVEPT and a full TLB flush would.
    fn flush_tlb(&mut self);

    /// Drops the cached translation of the page of linear address `linear`, as INVLPG does.
    fn flush_page(&mut self, _linear: u64) {
        self.flush_tlb();
    }

    /// Drops every cached translation that is not global, as a load of CR3 does.
    fn flush_non_global(&mut self) {
        self.flush_tlb();
    }

    /// The kick of this vCPU.
    fn kick(&self) -> Arc<Kick>;

    /// Where it says what it is doing, if it does. Outside [`Vcpu::run`] the machine says so.
    fn whereabouts(&self) -> Option<Arc<Whereabouts>> {
        None
    }

    /// Replaces what a debugger asks for; the next runs raise [`Exit::Debug`] by it.
    fn set_debug(&mut self, plan: DebugPlan);

    /// The guest-physical address behind linear address `linear` now, if it is mapped. Changes
    /// nothing, accessed bits included, and asks for no rights.
    fn translate(&self, linear: u64) -> Option<u64>;

    /// Instructions retired since creation. One that faulted counts too, when its exception is
    /// delivered: time passes for a guest that does nothing else.
    fn retired(&self) -> u64;

    /// The engine's own counters.
    fn stats(&self) -> Vec<Stat>;

    /// Whether RFLAGS.IF, the interrupt shadow and pending debug traps, which come first, allow
    /// an interrupt now.
    fn can_take_interrupt(&self) -> bool {
        let state = self.state();
        state.rflags & rflags::IF != 0 && !state.interrupt_shadow && state.pending_debug == 0
    }

    /// Whether an NMI can be taken now.
    fn can_take_nmi(&self) -> bool {
        let state = self.state();
        !state.nmi_blocked && !state.interrupt_shadow && state.pending_debug == 0
    }
}

/// Where RDRAND and RDSEED get their numbers: the host under real time, a seeded generator under
/// virtual time.
pub trait Entropy: Send {
    /// The next number; none if there is none now, which the guest sees as CF clear.
    fn next(&mut self) -> Option<u64>;
}

/// What a vCPU is made of.
pub struct VcpuParts {
    /// Its number in the partition.
    pub index: u32,
    /// The partition's memory.
    pub memory: GuestMemory,
    /// The partition's time.
    pub time: Arc<dyn TimeSource>,
    /// Whether vCPUs run on several threads at once.
    pub parallel: bool,
    /// What the guest is offered. What is not offered does not exist: an instruction is #UD, a
    /// register bit is reserved.
    pub offered: Offered,
    /// Random numbers.
    pub entropy: Box<dyn Entropy>,
}

/// A way to execute guest instructions.
pub trait Engine: Send + Sync {
    /// A short name: `interpreter`, `kvm`.
    fn name(&self) -> &'static str;

    /// Makes a vCPU in its reset state.
    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu>;
}
