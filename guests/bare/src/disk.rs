//! A disk, driven as it should be: what cases compare with that do other things.

use satori_defs::virtio::feature::{INDIRECT_DESC, VERSION_1};
use satori_defs::virtio::split::{NEXT, WRITE};
use satori_defs::virtio::{block::*, kind};

use crate::paging;
use crate::place::{load, store};
use crate::virtio::{Device, Queue};

/// Its device, a queue, and pages for a request.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// The device.
    pub device: Device,
    /// Its first queue, of 16 descriptors.
    pub queue: Queue,
    /// Where a request's header is.
    pub header: u64,
    /// A page for its data.
    pub data: u64,
    /// Where its status is.
    pub status: u64,
}

impl Default for Disk {
    fn default() -> Self {
        Disk::new()
    }
}

impl Disk {
    /// The first one, begun anew.
    pub fn new() -> Disk {
        let device = Device::find(kind::BLOCK).expect("a disk");
        let [header, data, status] = [paging::page(), paging::page(), paging::page()];
        let mut disk = Disk { device, queue: Queue::new(0, 16), header, data, status };
        assert!(disk.begin(), "the disk does not begin");
        disk
    }

    /// How many sectors it has.
    pub fn sectors(&self) -> u64 {
        load(self.device.config)
    }

    /// A reset, and features with which tables are permitted.
    pub fn begin(&mut self) -> bool {
        let features = VERSION_1 | INDIRECT_DESC | self.device.features() & FLUSH;
        self.device.begin(features, [&mut self.queue])
    }

    /// Writes the header of a request.
    pub fn head(&self, request: u32, sector: u64) {
        store(self.header, u64::from(request));
        store(self.header + 8, sector);
        store(self.status, 0x5a_u8);
    }

    /// Header, data and status as a chain of descriptors from 0 on.
    pub fn chain(&self, len: u32, flags: u16) {
        self.queue.descriptor(0, self.header, HEADER as u32, NEXT, 1);
        self.queue.descriptor(1, self.data, len, flags | NEXT, 2);
        self.queue.descriptor(2, self.status, 1, WRITE, 0);
    }

    /// A request with `len` bytes of data; its status, or nothing if it did not come back.
    pub fn ask(&mut self, request: u32, sector: u64, len: u32) -> Option<u8> {
        self.head(request, sector);
        self.chain(len, if matches!(request, IN | GET_ID) { WRITE } else { 0 });
        self.queue.request(&self.device, 0).then(|| load(self.status))
    }

    /// Whether a sector that is written is read again, on a device that begins anew.
    pub fn works(&mut self, mark: u64) -> bool {
        let sector = mark % self.sectors();
        let begun = self.begin();
        (0..64).for_each(|word| store(self.data + 8 * word, mark ^ word));
        let written = self.ask(OUT, sector, SECTOR as u32);
        (0..64).for_each(|word| store(self.data + 8 * word, 0_u64));
        let read = self.ask(IN, sector, SECTOR as u32);
        let same = (0..64).all(|word| load::<u64>(self.data + 8 * word) == mark ^ word);
        begun && (written, read) == (Some(OK), Some(OK)) && same
    }
}
