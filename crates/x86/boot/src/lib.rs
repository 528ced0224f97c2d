//! Everything that puts a guest into memory before its first instruction.
//!
//! [`Kernel::open`] recognises a kernel by its magic, unpacks it on the host and reads its ELF
//! headers; it touches no guest and is where foreign bytes are parsed. [`load()`] places kernel,
//! initrd, command line, ACPI and SMBIOS tables in guest memory and returns the boot
//! processor's registers. Firmware is not involved: the kernel is entered by multiboot, at its PVH
//! note, or by one of Linux's boot protocols.

#![forbid(unsafe_code)]

pub mod acpi;
mod bytes;
mod bzimage;
mod contents;
mod decompress;
mod dsdt;
mod entry;
mod error;
mod firmware;
mod image;
mod initrd;
mod kernel;
pub mod layout;
mod load;
mod lzo;
mod multiboot;
mod params;
mod place;
mod smbios;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use contents::Contents;
pub use decompress::{Compression, Packed};
pub use error::{BadKernel, Error};
pub use image::PvhReloc;
pub use initrd::{Initrd, Module};
pub use kernel::{Format, KERNEL_MAX, Kernel, KernelInfo};
pub use load::{
    BootProtocol, Cmdline, Config, DEFAULT_CMDLINE, Loaded, ProtocolChoice, load, needs_long_mode,
};
pub use smbios::{Smbios, System};
