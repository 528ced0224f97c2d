//! Reports of exits, whoever made them: Satori's JSON and the text of `perf kvm stat`.
//!
//! [`read`] makes one model of either, [`text()`] and [`Report::to_json`] print it, [`diff`]
//! compares two.

#![forbid(unsafe_code)]

pub mod advise;
pub mod costs;
pub mod crashes;
pub mod diff;
pub mod html;
mod json;
mod model;
pub mod nested;
mod perf;
pub mod reasons;
pub mod svg;
mod text;

pub use json::VERSION;
pub use model::{Counter, Hot, Origin, Report, Row, Table, Timeline, Use};
pub use perf::{Named, tables};
pub use text::text;

/// Why a text is no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// What is wrong, and in which line, from 1.
    #[error("line {line}: {what}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// Several tables, and none was chosen.
    #[error("there are {} tables, choose one with --table 1 to {}, or add them up with --table all: {}", .0.len(), .0.len(), .0.join("; "))]
    Several(Vec<String>),
    /// The chosen table does not exist.
    #[error("there is no table {wanted}: there are {there}, count from 1")]
    NoTable {
        /// What was asked for.
        wanted: usize,
        /// How many there are.
        there: usize,
    },
}

impl Error {
    fn line(line: usize, what: impl Into<String>) -> Self {
        Error::Line { line, what: what.into() }
    }
}

/// Which table of a text with several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// There must be one only.
    #[default]
    Only,
    /// This one, from 1.
    Number(usize),
    /// The sum of all.
    All,
}

/// The runs of a text with several tables, each of all of a guest's vCPUs; none if it is anything else.
pub fn runs(text: &str) -> Vec<(String, Report)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        return Vec::new();
    }
    let tables = tables(text).unwrap_or_default();
    if tables.len() < 2 || tables.iter().any(|one| one.table.vcpu.is_some()) {
        return Vec::new();
    }
    let named = (1..).zip(tables).map(|(number, one)| {
        let name = format!("table {number} (line {})", one.line);
        (name, Report { all: one.table, notes: one.notes, ..Report::default() })
    });
    named.collect()
}

/// Reads Satori's JSON or the text of `perf kvm stat`, whichever it is.
pub fn read(text: &str, which: Which) -> Result<Report, Error> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        return match which {
            Which::Only | Which::All | Which::Number(1) => json::read(text),
            Which::Number(wanted) => Err(Error::NoTable { wanted, there: 1 }),
        };
    }
    let mut tables = tables(text)?;
    let table = match which {
        Which::Only if tables.len() > 1 => {
            let named = tables
                .iter()
                .map(|one| format!("line {}: {} with {} samples", one.line, one.whom, one.table.samples));
            return Err(Error::Several(named.collect()));
        }
        Which::Only => tables.remove(0),
        Which::Number(wanted) => match wanted.checked_sub(1).filter(|index| *index < tables.len()) {
            Some(index) => tables.remove(index),
            None => return Err(Error::NoTable { wanted, there: tables.len() }),
        },
        Which::All => {
            let mut first = tables.remove(0);
            for other in tables {
                first.table.add(&other.table);
                first.notes.extend(other.notes);
            }
            first.table.vcpu = None;
            first
        }
    };
    Ok(Report { all: table.table, notes: table.notes, ..Report::default() })
}
