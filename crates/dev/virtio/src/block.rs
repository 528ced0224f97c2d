//! Block device (virtio 1.2, 5.2) on an image.
//!
//! What the host has in its memory is read on the vCPU's thread; what may have to wait for a disk is done in order by
//! a thread of the device's own. A flush is told to the guest when fdatasync has returned. A reset waits until what
//! the thread has in its hands is done, so that no write of a former driver comes behind one of the next.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex};

use satori_defs::virtio::{block::*, kind};
use satori_image::Image;
use satori_lock::Held;
use satori_save::{State as _, Value};
use serde::{Deserialize, Serialize};

use crate::{Chain, Device, Error, Link, lock};

/// Queues, and descriptors of each.
const QUEUES: u16 = 4;
const QUEUE: u16 = 128;
/// Most segments of a request, and bytes of each: what two descriptors for header and status leave.
const SEGMENTS: u32 = QUEUE as u32 - 2;
const SEGMENT_BYTES: u32 = 256 << 10;
/// Bytes of the longest request.
const REQUEST_MAX: usize = SEGMENTS as usize * SEGMENT_BYTES as usize;
/// Bytes of the longest request that is tried on the vCPU's thread.
const AT_ONCE_MAX: usize = 256 << 10;
/// Sectors and ranges of a request that gives up or zeroes some.
const RANGE_SECTORS: u32 = 1 << 16;
const RANGES: usize = 32;
/// What a block is told to be, as a power of two of sectors: a page of the host's cache.
const PHYSICAL_EXPONENT: u8 = 3;

/// A disk.
#[derive(Debug)]
pub struct Disk {
    /// Its image, which the guest cannot write if it is read-only.
    pub image: Image,
    /// What the guest finds as the disk's serial, up to 20 bytes.
    pub serial: String,
}

/// A request that was parsed, with what it brings.
enum Work {
    Read { at: u64, len: usize },
    Write { at: u64, data: Vec<u8> },
    Flush,
    Discard(Vec<(u64, u64)>),
    Zero(Vec<(u64, u64)>),
}

struct Job {
    link: Arc<Link>,
    queue: u16,
    chain: Chain,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(Job, Work)>,
    busy: bool,
    waits: bool,
    running: bool,
    over: bool,
}

struct Shared {
    image: Image,
    state: Mutex<State>,
    bell: Condvar,
    done: Condvar,
}

/// The device.
pub struct Block {
    serial: String,
    shared: Arc<Shared>,
}

impl Job {
    /// Gives the request back with its status, and what was read before it.
    fn finish(&self, result: Result<Vec<u8>, u8>) {
        let (data, status) = match result {
            Ok(data) => (data, OK),
            Err(status) => (Vec::new(), status),
        };
        self.link.give(self.queue, &self.chain, |chain, memory| {
            let Some(last) = chain.writable_bytes().checked_sub(1) else { return 0 };
            let written = chain.write(memory, 0, &data[..data.len().min(last)]);
            chain.write(memory, last, &[status]);
            // The status is at the end, whatever is between.
            if status == OK && written == last { last + 1 } else { written }
        });
    }
}

impl Shared {
    fn execute(&self, work: &Work) -> Result<Vec<u8>, u8> {
        let failed = |error: std::io::Error| {
            tracing::warn!("a request to a disk failed: {error}");
            IOERR
        };
        match work {
            Work::Read { at, len } => {
                let mut data = vec![0; *len];
                self.image.read(*at, &mut data).map_err(failed)?;
                Ok(data)
            }
            Work::Write { at, data } => self.image.write(*at, data).map(|()| Vec::new()).map_err(failed),
            Work::Flush => self.image.flush().map(|()| Vec::new()).map_err(failed),
            Work::Discard(ranges) | Work::Zero(ranges) => {
                let zero = matches!(work, Work::Zero(_));
                let each = |&(at, len): &(u64, u64)| {
                    if zero { self.image.zero(at, len) } else { self.image.discard(at, len) }
                };
                ranges.iter().try_for_each(each).map(|()| Vec::new()).map_err(failed)
            }
        }
    }

    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some((job, work)) = state.jobs.pop_front() {
                state.busy = true;
                drop(state);
                job.finish(self.execute(&work));
                state = lock(&self.state);
                state.busy = false;
                self.done.notify_all();
            } else if state.over {
                return;
            } else {
                state.waits = true;
                state = self.bell.wait(state).held();
                state.waits = false;
            }
        }
    }
}

