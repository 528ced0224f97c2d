//! A disk (public/io/blkif.h): requests with up to 11 segments, or with more in pages of their own, by several queues.
//!
//! A segment's page is looked up for each use of it: what is written is copied before the disk is asked, what is read when it answers. A
//! grant that persists is one that is still there the next time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use satori_defs::xen::blkif::*;
use satori_image::{Request, Requests};
use satori_lock::lock;
use satori_memory::PAGE_SIZE;
use satori_xen::{Copied, Domain};

use crate::bus::QUEUES;
use crate::connection::{Connection, Ends};
use crate::ring::Ring;

/// Queues that a front end may have.
const QUEUES_MAX: u32 = 4;
/// Pages of a ring, as a power of two.
const PAGES_MAX_ORDER: u32 = 4;
/// Segments of a request with more than 11.
const SEGMENTS_MAX: usize = 256;
/// Sectors that one request discards.
const DISCARD_SECTORS: u64 = 1 << 22;
/// Requests that are taken on one notification, until another thread goes on: who asks is a vCPU that has to stop on demand.
const AT_ONCE: u32 = 1024;

/// A part of a page of the guest's.
#[derive(Clone, Copy)]
struct Segment {
    reference: u32,
    first: usize,
    len: usize,
}

/// A connected queue.
pub(crate) struct Queue {
    pub ring: Ring,
    pub port: u32,
}

/// The disk.
pub(crate) struct Block {
    domain: Weak<Domain>,
    pub disk: Arc<Requests>,
    index: u32,
    pub connection: Connection,
    pub queues: Mutex<Vec<Queue>>,
    moved: Arc<AtomicU64>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The segments whose descriptions these are, 8 bytes each; none if one is not within its page.
fn segments(bytes: &[u8]) -> Option<Vec<Segment>> {
    let sector = SECTOR as usize;
    let one = |raw: &[u8; 8]| {
        let (first, last) = (usize::from(raw[4]), usize::from(raw[5]));
        (first <= last && last < PAGE_SIZE as usize / sector).then(|| Segment {
            reference: u32_at(raw, 0),
            first: first * sector,
            len: (last - first + 1) * sector,
        })
    };
    bytes.as_chunks::<8>().0.iter().map(one).collect()
}

impl Block {
    pub(crate) fn new(
        domain: &Arc<Domain>,
        disk: Arc<Requests>,
        index: u32,
        moved: Arc<AtomicU64>,
    ) -> Arc<Self> {
        // xvda, xvdb and so on: 16 minors each; beyond xvdp the numbers have another form.
        let number = if index < 16 { 202 << 8 | index << 4 } else { 1 << 28 | index << 8 };
        let facts = [("virtual-device", number.to_string()), ("device-type", "disk".to_string())];
        let connection = domain.with_store(|store| Connection::new(store, "vbd", number, &facts));
        Arc::new(Block {
            domain: Arc::downgrade(domain),
            disk,
            index,
            connection,
            queues: Mutex::default(),
            moved,
        })
    }

    /// The name of its state.
    pub(crate) fn name(&self) -> String {
        self.connection.name()
    }

    pub(crate) fn memory(&self) -> Option<satori_memory::GuestMemory> {
        self.domain.upgrade().map(|domain| domain.memory().clone())
    }

    pub(crate) fn follow(&self, domain: &Domain) {
        self.connection.follow(domain, self);
    }

    /// The machine's life is over: what is under way is for nobody.
    pub(crate) fn leave(&self) {
        lock(&self.queues).clear();
        self.disk.clear();
    }

    /// Takes the requests of a queue that was notified.
    pub(crate) fn serve(block: &Arc<Block>, queue: u32) {
        let Some(domain) = block.domain.upgrade() else { return };
        let memory = domain.memory();
        for _ in 0..AT_ONCE {
            let request: Option<[u8; REQUEST]> = {
                let mut queues = lock(&block.queues);
                let Some(queue) = queues.get_mut(queue as usize) else { return };
                match queue.ring.take(memory) {
                    None if queue.ring.listen(memory) => continue,
                    taken => taken,
                }
            };
            match request {
                Some(request) => Block::take(block, &domain, queue, &request),
                None => return,
            }
        }
        let own = block.clone();
        let more = block.disk.thread().spawn("disk", move || Block::serve(&own, queue));
        if let Err(error) = more {
            tracing::warn!("no thread for requests to a disk ({error}): they wait for the next one");
        }
    }

