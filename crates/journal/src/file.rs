//! The file: a heading that says of which run it is, events, and how the run ended.
//!
//! ```text
//! "satori record\n", version (u32); number of items of the heading (u32), each a name and a value
//! events: 1, round (u64), instructions (u64), source (u32), bytes
//! the end: 2, instructions (u64), how (text), the host's nanoseconds that it took (u64), and a sum of all bytes before it (u64)
//! ```
//!
//! Numbers are little-endian; texts and bytes stand behind their length (u32).

use std::io::{self, BufWriter, Read, Write};

/// What a file begins with, and the version of what follows.
const MAGIC: &[u8] = b"satori record\n";
const VERSION: u32 = 1;
const EVENT: u8 = 1;
const END: u8 = 2;
/// The largest file that is read.
const MOST: u64 = 4 << 30;

/// Why a record cannot be written, or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host refused.
    #[error("{0}")]
    Host(#[from] io::Error),
    /// It is no record.
    #[error("it is no record of Satori's: name a file that --record wrote")]
    Foreign,
    /// Another version wrote it.
    #[error("it is a record of version {0}, and this Satori has version {VERSION}: record again")]
    Version(u32),
    /// It ends early.
    #[error("it is cut off: the run that wrote it was killed, or its disk was full; record again")]
    Short,
    /// Its bytes are others than those that were written.
    #[error("it is damaged: record again")]
    Damaged,
}

/// What a run is known by, as names and values.
pub type Heading = Vec<(String, Vec<u8>)>;

/// Something that came from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub round: u64,
    pub count: u64,
    pub source: u32,
    pub bytes: Vec<u8>,
}

/// FNV-1a, which finds damage and forgery is no matter of.
#[derive(Clone, Copy)]
struct Sum(u64);

impl Sum {
    const BEGIN: Sum = Sum(0xcbf2_9ce4_8422_2325);

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

pub(crate) struct Writer {
    file: BufWriter<Box<dyn Write + Send>>,
    sum: Sum,
    /// The heading, until the guest begins: a run that is refused leaves the file as it was.
    held: Option<Vec<u8>>,
}

impl Writer {
    pub(crate) fn new(file: Box<dyn Write + Send>) -> Self {
        Writer { file: BufWriter::new(file), sum: Sum::BEGIN, held: Some(Vec::new()) }
    }

    pub(crate) fn begin(&mut self, heading: &Heading) -> io::Result<()> {
        self.put(MAGIC)?;
        self.put(&VERSION.to_le_bytes())?;
        self.put(&(heading.len() as u32).to_le_bytes())?;
        for (name, value) in heading {
            self.text(name.as_bytes())?;
            self.text(value)?;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum.add(bytes);
        match &mut self.held {
            Some(held) => {
                held.extend(bytes);
                Ok(())
            }
            None => self.file.write_all(bytes),
        }
    }

    fn text(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put(&(bytes.len() as u32).to_le_bytes())?;
        self.put(bytes)
    }

    /// The guest begins, if it has not yet: from now on everything is written.
    pub(crate) fn go(&mut self) -> io::Result<()> {
        match self.held.take() {
            Some(held) => self.file.write_all(&held),
            None => Ok(()),
        }
    }

    pub(crate) fn event(&mut self, event: &Event) -> io::Result<()> {
        self.put(&[EVENT])?;
        self.put(&event.round.to_le_bytes())?;
        self.put(&event.count.to_le_bytes())?;
        self.put(&event.source.to_le_bytes())?;
        self.text(&event.bytes)
    }

    pub(crate) fn end(&mut self, count: u64, how: &str, elapsed: u64) -> io::Result<()> {
        self.put(&[END])?;
        self.put(&count.to_le_bytes())?;
        self.text(how.as_bytes())?;
        self.put(&elapsed.to_le_bytes())?;
        let sum = self.sum.0;
        self.put(&sum.to_le_bytes())?;
        self.file.flush()
    }
}

pub(crate) struct Reader {
    heading: Heading,
    events: std::collections::VecDeque<Event>,
    ending: (u64, String),
    elapsed: u64,
}

struct Bytes<'a> {
    rest: &'a [u8],
}

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Error::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.take(N)?.try_into().map_err(|_| Error::Short)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.number()?))
    }

    fn u64(&mut self) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.number()?))
    }

    fn text(&mut self) -> Result<&'a [u8], Error> {
        let count = self.u32()? as usize;
        self.take(count)
    }
}

impl Reader {
    pub(crate) fn new(file: impl Read) -> Result<Self, Error> {
        let mut all = Vec::new();
        file.take(MOST).read_to_end(&mut all)?;
        let mut bytes = Bytes { rest: &all };
        if bytes.take(MAGIC.len()).map_err(|_| Error::Foreign)? != MAGIC {
            return Err(Error::Foreign);
        }
        match bytes.u32()? {
            VERSION => {}
            other => return Err(Error::Version(other)),
        }
        let mut heading = Heading::new();
        for _ in 0..bytes.u32()? {
            let name = String::from_utf8(bytes.text()?.to_vec()).map_err(|_| Error::Damaged)?;
            heading.push((name, bytes.text()?.to_vec()));
        }
        let mut events = std::collections::VecDeque::new();
        loop {
            match bytes.number()? {
                [EVENT] => events.push_back(Event {
                    round: bytes.u64()?,
                    count: bytes.u64()?,
                    source: bytes.u32()?,
                    bytes: bytes.text()?.to_vec(),
                }),
                [END] => break,
                _ => return Err(Error::Damaged),
            }
        }
        let count = bytes.u64()?;
        let how = String::from_utf8(bytes.text()?.to_vec()).map_err(|_| Error::Damaged)?;
        let elapsed = bytes.u64()?;
        let mut sum = Sum::BEGIN;
        sum.add(&all[..all.len() - bytes.rest.len()]);
        if bytes.u64()? != sum.0 || !bytes.rest.is_empty() {
            return Err(Error::Damaged);
        }
        Ok(Reader { heading, events, ending: (count, how), elapsed })
    }

    pub(crate) fn heading(&self) -> &Heading {
        &self.heading
    }

    pub(crate) fn peek(&self) -> Option<&Event> {
        self.events.front()
    }

    pub(crate) fn next_if(&mut self, wanted: impl FnOnce(&mut Event) -> bool) -> Option<Event> {
        self.events.front_mut().is_some_and(wanted).then(|| self.events.pop_front()).flatten()
    }

    pub(crate) fn elapsed(&self) -> u64 {
        self.elapsed
    }

    pub(crate) fn ending(&self) -> &(u64, String) {
        &self.ending
    }
}
