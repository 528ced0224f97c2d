//! Xen's guest interface, and its PVH boot (Xen public/xen.h and what it includes, public/arch-x86/hvm/start_info.h,
//! public/elfnote.h).

/// ELF notes of owner "Xen".
pub mod elfnote {
    /// Owner of the notes, without its NUL.
    pub const OWNER: &[u8] = b"Xen";
    /// XEN_ELFNOTE_PHYS32_ENTRY: the 32-bit physical entry point.
    pub const PHYS32_ENTRY: u64 = 18;
    /// XEN_ELFNOTE_PHYS32_RELOC: alignment, lowest and highest address of a relocatable image.
    pub const PHYS32_RELOC: u64 = 19;
}

/// Offsets in struct hvm_start_info, version 1.
pub mod start_info {
    /// XEN_HVM_START_MAGIC_VALUE: "xEn3" with bit 7 of its first byte set.
    pub const MAGIC_VALUE: u32 = 0x336e_c578;
    /// Version that has the memory map.
    pub const VERSION_VALUE: u32 = 1;
    /// u32, [`MAGIC_VALUE`].
    pub const MAGIC: usize = 0;
    /// u32, [`VERSION_VALUE`].
    pub const VERSION: usize = 4;
    /// u32, SIF_ flags.
    pub const FLAGS: usize = 8;
    /// u32, number of modules.
    pub const NR_MODULES: usize = 12;
    /// u64, address of the module list.
    pub const MODLIST_PADDR: usize = 16;
    /// u64, address of the command line.
    pub const CMDLINE_PADDR: usize = 24;
    /// u64, address of the RSDP.
    pub const RSDP_PADDR: usize = 32;
    /// u64, address of the memory map.
    pub const MEMMAP_PADDR: usize = 40;
    /// u32, number of entries of the memory map.
    pub const MEMMAP_ENTRIES: usize = 48;
    /// Bytes of the structure.
    pub const SIZE: usize = 56;
}

/// Offsets in struct hvm_modlist_entry.
pub mod modlist_entry {
    /// u64, address of the module.
    pub const PADDR: usize = 0;
    /// u64, its bytes.
    pub const SIZE_BYTES: usize = 8;
    /// u64, address of its command line, or 0.
    pub const CMDLINE_PADDR: usize = 16;
    /// Bytes of the structure.
    pub const SIZE: usize = 32;
}

/// Offsets in struct hvm_memmap_table_entry; its types are those of [`crate::acpi::address_range`].
pub mod memmap_entry {
    /// u64, first address.
    pub const ADDR: usize = 0;
    /// u64, bytes.
    pub const SIZE_BYTES: usize = 8;
    /// u32, type.
    pub const TYPE: usize = 16;
    /// Bytes of the structure.
    pub const SIZE: usize = 24;
}

/// Limit of the busy TSS in TR at the PVH entry (Xen docs/misc/pvh.pandoc).
pub const PVH_TSS_LIMIT: u32 = 0x67;

/// The name in a Xen guest's first leaf.
pub const SIGNATURE: [u8; 12] = *b"XenVMMXenVMM";
/// MSRs that put the hypercall page where their value says, as leaf 2 tells.
pub mod msr {
    /// Where Xen's leaves are the first.
    pub const PAGE: u32 = 0x4000_0000;
    /// Behind Hyper-V's.
    pub const PAGE_BEHIND: u32 = 0x4000_0200;
}

/// What a domain calls itself.
pub const DOMID_SELF: u16 = 0x7ff0;