impl Block {
    /// A device for `disk`.
    pub fn new(disk: Disk) -> Result<Arc<Self>, Error> {
        let Disk { image, serial } = disk;
        if serial.len() > ID || serial.contains('\0') {
            return Err(Error::Config(format!("'{serial}' is no serial of a disk: use up to {ID} bytes")));
        }
        let (state, bell, done) = (Mutex::default(), Condvar::new(), Condvar::new());
        Ok(Arc::new(Block { serial, shared: Arc::new(Shared { image, state, bell, done }) }))
    }

    /// What a chain asks for; the error is its status.
    fn parse(&self, link: &Link, chain: &Chain) -> Result<Work, u8> {
        let header = chain.read(link.memory(), 0, HEADER);
        let (&[t0, t1, t2, t3, _, _, _, _], sector) = header.split_first_chunk::<8>().ok_or(IOERR)?;
        let sector = u64::from_le_bytes(sector.try_into().map_err(|_| IOERR)?);
        let data = chain.readable_bytes() - HEADER;
        let room = chain.writable_bytes().checked_sub(1).ok_or(IOERR)?;
        let at = sector.checked_mul(SECTOR).ok_or(IOERR)?;
        let fits = |len: usize| {
            let whole = len.is_multiple_of(SECTOR as usize) && len <= REQUEST_MAX;
            whole && at.checked_add(len as u64).is_some_and(|end| end <= self.shared.image.bytes())
        };
        match u32::from_le_bytes([t0, t1, t2, t3]) {
            IN if fits(room) => Ok(Work::Read { at, len: room }),
            OUT if fits(data) && !self.shared.image.readonly() => {
                Ok(Work::Write { at, data: chain.read(link.memory(), HEADER, data) })
            }
            IN | OUT => Err(IOERR),
            FLUSH_OUT => Ok(Work::Flush),
            DISCARD_OUT | WRITE_ZEROES_OUT if self.shared.image.readonly() => Err(IOERR),
            DISCARD_OUT => Ok(Work::Discard(self.ranges(link, chain, data, 0)?)),
            WRITE_ZEROES_OUT => Ok(Work::Zero(self.ranges(link, chain, data, UNMAP)?)),
            _ => Err(UNSUPP),
        }
    }

    /// The ranges of a request, as bytes, of which only these flags are known.
    fn ranges(&self, link: &Link, chain: &Chain, len: usize, known: u32) -> Result<Vec<(u64, u64)>, u8> {
        if len == 0 || !len.is_multiple_of(RANGE) || len / RANGE > RANGES {
            return Err(IOERR);
        }
        let raw = chain.read(link.memory(), HEADER, len);
        let range = |raw: &[u8; RANGE]| {
            let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, f0, f1, f2, f3] = *raw;
            let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
            let (sectors, flags) =
                (u32::from_le_bytes([n0, n1, n2, n3]), u32::from_le_bytes([f0, f1, f2, f3]));
            if flags & !known != 0 {
                return Err(UNSUPP);
            }
            let (at, len) = (sector.checked_mul(SECTOR).ok_or(IOERR)?, u64::from(sectors) * SECTOR);
            let end = at.checked_add(len).ok_or(IOERR)?;
            let fits = sectors <= RANGE_SECTORS && end <= self.shared.image.bytes();
            if fits { Ok((at, len)) } else { Err(IOERR) }
        };
        raw.as_chunks::<RANGE>().0.iter().map(range).collect()
    }

    /// Does `work` here if that needs no waiting, or there is nobody else; else the thread does.
    fn take(&self, job: Job, work: Work) {
        let mut state = lock(&self.shared.state);
        if !state.running {
            drop(state);
            job.finish(self.shared.execute(&work));
        } else if state.jobs.is_empty()
            && !state.busy
            && let Some(result) = self.at_once(&work)
        {
            drop(state);
            job.finish(result);
        } else {
            state.jobs.push_back((job, work));
            if state.waits {
                self.shared.bell.notify_one();
            }
        }
    }

    /// Waits until the thread has nothing more in its hands.
    fn idle(&self) {
        let mut state = lock(&self.shared.state);
        while state.busy || !state.jobs.is_empty() {
            state = self.shared.done.wait(state).held();
        }
    }

    /// Whether `work` could be done without waiting, and its result.
    fn at_once(&self, work: &Work) -> Option<Result<Vec<u8>, u8>> {
        match work {
            Work::Read { at, len } if *len <= AT_ONCE_MAX => {
                let mut data = vec![0; *len];
                self.shared.image.read_at_once(*at, &mut data).then_some(Ok(data))
            }
            _ => None,
        }
    }
}

