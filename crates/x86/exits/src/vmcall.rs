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
    let outcome = hyperv.hypercall(context.hyperv, state);
    answer(context, outcome)
}

/// A nested guest's call, which is served for its hypervisor.
pub(crate) fn nested_flush(context: &mut Context<'_>, block: Option<u64>) -> Resume {
    let Some(hyperv) = &context.platform.hyperv else { return Resume::Fault(Exception::ud()) };
    let state = context.vcpu.state_mut(Parts::GENERAL | Parts::EXTENDED);
    let outcome = hyperv.nested_flush(context.hyperv, state, block);
    answer(context, outcome)
}

fn answer(context: &mut Context<'_>, outcome: Result<Hypercall, Ud>) -> Resume {
    match outcome {
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
