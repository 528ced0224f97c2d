//! Cases, checks, the summary, and the guest's start.

use core::cell::UnsafeCell;
use core::fmt::Debug;
use core::str::SplitAsciiWhitespace;
use core::sync::atomic::Ordering;

use satori_defs::xen::start_info;

use crate::console::{Exit, exit};
use crate::cpu::{self, Cpu};
use crate::subject::{ANY_RF, Event, Expect};
use crate::{println, smp};

/// One case of a guest: its name, and what it does.
pub type Case = (&'static str, fn(&mut Test));

/// The running count of checks, and the name of the case that makes them.
pub struct Test {
    case: &'static str,
    passed: u32,
    failed: u32,
}

/// After so many lines of failures of a case the rest is only counted.
const LINES: u32 = 20;

impl Test {
    /// Counts a check; `tell` prints what was wrong.
    fn count(&mut self, good: bool, tell: impl FnOnce(&str)) {
        if good {
            self.passed += 1;
        } else {
            self.failed += 1;
            if self.failed <= LINES {
                tell(self.case);
            }
        }
    }

    /// `got` should be `want`.
    #[track_caller]
    pub fn eq<T: PartialEq + Debug>(&mut self, what: impl Debug, got: T, want: T) {
        self.count(got == want, |case| println!("FAIL {case} {what:x?}: {got:x?} instead of {want:x?}"));
    }

    /// `fact` should hold.
    pub fn holds(&mut self, what: impl Debug, fact: bool) {
        self.count(fact, |case| println!("FAIL {case} {what:x?}"));
    }

    /// `event` should be as expected.
    pub fn event(&mut self, what: impl Debug, event: &Event, expect: Expect) {
        self.count(expect.met_by(event), |case| {
            println!("FAIL {case} {what:x?}: {event} instead of {expect}");
        });
    }
}

/// The command line, copied from where the loader left it.
struct CommandLine {
    bytes: [u8; 1024],
    length: usize,
}

impl CommandLine {
    fn words(&self) -> SplitAsciiWhitespace<'_> {
        str::from_utf8(&self.bytes[..self.length]).unwrap_or_default().split_ascii_whitespace()
    }
}

/// The command line, once the guest has started.
struct Line(UnsafeCell<CommandLine>);

// SAFETY: written once, before any other vCPU runs.
unsafe impl Sync for Line {}

static LINE: Line = Line(UnsafeCell::new(CommandLine { bytes: [0; 1024], length: 0 }));

/// The value of `name=` on the command line.
pub fn option(name: &str) -> Option<&'static str> {
    // SAFETY: nobody writes after the start.
    let line = unsafe { &*LINE.0.get() };
    line.words().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

unsafe extern "C" {
    static boot_magic: u32;
    static boot_info: u32;
}

/// EAX at a multiboot entry.
const MULTIBOOT: u32 = 0x2bad_b002;
/// Offset of the command line's address in multiboot's information.
const MULTIBOOT_CMDLINE: u64 = 16;

fn command_line() -> CommandLine {
    let mut line = CommandLine { bytes: [0; 1024], length: 0 };
    // SAFETY: the entry stored them; the loader's structures are still whole.
    unsafe {
        let info = u64::from(boot_info);
        let text = if boot_magic == MULTIBOOT {
            u64::from(((info + MULTIBOOT_CMDLINE) as *const u32).read_volatile())
        } else if (info as *const u32).read_volatile() == start_info::MAGIC_VALUE {
            ((info + start_info::CMDLINE_PADDR as u64) as *const u64).read_volatile()
        } else {
            0
        };
        while text != 0 && line.length < line.bytes.len() {
            let byte = ((text + line.length as u64) as *const u8).read_volatile();
            if byte == 0 {
                break;
            }
            line.bytes[line.length] = byte;
            line.length += 1;
        }
    }
    line
}

unsafe extern "Rust" {
    safe static GUEST: (&'static str, &'static [Case]);
}

/// Called by the entry on every vCPU with its number.
#[unsafe(no_mangle)]
extern "C" fn rust_start(number: usize) -> ! {
    if number > 0 {
        smp::arrive(number);
    }
    // SAFETY: no other vCPU runs yet.
    unsafe { LINE.0.get().write(command_line()) };
    cpu::mask_pics();
    Cpu::set_up(0);
    let cpus = option("cpus").and_then(|count| count.parse().ok()).unwrap_or(1);
    smp::start(cpus);
    ANY_RF.store(option("rf") == Some("any"), Ordering::Relaxed);
    let only = option("only");
    let (guest, cases) = GUEST;
    let (mut passed, mut failed) = (0, 0);
    for &(name, run) in cases {
        if only.is_some_and(|only| only != name) {
            continue;
        }
        let mut test = Test { case: name, passed: 0, failed: 0 };
        run(&mut test);
        if test.passed + test.failed == 0 {
            println!("FAIL {name}: it checked nothing");
            test.failed = 1;
        }
        if test.failed > LINES {
            println!("FAIL {name}: {} checks more", test.failed - LINES);
        }
        passed += test.passed;
        failed += test.failed;
    }
    println!("{guest}: {passed} passed, {failed} failed");
    exit(if failed == 0 && passed > 0 { Exit::Passed } else { Exit::Failed })
}

/// Names the guest and its cases: `guest!("exceptions", divide, debug)`.
#[macro_export]
macro_rules! guest {
    ($name:literal, $($case:ident),+ $(,)?) => {
        #[unsafe(no_mangle)]
        static GUEST: (&str, &[$crate::Case]) = ($name, &[$((stringify!($case), $case)),+]);
    };
}