/// Hypercalls, by number (public/xen.h).
pub mod call {
    /// Memory of a domain.
    pub const MEMORY: u64 = 12;
    /// Several calls at once.
    pub const MULTICALL: u64 = 13;
    /// The vCPU's timer.
    pub const SET_TIMER: u64 = 15;
    /// Version and features.
    pub const XEN_VERSION: u64 = 17;
    /// The hypervisor's own console.
    pub const CONSOLE_IO: u64 = 18;
    /// Grant tables.
    pub const GRANT_TABLE: u64 = 20;
    /// Assistance that a guest asks for.
    pub const VM_ASSIST: u64 = 21;
    /// vCPUs.
    pub const VCPU: u64 = 24;
    /// The scheduler.
    pub const SCHED: u64 = 29;
    /// Event channels.
    pub const EVENT_CHANNEL: u64 = 32;
    /// Physical devices.
    pub const PHYSDEV: u64 = 33;
    /// What guests with hardware's memory management have alone.
    pub const HVM: u64 = 34;
}

/// Errors, which calls return as negative numbers (public/errno.h).
pub mod errno {
    /// Not permitted.
    pub const EPERM: i64 = -1;
    /// Nothing there.
    pub const ENOENT: i64 = -2;
    /// No such domain.
    pub const ESRCH: i64 = -3;
    /// No such address.
    pub const ENXIO: i64 = -6;
    /// A buffer is not in the caller's memory.
    pub const EFAULT: i64 = -14;
    /// It is in use.
    pub const EBUSY: i64 = -16;
    /// It exists already.
    pub const EEXIST: i64 = -17;
    /// An argument cannot be.
    pub const EINVAL: i64 = -22;
    /// No room.
    pub const ENOSPC: i64 = -28;
    /// No such call.
    pub const ENOSYS: i64 = -38;
}

/// Offsets in struct shared_info of 64-bit guests, and in its struct vcpu_info.
pub mod shared_info {
    /// Bytes of a vcpu_info, of which the page has 32.
    pub const VCPU_INFO: u64 = 64;
    /// How many there are in the page.
    pub const VCPU_INFOS: u32 = 32;
    /// u8 of a vcpu_info: an event is pending.
    pub const UPCALL_PENDING: u64 = 0;
    /// u64: words of the pending bits in which there is one.
    pub const PENDING_SEL: u64 = 8;
    /// The time area.
    pub const TIME: u64 = 32;
    /// `u64[64]`: pending ports.
    pub const EVTCHN_PENDING: u64 = 0x800;
    /// `u64[64]`: masked ports.
    pub const EVTCHN_MASK: u64 = 0xa00;
    /// Version, seconds and nanoseconds of the wall clock at system time 0.
    pub const WALL_CLOCK: u64 = 0xc00;
    /// The upper half of the seconds.
    pub const WALL_CLOCK_SEC_HI: u64 = 0xc0c;
}

/// The FIFO ABI of event channels (public/event_channel.h).
pub mod fifo {
    /// Ports that there can be.
    pub const PORTS: u32 = 1 << 17;
    /// Of an event word: the port behind it in its queue.
    pub const LINK: u32 = PORTS - 1;
    /// The port is in a queue.
    pub const LINKED: u32 = 1 << 29;
    /// The port is masked.
    pub const MASKED: u32 = 1 << 30;
    /// The port is pending.
    pub const PENDING: u32 = 1 << 31;
    /// Queues of a vCPU; 0 comes first.
    pub const PRIORITIES: usize = 16;
    /// What a port has until it is given another.
    pub const DEFAULT_PRIORITY: u8 = 7;
    /// Of a control block, behind the bits of queues that are ready: `u32[16]`, the first port of each queue.
    pub const HEADS: u64 = 8;
    /// Bytes of a control block.
    pub const CONTROL_BYTES: u64 = 72;
}

