//! I/O instructions: the port map.

use satori_engine::Resume;

use crate::Context;

pub(crate) fn read(context: &mut Context<'_>, port: u16, size: u8) -> Resume {
    Resume::Value(context.platform.ports.read(port, size).into())
}

pub(crate) fn write(context: &mut Context<'_>, port: u16, size: u8, value: u32) -> Resume {
    context.platform.ports.write(port, size, value);
    Resume::Done
}
