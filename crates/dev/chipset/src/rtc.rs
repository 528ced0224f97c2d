//! The MC146818A real-time clock, and the CMOS memory behind it.
//!
//! Nothing ticks: flags and time are computed from the clock when somebody looks, and a timer is armed
//! only for an enabled interrupt. IRQ 8 is driven with the lock held; nothing behind it calls back.

mod date;

use std::sync::{Arc, Mutex, Weak};

use satori_bus::{Armed, Clock, InterruptLine, Nanos, PortDevice, Timer, TimerQueue};
use satori_defs::chipset::rtc::*;
use satori_save::{Error, Save, Value};
use serde::{Deserialize, Serialize};

use crate::support::{lock, nanos, read_bytes, ticks, write_bytes};
use date::{Date, decode, decode_hour, encode, encode_hour};

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400;
const BASE_HZ: u64 = 32_768;

/// How much memory there is, which old firmware interfaces read here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySizes {
    /// Bytes from 0 up to the hole below 4 GiB.
    pub below_4g: u64,
    /// Bytes from 4 GiB up.
    pub above_4g: u64,
}

struct State {
    index: u8,
    /// The registers that are memory: alarms, A, B, and all from 0x0e on.
    ram: [u8; 128],
    /// Register C without IRQF.
    flags: u8,
    /// Added to the machine's wall clock, in seconds; what the guest has set.
    offset: i64,
    /// Time registers while SET holds updates.
    held: Option<Date>,
    /// Flags are accounted for up to here.
    seen: Nanos,
    deadline: Option<Nanos>,
    level: bool,
}

impl State {
    fn b(&self) -> u8 {
        self.ram[usize::from(B)]
    }

    /// Clock pulses of the 32,768 Hz base in a period: RS 1 and 2 are the rates of 8 and 9.
    fn period(&self) -> Option<u64> {
        match self.ram[usize::from(A)] & A_RS {
            0 => None,
            rs @ (1 | 2) => Some(1 << (rs + 6)),
            rs => Some(1 << (rs - 1)),
        }
    }

    /// Seconds within a day that match the alarm, first after `second` and at most a day later.
    fn alarm_after(&self, second: u64) -> Option<u64> {
        let b = self.b();
        let field = |register: u8, decode: fn(u8, u8) -> u8| {
            let value = self.ram[usize::from(register)];
            (value & ALARM_ANY != ALARM_ANY).then(|| u64::from(decode(value, b)))
        };
        let (hour, minute) = (field(HOURS_ALARM, decode_hour), field(MINUTES_ALARM, decode));
        let seconds = field(SECONDS_ALARM, decode);
        if hour.is_some_and(|h| h > 23) || minute.is_some_and(|m| m > 59) || seconds.is_some_and(|s| s > 59) {
            return None;
        }
        let range = |fixed: Option<u64>, end: u64| fixed.map_or(0..end, |v| v..v + 1);
        // The last of today's that is after, else tomorrow's first.
        let today = second % DAY;
        let start = second - today;
        for h in range(hour, 24).filter(|h| h * 3_600 + 3_599 > today) {
            for m in range(minute, 60).filter(|m| h * 3_600 + m * 60 + 59 > today) {
                for s in range(seconds, 60) {
                    let at = h * 3_600 + m * 60 + s;
                    if at > today {
                        return Some(start + at);
                    }
                }
            }
        }
        let first = hour.unwrap_or(0) * 3_600 + minute.unwrap_or(0) * 60 + seconds.unwrap_or(0);
        Some(start + DAY + first)
    }
}

/// Register index at offset 0, data at offset 1.
pub struct Rtc {
    state: Mutex<State>,
    clock: Arc<dyn Clock>,
    timers: Arc<TimerQueue>,
    irq8: Arc<dyn InterruptLine>,
    me: Weak<Rtc>,
}

