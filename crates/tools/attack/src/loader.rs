//! Files of other people's: kernels and what is in them.

use std::cell::RefCell;

use arbitrary::{Result, Unstructured};
use satori_boot::{Cmdline, Config, Initrd, Kernel, Module, acpi, load};
use satori_memory::{Gpa, GuestMemory, Region};

use crate::script;

/// Largest kernel that is unpacked: enough for every path, little enough for many runs.
const KERNEL_MAX: u64 = 16 << 20;
/// RAM to load into.
const RAM: u64 = 64 << 20;

thread_local! {
    static MEMORY: RefCell<Option<GuestMemory>> = const { RefCell::new(None) };
}

/// Parses a file as a kernel and loads what was understood: `data` itself, or a good kernel with
/// bytes of it changed.
pub fn loader(data: &[u8]) {
    understood(data);
}

/// As [`loader`]; tells whether it was a kernel.
pub(crate) fn understood(data: &[u8]) -> bool {
    match data.split_first() {
        Some((0, file)) => parse(file.to_vec()),
        Some((which, changes)) => {
            let mut file = match which % 3 {
                0 => script::kernel(&[0xf4; 16]),
                1 => multiboot(),
                _ => bzimage(),
            };
            let _changes_ended = change(&mut file, &mut Unstructured::new(changes));
            parse(file)
        }
        None => false,
    }
}

/// Overwrites words of `file`, while there is input.
fn change(file: &mut Vec<u8>, u: &mut Unstructured<'_>) -> Result<()> {
    while !u.is_empty() {
        let at = usize::from(u.arbitrary::<u16>()?) % file.len().max(1);
        match u.arbitrary::<u8>()? % 8 {
            0 => file.truncate(at),
            1 => file.extend(u.arbitrary::<[u8; 16]>()?),
            2 => put(file, at, &u.arbitrary::<u32>()?.to_le_bytes()),
            3 => put(file, at, &u.arbitrary::<u64>()?.to_le_bytes()),
            _ => put(file, at, &[u.arbitrary()?]),
        }
    }
    Ok(())
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in file.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// A multiboot kernel that is found by the header's own addresses.
fn multiboot() -> Vec<u8> {
    const MAGIC: u32 = 0x1bad_b002;
    const FLAGS: u32 = 1 << 16 | 3;
    let base = script::BASE;
    let checksum = 0_u32.wrapping_sub(MAGIC).wrapping_sub(FLAGS);
    let header = [MAGIC, FLAGS, checksum, base, base, base + 0x1000, base + 0x3000, base + 32];
    let mut file: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.resize(0x1000, 0xf4);
    file
}

/// A bzImage whose payload is a kernel that was not compressed (the Linux/x86 boot protocol).
fn bzimage() -> Vec<u8> {
    let payload = script::kernel(&[0xf4; 16]);
    let mut file = vec![0; 0x400];
    put(&mut file, 0x1f1, &[1]);
    put(&mut file, 0x1fe, &[0x55, 0xaa]);
    put(&mut file, 0x202, b"HdrS\x0f\x02");
    put(&mut file, 0x211, &[1]);
    put(&mut file, 0x214, &script::BASE.to_le_bytes());
    put(&mut file, 0x230, &0x20_0000_u32.to_le_bytes());
    put(&mut file, 0x236, &[3]);
    put(&mut file, 0x238, &0x7ff_u32.to_le_bytes());
    put(&mut file, 0x24c, &(payload.len() as u32).to_le_bytes());
    put(&mut file, 0x258, &0x100_0000_u64.to_le_bytes());
    put(&mut file, 0x260, &0x10_0000_u32.to_le_bytes());
    file.extend(payload);
    file
}

fn parse(file: Vec<u8>) -> bool {
    let head = file[..file.len().min(4096)].to_vec();
    let Ok(kernel) = Kernel::parse(file, KERNEL_MAX) else { return false };
    MEMORY.with_borrow_mut(|memory| {
        let memory = memory.get_or_insert_with(|| {
            let ram = Region { start: Gpa(0), len: RAM };
            GuestMemory::new(&[ram]).expect("64 MiB can be reserved")
        });
        let config = Config {
            cmdline: Cmdline::Whole("console=ttyS0".into()),
            initrd: Initrd::new(vec![Module {
                cmdline: "initrd a".into(),
                data: head,
                modules_only: false,
                name: 6,
            }]),
            platform: acpi::Platform { apic_ids: vec![0, 1], cores: 2, ..acpi::Platform::default() },
            ..Config::default()
        };
        // A multiboot kernel has modules instead.
        if let Some(initrd) = load(memory, &kernel, &config).ok().and_then(|loaded| loaded.initrd) {
            assert!(initrd.start.0 + initrd.len <= RAM, "{initrd:?} lies outside RAM");
        }
    });
    true
}
