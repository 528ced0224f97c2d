//! What a processor has around it: the clock, the others of its partition, who watches it, and where its random numbers come from.

use std::sync::Arc;

use satori_engine::{Entropy, Kick, TimeSource, Whereabouts};

use super::Cpu;
use crate::world::{Seat, World};

/// Nothing of it is the processor's state, and no instruction changes it.
pub(super) struct Around {
    /// The clock that it reads, and tells of what it retired.
    pub time: Arc<dyn TimeSource>,
    /// Its place among the partition's vCPUs, for instructions during which no other may execute.
    pub seat: Arc<Seat>,
    /// Other vCPUs run at the same time.
    pub parallel: bool,
    /// By which others make it look around.
    pub kick: Arc<Kick>,
    /// Where it says what it is doing.
    pub doing: Arc<Whereabouts>,
    /// The numbers behind RDRAND and RDSEED.
    pub entropy: Box<dyn Entropy>,
}

impl Cpu {
    /// The clock that it reads.
    #[inline(always)]
    pub fn time(&self) -> &Arc<dyn TimeSource> {
        &self.around.time
    }

    /// Whether other vCPUs run at the same time: then memory that they share needs the host's locked instructions.
    #[inline(always)]
    pub fn parallel(&self) -> bool {
        self.around.parallel
    }

    /// By which others make it look around.
    #[inline(always)]
    pub fn kick(&self) -> &Arc<Kick> {
        &self.around.kick
    }

    /// Where it says what it is doing.
    #[inline(always)]
    pub fn doing(&self) -> &Arc<Whereabouts> {
        &self.around.doing
    }

    /// Its place among the vCPUs, one of which may ask all others to stand aside.
    #[inline(always)]
    pub(crate) fn seat(&self) -> &Arc<Seat> {
        &self.around.seat
    }

    /// The numbers behind RDRAND and RDSEED.
    pub(crate) fn entropy(&mut self) -> &mut dyn Entropy {
        &mut *self.around.entropy
    }

    /// The seed of these numbers, if they follow from one.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.around.entropy.seed()
    }

    /// Puts it among these vCPUs, before it executes.
    pub(crate) fn join(&mut self, world: &Arc<World>) {
        self.around.seat = world.join(self.around.kick.clone());
    }

    /// For tests, which run one processor both ways: whether others run at the same time.
    pub fn set_parallel(&mut self, parallel: bool) {
        self.around.parallel = parallel;
    }

    /// For tests, whose clocks do what else happens at a reading.
    pub fn set_time(&mut self, time: Arc<dyn TimeSource>) {
        self.around.time = time;
    }
}
