//! Interpreter and translator side by side on a boot of Debian's kernel; `pair.rs` says how.
//!
//! Without flags, as in the gate, it is the beginning of one boot, twice: all code is translated, or what
//! is hot; `tools/soak` runs whole ones.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/forward.rs"]
mod forward;
mod pair;

use clap::{Parser, ValueEnum};
use common::{fetch, trials};
use pair::{Plan, compare};
use satori_cpuid::Topology;
use satori_machine::{Cmdline, Config, EngineKind, Module};

/// Compares the engines on boots, and stops at the first difference
#[derive(Debug, Parser)]
struct Flags {
    /// Kernel series
    #[arg(long, default_value = "6.1")]
    series: String,
    /// vCPUs
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Chooses where runs are cut and what is dropped there; each boot takes the next one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Boots
    #[arg(long, default_value_t = 1)]
    boots: u64,
    /// Millions of instructions of each boot at most
    #[arg(long, default_value_t = 40)]
    millions: u64,
    /// How the translator does it; both if nothing is said
    #[arg(long)]
    engine: Option<Heat>,
    /// What cargo's test runner may add
    #[arg(hide = true)]
    _filter: Vec<String>,
}

/// When the translator makes host code.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Heat {
    /// Of all code, before it is executed.
    Eager,
    /// Of what was executed often, as guests have it: blocks go on behind branches then.
    Warm,
}

fn main() {
    let flags = Flags::parse();
    let heats = flags.engine.map_or_else(|| vec![Heat::Eager, Heat::Warm], |heat| vec![heat]);
    let initrd = std::fs::read(trials()).expect("the initramfs");
    let config = Config {
        kernel: std::fs::read(fetch(&["kernel", &flags.series])).expect("the kernel"),
        initrds: vec![Module { data: initrd, ..Module::default() }],
        cmdline: Cmdline::Added("panic=-1 satori.seed=1".into()),
        memory: 256 << 20,
        topology: Topology::flat(flags.cpus),
        ..Config::default()
    };
    for seed in flags.seed..flags.seed + flags.boots {
        for &heat in &heats {
            let name =
                format!("lockstep: Debian {}, {} vCPU, {heat:?}, seed {seed}", flags.series, flags.cpus);
            let engine = match heat {
                Heat::Eager => EngineKind::EagerTranslator,
                Heat::Warm => EngineKind::Translator,
            };
            match compare(&config, engine, Plan::new(seed, flags.millions * 1_000_000)) {
                Ok(agreed) => println!(
                    "{name}: equal at {} places ({} but for status flags), all of memory {} times, after {} M instructions with {} disturbances ({})",
                    agreed.places,
                    agreed.flags,
                    agreed.looks,
                    agreed.instructions / 1_000_000,
                    agreed.disturbed,
                    agreed.ended
                ),
                Err(different) => {
                    eprintln!("{name}: DIFFERENT\n{different}");
                    std::process::exit(1);
                }
            }
        }
    }
}
