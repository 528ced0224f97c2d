//! Small kernels made for tests.

use satori_defs::linux::setup_header as h;

use crate::bytes::put;

/// An ELF64 kernel with one PT_LOAD segment and one PT_NOTE.
pub(crate) struct Elf {
    /// e_entry.
    pub entry: u64,
    /// p_paddr.
    pub paddr: u64,
    /// p_memsz.
    pub memsz: u64,
    /// Description of note PHYS32_ENTRY.
    pub pvh: Option<u32>,
    /// Description of note PHYS32_RELOC.
    pub reloc: Option<[u32; 3]>,
    /// What the segment begins with.
    pub text: Vec<u8>,
}

impl Default for Elf {
    fn default() -> Self {
        Elf {
            entry: 0x100_0000,
            paddr: 0x100_0000,
            memsz: 0x3000,
            pvh: Some(0x100_0040),
            reloc: None,
            text: b"\xf4\xebLinux version %s\0Linux version 6.1.0-test (x)".to_vec(),
        }
    }
}

impl Elf {
    /// p_vaddr of the segment.
    pub(crate) const VADDR: u64 = 0xffff_ffff_8100_0000;

    fn notes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut note = |owner: &[u8; 4], kind: u32, words: &[u32]| {
            let header = [4, words.len() as u32 * 4, kind];
            header.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            out.extend_from_slice(owner);
            words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        };
        note(b"GNU\0", 3, &[1, 2, 3, 4, 5]);
        note(b"Foo\0", 18, &[0x6666_6666]);
        if let Some(entry) = self.pvh {
            note(b"Xen\0", 18, &[entry, 0]);
        }
        if let Some(reloc) = &self.reloc {
            note(b"Xen\0", 19, reloc);
        }
        out
    }

    /// The file.
    pub(crate) fn build(&self) -> Vec<u8> {
        let notes = self.notes();
        let (notes_at, text_at) = (64 + 2 * 56, 0x200);
        let mut out = vec![0; text_at + self.text.len()];
        out[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        put(&mut out, 16, 2_u16.to_le_bytes());
        put(&mut out, 18, 62_u16.to_le_bytes());
        put(&mut out, 20, 1_u32.to_le_bytes());
        put(&mut out, 24, self.entry.to_le_bytes());
        put(&mut out, 32, 64_u64.to_le_bytes());
        put(&mut out, 52, 64_u16.to_le_bytes());
        put(&mut out, 54, 56_u16.to_le_bytes());
        put(&mut out, 56, 2_u16.to_le_bytes());
        let mut header = |at: usize, kind: u32, fields: [u64; 6]| {
            put(&mut out, at, kind.to_le_bytes());
            put(&mut out, at + 4, 7_u32.to_le_bytes());
            for (index, field) in fields.into_iter().enumerate() {
                put(&mut out, at + 8 + index * 8, field.to_le_bytes());
            }
        };
        let text = self.text.len() as u64;
        header(64, 1, [text_at as u64, Self::VADDR, self.paddr, text, self.memsz, 0x20_0000]);
        let len = notes.len() as u64;
        header(64 + 56, 4, [notes_at as u64, 0, 0, len, len, 4]);
        out[notes_at..notes_at + notes.len()].copy_from_slice(&notes);
        out[text_at..].copy_from_slice(&self.text);
        out
    }
}

/// An ELF32 kernel with a multiboot header, one segment and two sections: the segment's, and loose
/// strings.
pub(crate) struct Elf32 {
    /// Flags of the multiboot header.
    pub flags: u32,
    /// e_entry.
    pub entry: u32,
    /// p_paddr.
    pub paddr: u32,
    /// p_memsz.
    pub memsz: u32,
}

impl Default for Elf32 {
    fn default() -> Self {
        Elf32 { flags: 3, entry: 0x10_000c, paddr: 0x10_0000, memsz: 0x3000 }
    }
}

impl Elf32 {
    /// What the loose section holds.
    pub(crate) const STRINGS: &[u8] = b"\0.text\0.strings\0";

    /// The file.
    pub(crate) fn build(&self) -> Vec<u8> {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let (text_at, text_len) = (0x80_u32, 16);
        let strings_at = text_at + text_len;
        let strings = Self::STRINGS.len() as u32;
        let sections_at = strings_at + strings;
        let mut out = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        out.extend(words(&[
            2 | 3 << 16,
            1,
            self.entry,
            52,
            sections_at,
            0,
            52 | 32 << 16,
            1 | 40 << 16,
            3 | 2 << 16,
        ]));
        out.extend(words(&[1, text_at, self.paddr, self.paddr, text_len, self.memsz, 7, 0x1000]));
        out.resize(text_at as usize, 0);
        let sum = 0_u32.wrapping_sub(0x1bad_b002).wrapping_sub(self.flags);
        out.extend(words(&[0x1bad_b002, self.flags, sum, 0xfeeb_f4fa]));
        out.extend(Self::STRINGS);
        out.extend([0; 40]);
        out.extend(words(&[1, 1, 6, self.paddr, text_at, text_len, 0, 0, 16, 0]));
        out.extend(words(&[7, 3, 0, 0, strings_at, strings, 0, 0, 1, 0]));
        out
    }
}

/// A bzImage around `payload`.
pub(crate) fn bzimage(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 1024 + 64];
    put(&mut out, h::SETUP_SECTS, [1]);
    put(&mut out, h::BOOT_FLAG, h::BOOT_FLAG_VALUE.to_le_bytes());
    put(&mut out, h::JUMP, [0x6a]);
    put(&mut out, h::HEADER, h::HEADER_VALUE);
    put(&mut out, h::VERSION, 0x20f_u16.to_le_bytes());
    put(&mut out, h::KERNEL_VERSION, 0x100_u16.to_le_bytes());
    out[0x300..0x310].copy_from_slice(b"6.1.0-test (x) y");
    put(&mut out, h::SYSSIZE, ((64 + payload.len()) as u32).div_ceil(16).to_le_bytes());
    put(&mut out, h::LOADFLAGS, [h::LOADED_HIGH]);
    put(&mut out, h::INITRD_ADDR_MAX, 0x7fff_ffff_u32.to_le_bytes());
    put(&mut out, h::CMDLINE_SIZE, 2047_u32.to_le_bytes());
    put(&mut out, h::INIT_SIZE, 0x10_0000_u32.to_le_bytes());
    put(&mut out, h::PAYLOAD_OFFSET, 64_u32.to_le_bytes());
    put(&mut out, h::PAYLOAD_LENGTH, (payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
    out
}

/// `data` in LZ4's legacy framing with its length after it, as Linux's build packs it.
pub(crate) fn lz4(data: &[u8]) -> Vec<u8> {
    let block = lz4_flex::block::compress(data);
    let mut out = 0x184c_2102_u32.to_le_bytes().to_vec();
    out.extend_from_slice(&(block.len() as u32).to_le_bytes());
    out.extend_from_slice(&block);
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out
}

/// `data` as gzip packs it.
pub(crate) fn gzip(data: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(data).expect("memory");
    packer.finish().expect("memory")
}
