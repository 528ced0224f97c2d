//! A whole machine: memory, processors, devices, time, and its life from boot to end.
//!
//! The only crate that names engines. [`Config`] says what to build, [`Machine::new`] builds and
//! loads it, [`Machine::run`] runs it to its [`Outcome`], and a [`Handle`] reaches it meanwhile.

pub mod arm;
mod boot;
mod charge;
mod clock;
mod config;
mod console;
mod control;
mod cores;
mod crash_dump;
mod debugcon;
mod devices;
mod engines;
mod entropy;
mod error;
mod gdb;
mod guest_counter;
mod handle;
mod life;
mod live;
mod lives;
mod machine;
mod offered;
mod onlookers;
mod outcome;
mod perf;
mod pins;
mod real;
mod runs;
mod runtime;
mod sampler;
mod saved;
mod screen;
mod serial;
mod shared;
mod sockets;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tsc_change;
mod virtual_time;
mod watch;
mod x86;

pub use charge::Charges;
pub use clock::{RealClock, VirtualClock};
pub use config::{
    Apics, ClockMode, Config, EngineKind, HostNodes, NumaNode, OnReset, PANIC_PATTERN, SymbolSource,
    TscChange,
};
pub use crash_dump::CrashDump;
pub use devices::{DeviceConfig, Devices, VmbusConfig};
pub use error::Error;
pub use gdb::GdbListener;
pub use handle::Handle;
pub use machine::{Machine, Sinks};
pub use offered::OfferedCpu;
pub use outcome::{Event, Outcome};
pub use perf::{CodeNames, PerfFile};
pub use pins::{Pins, host_processors};
pub use satori_boot::{
    BootProtocol, Cmdline, Compression, Contents, DEFAULT_CMDLINE, KERNEL_MAX, Module, Packed,
    ProtocolChoice, Smbios,
};
pub use satori_engine::{CONTROLS, REASONS, Vmx, VmxProcessor, VmxRow};
pub use satori_image as image;
pub use satori_journal as journal;
pub use satori_memory::{HOST_NODES, HostPolicy};
pub use satori_save::Saved;
pub use satori_symbols::Symbols;
pub use satori_virtio::{Dialect, Disk, Nic, Port, Share, Sockets, TapCard};
pub use serial::{SerialEnd, SerialPorts};
pub use sockets::listen as unix_listener;
pub use watch::WatchListener;
