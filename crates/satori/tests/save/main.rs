//! Machines that are saved at random instants of their run, thrown away, built anew from the values, and go on: what follows is
//! byte for byte what follows in a run that nobody disturbed.
//!
//! Each guest runs several times under the virtual clock. The first run is left alone. The second is held still at every instant,
//! saved, and goes on. The third is thrown away at every instant: a new machine of the same configuration takes its state back.
//! A fourth goes back: late in its run it gets the state that it had at the first instant, and goes on from there.
//! All must end alike: console, exits with their times and places, instructions, guest time, registers. And shortly
//! before the end everything that is saved of the second and the third, all of memory included, must be equal. Under the real clock
//! the guest's own checks decide.
//!
//! Without flags, as in the gate, each guest is tried at instants of a fixed seed; `tools/soak` takes fresh ones, and many.

#[path = "../common/mod.rs"]
mod common;
mod connections;
mod damage;
mod folders;
mod guests;
mod real;
mod refused;
mod trial;

use clap::Parser;
use guests::{GUESTS, REAL};
use trial::{Random, Trial};

/// Saves machines at random instants, restores them, and compares what follows
#[derive(Debug, Parser)]
struct Flags {
    /// Chooses the instants; each round takes the next one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Rounds
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Instants of each run; as many as suit the guest if nothing is said
    #[arg(long)]
    instants: Option<usize>,
    /// Only guests whose names have this in them
    #[arg(long)]
    only: Option<String>,
    /// Values that are damaged
    #[arg(long, default_value_t = 200)]
    damaged: u64,
    /// What cargo's test runner may add
    #[arg(hide = true)]
    _filter: Vec<String>,
}

/// Saves a guest with a command so many times, at random instants, and tells what was seen.
type Case = fn(usize, &mut Random) -> Result<String, String>;

fn main() {
    // The helpers of a command's machine are started as this program, as `satori` starts itself.
    let mut words = std::env::args_os().skip(1);
    let helper = words.next().unwrap_or_default();
    let rest = words.collect::<Vec<_>>();
    if helper == satori_files::COMMAND {
        std::process::exit(satori_files::main(&rest));
    } else if helper == satori_net::COMMAND {
        std::process::exit(satori_net::main(&rest));
    }
    let flags = Flags::parse();
    let wanted = |name: &str| flags.only.as_deref().is_none_or(|only| name.contains(only));
    let (mut tried, mut failed) = (0, 0);
    for seed in flags.seed..flags.seed + flags.rounds {
        for guest in GUESTS.iter().chain(REAL).filter(|guest| wanted(guest.name)) {
            let mut random = Random::new(seed ^ guest.name.len() as u64);
            let instants = flags.instants.unwrap_or(guest.instants);
            let outcome = match guest.name.ends_with("real clock") {
                true => real::run(guest, instants, &mut random),
                false => Trial { guest, instants }.run(&mut random),
            };
            tried += 1;
            match outcome {
                Ok(told) => println!("save: {}, seed {seed}: {told}", guest.name),
                Err(different) => {
                    failed += 1;
                    eprintln!("save: {}, seed {seed}: DIFFERENT: {different}", guest.name);
                }
            }
        }
        if wanted("connections") {
            tried += 1;
            match connections::run() {
                Ok(told) => println!("save: connections: {told}"),
                Err(wrong) => {
                    failed += 1;
                    eprintln!("save: connections: {wrong}");
                }
            }
        }
        let commands: [(&str, Case); 3] =
            [("folders", folders::run), ("VMBus", folders::on_vmbus), ("Xen's bus", folders::on_xen)];
        for (name, run) in commands.into_iter().filter(|(name, _)| wanted(name)) {
            tried += 1;
            match run(flags.instants.unwrap_or(5), &mut Random::new(seed)) {
                Ok(told) => println!("save: {name}, seed {seed}: {told}"),
                Err(wrong) => {
                    failed += 1;
                    eprintln!("save: {name}, seed {seed}: {wrong}");
                }
            }
        }
        if wanted("left") {
            tried += 1;
            match folders::left() {
                Ok(told) => println!("save: left by its host: {told}"),
                Err(wrong) => {
                    failed += 1;
                    eprintln!("save: left by its host: {wrong}");
                }
            }
        }
        if wanted("refused") {
            tried += 1;
            match refused::run() {
                Ok(told) => println!("save: refused: {told}"),
                Err(wrong) => {
                    failed += 1;
                    eprintln!("save: refused: {wrong}");
                }
            }
        }
        if wanted("damage") {
            println!("save: damage, seed {seed}: {}", damage::run(seed, flags.damaged));
            tried += 1;
        }
    }
    assert!(tried > 0, "no guest is called so");
    if failed > 0 {
        std::process::exit(1);
    }
}
