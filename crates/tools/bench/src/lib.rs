//! `satori bench`: the same program natively, on Satori and on the peers that are installed.
//!
//! The program ([`program`]) measures the rows of the [`catalog`] and prints a line for each. A [`session`]
//! is one run of it: a process, watched. [`measure`] runs the subjects in turn, again and again, until
//! the rows agree; [`Results`] hold what came out. [`text`], [`json`] and [`svg`] show them, and [`check`]
//! compares them with the bounds that the translator has to reach. [`traps`], [`ablation`], [`overhead`], [`nested`] and [`vhe`] are experiments
//! of their own.

#![forbid(unsafe_code)]

pub mod ablation;
#[path = "../../../../guests/bench/src/catalog.rs"]
pub mod catalog;
pub mod check;
pub mod devices;
mod error;
mod groups;
pub mod json;
pub mod line;
pub mod measure;
pub mod memory;
pub mod nested;
pub mod overhead;
pub mod program;
pub mod programs;
pub mod results;
pub mod session;
pub mod statistics;
pub mod subject;
pub mod svg;
pub mod text;
pub mod tools;
pub mod traps;
pub mod vhe;

pub use error::Error;
pub use groups::{GROUPS, all, rows_named};
pub use results::{Cell, Results, Table};
pub use subject::{Setting, Subject};
