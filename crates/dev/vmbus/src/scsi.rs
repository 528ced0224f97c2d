//! SCSI commands on disk images (SPC-4, SBC-3). Numbers in commands and answers are big-endian.

use satori_defs::virtio::block::SECTOR;
use satori_image::{Image, Request, Requests};

mod inquiry;
#[cfg(test)]
mod tests;

/// Most blocks of an UNMAP, and most ranges.
const UNMAP_BLOCKS: u32 = 1 << 16;
const UNMAP_RANGES: u32 = 32;
/// Bytes of the longest transfer.
pub(crate) const TRANSFER_MAX: u32 = 256 << 10;

/// A disk, as a logical unit.
pub(crate) struct Lun {
    /// Its requests, and its image, which the guest cannot write if it is read-only.
    pub requests: Requests,
    /// What the guest finds as the disk's serial.
    pub serial: String,
}

/// Why a command is not done: sense key, and the additional code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sense(pub u8, pub u16);

pub(crate) const NO_UNIT: Sense = Sense(5, 0x2500);
const UNKNOWN: Sense = Sense(5, 0x2000);
const BAD_FIELD: Sense = Sense(5, 0x2400);
const BAD_LIST: Sense = Sense(5, 0x2600);
const BEYOND: Sense = Sense(5, 0x2100);
const READ_FAILED: Sense = Sense(3, 0x1100);
const WRITE_FAILED: Sense = Sense(3, 0x0c00);
const PROTECTED: Sense = Sense(7, 0x2700);

impl Sense {
    /// In the fixed format.
    pub(crate) fn bytes(self) -> [u8; 18] {
        let mut bytes = [0; 18];
        (bytes[0], bytes[2], bytes[7]) = (0x70, self.0, 10);
        bytes[12..14].copy_from_slice(&self.1.to_be_bytes());
        bytes
    }
}

/// What a command wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Read { at: u64, len: usize },
    Write { at: u64, len: usize, through: bool },
    Flush,
    Unmap,
}

/// What a command comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// The answer is here.
    Answer(Vec<u8>),
    /// It may have to wait for the disk.
    Disk(Wish),
}

fn be16(cdb: &[u8], at: usize) -> u32 {
    u32::from(u16::from_be_bytes([cdb[at], cdb[at + 1]]))
}

fn be32(cdb: &[u8], at: usize) -> u32 {
    be16(cdb, at) << 16 | be16(cdb, at + 2)
}

fn be64(cdb: &[u8], at: usize) -> u64 {
    u64::from(be32(cdb, at)) << 32 | u64::from(be32(cdb, at + 4))
}

/// What the command `cdb` wants of `lun`, of those that are `present`.
pub(crate) fn parse(lun: Option<&Lun>, present: &[u8], cdb: &[u8; 16]) -> Result<Command, Sense> {
    let answer = |bytes: Vec<u8>, most: u32| Ok(Command::Answer(cut(bytes, most)));
    match (cdb[0], lun) {
        (0x12, lun) => answer(inquiry::inquiry(lun, cdb)?, be16(cdb, 3)),
        (0xa0, _) => answer(report_luns(present), be32(cdb, 6)),
        // REQUEST SENSE: nothing is kept, as each command brings its own.
        (0x03, _) => answer(Sense(0, 0).bytes().into(), cdb[4].into()),
        // No unit there.
        (_, None) => Err(NO_UNIT),
        (code, Some(lun)) => of_unit(lun, code, cdb),
    }
}