impl Rtc {
    /// A clock that shows the machine's wall clock in UTC.
    pub fn new(
        clock: Arc<dyn Clock>,
        timers: Arc<TimerQueue>,
        irq8: Arc<dyn InterruptLine>,
        memory: MemorySizes,
    ) -> Arc<Self> {
        let state = State {
            index: 0,
            ram: cmos(memory),
            flags: 0,
            offset: 0,
            held: None,
            seen: clock.now(),
            deadline: None,
            level: false,
        };
        Arc::new_cyclic(|me| Rtc { state: Mutex::new(state), clock, timers, irq8, me: me.clone() })
    }

    /// Goes on from `before`, which had power while the machine slept.
    pub fn go_on_from(&self, before: &Rtc) {
        let now = self.clock.now();
        let State { index, ram, flags, offset, held, seen, .. } = *lock(&before.state);
        let mut state = lock(&self.state);
        *state = State { index, ram, flags, offset, held, seen, deadline: None, level: false };
        self.advance(&mut state, now);
        self.settle(&mut state, now);
    }

    /// The machine's wall clock, in nanoseconds since the Unix epoch.
    fn wall(&self, now: Nanos) -> u64 {
        self.clock.epoch().saturating_add(now)
    }

    /// The clock's second, within what a guest may have made of it; never negative.
    fn second(&self, state: &State, now: Nanos) -> u64 {
        let wall = (self.wall(now) / SECOND) as i64;
        wall.saturating_add(state.offset).max(0) as u64
    }

    fn date(&self, state: &State, now: Nanos) -> Date {
        state.held.unwrap_or_else(|| Date::from_seconds(self.second(state, now) as i64))
    }

    /// Sets the flags of what happened up to `now`.
    fn advance(&self, state: &mut State, now: Nanos) {
        let seen = state.seen;
        if now <= seen {
            return;
        }
        state.seen = now;
        if let Some(period) = state.period()
            && ticks(now, BASE_HZ) / period > ticks(seen, BASE_HZ) / period
        {
            state.flags |= C_PF;
        }
        let (before, after) = (self.second(state, seen), self.second(state, now));
        if state.held.is_none() && after > before {
            state.flags |= C_UF;
            if state.alarm_after(before).is_some_and(|alarm| alarm <= after) {
                state.flags |= C_AF;
            }
        }
    }

    /// Drives IRQ 8, and arms the next enabled event.
    fn settle(&self, state: &mut State, now: Nanos) {
        // The enable bits B 6:4 stand where the flags C 6:4 do.
        let enabled = state.b() & (B_PIE | B_AIE | B_UIE);
        let level = state.flags & enabled != 0;
        if level != state.level {
            state.level = level;
            self.irq8.set(level);
        }
        // A flag that is up has interrupted already, until C is read.
        let wanted = enabled & !state.flags;
        let wall = self.wall(now);
        let after_seconds = |seconds: u64| {
            let until = seconds.saturating_mul(SECOND).saturating_sub(wall % SECOND);
            now.saturating_add(until)
        };
        let periodic = state
            .period()
            .filter(|_| wanted & B_PIE != 0)
            .map(|period| nanos((ticks(now, BASE_HZ) / period + 1) * period, BASE_HZ));
        let running = state.held.is_none();
        let update = (running && wanted & B_UIE != 0).then(|| after_seconds(1));
        let alarm = (running && wanted & B_AIE != 0)
            .then(|| self.second(state, now))
            .and_then(|second| state.alarm_after(second).map(|alarm| after_seconds(alarm - second)));
        let next = [periodic, update, alarm].into_iter().flatten().min();
        if next != state.deadline {
            state.deadline = next;
            if let Some(at) = next {
                self.timers.replace(at, self.me.clone());
            }
        }
    }

