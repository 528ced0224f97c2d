//! The ELF image of a kernel: its segments, its entry points, its Xen notes.

use std::ops::Range;

use elf::ElfBytes;
use elf::abi;
use elf::endian::LittleEndian;
use elf::file::Class;
use elf::note::Note;
use satori_defs::xen::elfnote;

use crate::BadKernel;
use crate::bytes::{field, slice};

/// Most program headers that an image may have; kernels have about five.
const SEGMENTS_MAX: usize = 64;

/// A PT_LOAD segment: file bytes at a physical address, zeroes after them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The bytes in the file.
    pub file: Range<usize>,
    /// Where they go.
    pub paddr: u64,
    /// Where the code expects them.
    pub vaddr: u64,
    /// Bytes in memory, at least those in the file.
    pub memsz: u64,
}

impl Segment {
    /// Physical addresses of the segment.
    pub(crate) fn range(&self) -> Range<u64> {
        self.paddr..self.paddr + self.memsz
    }
}

/// Note PHYS32_RELOC: where the image may be placed instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PvhReloc {
    /// Multiple that its place has to be of.
    pub align: u32,
    /// Lowest address.
    pub min: u32,
    /// Highest address of its last byte.
    pub max: u32,
}

/// What the headers of an ELF kernel say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// Loadable segments, none empty, all below 4 GiB.
    pub segments: Vec<Segment>,
    /// ELF64 for x86-64, rather than ELF32 for i386.
    pub is_64bit: bool,
    /// e_entry as a physical address.
    pub entry: u64,
    /// Note PHYS32_ENTRY.
    pub pvh_entry: Option<u32>,
    /// Note PHYS32_RELOC.
    pub pvh_reloc: Option<PvhReloc>,
}

impl Image {
    /// Reads the headers of `data`; what follows the image in it is not looked at.
    pub(crate) fn parse(data: &[u8]) -> Result<Self, BadKernel> {
        let malformed = |why: String| BadKernel::Elf { why };
        let [encoding] = field(data, "the ELF header", abi::EI_DATA)?;
        if encoding != abi::ELFDATA2LSB {
            return Err(BadKernel::WrongElf { what: "for a big-endian machine" });
        }
        let elf = ElfBytes::<LittleEndian>::minimal_parse(data).map_err(|e| malformed(e.to_string()))?;
        let is_64bit = match (elf.ehdr.class, elf.ehdr.e_machine) {
            (Class::ELF64, abi::EM_X86_64) => true,
            (Class::ELF32, abi::EM_386) => false,
            _ => return Err(BadKernel::WrongElf { what: "for another machine" }),
        };
        match elf.ehdr.e_type {
            abi::ET_EXEC => {}
            abi::ET_REL => return Err(BadKernel::WrongElf { what: "object file or kernel module" }),
            abi::ET_CORE => return Err(BadKernel::WrongElf { what: "core dump" }),
            _ => return Err(BadKernel::WrongElf { what: "shared object or user program" }),
        }
        let headers = elf.segments().ok_or_else(|| malformed("it has no program headers".into()))?;
        if headers.len() > SEGMENTS_MAX {
            return Err(malformed(format!("it has {} program headers", headers.len())));
        }
        let mut image = Image { segments: Vec::new(), is_64bit, entry: 0, pvh_entry: None, pvh_reloc: None };
        for header in headers.iter() {
            match header.p_type {
                abi::PT_LOAD if header.p_memsz != 0 => {
                    image.segments.push(Segment::check(data, &header)?);
                }
                abi::PT_NOTE => {
                    let notes = slice(data, "a note segment", header.p_offset, header.p_filesz)?;
                    // What Linux's linker script says, against files that say 0 or 1.
                    let align = if header.p_align == 8 { 8 } else { 4 };
                    image.take_notes(elf::note::NoteIterator::new(
                        LittleEndian,
                        elf.ehdr.class,
                        align,
                        notes,
                    ));
                }
                _ => {}
            }
        }
        if image.segments.is_empty() {
            return Err(malformed("it has no loadable segment".into()));
        }
        image.entry = image.physical_entry(elf.ehdr.e_entry);
        Ok(image)
    }

