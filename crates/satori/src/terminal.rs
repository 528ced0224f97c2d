//! Raw mode of the terminal, and its restoration on every way out.

use std::io::{IsTerminal, stdin};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use satori_lock::Held;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// What the terminal was before. The terminal belongs to the process, not to a value in it, and
/// a panic hook or a signal has no other way to find it.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);
static RAW: AtomicBool = AtomicBool::new(false);

/// Whether standard input is a terminal in raw mode now.
pub fn is_raw() -> bool {
    RAW.load(Ordering::Relaxed)
}

/// Raw mode of standard input; dropping it restores what was.
#[derive(Debug)]
pub struct RawMode(());

impl RawMode {
    /// Enters raw mode, or does nothing where standard input is no terminal.
    pub fn enter() -> Option<RawMode> {
        if !stdin().is_terminal() {
            return None;
        }
        let before = tcgetattr(stdin()).ok()?;
        *lock() = Some(before);
        set_raw();
        Some(RawMode(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
        *lock() = None;
    }
}

/// Makes the terminal raw again, after [`restore`].
pub fn set_raw() {
    if let Some(before) = &*lock() {
        let mut raw = before.clone();
        raw.make_raw();
        // Flag first: a message meanwhile has a carriage return too many, never one too few.
        RAW.store(true, Ordering::Relaxed);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &raw);
    }
}

/// Gives the terminal back as it was. Safe to call often, from any thread, or in raw mode's absence.
pub fn restore() {
    if let Some(before) = &*lock() {
        let _ = tcsetattr(stdin(), OptionalActions::Now, before);
        RAW.store(false, Ordering::Relaxed);
    }
}

/// Rows and columns of the terminal that standard input and standard output are.
pub fn size() -> Option<(u16, u16)> {
    use std::io::IsTerminal;
    if !(stdin().is_terminal() && std::io::stdout().is_terminal()) {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// As [`restore`], for a signal handler: does nothing if the terminal is being changed right now.
pub fn restore_if_free() {
    if let Ok(before) = BEFORE.try_lock()
        && let Some(before) = &*before
    {
        let _ = tcsetattr(stdin(), OptionalActions::Now, before);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().held()
}