/// Parameters of HVM guests (public/hvm/params.h).
pub mod param {
    /// How events are delivered without a vector of the vCPU's own.
    pub const CALLBACK_IRQ: u32 = 0;
    /// Of its value: where the type begins.
    pub const CALLBACK_TYPE_SHIFT: u32 = 56;
    /// Type: a global system interrupt, bits 7:0; 0 is none.
    pub const CALLBACK_GSI: u64 = 0;
    /// Type: pin bits 1:0 of PCI device bits 15:11.
    pub const CALLBACK_INTX: u64 = 1;
    /// Type: vector bits 7:0.
    pub const CALLBACK_VECTOR: u64 = 2;
    /// Frame of the store's page.
    pub const STORE_PFN: u32 = 1;
    /// The store's event channel.
    pub const STORE_EVTCHN: u32 = 2;
    /// Hyper-V's interface beside Xen's, which only a toolstack chooses.
    pub const VIRIDIAN: u32 = 9;
    /// Frame of the console's page.
    pub const CONSOLE_PFN: u32 = 17;
    /// The console's event channel.
    pub const CONSOLE_EVTCHN: u32 = 18;
}

/// Virtual interrupts.
pub mod virq {
    /// The vCPU's timer.
    pub const TIMER: u32 = 0;
    /// Debugging.
    pub const DEBUG: u32 = 1;
    /// Performance counters.
    pub const PMU: u32 = 13;
    /// How many there are.
    pub const COUNT: u32 = 24;
}

/// Offsets in the console's page (public/io/console.h).
pub mod console {
    /// What goes to the guest.
    pub const IN: u64 = 0;
    /// Bytes of it.
    pub const IN_BYTES: u32 = 1024;
    /// What comes from the guest.
    pub const OUT: u64 = 1024;
    /// Bytes of it.
    pub const OUT_BYTES: u32 = 2048;
    /// u32: how far the guest has read.
    pub const IN_CONS: u64 = 3072;
    /// u32: how far the host has written.
    pub const IN_PROD: u64 = 3076;
    /// u32: how far the host has read.
    pub const OUT_CONS: u64 = 3080;
    /// u32: how far the guest has written.
    pub const OUT_PROD: u64 = 3084;
}

/// Offsets in the store's page (public/io/xs_wire.h).
pub mod store {
    /// Bytes of each of the two rings.
    pub const BYTES: u32 = 1024;
    /// What comes from the guest.
    pub const REQUEST: u64 = 0;
    /// What goes to the guest.
    pub const RESPONSE: u64 = 1024;
    /// u32: how far the host has read.
    pub const REQUEST_CONS: u64 = 2048;
    /// u32: how far the guest has written.
    pub const REQUEST_PROD: u64 = 2052;
    /// u32: how far the guest has read.
    pub const RESPONSE_CONS: u64 = 2056;
    /// u32: how far the host has written.
    pub const RESPONSE_PROD: u64 = 2060;
    /// u32: what the host can do.
    pub const FEATURES: u64 = 2064;
    /// u32: 0, or that the guest wants to begin anew.
    pub const CONNECTION: u64 = 2068;
    /// u32: what was wrong.
    pub const ERROR: u64 = 2072;
    /// Beginning anew, and telling what was wrong.
    pub const FEATURES_VALUE: u32 = 3;
    /// The guest wants to begin anew.
    pub const RECONNECT: u32 = 1;
    /// An index was wrong.
    pub const ERROR_INDEX: u32 = 2;
    /// A message was.
    pub const ERROR_MESSAGE: u32 = 3;
}

/// Grant tables (public/grant_table.h).
pub mod grant {
    /// Frames that a table may have.
    pub const FRAMES: u32 = 64;
    /// Of a frame's number in add_to_physmap: one with states of version 2.
    pub const STATES: u64 = 1 << 31;
    /// Bytes of an entry of version 1: flags and domain, u16 each; frame, u32.
    pub const ENTRY_1: u64 = 8;
    /// Bytes of one of version 2: flags and domain; first byte and number of bytes, u16 each; frame, u64.
    pub const ENTRY_2: u64 = 16;
    /// Flags: the entry's type.
    pub const TYPE: u16 = 3;
    /// The type by which a domain may use a page.
    pub const ACCESS: u16 = 1;
    /// Flag: only to read.
    pub const READ_ONLY: u16 = 4;
    /// Flag: it is being read.
    pub const READING: u16 = 8;
    /// Flag: it is being written.
    pub const WRITING: u16 = 16;
    /// Flag of version 2: a part of the page.
    pub const SUB_PAGE: u16 = 0x100;
    /// Status: something was wrong.
    pub const GENERAL: i16 = -1;
    /// Status: no such domain.
    pub const BAD_DOMAIN: i16 = -2;
    /// Status: no such reference.
    pub const BAD_REFERENCE: i16 = -3;
    /// Status: no such mapping.
    pub const BAD_HANDLE: i16 = -4;
    /// Status: not permitted.
    pub const DENIED: i16 = -8;
    /// Status: no such page.
    pub const BAD_PAGE: i16 = -9;
    /// Status: it leaves the page.
    pub const CROSSES: i16 = -10;
    /// Status: not now.
    pub const AGAIN: i16 = -12;
}

