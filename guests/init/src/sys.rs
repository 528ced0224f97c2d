//! The C library's functions that std does not offer, behind safe faces.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io::{Error, Result};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const SYS_FINIT_MODULE: c_long = 313;
/// MODULE_INIT_COMPRESSED_FILE.
const COMPRESSED: c_int = 4;

const MS_RDONLY: c_ulong = 1;
const MS_NOSUID: c_ulong = 2;
const MS_NODEV: c_ulong = 4;
const MS_BIND: c_ulong = 4096;
const MS_MOVE: c_ulong = 8192;

const S_IFCHR: c_uint = 0o020_000;
const S_IFBLK: c_uint = 0o060_000;

const CLOCK_REALTIME: c_int = 0;
const RB_POWER_OFF: c_int = 0x4321_fedc;
const SIGKILL: c_int = 9;

const AF_INET: c_int = 2;
const SOCK_DGRAM: c_int = 2;
const SIOCGIFFLAGS: c_ulong = 0x8913;
const SIOCSIFFLAGS: c_ulong = 0x8914;
const IFF_UP: i16 = 1;
const SIOCADDRT: c_ulong = 0x890b;
const SIOCSIFADDR: c_ulong = 0x8916;
const SIOCSIFNETMASK: c_ulong = 0x891c;
/// RTF_UP and RTF_GATEWAY.
const ROUTE_FLAGS: u16 = 3;

const TIOCSCTTY: c_ulong = 0x540e;
const TIOCSWINSZ: c_ulong = 0x5414;
const TIOCGPTPEER: c_ulong = 0x5441;
const TIOCSPTLCK: c_ulong = 0x4004_5431;
const O_RDWR: c_int = 2;
const O_NOCTTY: c_int = 0o400;
const O_CLOEXEC: c_int = 0o2_000_000;

const POLLIN: i16 = 1;
const POLLOUT: i16 = 4;
const POLLHUP: i16 = 0x10;

const F_SETFL: c_int = 4;
const O_NONBLOCK: c_int = 0o4000;

/// `struct pollfd`.
#[repr(C)]
struct PollFd {
    fd: c_int,
    events: i16,
    revents: i16,
}

/// `struct winsize`.
#[repr(C)]
struct Size {
    rows: u16,
    columns: u16,
    pixels: [u16; 2],
}

/// `struct sockaddr_in`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Address {
    family: u16,
    port: u16,
    address: [u8; 4],
    rest: [u8; 8],
}

/// `struct ifreq`, with an address.
#[repr(C)]
struct Addressed {
    name: [u8; 16],
    address: Address,
    rest: [u8; 8],
}

/// `struct rtentry` (linux/route.h).
#[repr(C)]
struct Route {
    pad1: c_ulong,
    destination: Address,
    gateway: Address,
    mask: Address,
    flags: u16,
    pad2: i16,
    pad3: c_ulong,
    pad4: *const c_void,
    metric: i16,
    device: *const c_char,
    mtu: c_ulong,
    window: c_ulong,
    irtt: u16,
}

/// `struct ifreq`, with flags.
#[repr(C)]
struct Interface {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
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
    fn chroot(path: *const c_char) -> c_int;
    fn mknod(path: *const c_char, mode: c_uint, device: c_ulong) -> c_int;
    fn chdir(path: *const c_char) -> c_int;
    fn reboot(how: c_int) -> c_int;
    #[link_name = "sync"]
    fn c_sync();
    fn clock_settime(clock: c_int, time: *const [c_long; 2]) -> c_int;
    fn sethostname(name: *const c_char, length: usize) -> c_int;
    fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, ...) -> c_int;
    fn fchown(fd: c_int, user: u32, group: u32) -> c_int;
    fn setsid() -> c_int;
    fn setgroups(count: usize, groups: *const u32) -> c_int;
    fn setgid(group: u32) -> c_int;
    fn setuid(user: u32) -> c_int;
    fn umask(mask: u32) -> u32;
    fn kill(pid: c_int, signal: c_int) -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, ...) -> c_int;
    fn poll(fds: *mut PollFd, count: c_ulong, timeout: c_int) -> c_int;
}

fn check(result: c_int) -> Result<c_int> {
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// A path for the functions below; one with a NUL in it is the root's.
pub fn path(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).unwrap_or_else(|_| c"/".into())
}

pub fn load_module(file: &File, options: &str, compressed: bool) -> Result<()> {
    let options = CString::new(options)?;
    let flags = if compressed { COMPRESSED } else { 0 };
    // SAFETY: an open file, a string that ends with NUL, an integer.
    check(unsafe { syscall(SYS_FINIT_MODULE, file.as_raw_fd(), options.as_ptr(), flags) } as c_int).map(drop)
}

