//! What a unit tells of itself.

use super::{BAD_FIELD, Lun, Sense, TRANSFER_MAX, UNMAP_BLOCKS, UNMAP_RANGES};
use satori_defs::virtio::block::SECTOR;

/// Vendor, product and revision, padded by spaces.
const IDENTITY: &[u8; 28] = b"SATORI  Virtual Disk    1.0 ";
/// What stands where there is no unit: no type, and none can be there.
const ABSENT: u8 = 0x7f;

/// INQUIRY.
pub(super) fn inquiry(lun: Option<&Lun>, cdb: &[u8; 16]) -> Result<Vec<u8>, Sense> {
    match (cdb[1] & 1 != 0, lun) {
        (false, _) => {
            if cdb[2] != 0 {
                return Err(BAD_FIELD);
            }
            // SPC-4, the response format of all, 31 more bytes, commands are queued.
            let mut bytes = vec![lun.map_or(ABSENT, |_| 0), 0, 6, 2, 31, 0, 0, 2];
            bytes.extend(IDENTITY);
            Ok(bytes)
        }
        (true, None) => Err(BAD_FIELD),
        (true, Some(lun)) => {
            let page = page(lun, cdb[2]).ok_or(BAD_FIELD)?;
            let mut bytes = vec![0, cdb[2]];
            bytes.extend((page.len() as u16).to_be_bytes());
            bytes.extend(page);
            Ok(bytes)
        }
    }
}

/// A page of vital product data, behind its header.
fn page(lun: &Lun, number: u8) -> Option<Vec<u8>> {
    Some(match number {
        0x00 => vec![0x00, 0x80, 0x83, 0xb0, 0xb1, 0xb2],
        0x80 => serial(lun),
        0x83 => {
            // Of the unit, in ASCII, by vendor: T10's form.
            let id = [&IDENTITY[..24], &serial(lun)].concat();
            [&[2, 1, 0, id.len() as u8][..], &id].concat()
        }
        0xb0 => {
            let mut limits = vec![0; 60];
            let mut word = |at: usize, value: u32| limits[at - 4..at].copy_from_slice(&value.to_be_bytes());
            // In blocks: transfers are best of pages, and at most so long.
            limits_of(lun, &mut word);
            limits
        }
        0xb1 => {
            let mut kind = vec![0; 60];
            // It does not rotate.
            kind[1] = 1;
            kind
        }
        // UNMAP is there; what it leaves need not be zero.
        0xb2 => vec![0, if lun.image().readonly() { 0 } else { 0x80 }, 0, 0],
        _ => return None,
    })
}

/// Block limits, by their offsets behind the page's header.
fn limits_of(lun: &Lun, word: &mut dyn FnMut(usize, u32)) {
    word(8, TRANSFER_MAX / SECTOR as u32);
    word(12, TRANSFER_MAX / SECTOR as u32);
    if !lun.image().readonly() {
        word(20, UNMAP_BLOCKS);
        word(24, UNMAP_RANGES);
        word(28, 8);
    }
}

fn serial(lun: &Lun) -> Vec<u8> {
    // One that is not given is blank, as the standard wants it.
    if lun.serial.is_empty() { vec![b' '; 4] } else { lun.serial.clone().into_bytes() }
}

/// MODE SENSE, of 6 or of 10 bytes: whether it is written, and whether it keeps what is.
pub(super) fn mode_sense(lun: &Lun, cdb: &[u8; 16], ten: bool) -> Result<Vec<u8>, Sense> {
    let cache = if lun.image().writes_through() { 0 } else { 4 };
    let mut caching = vec![8, 18, cache];
    caching.resize(20, 0);
    let mut control = vec![10, 10];
    control.resize(12, 0);
    let mut pages = match cdb[2] & 0x3f {
        0x08 => caching,
        0x0a => control,
        0x3f => [caching, control].concat(),
        _ => return Err(BAD_FIELD),
    };
    if cdb[2] >> 6 == 1 {
        // What can be changed: nothing.
        pages.iter_mut().skip(2).for_each(|byte| *byte = 0);
    }
    // Write-protected; FUA is understood.
    let device = if lun.image().readonly() { 0x90 } else { 0x10 };
    let mut bytes = if ten { vec![0, 0, 0, device, 0, 0, 0, 0] } else { vec![0, 0, device, 0] };
    bytes.extend(pages);
    if ten {
        let len = (bytes.len() - 2) as u16;
        bytes[..2].copy_from_slice(&len.to_be_bytes());
    } else {
        bytes[0] = (bytes.len() - 1) as u8;
    }
    Ok(bytes)
}
