//! A whole machine: memory, processors, devices, time, and its life from boot to end.
//!
//! The only crate that names engines. [`Config`] says what to build, `Machine::new` builds and
//! loads it, `Machine::run` runs it to its [`Outcome`], and a [`Handle`] reaches it meanwhile.

mod clock;
mod config;
mod console;
mod error;
mod outcome;
mod shared;

pub use clock::{RealClock, VirtualClock};
pub use config::{ClockMode, Config, EngineKind, MAX_CPUS, MEMORY, OnReset, PANIC_PATTERN};
pub use error::Error;
pub use outcome::{Event, Outcome};
pub use shared::Handle;
