//! The I/O APIC (82093AA), with the corners that guests of KVM know: version 0x11, polarity ignored.
//!
//! Messages leave after the lock is dropped, because they end in local APICs, which call
//! [`IoApic::eoi`].

use std::sync::{Arc, Mutex};

use satori_bus::{MmioDevice, Msi, MsiSink};
use satori_defs::apic::DEFAULT_BASE;
use satori_defs::chipset::ioapic::*;
use satori_save::{Error, Save, Value};
use serde::{Deserialize, Serialize};

use crate::support::lock;

/// Delivery modes (82093AA, 3.2.4).
const FIXED: u32 = 0;
const LOWEST_PRIORITY: u32 = 1;
const RESERVED: u32 = 3;
/// Reserved too; of a local APIC's ICR it is start-up (SDM 11.6.1).
const START_UP: u32 = 6;

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    id: u32,
    select: u8,
    /// Pins that are asserted.
    level: u32,
    entries: [u64; PINS],
}

impl State {
    /// The message of `pin`, if its entry lets one out now: in the form of an MSI (SDM 11.11), which reaches the same
    /// local APICs.
    fn message(&mut self, pin: usize) -> Option<Msi> {
        let entry = self.entries[pin];
        let level = entry & TRIGGER_MODE != 0;
        if entry & MASK != 0 || (level && entry & REMOTE_IRR != 0) {
            return None;
        }
        let mode = (entry >> DELIVERY_MODE_SHIFT) as u32 & 7;
        if matches!(mode, RESERVED | START_UP) {
            return None;
        }
        // Only what a local APIC will end with an EOI waits for one.
        if level && matches!(mode, FIXED | LOWEST_PRIORITY) {
            self.entries[pin] |= REMOTE_IRR;
        }
        let (destination, extended) =
            (entry >> DESTINATION_SHIFT, entry >> EXTENDED_DESTINATION_SHIFT & 0x7f);
        let logical = entry & DESTINATION_MODE != 0;
        Some(Msi {
            address: DEFAULT_BASE | destination << 12 | extended << 5 | u64::from(logical) << 2,
            data: (entry & VECTOR) as u32 | mode << 8 | u32::from(level) << 15,
        })
    }

    /// As [`State::message`], for a level pin that is asserted.
    fn message_if_level(&mut self, pin: usize) -> Option<Msi> {
        let asserted = self.level & 1 << pin != 0 && self.entries[pin] & TRIGGER_MODE != 0;
        asserted.then(|| self.message(pin)).flatten()
    }

    fn read(&self) -> u32 {
        match self.select {
            IOAPICID | IOAPICARB => self.id,
            IOAPICVER => VERSION | (PINS as u32 - 1) << 16,
            register => match self.entry(register) {
                Some((pin, high)) => (self.entries[pin] >> if high { 32 } else { 0 }) as u32,
                None => 0,
            },
        }
    }

    fn write(&mut self, value: u32) -> Option<Msi> {
        if self.select == IOAPICID {
            self.id = value & 0x0f00_0000;
        }
        let (pin, high) = self.entry(self.select)?;
        let old = self.entries[pin];
        let new = if high {
            old & 0xffff_ffff | u64::from(value) << 32
        } else {
            const READ_ONLY: u64 = DELIVERY_STATUS | REMOTE_IRR;
            old & (0xffff_ffff << 32 | READ_ONLY) | u64::from(value & 0x1_ffff) & !READ_ONLY
        };
        // Some guests clear Remote IRR by going through edge mode, as hardware allows.
        self.entries[pin] = if new & TRIGGER_MODE == 0 { new & !REMOTE_IRR } else { new };
        self.message_if_level(pin)
    }

    fn entry(&self, register: u8) -> Option<(usize, bool)> {
        let index = usize::from(register.checked_sub(IOREDTBL)?);
        (index / 2 < PINS).then_some((index / 2, index % 2 == 1))
    }
}

/// The I/O APIC.
pub struct IoApic {
    state: Mutex<State>,
    sink: Arc<dyn MsiSink>,
}

impl IoApic {
    /// An I/O APIC with every pin masked. `sink` is called with no lock of the I/O APIC held.
    pub fn new(sink: Arc<dyn MsiSink>) -> Arc<Self> {
        let state = State { id: 0, select: 0, level: 0, entries: [MASK; PINS] };
        Arc::new(IoApic { state: Mutex::new(state), sink })
    }

    /// Drives `pin`. An edge that finds the pin masked is lost, as on hardware.
    pub fn set(&self, pin: usize, asserted: bool) {
        if pin >= PINS {
            return;
        }
        let message = {
            let mut state = lock(&self.state);
            let before = state.level & 1 << pin != 0;
            if asserted {
                state.level |= 1 << pin;
            } else {
                state.level &= !(1 << pin);
            }
            if state.entries[pin] & TRIGGER_MODE != 0 {
                state.message_if_level(pin)
            } else {
                (asserted && !before).then(|| state.message(pin)).flatten()
            }
        };
        self.send(message);
    }

    /// A local APIC's EOI broadcast: a level pin of `vector` that is still asserted delivers again.
    /// To be called with no local APIC's lock held, since it may deliver.
    pub fn eoi(&self, vector: u8) {
        for pin in 0..PINS {
            let message = {
                let mut state = lock(&self.state);
                let entry = state.entries[pin];
                if entry & (TRIGGER_MODE | REMOTE_IRR) != TRIGGER_MODE | REMOTE_IRR
                    || entry & VECTOR != u64::from(vector)
                {
                    continue;
                }
                state.entries[pin] = entry & !REMOTE_IRR;
                state.message_if_level(pin)
            };
            self.send(message);
        }
    }

