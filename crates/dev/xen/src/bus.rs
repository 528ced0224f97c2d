//! All devices of one life of a machine.

use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use satori_cable::Cable;
use satori_image::Requests;
use satori_save::{Error, Value};
use satori_xen::{BackEnds, Domain};

use crate::block::Block;
use crate::net::Card;

/// What a machine's devices lead to, which outlives its resets; clones are the same.
#[derive(Clone, Default)]
pub struct Devices {
    disks: Vec<Arc<Requests>>,
    cables: Vec<Arc<Cable>>,
}

impl Devices {
    /// Those with these disks, and a card at each of these cables.
    pub fn new(disks: impl IntoIterator<Item = Requests>, cables: Vec<Arc<Cable>>) -> Self {
        Devices { disks: disks.into_iter().map(Arc::new).collect(), cables }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.disks.is_empty() && self.cables.is_empty()
    }

    /// Descriptors of the host that they need.
    pub fn files(&self) -> Vec<RawFd> {
        let cables = self.cables.iter().flat_map(|cable| cable.files());
        self.disks.iter().flat_map(|disk| disk.image().files()).chain(cables).collect()
    }

    /// Why they cannot be had in a run that is the same every time, if they cannot.
    pub fn undetermined(&self) -> Option<String> {
        (!self.cables.is_empty()).then(|| "what a network brings is not the same every time".into())
    }

    /// The guest ended: what it wrote and did not flush is its file's when the process ends.
    pub fn finish(&self) {
        for disk in &self.disks {
            disk.idle();
            if let Err(error) = disk.image().settle() {
                tracing::warn!("a disk could not be written at the end: {error}");
            }
        }
    }
}

/// The devices, as a guest finds them in its store.
pub struct Bus {
    domain: Weak<Domain>,
    blocks: Vec<Arc<Block>>,
    cards: Vec<Arc<Card>>,
}

/// Of the number by which a port's back end is known: a queue of a device.
pub(crate) const QUEUES: u32 = 16;

impl Bus {
    /// Puts `devices` into the store of `domain`. If the run has to be the same every time, everything is done where it is asked
    /// for. `moved` counts what was answered.
    pub fn wire(
        devices: &Devices,
        domain: &Arc<Domain>,
        determined: bool,
        moved: &Arc<AtomicU64>,
    ) -> Arc<Self> {
        let blocks = devices.disks.iter().zip(0..).map(|(disk, index)| {
            if !determined {
                disk.start();
            }
            Block::new(domain, disk.clone(), index, moved.clone())
        });
        let blocks: Vec<_> = blocks.collect();
        let cards = devices.cables.iter().zip(0..).map(|(cable, index)| {
            Card::new(domain, cable.clone(), (index, blocks.len() as u32 + index), moved.clone())
        });
        let cards = cards.collect();
        let bus = Arc::new(Bus { domain: Arc::downgrade(domain), blocks, cards });
        domain.with_back_ends(bus.clone());
        bus.blocks.iter().for_each(|block| block.follow(domain));
        bus.cards.iter().for_each(|card| card.follow(domain));
        bus
    }

    /// Holds the devices still, or lets them go on: what they do beside vCPUs stands still meanwhile.
    pub fn hold(&self, still: bool) {
        self.cards.iter().for_each(|card| card.cable.hold(still));
    }

    /// The state of each, by name, once nothing is under way any more.
    pub fn save(&self) -> Result<Vec<(String, Value)>, Error> {
        let blocks = self.blocks.iter().map(|block| Ok((block.name(), block.save()?)));
        blocks.chain(self.cards.iter().map(|card| Ok((card.connection.name(), card.save()?)))).collect()
    }

    /// Takes the states back; `take` gives that of a name. The interface itself and the memory have theirs already.
    pub fn restore(&self, take: &mut dyn FnMut(&str) -> Result<Value, Error>) -> Result<(), Error> {
        self.blocks.iter().try_for_each(|block| block.restore(&take(&block.name())?))?;
        self.cards.iter().try_for_each(|card| card.restore(&take(&card.connection.name())?))
    }
}

impl BackEnds for Bus {
    fn notified(&self, back: u32) {
        let (device, queue) = ((back / QUEUES) as usize, back % QUEUES);
        match self.blocks.get(device) {
            Some(block) => Block::serve(block, queue),
            None => self.cards.get(device - self.blocks.len()).iter().for_each(|card| card.serve(queue)),
        }
    }

    fn changed(&self, paths: &[String]) {
        let Some(domain) = self.domain.upgrade() else { return };
        for block in &self.blocks {
            let front = &block.connection.front;
            // One that removes what lies above removes the device, too.
            if paths.iter().any(|path| path.starts_with(front) || front.starts_with(path.as_str())) {
                block.follow(&domain);
            }
        }
        for card in &self.cards {
            let front = &card.connection.front;
            if paths.iter().any(|path| path.starts_with(front) || front.starts_with(path.as_str())) {
                card.follow(&domain);
            }
        }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|block| block.leave());
        self.cards.iter().for_each(|card| card.leave());
    }
}
