//! Messages to the person at the keyboard.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints `satori: ...` and a line end on standard error.
///
/// Unlike `eprintln!` it does not panic when standard error is closed, and it ends lines so
/// that they also stand at the left edge of a terminal in raw mode.
pub fn say(message: Arguments) {
    line(format_args!("satori: {message}"));
}

/// Prints one line without the prefix, as [`say`] does.
pub fn line(message: Arguments) {
    let end = if crate::terminal::is_raw() { "\r\n" } else { "\n" };
    let text = format!("{message}{end}");
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Standard output, whose errors can be told from those of other files ([`unwritten`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Out;

/// Why standard output took nothing.
#[derive(Debug)]
struct Unwritten(std::io::Error);

impl std::fmt::Display for Unwritten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "standard output cannot be written ({})", crate::late::plain(&self.0))
    }
}

impl std::error::Error for Unwritten {}

fn marked(error: std::io::Error) -> std::io::Error {
    match error.kind() {
        // Whoever writes everything goes on by itself.
        ErrorKind::Interrupted => error,
        kind => std::io::Error::new(kind, Unwritten(error)),
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        std::io::stdout().write(bytes).map_err(marked)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stdout().flush().map_err(marked)
    }
}

/// Whether `error` is that of standard output, of which kind, and in words.
pub fn unwritten(error: &anyhow::Error) -> Option<(ErrorKind, String)> {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>())?;
    let why = io.get_ref()?.downcast_ref::<Unwritten>()?;
    Some((io.kind(), why.to_string()))
}
