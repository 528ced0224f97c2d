//! XSETBV: which extended states the guest uses.

use satori_defs::cpuid::XSTATE;
use satori_engine::{Exception, Resume};

use crate::Context;

const X87: u64 = 1 << 0;
const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;

/// x87 state cannot be turned off, AVX needs SSE, and what CPUID 0DH does not offer is reserved
/// (SDM volume 1, 13.3).
pub(crate) fn set(context: &mut Context<'_>, value: u64) -> Resume {
    let offered = context.platform.cpuid.query(XSTATE, 0, &satori_cpuid::Context::default());
    let supported = u64::from(offered.edx) << 32 | u64::from(offered.eax);
    let consistent = value & X87 != 0 && (value & AVX == 0 || value & SSE != 0);
    if consistent && value & !supported == 0 { Resume::Done } else { Resume::Fault(Exception::gp(0)) }
}
