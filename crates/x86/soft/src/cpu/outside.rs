//! What of a processor's inner parts the translator reads and changes.

use satori_engine::DebugPlan;
use satori_memory::GuestMemory;

use super::{Asking, Cpu};
use crate::isa::Isa;

impl Cpu {
    /// Guest RAM.
    #[inline(always)]
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The instruction set, and what else of the processor the guest is offered.
    pub fn isa(&self) -> &Isa {
        &self.isa
    }

    /// The six status flags, at their places in RFLAGS.
    #[inline(always)]
    pub fn status(&self) -> u64 {
        self.flags.bits()
    }

    /// Sets the six status flags to those of `bits`.
    #[inline(always)]
    pub fn set_status(&mut self, bits: u64) {
        self.flags.set_bits(bits);
    }

    /// Instructions retired before the current block.
    #[inline(always)]
    pub fn retired(&self) -> u64 {
        self.count.retired
    }

    /// So many more instructions were retired, modulo 2^64: code that is left early takes back what it had counted ahead.
    #[inline(always)]
    pub fn retire(&mut self, instructions: u64) {
        self.count.retired = self.count.retired.wrapping_add(instructions);
    }

    /// Where the instruction goes on that is executed by its generic implementation.
    #[inline(always)]
    pub fn next_rip(&self) -> u64 {
        self.next_rip
    }

    /// The generic implementation is called of an instruction that goes on at `rip`, unless it branches.
    #[inline(always)]
    pub fn set_next_rip(&mut self, rip: u64) {
        self.next_rip = rip;
    }

    /// The instruction that asked the machine is `asking`: with the answer it is executed again as it is there.
    pub fn note_asking(&mut self, asking: Asking) {
        self.pending.asking = Some(asking);
    }

    /// Whether each instruction or each access to data has to be looked at for breakpoints.
    #[inline]
    pub fn looks_at_all(&self) -> bool {
        self.debug.hinders()
    }

    /// Whether the page at `linear` holds an instruction with a breakpoint.
    #[inline]
    pub fn breaks_in_page(&self, linear: u64) -> bool {
        self.debug.code_page(linear)
    }

    /// Takes a debugger's wishes.
    pub fn set_debug(&mut self, plan: DebugPlan) {
        self.debug.set_plan(plan);
    }
}
