//! The multiboot header, and the image that it stands for.

use satori_defs::multiboot::header as h;

use crate::BadKernel;
use crate::bytes::{field, slice};
use crate::image::{Image, Segment};

/// A header whose checksum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its place in the file.
    at: usize,
    /// What the kernel wants.
    flags: u32,
}

impl Header {
    /// The first header of `data`.
    pub(crate) fn find(data: &[u8]) -> Option<Self> {
        let (words, _) = data[..data.len().min(h::SEARCH)].as_chunks::<4>();
        words.windows(3).zip((0..).step_by(4)).find_map(|(header, at)| {
            let [magic, flags, checksum] = [0, 1, 2].map(|i| u32::from_le_bytes(header[i]));
            let sound = magic == h::VALUE && magic.wrapping_add(flags).wrapping_add(checksum) == 0;
            sound.then_some(Header { at, flags })
        })
    }

    /// Whether the kernel asks for a video mode.
    pub(crate) fn wants_video(self) -> bool {
        self.flags & h::VIDEO_MODE != 0
    }
}

/// Where the kernel in `data` goes, and where it is entered.
pub(crate) fn image(data: &[u8], header: Header) -> Result<Image, BadKernel> {
    let unknown = header.flags & h::REQUIRED & !(h::PAGE_ALIGN | h::MEMORY_INFO | h::VIDEO_MODE);
    if unknown != 0 {
        return Err(BadKernel::MultibootFlags { flags: unknown });
    }
    let image = match header.flags & h::ADDRESSES {
        0 => Image::parse(data)?,
        _ => by_addresses(data, header.at)?,
    };
    if image.entry > u32::MAX.into() || !image.holds(image.entry) {
        return Err(malformed("its entry point is in no segment"));
    }
    Ok(image)
}

/// The address fields: one segment, which the header is a part of.
fn by_addresses(data: &[u8], at: usize) -> Result<Image, BadKernel> {
    let word = |offset| {
        field(data, "the multiboot header", at + offset).map(|word| u64::from(u32::from_le_bytes(word)))
    };
    let (header_addr, load, entry) = (word(h::HEADER_ADDR)?, word(h::LOAD_ADDR)?, word(h::ENTRY_ADDR)?);
    let (load_end, bss_end) = (word(h::LOAD_END_ADDR)?, word(h::BSS_END_ADDR)?);
    let before = header_addr.checked_sub(load).ok_or(malformed("header_addr is below load_addr"))?;
    let start = (at as u64).checked_sub(before).ok_or(malformed("load_addr is before the file's begin"))?;
    let filesz = match load_end {
        0 => data.len() as u64 - start,
        end => end.checked_sub(load).ok_or(malformed("load_end_addr is below load_addr"))?,
    };
    let bytes = slice(data, "the segment of the multiboot header", start, filesz)?;
    let memsz = match bss_end {
        0 => filesz,
        end => end.checked_sub(load).ok_or(malformed("bss_end_addr is below load_addr"))?,
    };
    if memsz < filesz {
        return Err(malformed("bss_end_addr is below load_end_addr"));
    }
    if memsz == 0 || load + memsz > 1 << 32 {
        return Err(malformed("its segment is empty or ends above 4 GiB"));
    }
    let start = start as usize;
    let segment = Segment { file: start..start + bytes.len(), paddr: load, vaddr: load, memsz };
    Ok(Image { segments: vec![segment], is_64bit: false, entry, pvh_entry: None, pvh_reloc: None })
}

fn malformed(why: &'static str) -> BadKernel {
    BadKernel::Multiboot { why }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn a_header_counts_with_its_checksum_in_the_first_8_kib() {
        let sound = [h::VALUE, 3, 0_u32.wrapping_sub(h::VALUE + 3)];
        assert_eq!(Header::find(&words(&[&[0], &sound[..]].concat())), Some(Header { at: 4, flags: 3 }));
        assert_eq!(Header::find(&words(&[h::VALUE, 3, 1])), None);
        assert_eq!(Header::find(&[]), None);
        let at = |offset: usize| [vec![0; offset], words(&sound)].concat();
        assert_eq!(Header::find(&at(h::SEARCH - 12)), Some(Header { at: h::SEARCH - 12, flags: 3 }));
        assert_eq!(Header::find(&at(h::SEARCH - 8)), None);
        assert_eq!(Header::find(&at(2)), None, "it stands at a multiple of four");
    }

    /// A file of 0x80 bytes whose header at 0x10 has these fields.
    fn addresses(fields: [u32; 5]) -> Result<Image, BadKernel> {
        let flags = h::ADDRESSES;
        let mut file = vec![0x90; 0x10];
        file.extend(words(&[h::VALUE, flags, 0_u32.wrapping_sub(h::VALUE + flags)]));
        file.extend(words(&fields));
        file.resize(0x80, 0x90);
        let header = Header::find(&file).unwrap();
        image(&file, header)
    }

    #[test]
    fn the_address_fields_make_one_segment() {
        let loaded = addresses([0x10_0010, 0x10_0000, 0x10_0060, 0x10_1000, 0x10_0004]).unwrap();
        let [segment] = loaded.segments.as_slice() else { panic!("{loaded:?}") };
        assert_eq!((segment.file.clone(), segment.paddr, segment.memsz), (0..0x60, 0x10_0000, 0x1000));
        assert_eq!(loaded.entry, 0x10_0004);
        // Zero is the whole file, and no bss; the text may begin in the middle of the file.
        let loaded = addresses([0x10_0010, 0x10_0008, 0, 0, 0x10_0008]).unwrap();
        assert_eq!((loaded.segments[0].file.clone(), loaded.segments[0].memsz), (8..0x80, 0x78));
    }

    #[test]
    fn address_fields_that_make_no_sense_are_refused() {
        let refused = |fields| addresses(fields).unwrap_err();
        for fields in [
            [0x10_0010, 0x10_0011, 0, 0, 0x10_0020], // header before the text
            [0x10_0011, 0x10_0000, 0, 0, 0x10_0020], // text before the file
            [0x10_0010, 0x10_0000, 0xf_ffff, 0, 0x10_0000], // end before the begin
            [0x10_0010, 0x10_0000, 0x10_0080, 0x10_0040, 0x10_0000], // bss before the data's end
            [0x10_0010, 0x10_0000, 0x10_0080, 0x10_0100, 0x10_0100], // entry outside
            [0xffff_fff0, 0xffff_ffe0, 0, 0, 0xffff_ffe0], // beyond 4 GiB
            [0x10, 0, 0, 0, u32::MAX],
        ] {
            assert!(matches!(refused(fields), BadKernel::Multiboot { .. }), "{fields:x?}");
        }
        let beyond = refused([0x10_0010, 0x10_0000, 0x10_0081, 0, 0x10_0000]);
        assert!(matches!(beyond, BadKernel::Truncated { .. }));
    }
}
