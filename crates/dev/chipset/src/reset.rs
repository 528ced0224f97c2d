//! The two small reset registers: port 0xcf9 and system control port A (0x92).

use std::sync::{Arc, Mutex};

use satori_bus::{PortDevice, PowerEvent, PowerSink};
use satori_defs::chipset::reset::*;
use satori_save::{Error, Save, State, Value};
use serde::{Deserialize, Serialize};

use crate::A20;
use crate::support::lock;

/// A register one bit of which resets when it goes from 0 to 1.
pub struct Register {
    value: Mutex<u8>,
    writable: u8,
    reset: u8,
    name: &'static str,
    power: Arc<dyn PowerSink>,
}

impl PortDevice for Register {
    fn read(&self, _offset: u16, _size: u8) -> u32 {
        (*lock(&self.value)).into()
    }

    fn write(&self, _offset: u16, _size: u8, value: u32) {
        let new = value as u8 & self.writable;
        let old = std::mem::replace(&mut *lock(&self.value), new);
        if new & !old & self.reset != 0 {
            self.power.power(PowerEvent::Reset(self.name));
        }
    }
}

/// The reset control register at port 0xcf9.
pub fn reset_control(power: Arc<dyn PowerSink>) -> Arc<Register> {
    let writable = SYS_RST | RST_CPU | FULL_RST;
    Arc::new(Register { value: Mutex::new(0), writable, reset: RST_CPU, name: "port cf9", power })
}

/// System control port A at port 0x92: the A20 gate, and a reset.
pub struct PortA {
    a20: Arc<A20>,
    reset: Register,
}

impl PortDevice for PortA {
    fn read(&self, offset: u16, size: u8) -> u32 {
        self.reset.read(offset, size) | if self.a20.on() { PORT_A_A20.into() } else { 0 }
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        self.a20.set(value as u8 & PORT_A_A20 != 0);
        self.reset.write(offset, size, value);
    }
}

/// System control port A at port 0x92.
pub fn system_control_a(a20: Arc<A20>, power: Arc<dyn PowerSink>) -> Arc<PortA> {
    let (writable, value) = (PORT_A_RESET, Mutex::new(0));
    Arc::new(PortA { a20, reset: Register { value, writable, reset: PORT_A_RESET, name: "port 92", power } })
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRegister {
    value: u8,
}

impl State for SavedRegister {
    const NAME: &'static str = "reset register";
    const VERSION: u32 = 1;
}

impl Save for Register {
    fn save(&self) -> Result<Value, Error> {
        Value::of(&SavedRegister { value: *lock(&self.value) })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let SavedRegister { value } = value.state()?;
        Error::unless(value & !self.writable == 0, SavedRegister::NAME, "it has bits that do not exist")?;
        *lock(&self.value) = value;
        Ok(())
    }
}

/// Without the gate, which has a state of its own.
impl Save for PortA {
    fn save(&self) -> Result<Value, Error> {
        self.reset.save()
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        self.reset.restore(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Power, Wire};

    #[test]
    fn only_the_rise_of_the_reset_bit_resets() {
        let power = Power::new();
        let cf9 = reset_control(power.clone());
        // Linux's reboot=pci: first the kind of reset, then the reset.
        cf9.write(0, 1, 0x02);
        assert!(power.take().is_empty());
        cf9.write(0, 1, 0x06);
        cf9.write(0, 1, 0x06);
        assert_eq!(power.take(), [PowerEvent::Reset("port cf9")]);
        let line = Wire::new();
        let port_a = system_control_a(A20::new(line.clone()), power.clone());
        assert_eq!(port_a.read(0, 1), 2);
        port_a.write(0, 1, 0);
        assert_eq!((port_a.read(0, 1), line.level()), (0, false));
        port_a.write(0, 1, port_a.read(0, 1) | 2);
        assert_eq!((port_a.read(0, 1), line.level()), (2, true));
        assert!(power.take().is_empty());
        port_a.write(0, 1, 3);
        assert_eq!(power.take(), [PowerEvent::Reset("port 92")]);
    }
}
