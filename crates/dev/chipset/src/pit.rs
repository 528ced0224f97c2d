//! The 8254 programmable interval timer (Intel 231164): counter 0 is IRQ 0, counter 2 the speaker.
//!
//! Ticks are not queued. When the host was late by several periods the guest gets one interrupt, as
//! from a processor that had interrupts off for as long; counts and the phase of later ticks stay exact.

mod counter;

use std::sync::{Arc, Mutex, Weak};

use satori_bus::{Armed, Clock, InterruptLine, Nanos, PortDevice, Timer, TimerQueue};
use satori_defs::chipset::pit::*;
use satori_save::{Error, Save, Value};
use serde::{Deserialize, Serialize};

use crate::support::{MIN_PERIOD, lock, read_bytes, write_bytes};
use counter::Counter;

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    counters: [Counter; 3],
    /// When counter 0's OUT rises next.
    deadline: Option<Nanos>,
    /// What software wrote to system control port B.
    port_b: u8,
}

/// The timer, at four ports.
pub struct Pit {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    timers: Arc<TimerQueue>,
    irq0: Arc<dyn InterruptLine>,
    me: Weak<Pit>,
}

impl Pit {
    /// A timer whose counters wait for their first count. `irq0` is pulsed with the lock held.
    pub fn new(clock: Arc<dyn Clock>, timers: Arc<TimerQueue>, irq0: Arc<dyn InterruptLine>) -> Arc<Self> {
        // Gates of counters 0 and 1 are tied high; that of 2 is in system control port B.
        let counters = [true, true, false].map(Counter::new);
        let state = Mutex::new(State { counters, deadline: None, port_b: 0 });
        Arc::new_cyclic(|me| Pit { state, clock, timers, irq0, me: me.clone() })
    }

    fn arm(&self, state: &mut State, at: Option<Nanos>) {
        state.deadline = at;
        if let Some(at) = at {
            self.timers.replace(at, self.me.clone());
        }
    }

    fn write_byte(&self, now: Nanos, port: u16, value: u8) {
        let mut state = lock(&self.state);
        match port & 3 {
            3 if value >> 6 == 3 => {
                for (i, counter) in state.counters.iter_mut().enumerate() {
                    if value & 2 << i == 0 {
                        continue;
                    }
                    // Read-back: the count and status bits are active low.
                    if value & 1 << 5 == 0 {
                        counter.latch_count(now);
                    }
                    if value & 1 << 4 == 0 {
                        counter.latch_status(now);
                    }
                }
            }
            3 => {
                let index = usize::from(value >> 6);
                state.counters[index].control(now, value);
                if index == 0 && value & 0x30 != 0 {
                    self.arm(&mut state, None);
                }
            }
            port => {
                let index = usize::from(port);
                if state.counters[index].write(now, value) && index == 0 {
                    let at = state.counters[0].next_rise(now);
                    self.arm(&mut state, at);
                }
            }
        }
    }

    /// System control port B, which has the gate and the output of counter 2.
    pub fn port_b(self: &Arc<Self>) -> Arc<dyn PortDevice> {
        Arc::new(PortB(self.clone()))
    }
}

impl PortDevice for Pit {
    fn read(&self, offset: u16, size: u8) -> u32 {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        read_bytes(offset, size, |port| match port & 3 {
            // The control word cannot be read.
            3 => 0,
            port => state.counters[usize::from(port)].read(now),
        })
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        let now = self.clock.now();
        write_bytes(offset, size, value, |port, byte| self.write_byte(now, port, byte));
    }
}

impl Timer for Pit {
    fn expired(&self, now: Nanos) {
        let mut state = lock(&self.state);
        if state.deadline.is_none_or(|at| at > now) {
            return;
        }
        self.irq0.pulse();
        let next = state.counters[0].next_rise(now).map(|at| at.max(now.saturating_add(MIN_PERIOD)));
        self.arm(&mut state, next);
    }
}

struct PortB(Arc<Pit>);

impl PortDevice for PortB {
    fn read(&self, _offset: u16, size: u8) -> u32 {
        let now = self.0.clock.now();
        let state = lock(&self.0.state);
        let refresh = if now / REFRESH_NANOS % 2 == 1 { PORT_B_REFRESH } else { 0 };
        let out2 = if state.counters[2].out(now) { PORT_B_OUT2 } else { 0 };
        read_bytes(0, size.min(1), |_| state.port_b | refresh | out2)
    }

