//! CPUID leaf numbers (SDM volume 2A, CPUID).

/// Vendor and highest basic leaf.
pub const VENDOR: u32 = 0;
/// Signature and the first features.
pub const SIGNATURE: u32 = 1;
/// Cache and TLB descriptors.
pub const DESCRIPTORS: u32 = 2;
/// Deterministic cache parameters.
pub const CACHES: u32 = 4;
/// MONITOR/MWAIT.
pub const MONITOR: u32 = 5;
/// Thermal and power management.
pub const POWER: u32 = 6;
/// Structured extended features.
pub const EXTENDED_FEATURES: u32 = 7;
/// Architectural performance monitoring.
pub const PERFMON: u32 = 0xa;
/// Extended topology.
pub const TOPOLOGY: u32 = 0xb;
/// Processor extended state (XSAVE).
pub const XSTATE: u32 = 0xd;
/// Time-stamp counter and core crystal clock.
pub const TSC: u32 = 0x15;
/// Processor frequency.
pub const FREQUENCY: u32 = 0x16;
/// Extended topology with dies (V2).
pub const TOPOLOGY_V2: u32 = 0x1f;
/// First leaf that hypervisors use.
pub const HYPERVISOR: u32 = 0x4000_0000;
/// Highest extended leaf.
pub const EXTENDED: u32 = 0x8000_0000;
/// Extended features.
pub const EXTENDED_SIGNATURE: u32 = 0x8000_0001;
/// First of three leaves of the brand string.
pub const BRAND: u32 = 0x8000_0002;
/// L1 caches, as AMD tells them.
pub const EXTENDED_L1: u32 = 0x8000_0005;
/// L2 and L3 cache, as AMD tells them.
pub const EXTENDED_L2: u32 = 0x8000_0006;
/// Invariant TSC.
pub const EXTENDED_POWER: u32 = 0x8000_0007;
/// Address sizes.
pub const ADDRESS_SIZES: u32 = 0x8000_0008;
/// AMD: SVM.
pub const AMD_SVM: u32 = 0x8000_000a;
/// AMD's cache properties (APM volume 3, E.4.16).
pub const AMD_CACHES: u32 = 0x8000_001d;
/// AMD's processor topology (APM volume 3, E.4.17).
pub const AMD_TOPOLOGY: u32 = 0x8000_001e;
/// AMD's extended features 2 (APM volume 3, E.4.20).
pub const EXTENDED_FEATURES_2: u32 = 0x8000_0021;

/// IA32_ARCH_CAPABILITIES.
pub mod arch_capabilities {
    /// No rogue data cache load (Meltdown).
    pub const RDCL_NO: u64 = 1 << 0;
    /// Enhanced IBRS.
    pub const IBRS_ALL: u64 = 1 << 1;
    /// L1D need not be flushed at VM entry.
    pub const SKIP_L1DFL_VMENTRY: u64 = 1 << 3;
    /// No speculative store bypass.
    pub const SSB_NO: u64 = 1 << 4;
    /// No microarchitectural data sampling.
    pub const MDS_NO: u64 = 1 << 5;
    /// No machine check on page size change.
    pub const PSCHANGE_MC_NO: u64 = 1 << 6;
    /// No TSX asynchronous abort.
    pub const TAA_NO: u64 = 1 << 8;
    /// No shared buffers data read, nor sideband stale data propagator.
    pub const SBDR_SSDP_NO: u64 = 1 << 13;
    /// No fill buffer stale data propagator.
    pub const FBSDP_NO: u64 = 1 << 14;
    /// No primary stale data propagator.
    pub const PSDP_NO: u64 = 1 << 15;
    /// No branch history injection.
    pub const BHI_NO: u64 = 1 << 20;
    /// No post-barrier return stack buffer weakness.
    pub const PBRSB_NO: u64 = 1 << 24;
    /// No gather data sampling.
    pub const GDS_NO: u64 = 1 << 26;
    /// No register file data sampling.
    pub const RFDS_NO: u64 = 1 << 27;
    /// No indirect target selection.
    pub const ITS_NO: u64 = 1 << 62;
}
