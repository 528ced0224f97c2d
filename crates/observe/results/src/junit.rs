//! JUnit's XML, as continuous integration reads it.

use std::fmt::Write;
use std::time::Duration;

use crate::{Outcome, Results};

/// Something that was run: a command in a guest, with whatever results it told.
#[derive(Debug)]
pub struct Suite<'a> {
    /// What it is called.
    pub name: &'a str,
    /// How long it took.
    pub time: Duration,
    /// How the run itself ended: [`Outcome::Failed`] if its status was not the one that was expected.
    pub outcome: Outcome,
    /// Why it failed or was skipped.
    pub why: &'a str,
    /// What it told before that.
    pub told: &'a str,
    /// Why each attempt before this one failed, if one did.
    pub flaky: &'a [String],
    /// The results that it told.
    pub results: Option<&'a Results>,
}

/// All suites as one document.
pub fn write(suites: &[Suite<'_>]) -> String {
    let mut body = String::new();
    let (mut all, mut failed, mut skipped) = (0, 0, 0);
    for suite in suites {
        let mut cases = String::new();
        let (mut tests, mut failures, mut left) = (1, 0, 0);
        let mut count = |outcome| match outcome {
            Outcome::Failed => failures += 1,
            Outcome::Skipped => left += 1,
            Outcome::Passed | Outcome::Known => {}
        };
        count(suite.outcome);
        // The run itself is a case: a kernel that panics behind its last result is no success.
        case(
            &mut cases,
            suite.name,
            "run",
            Some(suite.time),
            suite.outcome,
            suite.why,
            suite.told,
            suite.flaky,
        );
        if let Some(results) = suite.results {
            results.each(|path, test, outcome| {
                tests += 1;
                count(outcome);
                let class: Vec<_> = std::iter::once(suite.name).chain(path.iter().copied()).collect();
                case(
                    &mut cases,
                    &class.join("."),
                    &test.name,
                    None,
                    outcome,
                    &test.why,
                    &test.told.join("\n"),
                    &[],
                );
            });
        }
        let _ = writeln!(
            body,
            "  <testsuite name=\"{}\" tests=\"{tests}\" failures=\"{failures}\" errors=\"0\" skipped=\"{left}\" time=\"{:.3}\">\n{cases}  </testsuite>",
            escaped(suite.name),
            suite.time.as_secs_f64()
        );
        (all, failed, skipped) = (all + tests, failed + failures, skipped + left);
    }
    let time: f64 = suites.iter().map(|suite| suite.time.as_secs_f64()).sum();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"satori\" tests=\"{all}\" failures=\"{failed}\" errors=\"0\" skipped=\"{skipped}\" time=\"{time:.3}\">\n{body}</testsuites>\n"
    )
}

#[expect(clippy::too_many_arguments, reason = "the parts of one element, which is written in one place")]
fn case(
    out: &mut String,
    class: &str,
    name: &str,
    time: Option<Duration>,
    outcome: Outcome,
    why: &str,
    told: &str,
    flaky: &[String],
) {
    let time = time.map_or_else(String::new, |time| format!(" time=\"{:.3}\"", time.as_secs_f64()));
    let head = format!("    <testcase classname=\"{}\" name=\"{}\"{time}", escaped(class), escaped(name));
    let why = escaped(if why.is_empty() { "failed" } else { why });
    let mut inside = String::new();
    match outcome {
        Outcome::Failed => {
            _ = writeln!(inside, "      <failure message=\"{why}\">{}</failure>", escaped(told))
        }
        Outcome::Skipped => _ = writeln!(inside, "      <skipped message=\"{why}\"/>"),
        Outcome::Known => _ = writeln!(inside, "      <system-out>known to fail: {why}</system-out>"),
        Outcome::Passed => {}
    }
    // As Surefire writes attempts that failed before one succeeded.
    let attempt = if outcome == Outcome::Failed { "rerunFailure" } else { "flakyFailure" };
    for why in flaky {
        let _ = writeln!(inside, "      <{attempt} message=\"{}\"/>", escaped(why));
    }
    let _ = match inside.is_empty() {
        true => writeln!(out, "{head}/>"),
        false => writeln!(out, "{head}>\n{inside}    </testcase>"),
    };
}

/// Text that XML 1.0 permits: other control characters have no form in it.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            letter if letter < ' ' => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}
