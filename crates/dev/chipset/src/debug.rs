//! Devices that exist for people and tests: debug console, isa-debug-exit and pvpanic.

use std::sync::{Arc, Mutex};

use satori_bus::{ByteSink, PortDevice, PowerEvent, PowerSink};
use satori_defs::chipset::port::DEBUGCON;
use satori_defs::chipset::pvpanic::{CRASH_LOADED, PANICKED};

use crate::support::lock;

/// The debug console: what is written goes to the sink, and reading gives the port's own number,
/// by which guests find it.
pub struct DebugConsole(Mutex<Box<dyn ByteSink>>);

impl DebugConsole {
    /// A console that writes to `sink`.
    pub fn new(sink: Box<dyn ByteSink>) -> Arc<Self> {
        Arc::new(DebugConsole(Mutex::new(sink)))
    }
}

impl PortDevice for DebugConsole {
    fn read(&self, _offset: u16, _size: u8) -> u32 {
        DEBUGCON.into()
    }

    fn write(&self, _offset: u16, size: u8, value: u32) {
        // `rep outsb` is the usual way; a wider write is that many characters.
        let bytes = value.to_le_bytes();
        lock(&self.0).put(&bytes[..usize::from(size.min(4))]);
    }
}

/// QEMU's isa-debug-exit: a write ends the machine with that value.
pub struct DebugExit(Arc<dyn PowerSink>);

impl DebugExit {
    /// A device that tells `power`.
    pub fn new(power: Arc<dyn PowerSink>) -> Arc<Self> {
        Arc::new(DebugExit(power))
    }
}

impl PortDevice for DebugExit {
    fn read(&self, _offset: u16, _size: u8) -> u32 {
        0
    }

    fn write(&self, _offset: u16, size: u8, value: u32) {
        let mask = u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4)));
        self.0.power(PowerEvent::DebugExit(value & mask));
    }
}

/// pvpanic's ISA form: the guest tells that it panicked.
pub struct Pvpanic(Arc<dyn PowerSink>);

impl Pvpanic {
    /// A device that tells `power`.
    pub fn new(power: Arc<dyn PowerSink>) -> Arc<Self> {
        Arc::new(Pvpanic(power))
    }
}

impl PortDevice for Pvpanic {
    fn read(&self, _offset: u16, _size: u8) -> u32 {
        (PANICKED | CRASH_LOADED).into()
    }

    fn write(&self, _offset: u16, _size: u8, value: u32) {
        // With a crash kernel loaded the guest goes on by itself.
        if value as u8 & PANICKED != 0 {
            self.0.power(PowerEvent::Panic("pvpanic"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bytes, Power};

    #[test]
    fn each_tells_what_it_was_told() {
        let (power, bytes) = (Power::new(), Bytes::default());
        let console = DebugConsole::new(Box::new(bytes.clone()));
        assert_eq!(console.read(0, 1), 0xe9);
        console.write(0, 1, 0xffff_ff41);
        console.write(0, 2, 0x4342);
        assert_eq!(bytes.take(), b"ABC");
        DebugExit::new(power.clone()).write(0, 1, 0xffff_ff10);
        let pvpanic = Pvpanic::new(power.clone());
        assert_eq!(pvpanic.read(0, 1), 3);
        pvpanic.write(0, 1, 2);
        pvpanic.write(0, 1, 1);
        assert_eq!(power.take(), [PowerEvent::DebugExit(0x10), PowerEvent::Panic("pvpanic")]);
    }
}
