//! I/O instructions: the port map.

use satori_engine::Resume;

use crate::Platform;

pub(crate) fn read(platform: &Platform, port: u16, size: u8) -> Resume {
    Resume::Value(platform.ports.read(port, size).into())
}

pub(crate) fn write(platform: &Platform, port: u16, size: u8, value: u32) -> Resume {
    platform.ports.write(port, size, value);
    Resume::Done
}
