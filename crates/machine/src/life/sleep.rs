//! What is left of a life that sleeps (ACPI S3, ACPI 6.5, 16.1.2): its memory, and the devices that have power then.

use std::sync::Arc;

use satori_chipset::{AcpiPm, Chipset, Rtc};
use satori_defs::acpi::facs;
use satori_memory::{ALL_LINES, Gpa, GuestMemory};
use satori_state::{CpuState, seg};

use super::{Begin, Life};
use crate::x86::after_reset;

/// Devices that have power while a machine sleeps, and where it says how it wakes.
#[derive(Clone)]
pub(super) struct Powered {
    pm: Arc<AcpiPm>,
    rtc: Arc<Rtc>,
    facs: Option<Gpa>,
}

impl Powered {
    pub(super) fn of(chipset: &Chipset, facs: Option<Gpa>) -> Self {
        Powered { pm: chipset.pm.clone(), rtc: chipset.rtc.clone(), facs }
    }

    /// These are what `before` were.
    pub(super) fn go_on_from(&self, before: &Powered) {
        self.pm.go_on_from(&before.pm);
        self.rtc.go_on_from(&before.rtc);
    }
}

/// What a machine wakes with.
pub(crate) struct Asleep {
    pub(super) memory: GuestMemory,
    pub(super) begin: Begin,
    pub(super) powered: Powered,
    /// The partition is the hypervisor's, which does not sleep.
    pub(super) hyperv: Option<Arc<satori_hyperv::Partition>>,
}

impl Life {
    /// What it wakes with; nothing if the guest has not said where.
    pub(crate) fn asleep(&self) -> Option<Asleep> {
        let powered = self.powered.clone();
        let platform = &self.rooms.platform;
        let memory = platform.memory.clone();
        let vector =
            memory.read_u32(Gpa(powered.facs?.0 + facs::WAKING_VECTOR)).ok().filter(|at| *at != 0)?;
        // Devices find all of it, as after power-up.
        memory.set_lines(ALL_LINES);
        let state = waking(platform.cpuid.signature(), vector);
        let begin = Begin { state, firmware: false, facs: powered.facs, map: Vec::new() };
        Some(Asleep { memory, begin, powered, hyperv: platform.hyperv.clone() })
    }
}

/// The boot processor at the waking vector: in real mode, with it as CS:IP (ACPI 6.5, table 5.23).
fn waking(signature: u32, vector: u32) -> CpuState {
    let mut state = after_reset(signature);
    let cs = &mut state.seg[seg::CS];
    cs.selector = (vector >> 4) as u16;
    cs.base = u64::from(cs.selector) << 4;
    state.rip = u64::from(vector & 0xf);
    state
}
