//! The bus: versions, offers, and who has which channel open.

mod answers;
mod channels;
mod saved;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use satori_bus::{Clock, Nanos, Timer, TimerQueue};
use satori_defs::hyperv::vmbus::{
    EVENT_CONNECTION, MESSAGE_TYPE, RELID_MAX, SINT, VERSION_5, VERSION_5_3, VERSIONS, message,
};
use satori_lock::lock;
use satori_memory::GuestMemory;
use satori_save::{Error, Save};
use serde::{Deserialize, Serialize};

use crate::gpadl::{Gpadls, Made};
use crate::{Bytes as _, Channel, Device, Host, Posted};

/// Messages that may wait for a guest before its own are refused, which it then repeats.
const BACKLOG: usize = 256;
/// How soon a message is posted again for which there was no buffer.
const AGAIN: Nanos = 1_000_000;

/// As many messages wait as there is room for: the guest has to repeat its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// What a bus is made of.
pub struct Parts {
    /// How the guest is reached.
    pub host: Arc<dyn Host>,
    /// Its memory.
    pub memory: GuestMemory,
    /// The machine's clock.
    pub clock: Arc<dyn Clock>,
    /// Timers of the machine.
    pub timers: Arc<TimerQueue>,
    /// Devices, in the order in which they are offered.
    pub devices: Vec<Arc<dyn Device>>,
    /// Everything is done on the threads that ask for it.
    pub determined: bool,
}

/// Where a channel is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Stage {
    Offered,
    Open,
    /// Taken back; its number is free when the guest says so.
    Rescinded,
}

struct Slot {
    device: usize,
    stage: Stage,
    channel: Arc<Channel>,
}

/// What the guest has agreed on.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contact {
    version: u32,
    vp: u32,
    sint: u8,
}

#[derive(Default)]
struct Table {
    contact: Option<Contact>,
    slots: BTreeMap<u32, Slot>,
    gpadls: Gpadls,
    /// Messages for the guest that have no buffer, and where they go.
    outgoing: VecDeque<(u32, u8, Vec<u8>)>,
}

/// A bus, in one life of a machine.
pub struct Bus {
    parts: Parts,
    /// Held while a message of the guest's is handled.
    turn: Mutex<()>,
    table: Mutex<Table>,
    me: Weak<Bus>,
}

impl Bus {
    /// A bus with these devices, before any guest runs.
    pub fn new(parts: Parts) -> Arc<Self> {
        parts.devices.iter().for_each(|device| device.begin(parts.determined));
        Arc::new_cyclic(|me| Bus { parts, turn: Mutex::default(), table: Mutex::default(), me: me.clone() })
    }

    /// The machine's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.parts.clock
    }

    /// Its timers.
    pub fn timers(&self) -> &Arc<TimerQueue> {
        &self.parts.timers
    }

    /// The guest posted a message of type `kind`.
    pub fn message(&self, kind: u32, message: &[u8]) -> Result<(), Full> {
        let turn = lock(&self.turn);
        if lock(&self.table).outgoing.len() >= BACKLOG {
            return Err(Full);
        }
        if kind == MESSAGE_TYPE && message.len() >= 8 {
            self.handle(message);
        }
        drop(turn);
        Ok(())
    }

    fn handle(&self, message: &[u8]) {
        let kind = message.u32_at(0);
        let contact = lock(&self.table).contact;
        let Some(contact) = contact.filter(|_| kind != message::INITIATE_CONTACT) else {
            if kind == message::INITIATE_CONTACT {
                self.initiate_contact(message);
            }
            return;
        };
        let relid = message.u32_at(8);
        match kind {
            message::REQUEST_OFFERS => self.offer_all(),
            message::OPEN => self.open(message),
            message::CLOSE => self.close(relid, Stage::Offered),
            message::GPADL_HEADER => {
                let made = lock(&self.table).gpadls.header(message, &self.parts.memory);
                self.gpadl_created(message.u32_at(12), &made);
            }
            message::GPADL_BODY => {
                let made = lock(&self.table).gpadls.body(message, &self.parts.memory);
                self.gpadl_created(message.u32_at(12), &made);
            }
            message::GPADL_TEARDOWN => {
                let id = message.u32_at(12);
                lock(&self.table).gpadls.remove(id);
                self.answer(message::GPADL_TORNDOWN, &[id]);
            }
            message::RELID_RELEASED => self.released(relid),
            message::MODIFY => {
                let found = lock(&self.table).slots.get(&relid).map(|slot| slot.channel.clone());
                found.iter().for_each(|channel| channel.set_vp(message.u32_at(12)));
                if contact.version >= VERSION_5_3 {
                    self.answer(message::MODIFY_RESPONSE, &[relid, u32::from(found.is_none())]);
                }
            }
            message::TL_CONNECT => self.no_socket(message),
            message::UNLOAD => {
                self.unload();
                self.answer_to(contact, message::UNLOAD_RESPONSE, &[]);
            }
            _ => tracing::debug!("VMBus: the guest sent message {kind}, which is none of its own"),
        }
    }

    /// INITIATE_CONTACT. One while there is a contact is from a guest that began anew and told nobody.
    fn initiate_contact(&self, message: &[u8]) {
        self.unload();
        let (version, vp) = (message.u32_at(8), message.u32_at(12));
        let sint = match message.get(16) {
            Some(sint) if version >= VERSION_5 => *sint,
            _ => SINT,
        };
        let contact = Contact { version, vp, sint };
        let spoken = VERSIONS.contains(&version);
        if spoken {
            tracing::info!("VMBus: version {}.{}", version >> 16, version & 0xffff);
            lock(&self.table).contact = Some(contact);
        }
        self.answer_to(contact, message::VERSION_RESPONSE, &[u32::from(spoken), connection(version)]);
    }

    /// Takes everything back from the guest.
    fn unload(&self) {
        let open: Vec<u32> = {
            let mut table = lock(&self.table);
            table.contact = None;
            table.outgoing.clear();
            table
                .slots
                .iter()
                .filter(|(_, slot)| slot.stage == Stage::Open)
                .map(|(relid, _)| *relid)
                .collect()
        };
        open.into_iter().for_each(|relid| self.close(relid, Stage::Rescinded));
        let mut table = lock(&self.table);
        let slots = std::mem::take(&mut table.slots);
        table.gpadls = Gpadls::default();
        drop(table);
        slots.keys().for_each(|relid| self.parts.host.disconnect(relid | EVENT_CONNECTION));
    }

    fn gpadl_created(&self, id: u32, made: &Made) {
        match made {
            Made::Done(relid) => self.answer(message::GPADL_CREATED, &[*relid, id, 0]),
            Made::Refused(relid) => self.answer(message::GPADL_CREATED, &[*relid, id, 1]),
            Made::Goes | Made::Unknown => {}
        }
    }

    /// The guest signalled a channel.
    pub fn signalled(&self, relid: u32) {
        let found = {
            let table = lock(&self.table);
            let open = table.slots.get(&relid).filter(|slot| slot.stage == Stage::Open);
            open.map(|slot| (self.parts.devices[slot.device].clone(), slot.channel.clone()))
        };
        if let (Some((device, channel)), Some(me)) = (found, self.me.upgrade()) {
            device.signalled(&me, &channel);
        }
    }
}

/// By which connection a guest that asked for `version` posts from then on.
fn connection(version: u32) -> u32 {
    if version >= VERSION_5 { 4 } else { 1 }
}

/// Posts again what had no buffer.
impl Timer for Bus {
    fn expired(&self, _now: Nanos) {
        self.push(&mut lock(&self.table));
    }
}
