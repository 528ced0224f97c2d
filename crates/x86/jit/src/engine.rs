//! The translating engine.

use std::io;
use std::sync::Arc;

use satori_code::Arena;
use satori_cpuid::Feature;
use satori_engine::{Capabilities, CodeWatcher, Engine, Partition, PartitionParts, X86};
use satori_soft::execute::Interpreting;
use satori_soft::vcpu::{CAPABILITIES, SoftVcpu, partition};

use crate::arena::WHOLE;
use crate::{HOT, Host, Jit, Manner, Pool, Translating};

/// The translating engine: hot code becomes host code, the rest is interpreted.
#[derive(Clone, Debug)]
pub struct Translator {
    pool: Pool,
    manner: Manner,
}

impl Default for Translator {
    fn default() -> Self {
        let manner = Manner { hot: HOT, counting: false, watcher: None, host: Host::default() };
        Translator { pool: Pool::default(), manner }
    }
}

impl Translator {
    /// Whether the host gives memory for code.
    pub fn works() -> io::Result<()> {
        Arena::new(WHOLE).map(drop)
    }

    /// One that translates a block before its first execution, so that translated code is what
    /// is tried out.
    pub fn eager() -> Self {
        Self::after(0)
    }

    /// One that translates a block after so many executions.
    pub fn after(executions: u32) -> Self {
        let usual = Translator::default();
        Translator { manner: Manner { hot: executions, ..usual.manner }, ..usual }
    }

    /// The same; if `counting`, translated code counts the indirect branches that met a known target.
    pub fn counting(self, counting: bool) -> Self {
        Translator { manner: Manner { counting, ..self.manner }, ..self }
    }

    /// The same, as on a host without these features.
    pub fn without(self, features: &[Feature]) -> Self {
        Translator { manner: Manner { host: Host::without(features), ..self.manner }, ..self }
    }

    /// The same; `watcher` is told of all code that is made.
    pub fn watched(self, watcher: Option<Arc<dyn CodeWatcher>>) -> Self {
        Translator { manner: Manner { watcher, ..self.manner }, ..self }
    }
}

impl Engine<X86> for Translator {
    fn name(&self) -> &'static str {
        "translator"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn create_partition(&self, parts: PartitionParts<X86>) -> io::Result<Box<dyn Partition<X86>>> {
        let Translator { pool, manner } = self.clone();
        Ok(partition(parts, move |cpu| match Jit::new(&pool, manner.clone()) {
            Some(jit) => Box::new(SoftVcpu(Translating::new(cpu, jit))),
            // The host refuses memory for code.
            None => Box::new(SoftVcpu(Interpreting::new(cpu))),
        }))
    }
}
