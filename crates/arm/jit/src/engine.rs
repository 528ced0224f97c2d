//! The translating engine.

use std::io;
use std::sync::{Arc, Mutex};

use satori_arm_engine::Arm;
use satori_arm_soft::{Cpu, Execute, partition};
use satori_code::Arena;
use satori_lock::Held;
use satori_seam::{Capabilities, Capability, Engine, Partition, PartitionParts};

use crate::jit::{Jit, SIZE};

/// Code memories that are nobody's: those of a life's vCPUs serve the next, as the sandbox lets none be mapped.
pub(crate) type Pool = Arc<Mutex<Vec<Arena>>>;

/// Times that a block is interpreted before it is translated.
const HOT: u8 = 8;

/// The translating engine, for partitions of up to so many vCPUs.
#[derive(Clone, Debug)]
pub struct Translator {
    vcpus: u32,
    hot: u8,
    pool: Pool,
}

impl Translator {
    /// Whether the host gives memory for code.
    pub fn works() -> io::Result<()> {
        Arena::new(SIZE).map(drop)
    }

    /// One for so many vCPUs.
    pub fn new(vcpus: u32) -> Self {
        Translator { vcpus, hot: HOT, pool: Pool::default() }
    }

    /// One that translates all code before it is executed.
    pub fn eager(vcpus: u32) -> Self {
        Translator { hot: 0, ..Translator::new(vcpus) }
    }
}

impl Engine<Arm> for Translator {
    fn name(&self) -> &'static str {
        "translator"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::of(&[Capability::ExactStop])
    }

    fn create_partition(&self, parts: PartitionParts<Arm>) -> io::Result<Box<dyn Partition<Arm>>> {
        let Translator { pool, hot, .. } = self.clone();
        Ok(partition(parts, self.vcpus, move |cpu: &Cpu| {
            let arena = pool.lock().held().pop().or_else(|| Arena::new(SIZE).ok())?;
            let executor: Box<dyn Execute> = Jit::new(cpu, arena, pool.clone(), hot);
            Some(executor)
        }))
    }
}
