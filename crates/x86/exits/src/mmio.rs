//! Accesses where there is no RAM, which KVM makes EPT misconfigurations: the MMIO map.

use satori_engine::Resume;

use crate::Platform;

pub(crate) fn read(platform: &Platform, gpa: u64, size: u8) -> Resume {
    Resume::Value(platform.mmio.read(gpa, size))
}

pub(crate) fn write(platform: &Platform, gpa: u64, size: u8, value: u64) -> Resume {
    platform.mmio.write(gpa, size, value);
    Resume::Done
}
