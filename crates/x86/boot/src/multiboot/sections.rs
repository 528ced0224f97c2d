//! The kernel's ELF section headers, for its debugger.
//!
//! All sections are in memory then, and the headers tell where (3.3): those that no segment holds,
//! as symbols and strings, are put there for it.

use elf::abi;
use elf::endian::LittleEndian;
use elf::file::Class;
use elf::{ElfBytes, section::SectionHeader};

use crate::bytes::put;

/// Most section headers that are handed on; a kernel has about thirty.
const SECTIONS_MAX: usize = 4096;

/// The section headers of a kernel, and sections that have no address of their own.
pub(super) struct Sections {
    /// The headers as in the file, their addresses filled in.
    pub headers: Vec<u8>,
    /// How many.
    pub count: u32,
    /// Bytes of one.
    pub entry_size: u32,
    /// Index of the section with the names.
    pub names: u32,
    /// Range in the file, and place in memory, of each section that is to be put there.
    pub loose: Vec<(std::ops::Range<usize>, u64)>,
}

impl Sections {
    /// The sections of the ELF file `data`; `find` gives so many bytes of room. Nothing where
    /// there are no sections, or no room for them: a kernel must do without.
    pub(super) fn new(data: &[u8], mut find: impl FnMut(u64, u64) -> Option<u64>) -> Option<Self> {
        let elf = ElfBytes::<LittleEndian>::minimal_parse(data).ok()?;
        let table = elf.section_headers()?;
        let (entry_size, addr_at, wide) = match elf.ehdr.class {
            Class::ELF32 => (40, 12, false),
            Class::ELF64 => (64, 16, true),
        };
        if table.is_empty() || table.len() > SECTIONS_MAX {
            return None;
        }
        let start = usize::try_from(elf.ehdr.e_shoff).ok()?;
        let headers = data.get(start..start.checked_add(table.len() * entry_size)?)?.to_vec();
        let mut sections = Sections {
            headers,
            count: table.len() as u32,
            entry_size: entry_size as u32,
            names: elf.ehdr.e_shstrndx.into(),
            loose: Vec::new(),
        };
        for (index, header) in table.iter().enumerate().filter(|(_, header)| is_loose(header)) {
            let start = usize::try_from(header.sh_offset).ok()?;
            let end = start.checked_add(usize::try_from(header.sh_size).ok()?)?;
            data.get(start..end)?;
            let address = find(header.sh_size, header.sh_addralign.clamp(1, 4096).next_power_of_two())?;
            let at = index * entry_size + addr_at;
            match wide {
                true => put(&mut sections.headers, at, address.to_le_bytes()),
                false => put(&mut sections.headers, at, u32::try_from(address).ok()?.to_le_bytes()),
            }
            sections.loose.push((start..end, address));
        }
        Some(sections)
    }
}

/// Whether a section has bytes in the file and no place in memory.
fn is_loose(header: &SectionHeader) -> bool {
    let empty = matches!(header.sh_type, abi::SHT_NULL | abi::SHT_NOBITS) || header.sh_size == 0;
    !empty && header.sh_addr == 0 && header.sh_flags & u64::from(abi::SHF_ALLOC) == 0
}
