//! What became of all cases, as text, JSON and JUnit.

use std::fmt::Write;
use std::time::Duration;

use satori_results::{Counts, Outcome, junit};
use serde_json::{Value, json};

use super::case::{Ended, Verdict};
use crate::report::printable;

/// Failed results, and lines of standard error, that are shown for a case.
const SHOWN: usize = 10;

/// One case as text.
pub(crate) fn line(ended: &Ended) -> String {
    let name = printable(&ended.name);
    let time = format!("{:.1} s", ended.time().as_secs_f64());
    let counts = ended
        .attempts
        .last()
        .and_then(|last| last.results.as_ref())
        .map(|results| format!(", {}", results.counts()));
    let counts = counts.unwrap_or_default();
    let runs = ended.attempts.len();
    let mut text = match ended.verdict() {
        Verdict::Passed if runs > 1 => format!("ok     {name}  {time}, {runs} times{counts}\n"),
        Verdict::Passed => format!("ok     {name}  {time}{counts}\n"),
        Verdict::Flaky => {
            let failed = ended.failures().count();
            format!("FLAKY  {name}  {time}: {failed} of {runs} runs failed{counts}\n")
        }
        Verdict::Failed if runs > 1 => format!("FAIL   {name}  {time}, {runs} times\n"),
        Verdict::Failed => format!("FAIL   {name}  {time}\n"),
    };
    let Some(failed) = ended.failures().last() else { return text };
    let _ = writeln!(text, "         {}", printable(failed.why.as_deref().unwrap_or_default()));
    let failures = failed.results.iter().flat_map(|results| results.failures()).collect::<Vec<_>>();
    for (name, why) in failures.iter().take(SHOWN) {
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        let _ = writeln!(text, "         not ok: {}{}", printable(name), printable(&why));
    }
    if failures.len() > SHOWN {
        let _ = writeln!(text, "         and {} more", failures.len() - SHOWN);
    }
    let told: Vec<_> = failed.told.lines().collect();
    for told in &told[told.len().saturating_sub(SHOWN)..] {
        let _ = writeln!(text, "         | {}", printable(told));
    }
    text
}

/// How many cases ended how.
pub(crate) fn count(all: &[Ended], verdict: Verdict) -> usize {
    all.iter().filter(|ended| ended.verdict() == verdict).count()
}

/// All cases in short, flaky and failed ones by name.
pub(crate) fn summary(all: &[Ended], time: Option<Duration>) -> String {
    let time = time.map_or_else(String::new, |time| format!(" in {:.1} s", time.as_secs_f64()));
    let cases = if all.len() == 1 { "case" } else { "cases" };
    let mut text = format!("{} {cases}{time}: {} passed", all.len(), count(all, Verdict::Passed));
    for (verdict, word) in [(Verdict::Flaky, "flaky"), (Verdict::Failed, "failed")] {
        let of: Vec<_> = all
            .iter()
            .filter(|ended| ended.verdict() == verdict)
            .map(|ended| printable(&ended.name))
            .collect();
        if !of.is_empty() {
            let _ = write!(text, ", {} {word} ({})", of.len(), of.join(", "));
        }
    }
    let mut counts = Counts::default();
    let results = all.iter().filter_map(|ended| ended.attempts.last()?.results.as_ref());
    results.for_each(|results| results.each(|_, _, outcome| counts.add(outcome)));
    if counts.all() > 0 {
        let _ = write!(text, "; they told {counts}");
    }
    text + "\n"
}

/// All cases as one JSON object.
pub(crate) fn object(all: &[Ended]) -> Value {
    let cases: Vec<_> = all
        .iter()
        .map(|ended| {
            let counts =
                ended.attempts.last().and_then(|last| last.results.as_ref()).map(|results| results.counts());
            json!({
                "number": ended.number, "name": ended.name, "verdict": ended.verdict(), "tests": counts,
                "words": ended.words, "attempts": ended.attempts,
            })
        })
        .collect();
    json!({
        "format": "satori-test", "version": 1, "passed": count(all, Verdict::Passed), "flaky": count(all, Verdict::Flaky),
        "failed": count(all, Verdict::Failed), "cases": cases,
    })
}

/// All cases as JUnit's XML. A flaky one counts as `repeated` says: run again until it passed it is none, repeated it is a failure.
pub(crate) fn xml(all: &[Ended], repeated: bool) -> String {
    let flaky: Vec<Vec<String>> = all
        .iter()
        .map(|ended| {
            let whys = ended.failures().filter_map(|attempt| attempt.why.clone()).collect::<Vec<_>>();
            let shown =
                if ended.verdict() == Verdict::Failed { whys.len().saturating_sub(1) } else { whys.len() };
            whys[..shown].to_vec()
        })
        .collect();
    let suites = all.iter().zip(&flaky).map(|(ended, flaky)| {
        let failed = ended.verdict() == Verdict::Failed || repeated && ended.verdict() == Verdict::Flaky;
        let last = ended.failures().last().filter(|_| failed);
        junit::Suite {
            name: &ended.name,
            time: ended.time(),
            outcome: if failed { Outcome::Failed } else { Outcome::Passed },
            why: last.and_then(|last| last.why.as_deref()).unwrap_or(if failed {
                "it was not run"
            } else {
                ""
            }),
            told: last.map_or("", |last| &last.told),
            flaky,
            results: ended.attempts.last().and_then(|last| last.results.as_ref()),
        }
    });
    junit::write(&suites.collect::<Vec<_>>())
}
