//! ACPI fixed hardware (ACPI 6.5, 4.8): PM1a event and control blocks and the PM timer.
//!
//! There is no SMI command port: the machine is in ACPI mode from the start and SCI_EN reads as 1.
//! It is among what has power while the machine sleeps (S3), and what it has enabled as an interrupt wakes the machine then.
//! The SCI line is driven and power events are announced with the lock held; nothing behind them calls back.

use std::sync::{Arc, Mutex, Weak};

use satori_bus::{Armed, Clock, InterruptLine, Nanos, PortDevice, PowerEvent, PowerSink, Timer, TimerQueue};
use satori_defs::chipset::pm::*;
use satori_save::{Error, Save, Value};
use serde::{Deserialize, Serialize};

use crate::support::{lock, nanos, read_bytes, ticks, write_bytes};

/// TMR_STS is set when the most significant of the timer's 32 bits (TMR_VAL_EXT) changes.
const HALF: u64 = 1 << 31;

const ENABLE_WRITABLE: u16 = TMR | GBL | PWRBTN | SLPBTN | RTC;

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    status: u16,
    enable: u16,
    control: u16,
    /// Changes of the timer's most significant bit that are accounted for.
    halves: u64,
    deadline: Option<Nanos>,
    sci: bool,
    /// The machine sleeps.
    asleep: bool,
}

/// The PM registers, at twelve ports from the PM1a event block on.
pub struct AcpiPm {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    timers: Arc<TimerQueue>,
    sci: Arc<dyn InterruptLine>,
    power: Arc<dyn PowerSink>,
    me: Weak<AcpiPm>,
}

impl AcpiPm {
    /// Registers in ACPI mode with nothing enabled.
    pub fn new(
        clock: Arc<dyn Clock>,
        timers: Arc<TimerQueue>,
        sci: Arc<dyn InterruptLine>,
        power: Arc<dyn PowerSink>,
    ) -> Arc<Self> {
        let state =
            State { status: 0, enable: 0, control: 0, halves: 0, deadline: None, sci: false, asleep: false };
        let state = Mutex::new(state);
        Arc::new_cyclic(|me| AcpiPm { state, clock, timers, sci, power, me: me.clone() })
    }

    /// The power button was pressed. The guest decides what follows.
    pub fn press_power_button(&self) {
        let mut state = lock(&self.state);
        state.status |= PWRBTN;
        self.drive(&mut state);
    }

    /// The real-time clock interrupts.
    pub(crate) fn ring_alarm(&self) {
        let mut state = lock(&self.state);
        state.status |= RTC;
        self.drive(&mut state);
    }

    /// Goes on from `before`, which had power while the machine slept.
    pub fn go_on_from(&self, before: &AcpiPm) {
        let State { status, enable, halves, .. } = *lock(&before.state);
        let mut state = lock(&self.state);
        *state = State { status, enable, halves, control: 0, deadline: None, sci: false, asleep: false };
        self.advance(&mut state, self.clock.now());
        self.drive(&mut state);
    }

    fn drive(&self, state: &mut State) {
        let sci = state.status & state.enable != 0;
        if sci && state.asleep {
            state.asleep = false;
            state.status |= WAK_STS;
            self.power.power(PowerEvent::Wake);
            return;
        }
        if sci != state.sci {
            state.sci = sci;
            self.sci.set(sci);
        }
    }

    /// Brings TMR_STS up to `now`, and arms its next change if it would interrupt.
    fn advance(&self, state: &mut State, now: Nanos) {
        let halves = ticks(now, TIMER_HZ) / HALF;
        if halves > state.halves {
            state.halves = halves;
            state.status |= TMR;
        }
        let next = nanos((halves + 1).saturating_mul(HALF), TIMER_HZ);
        if state.enable & TMR == 0 {
            state.deadline = None;
        } else if state.deadline != Some(next) {
            state.deadline = Some(next);
            self.timers.replace(next, self.me.clone());
        }
    }

    fn write_byte(&self, state: &mut State, port: u16, byte: u8) -> Option<PowerEvent> {
        let shift = 8 * (port & 1);
        let (value, mask) = (u16::from(byte) << shift, 0xff << shift);
        match port {
            0 | 1 => state.status &= !value,
            2 | 3 => state.enable = (state.enable & !mask | value) & ENABLE_WRITABLE,
            4 | 5 => {
                state.control = (state.control & !mask | value) & !(SLP_EN | SCI_EN);
                let sleep_type = state.control >> SLP_TYP_SHIFT & 7;
                match sleep_type {
                    _ if value & SLP_EN == 0 => {}
                    SLP_TYP_S3 => {
                        state.asleep = true;
                        return Some(PowerEvent::Sleep);
                    }
                    SLP_TYP_S5 => return Some(PowerEvent::PowerOff),
                    _ => {}
                }
            }
            _ => {}
        }
        None
    }
}

