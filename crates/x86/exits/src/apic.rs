//! Accesses to the APIC-access page.

use satori_engine::Resume;

use crate::Context;

pub(crate) fn read(context: &mut Context<'_>, offset: u16, size: u8) -> Resume {
    context.load_tpr();
    let tsc = context.platform.clock.counter();
    Resume::Value(context.lapic.mmio_read(offset, size, tsc))
}

pub(crate) fn write(context: &mut Context<'_>, offset: u16, size: u8, value: u64) -> Resume {
    context.load_tpr();
    let tsc = context.platform.clock.counter();
    let took = context.lapic.software_enabled();
    let ended = context.lapic.mmio_write(offset, size, value, tsc);
    context.store_tpr();
    context.apic_enabled(took);
    context.broadcast_eoi(ended);
    Resume::Done
}

/// The end of a level-triggered interrupt at a local APIC that the engine keeps.
pub(crate) fn ended(context: &mut Context<'_>, vector: u8) -> Resume {
    context.platform.eoi.eoi(vector);
    Resume::Continue
}