/// Mounts without devices of the host's in it; without set-user-ID only where the file system is no folder.
pub fn mount(source: &str, target: &OsStr, kind: &str, read_only: bool, options: &str) -> Result<()> {
    let flags = match kind {
        "devtmpfs" | "devpts" => MS_NOSUID,
        "virtiofs" => MS_NODEV,
        _ => MS_NOSUID | MS_NODEV,
    } | if read_only { MS_RDONLY } else { 0 };
    let (source, kind, options) = (CString::new(source)?, CString::new(kind)?, CString::new(options)?);
    let target = path(target);
    // SAFETY: four strings that end with NUL and outlive the call.
    check(unsafe { c_mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast()) })
        .map(drop)
}

/// Makes a device node for its owner.
pub fn make_node(place: &OsStr, block: bool, major: u8, minor: u8) -> Result<()> {
    let kind = if block { S_IFBLK } else { S_IFCHR };
    let place = path(place);
    // SAFETY: a string that ends with NUL, and integers.
    check(unsafe { mknod(place.as_ptr(), kind | 0o600, c_ulong::from(major) << 8 | c_ulong::from(minor)) })
        .map(drop)
}

/// Makes the file system that is mounted at `place` the root.
pub fn enter_root(place: &str) -> Result<()> {
    change_folder(&path(OsStr::new(place)))?;
    // SAFETY: strings that end with NUL; the kind and the options are not looked at.
    check(unsafe { c_mount(c".".as_ptr(), c"/".as_ptr(), c"none".as_ptr(), MS_MOVE, std::ptr::null()) })?;
    // SAFETY: a string that ends with NUL.
    check(unsafe { chroot(c".".as_ptr()) })?;
    change_folder(c"/")
}

pub fn change_folder(to: &CStr) -> Result<()> {
    // SAFETY: a string that ends with NUL.
    check(unsafe { chdir(to.as_ptr()) }).map(drop)
}

/// Ends the machine.
pub fn power_off() -> ! {
    // SAFETY: an integer.
    unsafe { reboot(RB_POWER_OFF) };
    loop {
        std::thread::sleep(std::time::Duration::from_secs(3600));
    }
}

pub fn sync() {
    // SAFETY: it takes and returns nothing.
    unsafe { c_sync() }
}

/// Sets the clock to a time since 1970.
pub fn set_time(now: std::time::Duration) -> Result<()> {
    let time = [now.as_secs() as c_long, c_long::from(now.subsec_nanos())];
    // SAFETY: a struct timespec.
    check(unsafe { clock_settime(CLOCK_REALTIME, &time) }).map(drop)
}

