//! Instructions whose feature is not offered.

use satori_engine::{Exception, Resume};

/// VMX instructions, VMFUNC, MONITOR and MWAIT do not exist without their CPUID bits.
pub(crate) fn undefined() -> Resume {
    Resume::Fault(Exception::ud())
}

/// RDPMC of a counter that is not there: CPUID 0AH reports none (SDM volume 2, RDPMC).
pub(crate) fn counter() -> Resume {
    Resume::Fault(Exception::gp(0))
}
