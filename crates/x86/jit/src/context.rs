//! What translated code finds in the vCPU beside the registers.

use satori_defs::fpu::mxcsr;

use super::Translating;
use super::targets::{TABLES, Target, Targets};
use super::{memory, window, x87};

/// Where it finds them.
#[repr(C)]
pub struct Context {
    /// The status flags as LAHF and SETO leave them in AX.
    pub(super) flags: u64,
    /// Why the code was left.
    pub(super) reason: u64,
    /// Instructions until the next look around, while outside the code.
    pub(super) budget: i64,
    /// Instructions beyond those.
    pub(super) left: i64,
    /// The byte that others set when they want something.
    pub(super) kick: *const u8,
    pub(super) cpu: *mut Translating,
    /// Holds a value over an access.
    pub(super) temporary: u64,
    /// An address that is no sum of registers.
    pub(super) computed: u64,
    /// The address of the last miss that was answered, and how many misses before it were of the same.
    pub(super) missed: u64,
    pub(super) repeats: u32,
    /// Where the TLB's entry for the last store is, in bytes from the first, if others execute too.
    pub(super) stored: u64,
    /// MXCSR as the monitor's own code has it.
    pub(super) host_mxcsr: u32,
    /// The guest's vector registers and MXCSR are in the host's.
    pub(super) vectors: u8,
    /// The guest's x87 registers are in the host's.
    pub(super) x87_loaded: u8,
    /// They are in `x87`, and not in the register file yet.
    pub(super) x87_stored: u8,
    /// Indirect branches that met a known target, if they are counted.
    pub(super) met: u64,
    /// Holds a register while those of the x87 are stored.
    pub(super) spare: u64,
    /// A vector that is in two pages, with what is around it.
    pub(super) vector: [u8; 2 * memory::VECTOR],
    /// A register of vectors, while its place is needed.
    pub(super) spare_vector: [u8; 16],
    pub(super) x87: x87::Area,
    pub(super) windows: [window::Opened; window::PLACES],
    /// The code that goes on without windows, or 0.
    pub(super) without: u64,
    /// How often accesses in loops may leave their page until that is looked at, and when it was last.
    pub(super) left_pages: i64,
    pub(super) left_pages_at: u64,
    /// A target that no code is known for: where it is, and what leaves for it.
    pub(super) unknown: Target,
    /// Targets of indirect branches, by mode.
    pub(super) targets: [Targets; TABLES],
    /// The same, for translated code.
    pub(super) tables: [*const Target; TABLES],
    /// Distances to the host's memory of the two pages that a group of accesses is in, by the low byte of the page's number.
    pub(super) pairs: [u64; window::PAIRS],
}

// SAFETY: the pointers are to the vCPU itself and to its kick, which it holds; they are written anew
// by whichever thread runs it.
unsafe impl Send for Context {}

impl Context {
    pub fn new() -> Self {
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
            computed: 0,
            missed: 0,
            repeats: 0,
            stored: 0,
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
            left_pages: window::LEAVINGS,
            left_pages_at: 0,
        }
    }

    /// Indirect branches that met a known target.
    pub fn met(&self) -> u64 {
        self.met
    }
}
