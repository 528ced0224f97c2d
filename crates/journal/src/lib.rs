//! What comes to a machine from outside: typed bytes, frames, replies of file servers, and that somebody ends it.
//!
//! Under virtual time a run is decided by what it begins with. Whatever else reaches the guest comes through a [`Journal`]: threads that wait
//! for the host bring it ([`Source::bring`]), and the machine takes it between two rounds of its vCPUs ([`Journal::turn`]), where it hands it to
//! the device. A journal that records writes each piece down with its round and the instructions that were retired until then; one that
//! replays takes the pieces from such a file, in the same rounds, and waits for nobody.

#![forbid(unsafe_code)]

mod file;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, OnceLock};

use satori_lock::lock;

pub use file::{Error, Heading};
use file::{Event, Reader, Writer};

/// The source that stands for the machine itself.
const MACHINE: u32 = 0;

/// Who gets what comes, on the thread that runs the machine.
pub type Taker = Box<dyn Fn(&[u8]) + Send + Sync>;

enum Way {
    Record(Writer),
    Replay(Box<Reader>),
}

struct Shared {
    way: Mutex<Way>,
    replays: bool,
    round: Mutex<u64>,
    /// What came and was not taken, each with its source's number.
    inbox: Mutex<VecDeque<(u32, Vec<u8>)>>,
    sources: Mutex<Vec<(String, Arc<OnceLock<Taker>>)>>,
    ring: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A run's journal; clones are the same.
#[derive(Clone)]
pub struct Journal(Arc<Shared>);

/// Where something comes from.
#[derive(Clone)]
pub struct Source {
    journal: Journal,
    number: u32,
    taker: Arc<OnceLock<Taker>>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("replays", &self.0.replays).finish_non_exhaustive()
    }
}

impl PartialEq for Journal {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Journal {}

impl Journal {
    /// One that writes to `file` what a run is told.
    pub fn record(file: impl Write + Send + 'static) -> Journal {
        Journal::of(Way::Record(Writer::new(Box::new(file))), false)
    }

    /// A run with this heading begins. Of a replay the error names what is another one than in the record.
    pub fn begin(&self, heading: &Heading) -> Result<(), String> {
        match &mut *lock(&self.0.way) {
            Way::Record(writer) => writer.begin(heading).map_err(|why| why.to_string()),
            Way::Replay(reader) => match heading.iter().find(|item| !reader.heading().contains(item)) {
                Some((name, _)) => Err(format!(
                    "its {name} is not that of this run: give the same options, files and version as it was recorded with"
                )),
                None => Ok(()),
            },
        }
    }

    /// One that plays what `file` holds, and its heading.
    pub fn replay(file: impl Read) -> Result<(Journal, Heading), Error> {
        let reader = Reader::new(file)?;
        let heading = reader.heading().clone();
        Ok((Journal::of(Way::Replay(Box::new(reader)), true), heading))
    }

    fn of(way: Way, replays: bool) -> Journal {
        let journal = Journal(Arc::new(Shared {
            way: Mutex::new(way),
            replays,
            round: Mutex::new(0),
            inbox: Mutex::default(),
            sources: Mutex::default(),
            ring: OnceLock::new(),
        }));
        journal.source("machine");
        journal
    }

    /// Whether it plays what was written down.
    pub fn replays(&self) -> bool {
        self.0.replays
    }

    /// A new source. The same run has the same ones in the same order.
    pub fn source(&self, name: &str) -> Source {
        let mut sources = lock(&self.0.sources);
        let taker = Arc::<OnceLock<Taker>>::default();
        sources.push((name.to_owned(), taker.clone()));
        Source { journal: self.clone(), number: sources.len() as u32 - 1, taker }
    }

    /// The machine's own source: that somebody ends it, or presses its button.
    pub fn machine(&self) -> Source {
        let sources = lock(&self.0.sources);
        let taker = sources.first().map(|(_, taker)| taker.clone()).unwrap_or_default();
        Source { journal: self.clone(), number: MACHINE, taker }
    }

    /// The names of all sources, joined, as a heading has them.
    pub fn sources(&self) -> String {
        let names: Vec<_> = lock(&self.0.sources).iter().map(|(name, _)| name.clone()).collect();
        names.join(", ")
    }

