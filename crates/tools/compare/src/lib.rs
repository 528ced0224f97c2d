//! Compares engines with the real processor, one random instruction at a time.
//!
//! A [`Case`] is an instruction and the state that it finds; an [`Outcome`] is everything that it
//! leaves: registers, flags, memory, vector and x87 state, and the exception that ended it, as
//! INT3 behind the instruction ends it when nothing else does. The real processor executes cases
//! in a child process ([`Native`]), an engine in a small guest ([`Guest`]) that has the same
//! memory at the same addresses with the same rights. [`Comparison`] does both and tells what
//! differs.

mod allowed;
mod case;
mod comparison;
mod diff;
mod error;
mod exclude;
mod exclusions;
mod forms;
mod generate;
mod guest;
pub mod host;
mod lawful;
mod layout;
mod line;
mod native;
mod next;
mod numbers;
mod of_intel;
pub mod undefined;

pub use case::{Case, Ending, Fpu, Outcome};
pub use comparison::{Comparison, Failure};
pub use diff::{Difference, describe, differences};
pub use error::Error;
pub use exclusions::{Exclusion, When};
pub use forms::Forms;
pub use generate::Generator;
pub use guest::{Guest, Way, cpuid_of_host};
pub use line::{read as read_line, write as write_line};
pub use native::Native;
pub use next::next_instruction;
