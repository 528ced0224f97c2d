//! What the guest's kernel does for a program, within one process.

use std::arch::asm;
use std::ffi::c_void;
use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{fail, noise};
use crate::measure::Meter;
use crate::sys::{self, Mapping, READ, SIGSEGV, SIGUSR1, Signal, WRITE};

const PAGE: usize = 4096;

pub fn getppid(m: &mut Meter) {
    let parent = sys::getppid();
    m.each(|| u64::from(sys::getppid() != parent));
}

/// The file of the rows, in the working directory, which is on tmpfs.
fn file() -> File {
    std::fs::write("data", noise(64 << 10))
        .and_then(|()| File::open("data"))
        .unwrap_or_else(|e| fail("data", &e))
}

pub fn stat(m: &mut Meter) {
    drop(file());
    m.each(|| std::fs::metadata("data").map_or(0, |m| m.len()));
}

pub fn pread(m: &mut Meter) {
    let (file, mut page) = (file(), [0u8; PAGE]);
    m.each(|| {
        let read = file.read_at(&mut page, 8192).unwrap_or(0);
        (read as u64) << 32 | u64::from(page[0]) << 8 | u64::from(page[PAGE - 1])
    });
}

pub fn fault(m: &mut Meter) {
    const PAGES: usize = 256;
    let area = Mapping::anonymous(PAGES * PAGE, READ | WRITE).unwrap_or_else(|e| fail("mmap", &e));
    let mut wrong = 0;
    m.batches(|n| {
        let rounds = n.div_ceil(PAGES as u64);
        for _ in 0..rounds {
            for page in 0..PAGES {
                wrong += u64::from(area.read(page * PAGE) != 0);
                area.write(page * PAGE, 1);
            }
            area.forget();
        }
        rounds * PAGES as u64
    });
    m.sum = Some(wrong);
}

pub fn mmap(m: &mut Meter) {
    m.each(|| u64::from(Mapping::plain(64 << 10).is_ok()));
}

static SEEN: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: Signal, _: *mut c_void, _: *mut c_void) {
    SEEN.fetch_add(1, Relaxed);
}

pub fn signal(m: &mut Meter) {
    sys::handle(SIGUSR1, count).unwrap_or_else(|e| fail("sigaction", &e));
    m.each(|| {
        let before = SEEN.load(Relaxed);
        sys::raise(SIGUSR1);
        SEEN.load(Relaxed) - before
    });
}

/// Bytes of `mov byte ptr [rdi], 1`.
const STORE: u64 = 3;

extern "C" fn skip_store(_: Signal, _: *mut c_void, context: *mut c_void) {
    SEEN.fetch_add(1, Relaxed);
    // SAFETY: this is the handler, and the only store that faults has that length.
    unsafe { sys::skip(context, STORE) };
}

pub fn segv(m: &mut Meter) {
    let forbidden = Mapping::anonymous(PAGE, READ).unwrap_or_else(|e| fail("mmap", &e));
    sys::handle(SIGSEGV, skip_store).unwrap_or_else(|e| fail("sigaction", &e));
    m.each(|| {
        let before = SEEN.load(Relaxed);
        // SAFETY: the page cannot be written; the handler continues behind the instruction.
        unsafe { asm!("mov byte ptr [rdi], 1", in("rdi") forbidden.start(), options(nostack)) };
        black_box(&forbidden);
        SEEN.load(Relaxed) - before
    });
}
