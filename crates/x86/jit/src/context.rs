//! The part of a vCPU that translated code reads and writes beside the registers, by offsets from GS.

use satori_defs::fpu::mxcsr;

use super::Translating;
use super::targets::{TABLES, Target, Targets};
use super::{memory, window, x87};

/// One for each vCPU; its layout is that of `offset_of!` in the emitted code.
#[repr(C)]
pub(crate) struct Context {
    /// The status flags as LAHF and SETO leave them in AX.
    pub(super) flags: u64,
    /// A value of `reason`: why the code was left. Valid behind a return to the dispatcher.
    pub(super) reason: u64,
    /// Instructions until the next look around. While code runs, the BUDGET register holds it instead.
    pub(super) budget: i64,
    /// Instructions that the run may execute beyond `budget`, which is refilled from it.
    pub(super) left: i64,
    /// The byte of the vCPU's `Kick`, which other threads set to make code leave at its next look around.
    pub(super) kick: *const u8,
    pub(super) cpu: *mut Translating,
    /// A value that an access's slow path must not lose: valid from before that access to behind it.
    pub(super) temporary: u64,
    /// The other scratch register's value while an address takes both.
    pub(super) beside: u64,
    /// The linear address of an access whose address no x86 operand expresses, between its computation and its use.
    pub(super) computed: u64,
    /// The address of the last miss that was answered, and how many misses before it were of the same.
    pub(super) missed: u64,
    pub(super) repeats: u32,
    /// Offset in the TLB of the entry that the last store went through, for the look at the page's code word behind it; kept only if
    /// other vCPUs execute too.
    pub(super) stored: u64,
    /// How far the TLB's entries for a nested guest are from the others ([`Tlb::nested_distance`](satori_soft::mmu::Tlb::nested_distance)).
    /// Valid while such a guest's code runs.
    pub(super) nested_entries: u64,
    /// MXCSR as the monitor's own code has it.
    pub(super) host_mxcsr: u32,
    /// 1 while the guest's vector registers and MXCSR are in the host's, and the register file is stale.
    pub(super) vectors: u8,
    /// 1 while the guest's x87 registers are in the host's, and `x87` and the register file are stale.
    pub(super) x87_loaded: u8,
    /// 1 while the guest's x87 registers are in `x87`, and the register file is stale.
    pub(super) x87_stored: u8,
    /// How many indirect branches met a known target; stays 0 unless they are counted.
    pub(super) met: u64,
    /// A host register's value while the x87's registers are stored, which needs that register.
    pub(super) spare: u64,
    /// The bytes of a vector that lies in two pages: put together here for a load, or taken from here for a store.
    pub(super) vector: [u8; 2 * memory::VECTOR],
    /// A host vector register's value while that register is needed for something else.
    pub(super) spare_vector: [u8; 16],
    pub(super) x87: x87::Area,
    pub(super) windows: [window::Opened; window::PLACES],
    /// The address of the code that goes on without windows, for the jump behind a window that failed; 0 if there is none yet.
    pub(super) without: u64,
    /// In how many rounds behind the next one all strided accesses of a loop stay in their pages, while that is computed.
    pub(super) rounds: u64,
    /// How many instructions were taken off the budget and put to `left`, so that it lasts for these rounds.
    pub(super) reserve: u64,
    /// The target of the link that was asked for last, and that no code is known for.
    pub(super) unlinked: u64,
    /// How many more times accesses of loops may leave their page until their rate is judged, and the count of instructions when it
    /// was judged last.
    pub(super) left_pages: i64,
    pub(super) left_pages_at: u64,
    /// The target of an indirect branch for which no code is known: its address, and the code that leaves for the dispatcher.
    pub(super) unknown: Target,
    /// Targets of indirect branches, by mode.
    pub(super) targets: [Targets; TABLES],
    /// The addresses of the tables in `targets`, for translated code.
    pub(super) tables: [*const Target; TABLES],
    /// Distances to the host's memory of the two pages that a group of accesses is in, by the low byte of the page's number.
    pub(super) pairs: [u64; window::PAIRS],
}

// SAFETY: the pointers are to the vCPU itself and to its kick, which it holds; they are written anew
// by whichever thread runs it.
unsafe impl Send for Context {}

impl Context {
    pub(crate) fn new() -> Self {
        let targets = std::array::from_fn(|_| Targets::new());
        Context {
            tables: targets.each_ref().map(Targets::address),
            targets,
            unknown: Target { rip: 0, code: 0 },
            flags: 0,
            reason: 0,
            budget: 0,
            left: 0,
            kick: std::ptr::null(),
            cpu: std::ptr::null_mut(),
            temporary: 0,
            beside: 0,
            computed: 0,
            missed: 0,
            repeats: 0,
            stored: 0,
            nested_entries: 0,
            host_mxcsr: mxcsr::RESET,
            vectors: 0,
            x87_loaded: 0,
            x87_stored: 0,
            met: 0,
            spare: 0,
            vector: [0; 2 * memory::VECTOR],
            spare_vector: [0; 16],
            x87: x87::Area::new(),
            windows: Default::default(),
            pairs: [0; window::PAIRS],
            without: 0,
            rounds: 0,
            reserve: 0,
            unlinked: 0,
            left_pages: window::LEAVINGS,
            left_pages_at: 0,
        }
    }

    /// Indirect branches that met a known target.
    pub(crate) fn met(&self) -> u64 {
        self.met
    }
}
