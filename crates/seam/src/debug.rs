//! What a debugger outside the guest asks of a vCPU.
//!
//! It neither uses the guest's debug registers nor changes its memory, so that the guest cannot
//! tell, and its own breakpoints work meanwhile.

/// Which accesses a watchpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchAccess {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Both.
    Any,
}

/// Data that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchpoint {
    /// Linear address of its first byte.
    pub address: u64,
    /// Bytes, at least 1.
    pub len: u64,
    /// What of it is watched.
    pub access: WatchAccess,
}

/// Everything that a debugger asks of a vCPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugPlan {
    /// Linear addresses of instructions before which to stop.
    pub breakpoints: Vec<u64>,
    /// Data after whose access to stop.
    pub watchpoints: Vec<Watchpoint>,
    /// Stop after the next instruction, one iteration of a repeated one, or the delivery of an
    /// event.
    pub step: bool,
    /// Breakpoints stop only while a guest of the guest executes, or only while none does; else whoever executes.
    pub nested: Option<bool>,
}

/// Why a vCPU stopped for a debugger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugCause {
    /// A breakpoint; its instruction was not executed.
    Breakpoint,
    /// A watchpoint; the instruction that made the access is complete.
    Watchpoint(Watchpoint),
    /// [`DebugPlan::step`].
    Step,
}
