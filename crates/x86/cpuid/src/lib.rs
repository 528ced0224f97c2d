//! What CPUID answers, and the platform MSRs that go with it: one layered table.
//!
//! Every bit of the answer is set by one [`Layer`], and the table remembers which
//! ([`CpuidTable::origin`]). Layers, later ones win:
//!
//! 1. `Engine`: the features that the engine implements;
//! 2. `Platform`: those of the machine beside it, the local APIC for one;
//! 3. `Model`: identity, caches, address sizes, and the features that the model leaves out;
//! 4. `Topology`: processors, their numbering and what they share;
//! 5. `Hypervisor`: the leaves of the paravirtual interfaces;
//! 6. `User`: `+feature`, `-feature`, `vendor=` and the like.
//!
//! Some bits follow the asking processor's state instead ([`CpuidTable::dynamic`]).
//!
//! The processor calls itself GenuineIntel on every host, unless told otherwise; see [`Identity`].

#![forbid(unsafe_code)]

pub mod controls;
mod feature;
mod identity;
mod leaves;
mod model;
pub mod msrs;
mod offered;
mod table;
mod topology;

pub use feature::{Feature, PLATFORM_FEATURES, Register, distance};
pub use identity::{ARCH_CAPABILITIES, Identity};
pub use leaves::crystal_hz;
pub use model::{CpuModel, CpuSpec, Error};
pub use offered::{FeatureSet, Offered, Vendor};
pub use table::{Context, CpuidTable, Layer, Leaf, Params, Registers, has_subleaves};
pub use topology::{MAX_CPUS, Topology};

/// MAXPHYADDR where nothing else is asked for: 64 GiB of RAM and its devices, with room.
pub const PHYSICAL_BITS: u8 = 46;
