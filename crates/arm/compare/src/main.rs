//! `satori-arm-compare [--cases N] [--seed N] [--only OP] [--engine translator]`: compares random instructions with qemu-aarch64.

use std::collections::BTreeMap;
use std::process::ExitCode;

use satori_arm_compare::{Batch, Case, Ours, compare};

const USAGE: &str = "usage: satori-arm-compare [--cases N] [--seed N] [--only PART-OF-AN-OPERATION'S-NAME] \
    [--engine interpreter|translator]";
const BATCH: usize = 4000;

fn main() -> ExitCode {
    let (mut cases, mut seed, mut only) = (100_000, 1, None);
    let mut engine = Ours::Interpreter;
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().unwrap_or_default();
        let number = value.parse();
        match (flag.as_str(), number) {
            ("--cases", Ok(number)) => cases = number,
            ("--seed", Ok(number)) => seed = number as u64,
            ("--engine", _) if value == "translator" => engine = Ours::Translator,
            ("--engine", _) if value == "interpreter" => engine = Ours::Interpreter,
            ("--only", _) if !value.is_empty() => only = Some(value),
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    if let Some(only) = only.as_deref().filter(|only| !Case::any_of(only)) {
        eprintln!(
            "no instruction that can be compared has {only} in its operation's name: give another --only"
        );
        return ExitCode::from(2);
    }
    let mut found: BTreeMap<String, (u64, String)> = BTreeMap::new();
    let mut done = 0;
    while done < cases {
        let count = BATCH.min(cases - done);
        match compare(&Batch::random(seed, count, only.as_deref()), engine) {
            Ok(differences) => {
                for difference in differences {
                    let entry = found.entry(format!("{:?}", difference.case.row.op)).or_default();
                    entry.0 += 1;
                    if entry.1.is_empty() {
                        entry.1 = difference.text();
                    }
                }
            }
            Err(why) => {
                eprintln!("seed {seed}: {why}");
                return ExitCode::FAILURE;
            }
        }
        (done, seed) = (done + count, seed + 1);
    }
    for (name, (count, first)) in &found {
        println!("{name}: {count} differences; the first:\n{first}");
    }
    println!("{done} cases, {} operations differ", found.len());
    if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
