//! The Hyper-V guest interface (Top-Level Functional Specification, "TLFS").

pub mod synic;
pub mod vmbus;

/// CPUID leaves (TLFS 2.4).
pub mod leaf {
    /// Highest leaf and vendor.
    pub const VENDOR: u32 = 0x4000_0000;
    /// Interface signature.
    pub const INTERFACE: u32 = 0x4000_0001;
    /// Version.
    pub const VERSION: u32 = 0x4000_0002;
    /// Privileges and features.
    pub const FEATURES: u32 = 0x4000_0003;
    /// In EAX there: the guest may use the MSRs of the local APIC.
    pub const APIC_MSRS: u32 = 1 << 4;
    /// Recommendations.
    pub const RECOMMENDATIONS: u32 = 0x4000_0004;
    /// Limits.
    pub const LIMITS: u32 = 0x4000_0005;
    /// Hardware features in use.
    pub const HARDWARE: u32 = 0x4000_0006;
    /// Nested features; the highest leaf.
    pub const NESTED: u32 = 0x4000_000a;
}

/// "Hv#1", the interface signature.
pub const INTERFACE_SIGNATURE: u32 = 0x3123_7648;
/// The vendor that guests know.
pub const VENDOR: [u8; 12] = *b"Microsoft Hv";

/// Synthetic MSRs (TLFS appendix).
pub mod msr {
    /// First of the synthetic MSRs.
    pub const FIRST: u32 = 0x4000_0000;
    /// Last of the synthetic MSRs.
    pub const LAST: u32 = 0x4000_01ff;
    /// Identity of the guest's operating system.
    pub const GUEST_OS_ID: u32 = 0x4000_0000;
    /// Hypercall page.
    pub const HYPERCALL: u32 = 0x4000_0001;
    /// Index of the virtual processor.
    pub const VP_INDEX: u32 = 0x4000_0002;
    /// Reset of the partition.
    pub const RESET: u32 = 0x4000_0003;
    /// Time that the virtual processor ran, in units of 100 ns.
    pub const VP_RUNTIME: u32 = 0x4000_0010;
    /// Reference counter, 10 MHz.
    pub const TIME_REF_COUNT: u32 = 0x4000_0020;
    /// Reference TSC page.
    pub const REFERENCE_TSC: u32 = 0x4000_0021;
    /// TSC frequency in Hz.
    pub const TSC_FREQUENCY: u32 = 0x4000_0022;
    /// APIC timer frequency in Hz.
    pub const APIC_FREQUENCY: u32 = 0x4000_0023;
    /// End of interrupt, write only.
    pub const EOI: u32 = 0x4000_0070;
    /// Interrupt command, both halves.
    pub const ICR: u32 = 0x4000_0071;
    /// Task priority.
    pub const TPR: u32 = 0x4000_0072;
    /// Virtual processor assist page.
    pub const VP_ASSIST_PAGE: u32 = 0x4000_0073;
    /// Control of the synthetic interrupt controller.
    pub const SCONTROL: u32 = 0x4000_0080;
    /// Its version, read only.
    pub const SVERSION: u32 = 0x4000_0081;
    /// Event flags page.
    pub const SIEFP: u32 = 0x4000_0082;
    /// Message page.
    pub const SIMP: u32 = 0x4000_0083;
    /// End of message.
    pub const EOM: u32 = 0x4000_0084;
    /// First of sixteen synthetic interrupt sources.
    pub const SINT0: u32 = 0x4000_0090;
    /// Last of sixteen synthetic interrupt sources.
    pub const SINT15: u32 = 0x4000_009f;
    /// Configuration of the first of four synthetic timers; its count follows.
    pub const STIMER0_CONFIG: u32 = 0x4000_00b0;
    /// Count of the last synthetic timer.
    pub const STIMER3_COUNT: u32 = 0x4000_00b7;
    /// A read of it sleeps until an interrupt comes.
    pub const GUEST_IDLE: u32 = 0x4000_00f0;
    /// First of five crash parameters.
    pub const CRASH_P0: u32 = 0x4000_0100;
    /// Last of five crash parameters.
    pub const CRASH_P4: u32 = 0x4000_0104;
    /// Crash control.
    pub const CRASH_CTL: u32 = 0x4000_0105;
    /// Who is told of a new TSC frequency.
    pub const REENLIGHTENMENT_CONTROL: u32 = 0x4000_0106;
    /// Whether the TSC is emulated after a change of its frequency.
    pub const TSC_EMULATION_CONTROL: u32 = 0x4000_0107;
    /// Whether it is being emulated.
    pub const TSC_EMULATION_STATUS: u32 = 0x4000_0108;
    /// Whether the guest wants to see an invariant TSC.
    pub const TSC_INVARIANT_CONTROL: u32 = 0x4000_0118;
}

