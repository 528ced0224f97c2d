//! Hostile input for every part that reads what a guest or a file says.
//!
//! Each function here takes arbitrary bytes and must return: a panic, a hang or a difference that
//! it notices itself is a bug of Satori. `fuzz/` runs them under cargo-fuzz, guided by coverage
//! (`tools/fuzz`); the tests of this crate run them on fixed seeds and on every input that once
//! failed (`regressions/`), so the gate needs no fuzzer.

#![forbid(unsafe_code)]

mod files;
mod guest;
mod hyperv;
mod image;
mod instructions;
mod loader;
mod nested;
mod net;
mod pci;
mod script;
mod timing;
mod translator;
mod virtio;
mod words;

pub use files::files;
pub use guest::guest;
pub use hyperv::hyperv;
pub use image::image;
pub use instructions::{decoder, instructions};
pub use loader::loader;
pub use nested::nested;
pub use net::net;
pub use pci::pci;
pub use translator::translator;
pub use virtio::virtio;
pub use words::{domain, options};

/// A target: bytes in, nothing out.
pub type Target = fn(&[u8]);

/// Every target by name. The name is that of its fuzzer and of its folder of regressions.
pub const TARGETS: &[(&str, Target)] = &[
    ("loader", loader),
    ("decoder", decoder),
    ("instructions", instructions),
    ("translator", translator),
    ("nested", nested),
    ("devices", guest),
    ("options", options),
    ("domain", domain),
    ("hyperv", hyperv),
    ("virtio", virtio),
    ("image", image),
    ("files", files),
    ("net", net),
    ("pci", pci),
];

#[cfg(test)]
mod tests;
