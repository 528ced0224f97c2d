//! The C library's functions that std does not offer, behind safe faces.

pub mod devices;

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::io::{Error, Result};
use std::ptr::{null, null_mut};

/// A signal's number.
pub type Signal = c_int;
pub const SIGSEGV: Signal = 11;
pub const SIGUSR1: Signal = 10;
pub const SIGUSR2: Signal = 12;
pub const SIGALRM: Signal = 14;
const SIGKILL: Signal = 9;
const SA_SIGINFO: c_int = 4;

const SYS_GETPPID: c_long = 110;
const SYS_GETTID: c_long = 186;
const SYS_TGKILL: c_long = 234;
const SYS_FUTEX: c_long = 202;
const SYS_MEMBARRIER: c_long = 324;
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;
const FUTEX_WAIT_PRIVATE: c_int = 128;
const FUTEX_WAKE_PRIVATE: c_int = 129;

pub const READ: c_int = 1;
pub const WRITE: c_int = 2;
pub const EXECUTE: c_int = 4;
const MAP_SHARED: c_int = 1;
const MAP_PRIVATE: c_int = 2;
const MAP_ANONYMOUS: c_int = 0x20;
const MADV_DONTNEED: c_int = 4;
const MADV_NOHUGEPAGE: c_int = 15;

const CLOCK_MONOTONIC: c_int = 1;
const TIMER_ABSTIME: c_int = 1;

/// `struct timespec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

impl Timespec {
    fn from_ns(ns: u64) -> Self {
        Timespec { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as i64 }
    }
}

/// glibc's `struct sigaction`.
#[repr(C)]
struct SigAction {
    handler: usize,
    mask: [c_ulong; 16],
    flags: c_int,
    restorer: usize,
}

/// `struct sigevent`, as far as a timer needs it.
#[repr(C)]
struct SigEvent {
    value: usize,
    signal: c_int,
    notify: c_int,
    padding: [u64; 6],
}

#[repr(C)]
struct TimerSpec {
    interval: Timespec,
    value: Timespec,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    #[link_name = "fork"]
    fn c_fork() -> c_int;
    fn _exit(status: c_int) -> !;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    #[link_name = "mmap"]
    fn c_mmap(
        at: *mut c_void,
        length: usize,
        rights: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn setpgid(pid: c_int, group: c_int) -> c_int;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn prctl(option: c_int, ...) -> c_int;
    fn munmap(at: *mut c_void, length: usize) -> c_int;
    fn madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int;
    fn sigaction(signal: c_int, new: *const SigAction, old: *mut SigAction) -> c_int;
    #[link_name = "clock_gettime"]
    fn c_clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn clock_nanosleep(clock: c_int, flags: c_int, time: *const Timespec, remaining: *mut Timespec) -> c_int;
    fn timer_create(clock: c_int, event: *mut SigEvent, timer: *mut usize) -> c_int;
    fn timer_settime(timer: usize, flags: c_int, new: *const TimerSpec, old: *mut TimerSpec) -> c_int;
    fn sched_setaffinity(pid: c_int, size: usize, mask: *const u64) -> c_int;
    fn sched_getaffinity(pid: c_int, size: usize, mask: *mut u64) -> c_int;
    #[link_name = "mount"]
    fn c_mount(
        source: *const c_char,
        target: *const c_char,
        kind: *const c_char,
        flags: c_ulong,
        data: *const c_void,
    ) -> c_int;
    #[link_name = "reboot"]
    fn c_reboot(how: c_int) -> c_int;
    #[link_name = "alarm"]
    fn c_alarm(seconds: u32) -> u32;
}

fn check(result: c_int) -> Result<c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// getppid(2), without the C library's wrapper.
pub fn getppid() -> u64 {
    // SAFETY: the call takes no arguments and touches no memory.
    unsafe { syscall(SYS_GETPPID) as u64 }
}

/// Sends `signal` to the calling thread.
pub fn raise(signal: Signal) {
    // SAFETY: the calls take numbers only; what the handler does is its own matter.
    unsafe { syscall(SYS_TGKILL, std::process::id() as c_long, syscall(SYS_GETTID), signal as c_long) };
}

/// Waits while `word` holds `value`.
pub fn futex_wait(word: &std::sync::atomic::AtomicU32, value: u32) {
    // SAFETY: the word outlives the call, and there is no timeout to read.
    unsafe { syscall(SYS_FUTEX, word.as_ptr(), FUTEX_WAIT_PRIVATE, value, null::<Timespec>()) };
}

/// Wakes one that waits at `word`.
pub fn futex_wake(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: the kernel only takes the word's address.
    unsafe { syscall(SYS_FUTEX, word.as_ptr(), FUTEX_WAKE_PRIVATE, 1) };
}

/// Which side of a fork this is.
pub enum Forked {
    /// The new process.
    Child,
    /// The old one, with the number of the new one.
    Parent(i32),
}

/// fork(2). The caller must have no other threads that the child would miss.
pub fn fork() -> Result<Forked> {
    // SAFETY: this program forks only while it has one thread, so no lock is held by another.
    match check(unsafe { c_fork() })? {
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent(pid)),
    }
}

