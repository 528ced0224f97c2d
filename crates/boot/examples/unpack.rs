//! Writes the ELF file inside a kernel, for tools that cannot unpack one: `unpack KERNEL VMLINUX`.

use std::path::PathBuf;

use satori_boot::{KERNEL_MAX, Kernel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let paths: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [kernel, vmlinux] = paths.as_slice() else { return Err("usage: unpack KERNEL VMLINUX".into()) };
    std::fs::write(vmlinux, Kernel::open(kernel, KERNEL_MAX)?.elf())?;
    Ok(())
}
