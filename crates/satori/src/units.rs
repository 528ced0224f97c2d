//! Sizes and durations as people write them.

use std::time::Duration;

use clap::builder::{OsStringValueParser, TypedValueParser};
use satori_machine::TscChange;
use satori_trace::Spec;

use crate::devices::{self, DiskSpec};
use crate::vsock::{self, VsockSpec};

/// A size in bytes: a plain number is MiB, as QEMU's `-m` has it; K, M, G and T (optionally
/// `iB` or `B` after them) are powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let wanted = "write a size such as 512M or 4G (a plain number is MiB)";
    let (number, unit) = split(text);
    let number: u64 = number.parse().map_err(|_| wanted.to_string())?;
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "k" => 10,
        "" if unit.is_empty() => 20,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wanted.into()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| "that many bytes do not exist".into())
}

/// Memory of a guest: a [`size`] from 128 MiB to 64 GiB, a multiple of 2 MiB.
pub fn memory(text: &str) -> Result<u64, String> {
    checked_memory(size(text)?)
}

/// Memory comes in multiples of this.
pub const STEP: u64 = 2 << 20;

/// `bytes`, if a guest can have as many.
pub fn checked_memory(bytes: u64) -> Result<u64, String> {
    if !(128 << 20..=64 << 30).contains(&bytes) {
        return Err("give a guest from 128M to 64G".into());
    }
    if !bytes.is_multiple_of(STEP) {
        return Err("give a multiple of 2 MiB".into());
    }
    Ok(bytes)
}

/// A duration above zero: a plain number is seconds; `ms`, `s`, `m` and `h` are understood.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wanted = "write a time such as 90s, 500ms, 5m or 1h (a plain number is seconds)";
    let (number, unit) = split(text);
    let number: u64 = number.parse().map_err(|_| wanted.to_string())?;
    let millis = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wanted.into()),
    };
    // A year is beyond every use, and far below what Instant can add.
    let millis = number.checked_mul(millis).filter(|&ms| ms <= 366 * 24 * 3_600_000);
    match millis {
        Some(0) => Err("give a time above zero".into()),
        Some(ms) => Ok(Duration::from_millis(ms)),
        None => Err("give a time of at most a year".into()),
    }
}

/// A change of the TSC's frequency: a [`duration`] of guest time, and a frequency in Hz, kHz, MHz
/// or GHz, of which a plain number is Hz.
pub fn tsc_change(text: &str) -> Result<TscChange, String> {
    let wanted = "write a time and a frequency, such as 30s=2.1GHz";
    let (at, frequency) = text.split_once('=').ok_or(wanted)?;
    let at = duration(at)?;
    let end = frequency.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(frequency.len());
    let (number, unit) = frequency.split_at(end);
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" | "hz" => 1.0,
        "khz" => 1e3,
        "mhz" => 1e6,
        "ghz" => 1e9,
        _ => return Err(wanted.into()),
    };
    let number: f64 = number.parse().map_err(|_| wanted.to_string())?;
    let hz = number * unit;
    if !(20e6..=100e9).contains(&hz) {
        return Err("give a frequency from 20 MHz to 100 GHz".into());
    }
    Ok(TscChange { at, hz: hz.round() as u64 })
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// `--trace`: a file, whose name may be no text, and behind commas what is written to it.
pub fn trace() -> impl TypedValueParser<Value = Spec> {
    OsStringValueParser::new().try_map(|text| Spec::of(&text, satori_machine::REASONS))
}

/// `--disk`: an image, whose name may be no text, and behind commas what it is.
pub fn disk() -> impl TypedValueParser<Value = DiskSpec> {
    OsStringValueParser::new().try_map(|text| devices::disk(&text))
}

/// `--vsock`: a socket, whose name may be no text, and the guest's address.
pub fn vsock() -> impl TypedValueParser<Value = VsockSpec> {
    OsStringValueParser::new().try_map(|text| vsock::spec(&text))
}

/// A feature of processors by name.
pub fn feature(text: &str) -> Result<satori_cpuid::Feature, String> {
    satori_cpuid::Feature::by_name(text).ok_or_else(|| "'satori cpu --features' names features".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("512", 512 << 20),
            ("512M", 512 << 20),
            ("512m", 512 << 20),
            ("4G", 4 << 30),
            ("4GiB", 4 << 30),
            ("262144k", 256 << 20),
            ("131072KiB", 128 << 20),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "5X", "b", "ib", "18446744073709551615T", "99999999999999999999"]
        {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_has_both_ends() {
        assert!(memory("128M").is_ok() && memory("64G").is_ok());
        assert!(memory("127M").is_err() && memory("65537").is_err() && memory("257").is_err());
    }

    #[test]
    fn changes_of_the_tsc() {
        let change = |seconds, hz| Ok(TscChange { at: Duration::from_secs(seconds), hz });
        assert_eq!(tsc_change("30s=2.1GHz"), change(30, 2_100_000_000));
        assert_eq!(tsc_change("1m=1500000000"), change(60, 1_500_000_000));
        for text in ["", "30s", "=2GHz", "30s=", "30s=2THz", "30s=1MHz", "0=2GHz", "1s=.", "1s=200GHz"] {
            assert!(tsc_change(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for text in ["", "0", "0s", "s", "-3", "5d", "99999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