    /// Sets what wakes the machine when something has come.
    pub fn on_arrival(&self, ring: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.ring.set(Box::new(ring));
    }

    /// Whether something waits for the machine.
    pub fn has_come(&self) -> bool {
        !lock(&self.0.inbox).is_empty()
    }

    /// A round begins at `count` instructions: hands over all that belongs before it. The error is why the run is not the one that was
    /// written down, or cannot be written down any more.
    pub fn turn(&self, count: u64) -> Result<(), String> {
        let round = {
            let mut round = lock(&self.0.round);
            *round += 1;
            *round
        };
        let all = match &mut *lock(&self.0.way) {
            Way::Record(writer) => {
                writer.go().map_err(|why| why.to_string())?;
                let all = self.empty();
                for (source, bytes) in &all {
                    let event = Event { round, count, source: *source, bytes: bytes.clone() };
                    writer.event(&event).map_err(|why| why.to_string())?;
                }
                all
            }
            Way::Replay(reader) => {
                let mut all = Vec::new();
                while let Some(event) = reader.next_if(|event| event.round <= round) {
                    if (event.round, event.count) != (round, count) {
                        return Err(diverged(count, &format!("at {} something came", event.count)));
                    }
                    all.push((event.source, event.bytes));
                }
                all
            }
        };
        for (source, bytes) in all {
            let taker = lock(&self.0.sources).get(source as usize).map(|(_, taker)| taker.clone());
            match taker.as_ref().and_then(|taker| taker.get()) {
                Some(take) => take(&bytes),
                None => {
                    return Err(format!("the record names a source {source} that this run does not have"));
                }
            }
        }
        Ok(())
    }

    fn empty(&self) -> Vec<(u32, Vec<u8>)> {
        lock(&self.0.inbox).drain(..).collect()
    }

    /// When what is played next comes, if that is in the next round: at so many instructions. [`Next::Later`] if it comes behind that.
    pub fn next(&self) -> Next {
        let round = *lock(&self.0.round);
        match &*lock(&self.0.way) {
            Way::Record(_) => Next::Unknown,
            Way::Replay(reader) => match reader.peek() {
                Some(event) if event.round == round + 1 => Next::At(event.count),
                Some(_) => Next::Later,
                None => Next::Nothing,
            },
        }
    }

    /// The run ended at `count` instructions, in these words, behind so many nanoseconds of the host's. Returns these, or those of the
    /// run that was played again; the error is how it ended otherwise than what was written down.
    pub fn end(&self, count: u64, how: &str, elapsed: u64) -> Result<u64, String> {
        match &mut *lock(&self.0.way) {
            Way::Record(writer) => {
                let written = writer.go().and_then(|()| writer.end(count, how, elapsed));
                written.map(|()| elapsed).map_err(|why| why.to_string())
            }
            Way::Replay(reader) => match (reader.peek(), reader.ending()) {
                (None, (at, told)) if (*at, told.as_str()) == (count, how) => Ok(reader.elapsed()),
                (Some(event), _) => {
                    Err(diverged(count, &format!("it went on to {} and further", event.count)))
                }
                (None, (at, told)) => Err(diverged(count, &format!("it ended at {at} ({told})"))),
            },
        }
    }
}

/// See [`Journal::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is written down now, not played.
    Unknown,
    /// In the next round, at so many instructions.
    At(u64),
    /// In a later round.
    Later,
    /// There is no more.
    Nothing,
}

fn diverged(count: u64, what: &str) -> String {
    format!("the replay is another run than the recorded one, here at {count} instructions: there {what}")
}

impl Source {
    /// Sets who takes what comes.
    pub fn to(&self, taker: impl Fn(&[u8]) + Send + Sync + 'static) {
        let _ = self.taker.set(Box::new(taker));
    }

    /// Whether nothing is to be brought, as it is played.
    pub fn replays(&self) -> bool {
        self.journal.replays()
    }

    /// Brings a piece to the machine; nothing means the end. In a replay it goes nowhere.
    pub fn bring(&self, bytes: &[u8]) {
        if self.replays() {
            return;
        }
        let shared = &self.journal.0;
        lock(&shared.inbox).push_back((self.number, bytes.to_vec()));
        if let Some(ring) = shared.ring.get() {
            ring();
        }
    }
}

#[cfg(test)]
mod tests;
