//! An i8042 keyboard controller with nothing plugged in, for its reset line and A20.
//!
//! Not vm-superio's: that one answers no command but reset, and Linux's probe then waits half a
//! second for each. Here every command is answered at once, and bytes to the absent keyboard end in
//! the controller's timeout answer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use satori_bus::{InterruptLine, PortDevice, PowerEvent, PowerSink};
use satori_defs::chipset::i8042::*;
use satori_save::{Error, Save, Value};
use serde::{Deserialize, Serialize};

use crate::A20;
use crate::support::lock;

/// A command waits for its parameter; nothing else is ever in flight, so answers beyond this are
/// those of a guest that does not read.
const ANSWERS: usize = 16;

struct State {
    /// The controller's memory; byte 0 is the command byte.
    ram: [u8; 32],
    /// Without A20, which is the gate's.
    output_port: u8,
    a20: Arc<A20>,
    status: u8,
    /// A command that waits for its parameter on the data port.
    command: Option<u8>,
    /// Answers, and the status bits that go with each.
    answers: VecDeque<(u8, u8)>,
    last: u8,
    level: bool,
}

impl State {
    fn answer(&mut self, byte: u8, status: u8) {
        if self.answers.len() < ANSWERS {
            self.answers.push_back((byte, status));
        }
    }

    fn status(&self) -> u8 {
        self.status | self.answers.front().map_or(0, |&(_, bits)| bits | STATUS_OBF)
    }

    /// True if the processor is to be reset.
    fn write_command(&mut self, command: u8) -> bool {
        self.status |= STATUS_COMMAND;
        self.command = None;
        match command {
            READ_RAM..0x40 => self.answer(self.ram[usize::from(command & 0x1f)], 0),
            WRITE_RAM..0x80 | WRITE_OUTPUT | KBD_LOOP | AUX_LOOP | AUX_SEND => self.command = Some(command),
            AUX_DISABLE => self.ram[0] |= CTR_AUX_DISABLE,
            AUX_ENABLE => self.ram[0] &= !CTR_AUX_DISABLE,
            KBD_DISABLE => self.ram[0] |= CTR_KBD_DISABLE,
            KBD_ENABLE => self.ram[0] &= !CTR_KBD_DISABLE,
            SELF_TEST => {
                self.status |= STATUS_SYS;
                self.answer(SELF_TEST_OK, 0);
            }
            KBD_TEST | AUX_TEST => self.answer(PORT_TEST_CLOCK_LOW, 0),
            READ_INPUT => self.answer(0x80, 0),
            READ_OUTPUT => {
                let a20 = if self.a20.on() { OUTPUT_A20 } else { 0 };
                self.answer(self.output_port | a20, 0);
            }
            A20_OFF => self.a20.set(false),
            A20_ON => self.a20.set(true),
            // A pulse on bit 0 resets; the other lines lead nowhere.
            PULSE_OUTPUT.. => return command & OUTPUT_NO_RESET == 0,
            _ => {}
        }
        false
    }

    /// True if the processor is to be reset.
    fn write_data(&mut self, value: u8) -> bool {
        self.status &= !STATUS_COMMAND;
        match self.command.take() {
            Some(command @ WRITE_RAM..0x80) => self.ram[usize::from(command & 0x1f)] = value,
            Some(WRITE_OUTPUT) => {
                self.a20.set(value & OUTPUT_A20 != 0);
                self.output_port = value & !OUTPUT_A20;
                return value & OUTPUT_NO_RESET == 0;
            }
            // AUX_LOOP without the auxiliary flag: Linux then sees that there is no such port.
            Some(KBD_LOOP | AUX_LOOP) => self.answer(value, 0),
            _ => self.answer(RESEND, STATUS_TIMEOUT),
        }
        false
    }
}

/// The controller: data at offset 0, status and command at offset 4 of two one-port ranges.
pub struct I8042 {
    state: Mutex<State>,
    line: Arc<dyn InterruptLine>,
    power: Arc<dyn PowerSink>,
}

impl I8042 {
    /// A controller that has passed its self-test. `line` is driven with the lock held.
    pub fn new(line: Arc<dyn InterruptLine>, a20: Arc<A20>, power: Arc<dyn PowerSink>) -> Arc<Self> {
        let mut ram = [0; 32];
        ram[0] = CTR_KBD_DISABLE | CTR_AUX_DISABLE | STATUS_SYS;
        let state = State {
            ram,
            output_port: OUTPUT_NO_RESET,
            a20,
            status: STATUS_SYS | STATUS_UNLOCKED,
            command: None,
            answers: VecDeque::new(),
            last: 0,
            level: false,
        };
        Arc::new(I8042 { state: Mutex::new(state), line, power })
    }

    fn drive(&self, state: &mut State) {
        let level = state.ram[0] & CTR_KBD_INT != 0 && !state.answers.is_empty();
        if level != state.level {
            state.level = level;
            self.line.set(level);
        }
    }

