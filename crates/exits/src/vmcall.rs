//! VMCALL and VMMCALL: hypercalls.

use satori_engine::{Exception, Resume};
use satori_hyperv::Ud;

use crate::Context;

/// The interface takes the parameters from the registers and leaves the result in them. Without
/// an interface the instruction does not exist.
pub(crate) fn call(context: &mut Context<'_>) -> Resume {
    let Some(hyperv) = &context.platform.hyperv else { return Resume::Fault(Exception::ud()) };
    match hyperv.hypercall(context.hyperv, context.vcpu.state_mut()) {
        Ok(outcome) => {
            context.act(outcome);
            Resume::Done
        }
        Err(Ud) => Resume::Fault(Exception::ud()),
    }
}
