//! Block device (virtio 1.2, 5.2) on an image.
//!
//! [`Requests`] does what its driver asks for. A reset waits until what that has in its hands is done, so that no write of a former
//! driver comes behind one of the next. In runs that have to be the same every time a request is done when its time has come
//! ([`delayed`]).

mod delayed;
#[cfg(test)]
mod tests;

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, Weak};

use satori_bus::Timer;
use satori_defs::virtio::{block::*, kind};
use satori_host::io_thread::IoThread;
use satori_image::{Image, Request, Requests};
use satori_save::{State as _, Value};
use serde::{Deserialize, Serialize};

use crate::{Chain, Device, Error, Link, lock};
use delayed::{Delayed, SavedDelayed};

/// Queues, and descriptors of each.
const QUEUES: u16 = 4;
const QUEUE: u16 = 256;
/// Most segments of a request, and bytes of each: what two descriptors for header and status leave.
const SEGMENTS: u32 = QUEUE as u32 - 2;
const SEGMENT_BYTES: u32 = 256 << 10;
/// Bytes of the longest request.
const REQUEST_MAX: usize = SEGMENTS as usize * SEGMENT_BYTES as usize;
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
    /// Which of the machine's I/O threads does what may have to wait, from 0 on; the next one in turn where it is not said.
    pub io_thread: Option<usize>,
}

struct Job {
    link: Arc<Link>,
    queue: u16,
    chain: Chain,
}

/// The device.
pub struct Block {
    serial: String,
    requests: Requests,
    /// Requests whose time has not come.
    delayed: Mutex<Delayed>,
    me: Weak<Block>,
}

impl Job {
    /// Gives the request back with its status, behind as many bytes as there are in front of it.
    fn finish(&self, result: Result<usize, u8>) {
        self.link.give(self.queue, &self.chain, |chain, memory| {
            let Some(last) = chain.writable_bytes().checked_sub(1) else { return 0 };
            let (written, status) = result.map_or_else(|status| (0, status), |written| (written, OK));
            chain.write(memory, last, &[status]);
            // The status is at the end, whatever is between.
            if status == OK && written == last { last + 1 } else { written }
        });
    }
}

impl Block {
    /// A device for `disk`, of which `thread` does what may have to wait.
    pub fn new(disk: Disk, thread: IoThread) -> Result<Arc<Self>, Error> {
        let Disk { image, serial, .. } = disk;
        if serial.len() > ID || serial.contains('\0') {
            return Err(Error::Config(format!("'{serial}' is no serial of a disk: use up to {ID} bytes")));
        }
        let requests = Requests::new(image, thread);
        let delayed = Mutex::default();
        Ok(Arc::new_cyclic(|me| Block { serial, requests, delayed, me: me.clone() }))
    }

    /// What is called when a request's time has come.
    fn timer(&self) -> Weak<dyn Timer> {
        self.me.clone()
    }

    /// Does what a chain asks for, or has it done.
    fn work(&self, link: &Arc<Link>, queue: u16, chain: Chain) {
        let job = Job { link: link.clone(), queue, chain };
        if job.chain.read(link.memory(), 0, 4) == GET_ID.to_le_bytes() {
            let mut id = self.serial.clone().into_bytes();
            id.resize(ID, 0);
            let room = job.chain.writable_bytes().saturating_sub(1);
            job.finish(Ok(job.chain.write(link.memory(), 0, &id[..ID.min(room)])));
            return;
        }
        match self.parse(link, &job.chain) {
            Ok(request) => {
                let filled = if let Request::Fill { into, .. } = &request { into.len() } else { 0 };
                let answer = move |result: std::io::Result<Vec<u8>>| {
                    job.finish(result.map(|_| filled).map_err(|_| IOERR));
                };
                self.requests.take(request, Box::new(answer));
            }
            Err(status) => job.finish(Err(status)),
        }
    }