    fn write(&self, f: impl FnOnce(&mut State) -> bool) {
        let reset = {
            let mut state = lock(&self.state);
            let reset = f(&mut state);
            self.drive(&mut state);
            reset
        };
        if reset {
            self.power.power(PowerEvent::Reset("i8042"));
        }
    }

    /// The data port.
    pub fn data(self: &Arc<Self>) -> Arc<dyn PortDevice> {
        Arc::new(Data(self.clone()))
    }

    /// The status and command port.
    pub fn command(self: &Arc<Self>) -> Arc<dyn PortDevice> {
        Arc::new(Command(self.clone()))
    }
}

struct Data(Arc<I8042>);

impl PortDevice for Data {
    fn read(&self, _offset: u16, _size: u8) -> u32 {
        let mut state = lock(&self.0.state);
        if let Some((byte, _)) = state.answers.pop_front() {
            state.last = byte;
            // A byte that follows is a new edge.
            if state.level {
                state.level = false;
                self.0.line.set(false);
            }
        }
        self.0.drive(&mut state);
        state.last.into()
    }

    fn write(&self, _offset: u16, _size: u8, value: u32) {
        self.0.write(|state| state.write_data(value as u8));
    }
}

struct Command(Arc<I8042>);

impl PortDevice for Command {
    fn read(&self, _offset: u16, _size: u8) -> u32 {
        lock(&self.0.state).status().into()
    }

    fn write(&self, _offset: u16, _size: u8, value: u32) {
        self.0.write(|state| state.write_command(value as u8));
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedI8042 {
    ram: [u8; 32],
    output_port: u8,
    status: u8,
    command: Option<u8>,
    answers: VecDeque<(u8, u8)>,
    last: u8,
    level: bool,
}

impl satori_save::State for SavedI8042 {
    const NAME: &'static str = "i8042";
    const VERSION: u32 = 1;
}

impl Save for I8042 {
    fn save(&self) -> Result<Value, Error> {
        let State { ram, output_port, a20: _, status, command, ref answers, last, level } =
            *lock(&self.state);
        Value::of(&SavedI8042 { ram, output_port, status, command, answers: answers.clone(), last, level })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let saved: SavedI8042 = value.state()?;
        Error::unless(saved.answers.len() <= ANSWERS, "i8042", "more answers wait than it keeps")?;
        let mut state = lock(&self.state);
        let SavedI8042 { ram, output_port, status, command, answers, last, level } = saved;
        let output_port = output_port & !OUTPUT_A20;
        *state = State { ram, output_port, a20: state.a20.clone(), status, command, answers, last, level };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Power, Wire};

    #[test]
    fn linux_probe_gets_every_answer_at_once() {
        let (wire, power) = (Wire::new(), Power::new());
        let gate = Wire::new();
        let i8042 = I8042::new(wire.clone(), A20::new(gate.clone()), power.clone());
        let (data, command) = (i8042.data(), i8042.command());
        let read = |status: u8| {
            assert_eq!(command.read(0, 1) as u8 & (STATUS_OBF | STATUS_TIMEOUT), status);
            data.read(0, 1) as u8
        };
        command.write(0, 1, SELF_TEST.into());
        assert_eq!(read(STATUS_OBF), SELF_TEST_OK);
        command.write(0, 1, WRITE_RAM.into());
        data.write(0, 1, CTR_KBD_INT.into());
        command.write(0, 1, READ_RAM.into());
        assert!(wire.level());
        assert_eq!(read(STATUS_OBF), CTR_KBD_INT);
        assert!(!wire.level());
        command.write(0, 1, AUX_LOOP.into());
        data.write(0, 1, 0x5a);
        assert_eq!(read(STATUS_OBF), 0x5a);
        command.write(0, 1, AUX_TEST.into());
        assert_eq!(read(STATUS_OBF), PORT_TEST_CLOCK_LOW);
        data.write(0, 1, 0xf2);
        assert_eq!(read(STATUS_OBF | STATUS_TIMEOUT), RESEND);
        assert_eq!(command.read(0, 1) as u8 & STATUS_OBF, 0);
        // A20 by the output port, and by the commands that do nothing else.
        let output = |value: u32| {
            command.write(0, 1, WRITE_OUTPUT.into());
            data.write(0, 1, value);
        };
        command.write(0, 1, READ_OUTPUT.into());
        assert_eq!(read(STATUS_OBF), 3);
        output(3);
        assert!(!gate.level(), "it was told of no change");
        command.write(0, 1, A20_OFF.into());
        command.write(0, 1, READ_OUTPUT.into());
        assert_eq!(read(STATUS_OBF), 1);
        output(3);
        assert!(gate.level());
        output(1);
        assert!(!gate.level());
        command.write(0, 1, A20_ON.into());
        assert!(gate.level() && power.take().is_empty());
        command.write(0, 1, 0xfe);
        assert_eq!(power.take(), [PowerEvent::Reset("i8042")]);
    }
}
