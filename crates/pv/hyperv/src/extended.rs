//! Extended hypercalls (TLFS 3.14).

use satori_defs::hyperv::Status;

use crate::{Completion, Outcome, Partition, Request, Vp};

/// Bit n stands for call 0x8002 + n; there is none beyond the query.
const CAPABILITIES: u64 = 0;

/// HvExtCallQueryCapabilities.
pub(crate) fn query_capabilities(_: &Partition, _: &mut Vp, _: &Request<'_>) -> Completion {
    Completion { status: Status::Success, done: 0, output: vec![CAPABILITIES], outcome: Outcome::Done }
}