fn of_unit(lun: &Lun, code: u8, cdb: &[u8; 16]) -> Result<Command, Sense> {
    let answer = |bytes: Vec<u8>, most: u32| Ok(Command::Answer(cut(bytes, most)));
    let last = lun.image().bytes() / SECTOR - 1;
    match code {
        // TEST UNIT READY, START STOP UNIT, PREVENT REMOVAL, VERIFY of nothing that was sent.
        0x00 | 0x1b | 0x1e => answer(Vec::new(), 0),
        0x2f | 0x8f if cdb[1] & 6 == 0 => answer(Vec::new(), 0),
        0x25 => {
            let last = u32::try_from(last).unwrap_or(u32::MAX);
            answer([last.to_be_bytes(), (SECTOR as u32).to_be_bytes()].concat(), 8)
        }
        0x9e if cdb[1] & 0x1f == 0x10 => {
            let mut bytes = [&last.to_be_bytes()[..], &(SECTOR as u32).to_be_bytes()].concat();
            // Eight blocks are one of what is beneath; blocks can be given up, and are zero then or are not.
            bytes.extend([0, 3, if lun.image().readonly() { 0 } else { 0x80 }, 0]);
            bytes.resize(32, 0);
            answer(bytes, be32(cdb, 10))
        }
        0x1a => answer(inquiry::mode_sense(lun, cdb, false)?, cdb[4].into()),
        0x5a => answer(inquiry::mode_sense(lun, cdb, true)?, be16(cdb, 7)),
        0x08 | 0x0a => {
            let blocks = if cdb[4] == 0 { 256 } else { u32::from(cdb[4]) };
            transfer(lun, code == 0x0a, u64::from(be32(cdb, 0) & 0x1f_ffff), blocks, false)
        }
        0x28 | 0x2a => transfer(lun, code == 0x2a, be32(cdb, 2).into(), be16(cdb, 7), cdb[1] & 8 != 0),
        0xa8 | 0xaa => transfer(lun, code == 0xaa, be32(cdb, 2).into(), be32(cdb, 6), cdb[1] & 8 != 0),
        0x88 | 0x8a => transfer(lun, code == 0x8a, be64(cdb, 2), be32(cdb, 10), cdb[1] & 8 != 0),
        0x35 | 0x91 => Ok(Command::Disk(Wish::Flush)),
        0x42 if lun.image().readonly() => Err(PROTECTED),
        0x42 => Ok(Command::Disk(Wish::Unmap)),
        _ => Err(UNKNOWN),
    }
}

fn cut(mut bytes: Vec<u8>, most: u32) -> Vec<u8> {
    bytes.truncate(most as usize);
    bytes
}

fn transfer(lun: &Lun, write: bool, block: u64, blocks: u32, through: bool) -> Result<Command, Sense> {
    if write && lun.image().readonly() {
        return Err(PROTECTED);
    }
    let (at, len) = (block.checked_mul(SECTOR).ok_or(BEYOND)?, u64::from(blocks) * SECTOR);
    if at.checked_add(len).is_none_or(|end| end > lun.image().bytes()) {
        return Err(BEYOND);
    }
    if len > TRANSFER_MAX.into() {
        return Err(BAD_FIELD);
    }
    let len = len as usize;
    Ok(Command::Disk(if write { Wish::Write { at, len, through } } else { Wish::Read { at, len } }))
}

fn report_luns(present: &[u8]) -> Vec<u8> {
    let mut bytes = (present.len() as u32 * 8).to_be_bytes().to_vec();
    bytes.resize(8, 0);
    present.iter().for_each(|lun| bytes.extend([0, *lun, 0, 0, 0, 0, 0, 0]));
    bytes
}

impl Wish {
    /// So many bytes the guest sends with it.
    pub(crate) fn brings(self) -> usize {
        match self {
            Wish::Write { len, .. } => len,
            // A header, and its ranges.
            Wish::Unmap => 8 + 16 * UNMAP_RANGES as usize,
            Wish::Read { .. } | Wish::Flush => 0,
        }
    }

    /// What it means if the disk fails.
    pub(crate) fn failed(self) -> Sense {
        if let Wish::Read { .. } = self { READ_FAILED } else { WRITE_FAILED }
    }

    /// The request to the disk, with what the guest sent.
    pub(crate) fn request(self, image: &Image, data: Vec<u8>) -> Result<Request, Sense> {
        Ok(match self {
            Wish::Read { at, len } => Request::Read { at, len },
            Wish::Write { at, len, .. } if data.len() == len => Request::Write { at, data },
            Wish::Write { .. } => return Err(BAD_FIELD),
            Wish::Flush => Request::Flush,
            Wish::Unmap => Request::Discard(ranges(image, &data)?),
        })
    }
}

impl Lun {
    pub(crate) fn image(&self) -> &Image {
        self.requests.image()
    }
}

/// The ranges of an UNMAP, as bytes.
fn ranges(image: &Image, data: &[u8]) -> Result<Vec<(u64, u64)>, Sense> {
    let bytes = data.get(2..4).map_or(0, |len| be16(len, 0)) as usize;
    let list = data.get(8..8 + bytes).ok_or(BAD_LIST)?.as_chunks::<16>().0;
    let range = |entry: &[u8; 16]| {
        let blocks = be32(entry, 8);
        let (at, len) = (be64(entry, 0).checked_mul(SECTOR).ok_or(BEYOND)?, u64::from(blocks) * SECTOR);
        let fits = at.checked_add(len).is_some_and(|end| end <= image.bytes());
        if fits && blocks <= UNMAP_BLOCKS { Ok((at, len)) } else { Err(BEYOND) }
    };
    list.iter().map(range).collect()
}
