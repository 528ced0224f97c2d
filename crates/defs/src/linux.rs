//! Linux's x86 boot protocol (Documentation/arch/x86/boot.rst, zero-page.rst).

/// Offsets in a bzImage, which are also those of the setup header in the zero page.
pub mod setup_header {
    /// First byte of the header.
    pub const START: usize = 0x1f1;
    /// u8, 512-byte sectors of real-mode code; 0 means 4.
    pub const SETUP_SECTS: usize = 0x1f1;
    /// u32, 16-byte paragraphs of protected-mode code, which follows the real-mode code.
    pub const SYSSIZE: usize = 0x1f4;
    /// u16, 0xaa55.
    pub const BOOT_FLAG: usize = 0x1fe;
    /// u8, displacement of the jump over the header: it ends at 0x202 plus this.
    pub const JUMP: usize = 0x201;
    /// u32, "HdrS".
    pub const HEADER: usize = 0x202;
    /// u16, protocol version, major in the high byte.
    pub const VERSION: usize = 0x206;
    /// u16, offset of the version string, less 0x200.
    pub const KERNEL_VERSION: usize = 0x20e;
    /// u8, boot loader.
    pub const TYPE_OF_LOADER: usize = 0x210;
    /// u8, load flags.
    pub const LOADFLAGS: usize = 0x211;
    /// u32, where to jump in protected mode.
    pub const CODE32_START: usize = 0x214;
    /// u32, address of the initrd.
    pub const RAMDISK_IMAGE: usize = 0x218;
    /// u32, its bytes.
    pub const RAMDISK_SIZE: usize = 0x21c;
    /// u32, address of the command line.
    pub const CMD_LINE_PTR: usize = 0x228;
    /// u32, highest address of the initrd's last byte.
    pub const INITRD_ADDR_MAX: usize = 0x22c;
    /// u8, whether the protected-mode code may be anywhere.
    pub const RELOCATABLE_KERNEL: usize = 0x234;
    /// u32, longest command line without its NUL.
    pub const CMDLINE_SIZE: usize = 0x238;
    /// u32, offset of the payload from the protected-mode code.
    pub const PAYLOAD_OFFSET: usize = 0x248;
    /// u32, bytes of the payload.
    pub const PAYLOAD_LENGTH: usize = 0x24c;
    /// u64, where a relocatable kernel likes to be.
    pub const PREF_ADDRESS: usize = 0x258;
    /// u32, memory that the kernel needs from its load address on.
    pub const INIT_SIZE: usize = 0x260;
    /// End of the header of every protocol that has a payload (2.08).
    pub const END_2_08: usize = 0x250;

    /// Value of [`BOOT_FLAG`].
    pub const BOOT_FLAG_VALUE: u16 = 0xaa55;
    /// Value of [`HEADER`].
    pub const HEADER_VALUE: [u8; 4] = *b"HdrS";
    /// The first protocol with a payload.
    pub const VERSION_PAYLOAD: u16 = 0x208;
    /// The first protocol with [`PREF_ADDRESS`] and [`INIT_SIZE`].
    pub const VERSION_INIT_SIZE: u16 = 0x20a;
    /// The protocol that is announced for a vmlinux, which has no header of its own.
    pub const VERSION_VALUE: u16 = 0x20f;
    /// [`TYPE_OF_LOADER`]: no assigned number.
    pub const LOADER_UNDEFINED: u8 = 0xff;
    /// [`LOADFLAGS`]: the protected-mode code is at 1 MiB or above.
    pub const LOADED_HIGH: u8 = 1 << 0;
    /// [`CODE32_START`] where the header says nothing.
    pub const CODE32_DEFAULT: u32 = 0x10_0000;
}

/// Offsets in the zero page (struct boot_params).
pub mod boot_params {
    /// u64, address of the RSDP.
    pub const ACPI_RSDP_ADDR: usize = 0x070;
    /// u8, entries of the e820 table.
    pub const E820_ENTRIES: usize = 0x1e8;
    /// The e820 table: u64 address, u64 bytes, u32 type.
    pub const E820_TABLE: usize = 0x2d0;
    /// Bytes of an e820 entry.
    pub const E820_ENTRY_SIZE: usize = 20;
    /// E820_MAX_ENTRIES_ZEROPAGE.
    pub const E820_MAX: usize = 128;
    /// Bytes of the page.
    pub const SIZE: usize = 4096;

    const _: () = assert!(E820_TABLE + E820_MAX * E820_ENTRY_SIZE <= SIZE);
}

/// Selectors that the 32-bit and 64-bit protocols ask for.
pub mod selector {
    /// __BOOT_CS: flat, execute and read.
    pub const BOOT_CS: u16 = 0x10;
    /// __BOOT_DS: flat, read and write.
    pub const BOOT_DS: u16 = 0x18;
    /// __BOOT_TSS, as Linux's own boot code has it.
    pub const BOOT_TSS: u16 = 0x20;
}

/// COMMAND_LINE_SIZE of x86, its NUL included.
pub const COMMAND_LINE_SIZE: usize = 2048;
/// Initrds that follow one another begin at multiples of this (initramfs buffer format).
pub const INITRD_ALIGN: usize = 4;
/// What every Linux image contains, followed by its version.
pub const BANNER: &[u8] = b"Linux version ";