impl Device for Block {
    fn kind(&self) -> u16 {
        kind::BLOCK
    }

    fn class(&self) -> u32 {
        0x01_80_00
    }

    fn features(&self) -> u64 {
        // A disk without a cache has nothing to flush: its driver waits for no request of that kind.
        let flush = if self.shared.image.writes_through() { 0 } else { FLUSH };
        let common = SIZE_MAX | SEG_MAX | BLK_SIZE | TOPOLOGY | MQ | flush;
        if self.shared.image.readonly() { common | RO } else { common | DISCARD | WRITE_ZEROES }
    }

    fn queues(&self) -> Vec<u16> {
        vec![QUEUE; QUEUES.into()]
    }

    fn config(&self) -> Vec<u8> {
        let mut config = (self.shared.image.bytes() / SECTOR).to_le_bytes().to_vec();
        let mut word = |value: u32| config.extend(value.to_le_bytes());
        word(SEGMENT_BYTES);
        word(SEGMENTS);
        word(0);
        word(SECTOR as u32);
        // Physical exponent, alignment, and the least and best sizes in blocks.
        word(u32::from(PHYSICAL_EXPONENT) | 1 << (16 + PHYSICAL_EXPONENT));
        word(0);
        word(u32::from(QUEUES) << 16);
        word(RANGE_SECTORS);
        word(RANGES as u32);
        word(1 << PHYSICAL_EXPONENT);
        word(RANGE_SECTORS);
        word(RANGES as u32);
        word(1);
        config
    }

    fn start(&self, link: &Arc<Link>) {
        let mut state = lock(&self.shared.state);
        if link.determined() || std::mem::replace(&mut state.running, true) {
            return;
        }
        let shared = self.shared.clone();
        if let Err(error) = std::thread::Builder::new().name("disk".into()).spawn(move || shared.run()) {
            tracing::warn!("no thread for a disk ({error}): vCPUs wait for it themselves");
            state.running = false;
        }
    }

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        while let Some(chain) = link.pop(queue) {
            let job = Job { link: link.clone(), queue, chain };
            if job.chain.read(link.memory(), 0, 4) == GET_ID.to_le_bytes() {
                let mut id = self.serial.clone().into_bytes();
                id.resize(ID, 0);
                job.finish(Ok(id));
                continue;
            }
            match self.parse(link, &job.chain) {
                Ok(work) => self.take(job, work),
                Err(status) => job.finish(Err(status)),
            }
        }
    }

    fn reset(&self) {
        lock(&self.shared.state).jobs.clear();
        self.idle();
    }

    fn files(&self) -> Vec<RawFd> {
        self.shared.image.files()
    }

    /// What the guest wrote and did not flush is its file's when the process ends, as it is with a raw image.
    fn finish(&self, _give_up: &dyn Fn() -> bool) {
        self.idle();
        if let Err(error) = self.shared.image.settle() {
            tracing::warn!("a disk could not be written at the end: {error}");
        }
    }

    /// The image itself is not among it, but for what a snapshot keeps in memory: whoever goes on needs it as it was.
    fn save(&self) -> Result<Value, satori_save::Error> {
        self.idle();
        let image = &self.shared.image;
        image
            .settle()
            .map_err(|error| satori_save::Error::refused("a disk", format!("its image: {error}")))?;
        let (pieces, bytes) = image.snapshot();
        let (sectors, readonly) = (image.bytes() / SECTOR, image.readonly());
        Value::with_bytes(&SavedBlock { sectors, readonly, pieces }, bytes)
    }

    fn restore(&self, _link: &Arc<Link>, value: &Value) -> Result<(), satori_save::Error> {
        let SavedBlock { sectors, readonly, pieces } = value.state()?;
        let unless = |fits, why| satori_save::Error::unless(fits, SavedBlock::NAME, why);
        unless(sectors == self.shared.image.bytes() / SECTOR, "the image has another size")?;
        unless(readonly == self.shared.image.readonly(), "one of the two is read-only")?;
        unless(
            self.shared.image.set_snapshot(&pieces, value.bytes()),
            "what it keeps of a snapshot is not of this disk",
        )
    }
}

/// What of a disk is not its image.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedBlock {
    sectors: u64,
    readonly: bool,
    /// Which pieces of a snapshot were written; there is a list only for one, and the bytes are those of the pieces.
    pieces: Option<Vec<u64>>,
}

impl satori_save::State for SavedBlock {
    const NAME: &'static str = "disk";
    const VERSION: u32 = 1;
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&self.shared.state).over = true;
        self.shared.bell.notify_one();
    }
}
