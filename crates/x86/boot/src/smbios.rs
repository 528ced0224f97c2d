//! SMBIOS: what dmidecode and inventory tools read (DMTF DSP0134 3.7).

use satori_memory::Region;

use crate::acpi::Platform;
use crate::layout;

/// Where the structures begin, after both entry points.
const STRUCTURES: u64 = layout::SMBIOS + 0x60;
/// The 32-bit entry point's distance from the 64-bit one; both lie on 16-byte boundaries.
const ENTRY_32: usize = 0x20;
/// Version that is implemented.
const MAJOR: u8 = 3;
const MINOR: u8 = 0;

const MANUFACTURER: &str = "Satori";
const PRODUCT: &str = "Satori virtual machine";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A structure in the making: fields after the header, and the strings that they number.
struct Structure {
    bytes: Vec<u8>,
    strings: Vec<String>,
}

impl Structure {
    fn new(kind: u8, handle: u16) -> Self {
        let [low, high] = handle.to_le_bytes();
        Structure { bytes: vec![kind, 0, low, high], strings: Vec::new() }
    }
    fn u8(mut self, value: u8) -> Self {
        self.bytes.push(value);
        self
    }
    fn u16(mut self, value: u16) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn u32(mut self, value: u32) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn u64(mut self, value: u64) -> Self {
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }
    fn string(mut self, text: &str) -> Self {
        self.strings.push(text.into());
        self.bytes.push(self.strings.len() as u8);
        self
    }
    fn finish(mut self, out: &mut Vec<u8>) -> usize {
        self.bytes[1] = self.bytes.len() as u8;
        for text in &self.strings {
            self.bytes.extend_from_slice(text.as_bytes());
            self.bytes.push(0);
        }
        // The string set ends in a NUL; an empty one is two.
        self.bytes.extend_from_slice(if self.strings.is_empty() { &[0, 0] } else { &[0] });
        out.extend_from_slice(&self.bytes);
        self.bytes.len()
    }
}

/// The entry points and structures, to be placed at [`layout::SMBIOS`].
pub(crate) fn tables(platform: &Platform, ram: &[Region]) -> Vec<u8> {
    let structures = structures(platform, ram);
    let (mut table, mut largest) = (Vec::new(), 0);
    let count = structures.len() as u16;
    for structure in structures {
        largest = largest.max(structure.finish(&mut table));
    }
    let mut out = vec![0; (STRUCTURES - layout::SMBIOS) as usize];
    let entry = entry_64(table.len() as u32);
    out[..entry.len()].copy_from_slice(&entry);
    let entry = entry_32(table.len() as u16, count, largest as u16);
    out[ENTRY_32..ENTRY_32 + entry.len()].copy_from_slice(&entry);
    out.extend_from_slice(&table);
    out
}

fn structures(platform: &Platform, ram: &[Region]) -> Vec<Structure> {
    let total: u64 = ram.iter().map(|region| region.len).sum();
    let mut all = vec![
        // BIOS information: 64 KiB, characteristics not supported; a virtual machine without UEFI.
        Structure::new(0, 0)
            .string(MANUFACTURER)
            .string(VERSION)
            .u16(0)
            .string("01/01/2025")
            .u8(0)
            .u64(1 << 3)
            .u16(0x1000)
            .u8(0)
            .u8(0)
            .u16(0xffff),
        // System information: no UUID, woken by the power switch.
        Structure::new(1, 0x100)
            .string(MANUFACTURER)
            .string(PRODUCT)
            .string(VERSION)
            .u8(0)
            .u64(0)
            .u64(0)
            .u8(6)
            .u8(0)
            .string("Virtual Machine"),
        // Chassis: other, everything safe.
        Structure::new(3, 0x300)
            .string(MANUFACTURER)
            .u8(1)
            .string(VERSION)
            .u8(0)
            .u8(0)
            .u8(3)
            .u8(3)
            .u8(3)
            .u8(2)
            .u32(0)
            .u8(0)
            .u8(0)
            .u8(0)
            .u8(0)
            .u8(0),
    ];
    let threads = platform.apic_ids.len() as u32 / platform.sockets.max(1);
    all.extend((0..platform.sockets).map(|socket| processor(socket, platform.cores, threads)));
    all.extend([
        // Physical memory array: on the board, for the system, no error correction.
        Structure::new(16, 0x1000).u8(3).u8(3).u8(3).u32(0x8000_0000).u16(0xfffe).u16(1).u64(total),
        memory_device(total),
    ]);
    for (index, region) in (0..).zip(ram) {
        // Extended addresses, so that 64 GiB fit.
        let (start, end) = (region.start.0, region.start.0 + region.len - 1);
        all.push(
            Structure::new(19, 0x1300 + index)
                .u32(u32::MAX)
                .u32(u32::MAX)
                .u16(0x1000)
                .u8(1)
                .u64(start)
                .u64(end),
        );
    }
    // Booted without error.
    all.push(Structure::new(32, 0x2000).u32(0).u16(0).u8(0));
    all.push(Structure::new(127, 0x7f00));
    all
}

