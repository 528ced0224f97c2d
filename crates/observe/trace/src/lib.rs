//! A trace of every exit, MSR access, hypercall and interrupt, as it happens.
//!
//! It is written in Chrome's trace-event format, JSON, which Perfetto and chrome://tracing open: one track a
//! vCPU, on it a slice for each exit that lasts until the next entry, in it a slice for what was
//! asked (MSR, hypercall), and a mark for each interrupt that was injected. Each vCPU writes into a
//! buffer of its own, and a thread takes full buffers to the file, so a slow disk stops no vCPU; what does
//! not fit into the [`QUEUE`] is dropped, and counted. Under a virtual clock, where waiting costs the guest
//! nothing, it is waited for, so that two runs leave the same bytes.

#![forbid(unsafe_code)]

mod filter;
#[cfg(test)]
mod tests;
mod vcpu;
mod writer;

pub use filter::{Error, Filter, Spec};
pub use vcpu::{Inner, Kind, VcpuTrace};
pub use writer::{QUEUE, Told, Tracer};
