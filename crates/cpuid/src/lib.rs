//! What CPUID answers, and the platform MSRs that go with it: one layered table.
//!
//! Every bit of the answer is set by one [`Layer`], and the table remembers which
//! ([`CpuidTable::origin`]). Layers, later ones win:
//!
//! 1. `Engine`: the features that the engine implements, and those of the platform itself;
//! 2. `Model`: identity, caches, address sizes, and the features that the model leaves out;
//! 3. `Topology`: processors and their numbering;
//! 4. `Hypervisor`: the leaves of the paravirtual interfaces;
//! 5. `User`: `+feature` and `-feature`.
//!
//! The processor calls itself GenuineIntel on every host. Its signature is that of the last
//! in-order Intel core with 64 bits: a processor that does not speculate needs no mitigations,
//! and Linux knows that of this signature (see [`model`]).

mod feature;
pub mod model;
pub mod msrs;
mod offered;
mod table;

pub use feature::{Feature, PLATFORM_FEATURES, Register};
pub use model::{CpuModel, CpuSpec, Error};
pub use offered::{FeatureSet, Offered, Vendor};
pub use table::{Context, CpuidTable, Layer, Leaf, Params, Registers, crystal_hz};

/// MAXPHYADDR where nothing else is asked for: 64 GiB of RAM and its devices, with room.
pub const PHYSICAL_BITS: u8 = 46;
