//! Every VM exit of this process's vCPUs, by the kernel's tracepoints kvm:kvm_exit and kvm:kvm_entry, as `perf kvm stat` has them:
//! those too that KVM handles by itself.
//!
//! The events are opened once for each of the host's processors, before the process is confined, and its threads inherit them.
//! Each processor has a ring that the kernel writes records into and a thread here empties; what did not fit is counted.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once};

use satori_defs::svm::ExitCode;
use satori_defs::vmx::ExitReason;
use satori_engine::Stat;
use satori_lock::lock;

/// Where tracefs is, or was before it had a place of its own.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const PAGE: usize = 4096;
/// Bytes of a ring, behind its page of positions: some 4,000 exits and entries. A power of two.
const RING: usize = 1 << 19;
/// Where that page has how far the kernel wrote and how far we read (`perf_event_mmap_page`).
const HEAD: usize = 1024;
const TAIL: usize = 1032;
/// Milliseconds between two looks at rings that are not half full.
const LOOK: libc::c_int = 100;

const PERF_TYPE_TRACEPOINT: u64 = 2;
/// Size of `perf_event_attr` since Linux 4.1.
const ATTRIBUTES: u64 = 112;
/// Samples have the thread, the time, and the tracepoint's record.
const SAMPLE: u64 = 1 << 1 | 1 << 2 | 1 << 10;
/// Threads that come inherit it; a watermark wakes.
const FLAGS: u64 = 1 << 1 | 1 << 14;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
/// `_IO('$', 5)`.
const PERF_EVENT_IOC_SET_OUTPUT: libc::Ioctl = 0x2405;
const PERF_RECORD_LOST: u32 = 2;
const PERF_RECORD_SAMPLE: u32 = 9;
/// `isa` of kvm_exit.
const VMX: u32 = 1;

/// The tracepoints, opened.
#[derive(Debug)]
pub(crate) struct Exits {
    layout: Layout,
    rings: Vec<Ring>,
    counted: Mutex<Counted>,
    watched: Once,
}

/// Numbers of the tracepoints, and where a record of kvm_exit has what is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    exit: u16,
    entry: u16,
    reason: usize,
    isa: usize,
}

/// What the records tell.
#[derive(Debug, Default)]
struct Counted {
    /// By architecture and reason: how many, and nanoseconds to the next entry.
    reasons: BTreeMap<(u32, u32), (u64, u64)>,
    /// The exit of a thread that has not entered since, and when it was.
    outside: BTreeMap<u32, ((u32, u32), u64)>,
    lost: u64,
}

/// A record: when, of which thread, and the exit unless it is an entry.
type Record = (u64, u32, Option<(u32, u32)>);

impl Exits {
    /// Opens them for this process; the error says what is not permitted or not there.
    pub(crate) fn open() -> io::Result<Arc<Self>> {
        let layout = Layout::read()?;
        let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
        let rings: io::Result<Vec<_>> = processors(&online).map(|cpu| Ring::open(cpu, &layout)).collect();
        Ok(Arc::new(Exits { layout, rings: rings?, counted: Mutex::default(), watched: Once::new() }))
    }

    /// Descriptors that have to stay open.
    pub(crate) fn files(&self) -> impl Iterator<Item = RawFd> {
        self.rings.iter().flat_map(|ring| [ring.exit.as_raw_fd(), ring.entry.as_raw_fd()])
    }

    /// Has a thread empty the rings from now on.
    pub(crate) fn watch(self: &Arc<Self>) {
        self.watched.call_once(|| {
            let exits = Arc::downgrade(self);
            let mut fds: Vec<_> = self
                .rings
                .iter()
                .map(|ring| libc::pollfd { fd: ring.exit.as_raw_fd(), events: libc::POLLIN, revents: 0 })
                .collect();
            let watch = move || {
                while let Some(exits) = exits.upgrade() {
                    exits.empty();
                    drop(exits);
                    // SAFETY: the structures are valid; a descriptor that is closed meanwhile is told of.
                    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, LOOK) };
                }
            };
            let started = std::thread::Builder::new().name("kvm-exits".into()).spawn(watch);
            let _ = started.inspect_err(|why| tracing::warn!("exits are counted late: {why}"));
        });
    }

    /// Takes what the rings hold.
    fn empty(&self) {
        let mut counted = lock(&self.counted);
        let mut records = Vec::new();
        for ring in &self.rings {
            let bytes = ring.take();
            counted.lost += parse(&bytes, &self.layout, &mut records);
        }
        // A thread may have gone from one processor to another.
        records.sort_unstable_by_key(|(time, ..)| *time);
        records.into_iter().for_each(|record| counted.take(record));
    }

    /// The counters now.
    pub(crate) fn counts(&self) -> Vec<Stat> {
        self.empty();
        lock(&self.counted).stats()
    }
}

impl Counted {
    fn take(&mut self, (time, thread, exit): Record) {
        match exit {
            Some(reason) => {
                self.reasons.entry(reason).or_default().0 += 1;
                self.outside.insert(thread, (reason, time));
            }
            None => {
                if let Some((reason, since)) = self.outside.remove(&thread) {
                    self.reasons.entry(reason).or_default().1 += time.saturating_sub(since);
                }
            }
        }
    }