pub fn set_hostname(name: &[u8]) -> Result<()> {
    // SAFETY: a buffer and its length.
    check(unsafe { sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

fn internet() -> Result<OwnedFd> {
    // SAFETY: integers; the descriptor is ours from then on.
    Ok(unsafe { OwnedFd::from_raw_fd(check(socket(AF_INET, SOCK_DGRAM, 0))?) })
}

/// The name of an interface, as the kernel takes it.
fn interface(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..name.len().min(15)].copy_from_slice(&name.as_bytes()[..name.len().min(15)]);
    bytes
}

/// Brings an interface up.
pub fn up(name: &str) -> Result<()> {
    let socket = internet()?;
    let mut interface = Interface { name: interface(name), flags: 0, rest: [0; 22] };
    // SAFETY: the structure that this request fills.
    check(unsafe { ioctl(socket.as_raw_fd(), SIOCGIFFLAGS, &raw mut interface) })?;
    interface.flags |= IFF_UP;
    // SAFETY: the structure that this request reads.
    check(unsafe { ioctl(socket.as_raw_fd(), SIOCSIFFLAGS, &raw const interface) }).map(drop)
}

fn address(of: Ipv4Addr) -> Address {
    Address { family: AF_INET as u16, port: 0, address: of.octets(), rest: [0; 8] }
}

/// Gives an interface its address.
pub fn set_address(name: &str, of: Ipv4Addr, mask: Ipv4Addr) -> Result<()> {
    let socket = internet()?;
    for (request, value) in [(SIOCSIFADDR, of), (SIOCSIFNETMASK, mask)] {
        let addressed = Addressed { name: interface(name), address: address(value), rest: [0; 8] };
        // SAFETY: the structure that both requests read.
        check(unsafe { ioctl(socket.as_raw_fd(), request, &raw const addressed) })?;
    }
    Ok(())
}

/// Makes `gateway` the way to everybody.
pub fn add_route(gateway: Ipv4Addr) -> Result<()> {
    let nobody = address(Ipv4Addr::UNSPECIFIED);
    let route = Route {
        pad1: 0,
        destination: nobody,
        gateway: address(gateway),
        mask: nobody,
        flags: ROUTE_FLAGS,
        pad2: 0,
        pad3: 0,
        pad4: std::ptr::null(),
        metric: 0,
        device: std::ptr::null(),
        mtu: 0,
        window: 0,
        irtt: 0,
    };
    let socket = internet()?;
    // SAFETY: the structure that this request reads, which names no device.
    check(unsafe { ioctl(socket.as_raw_fd(), SIOCADDRT, &raw const route) }).map(drop)
}

/// Puts one file over another.
pub fn bind(source: &Path, target: &Path) -> Result<()> {
    let (source, target) = (path(source.as_os_str()), path(target.as_os_str()));
    // SAFETY: three strings that end with NUL; the options are not looked at.
    check(unsafe { c_mount(source.as_ptr(), target.as_ptr(), c"none".as_ptr(), MS_BIND, std::ptr::null()) })
        .map(drop)
}

pub fn change_owner(file: &OwnedFd, uid: u32, gid: u32) -> Result<()> {
    // SAFETY: an open file and integers.
    check(unsafe { fchown(file.as_raw_fd(), uid, gid) }).map(drop)
}

/// A new terminal: our side, and the command's.
pub fn pseudo_terminal() -> Result<(OwnedFd, OwnedFd)> {
    let ours = OwnedFd::from(File::options().read(true).write(true).open("/dev/pts/ptmx")?);
    let unlock: c_int = 0;
    // SAFETY: the integer that this request reads.
    check(unsafe { ioctl(ours.as_raw_fd(), TIOCSPTLCK, &raw const unlock) })?;
    // SAFETY: an integer; the descriptor that comes back is nobody else's.
    let theirs = unsafe {
        OwnedFd::from_raw_fd(check(ioctl(ours.as_raw_fd(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC))?)
    };
    Ok((ours, theirs))
}

pub fn set_size(terminal: &impl AsRawFd, rows: u16, columns: u16) -> Result<()> {
    let size = Size { rows, columns, pixels: [0; 2] };
    // SAFETY: the structure that this request reads.
    check(unsafe { ioctl(terminal.as_raw_fd(), TIOCSWINSZ, &raw const size) }).map(drop)
}

/// Whether the host has a port open. One that has left what it sent behind counts.
pub fn connected(port: &File) -> bool {
    let mut fd = PollFd { fd: port.as_raw_fd(), events: POLLIN, revents: 0 };
    // SAFETY: one structure, as is said.
    unsafe { poll(&raw mut fd, 1, 0) };
    fd.revents & POLLHUP == 0 || fd.revents & POLLIN != 0
}

/// Waits until a port takes something. False if its host has left.
pub fn writable(port: &File) -> bool {
    let mut fd = PollFd { fd: port.as_raw_fd(), events: POLLOUT, revents: 0 };
    // SAFETY: one structure, as is said.
    unsafe { poll(&raw mut fd, 1, -1) };
    fd.revents & POLLHUP == 0
}

/// Waits until a port has something from its host, or that has left.
pub fn await_input(port: &File) {
    let mut fd = PollFd { fd: port.as_raw_fd(), events: POLLIN, revents: 0 };
    // SAFETY: one structure, as is said.
    unsafe { poll(&raw mut fd, 1, -1) };
}

pub fn set_nonblocking(port: &File) -> Result<()> {
    // SAFETY: integers. The file is open for reading and writing, which F_SETFL does not change.
    check(unsafe { fcntl(port.as_raw_fd(), F_SETFL, O_NONBLOCK) }).map(drop)
}

/// A session of its own; with the terminal that is its standard input.
pub fn new_session(with_terminal: bool) -> Result<()> {
    // SAFETY: it takes nothing.
    check(unsafe { setsid() })?;
    if with_terminal {
        // SAFETY: integers.
        check(unsafe { ioctl(0, TIOCSCTTY, 0) })?;
    }
    Ok(())
}

pub fn become_user(uid: u32, gid: u32, groups: &[u32]) -> Result<()> {
    // SAFETY: an array and its length.
    check(unsafe { setgroups(groups.len(), groups.as_ptr()) })?;
    // SAFETY: integers.
    check(unsafe { setgid(gid) })?;
    // SAFETY: integers.
    check(unsafe { setuid(uid) }).map(drop)
}

pub fn set_umask(mask: u32) {
    // SAFETY: an integer.
    unsafe { umask(mask) };
}

/// Sends a signal to the session's first group.
pub fn kill_group(pid: i32, signal: i32) {
    // SAFETY: integers.
    unsafe { kill(-pid, signal) };
}

/// Ends every process but this one.
pub fn kill_all() {
    // SAFETY: integers; the kernel leaves the sender out.
    unsafe { kill(-1, SIGKILL) };
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with a status.
    Exited(u8),
    /// By a signal.
    Killed(u8),
}

/// Waits for any child. None if there is none.
pub fn wait_any() -> Option<(i32, Ended)> {
    let mut status = 0;
    loop {
        // SAFETY: a place for the status.
        let pid = unsafe { waitpid(-1, &raw mut status, 0) };
        match (pid, status & 0x7f) {
            (1.., 0) => return Some((pid, Ended::Exited((status >> 8) as u8))),
            (1.., signal) => return Some((pid, Ended::Killed(signal as u8))),
            _ if Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}
