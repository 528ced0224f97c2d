//! How a run ended.

use std::sync::Arc;
use std::time::Duration;

use satori_bus::Nanos;
use satori_hyperv::Crash;
use satori_profile::Profile;
use satori_pv::Used;
use satori_state::CpuState;
use satori_symbols::Symbols;

use crate::CrashDump;

/// Why a run ended. The first event wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The guest powered off.
    PowerOff,
    /// The guest asked for a reset, by this port or interface, and resets end the run.
    Reset(&'static str),
    /// isa-debug-exit: the value written.
    DebugExit(u32),
    /// The guest panicked, and who told: `pvpanic`, the crash MSRs, or its console.
    Panic(&'static str),
    /// This vCPU's third fault in a row.
    TripleFault {
        /// Its index.
        vcpu: u32,
    },
    /// This vCPU, of AArch64, takes one exception behind the other, as nothing can be fetched at its vector.
    Lost {
        /// Its index.
        vcpu: u32,
        /// The vector's address.
        at: u64,
    },
    /// [`Config::timeout`](crate::Config::timeout) or [`Config::guest_timeout`](crate::Config::guest_timeout)
    /// ran out.
    Timeout,
    /// It slept (ACPI S3) and wakes: another life begins, and no run ends.
    Woken,
    /// [`Handle::stop`](crate::Handle::stop).
    Stopped,
    /// It was to be the run of a record and is another one: where they part.
    Diverged(String),
    /// Satori itself failed: what happened.
    Failed(String),
}

/// What is left of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why it ended.
    pub event: Event,
    /// Its exits, and the counters of the engine and the machine.
    pub profile: Profile,
    /// What was offered to the guest by the Hyper-V interface, and what it used.
    pub hyperv: Vec<Used>,
    /// What it was offered and used of KVM's guest interface.
    pub used: Vec<Used>,
    /// What the guest told through the crash MSRs.
    pub crash: Option<Crash>,
    /// Names of the guest's functions, if they could be had and it failed or
    /// [`Config::names`](crate::Config::names) asks for them.
    pub symbols: Option<Arc<Symbols>>,
    /// What became of the trace, if there is one.
    pub traced: Option<satori_trace::Told>,
    /// What [`Machine::crash_dumps`](crate::Machine::crash_dumps) led to, if the guest crashed: what was
    /// written, or why it could not be.
    pub crash_dump: Option<Result<CrashDump, String>>,
    /// The same of the guest that it has itself.
    pub crash_dump_l2: Option<Result<CrashDump, String>>,
    /// What only a machine of AArch64 leaves.
    pub arm: Option<crate::arm::Left>,
    /// Each vCPU's last registers, of a machine of x86.
    pub registers: Vec<CpuState>,
    /// The console's last lines, oldest first.
    pub console_tail: Vec<String>,
    /// What stands in the memory of a text screen, if nothing came over the console.
    pub screen: Vec<String>,
    /// Instructions retired by all vCPUs.
    pub instructions: u64,
    /// Guest time since the machine started.
    pub guest_time: Nanos,
    /// Wall-clock time of the run.
    pub elapsed: Duration,
    /// How often the guest reset itself.
    pub resets: u32,
}
