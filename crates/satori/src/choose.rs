//! Which processors and which enlightenments the options ask for.

use anyhow::Result;
use satori_cpuid::Topology;
use satori_hyperv::choice::{self, By, Choice, Chosen};

use crate::cli;
use crate::say::say;

/// The processors, all options and defaults considered.
#[derive(Clone, Debug)]
pub struct Processors {
    /// How many there are, and how they make up cores, dies and sockets.
    pub topology: Topology,
    /// Model, features and identity, as `cpuid::CpuSpec` parses them.
    pub cpu: String,
    /// What is offered of Hyper-V, and who decided it.
    pub hyperv: Chosen,
}

/// What `flags` ask for: of the enlightenments first what `--hyperv` says, then what `--cpu` changes.
pub fn processors(flags: &cli::Processor) -> Result<Processors> {
    let mut choice = Choice::default();
    if let Some(list) = &flags.hyperv {
        choice.apply("--hyperv", &choice::list(list)?)?;
    }
    let mut cpu = "max".into();
    if let Some(text) = &flags.cpu {
        let option = choice::cpu_option(text)?;
        choice.apply("--cpu", &option.wishes)?;
        cpu = option.rest;
    }
    let topology = flags.cpus.unwrap_or_default();
    Ok(Processors { topology, cpu, hyperv: choice.finish()? })
}

impl Processors {
    /// Says what a person should know before the guest runs, and may not have meant.
    pub fn warn(&self) {
        for added in &self.hyperv.added {
            // A list of --hyperv is documented to bring what it needs. QEMU refuses what lacks it.
            if !matches!(&added.by, By::Words { within, .. } if within == "--hyperv") {
                say(format_args!("warning: {added}: added"));
            }
        }
        for conflict in &self.hyperv.conflicts {
            tracing::info!("{conflict}");
        }
    }
}
