//! What a guest's init does so that there are devices to measure, and requests of several blocks at once.

use std::ffi::{CStr, c_int, c_long, c_ulong};
use std::fs::File;
use std::io::{Error, Result};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use super::{Mapping, c_mount, check, syscall};

const SYS_IO_SETUP: c_long = 206;
const SYS_IO_GETEVENTS: c_long = 208;
const SYS_IO_SUBMIT: c_long = 209;
const SYS_FINIT_MODULE: c_long = 313;
/// MODULE_INIT_COMPRESSED_FILE.
const COMPRESSED: c_int = 4;

const SIOCSIFFLAGS: c_ulong = 0x8914;
const SIOCSIFADDR: c_ulong = 0x8916;
const SIOCSIFNETMASK: c_ulong = 0x891c;
/// IFF_UP | IFF_RUNNING.
const UP: u16 = 0x41;
const AF_INET: u16 = 2;

/// `struct ifreq`: the interface's name, and an address or flags.
#[repr(C)]
struct Request {
    name: [u8; 16],
    what: [u8; 24],
}

/// `struct iocb` of a read.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Block {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    notify: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Event {
    data: u64,
    block: u64,
    result: i64,
    second: i64,
}

unsafe extern "C" {
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
}

/// Loads a module of the kernel; one that is there already is no mistake.
pub fn load_module(file: &File, compressed: bool) -> Result<()> {
    let flags = if compressed { COMPRESSED } else { 0 };
    // SAFETY: the parameters are a string that ends with a null; the others are numbers.
    if unsafe { syscall(SYS_FINIT_MODULE, c_long::from(file.as_raw_fd()), c"".as_ptr(), flags) } == 0 {
        return Ok(());
    }
    match Error::last_os_error() {
        there if there.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => Err(other),
    }
}

/// Mounts what a device or a tag holds.
pub fn mount_from(source: &CStr, kind: &CStr, target: &CStr, data: &CStr) -> Result<()> {
    // SAFETY: all four are strings that end with a null, and are read within the call only.
    check(unsafe { c_mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, data.as_ptr().cast()) })?;
    Ok(())
}

/// Gives a network interface an address in a network of 24 bits, and switches it on.
pub fn network(name: &str, address: Ipv4Addr) -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let mut request = Request { name: [0; 16], what: [0; 24] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let mut ask = |code: c_ulong, kind: u16, value: [u8; 4]| {
        request.what[..2].copy_from_slice(&kind.to_ne_bytes());
        request.what[4..8].copy_from_slice(&value);
        // SAFETY: the kernel reads a whole `ifreq`, which lives until the call comes back.
        check(unsafe { ioctl(socket.as_raw_fd(), code, &raw const request) }).map(drop)
    };
    ask(SIOCSIFADDR, AF_INET, address.octets())?;
    ask(SIOCSIFNETMASK, AF_INET, [255, 255, 255, 0])?;
    ask(SIOCSIFFLAGS, UP, [0; 4])
}

/// Reads that are under way at the same time (io_submit(2)).
pub struct Reads<'a> {
    context: u64,
    file: &'a File,
    buffer: &'a Mapping,
    size: usize,
}

impl<'a> Reads<'a> {
    /// At most `count` reads of `size` bytes each; `buffer` has room for all of them.
    pub fn new(file: &'a File, buffer: &'a Mapping, size: usize, count: usize) -> Result<Self> {
        assert!(size * count <= buffer.length);
        let mut context = 0_u64;
        // SAFETY: the kernel writes the context's number within the call only.
        if unsafe { syscall(SYS_IO_SETUP, count as c_long, &raw mut context) } < 0 {
            return Err(Error::last_os_error());
        }
        Ok(Reads { context, file, buffer, size })
    }

    /// Reads at these offsets, the first into the buffer's beginning, and waits for all.
    pub fn perform(&self, offsets: &[u64]) -> Result<()> {
        assert!(offsets.len() * self.size <= self.buffer.length);
        let at = |place: usize| self.buffer.start() as u64 + (place * self.size) as u64;
        let blocks: Vec<_> = offsets
            .iter()
            .enumerate()
            .map(|(place, offset)| Block {
                file: self.file.as_raw_fd() as u32,
                buffer: at(place),
                bytes: self.size as u64,
                offset: *offset as i64,
                ..Block::default()
            })
            .collect();
        let pointers: Vec<_> = blocks.iter().map(|block| block as *const Block).collect();
        let mut events = vec![Event::default(); blocks.len()];
        let mut sent = 0;
        while sent < blocks.len() {
            let rest = &pointers[sent..];
            // SAFETY: blocks and buffer live until all events have come, which is waited for below.
            match unsafe { syscall(SYS_IO_SUBMIT, self.context, rest.len() as c_long, rest.as_ptr()) } {
                count @ 1.. => sent += count as usize,
                _ => return Err(Error::last_os_error()),
            }
        }
        let mut came = 0;
        while came < events.len() {
            let rest = &mut events[came..];
            let most = rest.len() as c_long;
            // SAFETY: there is room for as many events as are asked for; without a timeout it waits.
            let count = unsafe {
                syscall(SYS_IO_GETEVENTS, self.context, most, most, rest.as_mut_ptr(), null_mut::<u8>())
            };
            match count {
                1.. => came += count as usize,
                _ => return Err(Error::last_os_error()),
            }
        }
        match events.iter().find(|event| event.result != self.size as i64) {
            Some(event) => Err(Error::other(format!("a read came to {}", event.result))),
            None => Ok(()),
        }
    }
}
