//! What of a machine is x86's: its vCPU between an exit and the next entry.

mod injector;
mod observer;
mod reset;
mod saved;
mod vcpu;

use satori_lapic::Waker;

use crate::shared::Bells;

pub(crate) use reset::after_reset;
pub(crate) use saved::Values;
pub(crate) use vcpu::{MachineVcpu, VcpuPieces};

/// A local APIC has something for its vCPU.
impl Waker for Bells {
    fn wake(&self, vcpu: u32) {
        Bells::wake(self, vcpu);
    }
}