    fn stats(&self) -> Vec<Stat> {
        let mut stats: Vec<Stat> = Vec::new();
        let mut add = |name, value| match stats.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += value,
            None => stats.push((name, value)),
        };
        for (&(isa, reason), &(count, time)) in &self.reasons {
            let [exits, spent] = names(isa, reason);
            add(exits, count);
            add(spent, time);
        }
        if self.lost > 0 {
            add("VM exits: records that did not fit", self.lost);
        }
        stats
    }
}

/// What the counters of an exit are called: how many, and how long.
fn names(isa: u32, reason: u32) -> [&'static str; 2] {
    let known = match isa {
        VMX => ExitReason::ALL.iter().find(|one| **one as u32 == reason & 0xffff).map(|one| one.counted()),
        _ => ExitCode::ALL.iter().find(|one| **one as u32 == reason).map(|one| one.counted()),
    };
    known.unwrap_or(["VM exits: others", "ns of VM exits: others"])
}

impl Layout {
    fn read() -> io::Result<Self> {
        let root = TRACEFS.into_iter().find(|root| Path::new(root).join("events").exists());
        let folder = Path::new(root.unwrap_or(TRACEFS[0])).join("events/kvm");
        let read = |file: &str| {
            let path = folder.join(file);
            fs::read_to_string(&path)
                .map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", path.display())))
        };
        let number = |file: &str| {
            let text = read(file)?;
            text.trim().parse().map_err(|_| io::Error::other(format!("{file} is no number")))
        };
        let format = read("kvm_exit/format")?;
        let at = |name: &str| {
            field(&format, name).ok_or_else(|| io::Error::other(format!("kvm_exit has no 32-bit {name}")))
        };
        Ok(Layout {
            exit: number("kvm_exit/id")?,
            entry: number("kvm_entry/id")?,
            reason: at("exit_reason")?,
            isa: at("isa")?,
        })
    }
}

/// Where a tracepoint's format has the 32-bit field `name`.
fn field(format: &str, name: &str) -> Option<usize> {
    format.lines().find_map(|line| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
        let of = parts.next()?.rsplit(' ').next()? == name;
        let offset = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
        (of && parts.next()? == "size:4").then_some(offset)
    })
}

/// The numbers in a list as `0-3,8`.
fn processors(list: &str) -> impl Iterator<Item = i32> {
    list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse().unwrap_or(0);
        number(first)..=number(last)
    })
}

/// Takes the records of kvm_exit and kvm_entry out of `bytes`; how many others were lost.
fn parse(mut bytes: &[u8], layout: &Layout, records: &mut Vec<Record>) -> u64 {
    let mut lost = 0;
    let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let long = |bytes: &[u8], at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    while let Some(kind) = word(bytes, 0) {
        let size = bytes.get(6..8).map_or(0, |size| usize::from(u16::from_ne_bytes([size[0], size[1]])));
        let Some((record, rest)) = bytes.split_at_checked(size).filter(|_| size >= 8) else { break };
        bytes = rest;
        match kind {
            PERF_RECORD_LOST => lost += long(record, 16).unwrap_or(0),
            PERF_RECORD_SAMPLE => {
                let (Some(thread), Some(time), Some(raw)) =
                    (word(record, 12), long(record, 16), record.get(28..))
                else {
                    continue;
                };
                let number = word(raw, 0).unwrap_or(0) as u16;
                if number == layout.entry {
                    records.push((time, thread, None));
                } else if number == layout.exit
                    && let (Some(isa), Some(reason)) = (word(raw, layout.isa), word(raw, layout.reason))
                {
                    records.push((time, thread, Some((isa, reason))));
                }
            }
            _ => {}
        }
    }
    lost
}

/// The ring of one processor.
#[derive(Debug)]
struct Ring {
    exit: OwnedFd,
    entry: OwnedFd,
    /// The page of positions, and the ring behind it.
    map: *mut u8,
}

// SAFETY: what is read and written through the pointer is the kernel's interface, by atomics and copies; only who holds the lock of
// `Exits::counted` reads on.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    fn open(cpu: i32, layout: &Layout) -> io::Result<Self> {
        let exit = event(layout.exit, cpu)?;
        let entry = event(layout.entry, cpu)?;
        // SAFETY: a new shared mapping of the event's ring, at an address that the kernel chooses.
        let map = unsafe {
            let (rights, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), PAGE + RING, rights, shared, exit.as_raw_fd(), 0)
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = Ring { exit, entry, map: map.cast() };
        let (from, to) = (ring.entry.as_raw_fd(), ring.exit.as_raw_fd());
        // SAFETY: it takes a descriptor, and no memory.
        let failed = unsafe { libc::ioctl(from, PERF_EVENT_IOC_SET_OUTPUT, to) } != 0;
        if failed { Err(io::Error::last_os_error()) } else { Ok(ring) }
    }

    fn position(&self, at: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the page of positions, which is mapped as long as `self`, and which the kernel
        // reads and writes whole.
        unsafe { &*self.map.add(at).cast::<AtomicU64>() }
    }

    /// What was written since this was asked last.
    fn take(&self) -> Vec<u8> {
        let (head, tail) =
            (self.position(HEAD).load(Ordering::Acquire), self.position(TAIL).load(Ordering::Relaxed));
        let len = (head.wrapping_sub(tail) as usize).min(RING);
        let mut bytes = vec![0; len];
        let at = tail as usize % RING;
        let first = len.min(RING - at);
        // SAFETY: both parts are within the ring; the kernel does not write there until the tail moves.
        unsafe {
            let ring = self.map.add(PAGE);
            bytes.as_mut_ptr().copy_from_nonoverlapping(ring.add(at), first);
            bytes.as_mut_ptr().add(first).copy_from_nonoverlapping(ring, len - first);
        }
        self.position(TAIL).store(head, Ordering::Release);
        bytes
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody refers to it any more.
        unsafe { libc::munmap(self.map.cast(), PAGE + RING) };
    }
}

