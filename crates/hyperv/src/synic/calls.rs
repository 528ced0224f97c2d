//! HvCallPostMessage and HvCallSignalEvent (TLFS 11.10).

use satori_defs::hyperv::Status;
use satori_defs::hyperv::synic::message::PAYLOAD_MAX;
use satori_defs::x86::PAGE_SIZE;
use satori_memory::Gpa;

use crate::{Call, Completion, Partition, Vp};

/// Bytes of the parameters of a message: connection, reserved, type, size, and the payload.
const POST_BYTES: usize = 16 + PAYLOAD_MAX;

/// HvCallPostMessage. The parameters do not fit into registers: the fast form does not exist.
pub(crate) fn post_message(partition: &Partition, _: &mut Vp, call: &Call) -> Completion {
    let mut input = [0; POST_BYTES];
    if call.input.fast() {
        return Completion::status(Status::InvalidHypercallInput);
    }
    if let Err(wrong) = read(partition, call.first, &mut input) {
        return Completion::status(wrong);
    }
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| input[at + i]));
    let [connection, reserved, kind, size] = [0, 4, 8, 12].map(word);
    let payload = input[16..].get(..size as usize);
    Completion::status(match payload {
        _ if reserved != 0 => Status::InvalidHypercallInput,
        Some(payload) => partition.post_to_connection(connection, kind, payload),
        None => Status::InvalidParameter,
    })
}

/// HvCallSignalEvent: connection, flag number and two reserved bytes, in a register or in memory.
pub(crate) fn signal_event(partition: &Partition, _: &mut Vp, call: &Call) -> Completion {
    let mut input = call.first.to_le_bytes();
    if !call.input.fast()
        && let Err(wrong) = read(partition, call.first, &mut input)
    {
        return Completion::status(wrong);
    }
    let input = u64::from_le_bytes(input);
    Completion::status(match input >> 48 {
        0 => partition.signal_to_connection(input as u32, (input >> 32) as u16),
        _ => Status::InvalidHypercallInput,
    })
}

/// Reads parameters: aligned, within a page, and in memory (TLFS 3.8).
fn read(partition: &Partition, gpa: u64, input: &mut [u8]) -> Result<(), Status> {
    let within = gpa % PAGE_SIZE + input.len() as u64 <= PAGE_SIZE;
    if !gpa.is_multiple_of(8) || !within {
        return Err(Status::InvalidAlignment);
    }
    partition.memory.read(Gpa(gpa), input).map_err(|_| Status::InvalidParameter)
}
