//! The information block and what it points to, as one piece of memory.

use satori_defs::multiboot::{info as f, mmap, module};
use satori_defs::{acpi::address_range, x86::PAGE_SIZE};

use super::sections::Sections;
use crate::bytes::put;
use crate::entry::GDT_BYTES;
use crate::layout::{EBDA, LEGACY_HOLE_END, MapEntry};

/// Name that the kernel may show.
const LOADER_NAME: &[u8] = concat!("Satori ", env!("CARGO_PKG_VERSION"), "\0").as_bytes();

/// What the block tells; strings without their NUL.
pub(super) struct Information<'a> {
    pub cmdline: &'a [u8],
    /// First address, address after the last, command line.
    pub modules: Vec<(u32, u32, &'a [u8])>,
    pub map: &'a [MapEntry],
    pub sections: Option<Sections>,
}

/// Where the parts are, from the block's base on.
struct Offsets {
    gdt: usize,
    map: usize,
    modules: usize,
    sections: usize,
    strings: usize,
    end: usize,
}

impl Information<'_> {
    fn offsets(&self) -> Offsets {
        let gdt = f::SIZE.next_multiple_of(8);
        let map = gdt + GDT_BYTES as usize;
        let modules = map + self.map.len() * mmap::SIZE;
        let sections = modules + self.modules.len() * module::SIZE;
        let strings = sections + self.sections.as_ref().map_or(0, |sections| sections.headers.len());
        let texts = self.modules.iter().map(|(_, _, text)| text.len() + 1).sum::<usize>();
        Offsets {
            gdt,
            map,
            modules,
            sections,
            strings,
            end: strings + self.cmdline.len() + 1 + LOADER_NAME.len() + texts,
        }
    }

    /// Bytes of the whole.
    pub(super) fn bytes(&self) -> u64 {
        self.offsets().end as u64
    }

    /// Where the descriptor table of the entry goes, if the block is at `base`.
    pub(super) fn gdt(&self, base: u32) -> u64 {
        u64::from(base) + self.offsets().gdt as u64
    }

    /// The whole, to be put at `base`. The descriptors are left zero.
    pub(super) fn build(&self, base: u32) -> Vec<u8> {
        let offsets = self.offsets();
        let mut out = vec![0; offsets.strings];
        let address = |at: usize| base.wrapping_add(at as u32);
        let text = |out: &mut Vec<u8>, text: &[u8]| {
            let at = address(out.len());
            out.extend_from_slice(text);
            at.to_le_bytes()
        };
        let cmdline = text(&mut out, &[self.cmdline, b"\0"].concat());
        let name = text(&mut out, LOADER_NAME);
        for ((start, end, string), at) in self.modules.iter().zip((offsets.modules..).step_by(module::SIZE)) {
            let string = text(&mut out, &[string, &b"\0"[..]].concat());
            put(&mut out, at + module::START, start.to_le_bytes());
            put(&mut out, at + module::END, end.to_le_bytes());
            put(&mut out, at + module::STRING, string);
        }
        for (entry, at) in self.map.iter().zip((offsets.map..).step_by(mmap::SIZE)) {
            put(&mut out, at + mmap::ENTRY_SIZE, (mmap::SIZE as u32 - 4).to_le_bytes());
            put(&mut out, at + mmap::BASE, entry.start.to_le_bytes());
            put(&mut out, at + mmap::LENGTH, (entry.end - entry.start).to_le_bytes());
            put(&mut out, at + mmap::TYPE, entry.kind.to_le_bytes());
        }
        let mut flags = f::HAS_MEMORY | f::HAS_CMDLINE | f::HAS_MODULES | f::HAS_MMAP | f::HAS_LOADER_NAME;
        let mut word = |at: usize, value: u32| put(&mut out, at, value.to_le_bytes());
        word(f::MEM_LOWER, (EBDA >> 10) as u32);
        word(f::MEM_UPPER, upper_kib(self.map));
        word(f::CMDLINE, u32::from_le_bytes(cmdline));
        word(f::MODS_COUNT, self.modules.len() as u32);
        word(f::MODS_ADDR, address(offsets.modules));
        word(f::MMAP_LENGTH, (self.map.len() * mmap::SIZE) as u32);
        word(f::MMAP_ADDR, address(offsets.map));
        word(f::BOOT_LOADER_NAME, u32::from_le_bytes(name));
        if let Some(sections) = &self.sections {
            flags |= f::HAS_SECTIONS;
            word(f::SHDR_NUM, sections.count);
            word(f::SHDR_SIZE, sections.entry_size);
            word(f::SHDR_ADDR, address(offsets.sections));
            word(f::SHDR_SHNDX, sections.names);
        }
        word(f::FLAGS, flags);
        if let Some(sections) = &self.sections {
            out[offsets.sections..offsets.sections + sections.headers.len()]
                .copy_from_slice(&sections.headers);
        }
        out
    }
}

/// KiB of RAM from 1 MiB to the first hole.
fn upper_kib(map: &[MapEntry]) -> u32 {
    let ram = map.iter().filter(|entry| entry.kind == address_range::MEMORY);
    let first = ram.into_iter().find(|entry| entry.start == LEGACY_HOLE_END);
    let bytes = first.map_or(0, |entry| entry.end - entry.start);
    debug_assert!(bytes.is_multiple_of(PAGE_SIZE));
    (bytes >> 10) as u32
}
