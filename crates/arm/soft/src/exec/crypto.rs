//! AES, SHA-1 and SHA-256.

use satori_arm_isa::Op;

use crate::code::Handler;

pub(super) fn handler(_op: Op) -> Option<Handler> {
    None
}
