//! Output on COM1, and the end by isa-debug-exit.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use satori_defs::chipset::port;

use crate::insn;

/// How a guest ends: the value for isa-debug-exit. The monitor's status is twice that, plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Every check passed: status 1.
    Passed = 0,
    /// A check failed: status 3.
    Failed = 1,
    /// The guest itself is broken, or met an event that nobody expected: status 5.
    Broken = 2,
}

/// Ends the machine.
pub fn exit(how: Exit) -> ! {
    insn::out8(port::DEBUG_EXIT, how as u8);
    // Without the device: nothing more happens.
    loop {
        insn::cli();
        insn::hlt();
    }
}

/// COM1, without interrupts.
struct Com1;

/// One writer at a time, so that lines of several vCPUs stay whole.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Line status register: the transmitter can take a byte.
const TRANSMITTER_EMPTY: u8 = 1 << 5;

impl Write for Com1 {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            while insn::in8(port::COM1 + 5) & TRANSMITTER_EMPTY == 0 {}
            insn::out8(port::COM1, byte);
        }
        Ok(())
    }
}

/// Prints one line. [`println!`](crate::println) is the way to call it.
pub fn print_line(arguments: fmt::Arguments) {
    while BUSY.swap(true, Ordering::Acquire) {
        insn::pause();
    }
    let _ = Com1.write_fmt(arguments);
    let _ = Com1.write_str("\n");
    BUSY.store(false, Ordering::Release);
}

/// Whether someone panicked.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Called by a panic: opens the console, and tells whether there was a panic before.
pub(crate) fn silence() -> bool {
    BUSY.store(false, Ordering::Release);
    PANICKED.swap(true, Ordering::AcqRel)
}

/// Prints one line on COM1.
#[macro_export]
macro_rules! println {
    ($($arguments:tt)*) => { $crate::console::print_line(format_args!($($arguments)*)) };
}
