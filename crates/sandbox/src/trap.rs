//! The end of a process that made a system call which is not permitted.

use std::sync::OnceLock;

use crate::sys;

static FAREWELL: OnceLock<(i32, fn())> = OnceLock::new();

/// From now on SIGSYS ends the process with `status`, after `farewell`. The signal has no other way to
/// find them than a static, which is set once.
pub(crate) fn install(status: i32, farewell: fn()) {
    let _ = FAREWELL.set((status, farewell));
    sys::on_sigsys(caught);
}

extern "C" fn caught(_signal: libc::c_int, info: *const libc::siginfo_t, _context: *const libc::c_void) {
    let (status, farewell) = FAREWELL.get().copied().unwrap_or((125, || {}));
    farewell();
    let call = sys::trapped_call(info);
    let name =
        usize::try_from(call).ok().and_then(syscalls::Sysno::new).map_or("unknown", |call| call.name());
    let mut line = Line { bytes: [0; 200], length: 0 };
    line.put(b"\nsatori: internal error, please report it: the sandbox does not permit the system call ");
    line.put(name.as_bytes());
    line.put(b" (");
    line.number(call.unsigned_abs());
    line.put(b"); --sandbox off runs without it\n");
    sys::last_words(&line.bytes[..line.length], status)
}

/// Text without an allocator: the signal may have come in the middle of it.
struct Line {
    bytes: [u8; 200],
    length: usize,
}

impl Line {
    fn put(&mut self, text: &[u8]) {
        for &byte in text {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = byte;
                self.length += 1;
            }
        }
    }

    fn number(&mut self, number: u32) {
        if number >= 10 {
            self.number(number / 10);
        }
        self.put(&[b'0' + (number % 10) as u8]);
    }
}