    /// What a chain asks for; the error is its status.
    fn parse(&self, link: &Link, chain: &Chain) -> Result<Request, u8> {
        let header = chain.read(link.memory(), 0, HEADER);
        let (&[t0, t1, t2, t3, _, _, _, _], sector) = header.split_first_chunk::<8>().ok_or(IOERR)?;
        let sector = u64::from_le_bytes(sector.try_into().map_err(|_| IOERR)?);
        let data = chain.readable_bytes() - HEADER;
        let room = chain.writable_bytes().checked_sub(1).ok_or(IOERR)?;
        let at = sector.checked_mul(SECTOR).ok_or(IOERR)?;
        let fits = |len: usize| {
            let whole = len.is_multiple_of(SECTOR as usize) && len <= REQUEST_MAX;
            whole && at.checked_add(len as u64).is_some_and(|end| end <= self.requests.image().bytes())
        };
        match u32::from_le_bytes([t0, t1, t2, t3]) {
            IN if fits(room) => Ok(Request::Fill { at, into: chain.room(link.memory(), room).ok_or(IOERR)? }),
            OUT if fits(data) && !self.requests.image().readonly() => {
                Ok(Request::Drain { at, from: chain.source(link.memory(), HEADER, data).ok_or(IOERR)? })
            }
            IN | OUT => Err(IOERR),
            FLUSH_OUT => Ok(Request::Flush),
            DISCARD_OUT | WRITE_ZEROES_OUT if self.requests.image().readonly() => Err(IOERR),
            DISCARD_OUT => Ok(Request::Discard(self.ranges(link, chain, data, 0)?)),
            WRITE_ZEROES_OUT => Ok(Request::Zero(self.ranges(link, chain, data, UNMAP)?)),
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
            let fits = sectors <= RANGE_SECTORS && end <= self.requests.image().bytes();
            if fits { Ok((at, len)) } else { Err(IOERR) }
        };
        raw.as_chunks::<RANGE>().0.iter().map(range).collect()
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
        let flush = if self.requests.image().writes_through() { 0 } else { FLUSH };
        let common = SIZE_MAX | SEG_MAX | BLK_SIZE | TOPOLOGY | MQ | flush;
        if self.requests.image().readonly() { common | RO } else { common | DISCARD | WRITE_ZEROES }
    }

    fn queues(&self) -> Vec<u16> {
        vec![QUEUE; QUEUES.into()]
    }

    fn config(&self) -> Vec<u8> {
        let mut config = (self.requests.image().bytes() / SECTOR).to_le_bytes().to_vec();
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
        if !link.determined() {
            self.requests.start();
        }
    }

    fn notify(&self, link: &Arc<Link>, queue: u16) {
        while let Some(chain) = link.pop(queue) {
            match link.timing() {
                Some(timing) => lock(&self.delayed).put(link, timing, queue, chain, self.timer()),
                None => self.work(link, queue, chain),
            }
        }
    }

    fn attend(&self, give_up: &dyn Fn() -> bool) {
        self.requests.attend(give_up);
    }

    fn reset(&self) {
        *lock(&self.delayed) = Delayed::default();
        self.requests.clear();
    }

    fn files(&self) -> Vec<RawFd> {
        self.requests.image().files()
    }

    /// What the guest wrote and did not flush is its file's when the process ends, as it is with a raw image.
    fn finish(&self, _give_up: &dyn Fn() -> bool) {
        self.requests.idle();
        if let Err(error) = self.requests.image().settle() {
            tracing::warn!("a disk could not be written at the end: {error}");
        }
    }

    /// The image itself is not among it, but for what a snapshot keeps in memory: whoever goes on needs it as it was.
    fn save(&self) -> Result<Value, satori_save::Error> {
        self.requests.idle();
        let image = &self.requests.image();
        image
            .settle()
            .map_err(|error| satori_save::Error::refused("a disk", format!("its image: {error}")))?;
        let (pieces, bytes) = image.snapshot();
        let (sectors, readonly) = (image.bytes() / SECTOR, image.readonly());
        let delayed = lock(&self.delayed).save(&self.timer());
        Value::with_bytes(&SavedBlock { sectors, readonly, pieces, delayed }, bytes)
    }

    fn restore(&self, link: &Arc<Link>, value: &Value) -> Result<(), satori_save::Error> {
        let SavedBlock { sectors, readonly, pieces, delayed } = value.state()?;
        let unless = |fits, why| satori_save::Error::unless(fits, SavedBlock::NAME, why);
        unless(sectors == self.requests.image().bytes() / SECTOR, "the image has another size")?;
        unless(readonly == self.requests.image().readonly(), "one of the two is read-only")?;
        unless(
            self.requests.image().set_snapshot(&pieces, value.bytes()),
            "what it keeps of a snapshot is not of this disk",
        )?;
        let delayed = Delayed::restored(delayed, link, &self.timer());
        unless(delayed.is_some(), "a request that waits is none of this machine")?;
        *lock(&self.delayed) = delayed.unwrap_or_default();
        Ok(())
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
    delayed: SavedDelayed,
}

impl satori_save::State for SavedBlock {
    const NAME: &'static str = "disk";
    const VERSION: u32 = 2;
}

impl Timer for Block {
    fn expired(&self, now: u64) {
        loop {
            let Some((link, queue, chain)) = lock(&self.delayed).due(now, &self.timer()) else { break };
            self.work(&link, queue, chain);
        }
    }
}
