//! Accesses where there is no RAM, which KVM makes EPT misconfigurations: the MMIO map.

use satori_engine::Resume;

use crate::Context;

pub(crate) fn read(context: &mut Context<'_>, gpa: u64, size: u8) -> Resume {
    Resume::Value(context.platform.mmio.read(gpa, size))
}

pub(crate) fn write(context: &mut Context<'_>, gpa: u64, size: u8, value: u64) -> Resume {
    context.platform.mmio.write(gpa, size, value);
    Resume::Done
}
