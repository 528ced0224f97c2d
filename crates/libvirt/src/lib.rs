//! libvirt's domain XML, as far as a machine of Satori can follow it.
//!
//! [`read`] takes a whole `<domain>` or a fragment of one, such as the `<features>` on a slide, and gives a
//! [`Domain`]: plain values, wishes about Hyper-V with their places, and warnings for what Satori
//! cannot honour. What is wrong is a [`Mistake`] with line, column and the right spelling; reading goes on
//! behind each, so that all are told at once. [`write()`] goes the other way.
//!
//! The elements that libvirt knows are rows of `schema`; those of `<hyperv>` come from the table of
//! enlightenments.

#![forbid(unsafe_code)]

mod clock;
mod cpu;
mod devices;
mod domain;
mod elements;
mod hyperv;
mod names;
mod place;
mod processors;
mod reader;
mod schema;
mod tree;
mod values;
mod write;

pub use domain::{
    Cpu, Disk, Domain, Filesystem, Interface, Network, Node, OnReboot, Pin, Placement, Whose, read,
    read_foreign,
};
pub use satori_hyperv::choice::{Mistake, Mistakes, Place};
pub use write::write;

#[cfg(test)]
mod tests;
