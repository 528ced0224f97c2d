//! The command line of Satori.
//!
//! A library and a thin `main`, so that tests and the soak can build the same initramfs and read
//! the same statuses. [`cli`] is the one flag table; [`commands::run`] turns it into a machine and the
//! machine's outcome into a [`status`].

#![forbid(unsafe_code)]

pub mod attend;
pub mod channel;
pub mod choose;
pub mod cli;
pub mod command;
pub mod commands;
pub mod cpio;
pub mod debian;
pub mod devices;
mod domain;
mod engine;
pub mod escape;
mod footers;
pub mod guest;
pub mod initramfs;
pub mod inputs;
pub mod io_threads;
mod judge;
pub mod late;
pub mod modules;
pub mod network;
pub mod numa;
pub mod opened;
pub mod origin;
pub mod output;
pub mod paths;
pub mod pins;
pub mod places;
pub mod probe;
pub mod qemu;
pub mod qmp;
mod recording;
pub mod registers;
pub mod report;
pub mod say;
pub mod shares;
pub mod smbios;
pub mod status;
mod switches;
pub mod terminal;
pub mod units;
mod unpacked;
pub mod usage;
pub mod vsock;
