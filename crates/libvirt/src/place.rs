//! Lines and columns of byte offsets.

use satori_hyperv::choice::Place;

/// A text with the offsets of its lines.
#[derive(Debug)]
pub(crate) struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Lines { text, starts: [0].into_iter().chain(breaks).collect() }
    }

    /// The place of the byte at `at`; beyond the end that of the end.
    pub(crate) fn place(&self, at: usize) -> Place {
        let line = self.starts.partition_point(|start| *start <= at);
        let start = self.starts[line - 1];
        let before = self.text.get(start..at).unwrap_or_else(|| &self.text[start..]);
        Place { line: Some(line), column: before.chars().count() + 1 }
    }
}
