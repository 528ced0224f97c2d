//! The state in which a PC's firmware leaves the devices to what it boots.

use satori_bus::PortMap;
use satori_defs::chipset::{i8042, pic, pit, port};

/// Interrupt vectors that firmware gives the two 8259As in real mode.
const MASTER_BASE: u8 = 0x08;
const SLAVE_BASE: u8 = 0x70;
/// Only timer, keyboard and cascade are let through; and on the slave none.
const MASTER_MASK: u8 = 0xf8;
const SLAVE_MASK: u8 = 0xff;
/// Counter 1's count, by which memory was once refreshed every 15 microseconds.
const REFRESH: u8 = 18;

/// Does to the devices behind `ports` what firmware does: interrupts at 08h and 70h, the timer at
/// 18.2 Hz, the keyboard with its interrupt. The real-time clock is kept by its battery.
pub(crate) fn post(ports: &PortMap) {
    let icw1 = pic::ICW1 | pic::ICW1_IC4;
    for (command, base, cascade, mask) in
        [(port::PIC_MASTER, MASTER_BASE, 1 << 2, MASTER_MASK), (port::PIC_SLAVE, SLAVE_BASE, 2, SLAVE_MASK)]
    {
        ports.write(command, 1, icw1.into());
        for word in [base, cascade, pic::ICW4_8086, mask] {
            ports.write(command + 1, 1, word.into());
        }
    }
    let mode = |counter: u8, mode: u8| ports.write(port::PIT + 3, 1, (counter << 6 | mode).into());
    // A count of zero is 65536.
    mode(0, pit::ACCESS_BOTH | 3 << 1);
    ports.write(port::PIT, 1, 0);
    ports.write(port::PIT, 1, 0);
    mode(1, pit::ACCESS_LOW | 2 << 1);
    ports.write(port::PIT + 1, 1, REFRESH.into());
    ports.write(port::I8042_COMMAND, 1, i8042::WRITE_RAM.into());
    let keyboard = i8042::CTR_KBD_INT | i8042::STATUS_SYS | i8042::CTR_XLATE;
    ports.write(port::I8042_DATA, 1, keyboard.into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Messages, Power, Time, Wire};
    use crate::{Chipset, Options, Parts};
    use std::sync::Arc;

    #[test]
    fn the_timer_asks_at_vector_8_every_55_milliseconds() {
        let (time, intr): (Arc<Time>, Arc<Wire>) = (Time::new(), Wire::new());
        let chipset = Chipset::new(Parts {
            clock: time.clone(),
            timers: time.timers.clone(),
            power: Power::new(),
            interrupts: Messages::new(),
            intr: intr.clone(),
            a20: Wire::new(),
            com1: Box::new(crate::testing::Bytes::default()),
            options: Options { post: true, ..Options::default() },
        })
        .unwrap();
        let mut ticks = 0;
        for millisecond in 0..1000 {
            time.run_to(millisecond * 1_000_000);
            if intr.level() {
                assert_eq!(chipset.pic.acknowledge(), 0x08);
                chipset.ports.write(port::PIC_MASTER, 1, 0x20);
                ticks += 1;
            }
        }
        assert_eq!(ticks, 18);
        let masks = [port::PIC_MASTER, port::PIC_SLAVE].map(|base| chipset.ports.read(base + 1, 1));
        assert_eq!(masks, [0xf8, 0xff]);
        chipset.ports.write(port::PIT + 3, 1, 0xe2);
        assert_eq!(chipset.ports.read(port::PIT, 1) & 0x3f, 0x36, "counter 0: both bytes, mode 3");
    }
}
