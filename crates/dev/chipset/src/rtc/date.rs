//! Seconds since the Unix epoch as the clock's registers, and back.

use satori_defs::chipset::rtc::{B_24, B_DM, PM};
use serde::{Deserialize, Serialize};

/// What the time registers hold, as plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Date {
    pub second: u8,
    pub minute: u8,
    pub hour: u8,
    /// 1 is Sunday.
    pub weekday: u8,
    pub day: u8,
    pub month: u8,
    /// Of the century.
    pub year: u8,
    pub century: u8,
}

const DAY: i64 = 86_400;

impl Date {
    /// The proleptic Gregorian date of `seconds`; years are shown modulo 10,000.
    pub(super) fn from_seconds(seconds: i64) -> Self {
        let (days, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
        // Days since 0000-03-01, in eras of 400 years of 146,097 days.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = (era * 400 + year_of_era + i64::from(month <= 2)).rem_euclid(10_000);
        Date {
            second: (second % 60) as u8,
            minute: (second / 60 % 60) as u8,
            hour: (second / 3_600) as u8,
            // 1970-01-01 was a Thursday.
            weekday: (days + 4).rem_euclid(7) as u8 + 1,
            day: day as u8,
            month: month as u8,
            year: (year % 100) as u8,
            century: (year / 100) as u8,
        }
    }

    /// The inverse of [`Date::from_seconds`]; fields out of range count on, the weekday is not used.
    pub(super) fn to_seconds(self) -> i64 {
        let month = i64::from(self.month);
        let year = i64::from(self.century) * 100 + i64::from(self.year) - i64::from(month <= 2);
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let day_of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + i64::from(self.day) - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        let days = era * 146_097 + day_of_era - 719_468;
        days * DAY + i64::from(self.hour) * 3_600 + i64::from(self.minute) * 60 + i64::from(self.second)
    }
}

/// A number as register B's data mode has it.
pub(super) fn encode(value: u8, b: u8) -> u8 {
    if b & B_DM != 0 { value } else { ((value / 10) << 4) | (value % 10) }
}

/// The inverse of [`encode`]; digits above 9 count on.
pub(super) fn decode(value: u8, b: u8) -> u8 {
    if b & B_DM != 0 { value } else { (value >> 4) * 10 + (value & 0xf) }
}

/// An hour as register B's data and 24-hour modes have it.
pub(super) fn encode_hour(hour: u8, b: u8) -> u8 {
    if b & B_24 != 0 {
        return encode(hour, b);
    }
    let twelve = if hour.is_multiple_of(12) { 12 } else { hour % 12 };
    encode(twelve, b) | if hour >= 12 { PM } else { 0 }
}

/// The inverse of [`encode_hour`].
pub(super) fn decode_hour(value: u8, b: u8) -> u8 {
    if b & B_24 != 0 {
        return decode(value, b);
    }
    decode(value & !PM, b) % 12 + if value & PM != 0 { 12 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let date = Date::from_seconds(951_827_696);
        let expected =
            Date { second: 56, minute: 34, hour: 12, weekday: 3, day: 29, month: 2, year: 0, century: 20 };
        assert_eq!(date, expected, "2000-02-29 was a Tuesday");
        for seconds in (0..8_000_000_000).step_by(86_399 * 13) {
            assert_eq!(Date::from_seconds(seconds).to_seconds(), seconds);
        }
    }

    #[test]
    fn registers_decode_to_what_they_encode() {
        for b in [0, B_DM, B_24, B_DM | B_24] {
            assert!((0..60).all(|v| decode(encode(v, b), b) == v));
            assert!((0..24).all(|v| decode_hour(encode_hour(v, b), b) == v));
        }
        assert_eq!((encode_hour(0, 0), encode_hour(13, 0)), (0x12, 0x81));
        // Garbage only has to stay within a byte.
        assert!((0..=255).all(|v| decode(v, 0) <= 165 && decode_hour(v, 0) <= 23));
    }
}
