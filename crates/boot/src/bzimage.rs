//! The Linux bzImage: its setup header, and where its payload is.

use satori_defs::linux::setup_header as h;

use crate::BadKernel;
use crate::bytes::{field, slice};

/// What is read from the setup header of a bzImage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupHeader {
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
}

/// Whether `file` is a bzImage.
pub fn recognise(file: &[u8]) -> bool {
    file.get(h::HEADER..).is_some_and(|rest| rest.starts_with(&h::HEADER_VALUE))
        && file[h::BOOT_FLAG..].starts_with(&h::BOOT_FLAG_VALUE.to_le_bytes())
}

/// Reads the header of the bzImage `file` and finds its payload.
pub fn parse(file: &[u8]) -> Result<(SetupHeader, &[u8]), BadKernel> {
    const WHAT: &str = "the setup header";
    let u32_at = |at| field(file, WHAT, at).map(u32::from_le_bytes);
    let version = u16::from_le_bytes(field(file, WHAT, h::VERSION)?);
    if version < h::VERSION_PAYLOAD {
        return Err(BadKernel::OldProtocol { major: (version >> 8) as u8, minor: version as u8 });
    }
    let [jump] = field(file, WHAT, h::JUMP)?;
    let end = (h::HEADER + usize::from(jump)).max(h::END_2_08);
    let raw = slice(file, WHAT, h::START as u64, (end - h::START) as u64)?.to_vec();
    let [sectors] = field(file, WHAT, h::SETUP_SECTS)?;
    let sectors = if sectors == 0 { 4 } else { u64::from(sectors) };
    // The header tells the size of the whole file; what is cut may only be the decompressor,
    // which is not used, but a cut file is a failed download.
    let setup = (sectors + 1) * 512;
    slice(file, "the kernel", setup, u64::from(u32_at(h::SYSSIZE)?) * 16)?;
    let start = setup + u64::from(u32_at(h::PAYLOAD_OFFSET)?);
    let payload = slice(file, "the compressed kernel", start, u32_at(h::PAYLOAD_LENGTH)?.into())?;
    let init_size = if version >= h::VERSION_INIT_SIZE { u32_at(h::INIT_SIZE)? } else { 0 };
    let header = SetupHeader {
        raw,
        version,
        kernel_version: kernel_version(file)?,
        initrd_addr_max: u32_at(h::INITRD_ADDR_MAX)?,
        cmdline_size: u32_at(h::CMDLINE_SIZE)?,
        init_size,
    };
    Ok((header, payload))
}

fn kernel_version(file: &[u8]) -> Result<Option<String>, BadKernel> {
    let at = usize::from(u16::from_le_bytes(field(file, "the setup header", h::KERNEL_VERSION)?));
    Ok((at != 0).then(|| file.get(at + 0x200..).and_then(first_word)).flatten())
}

/// The printable word that `text` begins with.
pub fn first_word(text: &[u8]) -> Option<String> {
    let len = text.iter().take(128).take_while(|byte| byte.is_ascii_graphic()).count();
    (len > 0).then(|| String::from_utf8_lossy(&text[..len]).into_owned())
}