/// One socket, with so many cores and threads in all.
fn processor(socket: u32, cores: u32, threads: u32) -> Structure {
    let byte = |count: u32| u8::try_from(count).unwrap_or(0xff);
    let word = |count: u32| u16::try_from(count).unwrap_or(0xfffe);
    // More than one core, and more than one thread a core.
    let several = u16::from(cores > 1) << 3 | u16::from(threads > cores) << 4;
    Structure::new(4, 0x400 + socket as u16)
        .string(&format!("CPU {socket}"))
        // Central processor of a family that has no number.
        .u8(3)
        .u8(1)
        .string(MANUFACTURER)
        .u64(0)
        .string(PRODUCT)
        // Voltage, external clock, maximum and current speed are unknown; populated and enabled.
        .u8(0)
        .u16(0)
        .u16(0)
        .u16(0)
        .u8(0x41)
        .u8(1)
        .u16(0xffff)
        .u16(0xffff)
        .u16(0xffff)
        .u8(0)
        .u8(0)
        .u8(0)
        .u8(byte(cores))
        .u8(byte(cores))
        .u8(byte(threads))
        // 64-bit capable, execute protection; then the family again.
        .u16(1 << 2 | several | 1 << 5)
        .u16(1)
        .u16(word(cores))
        .u16(word(cores))
        .u16(word(threads))
}

fn memory_device(total: u64) -> Structure {
    // 16 bits of MiB; what does not fit is in the extended size.
    let mib = total >> 20;
    let size = if mib < 0x7fff { mib as u16 } else { 0x7fff };
    Structure::new(17, 0x1100)
        .u16(0x1000)
        .u16(0xfffe)
        .u16(0xffff)
        .u16(0xffff)
        .u16(size)
        // A DIMM of RAM, of no set.
        .u8(9)
        .u8(0)
        .string("DIMM 0")
        .u8(0)
        .u8(7)
        .u16(1 << 1)
        .u16(0)
        .string(MANUFACTURER)
        .u8(0)
        .u8(0)
        .u8(0)
        .u8(0)
        .u32(mib as u32)
        .u16(0)
        .u16(0)
        .u16(0)
        .u16(0)
}

fn checksum(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    bytes[at] = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
}

/// SMBIOS 3.0 entry point (5.2.2).
fn entry_64(table: u32) -> [u8; 24] {
    let mut entry = [0; 24];
    entry[..5].copy_from_slice(b"_SM3_");
    entry[6] = entry.len() as u8;
    entry[7] = MAJOR;
    entry[8] = MINOR;
    entry[10] = 1;
    entry[12..16].copy_from_slice(&table.to_le_bytes());
    entry[16..].copy_from_slice(&STRUCTURES.to_le_bytes());
    checksum(&mut entry, 5);
    entry
}

/// SMBIOS 2.1 entry point (5.2.1).
fn entry_32(table: u16, count: u16, largest: u16) -> [u8; 31] {
    let mut entry = [0; 31];
    entry[..4].copy_from_slice(b"_SM_");
    entry[5] = entry.len() as u8;
    entry[6] = MAJOR;
    entry[7] = MINOR;
    entry[8..10].copy_from_slice(&largest.to_le_bytes());
    entry[16..21].copy_from_slice(b"_DMI_");
    entry[22..24].copy_from_slice(&table.to_le_bytes());
    entry[24..28].copy_from_slice(&(STRUCTURES as u32).to_le_bytes());
    entry[28..30].copy_from_slice(&count.to_le_bytes());
    entry[30] = MAJOR << 4 | MINOR;
    checksum(&mut entry[16..], 5);
    checksum(&mut entry, 4);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (type, length) of each structure, walked as a guest walks them.
    fn walk(table: &[u8]) -> Vec<(u8, u8)> {
        let (mut at, mut found) = (0, Vec::new());
        while at < table.len() {
            found.push((table[at], table[at + 1]));
            at += usize::from(table[at + 1]);
            while table[at..at + 2] != [0, 0] {
                at += 1;
            }
            at += 2;
        }
        found
    }

    #[test]
    fn structures_have_the_lengths_of_their_version() {
        let ram = layout::ram_regions(64 << 30).unwrap();
        let bytes =
            tables(&Platform { apic_ids: (0..300).collect(), cores: 300, ..Platform::default() }, &ram);
        let found = walk(&bytes[0x60..]);
        let expected = [
            (0, 0x18),
            (1, 0x1b),
            (3, 0x16),
            (4, 0x30),
            (16, 0x17),
            (17, 0x28),
            (19, 0x1f),
            (19, 0x1f),
            (32, 0x0b),
            (127, 4),
        ];
        assert_eq!(found, expected);
        assert!(bytes.len() < 0x1_0000);
    }

    #[test]
    fn entry_points_sum_to_zero_and_agree() {
        let ram = layout::ram_regions(512 << 20).unwrap();
        let bytes = tables(&Platform::default(), &ram);
        let sum = |range: std::ops::Range<usize>| bytes[range].iter().fold(0_u8, |s, b| s.wrapping_add(*b));
        assert_eq!((&bytes[..5], sum(0..24)), (&b"_SM3_"[..], 0));
        assert_eq!((&bytes[0x20..0x24], sum(0x20..0x3f), sum(0x30..0x3f)), (&b"_SM_"[..], 0, 0));
        let length = u16::from_le_bytes([bytes[0x36], bytes[0x37]]);
        assert_eq!(usize::from(length), bytes.len() - 0x60);
        assert_eq!(u32::from_le_bytes(bytes[12..16].try_into().unwrap()), u32::from(length));
    }
}
