//! The common configuration (virtio 1.2, 4.1.4.3): feature negotiation, status, where queues are.

use std::sync::Arc;

use satori_defs::virtio::feature::{EVENT_IDX, INDIRECT_DESC, VERSION_1};
use satori_defs::virtio::pci::common::*;
use satori_defs::virtio::status::{DRIVER_OK, FEATURES_OK, NEEDS_RESET};

use satori_save::Error;
use serde::{Deserialize, Serialize};

use crate::{Device, Link, Place};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueSetup {
    place: Place,
    most: u16,
    enabled: bool,
}

/// The registers' own state; status, features and vectors are the link's.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Registers {
    device_select: u32,
    driver_select: u32,
    /// What the driver asked for, until it says FEATURES_OK.
    wanted: u64,
    queue: u16,
    setups: Vec<QueueSetup>,
}

/// The part of `register`, which has `bytes` bytes, that a read of `size` bytes at `offset` sees, if that is where
/// it is.
fn part(value: u64, offset: u64) -> u64 {
    value >> (8 * offset)
}

impl Registers {
    pub(crate) fn new(queues: &[u16]) -> Self {
        let setup = |&most: &u16| {
            let place = Place { size: most, ..Place::default() };
            QueueSetup { place, most, enabled: false }
        };
        let setups = queues.iter().map(setup).collect();
        Registers { device_select: 0, driver_select: 0, wanted: 0, queue: 0, setups }
    }

    /// The most descriptors of each queue.
    pub(crate) fn most(&self) -> Vec<u16> {
        self.setups.iter().map(|setup| setup.most).collect()
    }

    /// Takes a state back, of queues as they are.
    pub(crate) fn restore(&mut self, saved: Registers) -> Result<(), Error> {
        let fit =
            saved.most() == self.most() && saved.setups.iter().all(|setup| setup.place.fits(setup.most));
        Error::unless(fit, "virtio", "a queue has a size that none has")?;
        *self = saved;
        Ok(())
    }

    pub(crate) fn offered(device: &dyn Device) -> u64 {
        device.features() | VERSION_1 | INDIRECT_DESC | EVENT_IDX
    }

    /// Reads `size` bytes at `offset`; words of 64 bits may be read in halves.
    pub(crate) fn read(&self, device: &dyn Device, link: &Link, offset: u64, size: u8) -> u64 {
        let half = |features: u64, select: u32| match select {
            0 => features & 0xffff_ffff,
            1 => features >> 32,
            _ => 0,
        };
        let setup = self.setups.get(usize::from(self.queue));
        let place = setup.map(|setup| setup.place).unwrap_or_default();
        let value = match offset {
            DEVICE_FEATURE_SELECT => self.device_select.into(),
            DEVICE_FEATURE => half(Self::offered(device), self.device_select),
            DRIVER_FEATURE_SELECT => self.driver_select.into(),
            DRIVER_FEATURE => half(self.wanted, self.driver_select),
            CONFIG_VECTOR => link.vector(None).into(),
            QUEUES => self.setups.len() as u64,
            STATUS => link.status().into(),
            GENERATION => link.generation().into(),
            QUEUE_SELECT => self.queue.into(),
            // 0 says that there is no such queue.
            QUEUE_SIZE => place.size.into(),
            QUEUE_VECTOR => link.vector(Some(self.queue)).into(),
            QUEUE_ENABLE => setup.is_some_and(|setup| setup.enabled).into(),
            QUEUE_NOTIFY => self.queue.into(),
            QUEUE_DESC..QUEUE_DRIVER => part(place.desc, offset - QUEUE_DESC),
            QUEUE_DRIVER..QUEUE_DEVICE => part(place.driver, offset - QUEUE_DRIVER),
            QUEUE_DEVICE..BYTES => part(place.device, offset - QUEUE_DEVICE),
            _ => 0,
        };
        value & (u64::MAX >> (64 - 8 * u32::from(size.clamp(1, 8))))
    }

    /// Writes; what is no register, read-only, or not to be written now is ignored.
    pub(crate) fn write(&mut self, device: &dyn Device, link: &Arc<Link>, offset: u64, size: u8, value: u64) {
        let negotiating = link.status() & FEATURES_OK == 0;
        match (offset, size) {
            (DEVICE_FEATURE_SELECT, 4) => self.device_select = value as u32,
            (DRIVER_FEATURE_SELECT, 4) => self.driver_select = value as u32,
            (DRIVER_FEATURE, 4) if negotiating => match self.driver_select {
                0 => self.wanted = self.wanted >> 32 << 32 | value & 0xffff_ffff,
                1 => self.wanted = self.wanted & 0xffff_ffff | value << 32,
                _ => {}
            },
            (CONFIG_VECTOR, 2) => link.set_vector(None, value as u16),
            (STATUS, 1) => self.set_status(device, link, value as u8),
            (QUEUE_SELECT, 2) => self.queue = value as u16,
            (QUEUE_VECTOR, 2) => link.set_vector(Some(self.queue), value as u16),
            _ => self.place_queue(link, offset, size, value),
        }
    }

    fn place_queue(&mut self, link: &Link, offset: u64, size: u8, value: u64) {
        let index = usize::from(self.queue);
        let running = link.status() & DRIVER_OK != 0;
        let Some(setup) = self.setups.get_mut(index).filter(|setup| !setup.enabled) else { return };
        let place = &mut setup.place;
        let address = |whole: &mut u64, offset: u64| match (offset, size) {
            (0, 8) => *whole = value,
            (0, 4) => *whole = *whole >> 32 << 32 | value & 0xffff_ffff,
            (4, 4) => *whole = *whole & 0xffff_ffff | value << 32,
            _ => {}
        };
        match offset {
            QUEUE_SIZE if size == 2 => {
                let wanted = value as u16;
                if wanted.is_power_of_two() && wanted <= setup.most {
                    place.size = wanted;
                }
            }
            QUEUE_ENABLE if size == 2 && value as u16 == 1 => {
                setup.enabled = true;
                // A driver may enable queues late, though it must not (3.1.1).
                if running {
                    link.begin(index, setup.place);
                }
            }
            QUEUE_DESC..QUEUE_DRIVER => address(&mut place.desc, offset - QUEUE_DESC),
            QUEUE_DRIVER..QUEUE_DEVICE => address(&mut place.driver, offset - QUEUE_DRIVER),
            QUEUE_DEVICE..BYTES => address(&mut place.device, offset - QUEUE_DEVICE),
            _ => {}
        }
    }

    fn set_status(&mut self, device: &dyn Device, link: &Arc<Link>, value: u8) {
        if value == 0 {
            self.reset(device, link);
            return;
        }
        let before = link.status();
        let mut new = value & !before & !NEEDS_RESET;
        if new & FEATURES_OK != 0 {
            let known = self.wanted & !Self::offered(device) == 0;
            if known && self.wanted & VERSION_1 != 0 {
                link.agree(self.wanted);
            } else {
                // What the driver reads back tells it (3.1.1, step 6).
                new &= !FEATURES_OK;
            }
        }
        if (before | new) & FEATURES_OK == 0 {
            new &= !DRIVER_OK;
        }
        link.add_status(new);
        if new & DRIVER_OK != 0 {
            for (index, setup) in self.setups.iter().enumerate().filter(|(_, setup)| setup.enabled) {
                link.begin(index, setup.place);
            }
            device.start(link);
        }
    }

    /// Everything as at power-on.
    pub(crate) fn reset(&mut self, device: &dyn Device, link: &Link) {
        link.clear();
        device.reset();
        *self = Registers::new(&self.most());
    }
}