/// Opens a tracepoint on `cpu` for this thread and those that it makes.
fn event(tracepoint: u16, cpu: i32) -> io::Result<OwnedFd> {
    // `perf_event_attr`: type and size, config, a sample for each, what is in one, no format of reads, flags, the watermark.
    let mut attributes = [0_u64; ATTRIBUTES as usize / 8];
    attributes[..7].copy_from_slice(&[
        PERF_TYPE_TRACEPOINT | ATTRIBUTES << 32,
        tracepoint.into(),
        1,
        SAMPLE,
        0,
        FLAGS,
        RING as u64 / 2,
    ]);
    // SAFETY: the attributes are as long as they say, and outlive the call, which gives a new descriptor.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, cpu, -1, PERF_FLAG_FD_CLOEXEC)
    };
    if fd < 0 {
        let why = io::Error::last_os_error();
        return Err(io::Error::new(why.kind(), format!("perf_event_open: {why}")));
    }
    // SAFETY: the descriptor is open, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { exit: 1635, entry: 1620, reason: 8, isa: 24 };

    fn sample(tracepoint: u16, thread: u32, time: u64, isa: u32, reason: u32) -> Vec<u8> {
        let mut raw = vec![0; 60];
        raw[..2].copy_from_slice(&tracepoint.to_ne_bytes());
        raw[8..12].copy_from_slice(&reason.to_ne_bytes());
        raw[24..28].copy_from_slice(&isa.to_ne_bytes());
        let size = (28 + raw.len()) as u16;
        let mut bytes = [PERF_RECORD_SAMPLE.to_ne_bytes(), [2, 0, size as u8, (size >> 8) as u8]].concat();
        bytes.extend([7_u32.to_ne_bytes(), thread.to_ne_bytes()].concat());
        bytes.extend(time.to_ne_bytes());
        bytes.extend((raw.len() as u32).to_ne_bytes());
        bytes.extend(raw);
        bytes
    }

    #[test]
    fn exits_are_counted_by_reason_and_timed_to_the_entry_of_the_same_thread() {
        let lost = [2_u32, 24 << 16, 0, 0, 5, 0].map(u32::to_ne_bytes).concat();
        let bytes = [
            sample(1635, 1, 100, VMX, 12),
            sample(1635, 2, 110, VMX, 48),
            sample(1620, 2, 150, 0, 0),
            lost,
            sample(1635, 2, 160, 2, 0x400),
            sample(1620, 1, 300, 0, 0),
            sample(99, 1, 400, VMX, 12),
            sample(1635, 3, 500, VMX, 0x8000_0021),
        ]
        .concat();
        let (mut records, mut counted) = (Vec::new(), Counted::default());
        counted.lost = parse(&bytes, &LAYOUT, &mut records);
        assert_eq!(records.len(), 6);
        records.into_iter().for_each(|record| counted.take(record));
        let stats = counted.stats();
        for expected in [
            ("VM exits: HLT", 1),
            ("ns of VM exits: HLT", 200),
            ("VM exits: EPT_VIOLATION", 1),
            ("ns of VM exits: EPT_VIOLATION", 40),
            ("VM exits: npf", 1),
            ("VM exits: INVALID_STATE", 1),
            ("VM exits: records that did not fit", 5),
        ] {
            assert!(stats.contains(&expected), "{expected:?}: {stats:?}");
        }
        let damaged = sample(1635, 1, 1, VMX, 12);
        (0..damaged.len()).for_each(|len| _ = parse(&damaged[..len], &LAYOUT, &mut Vec::new()));
    }

    #[test]
    fn fields_and_processors_are_found_in_the_kernels_texts() {
        let format = "name: kvm_exit\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
            \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
            \tfield:u32 isa;\toffset:24;\tsize:4;\tsigned:0;\n";
        assert_eq!((field(format, "exit_reason"), field(format, "isa")), (Some(8), Some(24)));
        assert_eq!((field(format, "common_type"), field(format, "reason")), (None, None));
        assert_eq!(processors("0-2,8\n").collect::<Vec<_>>(), [0, 1, 2, 8]);
    }
}
