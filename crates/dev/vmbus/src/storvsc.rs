//! The SCSI controller: its protocol over VMBus, as Linux's storvsc speaks it.
//!
//! What may wait for a disk is done by that disk's [`satori_image::Requests`]. A channel that is closed waits until what those have in
//! their hands is done, so that no write of a former driver comes behind one of the next.

use std::io::Result as IoResult;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use satori_defs::hyperv::vmbus::class;
use satori_image::{Request, Requests};
use satori_save::{Error, State, Value};
use satori_vmbus::{Bus, Bytes as _, Channel, Device, Offer, Packet};
use serde::{Deserialize, Serialize};

use crate::scsi::{Command, Lun, NO_UNIT, Sense, TRANSFER_MAX, Wish, parse};

/// Bytes of a message, of versions that Windows 8 and later speak.
const MESSAGE: usize = 64;
/// Channels beside the first.
const BESIDE: u16 = 7;
/// Most units of a controller.
const LUNS: usize = 64;

/// Operations, at the beginning of a message.
mod operation {
    pub(super) const COMPLETE: u32 = 1;
    pub(super) const EXECUTE: u32 = 3;
    pub(super) const RESET_ADAPTER: u32 = 4;
    pub(super) const RESET_BUS: u32 = 5;
    pub(super) const BEGIN: u32 = 7;
    pub(super) const END: u32 = 8;
    pub(super) const VERSION: u32 = 9;
    pub(super) const PROPERTIES: u32 = 10;
    pub(super) const CHANNELS: u32 = 13;
}

/// Where parts of a message are.
mod at {
    pub(super) const STATUS: usize = 8;
    pub(super) const BODY: usize = 12;
    pub(super) const SRB_STATUS: usize = 14;
    pub(super) const SCSI_STATUS: usize = 15;
    pub(super) const PATH: usize = 17;
    pub(super) const TARGET: usize = 18;
    pub(super) const LUN: usize = 19;
    pub(super) const SENSE_BYTES: usize = 21;
    pub(super) const DATA_BYTES: usize = 24;
    pub(super) const CDB: usize = 28;
}

/// Protocol versions: Windows 8, 8.1, 10.
const VERSIONS: [u16; 3] = [0x0501, 0x0600, 0x0602];
/// What a version that is not spoken is answered, or a message that is none.
const REVISION_MISMATCH: u32 = 0xc000_0059;
const INVALID: u32 = 0xc000_000d;
/// The properties' flag: several channels.
const MULTICHANNEL: u32 = 1;
const SRB_SUCCESS: u8 = 1;
/// An error, with sense.
const SRB_ERROR: u8 = 0x84;
const CHECK_CONDITION: u8 = 2;

/// A SCSI controller with disks.
pub struct Scsi {
    luns: Vec<Lun>,
    /// Everything is done on the thread that asks.
    determined: AtomicBool,
}

/// What the guest sent in-band, of the length that all have.
fn message(packet: &Packet) -> [u8; MESSAGE] {
    let mut bytes = [0; MESSAGE];
    bytes.iter_mut().zip(packet.payload()).for_each(|(to, from)| *to = *from);
    bytes
}

/// Completes a request that was not one to a disk.
fn answer(channel: &Channel, packet: &Packet, status: u32, fill: impl FnOnce(&mut [u8; MESSAGE])) {
    let mut bytes = message(packet);
    bytes[..4].copy_from_slice(&operation::COMPLETE.to_le_bytes());
    bytes[at::STATUS..at::BODY].copy_from_slice(&status.to_le_bytes());
    fill(&mut bytes);
    channel.complete(packet, &bytes);
}

/// Completes a command.
fn finish(channel: &Channel, packet: &Packet, result: &Result<Vec<u8>, Sense>, wrote: usize) {
    channel.complete_with(packet, || {
        let mut bytes = message(packet);
        bytes[..4].copy_from_slice(&operation::COMPLETE.to_le_bytes());
        bytes[at::STATUS..at::BODY].fill(0);
        let asked = bytes.u32_at(at::DATA_BYTES) as usize;
        let moved = match result {
            Ok(data) => {
                (bytes[at::SRB_STATUS], bytes[at::SCSI_STATUS], bytes[at::SENSE_BYTES]) = (SRB_SUCCESS, 0, 0);
                packet.write(channel.memory(), &data[..data.len().min(asked)]) + wrote.min(asked)
            }
            Err(sense) => {
                let sense = sense.bytes();
                bytes[at::CDB..at::CDB + sense.len()].copy_from_slice(&sense);
                (bytes[at::SRB_STATUS], bytes[at::SCSI_STATUS]) = (SRB_ERROR, CHECK_CONDITION);
                bytes[at::SENSE_BYTES] = sense.len() as u8;
                0
            }
        };
        bytes[at::DATA_BYTES..at::CDB].copy_from_slice(&(moved as u32).to_le_bytes());
        bytes.to_vec()
    });
}

