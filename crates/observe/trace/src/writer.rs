//! The thread that writes, and what it is handed.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use crate::{Filter, VcpuTrace};

/// Buffers that wait for the disk; with their size, what a trace takes of memory beyond one buffer a vCPU.
pub const QUEUE: usize = 128;
/// Bytes of a buffer that is handed on.
pub(crate) const BUFFER: usize = 64 << 10;
/// How long a run under a virtual clock waits for a disk that takes nothing, once, and the end for the last
/// buffers.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(1);

/// Events as text, and how many.
pub(crate) struct Piece {
    pub text: Vec<u8>,
    pub events: u64,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    dropped: AtomicU64,
}

/// What became of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Events in the file.
    pub written: u64,
    /// Events that came too fast, or for which there was no room.
    pub dropped: u64,
    /// Why writing ended before the end.
    pub error: Option<String>,
}

/// Where vCPUs hand on what they have.
#[derive(Debug)]
pub(crate) struct Outlet {
    queue: SyncSender<Piece>,
    counts: Arc<Counts>,
    patient: bool,
    /// The disk was waited for, in vain.
    stuck: AtomicBool,
}

impl Outlet {
    pub(crate) fn send(&self, piece: Piece) {
        let mut piece = piece;
        let looks = PATIENCE.as_millis() / LOOK.as_millis();
        for _ in 0..looks {
            match self.queue.try_send(piece) {
                Ok(()) => return,
                Err(TrySendError::Full(back)) if self.patient && !self.stuck.load(Ordering::Relaxed) => {
                    piece = back;
                    std::thread::sleep(LOOK);
                }
                Err(TrySendError::Full(back) | TrySendError::Disconnected(back)) => {
                    self.counts.dropped.fetch_add(back.events, Ordering::Relaxed);
                    return;
                }
            }
        }
        self.stuck.store(true, Ordering::Relaxed);
        self.counts.dropped.fetch_add(piece.events, Ordering::Relaxed);
    }
}

/// A trace that is being written.
#[derive(Debug)]
pub struct Tracer {
    outlet: Arc<Outlet>,
    filter: Arc<Filter>,
    done: Receiver<Option<String>>,
    counts: Arc<Counts>,
}

impl Tracer {
    /// Starts writing to `file`. A `patient` one waits for the disk rather than dropping.
    pub fn start(
        file: impl Write + Send + 'static,
        filter: Filter,
        vcpus: u32,
        patient: bool,
    ) -> std::io::Result<Self> {
        let (queue, pieces) = sync_channel(QUEUE);
        let (tell, done) = sync_channel(1);
        let counts = Arc::new(Counts::default());
        let counted = counts.clone();
        let named: Vec<u32> = (0..vcpus).filter(|&vcpu| filter.vcpu(vcpu)).collect();
        let work = move || {
            let error = write(file, &named, &pieces, &counted).err().map(|error| error.to_string());
            if error.is_some() {
                // What comes now is lost, and counted.
                for piece in pieces {
                    counted.dropped.fetch_add(piece.events, Ordering::Relaxed);
                }
            }
            // Nobody listens if the end was not waited for.
            let _ = tell.send(error);
        };
        std::thread::Builder::new().name("trace".into()).spawn(work)?;
        let outlet = Outlet { queue, counts: counts.clone(), patient, stuck: AtomicBool::new(false) };
        Ok(Tracer { outlet: Arc::new(outlet), filter: Arc::new(filter), done, counts })
    }

    /// What vCPU `index` writes with; none if nothing of it is wanted.
    pub fn vcpu(&self, index: u32) -> Option<Box<VcpuTrace>> {
        let wanted = self.filter.vcpu(index);
        wanted.then(|| Box::new(VcpuTrace::new(index, self.filter.clone(), self.outlet.clone())))
    }

    /// Waits until everything is in the file, for some seconds. Every [`VcpuTrace`] must have been dropped.
    pub fn finish(self) -> Told {
        let Tracer { outlet, done, counts, .. } = self;
        drop(outlet);
        let error = match done.recv_timeout(PATIENCE) {
            Ok(error) => error,
            Err(_) => Some("the file takes nothing".into()),
        };
        let [written, dropped] = [&counts.written, &counts.dropped].map(|c| c.load(Ordering::Relaxed));
        Told { written, dropped, error }
    }
}

/// Writes until every sender is gone. The file can be read at any time: viewers bear a missing end.
fn write(
    mut file: impl Write,
    vcpus: &[u32],
    pieces: &Receiver<Piece>,
    counts: &Counts,
) -> std::io::Result<()> {
    let head = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n\
                {\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"satori\"}}";
    file.write_all(head.as_bytes())?;
    for vcpu in vcpus {
        write!(
            file,
            ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":{},\"args\":{{\"name\":\"vCPU {vcpu}\"}}}}",
            vcpu + 1
        )?;
    }
    for piece in pieces {
        if let Err(error) = file.write_all(&piece.text) {
            counts.dropped.fetch_add(piece.events, Ordering::Relaxed);
            return Err(error);
        }
        counts.written.fetch_add(piece.events, Ordering::Relaxed);
    }
    let [written, dropped] = [&counts.written, &counts.dropped].map(|c| c.load(Ordering::Relaxed));
    write!(file, "\n],\"otherData\":{{\"events\":\"{written}\",\"dropped\":\"{dropped}\"}}}}\n")?;
    file.flush()
}
