//! Where things are in the guest's physical address space.
//!
//! Devices keep the addresses of [`satori_defs::chipset`]; this file adds what lies around them.

use satori_defs::acpi::address_range;
use satori_defs::chipset::mmio;
use satori_defs::x86::PAGE_SIZE;
use satori_memory::{Gpa, Region};

use crate::Error;

/// The least memory of a guest.
pub const MEMORY_MIN: u64 = 128 << 20;
/// The most memory of a guest.
pub const MEMORY_MAX: u64 = 64 << 30;
/// RAM below 4 GiB ends here; the rest begins at [`HIGH_RAM`].
pub const LOW_RAM_END: u64 = 0xc000_0000;
/// RAM above the hole for devices.
pub const HIGH_RAM: u64 = 1 << 32;

/// The first page: interrupt vectors and BIOS data of real mode (`firmware`).
pub const REAL_MODE_END: u64 = PAGE_SIZE;
/// Where a PC's extended BIOS data area begins, and usable low memory ends.
pub const EBDA: u64 = 0x9_fc00;
/// Video memory and ROMs of a PC begin.
pub const LEGACY_HOLE: u64 = 0xa_0000;
/// The RSDP, where a BIOS has it (ACPI 6.5, 5.2.5.1).
pub const RSDP: u64 = 0xe_0000;
/// SMBIOS entry points and structures, where a BIOS has them (SMBIOS 3.7, 5.2).
pub const SMBIOS: u64 = 0xf_0000;

/// Where they end: firmware's handlers follow.
pub const SMBIOS_END: u64 = 0xf_fe00;
/// The legacy hole ends and extended memory begins.
pub const LEGACY_HOLE_END: u64 = 0x10_0000;

/// The PCI host bridge's first memory window, up to [`PCI_LOW_END`].
pub const PCI_LOW: u64 = LOW_RAM_END;
/// End of the first window: enhanced configuration space may follow.
pub const PCI_LOW_END: u64 = mmio::ECAM;
/// The PCI host bridge's second memory window, up to the I/O APIC.
pub const PCI_HIGH: u64 = mmio::ECAM + (256 << 20);

/// The PCI host bridge's window above 4 GiB, far above all RAM and below the end of the 46 address bits.
pub const PCI_64: u64 = 1 << 40;
/// End of that window.
pub const PCI_64_END: u64 = 1 << 41;

/// The first of four interrupt lines that pins of PCI devices share.
const PCI_INTERRUPTS: u8 = 16;

/// The global system interrupt of pin INTA of `device` on bus 0.
pub const fn pci_interrupt(device: u8) -> u8 {
    PCI_INTERRUPTS + device % 4
}

const _: () = assert!(PCI_64 > HIGH_RAM + MEMORY_MAX);
const _: () = assert!(PCI_HIGH < mmio::IOAPIC && PCI_LOW < PCI_LOW_END);

/// One range of the memory map that the guest is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// One of [`address_range`]'s types.
    pub kind: u32,
}

/// The RAM of a guest with `bytes` of memory: up to 3 GiB low, the rest from 4 GiB.
///
/// Errors unless `bytes` is between 128 MiB and 64 GiB and a multiple of the page size.
pub fn ram_regions(bytes: u64) -> Result<Vec<Region>, Error> {
    if !(MEMORY_MIN..=MEMORY_MAX).contains(&bytes) || !bytes.is_multiple_of(PAGE_SIZE) {
        return Err(Error::MemorySize { bytes });
    }
    let low = bytes.min(LOW_RAM_END);
    let mut regions = vec![Region { start: Gpa(0), len: low }];
    if bytes > low {
        regions.push(Region { start: Gpa(HIGH_RAM), len: bytes - low });
    }
    Ok(regions)
}

/// The map of `ram` for the guest: the legacy hole reserved, `carved` ranges, which lie in low
/// RAM, under their own types, and `ecam` reserved if configuration space is there.
pub fn memory_map(ram: &[Region], carved: &[MapEntry], ecam: bool) -> Vec<MapEntry> {
    let hole = MapEntry { start: EBDA, end: LEGACY_HOLE_END, kind: address_range::RESERVED };
    let mut taken: Vec<_> = std::iter::once(hole).chain(carved.iter().copied()).collect();
    taken.sort_by_key(|entry| entry.start);
    let mut map = Vec::new();
    for region in ram {
        let (mut at, end) = (region.start.0, region.start.0 + region.len);
        let inside = region.start.0..=end;
        for entry in taken.iter().filter(|e| inside.contains(&e.start) && inside.contains(&e.end)) {
            if entry.start > at {
                map.push(MapEntry { start: at, end: entry.start, kind: address_range::MEMORY });
            }
            map.push(*entry);
            at = entry.end;
        }
        if at < end {
            map.push(MapEntry { start: at, end, kind: address_range::MEMORY });
        }
    }
    if ecam {
        let end = mmio::ECAM + mmio::ECAM_SIZE;
        map.push(MapEntry { start: mmio::ECAM, end, kind: address_range::RESERVED });
    }
    map.sort_by_key(|entry| entry.start);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_beyond_three_gib_continues_at_four() {
        let one = ram_regions(512 << 20).unwrap();
        assert_eq!(one, [Region { start: Gpa(0), len: 512 << 20 }]);
        let two = ram_regions(4 << 30).unwrap();
        assert_eq!(two[1], Region { start: Gpa(HIGH_RAM), len: 1 << 30 });
        assert_eq!(ram_regions(3 << 30).unwrap().len(), 1);
        for absurd in [0, 4096, (64 << 30) + 4096, u64::MAX, (256 << 20) + 1] {
            assert!(ram_regions(absurd).is_err(), "{absurd}");
        }
    }

    #[test]
    fn the_map_is_sorted_without_overlap_and_covers_all_ram() {
        let ram = ram_regions(5 << 30).unwrap();
        let tables =
            MapEntry { start: LOW_RAM_END - 0x3000, end: LOW_RAM_END - 0x1000, kind: address_range::ACPI };
        let map = memory_map(&ram, &[tables], true);
        assert!(map.windows(2).all(|pair| pair[0].end <= pair[1].start));
        let covered: u64 = map.iter().filter(|e| e.start != mmio::ECAM).map(|e| e.end - e.start).sum();
        assert_eq!(covered, 5 << 30);
        assert!(map.contains(&tables));
        let hole = map.iter().find(|e| e.start == EBDA).unwrap();
        assert_eq!((hole.end, hole.kind), (LEGACY_HOLE_END, address_range::RESERVED));
    }
}