    fn read_register(&self, state: &mut State, now: Nanos) -> u8 {
        let b = state.b();
        match state.index {
            A => {
                // An update comes within 244 µs.
                let uip = state.held.is_none() && self.wall(now) % SECOND >= SECOND - UIP_NANOS;
                state.ram[usize::from(A)] & !A_UIP | if uip { A_UIP } else { 0 }
            }
            C => {
                let flags = std::mem::take(&mut state.flags);
                flags | if flags & b & (B_PIE | B_AIE | B_UIE) != 0 { C_IRQF } else { 0 }
            }
            D => D_VRT,
            index => match time_register(index) {
                Some(register) => register.get(&self.date(state, now), b),
                None => state.ram[usize::from(index)],
            },
        }
    }

    fn write_register(&self, state: &mut State, now: Nanos, value: u8) {
        let b = state.b();
        match state.index {
            A => state.ram[usize::from(A)] = value & !A_UIP,
            B => {
                // Setting SET also clears UIE (MC146818A, register B).
                let new = if value & B_SET != 0 { value & !B_UIE } else { value };
                if new & B_SET != 0 {
                    state.held = Some(self.date(state, now));
                } else if let Some(date) = state.held.take() {
                    self.set(state, now, date);
                }
                state.ram[usize::from(B)] = new;
            }
            C | D => {}
            index => match time_register(index) {
                Some(register) => {
                    let mut date = self.date(state, now);
                    register.put(&mut date, value, b);
                    match &mut state.held {
                        Some(held) => *held = date,
                        None => self.set(state, now, date),
                    }
                }
                None => state.ram[usize::from(index)] = value,
            },
        }
    }

    fn set(&self, state: &mut State, now: Nanos, date: Date) {
        state.offset = date.to_seconds().saturating_sub((self.wall(now) / SECOND) as i64);
    }
}

/// A register that shows a part of the date.
#[derive(Clone, Copy)]
struct TimeRegister(fn(&mut Date) -> &mut u8, bool);

impl TimeRegister {
    fn get(self, date: &Date, b: u8) -> u8 {
        let value = *(self.0)(&mut date.clone());
        if self.1 { encode_hour(value, b) } else { encode(value, b) }
    }

    fn put(self, date: &mut Date, value: u8, b: u8) {
        *(self.0)(date) = if self.1 { decode_hour(value, b) } else { decode(value, b) };
    }
}

fn time_register(index: u8) -> Option<TimeRegister> {
    Some(match index {
        SECONDS => TimeRegister(|d| &mut d.second, false),
        MINUTES => TimeRegister(|d| &mut d.minute, false),
        HOURS => TimeRegister(|d| &mut d.hour, true),
        DAY_OF_WEEK => TimeRegister(|d| &mut d.weekday, false),
        DAY_OF_MONTH => TimeRegister(|d| &mut d.day, false),
        MONTH => TimeRegister(|d| &mut d.month, false),
        YEAR => TimeRegister(|d| &mut d.year, false),
        CENTURY => TimeRegister(|d| &mut d.century, false),
        _ => return None,
    })
}

/// CMOS memory as firmware would have left it.
fn cmos(memory: MemorySizes) -> [u8; 128] {
    let mut ram = [0; 128];
    ram[usize::from(A)] = A_DV_32768 | 6;
    ram[usize::from(B)] = B_24;
    let mut put = |at: u8, size: usize, value: u64| {
        let value = value.min((1 << (8 * size)) - 1).to_le_bytes();
        ram[usize::from(at)..][..size].copy_from_slice(&value[..size]);
    };
    let extended = memory.below_4g.saturating_sub(1 << 20) >> 10;
    put(BASE_MEMORY, 2, 640);
    put(EXTENDED_MEMORY, 2, extended);
    put(EXTENDED_MEMORY_TESTED, 2, extended);
    put(MEMORY_ABOVE_16M, 2, memory.below_4g.saturating_sub(16 << 20) >> 16);
    put(MEMORY_ABOVE_4G, 3, memory.above_4g >> 16);
    ram
}

