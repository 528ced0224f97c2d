//! Each engine against the real processor: every case that once differed, and 200,000 more.

use satori_compare::{Comparison, Exclusion, Failure, Generator, When, describe, host, read_line};
use satori_cpuid::Vendor;
use satori_engine::{Engine, X86};
use satori_jit::Translator;
use satori_soft::Interpreter;

const SEED: u64 = 0x5361_746f;
const CASES: u64 = 200_000;

fn comparison(engine: &dyn Engine<X86>) -> Comparison {
    eprintln!("compared with {}", host::get());
    for limit in host::get().limits() {
        eprintln!("not compared here: {limit}");
    }
    // Its text says what the host forbids.
    Comparison::new(engine).unwrap_or_else(|why| panic!("{why}"))
}

/// Tells what the processor of this host took out of the comparison.
fn tell(comparison: &Comparison) {
    for (why, count) in &comparison.skipped {
        eprintln!("{count} left out: {why}");
    }
}

fn show(failures: &[Failure]) -> String {
    failures
        .iter()
        .map(|f| describe(&f.case, &f.insn, &format!("{:?}", f.way), &f.differences))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn what_once_differed_no_longer_does() {
    replay_the_corpus(&Interpreter);
    replay_the_corpus(&Translator::eager());
}

fn replay_the_corpus(engine: &dyn Engine<X86>) {
    let mut comparison = comparison(engine);
    let mut failures = Vec::new();
    for line in include_str!("../corpus.txt").lines().filter(|line| !line.starts_with('#')) {
        let case = read_line(line).expect("lines of the corpus can be read");
        failures.extend(comparison.one(&case).expect("the child can be started"));
    }
    assert!(failures.is_empty(), "\n{}", show(&failures));
    tell(&comparison);
    // A line that no processor can compare could not fail. What this one lacks, or does in its own lawful way, another
    // one may show.
    let elsewhere = |why: &Exclusion| match why {
        Exclusion::HostLacks | Exclusion::SplitLock => true,
        // Opcodes of SSE4a are VMREAD and VMWRITE on others than AMD's.
        Exclusion::Hypervisor => host::get().vendor != Vendor::Amd,
        _ => false,
    };
    let never = |why: &Exclusion| why.when() != When::Outcome && !elsewhere(why);
    let left_out: Vec<_> = comparison.skipped.keys().filter(|why| never(why)).collect();
    assert!(left_out.is_empty(), "lines of the corpus are left out on every host: {left_out:?}");
    assert!(comparison.compared > 100, "only {} cases were compared", comparison.compared);
}

#[test]
fn interpreted_instructions_do_what_they_do_on_the_real_processor() {
    compare_at_random(&Interpreter);
}

#[test]
fn translated_instructions_do_what_they_do_on_the_real_processor() {
    compare_at_random(&Translator::eager());
}

fn compare_at_random(engine: &dyn Engine<X86>) {
    let mut comparison = comparison(engine);
    let generators = [64, 32].map(|bits| Generator::new(bits, SEED, ""));
    let mut failures: Vec<Failure> = Vec::new();
    for index in 0..CASES {
        let (case, insn) = generators[(index % 2) as usize].case(index);
        failures.extend(comparison.push(case, insn).expect("the child can be started"));
        if failures.len() > 10 {
            break;
        }
    }
    failures.extend(comparison.flush().expect("the child can be started"));
    tell(&comparison);
    // What a third maker's processors do otherwise by right is not known: there differences are told, and the corpus
    // alone decides.
    if host::get().vendor == Vendor::Other {
        eprintln!("not judged on this processor:\n{}", show(&failures));
        return;
    }
    let small: Vec<_> =
        failures.iter().map(|f| comparison.minimise(f).expect("the child can be started")).collect();
    assert!(failures.is_empty(), "\n{}", show(&small));
    assert!(comparison.compared > CASES * 9 / 10, "only {} cases were compared", comparison.compared);
    // Cases that end behind the instruction, and every fault that user code can raise by itself.
    let seen = |vector: usize| comparison.vectors[vector] > CASES / 10_000;
    let missing: Vec<_> = [0, 3, 6, 12, 13, 14, 16, 17, 19].into_iter().filter(|v| !seen(*v)).collect();
    assert!(missing.is_empty(), "hardly any case ended by vectors {missing:?}");
}