    fn take_notes(&mut self, notes: elf::note::NoteIterator<'_, LittleEndian>) {
        for note in notes {
            let Note::Unknown(note) = note else { continue };
            let owner = note.name.strip_suffix(b"\0").unwrap_or(note.name);
            let word = |index: usize| {
                let bytes = note.desc.get(index * 4..index * 4 + 4)?;
                Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            };
            if owner != elfnote::OWNER {
                continue;
            }
            // The description is 4 or 8 bytes, depending on the kernel's own word size.
            match note.n_type {
                elfnote::PHYS32_ENTRY => self.pvh_entry = word(0),
                elfnote::PHYS32_RELOC => {
                    self.pvh_reloc = word(0).zip(word(1)).zip(word(2)).map(|((align, min), max)| PvhReloc {
                        align,
                        min,
                        max,
                    });
                }
                _ => {}
            }
        }
    }

    /// Linux gives e_entry as a physical address, other kernels as a virtual one.
    fn physical_entry(&self, entry: u64) -> u64 {
        let virtual_in =
            |segment: &&Segment| entry.checked_sub(segment.vaddr).is_some_and(|at| at < segment.memsz);
        if self.segments.iter().any(|segment| segment.range().contains(&entry)) {
            return entry;
        }
        match self.segments.iter().find(virtual_in) {
            Some(segment) => segment.paddr + (entry - segment.vaddr),
            None => entry,
        }
    }

    /// Whether `entry` is in a segment, so that there is something to execute.
    pub(crate) fn holds(&self, entry: u64) -> bool {
        self.segments.iter().any(|segment| segment.range().contains(&entry))
    }

    /// The lowest physical address of the image.
    pub(crate) fn start(&self) -> u64 {
        self.segments.iter().map(|segment| segment.paddr).min().unwrap_or(0)
    }
}

impl Segment {
    fn check(data: &[u8], header: &elf::segment::ProgramHeader) -> Result<Self, BadKernel> {
        if header.p_filesz > header.p_memsz {
            let why = "a segment has more bytes in the file than in memory".into();
            return Err(BadKernel::Elf { why });
        }
        let file = slice(data, "a segment", header.p_offset, header.p_filesz)?;
        let end = header.p_paddr.checked_add(header.p_memsz);
        if end.is_none_or(|end| end > 1 << 32) {
            return Err(BadKernel::Elf { why: "a segment lies above 4 GiB".into() });
        }
        let start = header.p_offset as usize;
        Ok(Segment {
            file: start..start + file.len(),
            paddr: header.p_paddr,
            vaddr: header.p_vaddr,
            memsz: header.p_memsz,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Elf;

    #[test]
    fn notes_18_and_19_are_found_among_others() {
        let elf = Elf { reloc: Some([0x20_0000, 0x100_0000, 0x3fff_ffff]), ..Elf::default() };
        let image = Image::parse(&elf.build()).unwrap();
        assert_eq!(image.pvh_entry, Some(0x100_0040));
        let reloc = image.pvh_reloc.unwrap();
        assert_eq!((reloc.align, reloc.min, reloc.max), (0x20_0000, 0x100_0000, 0x3fff_ffff));
        assert!(image.holds(0x100_0040) && !image.holds(0x100_3000));
    }

    #[test]
    fn what_follows_the_image_is_ignored() {
        let plain = Elf::default().build();
        let followed = [&plain[..], &[0xa5; 5000]].concat();
        assert_eq!(Image::parse(&followed), Image::parse(&plain));
    }

    #[test]
    fn a_virtual_entry_becomes_physical() {
        let elf = Elf { entry: Elf::VADDR + 0x10, ..Elf::default() };
        assert_eq!(Image::parse(&elf.build()).unwrap().entry, 0x100_0010);
    }

    #[test]
    fn foreign_and_hostile_headers_are_told_apart() {
        let wrong = |at: usize, bytes: &[u8]| {
            let mut elf = Elf::default().build();
            elf[at..at + bytes.len()].copy_from_slice(bytes);
            Image::parse(&elf).unwrap_err()
        };
        assert!(matches!(wrong(5, &[2]), BadKernel::WrongElf { .. }), "big-endian");
        assert!(matches!(wrong(18, &[183, 0]), BadKernel::WrongElf { .. }), "aarch64");
        assert!(matches!(wrong(16, &[1, 0]), BadKernel::WrongElf { .. }), "relocatable");
        assert!(matches!(wrong(56, &[0xff, 0x7f]), BadKernel::Elf { .. }), "number of program headers");
        let load = 64;
        assert!(matches!(wrong(load + 8, &[0xff; 8]), BadKernel::Truncated { .. }), "p_offset");
        assert!(matches!(wrong(load + 24, &[0xff; 8]), BadKernel::Elf { .. }), "p_paddr");
        assert!(matches!(wrong(load + 40, &[0; 7]), BadKernel::Elf { .. }), "p_memsz below p_filesz");
    }
}
