//! ELF as core files use it (gABI "Object Files"; Linux `elfcore.h` of x86-64).

/// e_ident: magic, 64 bits, little-endian, version 1, System V.
pub const IDENT: [u8; 16] = [0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// e_type of a core file.
pub const ET_CORE: u16 = 4;
/// e_machine of x86-64.
pub const EM_X86_64: u16 = 62;
/// e_version.
pub const EV_CURRENT: u32 = 1;
/// Bytes of the file header.
pub const EHDR_BYTES: usize = 64;
/// Bytes of a program header.
pub const PHDR_BYTES: usize = 56;
/// e_phnum that means "elsewhere": one header fewer is the most that it can say.
pub const PN_XNUM: usize = 0xffff;
/// p_type: bytes that stand at an address.
pub const PT_LOAD: u32 = 1;
/// p_type: notes.
pub const PT_NOTE: u32 = 4;
/// p_flags: readable, writable and executable.
pub const PF_RWX: u32 = 7;
/// Type of a note "CORE": a thread's registers.
pub const NT_PRSTATUS: u32 = 1;

/// `struct elf_prstatus` of x86-64.
pub mod prstatus {
    /// Its bytes.
    pub const BYTES: usize = 336;
    /// pr_pid, u32.
    pub const PID: usize = 32;
    /// pr_reg: 27 quad words, `struct user_regs_struct`.
    pub const REG: usize = 112;
}

/// Note "QEMU" of type 0, by which `crash` and libvirt's tools find CR3 and the IDT: QEMUCPUState, version 1
/// (QEMU `target/i386/arch_dump.c`).
pub mod qemu {
    /// Its version.
    pub const VERSION: u32 = 1;
    /// Its bytes.
    pub const BYTES: u32 = 440;
}

/// The note in which Linux tells about itself; its name, with which it also stands in guest memory at the start
/// of a page (Linux `kernel/crash_core.c`).
pub const VMCOREINFO: &[u8; 10] = b"VMCOREINFO";
/// The most that it tells (Linux `VMCOREINFO_BYTES`).
pub const VMCOREINFO_BYTES: usize = 4096;
