//! What the guest's driver has set up, as plain data.

use std::sync::{Arc, Weak};

use satori_cable::Card;
use satori_lock::lock;
use satori_save::{Error, State as _, Value};
use satori_vmbus::{Bus, Pages, SavedPages};
use serde::{Deserialize, Serialize};

use super::buffer::{SavedSections, Sections};
use super::{NetVsc, State};

/// Most answers that wait: those of requests, and of the carrier.
const ANSWERS: usize = 128;

/// A card's state. The bytes of its value are the guest's connections, as its cable has them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedCard {
    mac: [u8; 6],
    /// The channel of the guest's driver.
    relid: Option<u32>,
    send: Option<SavedPages>,
    receive: Option<SavedSections>,
    answers: Vec<Vec<u8>>,
    filter: u32,
    begun: bool,
}

impl satori_save::State for SavedCard {
    const NAME: &'static str = "VMBus network card";
    const VERSION: u32 = 1;
}

impl NetVsc {
    /// Its state, while it is held still.
    pub(super) fn saved(&self) -> Result<Value, Error> {
        let connections = self.cable.save()?;
        let State { channel, send, receive, answers, filter, begun, .. } = &*lock(&self.state);
        let saved = SavedCard {
            mac: self.cable.mac(),
            relid: channel.as_ref().map(|channel| channel.relid()),
            send: send.as_ref().map(|pages| pages.save()),
            receive: receive.as_ref().map(Sections::save),
            answers: answers.clone(),
            filter: *filter,
            begun: *begun,
        };
        Value::with_bytes(&saved, connections)
    }

    /// Takes it back.
    pub(super) fn take_back(&self, bus: &Arc<Bus>, value: &Value) -> Result<(), Error> {
        let SavedCard { mac, relid, send, receive, answers, filter, begun } = value.state()?;
        let unless = |fits, why| Error::unless(fits, SavedCard::NAME, why);
        unless(mac == self.cable.mac(), "it has another address")?;
        unless(answers.len() <= ANSWERS, "more answers wait than there can be")?;
        let Some(relid) = relid else {
            unless(send.is_none() && receive.is_none() && answers.is_empty(), "it has no channel")?;
            *lock(&self.state) = State::default();
            return self.cable.restore(value.bytes(), SavedCard::NAME);
        };
        let channel = bus.open_channel(relid);
        let channel = channel.ok_or_else(|| Error::unfit(SavedCard::NAME, "its channel is not open"))?;
        let memory = channel.memory();
        let send = send.map(|pages| Pages::restored(memory.clone(), &pages).map(Arc::new));
        let receive = receive.map(|sections| Sections::restored(memory.clone(), sections));
        let fit = !matches!(send, Some(None)) && !matches!(receive, Some(None));
        unless(fit, "it has no such buffers")?;
        *lock(&self.state) = State {
            bus: Some(Arc::downgrade(bus)),
            channel: Some(channel),
            send: send.flatten(),
            receive: receive.flatten(),
            answers,
            filter,
            begun,
        };
        self.cable.offload(false, false, false);
        let me: Weak<dyn Card> = self.me.clone();
        self.cable.plug(me);
        self.cable.restore(value.bytes(), SavedCard::NAME)
    }
}
