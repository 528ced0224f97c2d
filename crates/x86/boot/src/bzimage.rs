//! The Linux bzImage: its setup header, and where its payload and its own code are.

use std::ops::Range;

use satori_defs::linux::setup_header as h;

use crate::BadKernel;
use crate::bytes::{field, slice};
use crate::image::{Image, Segment};

/// What is read from the setup header of a bzImage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetupHeader {
    /// The header itself, from [`h::START`] on, for the zero page.
    pub raw: Vec<u8>,
    /// Protocol version, major in the high byte.
    pub version: u16,
    /// The kernel's own version string.
    pub kernel_version: Option<String>,
    /// Highest address of the initrd's last byte, for the Linux protocols.
    pub initrd_addr_max: u32,
    /// Longest command line without its NUL.
    pub cmdline_size: u32,
    /// Memory that the kernel needs from its load address on; 0 where the protocol has no field.
    pub init_size: u32,
    /// The protected-mode code in the file.
    pub code: Range<usize>,
    /// Where that code goes, and is entered by the 32-bit protocol; nowhere for a zImage.
    pub load: Option<u32>,
}

/// Whether `file` is a bzImage.
pub(crate) fn recognise(file: &[u8]) -> bool {
    file.get(h::HEADER..).is_some_and(|rest| rest.starts_with(&h::HEADER_VALUE))
        && file[h::BOOT_FLAG..].starts_with(&h::BOOT_FLAG_VALUE.to_le_bytes())
}

/// Reads the header of the bzImage `file` and finds its payload, if it has one.
pub(crate) fn parse(file: &[u8]) -> Result<(SetupHeader, Option<&[u8]>), BadKernel> {
    const WHAT: &str = "the setup header";
    let u32_at = |at| field(file, WHAT, at).map(u32::from_le_bytes);
    let u8_at = |at| field(file, WHAT, at).map(|[byte]| byte);
    let version = u16::from_le_bytes(field(file, WHAT, h::VERSION)?);
    if version < h::VERSION_PAYLOAD {
        return Err(BadKernel::OldProtocol { major: (version >> 8) as u8, minor: version as u8 });
    }
    let end = (h::HEADER + usize::from(u8_at(h::JUMP)?)).max(h::END_2_08);
    let raw = slice(file, WHAT, h::START as u64, (end - h::START) as u64)?.to_vec();
    let sectors = match u8_at(h::SETUP_SECTS)? {
        0 => 4,
        sectors => u64::from(sectors),
    };
    // The header tells the size of the whole file, in paragraphs of which the last may be cut: a
    // file that is shorter is a failed download.
    let setup = (sectors + 1) * 512;
    let size = u64::from(u32_at(h::SYSSIZE)?) * 16;
    slice(file, "the kernel", setup, size.saturating_sub(15))?;
    let code = setup as usize..((setup + size) as usize).min(file.len());
    let start = setup + u64::from(u32_at(h::PAYLOAD_OFFSET)?);
    let payload = match u32_at(h::PAYLOAD_LENGTH)? {
        0 => None,
        len => Some(slice(file, "the compressed kernel", start, len.into())?),
    };
    let placed = version >= h::VERSION_INIT_SIZE;
    let load = match u32_at(h::CODE32_START)? {
        _ if placed && u8_at(h::RELOCATABLE_KERNEL)? != 0 => {
            u32::try_from(u64::from_le_bytes(field(file, WHAT, h::PREF_ADDRESS)?)).ok()
        }
        0 => Some(h::CODE32_DEFAULT),
        start => Some(start),
    };
    let header = SetupHeader {
        raw,
        version,
        kernel_version: kernel_version(file)?,
        initrd_addr_max: u32_at(h::INITRD_ADDR_MAX)?,
        cmdline_size: u32_at(h::CMDLINE_SIZE)?,
        init_size: if placed { u32_at(h::INIT_SIZE)? } else { 0 },
        code,
        load: load.filter(|_| file[h::LOADFLAGS] & h::LOADED_HIGH != 0),
    };
    Ok((header, payload))
}

impl SetupHeader {
    /// The protected-mode code as an image; nothing if it is empty or does not fit below 4 GiB.
    pub(crate) fn image(&self) -> Option<Image> {
        let (load, memsz) = (u64::from(self.load?), self.code.len() as u64);
        let fits = memsz != 0 && load + memsz <= 1 << 32;
        let segment = Segment { file: self.code.clone(), paddr: load, vaddr: load, memsz };
        fits.then(|| Image {
            segments: vec![segment],
            is_64bit: false,
            entry: load,
            pvh_entry: None,
            pvh_reloc: None,
        })
    }
}

fn kernel_version(file: &[u8]) -> Result<Option<String>, BadKernel> {
    let at = usize::from(u16::from_le_bytes(field(file, "the setup header", h::KERNEL_VERSION)?));
    Ok((at != 0).then(|| file.get(at + 0x200..).and_then(first_word)).flatten())
}

/// The printable word that `text` begins with.
pub(crate) fn first_word(text: &[u8]) -> Option<String> {
    let len = text.iter().take(128).take_while(|byte| byte.is_ascii_graphic()).count();
    (len > 0).then(|| String::from_utf8_lossy(&text[..len]).into_owned())
}
