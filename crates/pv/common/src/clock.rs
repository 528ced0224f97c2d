//! How a guest reads time from its time-stamp counter: 32 bytes of parameters that the host keeps, read under a version.

use satori_memory::{Gpa, GuestMemory};
use serde::{Deserialize, Serialize};

/// Size of a time area.
pub const AREA_BYTES: u64 = 32;
/// Flag of a time area: the same parameters hold on all vCPUs.
pub const STABLE: u8 = 1;
/// Flag of a time area: the host stopped the guest meanwhile, so watchdogs should be patient.
pub const WAS_STOPPED: u8 = 2;

/// `ns + (((tsc - since) << shift) * mul >> 32)` is system time: nanoseconds since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeScale {
    /// A value of the guest's counter.
    since: u64,
    /// System time there.
    ns: u64,
    mul: u32,
    shift: i8,
}

impl TimeScale {
    /// A clock that shows `ns` where the counter, of `hz`, is `since`.
    pub fn new(hz: u64, since: u64, ns: u64) -> Self {
        let hz = hz.max(1);
        // `mul` is 2^31 to 2^32, so that no bit of it is wasted: hz is brought into (1e9 / 2^32 .. ) by the shift.
        let (mut shift, mut factor) = (0i8, (1_000_000_000u128 << 32) / u128::from(hz));
        while factor >= 1 << 32 {
            factor >>= 1;
            shift += 1;
        }
        while factor < 1 << 31 && shift > -31 {
            shift -= 1;
            factor = (1_000_000_000u128 << (32 - i32::from(shift))) / u128::from(hz);
        }
        TimeScale { since, ns, mul: factor as u32, shift }
    }

    /// System time where the guest's counter is `tsc`.
    pub fn at(&self, tsc: u64) -> u64 {
        let delta = tsc.wrapping_sub(self.since);
        let shifted = match self.shift {
            left @ 0.. => u128::from(delta) << left,
            right => u128::from(delta >> right.unsigned_abs().min(63)),
        };
        // The guest shifts within 64 bits, and so do we.
        let scaled = (u128::from(shifted as u64) * u128::from(self.mul)) >> 32;
        self.ns.wrapping_add(scaled as u64)
    }

    /// The clock that goes on from `tsc`, from where the counter has another frequency.
    #[must_use]
    pub fn changed(&self, hz: u64, tsc: u64) -> Self {
        TimeScale::new(hz, tsc, self.at(tsc))
    }

    /// The bytes of an area behind its version, for a vCPU whose counter is ahead by `offset`.
    fn bytes(&self, offset: u64, flags: u8) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[4..12].copy_from_slice(&self.since.wrapping_add(offset).to_le_bytes());
        bytes[12..20].copy_from_slice(&self.ns.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.mul.to_le_bytes());
        bytes[24] = self.shift as u8;
        bytes[25] = flags;
        bytes
    }
}

/// Where a vCPU's time area is, and its version there. All writes of one area are made by one thread at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeArea {
    gpa: u64,
    version: u32,
}

impl TimeArea {
    /// An area at `gpa`, into which nothing was written yet.
    pub fn new(gpa: Gpa) -> Self {
        TimeArea { gpa: gpa.0, version: 0 }
    }

    /// Where it is.
    pub fn gpa(&self) -> Gpa {
        Gpa(self.gpa)
    }

    /// Writes the parameters: the version is odd meanwhile. What is not in memory is written nowhere, as the guest
    /// cannot read it either.
    pub fn publish(&mut self, memory: &GuestMemory, scale: &TimeScale, offset: u64, flags: u8) {
        let at = Gpa(self.gpa);
        let odd = self.version.wrapping_add(1) | 1;
        self.version = odd.wrapping_add(1);
        if memory.has(at, AREA_BYTES) && memory.store_u32(at, odd).is_ok() {
            // The range was just found in memory, and memory does not shrink.
            let _ = memory.write(Gpa(self.gpa + 4), &scale.bytes(offset, flags));
            let _ = memory.store_u32(at, self.version);
        }
    }
}

/// Writes `epoch`, nanoseconds of the Unix epoch at system time 0, as version, seconds and nanoseconds at `gpa`.
pub fn wall_clock(memory: &GuestMemory, gpa: Gpa, epoch: u64) {
    let (seconds, nanos) = (epoch / 1_000_000_000, epoch % 1_000_000_000);
    if !memory.has(gpa, 12) {
        return;
    }
    let before = memory.load_u32(gpa).unwrap_or(0);
    let odd = before.wrapping_add(1) | 1;
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&(seconds as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(nanos as u32).to_le_bytes());
    if memory.store_u32(gpa, odd).is_ok() {
        // The range was just found in memory, and memory does not shrink.
        let _ = memory.write(Gpa(gpa.0 + 4), &bytes);
        let _ = memory.store_u32(gpa, odd.wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use satori_memory::Region;

    #[test]
    fn a_second_of_ticks_is_a_second() {
        for hz in [20_000_000, 999_999_999, 1_000_000_000, 1_000_000_001, 2_599_998_000, 9_000_000_000u64] {
            let scale = TimeScale::new(hz, 0, 0);
            assert!(scale.mul >= 1 << 31, "{hz}: {scale:?}");
            let day = scale.at(hz * 86_400);
            assert!(day.abs_diff(86_400_000_000_000) < 60_000, "{hz}: {day}");
            // Linux takes the frequency from the factor (pvclock_tsc_khz).
            let khz = (1_000_000u128 << 32) / u128::from(scale.mul);
            let khz = if scale.shift < 0 { khz << -scale.shift } else { khz >> scale.shift };
            assert!(khz.abs_diff(u128::from(hz / 1000)) <= 4, "{hz}: {khz}");
        }
    }

    #[test]
    fn a_change_of_frequency_goes_on() {
        let scale = TimeScale::new(1_000_000_000, 0, 0);
        let other = scale.changed(2_000_000_000, 5_000);
        assert_eq!((other.at(5_000), other.at(7_000)), (scale.at(5_000), scale.at(5_000) + 1_000));
    }

    #[test]
    fn an_area_has_its_fields_where_guests_look() {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x1000 }]).unwrap();
        let scale = TimeScale::new(2_000_000_000, 100, 50);
        let mut area = TimeArea::new(Gpa(0x40));
        area.publish(&memory, &scale, 1000, STABLE);
        area.publish(&memory, &scale, 1000, STABLE);
        let word = |at: u64| memory.read_u32(Gpa(0x40 + at)).unwrap();
        assert_eq!((word(0), word(8), word(16)), (4, 1100, 50));
        assert_eq!((word(24), word(28)), (1 << 31, 0x0100));
        let mut beyond = TimeArea::new(Gpa(0xff0));
        beyond.publish(&memory, &scale, 0, 0);
        assert_eq!(memory.read_u32(Gpa(0xff0)).unwrap(), 0);
    }

    #[test]
    fn wall_time_is_seconds_and_nanoseconds() {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 0x1000 }]).unwrap();
        wall_clock(&memory, Gpa(0x10), 1_704_067_200_000_000_007);
        wall_clock(&memory, Gpa(0xffc), 5);
        let word = |at: u64| memory.read_u32(Gpa(at)).unwrap();
        assert_eq!((word(0x10), word(0x14), word(0x18)), (2, 1_704_067_200, 7));
        assert_eq!(word(0xffc), 0, "not a byte of what does not fit");
    }
}