    fn write(&self, _offset: u16, _size: u8, value: u32) {
        let now = self.0.clock.now();
        let mut state = lock(&self.0.state);
        state.port_b = value as u8 & PORT_B_WRITABLE;
        let gate = state.port_b & PORT_B_GATE2 != 0;
        state.counters[2].set_gate(now, gate);
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedPit {
    state: State,
    armed: Vec<Armed>,
}

impl satori_save::State for SavedPit {
    const NAME: &'static str = "8254";
    const VERSION: u32 = 1;
}

impl Pit {
    fn timer(&self) -> Weak<dyn Timer> {
        self.me.clone()
    }
}

impl Save for Pit {
    fn save(&self) -> Result<Value, Error> {
        let state = lock(&self.state).clone();
        Value::of(&SavedPit { state, armed: self.timers.armed(&self.timer()) })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let SavedPit { state, armed } = value.state()?;
        Error::unless(
            state.counters.iter().all(Counter::fits),
            "8254",
            "a counter has a mode or a count that none has",
        )?;
        *lock(&self.state) = state;
        self.timers.restore(&self.timer(), &armed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::nanos;
    use crate::testing::{Time, Wire};

    fn pit() -> (Arc<Pit>, Arc<Time>, Arc<Wire>) {
        let (time, wire) = (Time::new(), Wire::new());
        (Pit::new(time.clone(), time.timers.clone(), wire.clone()), time, wire)
    }

    fn program(pit: &Pit, counter: u16, control: u32, count: u16) {
        pit.write(3, 1, u32::from(counter) << 6 | control);
        pit.write(counter, 1, (count & 0xff).into());
        pit.write(counter, 1, (count >> 8).into());
    }

    #[test]
    fn mode_2_ticks_at_its_rate_for_ever() {
        let (pit, time, wire) = pit();
        program(&pit, 0, 0x34, 11_932); // Linux's HZ=100
        time.run_to(10_000_000_000);
        assert_eq!(wire.rises(), 999, "1,193,182 / 11,932 is a little less than 100");
        time.jump(20_000_000_000);
        time.timers.run(20_000_000_000);
        assert_eq!(wire.rises(), 1, "missed ticks merge");
        time.run_to(30_000_000_000);
        assert_eq!(wire.rises(), 1_000);
    }

    #[test]
    fn one_shots_fire_once_and_a_new_mode_disarms() {
        for mode in [0x30, 0x38] {
            let (pit, time, wire) = pit();
            program(&pit, 0, mode, 1_193);
            time.run_to(999_000);
            assert_eq!(wire.rises(), 0);
            time.run_to(5_000_000_000);
            assert_eq!(wire.rises(), 1);
            program(&pit, 0, mode, 1_193);
            pit.write(3, 1, mode);
            time.run_to(6_000_000_000);
            assert_eq!(wire.rises(), 0);
        }
    }

    #[test]
    fn fast_rates_cannot_spin_the_monitor() {
        let (pit, time, wire) = pit();
        for mode in [0x34, 0x36] {
            program(&pit, 0, mode, 1);
            time.run_to(time.now() + 10_000_000);
            assert!(wire.rises() <= 201);
        }
    }

    #[test]
    fn linux_calibrates_with_counter_2() {
        let (pit, time, _) = pit();
        let port_b = pit.port_b();
        port_b.write(0, 1, 1);
        program(&pit, 2, 0x30, 0xffff);
        let start = time.now();
        for passed in [0, 1, 255, 256, 40_000, 65_534] {
            time.jump(start + nanos(passed, HZ));
            let low = pit.read(2, 1);
            assert_eq!(low | pit.read(2, 1) << 8, 0xffff - passed as u32);
            assert_eq!(port_b.read(0, 1) & 0x2f, 0x01);
        }
        time.jump(start + nanos(65_535, HZ));
        assert_eq!(port_b.read(0, 1) & 0x2f, 0x21);
        // The gate stops the count and lets it go on.
        program(&pit, 2, 0x30, 1_000);
        time.jump(time.now() + nanos(10, HZ));
        port_b.write(0, 1, 0);
        time.jump(time.now() + nanos(5_000, HZ));
        assert_eq!(pit.read(2, 1) | pit.read(2, 1) << 8, 990);
        port_b.write(0, 1, 1);
        time.jump(time.now() + nanos(90, HZ));
        assert_eq!(pit.read(2, 1) | pit.read(2, 1) << 8, 900);
    }

    #[test]
    fn latches_and_read_back_hold_still() {
        let (pit, time, _) = pit();
        program(&pit, 0, 0x34, 1_000);
        time.jump(nanos(100, HZ));
        pit.write(3, 1, 0x00);
        time.jump(nanos(300, HZ));
        pit.write(3, 1, 0xc2); // read back count and status; the count is latched already
        assert_eq!(pit.read(0, 1), 0xb4, "OUT high, low then high, mode 2");
        assert_eq!(pit.read(0, 1) | pit.read(0, 1) << 8, 900);
        assert_eq!(pit.read(0, 1) | pit.read(0, 1) << 8, 700);
        pit.write(3, 1, 0x34);
        pit.write(3, 1, 0xe2);
        assert_eq!(pit.read(0, 1) & 0x40, 0x40, "null count");
    }

    #[test]
    fn square_waves_and_bcd() {
        let (pit, time, _) = pit();
        program(&pit, 0, 0x37, 0x1000);
        time.jump(nanos(100, HZ));
        assert_eq!(pit.read(0, 1) | pit.read(0, 1) << 8, 0x0800);
        for (passed, out) in [(499, 0x80), (500, 0), (999, 0), (1_000, 0x80)] {
            time.jump(nanos(passed, HZ));
            pit.write(3, 1, 0xe2);
            assert_eq!(pit.read(0, 1) & 0x80, out);
        }
    }
}
