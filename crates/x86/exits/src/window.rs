//! Exits that only say that the machine should look again before the next entry.

use satori_engine::{Resume, Window};

use crate::Context;

/// Interrupts can be taken now; the machine injects before the next entry.
pub(crate) fn interrupt(context: &mut Context<'_>) -> Resume {
    context.vcpu.request_window(Window::Interrupt, false);
    Resume::Continue
}

/// An NMI can be taken now.
pub(crate) fn nmi(context: &mut Context<'_>) -> Resume {
    context.vcpu.request_window(Window::Nmi, false);
    Resume::Continue
}

/// A kick, a timer or a lowered TPR: something may have become deliverable.
pub(crate) fn look_again() -> Resume {
    Resume::Continue
}
