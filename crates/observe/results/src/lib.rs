//! Results of tests: KTAP, in which kernels and test programs tell them, and JUnit, in which others want them.
//!
//! [`Reader`] takes a stream as it comes, in pieces of any size, and gives [`Results`]: a tree of tests, in which a result
//! that was promised and did not come is a failure. [`junit`] writes such trees as JUnit's XML.

#![forbid(unsafe_code)]

pub mod junit;
mod ktap;
mod line;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use ktap::Reader;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As it should.
    Passed,
    /// Not as it should, or it was promised and did not come.
    Failed,
    /// It was not run, for a reason of its own.
    Skipped,
    /// It failed, and is known to (TODO, XFAIL).
    Known,
}

/// One test, and those that it consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Test {
    /// What its result line calls it, or its number.
    pub name: String,
    /// As its result line says.
    pub outcome: Outcome,
    /// The directive's reason, or why it counts as failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// What was told before its result line: diagnostics and other lines, the last of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub told: Vec<String>,
    /// Its parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Test>,
}

/// All tests of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Results {
    /// In the order in which they were told.
    pub tests: Vec<Test>,
}

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// [`Outcome::Passed`].
    pub passed: usize,
    /// [`Outcome::Failed`].
    pub failed: usize,
    /// [`Outcome::Skipped`].
    pub skipped: usize,
    /// [`Outcome::Known`].
    pub known: usize,
}

impl Counts {
    /// All.
    pub fn all(&self) -> usize {
        self.passed + self.failed + self.skipped + self.known
    }

    /// With one more.
    pub fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Passed => &mut self.passed,
            Outcome::Failed => &mut self.failed,
            Outcome::Skipped => &mut self.skipped,
            Outcome::Known => &mut self.known,
        } += 1;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tests = if self.all() == 1 { "test" } else { "tests" };
        write!(f, "{} {tests}", self.all())?;
        let rest = [(self.failed, "failed"), (self.skipped, "skipped"), (self.known, "known to fail")];
        rest.iter().filter(|(count, _)| *count > 0).try_for_each(|(count, how)| write!(f, ", {count} {how}"))
    }
}

impl Test {
    fn failed_somewhere(&self) -> bool {
        self.outcome == Outcome::Failed || self.parts.iter().any(Test::failed_somewhere)
    }

    /// Calls `each` with the tests that count: those without parts, and those that failed although no part did. A part of what is
    /// known to fail, or was skipped, fails nothing.
    fn visit<'a>(
        &'a self,
        path: &mut Vec<&'a str>,
        excused: bool,
        each: &mut dyn FnMut(&[&'a str], &'a Test, Outcome),
    ) {
        let excused = excused || matches!(self.outcome, Outcome::Known | Outcome::Skipped);
        let alone = self.outcome == Outcome::Failed && !self.parts.iter().any(Test::failed_somewhere);
        if self.parts.is_empty() || alone {
            let outcome = match self.outcome {
                Outcome::Failed if excused => Outcome::Known,
                outcome => outcome,
            };
            each(path, self, outcome);
        }
        path.push(&self.name);
        self.parts.iter().for_each(|part| part.visit(path, excused, each));
        path.pop();
    }
}

impl Results {
    /// Calls `each` with the names of what a test is part of, the test, and how it counts.
    pub fn each<'a>(&'a self, mut each: impl FnMut(&[&'a str], &'a Test, Outcome)) {
        let mut path = Vec::new();
        self.tests.iter().for_each(|test| test.visit(&mut path, false, &mut each));
    }

    /// How many tests ended how: those without parts count, and those that failed although no part did.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.each(|_, _, outcome| counts.add(outcome));
        counts
    }

    /// The names of tests that failed, with those of what they are part of, and why.
    pub fn failures(&self) -> Vec<(String, &str)> {
        let mut names = Vec::new();
        self.each(|path, test, outcome| {
            if outcome == Outcome::Failed {
                names.push((
                    path.iter().copied().chain([test.name.as_str()]).collect::<Vec<_>>().join(" > "),
                    test.why.as_str(),
                ));
            }
        });
        names
    }
}