    /// Whether a level-triggered pin uses `vector`: a local APIC need broadcast no other EOI, and
    /// these are the vectors of the EOI-exit bitmap.
    pub fn handles(&self, vector: u8) -> bool {
        let state = lock(&self.state);
        state.entries.iter().any(|&e| e & TRIGGER_MODE != 0 && e & VECTOR == u64::from(vector))
    }

    fn send(&self, message: Option<Msi>) {
        if let Some(message) = message {
            self.sink.signal(message);
        }
    }
}

impl MmioDevice for IoApic {
    fn read(&self, offset: u64, _size: u8) -> u64 {
        let state = lock(&self.state);
        match offset & 0xff {
            IOREGSEL => state.select.into(),
            IOWIN => state.read().into(),
            _ => 0,
        }
    }

    fn write(&self, offset: u64, _size: u8, value: u64) {
        let message = {
            let mut state = lock(&self.state);
            match offset & 0xff {
                IOREGSEL => {
                    state.select = value as u8;
                    None
                }
                IOWIN => state.write(value as u32),
                _ => None,
            }
        };
        self.send(message);
    }
}

impl satori_save::State for State {
    const NAME: &'static str = "I/O APIC";
    const VERSION: u32 = 1;
}

impl Save for IoApic {
    fn save(&self) -> Result<Value, Error> {
        Value::of(&*lock(&self.state))
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        const LOW: u64 = 0x1_ffff;
        let saved: State = value.state()?;
        let exist = |entry: &u64| entry & 0xffff_ffff & !LOW == 0;
        // An edge ends with its message, and waits for no EOI.
        let ended = |entry: &u64| entry & REMOTE_IRR == 0 || entry & TRIGGER_MODE != 0;
        let entries = saved.entries.iter().all(|entry| exist(entry) && ended(entry));
        let fits = entries && saved.level >> PINS == 0 && saved.id & !0x0f00_0000 == 0;
        Error::unless(fits, "I/O APIC", "a register has bits that do not exist, or do not go together")?;
        *lock(&self.state) = saved;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Messages;

    fn write(ioapic: &IoApic, register: u8, value: u32) {
        ioapic.write(IOREGSEL, 4, register.into());
        ioapic.write(IOWIN, 4, value.into());
    }

    fn read(ioapic: &IoApic, register: u8) -> u32 {
        ioapic.write(IOREGSEL, 4, register.into());
        ioapic.read(IOWIN, 4) as u32
    }

    #[test]
    fn identity_is_that_of_kvms() {
        let ioapic = IoApic::new(Messages::new());
        assert_eq!(read(&ioapic, IOAPICVER), 0x0017_0011);
        write(&ioapic, IOAPICID, 0xffff_ffff);
        assert_eq!(read(&ioapic, IOAPICID), 0x0f00_0000);
        assert_eq!(read(&ioapic, IOREDTBL), 0x1_0000);
        assert_eq!(read(&ioapic, 0x40), 0);
    }

    #[test]
    fn edges_deliver_once_and_masked_ones_are_lost() {
        let messages = Messages::new();
        let ioapic = IoApic::new(messages.clone());
        ioapic.set(4, true);
        write(&ioapic, IOREDTBL + 9, 0x0302_0000);
        write(&ioapic, IOREDTBL + 8, 0x0841);
        assert!(messages.take().is_empty());
        ioapic.set(4, false);
        ioapic.set(4, true);
        ioapic.set(4, true);
        // APIC 0x103, logical; edge, fixed.
        let expected = Msi { address: 0xfee0_3024, data: 0x41 };
        assert_eq!(messages.take(), [expected]);
    }

    #[test]
    fn a_level_delivers_until_it_is_low_at_eoi() {
        let messages = Messages::new();
        let ioapic = IoApic::new(messages.clone());
        ioapic.set(9, true);
        write(&ioapic, IOREDTBL + 18, 0x8039);
        assert_eq!(messages.take().len(), 1, "an asserted level delivers when unmasked");
        assert_eq!(read(&ioapic, IOREDTBL + 18), 0xc039, "remote IRR");
        ioapic.set(9, false);
        ioapic.set(9, true);
        assert!(messages.take().is_empty(), "not again before its EOI");
        ioapic.eoi(0x38);
        assert!(messages.take().is_empty());
        ioapic.eoi(0x39);
        assert_eq!(messages.take().len(), 1);
        ioapic.set(9, false);
        ioapic.eoi(0x39);
        assert!(messages.take().is_empty());
        assert_eq!(read(&ioapic, IOREDTBL + 18), 0x8039);
        assert!(ioapic.handles(0x39) && !ioapic.handles(0x38));
    }

    #[test]
    fn edge_mode_clears_remote_irr() {
        let messages = Messages::new();
        let ioapic = IoApic::new(messages.clone());
        write(&ioapic, IOREDTBL + 18, 0x8039);
        ioapic.set(9, true);
        assert_eq!(messages.take().len(), 1);
        write(&ioapic, IOREDTBL + 18, 0x1_0039);
        write(&ioapic, IOREDTBL + 18, 0x8039);
        assert_eq!(messages.take().len(), 1);
    }
}