/// Hypercall codes (TLFS appendix).
pub mod call {
    /// HvCallFlushVirtualAddressSpace.
    pub const FLUSH_VIRTUAL_ADDRESS_SPACE: u16 = 0x02;
    /// HvCallFlushVirtualAddressList.
    pub const FLUSH_VIRTUAL_ADDRESS_LIST: u16 = 0x03;
    /// HvCallNotifyLongSpinWait.
    pub const NOTIFY_LONG_SPIN_WAIT: u16 = 0x08;
    /// HvCallSendSyntheticClusterIpi.
    pub const SEND_SYNTHETIC_CLUSTER_IPI: u16 = 0x0b;
    /// HvCallFlushVirtualAddressSpaceEx.
    pub const FLUSH_VIRTUAL_ADDRESS_SPACE_EX: u16 = 0x13;
    /// HvCallFlushVirtualAddressListEx.
    pub const FLUSH_VIRTUAL_ADDRESS_LIST_EX: u16 = 0x14;
    /// HvCallSendSyntheticClusterIpiEx.
    pub const SEND_SYNTHETIC_CLUSTER_IPI_EX: u16 = 0x15;
    /// HvCallPostMessage.
    pub const POST_MESSAGE: u16 = 0x5c;
    /// HvCallSignalEvent.
    pub const SIGNAL_EVENT: u16 = 0x5d;
    /// HvCallFlushGuestPhysicalAddressSpace.
    pub const FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE: u16 = 0xaf;
    /// HvCallFlushGuestPhysicalAddressList.
    pub const FLUSH_GUEST_PHYSICAL_ADDRESS_LIST: u16 = 0xb0;
    /// The calls that flush TLBs of linear addresses.
    pub const FLUSHES: [u16; 4] = [
        FLUSH_VIRTUAL_ADDRESS_SPACE,
        FLUSH_VIRTUAL_ADDRESS_LIST,
        FLUSH_VIRTUAL_ADDRESS_SPACE_EX,
        FLUSH_VIRTUAL_ADDRESS_LIST_EX,
    ];
    /// HvExtCallQueryCapabilities, the first of the extended calls.
    pub const EXT_QUERY_CAPABILITIES: u16 = 0x8001;
}

/// CPUID leaf 0x40000004, EAX bit 14: nested hypervisors should use the enlightened VMCS.
pub const EVMCS_RECOMMENDED: u32 = 1 << 14;
/// CPUID leaf 0x4000000A, EAX 15:0: versions 1 to 1 of the enlightened VMCS.
pub const EVMCS_VERSIONS: u32 = 0x0101;

/// The VP assist page (TLFS, HV_VP_ASSIST_PAGE): offsets of what nested hypervisors put there.
pub mod assist {
    /// HV_NESTED_ENLIGHTENMENTS_CONTROL, whose features are its first four bytes.
    pub const NESTED_CONTROL: u64 = 32;
    /// In it: hypercalls of nested guests may be served below their hypervisor.
    pub const DIRECT_HYPERCALL: u32 = 1 << 0;
    /// A byte: VM entries take the enlightened VMCS.
    pub const ENLIGHTEN_VM_ENTRY: u64 = 40;
    /// Its guest-physical address.
    pub const CURRENT_NESTED_VMCS: u64 = 48;
}

/// Partition assist page: a u32 that is not 0 while the nested hypervisor wants to hear of each flush that was served for it.
pub const TLB_LOCK_COUNT: u64 = 0;

