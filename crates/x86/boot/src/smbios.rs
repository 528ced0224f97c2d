//! SMBIOS: what dmidecode and inventory tools read (DMTF DSP0134 3.7).

use satori_memory::Region;

use crate::acpi::Platform;
use crate::{Error, layout};

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

/// What whoever starts the machine has to say in the tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Smbios {
    /// Of structure 1.
    pub system: System,
    /// The strings of structure 11, by which systemd and others are told of credentials.
    pub oem: Vec<String>,
}

/// The machine's description; what is not given is Satori's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "names of the specification")]
pub struct System {
    pub manufacturer: Option<String>,
    pub product: Option<String>,
    pub version: Option<String>,
    pub serial: Option<String>,
    /// As it is written: the first three groups are turned around in the table (7.2.1).
    pub uuid: Option<[u8; 16]>,
    pub sku: Option<String>,
    pub family: Option<String>,
}

/// The most strings of structure 11, whose number has a byte.
const OEM_MOST: usize = 255;

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
    /// An empty one would end the strings: it is none.
    fn string(mut self, text: &str) -> Self {
        if text.is_empty() {
            return self.u8(0);
        }
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
pub(crate) fn tables(platform: &Platform, told: &Smbios, ram: &[Region]) -> Result<Vec<u8>, Error> {
    let structures = structures(platform, told, ram);
    let (mut table, mut largest) = (Vec::new(), 0);
    let count = structures.len() as u16;
    for structure in structures {
        largest = largest.max(structure.finish(&mut table));
    }
    let mut out = vec![0; (STRUCTURES - layout::SMBIOS) as usize];
    let (bytes, max) = (out.len() + table.len(), (layout::SMBIOS_END - layout::SMBIOS) as usize);
    if bytes > max || told.oem.len() > OEM_MOST {
        return Err(Error::Smbios { bytes, max, strings: OEM_MOST });
    }
    let entry = entry_64(table.len() as u32);
    out[..entry.len()].copy_from_slice(&entry);
    let entry = entry_32(table.len() as u16, count, largest as u16);
    out[ENTRY_32..ENTRY_32 + entry.len()].copy_from_slice(&entry);
    out.extend_from_slice(&table);
    Ok(out)
}

/// Woken by the power switch.
fn system(told: &System) -> Structure {
    let or = |text: &Option<String>, own: &str| text.clone().unwrap_or_else(|| own.into());
    let mut uuid = told.uuid.unwrap_or_default();
    uuid[..4].reverse();
    uuid[4..6].reverse();
    uuid[6..8].reverse();
    let mut all = Structure::new(1, 0x100)
        .string(&or(&told.manufacturer, MANUFACTURER))
        .string(&or(&told.product, PRODUCT))
        .string(&or(&told.version, VERSION))
        .string(&or(&told.serial, ""));
    all.bytes.extend_from_slice(&uuid);
    all.u8(6).string(&or(&told.sku, "")).string(&or(&told.family, "Virtual Machine"))
}

fn structures(platform: &Platform, told: &Smbios, ram: &[Region]) -> Vec<Structure> {
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
        system(&told.system),
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
    if !told.oem.is_empty() {
        let strings = Structure::new(11, 0xb00).u8(told.oem.len() as u8);
        all.push(Structure { strings: told.oem.clone(), ..strings });
    }
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
        let platform = Platform { apic_ids: (0..300).collect(), cores: 300, ..Platform::default() };
        let bytes = tables(&platform, &Smbios::default(), &ram).unwrap();
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
        let bytes = tables(&Platform::default(), &Smbios::default(), &ram).unwrap();
        let sum = |range: std::ops::Range<usize>| bytes[range].iter().fold(0_u8, |s, b| s.wrapping_add(*b));
        assert_eq!((&bytes[..5], sum(0..24)), (&b"_SM3_"[..], 0));
        assert_eq!((&bytes[0x20..0x24], sum(0x20..0x3f), sum(0x30..0x3f)), (&b"_SM_"[..], 0, 0));
        let length = u16::from_le_bytes([bytes[0x36], bytes[0x37]]);
        assert_eq!(usize::from(length), bytes.len() - 0x60);
        assert_eq!(u32::from_le_bytes(bytes[12..16].try_into().unwrap()), u32::from(length));
    }

    /// The bytes and strings of the structure of this type.
    fn structure(table: &[u8], kind: u8) -> (Vec<u8>, Vec<String>) {
        let at = walk(table).iter().position(|(found, _)| *found == kind).unwrap();
        let mut rest = table;
        for _ in 0..at {
            let strings = usize::from(rest[1]);
            let end = rest[strings..].windows(2).position(|pair| pair == [0, 0]).unwrap();
            rest = &rest[strings + end + 2..];
        }
        let (fields, text) = rest.split_at(rest[1].into());
        let strings = text.split(|byte| *byte == 0).take_while(|part| !part.is_empty());
        (fields.to_vec(), strings.map(|part| String::from_utf8(part.to_vec()).unwrap()).collect())
    }

    #[test]
    fn what_is_told_of_the_machine_and_to_it_is_there() {
        let ram = layout::ram_regions(512 << 20).unwrap();
        let tables = |told: &Smbios| tables(&Platform::default(), told, &ram);
        let uuid: [u8; 16] = std::array::from_fn(|at| at as u8);
        let system = System {
            product: Some("P".into()),
            serial: Some("S".into()),
            sku: Some(String::new()),
            uuid: Some(uuid),
            ..System::default()
        };
        let told = Smbios { system, oem: vec!["io.systemd.credential:a=b".into(), "c".into()] };
        let bytes = tables(&told).unwrap();
        let (fields, strings) = structure(&bytes[0x60..], 1);
        assert_eq!(strings, ["Satori", "P", VERSION, "S", "Virtual Machine"]);
        assert_eq!(fields[4..8], [1, 2, 3, 4]);
        assert_eq!(fields[8..24], [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(fields[24..], [6, 0, 5]);
        let (fields, strings) = structure(&bytes[0x60..], 11);
        assert_eq!((fields[4], strings), (2, told.oem.clone()));
        let strings = |count: usize, length: usize| Smbios {
            oem: vec!["x".repeat(length); count],
            ..Smbios::default()
        };
        assert!(tables(&strings(255, 240)).is_ok());
        for too_much in [strings(256, 1), strings(2, 40_000)] {
            assert!(matches!(tables(&too_much), Err(Error::Smbios { .. })));
        }
    }
}
