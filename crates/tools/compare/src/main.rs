//! Compares an engine with this machine's processor, for as many cases as wanted.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use satori_compare::{
    Comparison, Error, Exclusion, Failure, Generator, When, cpuid_of_host, describe, host, read_line,
    write_line,
};
use satori_cpuid::Feature;
use satori_engine::{Engine, X86};
use satori_jit::Translator;
use satori_kvm_engine::Kvm;
use satori_soft::Interpreter;

/// Compares an engine with this machine's processor
#[derive(Debug, Parser)]
#[command(name = "satori-compare")]
struct Flags {
    /// What executes the cases beside the processor
    #[arg(long, value_enum, default_value = "interpreter")]
    engine: Choice,
    /// Cases; 10M and 200k are understood
    #[arg(long, default_value = "1M", value_parser = count)]
    cases: u64,
    /// Where the random numbers begin; a fresh one, which is printed, if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Number of the first case
    #[arg(long, default_value = "0", value_parser = count)]
    from: u64,
    /// Only instruction forms whose name contains this, as in Cmpxchg or Addps_xmm
    #[arg(long, default_value = "")]
    only: String,
    /// Code sizes, taken in turn
    #[arg(long, value_delimiter = ',', default_value = "64,32")]
    bits: Vec<u32>,
    /// Stop after so many differences
    #[arg(long, default_value_t = 10)]
    failures: usize,
    /// Count differences by instruction form and by what differs, with a case of each as it was found
    #[arg(long)]
    survey: bool,
    /// Go on where the run that wrote this file ended, with its seed; and note progress there
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Execute the cases of this file, a line each, instead
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Execute one line instead
    #[arg(long)]
    line: Option<String>,
    /// List what is not compared, and why
    #[arg(long)]
    excluded: bool,
}

/// The engines.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Choice {
    /// The interpreter
    Interpreter,
    /// The translator, which translates every block at once
    Translator,
    /// The host's processor by /dev/kvm: what differs is KVM's own emulation
    Kvm,
}

impl Choice {
    fn comparison(self) -> Result<Comparison, Error> {
        let engine: &dyn Engine<X86> = match self {
            Choice::Interpreter => &Interpreter,
            Choice::Translator => &Translator::eager(),
            Choice::Kvm => {
                let failed = |why: satori_kvm_engine::Error| Error::Engine(why.to_string());
                let kvm = Kvm::open().map_err(failed)?;
                let table = cpuid_of_host(&kvm.lacks(Feature::ALL).map_err(failed)?)?;
                return Comparison::on_host(&kvm, &table);
            }
        };
        Comparison::new(engine)
    }
}

/// More cases than can wait to be compared.
const BATCH: u64 = 1_000;

fn count(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'M']) {
        Some(digits) if text.ends_with('k') => (digits, 1_000),
        Some(digits) => (digits, 1_000_000),
        None => (text, 1),
    };
    digits.parse::<u64>().map(|n| n * unit).map_err(|_| "a number, as in 500, 200k or 10M".into())
}

fn main() {
    let flags = Flags::parse();
    println!("compare: this processor is {}", host::get());
    for limit in host::get().limits() {
        println!("  {limit}");
    }
    let outcome = match (&flags.corpus, &flags.line) {
        (Some(path), _) => match std::fs::read_to_string(path) {
            Ok(text) => replay(flags.engine, &text),
            Err(why) => {
                eprintln!("cannot read {}: {why}", path.display());
                std::process::exit(2);
            }
        },
        (_, Some(line)) => replay(flags.engine, line),
        _ if flags.excluded => excluded(&flags),
        _ => compare(&flags),
    };
    match outcome {
        Ok(0) => {}
        Ok(_) => std::process::exit(1),
        Err(why) => {
            eprintln!("{why}");
            std::process::exit(2);
        }
    }
}

fn excluded(flags: &Flags) -> Result<usize, Error> {
    for &bits in &flags.bits {
        let generator = Generator::new(bits, 0, &flags.only);
        println!("{bits}-bit code: {} forms are compared", generator.forms().count());
        for (why, codes) in &generator.forms().excluded {
            println!("  {} forms: {why}", codes.len());
            if codes.len() < 40 {
                println!("    {codes:?}");
            }
        }
    }
    for (when, title) in [(When::Case, "cases left out"), (When::Outcome, "differences allowed")] {
        println!("{title}:");
        for why in Exclusion::ALL.iter().filter(|why| why.when() == when) {
            println!("  {why}");
        }
    }
    Ok(0)
}

