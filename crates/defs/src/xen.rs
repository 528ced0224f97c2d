//! Xen's PVH boot interface (Xen public/arch-x86/hvm/start_info.h, public/elfnote.h).

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
