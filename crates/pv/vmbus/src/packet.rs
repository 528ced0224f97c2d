//! A packet that a guest sent.

use satori_defs::hyperv::vmbus::packet::{GPA_DIRECT, WANTS_COMPLETION};
use satori_defs::hyperv::vmbus::ring::HEADER;
use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, GuestMemory};

use crate::{Broken, Bytes as _};

/// A piece of guest memory that a packet names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub at: Gpa,
    /// Its bytes.
    pub len: u32,
}

/// A packet, copied out of its ring.
#[derive(Clone, Debug)]
pub struct Packet {
    bytes: Vec<u8>,
    payload: usize,
    /// Which life of the channel it is of.
    pub(crate) life: u64,
    /// Guest memory that it names, all of which is RAM, in its order.
    pub spans: Vec<Span>,
}

/// Where a packet's ranges begin, behind their count.
const RANGES: usize = 24;
/// Most bytes that a packet names.
const MOST: u64 = 64 << 20;

impl Packet {
    /// Reads `bytes`, whose header [`crate::ring::Reader`] has checked.
    pub(crate) fn parse(bytes: Vec<u8>, life: u64, memory: &GuestMemory) -> Result<Self, Broken> {
        let payload = usize::from(bytes.u16_at(2)) * 8;
        let mut packet = Packet { bytes, payload, life, spans: Vec::new() };
        if packet.kind() == GPA_DIRECT {
            packet.spans = spans(packet.bytes.get(..payload).unwrap_or_default(), memory)?;
        }
        Ok(packet)
    }

    /// Its type.
    pub fn kind(&self) -> u16 {
        self.bytes.u16_at(0)
    }

    /// The number by which it is completed.
    pub fn id(&self) -> u64 {
        self.bytes.u64_at(8)
    }

    /// Whether the guest waits for a completion.
    pub fn wants_completion(&self) -> bool {
        self.bytes.u16_at(6) & WANTS_COMPLETION != 0
    }

    /// What is in it, padded to a multiple of 8.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.payload..).unwrap_or_default()
    }

    /// Bytes of the memory that it names.
    pub fn span_bytes(&self) -> usize {
        self.spans.iter().map(|span| span.len as usize).sum()
    }

    /// Copies up to `most` bytes out of the memory that it names.
    pub fn read(&self, memory: &GuestMemory, most: usize) -> Vec<u8> {
        let mut out = vec![0; most.min(self.span_bytes())];
        let mut done = 0;
        for span in &self.spans {
            let len = (span.len as usize).min(out.len() - done);
            // That it is RAM was checked; what a balloon took since then is zeroes.
            let _ = memory.read(span.at, &mut out[done..done + len]);
            done += len;
        }
        out
    }

    /// Copies `data` in; returns how much of it there was room for.
    pub fn write(&self, memory: &GuestMemory, data: &[u8]) -> usize {
        let mut done = 0;
        for span in &self.spans {
            let len = (span.len as usize).min(data.len() - done);
            let _ = memory.write(span.at, &data[done..done + len]);
            done += len;
        }
        done
    }
}

/// What the ranges in `head` name, pages that follow each other as one.
fn spans(head: &[u8], memory: &GuestMemory) -> Result<Vec<Span>, Broken> {
    const WRONG: Broken = Broken("ranges of a packet are longer than it");
    let count = head.u32_at(HEADER as usize + 4);
    let mut rest = head.get(RANGES..).ok_or(WRONG)?;
    let mut spans: Vec<Span> = Vec::new();
    let mut total = 0;
    for _ in 0..count {
        let (range, frames) = rest.split_at_checked(8).ok_or(WRONG)?;
        let (bytes, offset) = (u64::from(range.u32_at(0)), u64::from(range.u32_at(4)));
        total += bytes;
        if total > MOST {
            return Err(Broken("a packet names too much memory"));
        }
        let pages = (offset + bytes).div_ceil(PAGE_SIZE) as usize;
        let (frames, behind) = frames.split_at_checked(pages * 8).ok_or(WRONG)?;
        rest = behind;
        let (mut skip, mut left) = (offset, bytes);
        for frame in frames.as_chunks::<8>().0 {
            let here = PAGE_SIZE.saturating_sub(skip).min(left);
            let start = u64::from_le_bytes(*frame).checked_mul(PAGE_SIZE).ok_or(WRONG)?;
            let at = Gpa(start.checked_add(skip.min(PAGE_SIZE)).ok_or(WRONG)?);
            (skip, left) = (skip.saturating_sub(PAGE_SIZE), left - here);
            if here == 0 {
                continue;
            }
            if !memory.has(at, here) {
                return Err(Broken("a packet names memory that is no RAM"));
            }
            match spans.last_mut() {
                Some(last) if last.at.0 + u64::from(last.len) == at.0 => last.len += here as u32,
                _ => spans.push(Span { at, len: here as u32 }),
            }
        }
    }
    Ok(spans)
}
