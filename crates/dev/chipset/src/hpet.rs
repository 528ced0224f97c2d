//! The high precision event timer (IA-PC HPET 1.0a): three comparators on one 100 MHz counter.
//!
//! With legacy replacement timer 0 takes the PIT's interrupt and timer 1 the RTC's; [`LegacyGate`]
//! stands in the lines of those two. Lines are driven with the lock held; nothing behind them calls back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use satori_bus::{Armed, Clock, InterruptLine, MmioDevice, Nanos, Timer, TimerQueue};
use satori_defs::chipset::hpet::*;
use satori_save::{Error, Save, Value};
use serde::{Deserialize, Serialize};

use crate::support::{MIN_PERIOD, lock};

/// Outputs: IRQ 0, IRQ 8, then the I/O APIC pins from [`FIRST_PIN`].
const OUTPUTS: usize = 2 + PIN_COUNT;

const CONF_WRITABLE: u64 =
    TN_INT_TYPE_CNF | TN_INT_ENB_CNF | TN_TYPE_CNF | TN_VAL_SET_CNF | TN_32MODE_CNF | TN_INT_ROUTE_CNF;

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Comparator {
    conf: u64,
    /// The accumulator: where the counter will match next.
    comparator: u64,
    period: u64,
    deadline: Option<Nanos>,
}

impl Comparator {
    fn mask(&self) -> u64 {
        if self.conf & TN_32MODE_CNF != 0 { u32::MAX.into() } else { u64::MAX }
    }

    fn periodic(&self) -> bool {
        self.conf & TN_TYPE_CNF != 0
    }

    fn write_comparator(&mut self, value: u64) {
        let value = value & self.mask();
        if !self.periodic() || self.conf & TN_VAL_SET_CNF != 0 {
            self.comparator = value;
        }
        if self.periodic() {
            self.period = value;
        }
        self.conf &= !TN_VAL_SET_CNF;
    }

    /// When the counter, now at `counter`, next reaches the comparator.
    fn schedule(&mut self, now: Nanos, counter: u64) {
        let distance = self.comparator.wrapping_sub(counter) & self.mask();
        self.deadline = distance.checked_mul(TICK_NANOS).and_then(|passed| now.checked_add(passed));
    }

    /// After a match: moves the accumulator of a periodic timer beyond the counter.
    fn advance(&mut self, now: Nanos, counter: u64) {
        if self.periodic() && self.period != 0 {
            let behind = counter.wrapping_sub(self.comparator) & self.mask();
            let steps = (behind / self.period).wrapping_add(1);
            self.comparator = self.comparator.wrapping_add(steps.wrapping_mul(self.period)) & self.mask();
            self.schedule(now, counter);
            self.deadline = self.deadline.map(|at| at.max(now.saturating_add(MIN_PERIOD)));
        } else {
            // The next match is when the counter has come round.
            let round = self.mask().checked_add(1).and_then(|ticks| ticks.checked_mul(TICK_NANOS));
            self.deadline = round.and_then(|passed| now.checked_add(passed));
        }
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    conf: u64,
    status: u64,
    /// The counter when it was stopped, or when it was started.
    counter: u64,
    started: Nanos,
    timers: [Comparator; TIMERS],
    level: [bool; OUTPUTS],
}

impl State {
    fn enabled(&self) -> bool {
        self.conf & ENABLE_CNF != 0
    }

    fn counter(&self, now: Nanos) -> u64 {
        match self.enabled() {
            true => self.counter.wrapping_add(now.saturating_sub(self.started) / TICK_NANOS),
            false => self.counter,
        }
    }

    /// Which output timer `n` drives.
    fn output(&self, n: usize) -> Option<usize> {
        if self.conf & LEG_RT_CNF != 0 && n < 2 {
            return Some(n);
        }
        let pin = ((self.timers[n].conf & TN_INT_ROUTE_CNF) >> TN_INT_ROUTE_SHIFT) as usize;
        pin.checked_sub(FIRST_PIN.into()).filter(|&pin| pin < PIN_COUNT).map(|pin| pin + 2)
    }

    fn interrupting(&self, n: usize) -> bool {
        self.enabled() && self.timers[n].conf & TN_INT_ENB_CNF != 0
    }

    /// Whether anything outside can see timer `n` match.
    fn observed(&self, n: usize) -> bool {
        self.interrupting(n) || level_triggered(&self.timers[n])
    }

    /// Moves on the accumulators of timers that no queue entry serves: they match all the same.
    fn catch_up(&mut self, now: Nanos) {
        let counter = self.counter(now);
        for n in 0..TIMERS {
            if !self.observed(n) && self.timers[n].deadline.is_some_and(|at| at <= now) {
                self.timers[n].advance(now, counter);
            }
        }
    }

