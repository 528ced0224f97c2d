//! VMCALL and VMMCALL: hypercalls.

use std::sync::Arc;

use satori_engine::{Exception, Parts, Resume};
use satori_hyperv::{Hypercall, Partition, Ud};
use satori_state::reg;

use crate::Context;

/// The interface takes the parameters from the registers and leaves the result in them. Without
/// an interface the instruction does not exist. Where KVM's stands beside Hyper-V's, a guest that told Hyper-V its identity
/// has that one's calls.
pub(crate) fn call(context: &mut Context<'_>) -> Resume {
    if let Some(xen) = context.platform.xen.clone() {
        context.vcpu.fetch(Parts::ALL);
        // Hyper-V's page says that its calls are meant for Hyper-V.
        let raised = context.vcpu.state().gpr[reg::RAX] & satori_hyperv::BESIDE_XEN != 0;
        if let Some(hyperv) = context.platform.hyperv.as_ref().filter(|_| raised) {
            let state = context.vcpu.state_mut(Parts::GENERAL | Parts::EXTENDED);
            let outcome = hyperv.hypercall(context.hyperv, state);
            return answer(context, outcome);
        }
        let vcpu = &*context.vcpu;
        let caller = satori_xen::Caller { translate: &|linear| vcpu.translate(linear) };
        let (result, outcome) = xen.hypercall(context.xen, vcpu.state(), &caller);
        context.vcpu.state_mut(Parts::GENERAL).gpr[reg::RAX] = result;
        context.act_xen(outcome);
        return Resume::Done;
    }
    let identified = |hyperv: &Arc<Partition>| hyperv.is_identified();
    if let Some(kvm) = &context.platform.kvm
        && !context.platform.hyperv.as_ref().is_some_and(identified)
    {
        context.vcpu.fetch(Parts::MSRS);
        let outcome = kvm.hypercall(context.kvm, context.vcpu.state_mut(Parts::GENERAL));
        context.act_kvm(outcome);
        return Resume::Done;
    }
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
