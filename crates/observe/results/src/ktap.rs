//! Reads KTAP (Documentation/dev-tools/ktap.rst) and TAP, as it comes out of kernels' logs and of test programs.

use crate::line::{Line, Told, depth};
use crate::{Outcome, Results, Test};

/// The longest line that is looked at whole, the lines kept for a test, and how deep tests nest: a guest sends what it likes.
const LINE: usize = 16 << 10;
const KEPT: usize = 50;
const DEEP: usize = 32;
/// The longest name or told line that is kept.
const TEXT: usize = 1000;
/// Results of one stream, and bytes that are kept of it; what comes beyond is counted as one failure.
const TESTS: usize = 200_000;
const ROOM: usize = 64 << 20;

/// Reads a stream.
#[derive(Debug, Default)]
pub struct Reader {
    /// Of a line that is not whole yet.
    begun: Vec<u8>,
    /// What stands before each line of a log, as `[    1.234567] `.
    log: bool,
    /// Groups within groups, the outermost first.
    open: Vec<Group>,
    seen: bool,
    tests: usize,
    /// Bytes of [`ROOM`] that are used.
    used: usize,
    results: Results,
}

/// Tests that are told beside one another.
#[derive(Debug, Default)]
struct Group {
    depth: usize,
    /// Its lines stand behind a `#`.
    hashed: bool,
    /// A version line began it, and no other line has come since.
    fresh: bool,
    plan: Option<u64>,
    skipped: Option<String>,
    bailed: Option<String>,
    name: Option<String>,
    last: u64,
    /// Results, those that are not kept among them.
    came: u64,
    tests: Vec<Test>,
    told: Vec<String>,
}

impl Reader {
    /// Takes more of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            if byte == b'\n' {
                let line = std::mem::take(&mut self.begun);
                self.line(&String::from_utf8_lossy(&line));
            } else if self.begun.len() < LINE {
                self.begun.push(byte);
            }
        }
    }

    /// The stream has ended: its results, if there was KTAP in it.
    pub fn finish(mut self) -> Option<Results> {
        let line = std::mem::take(&mut self.begun);
        self.line(&String::from_utf8_lossy(&line));
        self.close(0, true);
        if self.tests > TESTS || self.used > ROOM {
            let name = format!("results beyond {}", self.tests.min(TESTS));
            self.results.tests.push(failed(name, "more than are kept".into(), Vec::new(), Vec::new()));
        }
        self.seen.then_some(self.results)
    }

    fn line(&mut self, text: &str) {
        let text = text.trim_end();
        let plain = if self.log { unstamped(text) } else { text };
        // Of a kernel's log each line has a stamp, of another's stream none; a guest's console may carry both.
        let stamped = unstamped(text);
        let text = match Line::of(stamped.trim_start_matches(['#', ' '])) {
            Line::Version if stamped.len() < text.len() => {
                self.log = true;
                stamped
            }
            _ => plain,
        };
        let deep = depth(text);
        let (before, rest) = text.split_at(deep);
        let hashed = before.contains('#');
        match Line::of(rest) {
            Line::Version => self.begin(deep, hashed),
            Line::Plan(count, skipped)
                if self.belongs(deep, hashed) || (self.open.is_empty() && deep == 0) =>
            {
                self.plan(deep, count, skipped);
            }
            // Indented without a group it is a result only if it has a number.
            Line::Result(told)
                if self.belongs(deep, hashed)
                    && (told.number.is_some() || self.open.iter().any(|g| g.depth == deep)) =>
            {
                self.result(deep, told);
            }
            Line::Bail(why) if self.belongs(deep, hashed) => {
                self.close(deep + 1, false);
                if let Some(group) = self.open.last_mut() {
                    group.bailed = Some(cut(why).to_owned());
                }
            }
            _ => self.other(text),
        }
    }

    /// Whether a line of the grammar at this depth is one: behind a `#` it is a diagnostic, unless its group began there.
    fn belongs(&self, depth: usize, hashed: bool) -> bool {
        !self.open.is_empty()
            && (!hashed || self.open.iter().any(|group| group.hashed && group.depth == depth))
    }

    fn begin(&mut self, depth: usize, hashed: bool) {
        self.seen = true;
        // Kernels print one version line for all, and one for each suite at the same depth.
        if self.open.last().is_some_and(|group| group.depth == depth && group.fresh) {
            return;
        }
        self.close(depth, true);
        self.push(Group { depth, hashed, fresh: true, ..Group::default() });
    }

    fn push(&mut self, mut group: Group) {
        // What was told before it tells its name.
        if let Some(above) = self.open.last() {
            let told = above.told.iter().rev().find_map(|line| line.trim_start().strip_prefix("# Subtest: "));
            group.name = told.map(str::to_owned);
        }
        if self.open.len() < DEEP {
            self.open.push(group);
        }
    }

    fn plan(&mut self, depth: usize, count: u64, skipped: Option<&str>) {
        self.seen = true;
        if self.open.last().is_none_or(|group| group.depth < depth) {
            // Kernels before 5.18 begin a suite without a version line.
            self.push(Group { depth, ..Group::default() });
        }
        self.close(depth + 1, false);
        if let Some(group) = self.open.last_mut() {
            group.fresh = false;
            group.plan.get_or_insert(count);
            group.skipped = skipped.map(|why| cut(why).to_owned());
        }
    }

    fn result(&mut self, depth: usize, told: Told<'_>) {
        if self.open.last().is_some_and(|group| group.depth < depth) {
            self.push(Group { depth, ..Group::default() });
        }
        let parts = self.within(depth);
        // Deeper than what is kept, or left of all groups: of the innermost one.
        let Some(group) = self.open.last_mut() else { return };
        group.fresh = false;
        let number = told.number.unwrap_or(group.last.saturating_add(1));
        group.last = number;
        let name = match (told.name, parts.as_ref().and_then(|parts| parts.name.clone())) {
            ("", Some(name)) => name,
            ("", None) => number.to_string(),
            (name, _) => name.to_owned(),
        };
        let mut said = std::mem::take(&mut group.told);
        let parts = parts.map_or_else(Vec::new, |parts| {
            said.extend(parts.told.iter().cloned());
            parts.whole()
        });
        let name = cut(&name).to_owned();
        // Nobody looks at what a success told.
        if told.outcome == Outcome::Passed {
            said.clear();
        }
        self.tests += 1;
        self.used += name.len() + said.iter().map(String::len).sum::<usize>();
        if self.tests <= TESTS && self.used <= ROOM {
            group.tests.push(Test {
                name,
                outcome: told.outcome,
                why: cut(told.why).to_owned(),
                told: said,
                parts,
            });
        }
        group.came += 1;
    }

    /// Takes the group that stands directly deeper than `depth`, and closes those within it.
    fn within(&mut self, depth: usize) -> Option<Group> {
        let at = self.open.iter().position(|group| group.depth > depth)?;
        // Without a group of its own depth nothing can have parts.
        let at = if at == 0 { return None } else { at };
        self.close_from(at + 1);
        self.open.pop()
    }

    /// Closes groups at `depth` and deeper; what they hold belongs to what stands outside. `end` says that no result line will come
    /// for them.
    fn close(&mut self, depth: usize, end: bool) {
        if let Some(at) = self.open.iter().position(|group| group.depth >= depth) {
            self.close_from(at);
        }
        if end && self.open.first().is_some_and(|group| group.depth >= depth) {
            self.close_from(0);
        }
    }

    fn close_from(&mut self, first: usize) {
        while self.open.len() > first {
            let Some(group) = self.open.pop() else { return };
            match self.open.last_mut() {
                None => self.results.tests.extend(group.whole()),
                // Its result line did not come.
                Some(above) => {
                    let name = group.name.clone().unwrap_or_else(|| "a group of tests".into());
                    let why = "its own result did not come".to_owned();
                    let told = group.told.clone();
                    above.tests.push(failed(name, why, told, group.whole()));
                    above.last = above.last.saturating_add(1);
                    above.came += 1;
                }
            }
        }
    }

    fn other(&mut self, text: &str) {
        let Some(group) = self.open.last_mut() else { return };
        let text = text.trim_start();
        if text.is_empty() {
            return;
        }
        if let (Some(name), true) = (text.strip_prefix("# Subtest: "), group.tests.is_empty()) {
            group.name = Some(cut(name).to_owned());
        }
        if group.told.len() == KEPT {
            group.told.remove(0);
        }
        group.told.push(cut(text).to_owned());
    }
}