/// Has the disk do what `packet` wants of it.
fn of_disk(lun: &Lun, wish: Wish, channel: &Arc<Channel>, packet: Packet) {
    let data = packet.read(channel.memory(), wish.brings());
    let wrote = data.len();
    let request = match wish.request(lun.image(), data) {
        Ok(request) => request,
        Err(sense) => return finish(channel, &packet, &Err(sense), 0),
    };
    let channel = channel.clone();
    if let Wish::Write { through: true, .. } = wish {
        // A flush behind it is what makes it last; it is told of when both are done.
        let wrong = Arc::new(AtomicBool::new(false));
        let failed = wrong.clone();
        let note = move |result: IoResult<Vec<u8>>| failed.store(result.is_err(), Ordering::Release);
        lun.requests.take(request, Box::new(note));
        let both = move |result: IoResult<Vec<u8>>| {
            let result = result.map_err(|_| wish.failed());
            let result = if wrong.load(Ordering::Acquire) { Err(wish.failed()) } else { result };
            finish(&channel, &packet, &result, wrote);
        };
        return lun.requests.take(Request::Flush, Box::new(both));
    }
    let answer = move |result: IoResult<Vec<u8>>| {
        finish(&channel, &packet, &result.map_err(|_| wish.failed()), wrote);
    };
    lun.requests.take(request, Box::new(answer));
}

impl Scsi {
    /// A controller with these disks and their serials, as units from 0 on. The error is what is wrong with them.
    pub fn new(disks: Vec<(Requests, String)>) -> Result<Arc<Self>, String> {
        if disks.len() > LUNS {
            return Err(format!("a VMBus SCSI controller has room for {LUNS} disks: use fewer"));
        }
        let printable = |serial: &str| serial.bytes().all(|byte| (0x20..0x7f).contains(&byte));
        if let Some((_, serial)) = disks.iter().find(|(_, text)| text.len() > 20 || !printable(text)) {
            return Err(format!("'{serial}' is no serial of a disk: use up to 20 letters of ASCII"));
        }
        let luns = disks.into_iter().map(|(requests, serial)| Lun { requests, serial }).collect();
        Ok(Arc::new(Scsi { luns, determined: AtomicBool::new(false) }))
    }

    /// EXECUTE_SRB.
    fn command(&self, channel: &Arc<Channel>, packet: Packet) {
        let bytes = message(&packet);
        // One controller, one target.
        let here = bytes[at::PATH] == 0 && bytes[at::TARGET] == 0;
        let lun = self.luns.get(usize::from(bytes[at::LUN])).filter(|_| here);
        let present: Vec<u8> = (0..self.luns.len() as u8).filter(|_| here).collect();
        let mut cdb = [0; 16];
        cdb.copy_from_slice(&bytes[at::CDB..at::CDB + 16]);
        match (parse(lun, &present, &cdb), lun) {
            (Ok(Command::Answer(data)), _) => finish(channel, &packet, &Ok(data), 0),
            (Ok(Command::Disk(wish)), Some(lun)) => of_disk(lun, wish, channel, packet),
            (Ok(Command::Disk(_)), None) => finish(channel, &packet, &Err(NO_UNIT), 0),
            (Err(sense), _) => finish(channel, &packet, &Err(sense), 0),
        }
    }

