//! What a part of a machine is at one moment, as a value with a name and a version.
//!
//! Whoever has state describes it by a plain structure beside its own, which implements [`State`]. [`Value::of`] makes a value of
//! it, and [`Value::state`] the structure of a value, after it looked at name and version. What is in the structure then is
//! whatever somebody wrote: who takes it back checks it, and refuses by [`Error::unfit`] what no machine can have come to.
//!
//! The values of a whole machine are a [`Saved`], by the place of the part: `vcpu0/lapic`, `chipset/COM1`. None may be missing
//! when a machine takes its state back, and none be left over.

#![forbid(unsafe_code)]

mod error;
mod saved;
mod value;
pub mod wide;

pub use error::Error;
pub use saved::Saved;
pub use value::{State, Value};

/// A part of a machine that gives its state and takes it back, while no vCPU executes.
///
/// What it keeps beside its state (timers that it armed, lines that it drives) follows from the state when that is restored.
/// No interrupt line is driven for it: lines and the controllers behind them have states of their own.
pub trait Save: Send + Sync {
    /// What it does beside vCPUs stands still, or goes on, so that what is saved of it, and of memory, is of one moment.
    fn hold(&self, _still: bool) {}

    /// The state now.
    fn save(&self) -> Result<Value, Error>;

    /// Takes a state back. A part that refuses one may be left with half of it: its machine does not run.
    fn restore(&self, value: &Value) -> Result<(), Error>;
}
