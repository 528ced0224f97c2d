//! PL031: the wall clock, in seconds.

use satori_bus::MmioDevice;

/// The clock.
pub struct Pl031 {
    now: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// Peripheral and PrimeCell identification, from offset 0xfe0.
const ID: [u8; 8] = [0x31, 0x10, 0x04, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

impl Pl031 {
    /// One that shows `now`, seconds since the Unix epoch.
    pub fn new(now: Box<dyn Fn() -> u64 + Send + Sync>) -> Self {
        Pl031 { now }
    }
}

impl MmioDevice for Pl031 {
    fn read(&self, offset: u64, _size: u8) -> u64 {
        match offset {
            0 => (self.now)() & 0xffff_ffff,
            // RTCCR: it runs.
            0xc => 1,
            0xfe0..=0xffc => ID[((offset - 0xfe0) / 4) as usize].into(),
            _ => 0,
        }
    }

    // Alarms and setting the clock are not offered: the guest keeps its own time.
    fn write(&self, _offset: u64, _size: u8, _value: u64) {}
}