    fn reschedule(&mut self, now: Nanos) {
        let counter = self.counter(now);
        let enabled = self.enabled();
        for timer in &mut self.timers {
            if enabled {
                timer.schedule(now, counter);
            } else {
                timer.deadline = None;
            }
        }
    }
}

/// Lets the PIT's and the RTC's interrupts through unless the HPET has taken their place.
#[derive(Default)]
pub struct LegacyGate(AtomicBool);

impl LegacyGate {
    /// A gate that is open until an HPET closes it.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// `line` behind this gate.
    pub fn line(self: &Arc<Self>, line: Arc<dyn InterruptLine>) -> Arc<dyn InterruptLine> {
        Arc::new(Gated { gate: self.clone(), line })
    }
}

struct Gated {
    gate: Arc<LegacyGate>,
    line: Arc<dyn InterruptLine>,
}

impl InterruptLine for Gated {
    fn set(&self, asserted: bool) {
        self.line.set(asserted && !self.gate.0.load(Ordering::Relaxed));
    }
}

/// The lines an HPET drives.
pub struct HpetLines {
    /// ISA interrupts 0 and 8, for legacy replacement.
    pub legacy: [Arc<dyn InterruptLine>; 2],
    /// The I/O APIC pins from [`FIRST_PIN`].
    pub pins: [Arc<dyn InterruptLine>; PIN_COUNT],
}

/// The high precision event timer.
pub struct Hpet {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    timers: Arc<TimerQueue>,
    outputs: [Arc<dyn InterruptLine>; OUTPUTS],
    gate: Arc<LegacyGate>,
    me: Weak<Hpet>,
}

impl Hpet {
    /// A halted HPET.
    pub fn new(
        clock: Arc<dyn Clock>,
        timers: Arc<TimerQueue>,
        lines: HpetLines,
        gate: Arc<LegacyGate>,
    ) -> Arc<Self> {
        let reset = Comparator { comparator: u64::MAX, ..Comparator::default() };
        let state = Mutex::new(State {
            conf: 0,
            status: 0,
            counter: 0,
            started: 0,
            timers: [reset; TIMERS],
            level: [false; OUTPUTS],
        });
        let [irq0, irq8] = lines.legacy;
        let [a, b, c, d] = lines.pins;
        let outputs = [irq0, irq8, a, b, c, d];
        Arc::new_cyclic(|me| Hpet { state, clock, timers, outputs, gate, me: me.clone() })
    }

    /// Drives level outputs from status and configuration.
    fn drive(&self, state: &mut State) {
        let mut level = [false; OUTPUTS];
        for n in 0..TIMERS {
            if state.status & 1 << n != 0
                && state.interrupting(n)
                && let Some(output) = state.output(n)
            {
                level[output] = true;
            }
        }
        for (i, line) in self.outputs.iter().enumerate() {
            if state.level[i] != level[i] {
                line.set(level[i]);
            }
        }
        state.level = level;
    }

    fn arm(&self, state: &State) {
        let observed = (0..TIMERS).filter(|&n| state.observed(n));
        if let Some(at) = observed.filter_map(|n| state.timers[n].deadline).min() {
            self.timers.replace(at, self.me.clone());
        }
    }

    fn read_register(&self, state: &mut State, register: u64) -> u64 {
        state.catch_up(self.clock.now());
        match register {
            GCAP_ID => GCAP_ID_VALUE,
            GEN_CONF => state.conf,
            GINTR_STA => state.status,
            MAIN_CNT => state.counter(self.clock.now()),
            _ => match timer_register(register) {
                Some((n, TN_CONF)) => state.timers[n].conf | TN_PER_INT_CAP | TN_SIZE_CAP | TN_INT_ROUTE_CAP,
                Some((n, TN_COMP)) => state.timers[n].comparator,
                _ => 0,
            },
        }
    }

