//! Messages to the person at the keyboard.

use std::fmt::Arguments;
use std::io::Write;

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
