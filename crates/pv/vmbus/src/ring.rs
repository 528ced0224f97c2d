//! One ring buffer: its reader, or its writer. The other side is the guest, which may write anything anywhere at any time.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use satori_defs::hyperv::vmbus::ring::{CONTROL, HEADER, MASK, PENDING, READ, TRAILER, WRITE};

use crate::{Bytes as _, Pages};

/// The guest broke a rule of rings: which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

/// A ring's place: the control page at `base`, and `size` bytes of data behind it.
#[derive(Clone)]
struct Ring {
    pages: Arc<Pages>,
    base: u64,
    size: u32,
}

impl Ring {
    fn new(pages: Arc<Pages>, base: u64, bytes: u64) -> Option<Self> {
        let size = u32::try_from(bytes.checked_sub(CONTROL.into())?).ok()?;
        let fits = size >= CONTROL && size.is_multiple_of(CONTROL) && base.is_multiple_of(CONTROL.into());
        (fits && base.checked_add(bytes)? <= pages.len()).then_some(Ring { pages, base, size })
    }

    fn word(&self, at: u32) -> Result<u32, Broken> {
        self.pages.load(self.base + u64::from(at))
    }

    fn set(&self, at: u32, value: u32) -> Result<(), Broken> {
        self.pages.store(self.base + u64::from(at), value)
    }

    /// An index that the guest wrote.
    fn index(&self, at: u32) -> Result<u32, Broken> {
        let index = self.word(at)?;
        let fits = index < self.size && index.is_multiple_of(8);
        if fits { Ok(index) } else { Err(Broken("an index is outside the ring, or not of eight bytes")) }
    }

    fn data(&self, at: u32) -> u64 {
        self.base + u64::from(CONTROL) + u64::from(at)
    }

    /// `at` and so many bytes.
    fn advance(&self, at: u32, bytes: u32) -> u32 {
        ((u64::from(at) + u64::from(bytes)) % u64::from(self.size)) as u32
    }

    /// Bytes from `read` to `write`.
    fn used(&self, read: u32, write: u32) -> u32 {
        if write >= read { write - read } else { self.size - read + write }
    }

    fn read(&self, at: u32, data: &mut [u8]) -> Result<(), Broken> {
        let first = data.len().min((self.size - at) as usize);
        let (head, tail) = data.split_at_mut(first);
        self.pages.read(self.data(at), head)?;
        self.pages.read(self.data(0), tail)
    }

    fn write(&self, at: u32, data: &[u8]) -> Result<(), Broken> {
        let (head, tail) = data.split_at(data.len().min((self.size - at) as usize));
        self.pages.write(self.data(at), head)?;
        self.pages.write(self.data(0), tail)
    }
}

/// The guest's packets.
pub(crate) struct Reader {
    ring: Ring,
    /// Where we are; the guest's copy of it is for the guest.
    at: u32,
}

impl Reader {
    pub(crate) fn new(pages: Arc<Pages>, base: u64, bytes: u64) -> Option<Self> {
        let ring = Ring::new(pages, base, bytes)?;
        let at = ring.index(READ).ok()?;
        Some(Reader { ring, at })
    }

    /// One that goes on at `at`.
    pub(crate) fn restored(pages: Arc<Pages>, base: u64, bytes: u64, at: u32) -> Option<Self> {
        let ring = Ring::new(pages, base, bytes)?;
        (at < ring.size && at.is_multiple_of(8)).then_some(Reader { ring, at })
    }

    /// The pages in which the ring is, and where it goes on.
    pub(crate) fn place(&self) -> (&Arc<Pages>, u32) {
        (&self.ring.pages, self.at)
    }

