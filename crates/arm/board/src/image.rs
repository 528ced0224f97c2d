//! Linux's arm64 Image, and how it is entered (Documentation/arch/arm64/booting.rst).

use satori_memory::{Gpa, GuestMemory};

use crate::map;
use crate::tree::Tree;

/// What is booted.
#[derive(Clone, Debug)]
pub struct Boot {
    /// The Image.
    pub kernel: Vec<u8>,
    /// The initial ramdisk, if there is one.
    pub initrd: Option<Vec<u8>>,
    /// The kernel's command line.
    pub cmdline: String,
    /// Bytes of RAM.
    pub memory: u64,
    /// MPIDR_EL1's affinity of each vCPU.
    pub cpus: Vec<u64>,
    /// The kernel is entered at EL2.
    pub el2: bool,
}

/// Where the boot processor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Its program counter.
    pub pc: u64,
    /// X0: where the device tree is.
    pub tree: u64,
}

/// Why a guest cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It has no header.
    #[error(
        "the kernel is no arm64 Image ('ARM\\x64' is missing at byte 56): give the vmlinuz of an arm64 kernel, unpacked if it is packed"
    )]
    NoImage,
    /// It wants another byte order or page size.
    #[error(
        "the kernel is big-endian or has pages that are not of 4 KiB: use one with CONFIG_ARM64_4K_PAGES"
    )]
    Unsuitable,
    /// It does not fit.
    #[error("kernel, ramdisk and device tree need {needed} MiB: use --memory {needed}M or more")]
    NoRoom {
        /// MiB.
        needed: u64,
    },
    /// The memory refused.
    #[error(transparent)]
    Memory(#[from] satori_memory::Error),
    /// The tree could not be made.
    #[error("the device tree cannot be written: {0}: shorten --append")]
    Tree(#[from] vm_fdt::Error),
}

const MAGIC: &[u8] = b"ARM\x64";
/// Kernels lie at a multiple of this.
const ALIGN: u64 = 2 << 20;
/// The device tree's place: a multiple of 2 MiB, of which it needs one.
const TREE_ROOM: u64 = ALIGN;

struct Header {
    text_offset: u64,
    image_size: u64,
}

fn header(kernel: &[u8]) -> Result<Header, Error> {
    if kernel.get(56..60) != Some(MAGIC) {
        return Err(Error::NoImage);
    }
    let word = |at: usize| u64::from_le_bytes(kernel[at..at + 8].try_into().unwrap_or_default());
    let flags = word(24);
    if flags & 1 != 0 || !matches!(flags >> 1 & 3, 0 | 1) {
        return Err(Error::Unsuitable);
    }
    let image_size = word(16).max(kernel.len() as u64);
    Ok(Header { text_offset: word(8).min(1 << 30), image_size: image_size.min(1 << 40) })
}

/// Puts a guest into memory: the kernel at the beginning, the ramdisk and the tree behind it.
pub fn load(memory: &GuestMemory, boot: &Boot) -> Result<Begin, Error> {
    let header = header(&boot.kernel)?;
    let kernel = map::RAM + header.text_offset;
    let tree = (kernel + header.image_size).next_multiple_of(ALIGN);
    let initrd = tree + TREE_ROOM;
    let ramdisk = boot.initrd.as_deref().unwrap_or_default();
    let end = initrd + ramdisk.len() as u64;
    if end > map::RAM + boot.memory {
        return Err(Error::NoRoom { needed: (end - map::RAM).div_ceil(1 << 20) });
    }
    memory.write(Gpa(kernel), &boot.kernel)?;
    memory.write(Gpa(initrd), ramdisk)?;
    let described = Tree {
        memory: boot.memory,
        cmdline: &boot.cmdline,
        initrd: (!ramdisk.is_empty()).then_some((initrd, end)),
        cpus: &boot.cpus,
        el2: boot.el2,
    };
    let blob = described.write()?;
    if blob.len() as u64 > TREE_ROOM {
        return Err(Error::NoRoom { needed: (end - map::RAM).div_ceil(1 << 20) });
    }
    memory.write(Gpa(tree), &blob)?;
    Ok(Begin { pc: kernel, tree })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regions;

    fn image() -> Vec<u8> {
        let mut image = vec![0; 4096];
        image[16..24].copy_from_slice(&0x10_0000_u64.to_le_bytes());
        image[24] = 0xa;
        image[56..60].copy_from_slice(MAGIC);
        image
    }

    fn boot(kernel: Vec<u8>) -> Boot {
        let initrd = Some(vec![7; 100]);
        Boot { kernel, initrd, cmdline: "quiet".into(), memory: 16 << 20, cpus: vec![0, 1], el2: false }
    }

    #[test]
    fn a_kernel_lies_before_its_tree_and_ramdisk() {
        let memory = GuestMemory::new(&regions(16 << 20)).unwrap();
        let begin = load(&memory, &boot(image())).unwrap();
        assert_eq!(begin, Begin { pc: map::RAM, tree: map::RAM + ALIGN });
        let mut magic = [0; 4];
        memory.read(Gpa(begin.tree), &mut magic).unwrap();
        assert_eq!(magic, [0xd0, 0x0d, 0xfe, 0xed]);
        memory.read(Gpa(begin.tree + TREE_ROOM), &mut magic).unwrap();
        assert_eq!(magic, [7; 4]);
    }

    #[test]
    fn what_is_no_kernel_or_does_not_fit_is_refused() {
        let memory = GuestMemory::new(&regions(16 << 20)).unwrap();
        for length in [0, 10, 59, 60] {
            assert!(matches!(load(&memory, &boot(vec![0; length])), Err(Error::NoImage)));
        }
        let mut huge = image();
        huge[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(load(&memory, &boot(huge)), Err(Error::NoRoom { .. })));
        let mut big_endian = image();
        big_endian[24] = 0xb;
        assert!(matches!(load(&memory, &boot(big_endian)), Err(Error::Unsuitable)));
    }
}
