//! What a card is between two frames.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use satori_defs::virtio::net::{MQ, STATUS};
use satori_save::{Error, State};
use serde::{Deserialize, Serialize};

use super::{Net, Receiving};
use crate::{Link, lock};

/// A card's state. The bytes of its value are the guest's connections, as its cable has them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedNet {
    mac: [u8; 6],
    /// Pairs of queues that there are, and that the driver uses.
    most: u16,
    pairs: u16,
    /// The guest was told that there is a carrier.
    carrier: bool,
    /// The pair of each flow.
    steering: Vec<u8>,
}

impl State for SavedNet {
    const NAME: &'static str = "network card";
    const VERSION: u32 = 1;
}

impl Net {
    /// Its state. Chains that were taken for a frame that waits for more of them are left to be taken again.
    pub(super) fn saved(&self) -> SavedNet {
        let mut receiving = lock(&self.receiving);
        let Receiving { link, held } = &mut *receiving;
        for (chains, queue) in held.iter_mut().zip((0..).step_by(2)) {
            link.iter().for_each(|link| link.put_back(queue, chains));
            chains.clear();
        }
        SavedNet {
            mac: self.cable.mac(),
            most: self.cable.pairs(),
            pairs: self.pairs.load(Ordering::Acquire),
            carrier: !self.cable.dead(),
            steering: self.steering.save(),
        }
    }

    /// Takes a state back, for the driver of `link`.
    pub(super) fn take_back(&self, link: &Arc<Link>, saved: SavedNet) -> Result<(), Error> {
        let unless = |fits, why| Error::unless(fits, SavedNet::NAME, why);
        unless(saved.mac == self.cable.mac(), "it has another address")?;
        unless(saved.most == self.cable.pairs(), "it has another number of queues")?;
        let most = if link.features() & MQ != 0 { saved.most } else { 1 };
        unless((1..=most).contains(&saved.pairs), "its driver uses queues that there are not")?;
        unless(self.steering.restore(&saved.steering), "it knows of another number of flows")?;
        self.pairs.store(saved.pairs, Ordering::Release);
        let told = saved.carrier != self.cable.dead();
        self.changed.store(!told && link.features() & STATUS != 0, Ordering::Release);
        Ok(())
    }
}
