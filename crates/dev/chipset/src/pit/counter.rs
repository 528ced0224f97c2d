//! One counter of the 8254: what it shows is computed from when it was loaded, never counted.

use satori_bus::Nanos;
use satori_defs::chipset::pit::HZ;
use serde::{Deserialize, Serialize};

use crate::support::{nanos, ticks};

/// How a counter is read and written: RW1 and RW0 of the control word.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Access {
    Low = 1,
    High = 2,
    LowThenHigh = 3,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counter {
    mode: u8,
    bcd: bool,
    access: Access,
    /// Clock pulses of a period: 1 to 65,536, or 10,000 in BCD (more if the digits were garbage).
    initial: u64,
    /// When it was loaded or triggered; `None` while it waits for either.
    start: Option<Nanos>,
    gate: bool,
    /// What had passed when the gate went low in a mode where that stops the count.
    paused: Option<Nanos>,
    /// No count was written since the control word.
    null_count: bool,
    /// The low byte of a two-byte write that is not complete.
    write_low: Option<u8>,
    read_high_next: bool,
    latched_count: Option<u16>,
    latched_status: Option<u8>,
}

impl Counter {
    pub(super) fn new(gate: bool) -> Self {
        Counter {
            mode: 3,
            bcd: false,
            access: Access::LowThenHigh,
            initial: 0x1_0000,
            start: None,
            gate,
            paused: None,
            null_count: true,
            write_low: None,
            read_high_next: false,
            latched_count: None,
            latched_status: None,
        }
    }

    /// Whether a counter can have come to this.
    pub(super) fn fits(&self) -> bool {
        self.mode <= 5 && (1..=0x1_0000).contains(&self.initial)
    }

    /// A control word for this counter; RW of 00 is the counter latch command.
    pub(super) fn control(&mut self, now: Nanos, word: u8) {
        let access = match word >> 4 & 3 {
            0 => return self.latch_count(now),
            1 => Access::Low,
            2 => Access::High,
            _ => Access::LowThenHigh,
        };
        // Modes 6 and 7 are 2 and 3: the third bit is "don't care" there.
        let mode = word >> 1 & 7;
        *self = Counter {
            mode: if mode > 5 { mode - 4 } else { mode },
            bcd: word & 1 != 0,
            access,
            ..Counter::new(self.gate)
        };
    }

    pub(super) fn latch_count(&mut self, now: Nanos) {
        if self.latched_count.is_none() {
            self.latched_count = Some(self.count(now));
        }
    }

    pub(super) fn latch_status(&mut self, now: Nanos) {
        if self.latched_status.is_none() {
            let status = u8::from(self.out(now)) << 7
                | u8::from(self.null_count) << 6
                | (self.access as u8) << 4
                | self.mode << 1
                | u8::from(self.bcd);
            self.latched_status = Some(status);
        }
    }

    pub(super) fn read(&mut self, now: Nanos) -> u8 {
        if let Some(status) = self.latched_status.take() {
            return status;
        }
        let [low, high] = self.latched_count.unwrap_or_else(|| self.count(now)).to_le_bytes();
        let done;
        let byte = match self.access {
            Access::Low => {
                done = true;
                low
            }
            Access::High => {
                done = true;
                high
            }
            Access::LowThenHigh => {
                done = self.read_high_next;
                self.read_high_next = !done;
                if done { high } else { low }
            }
        };
        if done {
            self.latched_count = None;
        }
        byte
    }

    /// A byte of the initial count. True when the count is complete and the counter was loaded.
    ///
    /// A running counter is reloaded at once, as KVM does, where the chip would finish its cycle.
    pub(super) fn write(&mut self, now: Nanos, byte: u8) -> bool {
        let count = match (self.access, self.write_low.take()) {
            (Access::Low, _) => u16::from(byte),
            (Access::High, _) => u16::from(byte) << 8,
            (Access::LowThenHigh, Some(low)) => u16::from_le_bytes([low, byte]),
            (Access::LowThenHigh, None) => {
                self.write_low = Some(byte);
                return false;
            }
        };
        self.initial = match (self.bcd, count) {
            (false, 0) => 0x1_0000,
            (true, 0) => 10_000,
            (false, count) => count.into(),
            (true, count) => {
                (0..4).rev().fold(0, |sum, digit| sum * 10 + u64::from(count >> (4 * digit) & 0xf))
            }
        };
        self.null_count = false;
        self.paused = None;
        if !self.triggered() {
            self.start = Some(now);
            if !self.gate {
                self.paused = Some(0);
            }
        }
        true
    }

    /// Drives the gate.
    pub(super) fn set_gate(&mut self, now: Nanos, gate: bool) {
        let rising = gate && !self.gate;
        let falling = !gate && self.gate;
        self.gate = gate;
        match self.mode {
            // The gate only stops the count.
            0 | 4 => {
                if falling && let Some(start) = self.start {
                    self.paused = Some(now.saturating_sub(start));
                } else if rising && let Some(passed) = self.paused.take() {
                    self.start = Some(now.saturating_sub(passed));
                }
            }
            // The gate's rise starts over.
            _ => {
                if rising && !self.null_count {
                    self.start = Some(now);
                    self.paused = None;
                } else if falling && matches!(self.mode, 2 | 3) {
                    self.paused = Some(0);
                }
            }
        }
    }

    /// Modes 1 and 5 start with the gate's rise, not with the count.
    fn triggered(&self) -> bool {
        matches!(self.mode, 1 | 5)
    }

    /// Clock pulses since the start.
    fn passed(&self, now: Nanos) -> Option<u64> {
        let start = self.start?;
        Some(ticks(self.paused.unwrap_or(now.saturating_sub(start)), HZ))
    }

    /// OUT.
    pub(super) fn out(&self, now: Nanos) -> bool {
        let Some(passed) = self.passed(now) else { return self.mode != 0 };
        let n = self.initial;
        match self.mode {
            0 | 1 => passed >= n,
            // With the gate low OUT is high.
            2 | 3 if self.paused.is_some() => true,
            2 => passed % n != n - 1,
            3 => passed % n < n.div_ceil(2),
            _ => passed != n,
        }
    }

    /// What the counting element holds.
    fn count(&self, now: Nanos) -> u16 {
        let n = self.initial;
        let modulus = if self.bcd { 10_000 } else { 0x1_0000 };
        let passed = self.passed(now).unwrap_or(0);
        let value = match self.mode {
            2 => n - passed % n,
            // Counts by two, twice a period.
            3 => n - passed * 2 % n,
            // Goes on through zero.
            _ => (n + modulus - passed % modulus) % modulus,
        } % modulus;
        if !self.bcd {
            return value as u16;
        }
        (0..4).fold(0, |bcd, digit| bcd | ((value / 10u64.pow(digit) % 10) as u16) << (4 * digit))
    }

    /// When OUT next rises after `now`.
    pub(super) fn next_rise(&self, now: Nanos) -> Option<Nanos> {
        if self.paused.is_some() {
            return None;
        }
        let passed = self.passed(now)?;
        let n = self.initial;
        let at = match self.mode {
            0 | 1 => Some(n),
            2 | 3 => Some((passed / n + 1) * n),
            _ => Some(n + 1),
        };
        at.filter(|&at| at > passed).and_then(|at| self.start?.checked_add(nanos(at, HZ)))
    }
}