    /// Writes the bits of `mask` in `register`.
    fn write_register(&self, state: &mut State, register: u64, value: u64, mask: u64) {
        let now = self.clock.now();
        state.catch_up(now);
        let merge = |old: u64| old & !mask | value & mask;
        match register {
            GEN_CONF => {
                let counter = state.counter(now);
                state.conf = merge(state.conf) & (ENABLE_CNF | LEG_RT_CNF);
                state.counter = counter;
                state.started = now;
                self.gate.0.store(state.conf & LEG_RT_CNF != 0, Ordering::Relaxed);
                state.reschedule(now);
            }
            GINTR_STA => state.status &= !(value & mask),
            MAIN_CNT => {
                state.counter = merge(state.counter(now));
                state.started = now;
                state.reschedule(now);
            }
            _ => {
                let counter = state.counter(now);
                let enabled = state.enabled();
                let Some((n, register)) = timer_register(register) else { return };
                let timer = &mut state.timers[n];
                match register {
                    TN_CONF => {
                        timer.conf = merge(timer.conf) & CONF_WRITABLE;
                        timer.comparator &= timer.mask();
                        timer.period &= timer.mask();
                        if !level_triggered(timer) {
                            state.status &= !(1 << n);
                        }
                    }
                    TN_COMP => timer.write_comparator(merge(timer.comparator)),
                    _ => return,
                }
                if enabled {
                    state.timers[n].schedule(now, counter);
                }
            }
        }
        self.drive(state);
        self.arm(state);
    }
}

fn level_triggered(timer: &Comparator) -> bool {
    timer.conf & TN_INT_TYPE_CNF != 0
}

fn timer_register(register: u64) -> Option<(usize, u64)> {
    let from_first = register.checked_sub(TIMER)?;
    let n = usize::try_from(from_first / TIMER_STRIDE).ok()?;
    (n < TIMERS).then_some((n, from_first % TIMER_STRIDE))
}

impl MmioDevice for Hpet {
    fn read(&self, offset: u64, size: u8) -> u64 {
        let value = self.read_register(&mut lock(&self.state), offset & !7);
        match (size, offset & 7) {
            (8, 0) => value,
            (4, 0) => value & u64::from(u32::MAX),
            (4, 4) => value >> 32,
            // Other accesses are undefined (2.3.2).
            _ => 0,
        }
    }

