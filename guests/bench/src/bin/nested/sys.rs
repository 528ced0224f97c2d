//! The system calls and C functions that std does not offer, behind safe faces.

use std::ffi::{CStr, c_char, c_int, c_long, c_ulong, c_void};
use std::io::{Error, Result};
use std::ptr::{null, null_mut};

const SYS_INIT_MODULE: c_long = 175;

#[repr(C)]
#[derive(Default)]
struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    #[link_name = "mount"]
    fn c_mount(
        source: *const c_char,
        target: *const c_char,
        kind: *const c_char,
        flags: c_ulong,
        data: *const c_void,
    ) -> c_int;
    fn reboot(how: c_int) -> c_int;
    fn klogctl(what: c_int, buffer: *mut c_char, length: c_int) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int;
    fn munmap(at: *mut c_void, length: usize) -> c_int;
    fn mmap(
        at: *mut c_void,
        length: usize,
        rights: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
}

/// The number of this process's parent, by a system call.
pub fn parent() -> i64 {
    const SYS_GETPPID: c_long = 110;
    // SAFETY: it takes no argument.
    unsafe { syscall(SYS_GETPPID) }
}

/// Lets this process access all ports.
pub fn open_ports() -> Result<()> {
    const SYS_IOPL: c_long = 172;
    // SAFETY: it takes a number.
    check(unsafe { syscall(SYS_IOPL, 3) }).map(drop)
}

/// OUT, for which [`open_ports`] was called; a fault that ends the process otherwise.
pub fn port_write(port: u16, byte: u8) {
    // SAFETY: no device of this machine writes to memory by itself.
    unsafe { std::arch::asm!("out dx, al", in("dx") port, in("al") byte, options(nomem, nostack)) };
}

/// Takes so many pages, writes to each, and gives them back.
pub fn touch_anew(pages: usize) {
    let Ok(memory) = memory(None, pages * 4096) else { return };
    for page in memory.chunks_mut(4096) {
        page[0] = 1;
    }
    let (at, length) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: nobody else has the mapping, and `memory` is not used any more.
    unsafe { munmap(at.cast(), length) };
}

fn check(result: c_long) -> Result<c_long> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// Mounts the file system `kind`.
pub fn mount(kind: &CStr, target: &CStr) -> Result<()> {
    // SAFETY: the strings end with a null; there are no data.
    let done = unsafe { c_mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, null()) };
    check(done.into()).map(drop)
}

/// Ends the machine.
pub fn power_off() -> ! {
    const RB_POWER_OFF: u32 = 0x4321_fedc;
    const RB_AUTOBOOT: u32 = 0x0123_4567;
    loop {
        for how in [RB_POWER_OFF, RB_AUTOBOOT] {
            // SAFETY: the call takes a number.
            unsafe { reboot(how as c_int) };
        }
    }
}

/// Loads a module of the kernel, without parameters.
pub fn load_module(bytes: &[u8]) -> Result<()> {
    // SAFETY: the kernel reads the bytes and a string that ends.
    check(unsafe { syscall(SYS_INIT_MODULE, bytes.as_ptr(), bytes.len(), c"".as_ptr()) }).map(drop)
}

/// What the kernel has said.
pub fn kernel_log() -> String {
    const READ_ALL: c_int = 3;
    let mut log = vec![0_u8; 1 << 18];
    // SAFETY: the buffer is as long as is said.
    let length = unsafe { klogctl(READ_ALL, log.as_mut_ptr().cast(), log.len() as c_int) };
    log.truncate(length.max(0) as usize);
    String::from_utf8_lossy(&log).into_owned()
}

fn clock(which: c_int) -> u64 {
    let mut time = Timespec::default();
    // SAFETY: `time` is written within the call only.
    unsafe { clock_gettime(which, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

/// CLOCK_REALTIME in nanoseconds.
pub fn realtime() -> u64 {
    clock(0)
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic() -> u64 {
    clock(1)
}

/// An ioctl(2) with a number or an address of what lasts until it returns.
///
/// # Safety
/// `argument` is what the kernel expects of `request`.
pub unsafe fn ioctl(fd: c_int, request: u64, argument: usize) -> Result<c_long> {
    const SYS_IOCTL: c_long = 16;
    // SAFETY: by the contract.
    check(unsafe { syscall(SYS_IOCTL, c_long::from(fd), request, argument) })
}

/// Memory that stays until the process ends: of `fd`, or of nobody's file.
pub fn memory(fd: Option<c_int>, length: usize) -> Result<&'static mut [u8]> {
    const READ_WRITE: c_int = 3;
    let flags = if fd.is_some() { 1 } else { 0x22 };
    // SAFETY: a new mapping, wherever the kernel likes.
    let at = unsafe { mmap(null_mut(), length, READ_WRITE, flags, fd.unwrap_or(-1), 0) };
    if at.addr() == usize::MAX {
        return Err(Error::last_os_error());
    }
    // SAFETY: it is that long and never given back. That a guest changes it meanwhile is what its readers, who copy, expect.
    Ok(unsafe { std::slice::from_raw_parts_mut(at.cast(), length) })
}