/// _exit(2).
pub fn exit(status: i32) -> ! {
    // SAFETY: nothing of the process is used afterwards.
    unsafe { _exit(status) }
}

/// Waits for a child; the status as waitpid(2) has it.
pub fn wait(pid: i32) -> Result<i32> {
    let mut status = 0;
    // SAFETY: `status` is written within the call only.
    check(unsafe { waitpid(pid, &mut status, 0) })?;
    Ok(status)
}

/// Puts the calling process into a group of its own, and lets it end when its parent does.
pub fn begin_group() {
    const PR_SET_PDEATHSIG: c_int = 1;
    // SAFETY: the calls take numbers.
    unsafe {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL as c_ulong);
    }
}

/// Ends what is left of the group that process `pid` began.
pub fn end_group(pid: i32) {
    // SAFETY: the call takes numbers; a group that is no more is no harm.
    unsafe { kill(-pid, SIGKILL) };
}

/// execve(2) with no environment; comes back only if it fails.
pub fn exec(path: &CStr, arguments: &[&CStr]) -> Error {
    let mut argv: Vec<*const c_char> = arguments.iter().map(|a| a.as_ptr()).collect();
    argv.push(null());
    let envp = [null()];
    // SAFETY: all strings and both arrays end with a null and live until the call comes back.
    unsafe { execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    Error::last_os_error()
}

/// A mapping that goes away with its value.
pub struct Mapping {
    at: *mut u8,
    length: usize,
}

impl Mapping {
    /// Private anonymous memory in pages of 4 KiB.
    pub fn anonymous(length: usize, rights: c_int) -> Result<Self> {
        let mapping = Self::map(length, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)?;
        // SAFETY: the range is the mapping's. A kernel without huge pages answers EINVAL, which is fine.
        unsafe { madvise(mapping.at.cast(), length, MADV_NOHUGEPAGE) };
        Ok(mapping)
    }

    /// Private anonymous memory, without a word on huge pages: one system call.
    pub fn plain(length: usize) -> Result<Self> {
        Self::map(length, READ | WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    }

    /// A part of a file, shared, to read.
    pub fn shared(file: &std::fs::File, offset: i64, length: usize) -> Result<Self> {
        use std::os::fd::AsRawFd;
        Self::map(length, READ, MAP_SHARED, file.as_raw_fd(), offset)
    }

    fn map(length: usize, rights: c_int, flags: c_int, fd: c_int, offset: i64) -> Result<Self> {
        // SAFETY: without MAP_FIXED no existing mapping is touched.
        let at = unsafe { c_mmap(null_mut(), length, rights, flags, fd, offset) };
        if at as isize == -1 { Err(Error::last_os_error()) } else { Ok(Mapping { at: at.cast(), length }) }
    }

    /// Where it begins.
    pub fn start(&self) -> *mut u8 {
        self.at
    }

    /// Gives the pages back; the next access finds zeros.
    pub fn forget(&self) {
        // SAFETY: the range is the mapping's, and nobody holds a reference into it.
        unsafe { madvise(self.at.cast(), self.length, MADV_DONTNEED) };
    }

    /// Writes a byte, as an access that the compiler may not move or drop.
    pub fn write(&self, offset: usize, value: u8) {
        assert!(offset < self.length);
        // SAFETY: within the mapping.
        unsafe { self.at.add(offset).write_volatile(value) };
    }

    /// Reads a byte, as an access that the compiler may not move or drop.
    pub fn read(&self, offset: usize) -> u8 {
        assert!(offset < self.length);
        // SAFETY: within the mapping.
        unsafe { self.at.add(offset).read_volatile() }
    }

    /// All of it, which must be readable and writable.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the range is the mapping's, whose memory holds some value, and nobody else has it meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.length) }
    }

    /// Copies `bytes` to `offset`.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.length && bytes.len() <= self.length - offset);
        // SAFETY: within the mapping, which no reference covers.
        unsafe { self.at.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Calls the code at `offset`, a function without arguments.
    ///
    /// # Safety
    /// There must be such a function, and the mapping must be executable.
    pub unsafe fn call(&self, offset: usize) -> u64 {
        assert!(offset < self.length);
        // SAFETY: the caller vouches for the code.
        let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(self.at.add(offset)) };
        function()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping's, and nobody holds a reference into it.
        unsafe { munmap(self.at.cast(), self.length) };
    }
}

/// A handler: signal, `siginfo_t`, `ucontext_t`.
pub type Handler = extern "C" fn(Signal, *mut c_void, *mut c_void);

/// Where `ucontext_t` holds RIP: behind flags, link and stack the registers, of which it is the 17th.
const UCONTEXT_RIP: usize = 40 + 16 * 8;

/// Lets the interrupted program go on `length` bytes behind the instruction at which it was.
///
/// # Safety
/// `context` must be what a handler was given.
pub unsafe fn skip(context: *mut c_void, length: u64) {
    // SAFETY: the kernel's context is there and writable while the handler runs.
    let rip = unsafe { &mut *context.cast::<u8>().add(UCONTEXT_RIP).cast::<u64>() };
    *rip += length;
}

/// Installs `handler` for `signal`.
pub fn handle(signal: Signal, handler: Handler) -> Result<()> {
    let action = SigAction { handler: handler as usize, mask: [0; 16], flags: SA_SIGINFO, restorer: 0 };
    // SAFETY: the structure is glibc's, and the handler has the signature that SA_SIGINFO asks for.
    check(unsafe { sigaction(signal, &action, null_mut()) })?;
    Ok(())
}

/// clock_gettime(CLOCK_MONOTONIC) in nanoseconds.
pub fn now() -> u64 {
    let mut time = Timespec::default();
    // SAFETY: `time` is written within the call only.
    unsafe { c_clock_gettime(CLOCK_MONOTONIC, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

/// The frequency of the time-stamp counter, by the clock of [`now`].
pub fn tsc_khz() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and no system here forbids it.
    let counter = || unsafe { std::arch::x86_64::_rdtsc() };
    let (start, first) = (now(), counter());
    while now() - start < 50_000_000 {}
    let (end, last) = (now(), counter());
    last.wrapping_sub(first) * 1_000_000 / (end - start)
}

/// Sleeps until the clock of [`now`] shows `ns`.
pub fn sleep_until(ns: u64) {
    let time = Timespec::from_ns(ns);
    // SAFETY: `time` is read within the call only; an absolute sleep has no remainder.
    unsafe { clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, null_mut()) };
}

/// A timer that sends a signal.
pub struct Timer(usize);

impl Timer {
    /// A timer of the clock of [`now`].
    pub fn new(signal: Signal) -> Result<Self> {
        let mut event = SigEvent { value: 0, signal, notify: 0, padding: [0; 6] };
        let mut timer = 0;
        // SAFETY: both are written or read within the call only.
        check(unsafe { timer_create(CLOCK_MONOTONIC, &mut event, &mut timer) })?;
        Ok(Timer(timer))
    }

    /// Lets it expire when the clock shows `ns`.
    pub fn arm(&self, ns: u64) {
        let spec = TimerSpec { interval: Timespec::default(), value: Timespec::from_ns(ns) };
        // SAFETY: `spec` is read within the call only.
        unsafe { timer_settime(self.0, TIMER_ABSTIME, &spec, null_mut()) };
    }
}

/// Keeps the calling thread, and those that it makes, on the first `count` of the processors that it
/// has; tells how many these are.
pub fn keep_to(count: u32) -> u32 {
    let (mut had, mut kept) = ([0u64; 16], [0u64; 16]);
    // SAFETY: the mask is as long as is said.
    unsafe { sched_getaffinity(0, size_of_val(&had), had.as_mut_ptr()) };
    let mut left = count;
    for cpu in (0..1024).filter(|cpu| had[cpu / 64] >> (cpu % 64) & 1 == 1) {
        if left > 0 {
            kept[cpu / 64] |= 1 << (cpu % 64);
            left -= 1;
        }
    }
    // SAFETY: as above.
    unsafe { sched_setaffinity(0, size_of_val(&kept), kept.as_ptr()) };
    count - left
}

/// Keeps the calling thread on the processor that is number `index` of those that it has.
pub fn move_to(index: usize) {
    let mut had = [0u64; 16];
    // SAFETY: the mask is as long as is said.
    unsafe { sched_getaffinity(0, size_of_val(&had), had.as_mut_ptr()) };
    if let Some(cpu) = (0..1024).filter(|cpu| had[cpu / 64] >> (cpu % 64) & 1 == 1).nth(index) {
        let mut mask = [0u64; 16];
        mask[cpu / 64] = 1 << (cpu % 64);
        // SAFETY: as above.
        unsafe { sched_setaffinity(0, size_of_val(&mask), mask.as_ptr()) };
    }
}

/// Interrupts each processor that runs another thread of this process, and waits until all have answered; or
/// asks to be allowed that.
pub fn membarrier(register: bool) -> Result<()> {
    let command = match register {
        true => MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
        false => MEMBARRIER_CMD_PRIVATE_EXPEDITED,
    };
    // SAFETY: the call takes numbers.
    if unsafe { syscall(SYS_MEMBARRIER, command, 0, 0) } < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Mounts a file system without a device.
pub fn mount(kind: &CStr, target: &CStr) -> Result<()> {
    // SAFETY: the strings end with a null; there are no data.
    check(unsafe { c_mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, null()) })?;
    Ok(())
}

/// Ends the machine: by switching it off, or by a reset.
pub fn end_machine(reset: bool) {
    // RB_POWER_OFF and RB_AUTOBOOT.
    let how: u32 = if reset { 0x0123_4567 } else { 0x4321_fedc };
    // SAFETY: the call takes a number.
    unsafe { c_reboot(how as c_int) };
}

/// SIGALRM after so many seconds, which ends a process that does not handle it.
pub fn alarm(seconds: u32) {
    // SAFETY: the call takes a number.
    unsafe { c_alarm(seconds) };
}