    fn take(block: &Arc<Block>, domain: &Arc<Domain>, queue: u32, request: &[u8; REQUEST]) {
        // An indirect request's own operation, which is what is answered, is beside that.
        let (id, operation) = (u64_at(request, 8), request[usize::from(request[0] == INDIRECT)]);
        let asked = block.parse(domain, request);
        let (work, segments) = match asked {
            Ok(asked) => asked,
            Err(status) => return block.answer(domain, queue, id, operation, status),
        };
        let (own, domain) = (block.clone(), Arc::downgrade(domain));
        let answer = move |result: std::io::Result<Vec<u8>>| {
            let Some(domain) = domain.upgrade() else { return };
            let status = match result {
                Ok(data) => own.give(&domain, &segments, &data),
                Err(_) => ERROR,
            };
            own.answer(&domain, queue, id, operation, status);
        };
        block.disk.take(work, Box::new(answer));
    }

    /// What is asked for, and where what is read goes. The error is the status.
    fn parse(&self, domain: &Domain, request: &[u8; REQUEST]) -> Result<(Request, Vec<Segment>), i16> {
        let image = self.disk.image();
        // Linux names no sector that there is where it flushes.
        if request[0] == FLUSH {
            return if request[1] == 0 { Ok((Request::Flush, Vec::new())) } else { Err(ERROR) };
        }
        let sector = u64_at(request, 16);
        let at = sector.checked_mul(SECTOR).ok_or(ERROR)?;
        let fits = |len: u64| at.checked_add(len).is_some_and(|end| end <= image.bytes());
        let (operation, parts) = match request[0] {
            DISCARD if image.readonly() => return Err(ERROR),
            DISCARD => {
                let sectors = u64_at(request, 24);
                let len = sectors.checked_mul(SECTOR).filter(|len| sectors <= DISCARD_SECTORS && fits(*len));
                return Ok((Request::Discard(vec![(at, len.ok_or(ERROR)?)]), Vec::new()));
            }
            operation @ (READ | WRITE) => {
                let count = usize::from(request[1]);
                let raw = request.get(24..24 + count * 8).filter(|_| count <= SEGMENTS).ok_or(ERROR)?;
                (operation, segments(raw).ok_or(ERROR)?)
            }
            INDIRECT => (request[1], self.indirect(domain, request)?),
            _ => return Err(UNSUPPORTED),
        };
        let len: usize = parts.iter().map(|part| part.len).sum();
        if parts.is_empty() || !fits(len as u64) {
            return Err(ERROR);
        }
        match operation {
            READ => Ok((Request::Read { at, len }, parts)),
            WRITE if !image.readonly() => {
                let mut data = vec![0; len];
                let mut done = 0;
                for part in &parts {
                    let piece = &mut data[done..done + part.len];
                    domain
                        .grant_copy(part.reference, part.first, Copied::FromGuest(piece))
                        .map_err(|_| ERROR)?;
                    done += part.len;
                }
                Ok((Request::Write { at, data }, Vec::new()))
            }
            _ => Err(ERROR),
        }
    }

    /// The segments of a request that has them in pages of their own.
    fn indirect(&self, domain: &Domain, request: &[u8; REQUEST]) -> Result<Vec<Segment>, i16> {
        const IN_PAGE: usize = PAGE_SIZE as usize / 8;
        let mut left = usize::from(u16_at(request, 2));
        if left > SEGMENTS_MAX {
            return Err(ERROR);
        }
        let mut all = Vec::new();
        for page in 0.. {
            if left == 0 {
                break;
            }
            let here = left.min(IN_PAGE);
            let mut raw = vec![0; here * 8];
            let reference = u32_at(request, 28 + page * 4);
            domain.grant_copy(reference, 0, Copied::FromGuest(&mut raw)).map_err(|_| ERROR)?;
            all.extend(segments(&raw).ok_or(ERROR)?);
            left -= here;
        }
        Ok(all)
    }

    /// Gives the guest what was read; the status of that.
    fn give(&self, domain: &Domain, segments: &[Segment], data: &[u8]) -> i16 {
        let mut done = 0;
        for part in segments {
            let Some(piece) = data.get(done..done + part.len) else { return ERROR };
            if domain.grant_copy(part.reference, part.first, Copied::ToGuest(piece)).is_err() {
                return ERROR;
            }
            done += part.len;
        }
        OKAY
    }