    fn write(&self, offset: u64, size: u8, value: u64) {
        let (value, mask) = match (size, offset & 7) {
            (8, 0) => (value, u64::MAX),
            (4, 0) => (value, u32::MAX.into()),
            (4, 4) => (value << 32, u64::from(u32::MAX) << 32),
            _ => return,
        };
        self.write_register(&mut lock(&self.state), offset & !7, value, mask);
    }
}

impl Timer for Hpet {
    fn expired(&self, now: Nanos) {
        let mut state = lock(&self.state);
        let counter = state.counter(now);
        for n in 0..TIMERS {
            let due = state.timers[n].deadline.is_some_and(|at| at <= now);
            if !due {
                continue;
            }
            state.timers[n].advance(now, counter);
            if level_triggered(&state.timers[n]) {
                state.status |= 1 << n;
            } else if state.interrupting(n)
                && let Some(output) = state.output(n)
                && !state.level[output]
            {
                self.outputs[output].pulse();
            }
        }
        self.drive(&mut state);
        self.arm(&state);
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedHpet {
    state: State,
    armed: Vec<Armed>,
}

impl satori_save::State for SavedHpet {
    const NAME: &'static str = "HPET";
    const VERSION: u32 = 1;
}

impl Hpet {
    fn timer(&self) -> Weak<dyn Timer> {
        self.me.clone()
    }
}

impl Save for Hpet {
    fn save(&self) -> Result<Value, Error> {
        let state = lock(&self.state).clone();
        Value::of(&SavedHpet { state, armed: self.timers.armed(&self.timer()) })
    }

    /// The gate in the lines of the PIT and the RTC comes back too.
    fn restore(&self, value: &Value) -> Result<(), Error> {
        let SavedHpet { state, armed } = value.state()?;
        let comparator = |timer: &Comparator| {
            let within = timer.comparator & !timer.mask() == 0 && timer.period & !timer.mask() == 0;
            within && timer.conf & !CONF_WRITABLE == 0
        };
        let registers = state.conf & !(ENABLE_CNF | LEG_RT_CNF) == 0 && state.status >> TIMERS == 0;
        let fits = registers && state.timers.iter().all(comparator);
        Error::unless(fits, "HPET", "a register has bits that do not exist")?;
        self.gate.0.store(state.conf & LEG_RT_CNF != 0, Ordering::Relaxed);
        *lock(&self.state) = state;
        self.timers.restore(&self.timer(), &armed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Time, Wire};

    fn hpet() -> (Arc<Hpet>, Arc<Time>, Vec<Arc<Wire>>, Arc<LegacyGate>) {
        let (time, gate) = (Time::new(), LegacyGate::new());
        let wires: Vec<_> = (0..OUTPUTS).map(|_| Wire::new()).collect();
        let line = |i: usize| -> Arc<dyn InterruptLine> { wires[i].clone() };
        let lines = HpetLines { legacy: [line(0), line(1)], pins: [line(2), line(3), line(4), line(5)] };
        (Hpet::new(time.clone(), time.timers.clone(), lines, gate.clone()), time, wires, gate)
    }

    #[test]
    fn the_counter_runs_only_when_enabled() {
        let (hpet, time, ..) = hpet();
        assert_eq!(hpet.read(4, 4), 10_000_000);
        assert_eq!(hpet.read(0, 4), 0x8086_a201);
        time.jump(1_000);
        assert_eq!(hpet.read(MAIN_CNT, 8), 0);
        hpet.write(GEN_CONF, 4, 1);
        time.jump(2_000);
        assert_eq!(hpet.read(MAIN_CNT, 4), 100);
        hpet.write(GEN_CONF, 4, 0);
        time.jump(3_000);
        hpet.write(MAIN_CNT + 4, 4, 1);
        assert_eq!(hpet.read(MAIN_CNT, 8), 1 << 32 | 100);
    }

    #[test]
    fn linux_programs_a_periodic_legacy_tick() {
        let (hpet, time, wires, gate) = hpet();
        let pit = Wire::new();
        let pit_line = gate.line(pit.clone());
        pit_line.pulse();
        hpet.write(GEN_CONF, 4, ENABLE_CNF | LEG_RT_CNF);
        hpet.write(TIMER, 4, TN_INT_ENB_CNF | TN_TYPE_CNF | TN_VAL_SET_CNF | TN_32MODE_CNF);
        hpet.write(TIMER + TN_COMP, 4, 400_000);
        hpet.write(TIMER + TN_COMP, 4, 400_000);
        time.run_to(1_000_000_000);
        assert_eq!(wires[0].rises(), 250);
        time.jump(2_000_000_000);
        time.timers.run(2_000_000_000);
        assert_eq!(wires[0].rises(), 1, "missed periods merge");
        time.run_to(3_000_000_000);
        assert_eq!(wires[0].rises(), 250, "and the phase is kept");
        pit_line.pulse();
        assert_eq!(pit.rises(), 1, "the PIT is cut off");
    }

    #[test]
    fn a_one_shot_fires_once_a_round() {
        let (hpet, time, wires, _) = hpet();
        hpet.write(GEN_CONF, 4, ENABLE_CNF);
        hpet.write(TIMER + TIMER_STRIDE, 4, TN_INT_ENB_CNF | TN_32MODE_CNF | 21 << 9);
        hpet.write(TIMER + TIMER_STRIDE + TN_COMP, 4, 1_000);
        time.run_to(9_999);
        assert_eq!(wires[3].rises(), 0);
        time.run_to(42_000_000_000);
        assert_eq!(wires[3].rises(), 1);
        time.run_to(43_000_000_000);
        assert_eq!(wires[3].rises(), 1);
    }

    #[test]
    fn a_level_holds_until_its_status_is_cleared() {
        let (hpet, time, wires, _) = hpet();
        let timer = TIMER + 2 * TIMER_STRIDE;
        hpet.write(timer, 4, TN_INT_ENB_CNF | TN_INT_TYPE_CNF | 23 << 9);
        hpet.write(timer + TN_COMP, 8, 50);
        hpet.write(GEN_CONF, 4, ENABLE_CNF);
        time.run_to(1_000);
        assert!(wires[5].level());
        assert_eq!(hpet.read(GINTR_STA, 4), 4);
        hpet.write(GINTR_STA, 4, 4);
        assert!(!wires[5].level());
    }

    #[test]
    fn a_periodic_timer_runs_on_while_its_interrupt_is_off() {
        let (hpet, time, wires, _) = hpet();
        let conf = TN_TYPE_CNF | TN_32MODE_CNF | 20 << 9;
        hpet.write(GEN_CONF, 4, ENABLE_CNF);
        hpet.write(TIMER, 4, conf | TN_VAL_SET_CNF);
        hpet.write(TIMER + TN_COMP, 4, 100_000);
        time.run_to(10_500_000);
        assert_eq!(hpet.read(TIMER + TN_COMP, 4), 1_100_000);
        hpet.write(TIMER, 4, conf | TN_INT_ENB_CNF);
        time.run_to(20_500_000);
        assert_eq!(wires[2].rises(), 10);
    }

    #[test]
    fn short_periods_cannot_spin_the_monitor() {
        let (hpet, time, wires, _) = hpet();
        hpet.write(GEN_CONF, 4, ENABLE_CNF);
        hpet.write(TIMER, 4, TN_INT_ENB_CNF | TN_TYPE_CNF | TN_VAL_SET_CNF | 20 << 9);
        hpet.write(TIMER + TN_COMP, 8, 1);
        time.run_to(10_000_000);
        assert!((1..=201).contains(&wires[2].rises()));
    }
}
