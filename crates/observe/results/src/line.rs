//! What one line of KTAP says.

use crate::Outcome;

/// A line, without what stands before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// `KTAP version 1`, `TAP version 13`.
    Version,
    /// `1..N`, with the reason of a `# SKIP`.
    Plan(u64, Option<&'a str>),
    /// `ok 1 - name # SKIP reason`.
    Result(Told<'a>),
    /// `Bail out!` and why.
    Bail(&'a str),
    /// Anything else.
    Other(&'a str),
}

/// A result line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told<'a> {
    pub(crate) number: Option<u64>,
    pub(crate) name: &'a str,
    pub(crate) outcome: Outcome,
    pub(crate) why: &'a str,
}

impl Line<'_> {
    /// Reads a line that begins with what it says.
    pub(crate) fn of(text: &str) -> Line<'_> {
        let version = ["KTAP version ", "TAP version "].iter().find_map(|head| text.strip_prefix(head));
        if version.is_some_and(|number| number.trim().parse::<u32>().is_ok()) {
            return Line::Version;
        }
        if let Some(why) = text.strip_prefix("Bail out!") {
            return Line::Bail(why.trim());
        }
        plan(text).or_else(|| result(text)).unwrap_or(Line::Other(text))
    }
}

fn plan(text: &str) -> Option<Line<'_>> {
    let rest = text.strip_prefix("1..")?;
    let (number, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let rest = rest.trim();
    let skipped = match rest.strip_prefix('#').map(directive) {
        Some((Some("SKIP"), why)) => Some(why),
        // A diagnostic.
        Some(_) => None,
        None if rest.is_empty() => None,
        None => return None,
    };
    Some(Line::Plan(number.parse().ok()?, skipped))
}

fn result(text: &str) -> Option<Line<'_>> {
    let (passed, rest) = match text.strip_prefix("not ok") {
        Some(rest) => (false, rest),
        None => (true, text.strip_prefix("ok")?),
    };
    if !rest.is_empty() && !rest.starts_with([' ', '\t']) {
        return None;
    }
    let rest = rest.trim();
    let (digits, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let (number, rest) = match digits.parse() {
        Ok(number) if after.is_empty() || after.starts_with([' ', '\t', '#']) => (Some(number), after.trim()),
        _ => (None, rest),
    };
    let (name, mark) = split(rest);
    let name = name.trim();
    let name = name.strip_prefix('-').map_or(name, str::trim_start);
    let (word, why) = mark.map_or((None, ""), directive);
    let outcome = match (word, passed) {
        (Some("SKIP"), _) => Outcome::Skipped,
        (Some("TODO" | "XFAIL"), false) => Outcome::Known,
        (Some("TIMEOUT" | "ERROR"), _) | (_, false) => Outcome::Failed,
        _ => Outcome::Passed,
    };
    Some(Line::Result(Told { number, name, outcome, why }))
}

/// The description, and what stands behind the first `#` that no backslash escapes.
fn split(text: &str) -> (&str, Option<&str>) {
    let bytes = text.as_bytes();
    let mark = (0..bytes.len()).find(|&at| bytes[at] == b'#' && (at == 0 || bytes[at - 1] != b'\\'));
    mark.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])))
}

/// The directive behind a `#`, in capitals, and its reason; none if these are other data.
fn directive(text: &str) -> (Option<&'static str>, &str) {
    const WORDS: [&str; 5] = ["SKIP", "TODO", "XFAIL", "TIMEOUT", "ERROR"];
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    let word = WORDS.into_iter().find(|word| {
        // `# skipped: ...` is TAP's, too.
        word.eq_ignore_ascii_case(&text[..end])
            || (*word == "SKIP" && text[..end].eq_ignore_ascii_case("SKIPPED"))
    });
    let rest = if word.is_some() { &text[end..] } else { text };
    (word, rest.trim_start_matches([':', ' ', '\t', '-']))
}

/// How many bytes before a line say how deep it stands, as blanks and `#` with a blank behind it (kselftest's runner puts these
/// before the lines of its tests).
pub(crate) fn depth(text: &str) -> usize {
    let (bytes, mut at) = (text.as_bytes(), 0);
    loop {
        match &bytes[at..] {
            [b' ' | b'\t', ..] => at += 1,
            [b'#', b' ', ..] => at += 2,
            _ => return at,
        }
    }
}
