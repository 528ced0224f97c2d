//! What is wrong in an option or a file, where, and how it is written rightly.

use std::fmt::{Display, Formatter, Result};

/// A place in a text, both counted from 1, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line; none in the value of an option.
    pub line: Option<usize>,
    /// The column.
    pub column: usize,
}

impl Place {
    /// The place of byte `at` of an option's value.
    pub fn column(text: &str, at: usize) -> Self {
        let before = text.get(..at).unwrap_or(text);
        Place { line: None, column: before.chars().count() + 1 }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.line {
            Some(line) => write!(f, "{line}:{}", self.column),
            None => write!(f, "column {}", self.column),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The option, or the file.
    pub within: String,
    /// Where in it.
    pub place: Option<Place>,
    /// What is wrong, and what to write instead.
    pub text: String,
}

impl Display for Mistake {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self.place {
            Some(place) if place.line.is_some() => write!(f, "{}:{place}: {}", self.within, self.text),
            Some(place) => write!(f, "{}, {place}: {}", self.within, self.text),
            None => write!(f, "{}: {}", self.within, self.text),
        }
    }
}

/// All that is wrong in one option or file; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes(pub Vec<Mistake>);

impl Display for Mistakes {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (index, mistake) in self.0.iter().enumerate() {
            write!(f, "{}{mistake}", if index > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}