impl PortDevice for AcpiPm {
    fn read(&self, offset: u16, size: u8) -> u32 {
        let now = self.clock.now();
        let timer = (ticks(now, TIMER_HZ) as u32).to_le_bytes();
        if (8..12).contains(&offset) {
            // The timer alone needs no lock and is read in loops.
            return read_bytes(offset, size, |port| timer.get(usize::from(port - 8)).copied().unwrap_or(0));
        }
        let mut state = lock(&self.state);
        self.advance(&mut state, now);
        self.drive(&mut state);
        read_bytes(offset, size, |port| match port {
            0 | 1 => state.status.to_le_bytes()[usize::from(port)],
            2 | 3 => state.enable.to_le_bytes()[usize::from(port - 2)],
            4 | 5 => (state.control | SCI_EN).to_le_bytes()[usize::from(port - 4)],
            _ => 0,
        })
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        let now = self.clock.now();
        let mut event = None;
        let mut state = lock(&self.state);
        self.advance(&mut state, now);
        write_bytes(offset, size, value, |port, byte| {
            event = self.write_byte(&mut state, port, byte).or(event.take());
        });
        // Before the SCI is driven: what is up already wakes the machine at once.
        event.into_iter().for_each(|event| self.power.power(event));
        self.advance(&mut state, now);
        self.drive(&mut state);
    }
}

impl Timer for AcpiPm {
    fn expired(&self, now: Nanos) {
        let mut state = lock(&self.state);
        self.advance(&mut state, now);
        self.drive(&mut state);
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedPm {
    state: State,
    armed: Vec<Armed>,
}

impl satori_save::State for SavedPm {
    const NAME: &'static str = "ACPI PM";
    const VERSION: u32 = 2;
}

impl AcpiPm {
    fn timer(&self) -> Weak<dyn Timer> {
        self.me.clone()
    }
}

impl Save for AcpiPm {
    fn save(&self) -> Result<Value, Error> {
        let state = lock(&self.state).clone();
        Value::of(&SavedPm { state, armed: self.timers.armed(&self.timer()) })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let SavedPm { state, armed } = value.state()?;
        let fits = state.enable & !ENABLE_WRITABLE == 0 && state.control & (SLP_EN | SCI_EN) == 0;
        Error::unless(fits, "ACPI PM", "a register has bits that do not exist")?;
        *lock(&self.state) = state;
        self.timers.restore(&self.timer(), &armed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Power, Time, Wire};

    fn pm() -> (Arc<AcpiPm>, Arc<Time>, Arc<Wire>, Arc<Power>) {
        let (time, wire, power) = (Time::new(), Wire::new(), Power::new());
        let pm = AcpiPm::new(time.clone(), time.timers.clone(), wire.clone(), power.clone());
        (pm, time, wire, power)
    }

    #[test]
    fn soft_off_needs_its_sleep_type() {
        let (pm, _, _, power) = pm();
        assert_eq!(pm.read(4, 2), 1, "in ACPI mode");
        pm.write(4, 2, u32::from(SLP_EN | 2 << SLP_TYP_SHIFT));
        assert!(power.take().is_empty(), "no state has this type");
        pm.write(4, 2, u32::from(SLP_TYP_S5 << SLP_TYP_SHIFT));
        pm.write(4, 2, u32::from(SLP_EN | SLP_TYP_S5 << SLP_TYP_SHIFT));
        assert_eq!(power.take(), [PowerEvent::PowerOff]);
        assert_eq!(pm.read(4, 2), 0x1401, "SLP_EN reads as 0");
    }

    #[test]
    fn what_is_enabled_wakes_a_machine_that_sleeps() {
        let (pm, _, wire, power) = pm();
        pm.write(2, 2, u32::from(RTC));
        pm.write(4, 2, u32::from(SLP_EN | SLP_TYP_S3 << SLP_TYP_SHIFT));
        assert_eq!(power.take(), [PowerEvent::Sleep]);
        pm.press_power_button();
        assert!(power.take().is_empty(), "it is not enabled");
        pm.ring_alarm();
        assert_eq!(power.take(), [PowerEvent::Wake]);
        assert!(!wire.level(), "nobody is there to be interrupted");
        pm.ring_alarm();
        assert!(power.take().is_empty(), "it is awake");

        let (next, _, wire, _) = self::pm();
        next.go_on_from(&pm);
        assert_eq!(next.read(0, 2), u32::from(WAK_STS | RTC | PWRBTN));
        assert_eq!((next.read(2, 2), next.read(4, 2)), (RTC.into(), SCI_EN.into()));
        assert!(wire.level());
        next.write(0, 2, 0xffff);
        assert!(!wire.level());
    }

    #[test]
    fn what_is_up_already_lets_nobody_sleep() {
        let (pm, _, _, power) = pm();
        pm.press_power_button();
        pm.write(2, 2, u32::from(PWRBTN));
        pm.write(4, 2, u32::from(SLP_EN | SLP_TYP_S3 << SLP_TYP_SHIFT));
        assert_eq!(power.take(), [PowerEvent::Sleep, PowerEvent::Wake]);
    }

    #[test]
    fn the_power_button_is_an_sci_until_cleared() {
        let (pm, _, wire, _) = pm();
        pm.press_power_button();
        assert!(!wire.level());
        pm.write(2, 2, u32::from(PWRBTN));
        assert!(wire.level());
        assert_eq!(pm.read(0, 2), u32::from(PWRBTN));
        pm.write(0, 2, u32::from(PWRBTN));
        assert!(!wire.level());
    }

    #[test]
    fn the_timer_counts_and_overflows() {
        let (pm, time, wire, _) = pm();
        time.run_to(1_000_000_000);
        assert_eq!(pm.read(8, 4), 3_579_545);
        assert_eq!(pm.read(8, 1), 3_579_545 & 0xff);
        pm.write(2, 2, TMR.into());
        time.run_to(599_000_000_000);
        assert!(!wire.level());
        time.run_to(600_000_000_000);
        assert!(wire.level());
        pm.write(0, 2, TMR.into());
        assert!(!wire.level());
        time.run_to(1_200_000_000_000);
        assert!(wire.level());
    }
}
