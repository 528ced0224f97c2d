//! Advice for people.

use std::fmt::Write;

use super::{Advice, Compared, Finding, Rule};

const EXPLAIN: &str =
    "'satori explain RULE' tells when a rule fires, and who says so; 'satori advise --rules' lists them.\n";

/// Several runs for people, each with its findings.
pub fn text_of_several(runs: &[Compared]) -> String {
    let mut out = String::from("From the least to the most time in exits, without idling:\n\n");
    for one in runs {
        let rules: Vec<_> = one.advice.findings.iter().map(|finding| finding.rule).collect();
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            out,
            "{:<28} {:>12} exits {:>10.3} s   {:.3} and {:.3} of the most   {}",
            one.name,
            one.samples,
            one.total_ns as f64 / 1e9,
            one.ratio[0],
            one.ratio[1],
            if rules.is_empty() { "no rule fires".into() } else { rules.join(", ") }
        );
    }
    for one in runs {
        let _ = write!(out, "\n{}\n\n{}", one.name, of(&one.advice));
    }
    // What is not known is the same of each run.
    out + &runs.first().map_or_else(String::new, |one| unjudged(&one.advice)) + EXPLAIN
}

/// The advice for people.
pub fn text(advice: &Advice) -> String {
    of(advice) + &unjudged(advice) + EXPLAIN
}

fn of(advice: &Advice) -> String {
    let mut out = String::new();
    for note in &advice.notes {
        let _ = writeln!(out, "note: {note}");
    }
    if advice.idle.samples > 0 {
        let seconds = advice.idle.total_ns as f64 / 1e9;
        let _ = writeln!(
            out,
            "Idling, {} exits and {seconds:.3} s, is no cost: shares are of the rest.\n",
            advice.idle.samples
        );
    } else if !advice.notes.is_empty() {
        out.push('\n');
    }
    for one in &advice.findings {
        finding(&mut out, one);
    }
    if advice.findings.is_empty() {
        let largest = advice.largest.as_deref().unwrap_or("none");
        let _ = writeln!(
            out,
            "no rule fires, which does not say that all is well; the largest cost is\n  {largest}\n"
        );
    }
    out
}

fn finding(out: &mut String, one: &Finding) {
    let _ = writeln!(out, "{}: {}", one.rule, one.title);
    for figure in &one.figures {
        let _ = writeln!(out, "  seen    {figure}");
    }
    let _ = writeln!(out, "  do      {}", one.advice);
    for line in &one.write {
        let _ = writeln!(out, "          {line}");
    }
    let _ = writeln!(out, "  why     {}\n  effect  {}\n", one.why, one.effect);
}

/// How many rules could not be judged, and what would help.
fn unjudged(advice: &Advice) -> String {
    let told = |names: &[&str], what: &str| match names {
        [] => String::new(),
        names => format!(
            "{} of {} rules could not be judged {what}: {}\n",
            names.len(),
            Rule::ALL.len(),
            names.join(", ")
        ),
    };
    told(
        &advice.without_configuration,
        "without the guest's configuration (--libvirt domain.xml would do, or --cpu as QEMU has it)",
    ) + &told(&advice.without_processor, "without the processor (--processor NAME, or --apicv)")
}

/// The rules as a list.
pub fn rules_text() -> String {
    let mut out = String::new();
    for rule in Rule::ALL {
        let _ = writeln!(out, "{:<24} {}", rule.id, rule.title);
    }
    out + "\n'satori explain RULE' tells when one fires, what it advises, and who says so.\n"
}
