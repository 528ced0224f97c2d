//! Devices on Hyper-V's VMBus: a SCSI controller (storvsc is its driver's name in Linux) and a network card (netvsc).
//!
//! They stand on what virtio's stand on: disk images, and cables to a network.

#![forbid(unsafe_code)]

mod netvsc;
mod scsi;
mod storvsc;

pub use netvsc::NetVsc;
pub use storvsc::Scsi;

/// Instance ids, which differ in their last bytes: ours, and the same in every run.
const fn instance(kind: u8, index: u8) -> [u8; 16] {
    [0x53, 0x61, 0x74, 0x6f, 0x72, 0x69, 0x56, 0x42, 0x80, 0, 0, 0, 0, 0, kind, index]
}