/// EOI assist bit 0, in the first four bytes of the VP assist page: no EOI is required.
pub const NO_EOI_REQUIRED: u32 = 1 << 0;
/// TSC_INVARIANT_CONTROL bit 0: the guest wants to see an invariant TSC.
pub const EXPOSE_INVARIANT_TSC: u64 = 1 << 0;
/// REENLIGHTENMENT_CONTROL: the vector in \[7:0\], the target's VP index in \[63:32\].
pub const REENLIGHTENMENT_ENABLE: u64 = 1 << 16;
/// TSC_EMULATION_CONTROL and TSC_EMULATION_STATUS bit 0.
pub const TSC_EMULATION: u64 = 1 << 0;

/// HV_FLUSH_FLAGS.
pub mod flush {
    /// The processor mask is ignored.
    pub const ALL_PROCESSORS: u64 = 1 << 0;
    /// The address space is ignored.
    pub const ALL_VIRTUAL_ADDRESS_SPACES: u64 = 1 << 1;
    /// Global mappings may stay.
    pub const NON_GLOBAL_MAPPINGS_ONLY: u64 = 1 << 2;
    /// List elements are extended HV_GVA_RANGEs.
    pub const USE_EXTENDED_RANGE_FORMAT: u64 = 1 << 3;
}

/// HV_GVA_RANGE in its extended format, where bits \[10:0\] count additional pages.
pub mod gva_range {
    /// The pages are large ones.
    pub const LARGE_PAGE: u64 = 1 << 11;
}

/// HV_VP_SET formats.
pub mod vp_set {
    /// Banks of 64 follow.
    pub const SPARSE: u64 = 0;
    /// All virtual processors.
    pub const ALL: u64 = 1;
    /// Virtual processors in a bank.
    pub const BANK: u32 = 64;
}

/// HV_INPUT_VTL: the level in \[3:0\] counts.
pub const USE_TARGET_VTL: u8 = 1 << 4;
/// Bit 0 of the page MSRs: the overlay page is enabled.
pub const PAGE_ENABLE: u64 = 1 << 0;
/// HYPERCALL bit 1: the MSR can no longer be written.
pub const HYPERCALL_LOCKED: u64 = 1 << 1;
/// RESET bit 0.
pub const RESET_NOW: u64 = 1 << 0;
/// CRASH_CTL bit 63: notify the host.
pub const CRASH_NOTIFY: u64 = 1 << 63;
/// CRASH_CTL bit 62: P3 and P4 are a message's address and length.
pub const CRASH_MESSAGE: u64 = 1 << 62;
/// Reference time runs at 10 MHz.
pub const REFERENCE_HZ: u64 = 10_000_000;

/// Hypercall status (TLFS appendix).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// HV_STATUS_SUCCESS.
    Success = 0,
    /// HV_STATUS_INVALID_HYPERCALL_CODE.
    InvalidHypercallCode = 2,
    /// HV_STATUS_INVALID_HYPERCALL_INPUT.
    InvalidHypercallInput = 3,
    /// HV_STATUS_INVALID_ALIGNMENT.
    InvalidAlignment = 4,
    /// HV_STATUS_INVALID_PARAMETER.
    InvalidParameter = 5,
    /// HV_STATUS_ACCESS_DENIED.
    AccessDenied = 6,
    /// HV_STATUS_OPERATION_DENIED.
    OperationDenied = 8,
    /// HV_STATUS_INVALID_VP_INDEX.
    InvalidVpIndex = 0x0e,
    /// HV_STATUS_INVALID_PORT_ID.
    InvalidPortId = 0x11,
    /// HV_STATUS_INVALID_CONNECTION_ID.
    InvalidConnectionId = 0x12,
    /// HV_STATUS_INSUFFICIENT_BUFFERS.
    InsufficientBuffers = 0x13,
    /// HV_STATUS_INVALID_SYNIC_STATE.
    InvalidSynicState = 0x18,
}

/// The reference TSC page (TLFS 12.7).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ReferenceTscPage {
    /// 0 while the page is not valid.
    pub sequence: u32,
    /// Zero.
    pub reserved: u32,
    /// 64.64 fixed point: 100 ns units a TSC cycle.
    pub scale: u64,
    /// Added after scaling.
    pub offset: i64,
}

const _: () = {
    assert!(size_of::<ReferenceTscPage>() == 24);
    assert!(core::mem::offset_of!(ReferenceTscPage, scale) == 8);
    assert!(core::mem::offset_of!(ReferenceTscPage, offset) == 16);
};
