//! Offers, and channels from there to their end.

use super::*;
use crate::{Offer, Pages};

/// Bytes of OFFERCHANNEL.
const OFFER_BYTES: usize = 196;

/// OFFERCHANNEL: `offer` as channel `relid`, `index` of its device. No monitor page: who sends something signals it.
fn offered(offer: &Offer, relid: u32, index: u16) -> Vec<u8> {
    let mut bytes = vec![0; OFFER_BYTES];
    let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    put(0, &message::OFFER.to_le_bytes());
    put(8, &offer.class);
    put(24, &offer.instance);
    put(56, &offer.flags.to_le_bytes());
    put(180, &index.to_le_bytes());
    put(184, &relid.to_le_bytes());
    // Its events interrupt by the event flag alone.
    put(190, &1_u16.to_le_bytes());
    put(192, &(relid | EVENT_CONNECTION).to_le_bytes());
    bytes
}

impl Bus {
    /// Offers channel `index` of a device, by the first number that is free; whether there was one.
    fn offer(&self, table: &mut Table, device: usize, index: u16) -> bool {
        let Some(contact) = table.contact else { return false };
        let Some(relid) = (1..=RELID_MAX).find(|relid| !table.slots.contains_key(relid)) else {
            return false;
        };
        let Parts { host, memory, devices, .. } = &self.parts;
        let channel = Channel::new((relid, index), host.clone(), memory.clone(), contact.sint);
        host.connect(relid | EVENT_CONNECTION, relid);
        table.slots.insert(relid, Slot { device, stage: Stage::Offered, channel });
        self.post(table, contact, offered(&devices[device].offer(), relid, index));
        true
    }

    /// REQUESTOFFERS.
    pub(super) fn offer_all(&self) {
        let mut table = lock(&self.table);
        for device in 0..self.parts.devices.len() {
            let known = |slot: &Slot| slot.device == device && slot.channel.index() == 0;
            if !table.slots.values().any(known) {
                self.offer(&mut table, device, 0);
            }
        }
        drop(table);
        self.answer(message::ALL_OFFERS, &[]);
    }

    /// Offers `count` channels beside `channel`, if its device has none yet; returns how many were.
    pub fn offer_beside(&self, channel: &Channel, count: u16) -> u16 {
        let mut table = lock(&self.table);
        let Some(device) = table.slots.get(&channel.relid()).map(|slot| slot.device) else { return 0 };
        let beside = |slot: &Slot| {
            slot.device == device && slot.channel.index() != 0 && slot.stage != Stage::Rescinded
        };
        if table.slots.values().any(beside) {
            return 0;
        }
        (1..=count).take_while(|index| self.offer(&mut table, device, *index)).count() as u16
    }

    /// The pages that the guest gave to `channel` as list `id`.
    pub fn pages(&self, channel: &Channel, id: u32) -> Option<Arc<Pages>> {
        lock(&self.table).gpadls.pages(channel.relid(), id)
    }

    /// OPENCHANNEL.
    pub(super) fn open(&self, message: &[u8]) {
        let (relid, id, gpadl) = (message.u32_at(8), message.u32_at(12), message.u32_at(16));
        let found = {
            let mut table = lock(&self.table);
            let pages = table.gpadls.pages(relid, gpadl);
            let slot = table.slots.get_mut(&relid).filter(|slot| slot.stage == Stage::Offered);
            slot.zip(pages).and_then(|(slot, pages)| {
                slot.channel.set_vp(message.u32_at(20));
                let open = slot.channel.open(&pages, message.u32_at(24));
                open.then(|| slot.stage = Stage::Open)?;
                Some((self.parts.devices[slot.device].clone(), slot.channel.clone()))
            })
        };
        self.answer(message::OPEN_RESULT, &[relid, id, u32::from(found.is_none())]);
        if let (Some((device, channel)), Some(me)) = (found, self.me.upgrade()) {
            device.opened(&me, &channel);
        }
    }

    /// Closes a channel that is open, and takes back those beside it.
    pub(super) fn close(&self, relid: u32, to: Stage) {
        let found = {
            let mut table = lock(&self.table);
            let slot = table.slots.get_mut(&relid).filter(|slot| slot.stage == Stage::Open);
            slot.map(|slot| {
                slot.stage = to;
                (slot.device, slot.channel.clone())
            })
        };
        let Some((device, channel)) = found else { return };
        channel.close();
        self.parts.devices[device].closed(&channel);
        if channel.index() == 0 && to == Stage::Offered {
            self.rescind_beside(device);
        }
    }

    fn rescind_beside(&self, device: usize) {
        let beside: Vec<u32> = {
            let table = lock(&self.table);
            let beside = |slot: &Slot| {
                slot.device == device && slot.channel.index() != 0 && slot.stage != Stage::Rescinded
            };
            table.slots.iter().filter(|(_, slot)| beside(slot)).map(|(relid, _)| *relid).collect()
        };
        for relid in beside {
            self.close(relid, Stage::Rescinded);
            if let Some(slot) = lock(&self.table).slots.get_mut(&relid) {
                slot.stage = Stage::Rescinded;
            }
            self.answer(message::RESCIND, &[relid]);
        }
    }

    /// RELID_RELEASED: the guest forgot a channel, which of those of devices themselves it does when its driver cannot be had.
    pub(super) fn released(&self, relid: u32) {
        let mut table = lock(&self.table);
        if table.slots.get(&relid).is_some_and(|slot| slot.stage == Stage::Rescinded) {
            table.slots.remove(&relid);
            drop(table);
            self.parts.host.disconnect(relid | EVENT_CONNECTION);
        }
    }
}
