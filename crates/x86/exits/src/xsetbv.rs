//! XSETBV: which extended states the guest uses.

use satori_defs::cpuid::XSTATE;
use satori_engine::{Exception, Resume};
use satori_rules as rules;

use crate::Context;

/// What CPUID 0DH does not offer is reserved.
pub(crate) fn set(context: &mut Context<'_>, value: u64) -> Resume {
    let offered = context.platform.cpuid.query(XSTATE, 0, &satori_cpuid::Context::default());
    let offered = u64::from(offered.edx) << 32 | u64::from(offered.eax);
    if rules::xcr0::legal(value, offered) { Resume::Done } else { Resume::Fault(Exception::gp(0)) }
}
