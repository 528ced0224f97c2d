//! Names for the guest's addresses.
//!
//! A [`Symbols`] comes from a file, vmlinux, System.map or a saved /proc/kallsyms
//! ([`Symbols::parse`]), or from the kallsyms table that a running Linux carries in its own memory
//! ([`Symbols::find`]), which is what stock kernels without debug files leave one. What is read may be
//! hostile: everything is checked against itself, and bounded.

#![forbid(unsafe_code)]

mod file;
mod kallsyms;
mod scan;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use table::{Place, Symbols};

/// Why there are no symbols.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Debian ships this instead of a System.map.
    #[error(
        "this is Debian's stub of a System.map, without symbols: take the one of the package \
         linux-image-VERSION-dbg, a saved /proc/kallsyms, or --symbols auto"
    )]
    Stub,
    /// Every address is zero: /proc/kallsyms as those see it who may not.
    #[error("every address in it is 0: save /proc/kallsyms as root (kernel.kptr_restrict)")]
    Hidden,
    /// An ELF file without symbols.
    #[error("this ELF file has no symbol table: take the vmlinux of a debug package, or --symbols auto")]
    Stripped,
    /// An ELF file that cannot be read.
    #[error("this ELF file cannot be read ({0}): name a vmlinux")]
    Elf(String),
    /// A kernel image rather than its symbols.
    #[error("this is no vmlinux, System.map or /proc/kallsyms: line {line} is not 'ADDRESS TYPE NAME'")]
    Text {
        /// The line, from 1.
        line: usize,
    },
    /// Nothing in it.
    #[error("there is no symbol in it")]
    Empty,
}
