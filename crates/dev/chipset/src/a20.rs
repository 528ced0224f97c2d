//! The A20 gate, which port 0x92 and the keyboard controller both drive: the last of them to be
//! written decides, and both read back what is so, as in Bochs and QEMU.

use std::sync::{Arc, Mutex};

use satori_bus::InterruptLine;
use satori_save::{Error, Save, State, Value};
use serde::{Deserialize, Serialize};

use crate::support::lock;

/// The gate: on, address line 20 is the processor's; off, it is low.
pub struct A20 {
    on: Mutex<bool>,
    line: Arc<dyn InterruptLine>,
}

impl A20 {
    /// A gate that is on, as firmware leaves it, and tells `line` of changes.
    pub fn new(line: Arc<dyn InterruptLine>) -> Arc<Self> {
        Arc::new(A20 { on: Mutex::new(true), line })
    }

    /// Whether it is on.
    pub fn on(&self) -> bool {
        *lock(&self.on)
    }

    /// Turns it on or off.
    pub fn set(&self, on: bool) {
        let mut now = lock(&self.on);
        if *now != on {
            *now = on;
            self.line.set(on);
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedA20 {
    on: bool,
}

impl State for SavedA20 {
    const NAME: &'static str = "A20 gate";
    const VERSION: u32 = 1;
}

impl Save for A20 {
    fn save(&self) -> Result<Value, Error> {
        Value::of(&SavedA20 { on: self.on() })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        self.set(value.state::<SavedA20>()?.on);
        Ok(())
    }
}
