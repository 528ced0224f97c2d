//! Recognises a kernel by what is in it, never by its name, and unpacks it.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use satori_defs::linux;

use crate::bzimage::{self, SetupHeader, first_word};
use crate::decompress::{self, Compression};
use crate::image::{Image, PvhReloc};
use crate::multiboot::{self, Header};
use crate::{BadKernel, BootProtocol, Contents, Error};

/// Largest kernel file, and largest unpacked payload, in bytes.
pub const KERNEL_MAX: u64 = 1 << 30;

/// The container of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A plain ELF file.
    Vmlinux,
    /// A Linux bzImage with an ELF inside.
    BzImage,
    /// Bytes that only a multiboot header's addresses explain.
    Multiboot,
}

/// What is known of a kernel, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Its container.
    pub format: Format,
    /// How it was packed.
    pub compression: Compression,
    /// Its version, as `6.1.0-56-cloud-amd64`, if it tells.
    pub version: Option<String>,
    /// How it can be entered, best first.
    pub protocols: Vec<BootProtocol>,
    /// Where it may be placed instead, if it can be.
    pub reloc: Option<PvhReloc>,
    /// Whether its multiboot header asks for a video mode. It is loaded nevertheless, without one,
    /// as QEMU and GRUB do.
    pub wants_video: bool,
    /// Bytes of the unpacked image.
    pub unpacked: u64,
}

/// A kernel, parsed and unpacked; it can be loaded any number of times.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// For messages.
    pub info: KernelInfo,
    pub(crate) ways: Vec<Way>,
    pub(crate) setup: Option<SetupHeader>,
    data: Contents,
}

/// What a bzImage has around its payload.
struct Around {
    setup: SetupHeader,
    /// The way in through the code that unpacks it.
    by_code: Option<Way>,
}

/// One way to enter a kernel, best first in [`Kernel`].
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub protocol: BootProtocol,
    pub image: Image,
    /// What the image's segments are ranges of.
    pub data: Contents,
}

/// (offset, bytes there, what such a file is): foreign files that people give by mistake.
const FOREIGN: &[(usize, &[u8], &str)] = &[
    (0, b"MZ", "an EFI or Windows program without Linux setup header"),
    (0, b"070701", "an initrd (cpio archive)"),
    (0, b"070702", "an initrd (cpio archive)"),
    (0, b"!<arch>\n", "a package or static library"),
    (0, b"QFI\xfb", "a qcow2 disk image"),
    (0x8001, b"CD001", "an ISO image"),
    (257, b"ustar", "a tar archive"),
    (0x1fe, &[0x55, 0xaa], "a disk image or boot sector"),
    (0, b"#!", "a script"),
];

impl Kernel {
    /// Reads and parses the kernel at `path`, unpacking at most `max` bytes.
    pub fn open(path: &Path, max: u64) -> Result<Self, Error> {
        let read = |path| {
            let mut data = Vec::new();
            File::open(path)?.take(KERNEL_MAX + 1).read_to_end(&mut data)?;
            Ok(data)
        };
        let data = read(path)
            .map_err(|e: std::io::Error| Error::ReadKernel { path: path.into(), why: e.to_string() })?;
        Self::parse(data, max).map_err(|why| Error::Kernel { name: path.display().to_string(), why })
    }

    /// Parses the kernel in `file`, unpacking at most `max` bytes.
    pub fn parse(file: impl Into<Contents>, max: u64) -> Result<Self, BadKernel> {
        Self::parse_known(file, None, max)
    }

    /// The same, where it may be known what the payload of a bzImage unpacks to ([`Packed::unpack`](crate::Packed::unpack)).
    pub fn parse_known(
        file: impl Into<Contents>,
        known: Option<Contents>,
        max: u64,
    ) -> Result<Self, BadKernel> {
        let file = file.into();
        if file.is_empty() {
            return Err(BadKernel::Empty);
        }
        if file.len() as u64 > KERNEL_MAX {
            return Err(BadKernel::TooLarge { max: KERNEL_MAX });
        }
        if bzimage::recognise(&file) {
            return Self::from_bzimage(file, known, max.min(KERNEL_MAX));
        }
        let multiboot = Header::find(&file);
        let by_multiboot = multiboot.map(|header| {
            let image = multiboot::image(&file, header)?;
            Ok(Way { protocol: BootProtocol::Multiboot, image, data: file.clone() })
        });
        match Compression::of(&file) {
            Some(Compression::None) => {
                let version = banner(&file);
                Self::from_elf(Format::Vmlinux, Compression::None, file, None, version, by_multiboot)
            }
            _ if let Some(way) = by_multiboot => {
                Self::new(Format::Multiboot, Compression::None, file, None, None, vec![way?])
            }
            Some(Compression::Gzip) if packs_a_kernel(&file) => {
                // As boot loaders unpack it: Debian's Xen is packed so.
                let (compression, data) = decompress::unpack(&file, max.min(KERNEL_MAX))?;
                let mut kernel = Self::parse(data, max)?;
                kernel.info.compression = compression;
                Ok(kernel)
            }
            None if file.get(0x38..0x3c) == Some(b"ARM\x64") => Err(BadKernel::Arm64),
            Some(_) => Err(BadKernel::Foreign { what: "a compressed file, perhaps an initrd" }),
            None => Err(BadKernel::Foreign { what: foreign(&file) }),
        }
    }

