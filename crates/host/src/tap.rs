//! Taps: network cards of the host's kernel whose cable a process holds (Documentation/networking/tuntap.rst).

use std::ffi::CString;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Requests of linux/if_tun.h.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;

const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const IFF_MULTI_QUEUE: u16 = 0x0100;

/// What a reader of frames can do itself.
pub const CSUM: u32 = 1;
/// TCP over IPv4 that was not cut.
pub const TSO4: u32 = 2;
/// TCP over IPv6 that was not cut.
pub const TSO6: u32 = 4;

/// Bytes of the header before each frame: virtio's own, with the number of buffers.
const HEADER: libc::c_int = 12;

/// `ifreq`, of which name and flags are used.
#[repr(C)]
struct Request {
    name: [u8; libc::IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

/// Opens the tap `name`, which is there, once for each of `queues`. Frames are read and written one by one, each behind a header of
/// virtio's, and nothing waits.
pub fn open(name: &str, queues: u16) -> Result<Vec<File>> {
    let mut request = Request { name: [0; libc::IFNAMSIZ], flags: 0, rest: [0; 22] };
    let there = CString::new(name).is_ok_and(|name| {
        // SAFETY: the name ends with a zero.
        unsafe { libc::if_nametoindex(name.as_ptr()) != 0 }
    });
    if name.len() >= libc::IFNAMSIZ || !there {
        return Err(Error::from(ErrorKind::NotFound));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let several = if queues > 1 { IFF_MULTI_QUEUE } else { 0 };
    request.flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | several;
    let header = HEADER;
    let one = || {
        let mut options = File::options();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        // SAFETY: the kernel reads an ifreq and writes none beyond it, and reads a number.
        let done = unsafe {
            libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw const request) == 0
                && libc::ioctl(file.as_raw_fd(), TUNSETVNETHDRSZ, &raw const header) == 0
        };
        if done { Ok(file) } else { Err(Error::last_os_error()) }
    };
    (0..queues).map(|_| one()).collect()
}

/// Says what the reader of frames can do itself, of [`CSUM`], [`TSO4`] and [`TSO6`].
pub fn offload(queue: &File, what: u32) -> Result<()> {
    // SAFETY: the argument is a number.
    match unsafe { libc::ioctl(queue.as_raw_fd(), TUNSETOFFLOAD, libc::c_ulong::from(what)) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_tap_that_is_not_there_is_not_made() {
        for name in ["", "no-such-tap", "../lo", "a-name-that-is-too-long"] {
            assert_eq!(super::open(name, 1).unwrap_err().kind(), std::io::ErrorKind::NotFound, "{name}");
        }
    }
}
