//! Bringing a vCPU out of KVM_RUN: a signal to its thread, from others' kicks and from a timer of its own.
//!
//! The signal's handler sets `immediate_exit` of the vCPU that its thread runs. So one that comes before the kernel is entered is
//! not lost, and the signal need not be blocked outside.

use std::cell::Cell;
use std::io;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering, fence};

thread_local! {
    /// `immediate_exit` of the vCPU that the thread runs; null while it runs none.
    static EXIT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
    /// The signal came since the thread looked last.
    static CAME: Cell<bool> = const { Cell::new(false) };
}

/// The signal, which nothing else here uses: the last of the real-time ones.
fn signal() -> libc::c_int {
    libc::SIGRTMAX()
}

extern "C" fn came(_signal: libc::c_int) {
    CAME.set(true);
    let exit = EXIT.get();
    if !exit.is_null() {
        // SAFETY: the thread has it point into the mapping of a vCPU only while it runs that.
        unsafe { exit.write_volatile(1) };
    }
}

/// Installs the signal's handler, once in the process. It has to be before a sandbox that forbids that.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let handler: extern "C" fn(libc::c_int) = came;
        // SAFETY: an all-zero sigaction is a valid one, and the handler does nothing but what a handler may do.
        let failed = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal(), &action, ptr::null_mut()) != 0
        };
        debug_assert!(!failed, "a real-time signal can be handled");
    });
}

/// The thread that is in a vCPU, for those who kick it; 0 while none is.
#[derive(Debug, Default)]
pub(crate) struct Inside(AtomicI32);

impl Inside {
    /// Brings the vCPU out if it is in.
    pub(crate) fn bring_out(&self) {
        let thread = self.0.load(Ordering::SeqCst);
        if thread != 0 {
            // SAFETY: a signal that is handled, to a thread of this process or to nobody.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal()) };
        }
    }

    /// The calling thread, number `thread`, runs the vCPU from now on whose `immediate_exit` is `exit`. Who kicks it later brings it
    /// out; who kicked it before has left the kick's flag, which is to be looked at next.
    pub(crate) fn enter(&self, thread: i32, exit: *mut u8) {
        // SAFETY: `exit` points into the mapping of the caller's vCPU.
        unsafe { exit.write_volatile(0) };
        EXIT.set(exit);
        self.0.store(thread, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// It runs it no more.
    pub(crate) fn leave(&self) {
        self.0.store(0, Ordering::SeqCst);
        EXIT.set(ptr::null_mut());
    }
}

/// Whether the signal came to this thread since this was asked last.
pub(crate) fn take_came() -> bool {
    CAME.replace(false)
}

/// A timer whose signal goes to one thread.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: libc::timer_t,
    /// The thread.
    pub(crate) thread: i32,
}

// SAFETY: a timer's number may be used by any thread.
unsafe impl Send for Alarm {}

impl Alarm {
    /// One for the calling thread, which from now on takes the signal.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no arguments; a number comes back.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        // SAFETY: the structures are valid, all-zero ones where nothing else is said, and outlive the calls.
        let (failed, timer) = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal());
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = thread;
            let mut timer: libc::timer_t = ptr::null_mut();
            (libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) != 0, timer)
        };
        if failed { Err(io::Error::last_os_error()) } else { Ok(Alarm { timer, thread }) }
    }

    /// Rings once, in `nanos` from now.
    pub(crate) fn set(&self, nanos: u64) {
        // A value of 0 would disarm it. An hour is as good as longer: who is woken early looks again.
        let nanos = nanos.clamp(1, 3_600_000_000_000);
        let value = libc::timespec {
            tv_sec: (nanos / 1_000_000_000) as libc::time_t,
            tv_nsec: (nanos % 1_000_000_000) as libc::c_long,
        };
        let interval = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: interval, it_value: value };
        // SAFETY: the timer is ours, and the structure valid.
        let failed = unsafe { libc::timer_settime(self.timer, 0, &spec, ptr::null_mut()) } != 0;
        debug_assert!(!failed, "the time is one");
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: the timer is ours, and nobody uses it any more.
        unsafe { libc::timer_delete(self.timer) };
    }
}
