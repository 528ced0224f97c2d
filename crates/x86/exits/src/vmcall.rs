//! VMCALL and VMMCALL: hypercalls.

use satori_engine::{Exception, Parts, Resume};
use satori_hyperv::{Hypercall, Ud};

use crate::Context;

/// The interface takes the parameters from the registers and leaves the result in them. Without
/// an interface the instruction does not exist.
pub(crate) fn call(context: &mut Context<'_>) -> Resume {
    let Some(hyperv) = &context.platform.hyperv else { return Resume::Fault(Exception::ud()) };
    // A fast hypercall has parameters in XMM registers.
    let state = context.vcpu.state_mut(Parts::GENERAL | Parts::EXTENDED);
    match hyperv.hypercall(context.hyperv, state) {
        Ok(Hypercall::Done(outcome)) => {
            context.act(outcome);
            Resume::Done
        }
        // Nothing is answered, so the instruction is executed again, after what interrupts it.
        Ok(Hypercall::Again(outcome)) => {
            context.act(outcome);
            Resume::Continue
        }
        Err(Ud) => Resume::Fault(Exception::ud()),
    }
}
