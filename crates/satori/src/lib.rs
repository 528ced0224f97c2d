//! The command line of Satori.
//!
//! A library and a thin `main`, so that tests and the soak can build the same initramfs and read
//! the same statuses. [`cli`] is the one flag table; [`run`] turns it into a machine and the
//! machine's outcome into a [`status`].

#![forbid(unsafe_code)]

pub mod attend;
pub mod bench;
pub mod choose;
pub mod cli;
pub mod command;
pub mod costs;
pub mod cpu;
pub mod demo;
pub mod devices;
pub mod doctor;
pub mod engines;
pub mod escape;
pub mod explain;
mod footers;
pub mod hyperv;
pub mod initrd;
pub mod inputs;
pub mod late;
pub mod modules;
pub mod msrs;
pub mod network;
pub mod opened;
pub mod origin;
pub mod output;
pub mod pages;
pub mod paths;
pub mod places;
pub mod probe;
pub mod registers;
pub mod report;
pub mod reports;
pub mod run;
pub mod say;
pub mod status;
pub mod terminal;
pub mod top;
pub mod units;
pub mod usage;
