//! Messages, and the protocol of a message slot (TLFS 11.2).

use satori_defs::hyperv::synic::message::{
    NONE, PAYLOAD, PAYLOAD_MAX, PENDING, SENDER, SIZE_AND_FLAGS, TYPE,
};
use satori_memory::{Error, Gpa, GuestMemory};
use serde::{Deserialize, Serialize};

/// A message (HV_MESSAGE).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    kind: u32,
    sender: u64,
    payload: Vec<u8>,
}

impl Message {
    /// A message of type `kind` from `sender`. None for the type that says "no message", and
    /// for more than 240 bytes.
    pub fn new(kind: u32, sender: u64, payload: &[u8]) -> Option<Self> {
        let possible = kind != NONE && payload.len() <= PAYLOAD_MAX;
        possible.then(|| Message { kind, sender, payload: payload.into() })
    }

    /// Whether it is one that [`Message::new`] would make.
    pub(super) fn fits(&self) -> bool {
        self.kind != NONE && self.payload.len() <= PAYLOAD_MAX
    }

    /// Its type.
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// Its payload, at most 240 bytes.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Replaces what the payload has at `offset`, as far as it goes.
    pub(super) fn patch(&mut self, offset: usize, bytes: &[u8]) {
        let place = self.payload.iter_mut().skip(offset);
        place.zip(bytes).for_each(|(old, new)| *old = *new);
    }

    /// Puts the message into the slot at `slot` if that is empty, and says in it whether `more`
    /// wait; else marks the slot, so that the guest tells when it has emptied it. Returns
    /// whether it was put.
    ///
    /// The guest empties a slot by writing the type, and then looks at the mark. It is set first
    /// here, and the type looked at again: one of the two sees the other.
    pub(super) fn put(&self, memory: &GuestMemory, slot: Gpa, more: bool) -> Result<bool, Error> {
        let empty = |at| memory.load_u32(at).map(|kind| kind == NONE);
        let (kind, flags) = (slot.add(TYPE), slot.add(SIZE_AND_FLAGS));
        if !empty(kind)? {
            memory.fetch_or_u32(flags, PENDING)?;
            if !empty(kind)? {
                return Ok(false);
            }
        }
        memory.write(slot.add(SENDER), &self.sender.to_le_bytes())?;
        memory.write(slot.add(PAYLOAD), &self.payload)?;
        let more = if more { PENDING } else { 0 };
        memory.store_u32(flags, self.payload.len() as u32 | more)?;
        // The type last: what is in front of it is then the guest's to read.
        memory.store_u32(kind, self.kind)?;
        Ok(true)
    }
}
