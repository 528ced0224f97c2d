//! The pair of 8259A interrupt controllers (Intel 231468) and their edge/level registers.
//!
//! The lock is never held while INTR is driven: INTR ends in a local APIC, and a local APIC calls
//! [`Pic::acknowledge`]. So that two threads cannot leave INTR at the older of two levels, whoever
//! is driving it looks again afterwards.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use satori_bus::{InterruptLine, PortDevice};
use satori_defs::chipset::irq::CASCADE;
use satori_defs::chipset::pic::*;
use satori_lock::try_lock;
use satori_save::{Error, Save, Value};
use serde::{Deserialize, Serialize};

use crate::support::{lock, read_bytes, write_bytes};

/// Which initialization command word comes next on the data port.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Expect {
    #[default]
    Ocw1,
    Icw2,
    Icw3,
    Icw4,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Chip {
    irr: u8,
    isr: u8,
    imr: u8,
    /// Input levels, to see edges.
    level: u8,
    elcr: u8,
    elcr_mask: u8,
    vector_base: u8,
    /// The input with the highest priority.
    highest: u8,
    expect: Expect,
    icw1: u8,
    read_isr: bool,
    poll: bool,
    special_mask: bool,
    auto_eoi: bool,
    rotate_on_auto_eoi: bool,
    special_fully_nested: bool,
}

impl Chip {
    fn set(&mut self, input: u8, asserted: bool) {
        let bit = 1 << input;
        if !asserted {
            self.level &= !bit;
            if self.elcr & bit != 0 {
                self.irr &= !bit;
            }
        } else {
            if self.elcr & bit != 0 || self.level & bit == 0 {
                self.irr |= bit;
            }
            self.level |= bit;
        }
    }

    /// The first of `bits` in priority order, as a distance from the highest priority.
    fn first(&self, bits: u8) -> Option<u8> {
        let rotated = bits.rotate_right(self.highest.into());
        (rotated != 0).then(|| rotated.trailing_zeros() as u8)
    }

    /// The input that asks for service now.
    fn pending(&self, is_master: bool) -> Option<u8> {
        let wanted = self.first(self.irr & !self.imr)?;
        let mut in_service = self.isr;
        if self.special_mask {
            in_service &= !self.imr;
        }
        // Special fully nested: the slave may interrupt itself through the master.
        if self.special_fully_nested && is_master {
            in_service &= !(1 << CASCADE);
        }
        let free = self.first(in_service).is_none_or(|serving| wanted < serving);
        free.then(|| wanted.wrapping_add(self.highest) & 7)
    }

    fn acknowledge(&mut self, input: u8) {
        let bit = 1 << input;
        if !self.auto_eoi {
            self.isr |= bit;
        } else if self.rotate_on_auto_eoi {
            self.highest = (input + 1) & 7;
        }
        // A level input goes on requesting for as long as it is asserted.
        if self.elcr & bit == 0 {
            self.irr &= !bit;
        }
    }

    fn write_command(&mut self, value: u8) {
        if value & ICW1 != 0 {
            // Edge sense is reset, IMR cleared, IR7 lowest, special mask off, IRR read.
            *self = Chip {
                icw1: value,
                expect: Expect::Icw2,
                level: self.level,
                elcr: self.elcr,
                elcr_mask: self.elcr_mask,
                irr: self.level & self.elcr,
                ..Chip::default()
            };
        } else if value & OCW3 != 0 {
            if value & OCW3_P != 0 {
                self.poll = true;
            }
            if value & OCW3_RR != 0 {
                self.read_isr = value & OCW3_RIS != 0;
            }
            if value & OCW3_ESMM != 0 {
                self.special_mask = value & OCW3_SMM != 0;
            }
        } else {
            self.write_ocw2(value);
        }
    }

    /// OCW2: bits 7:5 are R, SL and EOI, bits 2:0 the input when SL is set.
    fn write_ocw2(&mut self, value: u8) {
        let named = value & 7;
        match value >> 5 {
            // Rotate in automatic EOI mode: clear and set.
            0b000 => self.rotate_on_auto_eoi = false,
            0b100 => self.rotate_on_auto_eoi = true,
            // Non-specific EOI, without and with rotation.
            0b001 | 0b101 => {
                let mut candidates = self.isr;
                if self.special_mask {
                    candidates &= !self.imr;
                }
                if let Some(distance) = self.first(candidates) {
                    let input = distance.wrapping_add(self.highest) & 7;
                    self.isr &= !(1 << input);
                    if value >> 5 == 0b101 {
                        self.highest = (input + 1) & 7;
                    }
                }
            }
            // Specific EOI, without and with rotation.
            0b011 => self.isr &= !(1 << named),
            0b111 => {
                self.isr &= !(1 << named);
                self.highest = (named + 1) & 7;
            }
            // Set priority.
            0b110 => self.highest = (named + 1) & 7,
            // No operation.
            _ => {}
        }
    }