    fn answer(&self, domain: &Domain, queue: u32, id: u64, operation: u8, status: i16) {
        let mut bytes = [0; RESPONSE];
        bytes[..8].copy_from_slice(&id.to_le_bytes());
        bytes[8] = operation;
        bytes[10..12].copy_from_slice(&status.to_le_bytes());
        let (memory, back) = (domain.memory(), self.index * QUEUES + queue);
        let notify = {
            let mut queues = lock(&self.queues);
            let Some(queue) = queues.get_mut(queue as usize) else { return };
            let before = queue.ring.given;
            queue.ring.put(memory, &bytes);
            queue.ring.push(memory, before).then_some(queue.port)
        };
        self.moved.fetch_add(1, Ordering::Relaxed);
        if let Some(port) = notify {
            domain.notify(port, back);
        }
    }
}

impl Ends for Block {
    fn offer(&self) -> Vec<(&'static str, String)> {
        let image = self.disk.image();
        let flag = |yes: bool| u8::from(yes).to_string();
        vec![
            ("feature-flush-cache", flag(!image.writes_through())),
            ("feature-discard", flag(!image.readonly())),
            ("feature-persistent", flag(true)),
            ("feature-max-indirect-segments", SEGMENTS_MAX.to_string()),
            ("max-ring-page-order", PAGES_MAX_ORDER.to_string()),
            ("multi-queue-max-queues", QUEUES_MAX.to_string()),
        ]
    }

    fn tell(&self) -> Vec<(&'static str, String)> {
        let image = self.disk.image();
        vec![
            ("sectors", (image.bytes() / SECTOR).to_string()),
            ("sector-size", SECTOR.to_string()),
            ("physical-sector-size", "4096".into()),
            ("info", if image.readonly() { READ_ONLY.to_string() } else { "0".into() }),
            ("discard-granularity", "4096".into()),
            ("discard-alignment", "0".into()),
        ]
    }

    fn connect(&self, domain: &Domain, front: &str) -> Result<(), String> {
        let number = |name: &str| domain.with_store(|store| store.read::<u32>(&format!("{front}/{name}")));
        let protocol = domain.with_store(|store| store.read::<String>(&format!("{front}/protocol")));
        if protocol.is_some_and(|protocol| protocol != "x86_64-abi") {
            return Err("its protocol is not x86_64-abi".into());
        }
        let queues = number("multi-queue-num-queues").unwrap_or(1);
        let order = number("ring-page-order").unwrap_or(0);
        if !(1..=QUEUES_MAX).contains(&queues) || order > PAGES_MAX_ORDER {
            return Err(format!("it has {queues} queues of 2^{order} pages"));
        }
        let several = number("multi-queue-num-queues").is_some();
        let ordered = number("ring-page-order").is_some();
        let mut own = lock(&self.queues);
        for queue in 0..queues {
            let folder = if several { format!("queue-{queue}/") } else { String::new() };
            let name = |page: u32| match ordered {
                true => format!("{folder}ring-ref{page}"),
                false => format!("{folder}ring-ref"),
            };
            let connected = (|| {
                let references = (0..1 << order).map(|page| number(&name(page)));
                let references: Option<Vec<u32>> = references.collect();
                let port = number(&format!("{folder}event-channel")).ok_or("it names no event channel")?;
                let references = references.ok_or("it does not name all pages of its ring")?;
                let ring = Ring::map(domain, references, REQUEST as u64)?;
                if !domain.bind_back(port, self.index * QUEUES + queue) {
                    ring.unmap(domain);
                    return Err(format!("its port {port} does not wait for a back end"));
                }
                Ok(Queue { ring, port })
            })();
            match connected {
                Ok(queue) => own.push(queue),
                Err(why) => {
                    self.give_up(domain, &mut own);
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    fn disconnect(&self, domain: &Domain) {
        // Nothing of this driver's comes behind something of the next one.
        self.disk.clear();
        self.give_up(domain, &mut lock(&self.queues));
    }
}

impl Block {
    fn give_up(&self, domain: &Domain, queues: &mut Vec<Queue>) {
        for (queue, number) in queues.drain(..).zip(0..) {
            queue.ring.unmap(domain);
            domain.leave_back(queue.port, self.index * QUEUES + number);
        }
    }
}
