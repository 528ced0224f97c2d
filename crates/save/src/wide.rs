//! For `#[serde(with = "satori_save::wide")]`: numbers of 128 bits, which no tree holds, as their two halves, low one first.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

fn halves(value: u128) -> [u64; 2] {
    [value as u64, (value >> 64) as u64]
}

fn whole([low, high]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// Writes one.
pub fn serialize<S: Serializer>(value: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    halves(*value).serialize(serializer)
}

/// Reads one.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
    <[u64; 2]>::deserialize(deserializer).map(whole)
}

/// The same for eight of them: the registers of the x87.
pub mod eight {
    use super::*;

    /// Writes them.
    pub fn serialize<S: Serializer>(values: &[u128; 8], serializer: S) -> Result<S::Ok, S::Error> {
        values.map(halves).serialize(serializer)
    }

    /// Reads them.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u128; 8], D::Error> {
        Ok(<[[u64; 2]; 8]>::deserialize(deserializer)?.map(whole))
    }
}
