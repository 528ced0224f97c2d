//! The local APIC, in xAPIC and x2APIC mode (SDM volume 3, chapter 11).
//!
//! Modelled after KVM without APICv: registers live in software, an interrupt waits in the IRR
//! until the vCPU's thread injects it. The state has two halves.
//!
//! * [`Lapic`] belongs to the vCPU's thread: ISR, LVT, timer, priorities. Its methods take the
//!   partition's TSC where time matters, so it holds no clock and is exactly repeatable.
//! * [`ApicBus`] is shared: per vCPU the IRR and TMR bits, pending NMI, INIT and SIPI, and the
//!   addresses that messages are matched against, all atomics. Any thread delivers through it
//!   (it is the machine's [`MsiSink`](satori_bus::MsiSink)) and it then calls the
//!   [`Waker`].
//!
//! The owner's loop, before each entry into the guest:
//!
//! ```text
//! if lapic.take_init()  { reset the vCPU; lapic.init(); wait for SIPI unless it is the BSP }
//! if lapic.take_sipi()  { start at the vector, if it waits for one }
//! lapic.timer_expired(tsc);                          // and run until lapic.deadline_tsc()
//! lapic.set_tpr(state.tpr);
//! if can_take_nmi && lapic.take_nmi() { inject it }
//! else if let Some(vector) = lapic.pending() { lapic.accept(vector); inject it }
//! ```

#![forbid(unsafe_code)]

mod bits;
mod bus;
mod local;
mod message;
mod msr;
mod page;
mod saved;
mod synthetic;
mod timer;

pub use bus::{ApicBus, Waker};
pub use local::{Clocks, Lapic, Lint, Mode};
pub use message::{DeliveryMode, InterruptMessage};

#[cfg(test)]
mod tests;