impl PortDevice for Rtc {
    fn read(&self, offset: u16, size: u8) -> u32 {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        self.advance(&mut state, now);
        let value = read_bytes(offset, size, |port| match port {
            0 => state.index,
            1 => self.read_register(&mut state, now),
            _ => 0xff,
        });
        self.settle(&mut state, now);
        value
    }

    fn write(&self, offset: u16, size: u8, value: u32) {
        let now = self.clock.now();
        let mut state = lock(&self.state);
        self.advance(&mut state, now);
        write_bytes(offset, size, value, |port, byte| match port {
            // Bit 7 masks NMI, which nothing here raises.
            0 => state.index = byte & 0x7f,
            1 => self.write_register(&mut state, now, byte),
            _ => {}
        });
        self.settle(&mut state, now);
    }
}

impl Timer for Rtc {
    fn expired(&self, now: Nanos) {
        let mut state = lock(&self.state);
        self.advance(&mut state, now);
        // This entry is used up, so an equal deadline must be armed anew.
        if state.deadline.is_some_and(|at| at <= now) {
            state.deadline = None;
        }
        self.settle(&mut state, now);
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedRtc {
    index: u8,
    ram: Vec<u8>,
    flags: u8,
    offset: i64,
    held: Option<Date>,
    seen: Nanos,
    deadline: Option<Nanos>,
    level: bool,
    armed: Vec<Armed>,
}

impl satori_save::State for SavedRtc {
    const NAME: &'static str = "MC146818A";
    const VERSION: u32 = 1;
}

impl Rtc {
    fn timer(&self) -> Weak<dyn Timer> {
        self.me.clone()
    }
}

impl Save for Rtc {
    fn save(&self) -> Result<Value, Error> {
        let State { index, ram, flags, offset, held, seen, deadline, level } = *lock(&self.state);
        let (ram, armed) = (ram.to_vec(), self.timers.armed(&self.timer()));
        Value::of(&SavedRtc { index, ram, flags, offset, held, seen, deadline, level, armed })
    }

    fn restore(&self, value: &Value) -> Result<(), Error> {
        let saved: SavedRtc = value.state()?;
        let SavedRtc { index, ref ram, flags, offset, held, seen, deadline, level, .. } = saved;
        let ram = ram.as_slice().try_into().map_err(|_| Error::unfit("MC146818A", "it has 128 registers"))?;
        Error::unless(index < 128, "MC146818A", "it has 128 registers")?;
        *lock(&self.state) = State { index, ram, flags, offset, held, seen, deadline, level };
        self.timers.restore(&self.timer(), &saved.armed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Time, Wire};

    /// 2000-02-29 12:34:56 UTC.
    const EPOCH: u64 = 951_827_696;

    fn rtc() -> (Arc<Rtc>, Arc<Time>, Arc<Wire>) {
        let (time, wire) = (Time::at_epoch(EPOCH), Wire::new());
        let memory = MemorySizes { below_4g: 512 << 20, above_4g: 1 << 30 };
        (Rtc::new(time.clone(), time.timers.clone(), wire.clone(), memory), time, wire)
    }

    fn read(rtc: &Rtc, register: u8) -> u8 {
        rtc.write(0, 1, u32::from(register) | 0x80);
        rtc.read(1, 1) as u8
    }

    fn write(rtc: &Rtc, register: u8, value: u8) {
        rtc.write(0, 1, register.into());
        rtc.write(1, 1, value.into());
    }

    fn shown(rtc: &Rtc) -> [u8; 8] {
        [CENTURY, YEAR, MONTH, DAY_OF_MONTH, DAY_OF_WEEK, HOURS, MINUTES, SECONDS].map(|r| read(rtc, r))
    }

    #[test]
    fn the_time_of_day_is_the_wall_clocks() {
        let (rtc, time, _) = rtc();
        assert_eq!(shown(&rtc), [0x20, 0, 2, 0x29, 3, 0x12, 0x34, 0x56]);
        time.jump(43_200 * SECOND);
        assert_eq!(shown(&rtc), [0x20, 0, 3, 1, 4, 0, 0x34, 0x56]);
        assert_eq!(read(&rtc, D), 0x80);
    }

    #[test]
    fn update_in_progress_comes_before_each_second() {
        let (rtc, time, _) = rtc();
        assert_eq!(read(&rtc, A), 0x26);
        time.jump(SECOND - 244_000);
        assert_eq!(read(&rtc, A), 0xa6);
        time.jump(SECOND);
        assert_eq!(read(&rtc, A), 0x26);
        assert_eq!(read(&rtc, SECONDS), 0x57);
    }

    #[test]
    fn a_set_clock_runs_on_from_there() {
        let (rtc, time, _) = rtc();
        write(&rtc, B, B_SET | B_24 | B_DM);
        for (register, value) in
            [(HOURS, 23), (MINUTES, 59), (SECONDS, 59), (YEAR, 38), (MONTH, 1), (DAY_OF_MONTH, 18)]
        {
            write(&rtc, register, value);
        }
        time.jump(10 * SECOND);
        assert_eq!(read(&rtc, SECONDS), 59, "held");
        write(&rtc, B, B_24 | B_DM);
        time.jump(12 * SECOND);
        assert_eq!(shown(&rtc), [20, 38, 1, 19, 3, 0, 0, 1]);
    }

    #[test]
    fn periodic_interrupts_wait_for_register_c() {
        let (rtc, time, wire) = rtc();
        write(&rtc, B, B_24 | B_PIE);
        time.run_to(SECOND);
        assert_eq!(wire.rises(), 1, "one, until C is read");
        let mut count = 0;
        while time.now() < 2 * SECOND {
            assert_eq!(read(&rtc, C) & 0xc0, 0xc0);
            time.run_to(time.timers.next().unwrap());
            count += wire.rises();
        }
        assert_eq!(count, 1_024);
    }

    #[test]
    fn updates_and_alarms_interrupt_on_their_second() {
        let (rtc, time, wire) = rtc();
        write(&rtc, B, B_24 | B_UIE);
        time.run_to(SECOND - 1);
        assert!(!wire.level());
        time.run_to(SECOND);
        assert!(wire.level());
        assert_eq!(read(&rtc, C) & 0xb0, 0x90);
        write(&rtc, B, B_24 | B_AIE);
        for (register, value) in [(HOURS_ALARM, 0xff), (MINUTES_ALARM, 0x35), (SECONDS_ALARM, 0x01)] {
            write(&rtc, register, value);
        }
        assert!(!wire.level());
        time.run_to(5 * SECOND - 1);
        assert!(!wire.level());
        time.run_to(5 * SECOND);
        assert_eq!(read(&rtc, C), 0xf0);
        time.run_to(3_604 * SECOND);
        assert!(!wire.level());
        time.run_to(3_605 * SECOND);
        assert!(wire.level(), "an hour later again");
        read(&rtc, C);
        write(&rtc, HOURS_ALARM, 0x12); // it is past 13:35, so tomorrow
        write(&rtc, MINUTES_ALARM, 0xc0);
        time.run_to(50_000 * SECOND);
        assert!(!wire.level());
        time.run_to(90_000 * SECOND);
        assert!(wire.level());
    }

    #[test]
    fn memory_sizes_are_in_cmos() {
        let (rtc, ..) = rtc();
        let word = |at: u8| u16::from_le_bytes([read(&rtc, at), read(&rtc, at + 1)]);
        assert_eq!((word(BASE_MEMORY), word(EXTENDED_MEMORY)), (640, u16::MAX));
        assert_eq!((word(MEMORY_ABOVE_16M), word(MEMORY_ABOVE_4G)), (496 << 4, 1 << 14));
    }
}
