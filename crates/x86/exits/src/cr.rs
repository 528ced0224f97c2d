//! MOV to CR0, CR4 and CR8.

use satori_cpuid::controls;
use satori_engine::{Exception, Resume};
use satori_rules as rules;

use crate::Context;

pub(crate) fn write(context: &mut Context<'_>, register: u8, value: u64) -> Resume {
    let allowed = match register {
        0 => rules::cr0::legal(value),
        8 => value <= 15,
        _ => cr4_allowed(context, value),
    };
    if allowed { Resume::Done } else { Resume::Fault(Exception::gp(0)) }
}

/// The engine reads it from the register file, which holds it.
pub(crate) fn read_priority() -> Resume {
    Resume::Done
}

fn cr4_allowed(context: &Context<'_>, value: u64) -> bool {
    let exist = controls::cr4(|feature| context.platform.cpuid.has(feature));
    let state = context.vcpu.state();
    let around = rules::cr4::Around { cr3: state.cr3, long: state.long_mode() };
    rules::cr4::legal(state.cr4, value, exist, around)
}
