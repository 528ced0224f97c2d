//! HvCallPostMessage and HvCallSignalEvent (TLFS 11.10).

use satori_defs::hyperv::Status;
use satori_defs::hyperv::synic::message::PAYLOAD_MAX;

use crate::{Completion, Partition, Request, Vp};

/// Parameters of a message in units of 8 bytes: connection, reserved, type, size, and the payload.
pub(crate) const POST_WORDS: usize = 2 + PAYLOAD_MAX / 8;

/// HvCallPostMessage.
pub(crate) fn post_message(partition: &Partition, _: &mut Vp, request: &Request<'_>) -> Completion {
    let &[to, what, ref payload @ ..] = request.header else {
        return Completion::status(Status::InvalidHypercallInput);
    };
    let (connection, reserved) = (to as u32, (to >> 32) as u32);
    let (kind, size) = (what as u32, (what >> 32) as usize);
    let payload: Vec<u8> = payload.iter().flat_map(|word| word.to_le_bytes()).collect();
    Completion::status(match payload.get(..size) {
        _ if reserved != 0 => Status::InvalidHypercallInput,
        Some(payload) => partition.post_to_connection(connection, kind, payload),
        None => Status::InvalidParameter,
    })
}

/// HvCallSignalEvent: connection, flag number and two reserved bytes.
pub(crate) fn signal_event(partition: &Partition, _: &mut Vp, request: &Request<'_>) -> Completion {
    let &[input] = request.header else { return Completion::status(Status::InvalidHypercallInput) };
    Completion::status(match input >> 48 {
        0 => partition.signal_to_connection(input as u32, (input >> 32) as u16),
        _ => Status::InvalidHypercallInput,
    })
}