/// Disks (public/io/blkif.h).
pub mod blkif {
    /// Bytes of a sector, in which everything is counted.
    pub const SECTOR: u64 = 512;
    /// Bytes of a request, and so of a slot of the ring.
    pub const REQUEST: usize = 112;
    /// Bytes of an answer: the request's number, u64; operation, u8; status, i16 behind a byte.
    pub const RESPONSE: usize = 16;
    /// Segments that a request itself has: reference, u32; first and last sector of the page, u8 each; 2 bytes of nothing.
    pub const SEGMENTS: usize = 11;
    /// Operation: reads.
    pub const READ: u8 = 0;
    /// Operation: writes.
    pub const WRITE: u8 = 1;
    /// Operation: what was written has to last.
    pub const FLUSH: u8 = 3;
    /// Operation: what is there is of no interest any more.
    pub const DISCARD: u8 = 5;
    /// Operation: reads or writes, with segments in pages of their own.
    pub const INDIRECT: u8 = 6;
    /// Status: done.
    pub const OKAY: i16 = 0;
    /// Status: not done.
    pub const ERROR: i16 = -1;
    /// Status: there is no such operation.
    pub const UNSUPPORTED: i16 = -2;
    /// What a disk is told to be: read-only.
    pub const READ_ONLY: u8 = 4;
}

/// Network cards (public/io/netif.h).
pub mod netif {
    /// Bytes of a slot of packets that the guest sends: reference, u32; offset, flags, number and size, u16 each. The first slot's size
    /// is the packet's.
    pub const SEND: usize = 12;
    /// Bytes of a slot for packets that it gets: number, u16, and reference, u32, behind 2 bytes; or number, offset, flags and status, u16
    /// each.
    pub const RECEIVE: usize = 8;
    /// Flag of what the guest sends: the checksum is not finished.
    pub const SEND_BLANK: u16 = 1;
    /// Flags of what it gets, which are the other way round: the checksum is right; it is not finished.
    pub const GET_VALIDATED: u16 = 1;
    /// See [`GET_VALIDATED`].
    pub const GET_BLANK: u16 = 2;
    /// Flag: the packet goes on in the next slot.
    pub const MORE: u16 = 4;
    /// Flag: the next slot tells more of the packet.
    pub const EXTRA: u16 = 8;
    /// Slots that one packet may have, and those that tell more.
    pub const SLOTS_MAX: usize = 18;
    /// See [`SLOTS_MAX`].
    pub const EXTRAS_MAX: usize = 4;
    /// What a slot tells: the packet is TCP that was not cut. Flags, u8, are behind it; then the segments' size, u16; and its kind, u8.
    pub const EXTRA_SEGMENTS: u8 = 1;
    /// Flag of such a slot: there is another.
    pub const EXTRA_MORE: u8 = 1;
    /// Kinds of TCP: over IPv4, and over IPv6.
    pub const FOUR: u8 = 1;
    /// See [`FOUR`].
    pub const SIX: u8 = 2;
    /// Status: done.
    pub const OKAY: i16 = 0;
    /// Status: not done.
    pub const ERROR: i16 = -1;
    /// Status of a slot that was no request.
    pub const NULL: i16 = 1;
}
