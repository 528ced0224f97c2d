//! The guest's console on standard output.

use std::io::{ErrorKind, Write, stdout};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use satori_bus::ByteSink;

use crate::late::plain;

/// What a pipe takes without blocking once poll(2) said that it is writable (POSIX PIPE_BUF is
/// at least 512).
const PIECE: usize = 512;

/// Why nothing can be written any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The reader has gone.
    Reader,
    /// A write failed: what the host said.
    Failed(String),
}

/// What the rest of the program knows of the console.
#[derive(Debug, Default)]
pub struct Shared {
    /// Nobody reads any more, or the guest is to end: what comes is dropped.
    muted: AtomicBool,
    gone: OnceLock<Gone>,
    /// Who is told of that.
    wake: OnceLock<UnixStream>,
}

impl Shared {
    /// Drops output from now on, also output that waits for a reader at this moment.
    pub fn mute(&self) {
        self.muted.store(true, Ordering::Relaxed);
    }

    /// Why standard output takes nothing any more.
    pub fn gone(&self) -> Option<&Gone> {
        self.gone.get()
    }

    /// Why a console is not complete, if it is not. That its reader left is no failure.
    pub fn failure(&self) -> Option<String> {
        match self.gone()? {
            Gone::Failed(why) => Some(format!("standard output cannot be written ({why})")),
            Gone::Reader => None,
        }
    }

    /// A byte is sent to `wake` when standard output takes nothing any more.
    pub fn wake(&self, wake: UnixStream) {
        let _ = self.wake.set(wake);
    }

    fn end(&self, error: &std::io::Error) {
        let gone = match error.kind() {
            ErrorKind::BrokenPipe => Gone::Reader,
            _ => Gone::Failed(plain(error)),
        };
        let _ = self.gone.set(gone);
        self.mute();
        if let Some(mut wake) = self.wake.get() {
            let _ = wake.write(&[0]);
        }
    }
}

/// What ends a line of the guest's console on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Newlines {
    /// What the guest wrote: of Linux a carriage return and a line feed
    #[default]
    Raw,
    /// A line feed alone: carriage returns before it are left out
    Lf,
}

/// The sink that a serial port writes to.
#[derive(Debug, Clone, Default)]
pub struct Output {
    shared: Arc<Shared>,
    newlines: Newlines,
    /// Carriage returns that came last, with [`Newlines::Lf`].
    returns: usize,
}

impl Output {
    /// A sink that ends lines like this.
    pub fn new(newlines: Newlines) -> Self {
        Output { newlines, shared: Arc::default(), returns: 0 }
    }

    /// What the rest of the program knows of this console.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// `bytes` without carriage returns before line feeds, also where these come later.
    fn joined(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            match byte {
                b'\r' => self.returns += 1,
                _ => {
                    let returns = std::mem::take(&mut self.returns);
                    out.extend(std::iter::repeat_n(b'\r', if byte == b'\n' { 0 } else { returns }));
                    out.push(byte);
                }
            }
        }
        out
    }

    fn write(&self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            // A reader that does not read stops the guest's console, never our way out.
            loop {
                if self.shared.muted.load(Ordering::Relaxed) {
                    return;
                }
                if writable() {
                    break;
                }
            }
            let mut out = stdout().lock();
            if let Err(error) = out.write_all(piece).and_then(|()| out.flush())
                && error.kind() != ErrorKind::Interrupted
            {
                self.shared.end(&error);
            }
        }
    }
}

impl ByteSink for Output {
    fn put(&mut self, bytes: &[u8]) {
        match self.newlines {
            Newlines::Raw => self.write(bytes),
            Newlines::Lf => {
                let joined = self.joined(bytes);
                self.write(&joined);
            }
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let returns = std::mem::take(&mut self.returns);
        if returns > 0 {
            self.write(&b"\r".repeat(returns));
        }
    }
}

/// Waits a little for standard output to take something; an error counts, for the write to tell.
fn writable() -> bool {
    let out = stdout();
    let mut fds = [PollFd::new(&out, PollFlags::OUT)];
    let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    !matches!(poll(&mut fds, Some(&tenth)), Ok(0) | Err(rustix::io::Errno::INTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_before_a_line_feed_are_left_out_wherever_they_are_cut() {
        let mut output = Output::new(Newlines::Lf);
        let pieces: [&[u8]; 5] = [b"a\r\nb\r\r", b"\nc\r", b"d\n\r", b"\n", b"50%\r60%\r\n"];
        let joined: Vec<u8> = pieces.iter().flat_map(|piece| output.joined(piece)).collect();
        assert_eq!(String::from_utf8(joined).unwrap(), "a\nb\nc\rd\n\n50%\r60%\n");
        assert_eq!(output.returns, 0);
    }
}