fn replay(engine: Choice, text: &str) -> Result<usize, Error> {
    let mut comparison = engine.comparison()?;
    let mut failures = 0;
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(failure) = comparison.one(&read_line(line)?)? {
            failures += 1;
            print(&failure);
        }
    }
    println!("compare: {} cases of the corpus, {failures} differ", comparison.compared);
    for (why, count) in &comparison.skipped {
        println!("  {count} left out: {why}");
    }
    Ok(failures)
}

fn print(failure: &Failure) {
    let way = format!("{:?}", failure.way);
    println!("{}", describe(&failure.case, &failure.insn, &way, &failure.differences));
}

/// Seed and next case of an earlier run.
fn earlier(flags: &Flags) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(flags.resume.as_ref()?).ok()?;
    let mut words = text.split_whitespace().map(str::parse);
    Some((words.next()?.ok()?, words.next()?.ok()?))
}

/// Form and what differs, of faults with their kinds and of registers without their values.
fn kind(failure: &Failure) -> String {
    let what = |d: &satori_compare::Difference| match d.what.as_str() {
        "vector" | "error" | "ending" => format!("{} {} is {}", d.what, d.real, d.engine),
        line if line.starts_with("0x") => "memory".into(),
        register => register.to_owned(),
    };
    let mut whats: Vec<_> = failure.differences.iter().map(what).collect();
    whats.dedup();
    format!("{} {:?}: {}", failure.case.bits, failure.insn.code(), whats.join(" "))
}

fn compare(flags: &Flags) -> Result<usize, Error> {
    let fresh = || RandomState::new().hash_one(0) % 1_000_000_000;
    let (seed, from) = earlier(flags).unwrap_or_else(|| (flags.seed.unwrap_or_else(fresh), flags.from));
    println!("compare: seed {seed}, cases {from} to {}", flags.cases);
    let all = flags.bits.iter().map(|bits| Generator::new(*bits, seed, &flags.only));
    let generators: Vec<_> = all.filter(|generator| generator.forms().count() > 0).collect();
    if generators.is_empty() {
        return Err(Error::NoForm(flags.only.clone()));
    }
    let mut comparison = flags.engine.comparison()?;
    let mut failures: Vec<(String, u64, Failure)> = Vec::new();
    let start = Instant::now();
    let note = |next: u64| {
        if let Some(path) = &flags.resume
            && let Err(why) = std::fs::write(path, format!("{seed} {next}\n"))
        {
            eprintln!("cannot note progress in {}: {why}", path.display());
        }
    };
    for index in from..flags.cases {
        let generator = &generators[(index % generators.len() as u64) as usize];
        let (case, insn) = generator.case(index);
        let mut found = comparison.push(case, insn)?;
        if index + 1 == flags.cases {
            found.extend(comparison.flush()?);
        }
        for failure in found {
            let kind = if flags.survey { kind(&failure) } else { write_line(&failure.case) };
            match failures.iter_mut().find(|(k, ..)| *k == kind) {
                Some((_, count, _)) => *count += 1,
                // Making a case simpler executes it some hundred times.
                None if flags.survey => failures.push((kind, 1, failure)),
                None => {
                    let small = comparison.minimise(&failure)?;
                    print(&small);
                    failures.push((kind, 1, small));
                }
            }
        }
        if !flags.survey && failures.len() >= flags.failures {
            break;
        }
        if index % 100_000 == 99_999 {
            // A run that is gone on with must find its differences again.
            if failures.is_empty() {
                note(index.saturating_sub(BATCH));
            }
            let speed = (index - from) as f64 / start.elapsed().as_secs_f64();
            eprintln!("compare: {} cases, {speed:.0} a second", index + 1);
        }
    }
    if failures.is_empty() {
        note(flags.cases);
    }
    println!("compare: {} cases compared, {} lost", comparison.compared, comparison.lost());
    for (why, count) in &comparison.skipped {
        println!("  {count} left out: {why}");
    }
    let vectors: Vec<_> = comparison.vectors.iter().enumerate().filter(|(_, n)| **n > 0).collect();
    println!("  ended by vector: {vectors:?}");
    if flags.survey {
        failures.sort_by_key(|(_, count, _)| std::cmp::Reverse(*count));
        for (kind, count, failure) in &failures {
            println!("  {count:8} {kind}");
            println!("{:11}{}", "", write_line(&failure.case));
        }
    }
    println!("compare: seed {seed}: {} differences", failures.len());
    Ok(failures.len())
}
