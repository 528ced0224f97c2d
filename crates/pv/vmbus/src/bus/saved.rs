//! The bus as plain data: what was agreed on, channels, lists of pages, messages that wait, and each device's own state.
//!
//! By which connections the guest reaches it is the partition's, which has that back by itself.

use satori_bus::Armed;
use satori_save::{State, Value};
use serde::{Deserialize, Serialize};

use super::*;
use crate::channel::SavedChannel;
use crate::gpadl::SavedList;

/// Most messages that wait, with offers that nobody had asked to wait for; and the longest one.
const WAITING: usize = BACKLOG + 2 * RELID_MAX as usize;
const LONGEST: usize = 240;

/// A bus' state. Its bytes are those of its devices' values, one behind the other.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBus {
    contact: Option<Contact>,
    slots: Vec<SavedSlot>,
    lists: Vec<(u32, SavedList)>,
    outgoing: Vec<(u32, u8, Vec<u8>)>,
    /// When those are posted again.
    again: Vec<Armed>,
    /// Each device's state, and how many bytes it has.
    devices: Vec<(Value, usize)>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSlot {
    relid: u32,
    device: usize,
    index: u16,
    stage: Stage,
    channel: SavedChannel,
}

impl State for SavedBus {
    const NAME: &'static str = "VMBus";
    const VERSION: u32 = 1;
}

fn unless(fits: bool, why: &str) -> Result<(), Error> {
    Error::unless(fits, SavedBus::NAME, why)
}

impl Bus {
    fn timer(&self) -> Weak<dyn Timer> {
        self.me.clone()
    }

    /// The open channel of this number, for a device that takes its state back.
    pub fn open_channel(&self, relid: u32) -> Option<Arc<Channel>> {
        let table = lock(&self.table);
        table.slots.get(&relid).filter(|slot| slot.stage == Stage::Open).map(|slot| slot.channel.clone())
    }

    /// The table of a saved one.
    fn table(&self, saved: SavedBus) -> Result<(Table, Vec<(Value, usize)>), Error> {
        let SavedBus { contact, slots, lists, outgoing, again, devices } = saved;
        unless(
            contact.is_none_or(|contact| VERSIONS.contains(&contact.version)),
            "nobody speaks its version",
        )?;
        unless(devices.len() == self.parts.devices.len(), "it has other devices")?;
        let fit = outgoing.iter().all(|(_, _, payload)| payload.len() <= LONGEST);
        unless(fit && outgoing.len() <= WAITING, "what waits for the guest is no message")?;
        let memory = &self.parts.memory;
        let gpadls = Gpadls::restored(lists, memory)
            .ok_or_else(|| Error::unfit(SavedBus::NAME, "it has no such lists of pages"))?;
        let mut table = Table { contact, gpadls, outgoing: outgoing.into(), ..Table::default() };
        for SavedSlot { relid, device, index, stage, channel } in slots {
            unless((1..=RELID_MAX).contains(&relid) && device < devices.len(), "it has no such channel")?;
            unless(
                contact.is_some() && channel.is_open() == (stage == Stage::Open),
                "a channel is half open",
            )?;
            let channel = Channel::restored((relid, index), self.parts.host.clone(), memory, channel);
            let channel =
                channel.ok_or_else(|| Error::unfit(SavedBus::NAME, "a channel has no such rings"))?;
            let new = table.slots.insert(relid, Slot { device, stage, channel }).is_none();
            unless(new, "it has a channel twice")?;
        }
        self.parts.timers.restore(&self.timer(), &again);
        Ok((table, devices))
    }
}

impl Save for Bus {
    fn hold(&self, still: bool) {
        self.parts.devices.iter().for_each(|device| device.hold(still));
    }

    fn save(&self) -> Result<Value, Error> {
        // What devices still had in their hands is in rings and messages, which come behind them.
        let (mut devices, mut bytes) = (Vec::new(), Vec::new());
        for device in &self.parts.devices {
            let mut value = device.save()?;
            let own = value.take_bytes();
            devices.push((value, own.len()));
            bytes.extend(own);
        }
        let table = lock(&self.table);
        let slots = table.slots.iter().map(|(relid, slot)| SavedSlot {
            relid: *relid,
            device: slot.device,
            index: slot.channel.index(),
            stage: slot.stage,
            channel: slot.channel.save(),
        });
        let saved = SavedBus {
            contact: table.contact,
            slots: slots.collect(),
            lists: table.gpadls.save(),
            outgoing: table.outgoing.iter().cloned().collect(),
            again: self.parts.timers.armed(&self.timer()),
            devices,
        };
        Value::with_bytes(&saved, bytes)
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let (table, devices) = self.table(value.state()?)?;
        let old = std::mem::replace(&mut *lock(&self.table), table);
        old.slots.values().for_each(|slot| slot.channel.close());
        let me = self.me.upgrade().ok_or_else(|| Error::unfit(SavedBus::NAME, "its machine is gone"))?;
        let mut rest = value.bytes();
        for (device, (mut value, len)) in self.parts.devices.iter().zip(devices) {
            let own = rest.split_off(..len);
            value.set_bytes(own.ok_or_else(|| Error::unfit(SavedBus::NAME, "bytes are missing"))?.to_vec());
            device.restore(&me, &value)?;
        }
        unless(rest.is_empty(), "bytes are left over")
    }
}
