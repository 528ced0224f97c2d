//! VMCALL and VMMCALL.

use satori_engine::{Exception, Resume};

use crate::Context;

/// Without an interface that has hypercalls the instruction does not exist.
pub(crate) fn call(_context: &mut Context<'_>) -> Resume {
    Resume::Fault(Exception::ud())
}
