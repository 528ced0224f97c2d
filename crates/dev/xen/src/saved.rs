//! Connections of disks and cards as plain data.

use satori_defs::xen::blkif::{REQUEST, SECTOR};
use satori_defs::xen::netif::{RECEIVE, SEND};
use satori_lock::lock;
use satori_save::{Error, State, Value};
use serde::{Deserialize, Serialize};

use crate::block::{Block, Queue};
use crate::connection::{CLOSED, CONNECTED};
use crate::net::{Card, Connected};
use crate::ring::Ring;

/// What of a disk is neither its image nor in the store.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBlock {
    sectors: u64,
    readonly: bool,
    /// The back end's state.
    state: u8,
    /// Each queue's ring and port.
    queues: Vec<(Ring, u32)>,
    /// Which pieces of a snapshot were written; there is a list only for one, and the bytes are those of the pieces.
    pieces: Option<Vec<u64>>,
}

impl State for SavedBlock {
    const NAME: &'static str = "Xen disk";
    const VERSION: u32 = 1;
}

impl Block {
    /// Its state. All requests have been answered; those that come later are in the ring.
    pub(crate) fn save(&self) -> Result<Value, Error> {
        self.disk.idle();
        let image = self.disk.image();
        image.settle().map_err(|error| Error::refused("a disk", format!("its image: {error}")))?;
        let (pieces, bytes) = image.snapshot();
        let queues = lock(&self.queues).iter().map(|queue| (queue.ring.clone(), queue.port)).collect();
        let state = self.connection.state();
        let (sectors, readonly) = (image.bytes() / SECTOR, image.readonly());
        Value::with_bytes(&SavedBlock { sectors, readonly, state, queues, pieces }, bytes)
    }

    /// Takes it back.
    pub(crate) fn restore(&self, value: &Value) -> Result<(), Error> {
        let SavedBlock { sectors, readonly, state, queues, pieces } = value.state()?;
        let unless = |fits, why| Error::unless(fits, SavedBlock::NAME, why);
        let image = self.disk.image();
        unless(sectors == image.bytes() / SECTOR, "the image has another size")?;
        unless(readonly == image.readonly(), "one of the two is read-only")?;
        unless(
            image.set_snapshot(&pieces, value.bytes()),
            "what it keeps of a snapshot is not of this disk",
        )?;
        let memory = self.memory().ok_or_else(|| Error::unfit(SavedBlock::NAME, "its machine is gone"))?;
        let fits = queues.iter().all(|(ring, _)| ring.fits(&memory, REQUEST as u64));
        unless(fits && queues.len() <= 16 && (1..=CLOSED).contains(&state), "it has no such rings")?;
        // Grants and ports are the interface's, which has them back.
        *lock(&self.queues) = queues.into_iter().map(|(ring, port)| Queue { ring, port }).collect();
        self.connection.set_state(state);
        Ok(())
    }
}

/// What of a card is not in the store. The bytes of its value are the guest's connections, as its cable has them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedCard {
    mac: [u8; 6],
    /// The back end's state.
    state: u8,
    queues: Vec<crate::net::Queue>,
    several: bool,
}

impl State for SavedCard {
    const NAME: &'static str = "Xen network card";
    const VERSION: u32 = 1;
}

impl Card {
    /// Its state, while it is held still.
    pub(crate) fn save(&self) -> Result<Value, Error> {
        let connections = self.cable.save()?;
        let Connected { queues, several } = &*lock(&self.connected);
        let (mac, state) = (self.cable.mac(), self.connection.state());
        Value::with_bytes(&SavedCard { mac, state, queues: queues.clone(), several: *several }, connections)
    }

    /// Takes it back.
    pub(crate) fn restore(&self, value: &Value) -> Result<(), Error> {
        let SavedCard { mac, state, queues, several } = value.state()?;
        let unless = |fits, why| Error::unless(fits, SavedCard::NAME, why);
        unless(mac == self.cable.mac(), "it has another address")?;
        let gone = || Error::unfit(SavedCard::NAME, "its machine is gone");
        let domain = self.domain.upgrade().ok_or_else(gone)?;
        let memory = domain.memory();
        let fits = queues
            .iter()
            .all(|queue| queue.send.fits(memory, SEND as u64) && queue.receive.fits(memory, RECEIVE as u64));
        let most = if state == CONNECTED { usize::from(self.cable.pairs()) } else { 0 };
        unless(fits && queues.len() <= most && (1..=CLOSED).contains(&state), "it has no such rings")?;
        let connected = !queues.is_empty();
        // Grants and ports are the interface's, which has them back.
        *lock(&self.connected) = Connected { queues, several };
        self.connection.set_state(state);
        if connected {
            self.plug(&domain);
        }
        self.cable.restore(value.bytes(), SavedCard::NAME)
    }
}