    fn packet(&self, bus: &Arc<Bus>, channel: &Arc<Channel>, packet: Packet) {
        let word = |value: u16| value.to_le_bytes();
        match packet.payload().u32_at(0) {
            operation::EXECUTE => self.command(channel, packet),
            operation::BEGIN | operation::END | operation::RESET_BUS | operation::RESET_ADAPTER => {
                answer(channel, &packet, 0, |_| {});
            }
            operation::VERSION => {
                let known = VERSIONS.contains(&packet.payload().u16_at(at::BODY));
                answer(channel, &packet, if known { 0 } else { REVISION_MISMATCH }, |_| {});
            }
            operation::PROPERTIES => answer(channel, &packet, 0, |bytes| {
                bytes[at::BODY..].fill(0);
                bytes[16..18].copy_from_slice(&word(BESIDE));
                bytes[20..24].copy_from_slice(&MULTICHANNEL.to_le_bytes());
                bytes[24..28].copy_from_slice(&TRANSFER_MAX.to_le_bytes());
            }),
            operation::CHANNELS => {
                let count = packet.payload().u16_at(at::BODY);
                let possible = (1..=BESIDE).contains(&count);
                answer(channel, &packet, if possible { 0 } else { INVALID }, |_| {});
                if possible {
                    bus.offer_beside(channel, count);
                }
            }
            _ => answer(channel, &packet, INVALID, |_| {}),
        }
    }
}

impl Device for Scsi {
    fn offer(&self) -> Offer {
        Offer { class: class::SCSI, instance: crate::instance(1, 0), flags: 1 }
    }

    fn files(&self) -> Vec<RawFd> {
        self.luns.iter().flat_map(|lun| lun.image().files()).collect()
    }

    fn begin(&self, determined: bool) {
        self.luns.iter().for_each(|lun| lun.requests.idle());
        self.determined.store(determined, Ordering::Release);
    }

    fn opened(&self, _bus: &Arc<Bus>, _channel: &Arc<Channel>) {
        if !self.determined.load(Ordering::Acquire) {
            self.luns.iter().for_each(|lun| lun.requests.start());
        }
    }

    fn signalled(&self, bus: &Arc<Bus>, channel: &Arc<Channel>) {
        channel.drain(|packet| {
            self.packet(bus, channel, packet);
            true
        });
    }

    fn closed(&self, _channel: &Arc<Channel>) {
        // What other channels wait for is done before as well, which harms nobody.
        self.luns.iter().for_each(|lun| lun.requests.idle());
    }

    /// The images themselves are not among it, but for what snapshots keep in memory: whoever goes on needs them as they were.
    fn save(&self) -> Result<Value, Error> {
        let (mut units, mut all) = (Vec::new(), Vec::new());
        for lun in &self.luns {
            lun.requests.idle();
            let image = lun.image();
            image.settle().map_err(|error| Error::refused("a disk", format!("its image: {error}")))?;
            let (pieces, bytes) = image.snapshot();
            units.push(SavedUnit {
                bytes: image.bytes(),
                readonly: image.readonly(),
                pieces,
                kept: bytes.len(),
            });
            all.extend(bytes);
        }
        Value::with_bytes(&SavedScsi { units }, all)
    }

    fn restore(&self, _bus: &Arc<Bus>, value: &Value) -> Result<(), Error> {
        let SavedScsi { units } = value.state()?;
        let unless = |fits, why| Error::unless(fits, SavedScsi::NAME, why);
        unless(units.len() == self.luns.len(), "it has another number of disks")?;
        let mut rest = value.bytes();
        for (lun, SavedUnit { bytes, readonly, pieces, kept }) in self.luns.iter().zip(units) {
            let image = lun.image();
            lun.requests.idle();
            unless(bytes == image.bytes(), "an image has another size")?;
            unless(readonly == image.readonly(), "one of the two is read-only")?;
            let own = rest.split_off(..kept).unwrap_or_default();
            unless(image.set_snapshot(&pieces, own), "what it keeps of a snapshot is not of this disk")?;
            if !self.determined.load(Ordering::Acquire) {
                lun.requests.start();
            }
        }
        unless(rest.is_empty(), "it keeps more of snapshots than there are")
    }

    /// What the guest wrote and did not flush is its file's when the process ends, as it is with a raw image.
    fn finish(&self, _give_up: &dyn Fn() -> bool) {
        for lun in &self.luns {
            lun.requests.idle();
            if let Err(error) = lun.image().settle() {
                tracing::warn!("a disk could not be written at the end: {error}");
            }
        }
    }
}

/// What of disks is not their images. The bytes are what snapshots keep, one disk's behind the other's.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedScsi {
    units: Vec<SavedUnit>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedUnit {
    bytes: u64,
    readonly: bool,
    /// Which pieces of a snapshot were written; there is a list only for one. And how many bytes those are.
    pieces: Option<Vec<u64>>,
    kept: usize,
}

impl State for SavedScsi {
    const NAME: &'static str = "VMBus SCSI controller";
    const VERSION: u32 = 1;
}
