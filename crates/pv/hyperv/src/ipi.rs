//! Interprocessor interrupts by hypercall (TLFS 10.3.2).

use satori_defs::hyperv::{Status, USE_TARGET_VTL};

use crate::{Completion, Outcome, Partition, Request, Vp, VpSet};

/// HvCallSendSyntheticClusterIpi.
pub(crate) fn send(_: &Partition, _: &mut Vp, request: &Request<'_>) -> Completion {
    let &[target, mask] = request.header else { return Completion::status(Status::InvalidHypercallInput) };
    to(target, VpSet::mask(mask))
}

/// HvCallSendSyntheticClusterIpiEx.
pub(crate) fn send_ex(_: &Partition, _: &mut Vp, request: &Request<'_>) -> Completion {
    let &[target, format, valid, ref banks @ ..] = request.header else {
        return Completion::status(Status::InvalidHypercallInput);
    };
    match VpSet::sparse(format, valid, banks) {
        Ok(targets) => to(target, targets),
        Err(status) => Completion::status(status),
    }
}

/// The first word has the vector in \[31:0\] and HV_INPUT_VTL in \[39:32\].
fn to(word: u64, targets: VpSet) -> Completion {
    let vtl = (word >> 32) as u8;
    // There is only trust level 0.
    if vtl & USE_TARGET_VTL != 0 && vtl & 0xf != 0 {
        return Completion::status(Status::InvalidParameter);
    }
    match u8::try_from(word as u32) {
        Ok(vector @ 0x10..) => Completion::outcome(Outcome::Interrupt { vector, targets: Box::new(targets) }),
        _ => Completion::status(Status::InvalidHypercallInput),
    }
}
