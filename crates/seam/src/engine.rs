//! What makes partitions, and what makes vCPUs.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use satori_memory::GuestMemory;

use crate::{Capabilities, Capability, DebugPlan, Isa, Space, TimeSource, Vcpu};

/// Where a guest's instructions for random numbers get them: the host under real time, a seeded generator under
/// virtual time.
pub trait Entropy: Send {
    /// The next number; none if there is none now, which the guest sees.
    fn next(&mut self) -> Option<u64>;

    /// What all numbers to come follow from, if they do from anything.
    fn seed(&self) -> Option<u64> {
        None
    }

    /// Goes on from a [`Entropy::seed`]; one whose numbers follow from nothing does not care.
    fn set_seed(&mut self, _seed: u64) {}
}

/// What a partition is made of: all that its vCPUs have in common.
#[derive(Clone)]
pub struct PartitionParts<I: Isa> {
    /// Its memory.
    pub memory: GuestMemory,
    /// Its time.
    pub time: Arc<dyn TimeSource>,
    /// Whether its vCPUs run on several threads at once.
    pub parallel: bool,
    /// What the guest is offered.
    pub offered: I::Offered,
}

/// What is a vCPU's own.
pub struct VcpuParts {
    /// Its number in the partition.
    pub index: u32,
    /// Random numbers.
    pub entropy: Box<dyn Entropy>,
}

/// What a guest's memory and its vCPUs belong to.
pub trait Partition<I: Isa>: Space {
    /// Makes a vCPU in its reset state.
    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu<I>>;
}

/// A way to execute guest instructions.
pub trait Engine<I: Isa>: Send + Sync {
    /// A short name: `interpreter`, `kvm`.
    fn name(&self) -> &'static str;

    /// What it can do of what not every engine can.
    fn capabilities(&self) -> Capabilities;

    /// Whether its vCPUs can stop at all that `plan` asks for.
    fn can_stop_at(&self, plan: &DebugPlan) -> bool {
        plan.watchpoints.is_empty() || self.capabilities().has(Capability::BreakOnData)
    }

    /// Descriptors of the host that its partitions need until they end, and those to come.
    fn files(&self) -> Vec<RawFd> {
        Vec::new()
    }

    /// Makes a partition. An error is the host's, which refused it.
    fn create_partition(&self, parts: PartitionParts<I>) -> io::Result<Box<dyn Partition<I>>>;
}
