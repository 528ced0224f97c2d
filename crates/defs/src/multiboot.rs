//! The Multiboot Specification, version 0.6.96: header of a kernel and information block.

/// Offsets in the header, which stands 4-byte aligned in the first `SEARCH` bytes of the file.
pub mod header {
    /// u32, [`VALUE`].
    pub const MAGIC: usize = 0;
    /// u32, what the kernel wants.
    pub const FLAGS: usize = 4;
    /// u32, which makes the sum of the first three fields zero.
    pub const CHECKSUM: usize = 8;
    /// u32, where the header itself is to be, if [`ADDRESSES`].
    pub const HEADER_ADDR: usize = 12;
    /// u32, where the text segment begins.
    pub const LOAD_ADDR: usize = 16;
    /// u32, where the data segment ends; 0 is the end of the file.
    pub const LOAD_END_ADDR: usize = 20;
    /// u32, where the bss ends; 0 is that there is none.
    pub const BSS_END_ADDR: usize = 24;
    /// u32, where to jump.
    pub const ENTRY_ADDR: usize = 28;
    /// Value of [`MAGIC`].
    pub const VALUE: u32 = 0x1bad_b002;
    /// Bytes of the file in which the whole header has to be.
    pub const SEARCH: usize = 8192;

    /// Flag: modules begin at pages.
    pub const PAGE_ALIGN: u32 = 1 << 0;
    /// Flag: the kernel needs the memory fields.
    pub const MEMORY_INFO: u32 = 1 << 1;
    /// Flag: the kernel needs the video mode table.
    pub const VIDEO_MODE: u32 = 1 << 2;
    /// Flag: the address fields count, and not the ELF headers.
    pub const ADDRESSES: u32 = 1 << 16;
    /// The flags that a loader must know, or refuse the kernel.
    pub const REQUIRED: u32 = 0xffff;
}

/// Offsets in the information block.
pub mod info {
    #![allow(missing_docs, reason = "each constant is the name of its field, all are u32")]
    pub const FLAGS: usize = 0;
    pub const MEM_LOWER: usize = 4;
    pub const MEM_UPPER: usize = 8;
    pub const CMDLINE: usize = 16;
    pub const MODS_COUNT: usize = 20;
    pub const MODS_ADDR: usize = 24;
    pub const SHDR_NUM: usize = 28;
    pub const SHDR_SIZE: usize = 32;
    pub const SHDR_ADDR: usize = 36;
    pub const SHDR_SHNDX: usize = 40;
    pub const MMAP_LENGTH: usize = 44;
    pub const MMAP_ADDR: usize = 48;
    pub const BOOT_LOADER_NAME: usize = 64;
    /// Bytes of the block, with the fields of video modes that follow.
    pub const SIZE: usize = 116;

    /// Flag: mem_lower and mem_upper.
    pub const HAS_MEMORY: u32 = 1 << 0;
    /// Flag: cmdline.
    pub const HAS_CMDLINE: u32 = 1 << 2;
    /// Flag: the modules.
    pub const HAS_MODULES: u32 = 1 << 3;
    /// Flag: the ELF section headers.
    pub const HAS_SECTIONS: u32 = 1 << 5;
    /// Flag: the memory map.
    pub const HAS_MMAP: u32 = 1 << 6;
    /// Flag: the boot loader's name.
    pub const HAS_LOADER_NAME: u32 = 1 << 9;
}

/// Offsets in an entry of the module list.
pub mod module {
    /// u32, first address.
    pub const START: usize = 0;
    /// u32, address after the last.
    pub const END: usize = 4;
    /// u32, its command line.
    pub const STRING: usize = 8;
    /// Bytes of an entry.
    pub const SIZE: usize = 16;
}

/// Offsets in an entry of the memory map; its types are those of [`crate::acpi::address_range`].
pub mod mmap {
    /// u32, bytes of the entry after this field.
    pub const ENTRY_SIZE: usize = 0;
    /// u64, first address.
    pub const BASE: usize = 4;
    /// u64, bytes.
    pub const LENGTH: usize = 12;
    /// u32, type.
    pub const TYPE: usize = 20;
    /// Bytes of an entry, its size field included.
    pub const SIZE: usize = 24;
}

/// EAX at the entry.
pub const BOOTLOADER_MAGIC: u32 = 0x2bad_b002;
