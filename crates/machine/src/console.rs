//! What stands between the serial port and the user's sink: the last lines, and the panic pattern.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use satori_bus::{ByteSink, Clock};

use crate::shared::{Shared, lock};

/// Lines kept for a panic's report, and bytes kept of each.
const LINES: usize = 60;
const LINE_BYTES: usize = 400;

/// The last lines of a console.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<Vec<u8>>,
    open: bool,
}

impl Tail {
    fn put(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.open = false,
                b'\r' => {}
                _ => {
                    if !std::mem::replace(&mut self.open, true) {
                        if self.lines.len() == LINES {
                            self.lines.pop_front();
                        }
                        self.lines.push_back(Vec::new());
                    }
                    if let Some(line) = self.lines.back_mut().filter(|line| line.len() < LINE_BYTES) {
                        line.push(byte);
                    }
                }
            }
        }
    }

    /// The lines, oldest first, without empty ones.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    }
}

/// Finds one byte string in a stream, however it is cut into pieces (Knuth, Morris, Pratt).
#[derive(Debug)]
struct Matcher {
    pattern: Vec<u8>,
    /// Length of the longest border of each prefix: where to go on after a mismatch.
    borders: Vec<usize>,
    matched: usize,
}

impl Matcher {
    fn new(pattern: &[u8]) -> Self {
        let mut borders = vec![0; pattern.len()];
        let mut border = 0;
        for at in 1..pattern.len() {
            while border > 0 && pattern[at] != pattern[border] {
                border = borders[border - 1];
            }
            border += usize::from(pattern[at] == pattern[border]);
            borders[at] = border;
        }
        Matcher { pattern: pattern.to_vec(), borders, matched: 0 }
    }

    /// Takes the next bytes; returns whether the pattern ended in them.
    fn put(&mut self, bytes: &[u8]) -> bool {
        if self.pattern.is_empty() {
            return false;
        }
        let mut found = false;
        for &byte in bytes {
            while self.matched > 0 && byte != self.pattern[self.matched] {
                self.matched = self.borders[self.matched - 1];
            }
            self.matched += usize::from(byte == self.pattern[self.matched]);
            if self.matched == self.pattern.len() {
                found = true;
                self.matched = self.borders[self.matched - 1];
            }
        }
        found
    }
}

struct Inner {
    sink: Box<dyn ByteSink>,
    matcher: Matcher,
    tail: Tail,
}

/// The console; it lives through resets, and is given to each life's serial port.
#[derive(Clone)]
pub(crate) struct Console(Arc<Mutex<Inner>>);

impl Console {
    pub(crate) fn new(sink: Box<dyn ByteSink>, panic_pattern: &str) -> Self {
        let matcher = Matcher::new(panic_pattern.as_bytes());
        Console(Arc::new(Mutex::new(Inner { sink, matcher, tail: Tail::default() })))
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        lock(&self.0).tail.lines()
    }

    /// How much of the panic pattern was matched, and the last lines with whether the last one is open.
    pub(crate) fn save(&self) -> (usize, Vec<Vec<u8>>, bool) {
        let Inner { matcher, tail, .. } = &*lock(&self.0);
        (matcher.matched, tail.lines.iter().cloned().collect(), tail.open)
    }

    /// Takes that back; false if no console has it.
    pub(crate) fn restore(&self, matched: usize, lines: Vec<Vec<u8>>, open: bool) -> bool {
        let Inner { matcher, tail, .. } = &mut *lock(&self.0);
        let few = lines.len() <= LINES && lines.iter().all(|line| line.len() <= LINE_BYTES);
        let fits = few && (matched == 0 || matched < matcher.pattern.len()) && (!open || !lines.is_empty());
        if fits {
            matcher.matched = matched;
            *tail = Tail { lines: lines.into(), open };
        }
        fits
    }

    /// The sink for a serial port of a machine with `clock`.
    pub(crate) fn port(&self, clock: Arc<dyn Clock>, shared: Arc<Shared>) -> Box<dyn ByteSink> {
        Box::new(Port { console: self.clone(), clock, shared })
    }
}

struct Port {
    console: Console,
    clock: Arc<dyn Clock>,
    shared: Arc<Shared>,
}

impl ByteSink for Port {
    fn put(&mut self, bytes: &[u8]) {
        let mut inner = lock(&self.console.0);
        inner.sink.put(bytes);
        self.shared.moved.fetch_add(1, Ordering::Relaxed);
        inner.tail.put(bytes);
        if inner.matcher.put(bytes) {
            self.shared.console_panicked(self.clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_found_across_pieces_and_after_false_starts() {
        let mut matcher = Matcher::new(b"aab");
        assert!(!matcher.put(b"a"));
        assert!(!matcher.put(b"aa"));
        assert!(matcher.put(b"b"), "aaab holds aab");
        assert!(!matcher.put(b"ab"));
        assert!(matcher.put(b"xaabaab"));
        assert!(!Matcher::new(b"").put(b"anything"));
    }

    #[test]
    fn the_tail_keeps_the_last_lines_and_cuts_long_ones() {
        let mut tail = Tail::default();
        for line in 0..LINES + 5 {
            tail.put(format!("line {line}\r\n\n").as_bytes());
        }
        tail.put(&[b'x'; 10_000]);
        let lines = tail.lines();
        assert_eq!(lines.len(), LINES);
        assert_eq!(lines[0], "line 6");
        assert_eq!(lines[LINES - 1].len(), LINE_BYTES);
    }
}