impl Group {
    /// The tests, with a failure for whatever was promised and did not come.
    fn whole(mut self) -> Vec<Test> {
        let came = self.came;
        if let Some(why) = self.bailed {
            self.tests.push(failed("Bail out!".into(), why, self.told, Vec::new()));
            return self.tests;
        }
        match self.plan {
            Some(0) | None if came == 0 && self.skipped.is_some() => {
                let why = self.skipped.unwrap_or_default();
                let name = self.name.unwrap_or_else(|| "all tests".into());
                self.tests.push(Test {
                    name,
                    outcome: Outcome::Skipped,
                    why,
                    told: self.told,
                    parts: Vec::new(),
                });
            }
            Some(plan) if came < plan => {
                let name = match came + 1 {
                    first if first == plan => format!("result {plan}"),
                    first => format!("results {first} to {plan}"),
                };
                let why = format!("did not come: {plan} were promised, {came} came");
                self.tests.push(failed(name, why, self.told, Vec::new()));
            }
            Some(plan) if came > plan => {
                let why = format!("{plan} were promised, {came} came");
                self.tests.push(failed("results beyond the plan".into(), why, Vec::new(), Vec::new()));
            }
            None if came == 0 => {
                self.tests.push(failed("results".into(), "none came".into(), self.told, Vec::new()));
            }
            _ => {}
        }
        self.tests
    }
}

/// The first of a long text.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT)]
}

fn failed(name: String, why: String, told: Vec<String>, parts: Vec<Test>) -> Test {
    Test { name, outcome: Outcome::Failed, why, told, parts }
}

/// A line of a kernel's log without `<6>`, its time and its caller.
fn unstamped(text: &str) -> &str {
    let text = match text.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some((level, rest)) if level.bytes().all(|b| b.is_ascii_digit()) => rest,
        _ => text,
    };
    let Some((stamp, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
        return text;
    };
    let stamp = stamp.trim();
    let time = stamp.contains('.') && stamp.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let caller = stamp
        .strip_prefix(['T', 'C'])
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    match (time, caller) {
        (true, _) => unstamped(rest.strip_prefix(' ').unwrap_or(rest)),
        (_, true) => rest.strip_prefix(' ').unwrap_or(rest),
        _ => text,
    }
}
