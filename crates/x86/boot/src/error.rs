//! Why a guest cannot be put into memory. Each text is one line that says what to do next.

use std::path::PathBuf;

/// Failures of loading a guest.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file of a kernel cannot be read.
    #[error("cannot read the kernel {}: {why}; check the path given to --kernel", path.display())]
    ReadKernel {
        /// The file.
        path: PathBuf,
        /// The host's reason.
        why: String,
    },
    /// The file of an initrd cannot be read.
    #[error("cannot read the initrd {}: {why}; check the path given to --initrd or --module", path.display())]
    ReadInitrd {
        /// The file.
        path: PathBuf,
        /// The host's reason.
        why: String,
    },
    /// The kernel is not one that can be booted.
    #[error("cannot boot {name}: {why}")]
    Kernel {
        /// What the kernel was called.
        name: String,
        /// What is wrong with it.
        why: BadKernel,
    },
    /// The kernel does not offer the protocol that was asked for.
    #[error("the kernel cannot be entered by {wanted}: {why}; use --boot auto")]
    Protocol {
        /// The protocol's name.
        wanted: &'static str,
        /// What is missing.
        why: &'static str,
    },
    /// A kernel segment is outside RAM or over something that has to stay.
    #[error(
        "the kernel needs guest memory {start:#x}..{end:#x}, which is not free RAM; use a larger --memory or another kernel"
    )]
    KernelRange {
        /// First address.
        start: u64,
        /// Address after the last.
        end: u64,
    },
    /// A module or arguments of one for a kernel that has none.
    #[error(
        "modules and their arguments are for multiboot kernels and Xen, and this Linux is entered by {protocol}: give files by --initrd, without arguments"
    )]
    Modules {
        /// The protocol's name.
        protocol: &'static str,
    },
    /// The initrds are larger than what is left of memory.
    #[error(
        "the initrds take {bytes} bytes, more than the guest has free below 4 GiB; use a larger --memory"
    )]
    InitrdTooLarge {
        /// Their bytes, joined.
        bytes: u64,
    },
    /// The command line is longer than the kernel reads.
    #[error("the kernel command line has {len} bytes, the kernel reads at most {max}; shorten --cmdline")]
    CmdlineTooLong {
        /// Its bytes.
        len: usize,
        /// The kernel's limit.
        max: usize,
    },
    /// The command line has a NUL inside.
    #[error("the kernel command line has a NUL at byte {at}, where the kernel would stop reading; remove it")]
    CmdlineNul {
        /// Its place.
        at: usize,
    },
    /// The size of memory is out of range.
    #[error(
        "{bytes} bytes of memory cannot be given to a guest; use --memory between 128M and 64G, in 4-KiB pages"
    )]
    MemorySize {
        /// What was asked for.
        bytes: u64,
    },
    /// A table that the guest needs has no place.
    #[error("no room for the {what} ({bytes} bytes) in guest memory below 4 GiB; use a larger --memory")]
    NoRoom {
        /// What it is.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
    },
    /// The SMBIOS tables are too large.
    #[error(
        "the SMBIOS tables take {bytes} of {max} bytes, or have more than {strings} strings of type 11: shorten --smbios"
    )]
    Smbios {
        /// Their bytes.
        bytes: usize,
        /// The most that have room.
        max: usize,
        /// The most strings.
        strings: usize,
    },
    /// More processors than the tables can describe.
    #[error("{cpus} processors do not fit the ACPI and SMBIOS tables; use --cpus between 1 and {max}")]
    Cpus {
        /// What was asked for.
        cpus: u32,
        /// The most that fit.
        max: u32,
    },
    /// Guest memory refused an access.
    #[error(transparent)]
    Memory(#[from] satori_memory::Error),
}

/// What is wrong with a kernel image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKernel {
    /// Nothing in it.
    #[error("the file is empty; give a Linux bzImage or vmlinux")]
    Empty,
    /// Larger than any kernel.
    #[error("the file is larger than {max} bytes, no kernel is; give a Linux bzImage or vmlinux")]
    TooLarge {
        /// The limit in bytes.
        max: u64,
    },
    /// Neither ELF nor bzImage.
    #[error(
        "it is {what}, not a kernel; give a Linux bzImage (vmlinuz), an x86-64 vmlinux or a multiboot kernel"
    )]
    Foreign {
        /// What it looks like.
        what: &'static str,
    },
    /// An Image of another architecture.
    #[error("it is an arm64 kernel: add --arch arm64, or give one for x86-64")]
    Arm64,
    /// A multiboot header that wants something of the future.
    #[error(
        "its multiboot header has the required flags {flags:#x}, which multiboot 0.6.96 does not define; give a kernel for multiboot 1"
    )]
    MultibootFlags {
        /// The flags that are not known.
        flags: u32,
    },
    /// The address fields of a multiboot header make no sense.
    #[error("its multiboot header is malformed: {why}; link it again")]
    Multiboot {
        /// What is wrong.
        why: &'static str,
    },
    /// A bzImage of before 2008, or without payload.
    #[error(
        "its boot protocol {major}.{minor:02} has no payload to unpack, as Linux has since 2.08: give a newer kernel; programs of a PC's BIOS, such as \
         iPXE, do not run here, as there is none"
    )]
    OldProtocol {
        /// Major version.
        major: u8,
        /// Minor version.
        minor: u8,
    },
    /// Something the headers promise is not in the file.
    #[error(
        "the file is truncated: {what} is at bytes {start}..{end} and the file has {len}; fetch it again"
    )]
    Truncated {
        /// What is cut.
        what: &'static str,
        /// Its first byte.
        start: u64,
        /// The byte after it.
        end: u64,
        /// Bytes of the file.
        len: u64,
    },
    /// No decompressor knows the payload.
    #[error(
        "its payload begins with {magic:02x?}, a compression that Satori does not know; unpack it with extract-vmlinux"
    )]
    Compression {
        /// First bytes of the payload.
        magic: [u8; 6],
    },
    /// The payload does not decompress.
    #[error("its {format} payload is damaged: {why}; fetch it again")]
    Payload {
        /// Compression.
        format: &'static str,
        /// What the decompressor says.
        why: String,
    },
    /// The payload is larger than allowed.
    #[error(
        "its payload unpacks to more than {max} bytes, no kernel does; fetch it again or use a larger --memory"
    )]
    PayloadTooLarge {
        /// The limit in bytes.
        max: u64,
    },
    /// The ELF headers make no sense.
    #[error("its ELF image is malformed: {why}; fetch it again")]
    Elf {
        /// What is wrong.
        why: String,
    },
    /// An ELF for another machine or purpose.
    #[error("it is an ELF {what}; give a kernel for x86-64")]
    WrongElf {
        /// What it is.
        what: &'static str,
    },
    /// An ELF executable that is no kernel.
    #[error(
        "it is an ELF executable with neither a PVH note nor a Linux banner nor a multiboot header; give a Linux bzImage or vmlinux"
    )]
    NotAKernel,
}