    /// The unpacked ELF file.
    pub fn elf(&self) -> &[u8] {
        &self.data
    }

    /// The payload can be entered by PVH and the 64-bit protocol, the code around it by the 32-bit
    /// one. Without payload it is a program that only looks like Linux, as memtest86+ is.
    fn from_bzimage(file: Contents, known: Option<Contents>, max: u64) -> Result<Self, BadKernel> {
        let (setup, payload) = bzimage::parse(&file)?;
        let version = setup.kernel_version.clone();
        let by_code =
            setup.image().map(|image| Way { protocol: BootProtocol::Linux32, image, data: file.clone() });
        let Some(payload) = payload else {
            let way = by_code.ok_or(BadKernel::NotAKernel)?;
            let ways = vec![way];
            return Self::new(Format::BzImage, Compression::None, file.clone(), Some(setup), version, ways);
        };
        let known = known.filter(|known| known.len() as u64 <= max);
        let (compression, data) = match (known, Compression::of(payload)) {
            (Some(known), Some(compression)) => (compression, known),
            _ => decompress::unpack(payload, max).map(|(compression, data)| (compression, data.into()))?,
        };
        let around = Around { setup, by_code };
        Self::from_elf(Format::BzImage, compression, data, Some(around), version, None)
    }

    fn from_elf(
        format: Format,
        compression: Compression,
        data: Contents,
        around: Option<Around>,
        version: Option<String>,
        multiboot: Option<Result<Way, BadKernel>>,
    ) -> Result<Self, BadKernel> {
        if Compression::of(&data) != Some(Compression::None) {
            return Err(BadKernel::Foreign { what: "a bzImage without ELF inside" });
        }
        // QEMU, too, looks for multiboot first.
        let mut ways: Vec<_> = multiboot.iter().flatten().cloned().collect();
        let (setup, by_code) = around.map_or((None, None), |around| (Some(around.setup), around.by_code));
        match Image::parse(&data) {
            Ok(image) => {
                let mut add =
                    |protocol| ways.push(Way { protocol, image: image.clone(), data: data.clone() });
                if image.pvh_entry.is_some_and(|entry| image.holds(entry.into())) {
                    add(BootProtocol::Pvh);
                }
                if image.is_64bit && version.is_some() && image.holds(image.entry) {
                    add(BootProtocol::Linux64);
                }
                // What the code around it jumps to when it has unpacked a Linux of 32 bits: the same protocol.
                if !image.is_64bit
                    && image.pvh_entry.is_none()
                    && version.is_some()
                    && image.holds(image.entry)
                {
                    add(BootProtocol::Linux32);
                }
                ways.extend(by_code);
                if ways.is_empty() {
                    return Err(match (multiboot, format) {
                        (Some(Err(why)), _) => why,
                        _ if image.pvh_entry.is_some() => {
                            BadKernel::Elf { why: "its PVH entry point is in no segment".into() }
                        }
                        (_, Format::BzImage) if !image.is_64bit => {
                            BadKernel::WrongElf { what: "kernel of 32 bits without PVH note" }
                        }
                        _ => BadKernel::NotAKernel,
                    });
                }
            }
            Err(why) if ways.is_empty() => return Err(why),
            Err(_) => {}
        }
        Self::new(format, compression, data, setup, version, ways)
    }

    fn new(
        format: Format,
        compression: Compression,
        data: Contents,
        setup: Option<SetupHeader>,
        version: Option<String>,
        ways: Vec<Way>,
    ) -> Result<Self, BadKernel> {
        let protocols = ways.iter().map(|way| way.protocol).collect();
        let reloc = ways.iter().find_map(|way| way.image.pvh_reloc);
        let multiboot = ways.iter().any(|way| way.protocol == BootProtocol::Multiboot);
        let info = KernelInfo {
            format,
            compression,
            version,
            protocols,
            reloc,
            wants_video: multiboot && Header::find(&data).is_some_and(Header::wants_video),
            unpacked: data.len() as u64,
        };
        Ok(Kernel { info, ways, setup, data })
    }
}

/// Whether what a gzip file begins with is an ELF file or holds a multiboot header; an initrd is not unpacked whole
/// to be refused.
fn packs_a_kernel(file: &[u8]) -> bool {
    let begin = decompress::gzip_begin(file, satori_defs::multiboot::header::SEARCH);
    match Compression::of(&begin) {
        Some(format) => format == Compression::None,
        None => Header::find(&begin).is_some(),
    }
}

fn foreign(file: &[u8]) -> &'static str {
    FOREIGN
        .iter()
        .find(|(at, magic, _)| file.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
        .map_or("of no known kind", |(_, _, what)| what)
}

/// The version after Linux's banner, which every vmlinux has among its data.
fn banner(data: &[u8]) -> Option<String> {
    let first = linux::BANNER[0];
    let mut rest = data;
    while let Some(at) = rest.iter().position(|&byte| byte == first) {
        rest = &rest[at + 1..];
        let version = rest.strip_prefix(&linux::BANNER[1..]).and_then(first_word);
        // The banner of /proc/version is a format: "Linux version %s ...".
        if let Some(version) = version.filter(|version| version.starts_with(|c: char| c.is_ascii_digit())) {
            return Some(version);
        }
    }
    None
}