    /// The next packet as bytes, its header first and without its trailer; and whether the guest waits for what became free.
    pub(crate) fn take(&mut self) -> Result<Option<(Vec<u8>, bool)>, Broken> {
        let used = self.ring.used(self.at, self.ring.index(WRITE)?);
        if used == 0 {
            return Ok(None);
        }
        if used < HEADER {
            return Err(Broken("there is less than a header in it"));
        }
        let mut header = [0; HEADER as usize];
        self.ring.read(self.at, &mut header)?;
        let (offset, len) = (u32::from(header.u16_at(2)) * 8, u32::from(header.u16_at(4)) * 8);
        if offset < HEADER || len < offset || len + TRAILER > used {
            return Err(Broken("a packet's lengths are not those of a packet"));
        }
        let mut bytes = vec![0; len as usize];
        self.ring.read(self.at, &mut bytes)?;
        // What was looked at is what is used, whatever is there by now.
        bytes[..header.len()].copy_from_slice(&header);
        self.at = self.ring.advance(self.at, len + TRAILER);
        self.ring.set(READ, self.at)?;
        // Either the guest sees the room, or its wish for it is seen here.
        fence(Ordering::SeqCst);
        let pending = self.ring.word(PENDING)?;
        let before = self.ring.size - used;
        let waits = pending != 0 && before <= pending && before + len + TRAILER > pending;
        Ok(Some((bytes, waits)))
    }

    /// Whether the guest shall signal what it adds.
    pub(crate) fn listen(&self, on: bool) -> Result<(), Broken> {
        self.ring.set(MASK, u32::from(!on))?;
        // Either the guest sees that, or what it added before is seen behind this.
        fence(Ordering::SeqCst);
        Ok(())
    }

    pub(crate) fn has_more(&self) -> Result<bool, Broken> {
        Ok(self.ring.index(WRITE)? != self.at)
    }
}

/// What we send.
pub(crate) struct Writer {
    ring: Ring,
    at: u32,
    /// The guest was asked to tell when there is room.
    asked: bool,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// It is in the ring; whether the guest has to be told.
    Done { signal: bool },
    /// There is no room, and the guest signals when there is.
    Full,
}

impl Writer {
    pub(crate) fn new(pages: Arc<Pages>, base: u64, bytes: u64) -> Option<Self> {
        let ring = Ring::new(pages, base, bytes)?;
        let at = ring.index(WRITE).ok()?;
        Some(Writer { ring, at, asked: false })
    }

    /// One that goes on at `at`.
    pub(crate) fn restored(pages: Arc<Pages>, base: u64, bytes: u64, at: u32, asked: bool) -> Option<Self> {
        let ring = Ring::new(pages, base, bytes)?;
        (at < ring.size && at.is_multiple_of(8)).then_some(Writer { ring, at, asked })
    }

    /// Where the ring begins and goes on, and whether the guest was asked to tell when there is room.
    pub(crate) fn place(&self) -> (u64, u32, bool) {
        (self.ring.base, self.at, self.asked)
    }

    /// Puts a packet, whose length is a multiple of 8 and whose header is right, into the ring.
    pub(crate) fn put(&mut self, packet: &[u8]) -> Result<Put, Broken> {
        let wanted = packet.len() as u32 + TRAILER;
        let room = |ring: &Ring, at| Ok::<_, Broken>(ring.size - ring.used(ring.index(READ)?, at));
        // Never full: that would look empty.
        if room(&self.ring, self.at)? <= wanted {
            if wanted >= self.ring.size {
                return Err(Broken("it is too small for what is sent"));
            }
            self.ring.set(PENDING, wanted)?;
            self.asked = true;
            // Either the guest sees the wish when it makes room, or the room is seen here.
            fence(Ordering::SeqCst);
            if room(&self.ring, self.at)? <= wanted {
                return Ok(Put::Full);
            }
        }
        if std::mem::take(&mut self.asked) {
            self.ring.set(PENDING, 0)?;
        }
        let before = self.at;
        self.ring.write(before, packet)?;
        let end = self.ring.advance(before, packet.len() as u32);
        self.ring.write(end, &(u64::from(before) << 32).to_le_bytes())?;
        self.at = self.ring.advance(end, TRAILER);
        self.ring.set(WRITE, self.at)?;
        fence(Ordering::SeqCst);
        let (masked, read) = (self.ring.word(MASK)? != 0, self.ring.index(READ)?);
        Ok(Put::Done { signal: !masked && read == before })
    }
}
