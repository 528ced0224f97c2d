//! PL061, eight general purpose pins (Arm DDI 0190): all of them inputs, whatever their driver says.

use std::sync::{Arc, Mutex, MutexGuard};

use satori_bus::MmioDevice;
use satori_lock::Held;

/// Peripheral and PrimeCell identification, from offset 0xfe0.
const ID: [u8; 8] = [0x61, 0x10, 0x04, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

/// Registers of a bit a pin.
#[derive(Default)]
struct State {
    /// What is applied to the pins.
    level: u8,
    /// GPIODIR and GPIOAFSEL, which nothing depends on.
    direction: u8,
    function: u8,
    /// GPIOIS: the level interrupts, not the edge.
    by_level: u8,
    /// GPIOIBE: both edges do.
    both: u8,
    /// GPIOIEV: the rising edge, or the high level.
    high: u8,
    /// GPIOIE.
    enabled: u8,
    /// Edges that were seen.
    latched: u8,
}

impl State {
    /// GPIORIS.
    fn raw(&self) -> u8 {
        self.latched & !self.by_level | !(self.level ^ self.high) & self.by_level
    }
}

/// The pins.
pub struct Pl061 {
    state: Mutex<State>,
    line: Box<dyn Fn(bool) + Send + Sync>,
}

impl Pl061 {
    /// Pins, all low, that signal by `line`.
    pub fn new(line: Box<dyn Fn(bool) + Send + Sync>) -> Arc<Self> {
        Arc::new(Pl061 { state: Mutex::default(), line })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().held()
    }

    /// Applies a level to `pin`.
    pub fn set(&self, pin: u8, level: bool) {
        let mut state = self.lock();
        let bit = 1 << (pin % 8);
        let before = state.level & bit != 0;
        match level {
            true => state.level |= bit,
            false => state.level &= !bit,
        }
        if before != level && (state.both & bit != 0 || (state.high & bit != 0) == level) {
            state.latched |= bit;
        }
        self.signal(&state);
    }

    /// Drives the line while the state is locked, so that the last change is the last that it shows.
    fn signal(&self, state: &State) {
        (self.line)(state.raw() & state.enabled != 0);
    }
}

impl MmioDevice for Pl061 {
    fn read(&self, offset: u64, _size: u8) -> u64 {
        let state = self.lock();
        let value = match offset {
            // Bits 9:2 of the address choose the pins.
            0..0x400 => state.level & (offset >> 2) as u8,
            0x400 => state.direction,
            0x404 => state.by_level,
            0x408 => state.both,
            0x40c => state.high,
            0x410 => state.enabled,
            0x414 => state.raw(),
            0x418 => state.raw() & state.enabled,
            0x420 => state.function,
            0xfe0..=0xffc => ID[((offset - 0xfe0) / 4) as usize],
            _ => 0,
        };
        value.into()
    }

    fn write(&self, offset: u64, _size: u8, value: u64) {
        let (mut state, value) = (self.lock(), value as u8);
        match offset {
            0x400 => state.direction = value,
            0x404 => state.by_level = value,
            0x408 => state.both = value,
            0x40c => state.high = value,
            0x410 => state.enabled = value,
            0x41c => state.latched &= !value,
            0x420 => state.function = value,
            _ => {}
        }
        self.signal(&state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn edges_stay_until_they_are_cleared_and_levels_follow_the_pin() {
        let line = Arc::new(AtomicBool::default());
        let told = line.clone();
        let gpio = Pl061::new(Box::new(move |level| told.store(level, Ordering::Relaxed)));
        let asserted = || line.load(Ordering::Relaxed);
        gpio.write(0x408, 1, 8);
        gpio.set(3, true);
        assert!(!asserted() && gpio.read(0x414, 4) == 8, "not enabled");
        gpio.write(0x410, 1, 8);
        assert!(asserted());
        assert_eq!((gpio.read(8 << 2, 1), gpio.read(4 << 2, 1)), (8, 0));
        gpio.write(0x41c, 1, 8);
        assert!(!asserted());
        gpio.set(3, true);
        assert!(!asserted(), "no edge");
        gpio.set(3, false);
        assert!(asserted(), "the other edge");
        gpio.write(0x41c, 1, 8);
        // GPIOIEV alone: the rising edge.
        gpio.write(0x408, 1, 0);
        gpio.write(0x40c, 1, 8);
        gpio.set(3, true);
        gpio.write(0x41c, 1, 8);
        gpio.set(3, false);
        assert!(!asserted());
        gpio.write(0x404, 1, 8);
        gpio.set(3, true);
        assert!(asserted());
        gpio.write(0x41c, 1, 8);
        assert!(asserted(), "a level is not cleared");
        gpio.set(3, false);
        assert!(!asserted());
        assert_eq!(gpio.read(0xfe0, 4), 0x61);
    }
}