    fn write_data(&mut self, value: u8) {
        self.expect = match self.expect {
            Expect::Ocw1 => {
                self.imr = value;
                Expect::Ocw1
            }
            Expect::Icw2 => {
                self.vector_base = value & 0xf8;
                match self.icw1 {
                    icw1 if icw1 & ICW1_SNGL == 0 => Expect::Icw3,
                    icw1 if icw1 & ICW1_IC4 != 0 => Expect::Icw4,
                    _ => Expect::Ocw1,
                }
            }
            // The cascade is wired, so what ICW3 says changes nothing.
            Expect::Icw3 if self.icw1 & ICW1_IC4 != 0 => Expect::Icw4,
            Expect::Icw3 => Expect::Ocw1,
            Expect::Icw4 => {
                self.auto_eoi = value & ICW4_AEOI != 0;
                self.special_fully_nested = value & ICW4_SFNM != 0;
                Expect::Ocw1
            }
        };
    }

    /// A read by polling: acknowledges, and gives bit 7 and the input if there was one.
    fn read_poll(&mut self, is_master: bool) -> u8 {
        self.poll = false;
        match self.pending(is_master) {
            Some(input) => {
                self.acknowledge(input);
                0x80 | input
            }
            None => 0,
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    master: Chip,
    slave: Chip,
}

impl Pair {
    /// Brings the slave's INT to the master's cascade input. A fresh edge each time: the slave may
    /// have more to say than the one request that the master has seen. The master keeps what it has
    /// latched, so a slave's request that goes away ends as the slave's spurious interrupt.
    fn cascade(&mut self) {
        self.master.set(CASCADE, false);
        if self.slave.pending(false).is_some() {
            self.master.set(CASCADE, true);
        }
    }
}

/// Master and slave 8259A.
pub struct Pic {
    chips: Mutex<Pair>,
    /// INTR as the chips left it: a vCPU looks at each exit, and need not lock for that.
    asserted: AtomicBool,
    intr: Arc<dyn InterruptLine>,
    stale: AtomicBool,
    driving: Mutex<bool>,
}

impl Pic {
    /// Both chips, with all inputs low and nothing initialized. `intr` is driven with no lock held
    /// that [`Pic::acknowledge`] needs.
    pub fn new(intr: Arc<dyn InterruptLine>) -> Arc<Self> {
        Arc::new(Pic {
            chips: Mutex::new(Pair {
                master: Chip { elcr_mask: ELCR_MASTER, ..Chip::default() },
                slave: Chip { elcr_mask: ELCR_SLAVE, ..Chip::default() },
            }),
            asserted: AtomicBool::new(false),
            intr,
            stale: AtomicBool::new(false),
            driving: Mutex::new(false),
        })
    }

    /// Drives input `irq`, 0 to 15; the cascade input and anything above is not a pin.
    pub fn set(&self, irq: u8, asserted: bool) {
        if irq == CASCADE || irq > 15 {
            return;
        }
        self.change(|chips| match irq {
            0..8 => chips.master.set(irq, asserted),
            _ => chips.slave.set(irq - 8, asserted),
        });
    }

    /// Whether INTR is asserted.
    pub fn intr(&self) -> bool {
        self.asserted.load(Ordering::Acquire)
    }

    /// The interrupt acknowledge cycle: takes the highest request and gives its vector, or that of
    /// input 7 if the request has gone (a spurious interrupt, which sets no ISR bit).
    pub fn acknowledge(&self) -> u8 {
        self.change(|chips| match chips.master.pending(true) {
            Some(CASCADE) => {
                chips.master.acknowledge(CASCADE);
                let input = chips.slave.pending(false).inspect(|&input| chips.slave.acknowledge(input));
                chips.slave.vector_base | input.unwrap_or(7)
            }
            Some(input) => {
                chips.master.acknowledge(input);
                chips.master.vector_base | input
            }
            None => chips.master.vector_base | 7,
        })
    }

    fn change<R>(&self, f: impl FnOnce(&mut Pair) -> R) -> R {
        let result = {
            let mut chips = lock(&self.chips);
            let result = f(&mut chips);
            chips.cascade();
            self.asserted.store(chips.master.pending(true).is_some(), Ordering::Release);
            result
        };
        self.drive();
        result
    }

    fn drive(&self) {
        self.stale.store(true, Ordering::SeqCst);
        while self.stale.load(Ordering::SeqCst) {
            // Whoever holds it will see `stale` when done, so nobody waits for anybody.
            let Some(mut driven) = try_lock(&self.driving) else { return };
            while self.stale.swap(false, Ordering::SeqCst) {
                let intr = self.intr();
                if *driven != intr {
                    *driven = intr;
                    self.intr.set(intr);
                }
            }
        }
    }

    fn read_byte(&self, chip: usize, port: u16) -> u8 {
        self.change(|chips| {
            let is_master = chip == 0;
            let chip = if is_master { &mut chips.master } else { &mut chips.slave };
            if chip.poll {
                chip.read_poll(is_master)
            } else if port & 1 == 1 {
                chip.imr
            } else if chip.read_isr {
                chip.isr
            } else {
                chip.irr
            }
        })
    }

    fn write_byte(&self, chip: usize, port: u16, value: u8) {
        self.change(|chips| {
            let chip = if chip == 0 { &mut chips.master } else { &mut chips.slave };
            if port & 1 == 1 { chip.write_data(value) } else { chip.write_command(value) }
        });
    }

    /// The two ports of the master (0) or the slave (1).
    pub fn ports(self: &Arc<Self>, chip: usize) -> Arc<dyn PortDevice> {
        Arc::new(ChipPorts { pic: self.clone(), chip })
    }

    /// The two edge/level control registers.
    pub fn elcr(self: &Arc<Self>) -> Arc<dyn PortDevice> {
        Arc::new(Elcr(self.clone()))
    }
}

struct ChipPorts {
    pic: Arc<Pic>,
    chip: usize,
}

impl PortDevice for ChipPorts {
    fn read(&self, offset: u16, size: u8) -> u32 {
        read_bytes(offset, size, |port| self.pic.read_byte(self.chip, port))
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        write_bytes(offset, size, value, |port, byte| self.pic.write_byte(self.chip, port, byte));
    }
}

struct Elcr(Arc<Pic>);

impl PortDevice for Elcr {
    fn read(&self, offset: u16, size: u8) -> u32 {
        let chips = lock(&self.0.chips);
        read_bytes(offset, size, |port| if port & 1 == 0 { chips.master.elcr } else { chips.slave.elcr })
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        write_bytes(offset, size, value, |port, byte| {
            self.0.change(|chips| {
                let chip = if port & 1 == 0 { &mut chips.master } else { &mut chips.slave };
                chip.elcr = byte & chip.elcr_mask;
            });
        });
    }
}

impl satori_save::State for Pair {
    const NAME: &'static str = "8259A";
    const VERSION: u32 = 1;
}

impl Save for Pic {
    fn save(&self) -> Result<Value, Error> {
        Value::of(&*lock(&self.chips))
    }

    /// INTR is as it was with that state, and is not driven.
    fn restore(&self, value: &Value) -> Result<(), Error> {
        let saved: Pair = value.state()?;
        let mut chips = lock(&self.chips);
        let fits = |saved: &Chip, own: &Chip| {
            let masked = saved.elcr_mask == own.elcr_mask && saved.elcr & !own.elcr_mask == 0;
            masked && saved.highest < 8 && saved.vector_base & 7 == 0
        };
        let fit = fits(&saved.master, &chips.master) && fits(&saved.slave, &chips.slave);
        Error::unless(fit, "8259A", "a register has bits that do not exist")?;
        *chips = saved;
        let asserted = chips.master.pending(true).is_some();
        self.asserted.store(asserted, Ordering::Release);
        *lock(&self.driving) = asserted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Wire;

    /// Initialized as Linux does: vectors 0x30 and 0x38, nothing masked.
    fn pic() -> (Arc<Pic>, Arc<Wire>, [Arc<dyn PortDevice>; 2]) {
        let wire = Wire::new();
        let pic = Pic::new(wire.clone());
        let ports = [pic.ports(0), pic.ports(1)];
        for (chip, icw3) in [(0, 4), (1, 2)] {
            ports[chip].write(0, 1, 0x11);
            for value in [0x30 + 8 * chip as u32, icw3, 1, 0] {
                ports[chip].write(1, 1, value);
            }
        }
        (pic, wire, ports)
    }

    #[test]
    fn higher_priority_nests_and_lower_waits_for_eoi() {
        let (pic, wire, ports) = pic();
        pic.set(4, true);
        assert!(wire.level());
        assert_eq!(pic.acknowledge(), 0x34);
        assert!(!wire.level());
        pic.set(5, true);
        assert!(!wire.level());
        pic.set(0, true);
        assert_eq!(pic.acknowledge(), 0x30);
        ports[0].write(0, 1, 0x20); // ends 0, not 4
        assert!(!wire.level());
        ports[0].write(0, 1, 0x64); // specific EOI of 4
        assert!(wire.level());
        assert_eq!(pic.acknowledge(), 0x35);
    }

    #[test]
    fn slave_requests_come_through_the_cascade() {
        let (pic, wire, ports) = pic();
        pic.set(8, true);
        pic.set(12, true);
        assert_eq!(pic.acknowledge(), 0x38);
        assert!(!wire.level());
        ports[1].write(0, 1, 0x60); // specific EOI on both, as Linux does
        ports[0].write(0, 1, 0x62);
        assert!(wire.level());
        assert_eq!(pic.acknowledge(), 0x3c);
    }

    #[test]
    fn a_level_that_went_away_is_spurious() {
        let (pic, wire, ports) = pic();
        pic.elcr().write(0, 2, 0xffff);
        assert_eq!(pic.elcr().read(0, 2), 0xdef8);
        pic.set(5, true);
        pic.set(5, false);
        assert!(!wire.level());
        assert_eq!(pic.acknowledge(), 0x37);
        ports[0].write(0, 1, 0x0b);
        assert_eq!(ports[0].read(0, 1), 0, "no ISR bit for a spurious interrupt");
    }

    #[test]
    fn a_spurious_slave_interrupt_still_occupies_the_cascade() {
        let (pic, wire, ports) = pic();
        pic.elcr().write(1, 1, 0xff);
        pic.set(9, true);
        pic.set(9, false);
        assert!(wire.level(), "the master has latched it");
        assert_eq!(pic.acknowledge(), 0x3f);
        ports[0].write(0, 1, 0x0b);
        assert_eq!(ports[0].read(0, 1), 1 << CASCADE);
    }

    #[test]
    fn level_inputs_request_again_after_eoi_and_edges_do_not() {
        let (pic, wire, ports) = pic();
        pic.elcr().write(0, 1, 1 << 5);
        for (irq, again) in [(4, false), (5, true)] {
            pic.set(irq, true);
            assert_eq!(pic.acknowledge(), 0x30 + irq);
            ports[0].write(0, 1, 0x20);
            assert_eq!(wire.level(), again);
        }
    }

    #[test]
    fn masks_automatic_eoi_poll_and_rotation() {
        let (pic, wire, ports) = pic();
        ports[0].write(1, 1, 0xff);
        pic.set(3, true);
        assert!(!wire.level());
        assert_eq!(ports[0].read(1, 1), 0xff);
        ports[0].write(1, 1, 0);
        ports[0].write(0, 1, 0x0c); // poll
        assert_eq!(ports[0].read(0, 1), 0x83);
        assert_eq!(ports[0].read(0, 1), 0, "IRR again after the poll");
        ports[0].write(0, 1, 0xa0); // rotate on non-specific EOI: 3 is lowest now
        pic.set(3, false);
        pic.set(3, true);
        pic.set(4, true);
        assert_eq!(pic.acknowledge(), 0x34);
        // ICW4 with automatic EOI.
        for (port, value) in [(0, 0x11), (1, 0x30), (1, 4), (1, 3), (1, 0)] {
            ports[0].write(port, 1, value);
        }
        pic.set(6, true);
        assert_eq!(pic.acknowledge(), 0x36);
        ports[0].write(0, 1, 0x0b);
        assert_eq!(ports[0].read(0, 1), 0);
    }

    #[test]
    fn threads_leave_intr_at_the_last_level() {
        let (pic, wire, ports) = pic();
        for _ in 0..200 {
            std::thread::scope(|scope| {
                for irq in [3, 4, 10] {
                    let pic = &pic;
                    scope.spawn(move || {
                        (0..50).for_each(|_| [true, false].iter().for_each(|&l| pic.set(irq, l)))
                    });
                }
                scope.spawn(|| {
                    for _ in 0..50 {
                        pic.acknowledge();
                        ports[1].write(0, 1, 0x20);
                        ports[0].write(0, 1, 0x20);
                    }
                });
            });
            assert_eq!(wire.level(), pic.intr());
        }
    }
}
