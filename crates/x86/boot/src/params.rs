//! What a kernel reads about its machine at its first instruction: PVH's start info with its
//! lists, or Linux's zero page.

use satori_defs::linux::{boot_params, setup_header};
use satori_defs::xen::{memmap_entry, modlist_entry, start_info};

use crate::bytes::put;
use crate::bzimage::SetupHeader;
use crate::layout::MapEntry;

/// Where the pieces are that both structures point to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// The command line, NUL-terminated.
    pub cmdline: u64,
    /// The initrd, or 0.
    pub initrd: u64,
    /// Its bytes, 0 without one.
    pub initrd_len: u64,
    /// The RSDP.
    pub rsdp: u64,
}

/// A module of a PVH kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PvhModule {
    /// Where it is.
    pub at: u64,
    /// Its bytes.
    pub len: u64,
    /// Where its command line is, NUL-terminated, or 0.
    pub cmdline: u64,
}

/// Bytes of the start info block for a map of `entries`: the structure, a place for a module at least, the map.
pub(crate) const fn start_info_bytes(modules: usize, entries: usize) -> usize {
    memmap_at(modules) + entries * memmap_entry::SIZE
}

/// Where the map follows the modules.
const fn memmap_at(modules: usize) -> usize {
    MODLIST + modlist_entry::SIZE * if modules == 0 { 1 } else { modules }
}

/// The module list follows the structure, 8-byte aligned.
const MODLIST: usize = start_info::SIZE.next_multiple_of(8);

/// hvm_start_info at `base`, and after it the module list and the memory map.
pub(crate) fn start_info(base: u64, places: &Places, modules: &[PvhModule], map: &[MapEntry]) -> Vec<u8> {
    let mut out = vec![0; start_info_bytes(modules.len(), map.len())];
    let memmap = memmap_at(modules.len());
    put(&mut out, start_info::MAGIC, start_info::MAGIC_VALUE.to_le_bytes());
    put(&mut out, start_info::VERSION, start_info::VERSION_VALUE.to_le_bytes());
    put(&mut out, start_info::CMDLINE_PADDR, places.cmdline.to_le_bytes());
    put(&mut out, start_info::RSDP_PADDR, places.rsdp.to_le_bytes());
    put(&mut out, start_info::MEMMAP_PADDR, (base + memmap as u64).to_le_bytes());
    put(&mut out, start_info::MEMMAP_ENTRIES, (map.len() as u32).to_le_bytes());
    if !modules.is_empty() {
        put(&mut out, start_info::NR_MODULES, (modules.len() as u32).to_le_bytes());
        put(&mut out, start_info::MODLIST_PADDR, (base + MODLIST as u64).to_le_bytes());
    }
    for (module, at) in modules.iter().zip((MODLIST..).step_by(modlist_entry::SIZE)) {
        put(&mut out, at + modlist_entry::PADDR, module.at.to_le_bytes());
        put(&mut out, at + modlist_entry::SIZE_BYTES, module.len.to_le_bytes());
        put(&mut out, at + modlist_entry::CMDLINE_PADDR, module.cmdline.to_le_bytes());
    }
    for (entry, at) in map.iter().zip((memmap..).step_by(memmap_entry::SIZE)) {
        put(&mut out, at + memmap_entry::ADDR, entry.start.to_le_bytes());
        put(&mut out, at + memmap_entry::SIZE_BYTES, (entry.end - entry.start).to_le_bytes());
        put(&mut out, at + memmap_entry::TYPE, entry.kind.to_le_bytes());
    }
    out
}

/// Linux's zero page, with the setup header of a bzImage or one made for a vmlinux.
pub(crate) fn zero_page(setup: Option<&SetupHeader>, places: &Places, map: &[MapEntry]) -> Vec<u8> {
    use setup_header as h;
    let mut out = vec![0; boot_params::SIZE];
    match setup {
        // The jump byte limits the header to 0x301, which is below the e820 table's end: cut it.
        Some(setup) => {
            let room = boot_params::E820_TABLE - h::START;
            let raw = &setup.raw[..setup.raw.len().min(room)];
            out[h::START..h::START + raw.len()].copy_from_slice(raw);
        }
        None => {
            put(&mut out, h::BOOT_FLAG, h::BOOT_FLAG_VALUE.to_le_bytes());
            put(&mut out, h::HEADER, h::HEADER_VALUE);
            put(&mut out, h::VERSION, h::VERSION_VALUE.to_le_bytes());
            put(&mut out, h::LOADFLAGS, [h::LOADED_HIGH]);
        }
    }
    put(&mut out, h::TYPE_OF_LOADER, [h::LOADER_UNDEFINED]);
    put(&mut out, h::CMD_LINE_PTR, (places.cmdline as u32).to_le_bytes());
    put(&mut out, h::RAMDISK_IMAGE, (places.initrd as u32).to_le_bytes());
    put(&mut out, h::RAMDISK_SIZE, (places.initrd_len as u32).to_le_bytes());
    put(&mut out, boot_params::ACPI_RSDP_ADDR, places.rsdp.to_le_bytes());
    let map = &map[..map.len().min(boot_params::E820_MAX)];
    put(&mut out, boot_params::E820_ENTRIES, [map.len() as u8]);
    for (entry, at) in map.iter().zip((boot_params::E820_TABLE..).step_by(boot_params::E820_ENTRY_SIZE)) {
        put(&mut out, at, entry.start.to_le_bytes());
        put(&mut out, at + 8, (entry.end - entry.start).to_le_bytes());
        put(&mut out, at + 16, entry.kind.to_le_bytes());
    }
    out
}
