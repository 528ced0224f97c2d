//! From interrupt lines to controllers: each global system interrupt reaches the I/O APIC and, if it
//! is an ISA interrupt, the PIC.
//!
//! Sources of one line are OR-ed, as wires are. The line's lock is held while both controllers are
//! told, so that they agree on the last level; neither calls back (see [`crate::pic`], [`crate::ioapic`]).

use std::sync::{Arc, Mutex, Weak};

use satori_bus::InterruptLine;
use satori_defs::chipset::ioapic::{PINS, PIT_PIN};
use satori_defs::chipset::irq::{CASCADE, PIT};
use satori_save::{Error, Save, State, Value};
use serde::{Deserialize, Serialize};

use crate::ioapic::IoApic;
use crate::pic::Pic;
use crate::support::lock;

struct Gsi {
    number: u8,
    /// How many sources assert it.
    asserting: Mutex<u32>,
    /// The sources that it has, in the order in which they came.
    sources: Mutex<Vec<Weak<Source>>>,
    pic: Arc<Pic>,
    ioapic: Arc<IoApic>,
}

impl Gsi {
    /// Another source of it.
    fn source(self: &Arc<Self>) -> Arc<dyn InterruptLine> {
        let source = Arc::new(Source { gsi: self.clone(), asserted: Mutex::new(false) });
        let mut sources = lock(&self.sources);
        sources.retain(|source| source.strong_count() > 0);
        sources.push(Arc::downgrade(&source));
        source
    }

    /// Those that are there.
    fn sources(&self) -> Vec<Arc<Source>> {
        lock(&self.sources).iter().filter_map(Weak::upgrade).collect()
    }

    fn drive(&self, asserted: bool) {
        if self.number < 16 && self.number != CASCADE {
            self.pic.set(self.number, asserted);
        }
        // The MADT's one interrupt source override: ISA interrupt 0 is pin 2.
        let pin = if self.number == PIT { PIT_PIN } else { self.number.into() };
        self.ioapic.set(pin, asserted);
    }
}

/// One source of a line.
struct Source {
    gsi: Arc<Gsi>,
    asserted: Mutex<bool>,
}

impl InterruptLine for Source {
    fn set(&self, asserted: bool) {
        let mut before = lock(&self.asserted);
        if *before == asserted {
            return;
        }
        *before = asserted;
        let mut asserting = lock(&self.gsi.asserting);
        let was = *asserting != 0;
        *asserting = if asserted { asserting.saturating_add(1) } else { asserting.saturating_sub(1) };
        if was != (*asserting != 0) {
            self.gsi.drive(!was);
        }
    }
}

/// Hands out interrupt lines.
pub struct IrqRouter {
    lines: Vec<Arc<Gsi>>,
}

impl IrqRouter {
    /// Lines to `pic` and `ioapic`.
    pub fn new(pic: &Arc<Pic>, ioapic: &Arc<IoApic>) -> Self {
        let gsi = |number| {
            let (pic, ioapic) = (pic.clone(), ioapic.clone());
            Arc::new(Gsi { number, asserting: Mutex::new(0), sources: Mutex::default(), pic, ioapic })
        };
        IrqRouter { lines: (0..PINS as u8).map(gsi).collect() }
    }

    /// A new source of line `number`: an ISA interrupt below 16, else the I/O APIC pin. ISA interrupt
    /// 0 is PIC input 0 and I/O APIC pin 2; line 2 is pin 2 alone. `None` if there is no such pin.
    pub fn line(&self, number: u8) -> Option<Arc<dyn InterruptLine>> {
        self.lines.get(usize::from(number)).map(Gsi::source)
    }

    /// A new source of an ISA interrupt; the number is taken modulo 16.
    pub fn isa(&self, irq: u8) -> Arc<dyn InterruptLine> {
        self.lines[usize::from(irq & 15)].source()
    }
}

/// Which sources assert which lines. They are known by the order in which they came, which is that in which a machine is put
/// together.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedLines {
    lines: Vec<Vec<bool>>,
}

impl State for SavedLines {
    const NAME: &'static str = "interrupt lines";
    const VERSION: u32 = 1;
}

impl Save for IrqRouter {
    fn save(&self) -> Result<Value, Error> {
        let levels = |gsi: &Arc<Gsi>| gsi.sources().iter().map(|source| *lock(&source.asserted)).collect();
        Value::of(&SavedLines { lines: self.lines.iter().map(levels).collect() })
    }

    /// The lines are as they were, and the controllers, which have a state of their own, are told nothing.
    fn restore(&self, value: &Value) -> Result<(), Error> {
        let SavedLines { lines } = value.state()?;
        let sources: Vec<_> = self.lines.iter().map(|gsi| gsi.sources()).collect();
        let same = sources.iter().map(Vec::len).eq(lines.iter().map(Vec::len));
        Error::unless(same, SavedLines::NAME, "other devices share the lines")?;
        for ((gsi, sources), levels) in self.lines.iter().zip(sources).zip(lines) {
            sources.iter().zip(&levels).for_each(|(source, level)| *lock(&source.asserted) = *level);
            *lock(&gsi.asserting) = levels.iter().filter(|level| **level).count() as u32;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Messages, Wire};
    use satori_bus::MmioDevice;

    #[test]
    fn isa_interrupt_0_is_pin_2_and_sources_are_ored() {
        let (wire, messages) = (Wire::new(), Messages::new());
        let (pic, ioapic) = (Pic::new(wire.clone()), IoApic::new(messages.clone()));
        let router = IrqRouter::new(&pic, &ioapic);
        for (select, low) in [(0x14, 0x30), (0x1a, 0x8035)] {
            ioapic.write(0, 4, select);
            ioapic.write(0x10, 4, low);
        }
        router.isa(0).pulse();
        assert_eq!(messages.take()[0].data as u8, 0x30);
        assert!(wire.level());
        let (a, b) = (router.line(5).unwrap(), router.line(5).unwrap());
        a.set(true);
        b.set(true);
        a.set(false);
        assert_eq!(messages.take().len(), 1);
        ioapic.eoi(0x35);
        assert_eq!(messages.take().len(), 1, "still held by the other source");
        b.set(false);
        ioapic.eoi(0x35);
        assert!(messages.take().is_empty());
        assert_eq!(pic.ports(0).read(0, 1), 1 | 1 << 5);
        assert!(router.line(24).is_none());
    }
}
