//! From a kernel's bytes to a guest in memory.

use proptest::prelude::*;
use satori_defs::acpi::address_range;
use satori_defs::linux::{boot_params, setup_header as h};
use satori_defs::xen::{memmap_entry, modlist_entry, start_info};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::reg;

use crate::Packed;
use crate::testing::{Elf, Elf32, bzimage, gzip, lz4};
use crate::{
    BadKernel, BootProtocol, Cmdline, Compression, Config, Error, Format, Initrd, KERNEL_MAX, Kernel, Loaded,
    Module, ProtocolChoice, layout, load,
};

fn memory(bytes: u64) -> GuestMemory {
    GuestMemory::new(&[Region { start: Gpa(0), len: bytes }]).unwrap()
}

fn parse(file: Vec<u8>) -> Result<Kernel, BadKernel> {
    Kernel::parse(file, KERNEL_MAX)
}

fn config(protocol: BootProtocol) -> Config {
    let initrd = Initrd::new(vec![Module { data: vec![0x5a; 5000], ..Module::default() }]);
    Config { initrd, protocol: ProtocolChoice::Only(protocol), ..Config::default() }
}

fn bytes(memory: &GuestMemory, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    memory.read(Gpa(at), &mut out).unwrap();
    out
}

/// What both protocols promise about the memory map and the initrd.
fn check_places(memory: &GuestMemory, loaded: &Loaded) {
    let initrd = loaded.initrd.unwrap();
    assert_eq!((initrd.len, initrd.start.0 % 4096), (5000, 0));
    assert_eq!(bytes(memory, initrd.start.0, 5000), [0x5a; 5000]);
    let ram = loaded.map.iter().find(|e| e.kind == address_range::MEMORY && e.start >= 1 << 20).unwrap();
    assert!(initrd.start.0 >= ram.start && initrd.start.0 + 5000 <= ram.end);
    assert_eq!(bytes(memory, layout::RSDP, 8), b"RSD PTR ");
    assert_eq!(bytes(memory, layout::SMBIOS, 5), b"_SM3_");
    assert_eq!(bytes(memory, 0x100_0000, 2), [0xf4, 0xeb]);
    let bss = 0x100_0000 + Elf::default().text.len() as u64;
    assert!(bytes(memory, bss, (0x100_3000 - bss) as usize).iter().all(|&byte| byte == 0));
}

#[test]
fn pvh_start_info_leads_to_command_line_initrd_and_map() {
    let memory = memory(128 << 20);
    // A reset loads into memory that was used.
    memory.write(Gpa(0x100_0000), &[0xcc; 0x3000]).unwrap();
    let kernel = parse(bzimage(&lz4(&Elf::default().build()))).unwrap();
    assert_eq!((kernel.info.format, kernel.info.compression), (Format::BzImage, Compression::Lz4));
    assert_eq!(kernel.info.version.as_deref(), Some("6.1.0-test"));
    let loaded = load(&memory, &kernel, &config(BootProtocol::Pvh)).unwrap();
    assert_eq!(loaded.entry.rip, 0x100_0040);
    check_places(&memory, &loaded);
    let info = loaded.entry.gpr[reg::RBX];
    let word = |at: usize| memory.read_u32(Gpa(info + at as u64)).unwrap();
    let quad = |at: usize| memory.read_u64(Gpa(info + at as u64)).unwrap();
    assert_eq!((word(start_info::MAGIC), word(start_info::VERSION)), (0x336e_c578, 1));
    assert_eq!(bytes(&memory, quad(start_info::CMDLINE_PADDR), 14), b"console=ttyS0\0");
    assert_eq!(quad(start_info::RSDP_PADDR), layout::RSDP);
    assert_eq!(word(start_info::NR_MODULES), 1);
    let module = quad(start_info::MODLIST_PADDR);
    let at = |offset: usize| memory.read_u64(Gpa(module + offset as u64)).unwrap();
    let initrd = loaded.initrd.unwrap();
    assert_eq!((at(modlist_entry::PADDR), at(modlist_entry::SIZE_BYTES)), (initrd.start.0, initrd.len));
    assert_eq!(word(start_info::MEMMAP_ENTRIES) as usize, loaded.map.len());
    for (index, entry) in loaded.map.iter().enumerate() {
        let at = quad(start_info::MEMMAP_PADDR) + (index * memmap_entry::SIZE) as u64;
        assert_eq!(memory.read_u64(Gpa(at)).unwrap(), entry.start);
        assert_eq!(memory.read_u64(Gpa(at + 8)).unwrap(), entry.end - entry.start);
        assert_eq!(memory.read_u32(Gpa(at + 16)).unwrap(), entry.kind);
    }
}

/// Xen's own kernel is entered so: its domain's kernel and initrd are modules.
#[test]
fn a_pvh_kernel_that_is_no_linux_gets_each_file_as_a_module() {
    let memory = memory(128 << 20);
    let kernel = parse(Elf { text: vec![0xf4; 0x80], ..Elf::default() }.build()).unwrap();
    assert_eq!(kernel.info.version, None);
    let module = |cmdline: &str, name, data: &[u8]| Module {
        cmdline: cmdline.into(),
        name,
        data: data.into(),
        modules_only: true,
    };
    let initrd = Initrd::new(vec![module("a b  quiet x=1", 3, &[1; 5000]), module("c", 1, &[2; 3])]);
    let config = Config { initrd, ..Config::default() };
    let loaded = load(&memory, &kernel, &config).unwrap();
    assert_eq!((loaded.protocol, loaded.initrd), (BootProtocol::Pvh, None));
    let info = loaded.entry.gpr[reg::RBX];
    let word = |at: usize| memory.read_u32(Gpa(info + at as u64)).unwrap();
    let quad = |at: u64| memory.read_u64(Gpa(at)).unwrap();
    assert_eq!(word(start_info::NR_MODULES), 2);
    assert_eq!(
        bytes(&memory, quad(info + start_info::CMDLINE_PADDR as u64), 1),
        b"\0",
        "no console of Linux's"
    );
    let list = quad(info + start_info::MODLIST_PADDR as u64);
    let modules = [list, list + 32].map(|at| (quad(at), quad(at + 8), quad(at + 16)));
    let [(a, a_len, a_cmdline), (c, c_len, c_cmdline)] = modules;
    assert_eq!((a % 4096, a_len, c % 4096, c_len, c_cmdline), (0, 5000, 0, 3, 0));
    assert!(a + a_len <= c || c + 4096 <= a);
    assert_eq!(bytes(&memory, a, 5000), [1; 5000]);
    assert_eq!(bytes(&memory, c, 3), [2; 3]);
    assert_eq!(bytes(&memory, a_cmdline, 10), b"quiet x=1\0");
    let map = quad(info + start_info::MEMMAP_PADDR as u64);
    assert_eq!((quad(map), quad(map + 8)), (loaded.map[0].start, loaded.map[0].end), "behind both modules");
    // A Linux has one initrd, and no use for arguments.
    let linux = parse(bzimage(&lz4(&Elf::default().build()))).unwrap();
    assert!(matches!(load(&memory, &linux, &config), Err(Error::Modules { .. })));
}

#[test]
fn zero_page_has_the_setup_header_and_what_the_loader_fills_in() {
    let memory = memory(128 << 20);
    let kernel = parse(bzimage(&lz4(&Elf::default().build()))).unwrap();
    let loaded = load(&memory, &kernel, &config(BootProtocol::Linux64)).unwrap();
    assert_eq!(loaded.entry.rip, 0x100_0000);
    assert!(loaded.entry.code64() && loaded.entry.cr3 != 0);
    check_places(&memory, &loaded);
    let page = loaded.entry.gpr[reg::RSI];
    let word = |at: usize| memory.read_u32(Gpa(page + at as u64)).unwrap();
    assert_eq!(word(h::HEADER).to_le_bytes(), h::HEADER_VALUE);
    assert_eq!(word(h::INIT_SIZE), 0x10_0000);
    assert_eq!(bytes(&memory, word(h::CMD_LINE_PTR).into(), 14), b"console=ttyS0\0");
    let initrd = loaded.initrd.unwrap();
    assert_eq!((u64::from(word(h::RAMDISK_IMAGE)), word(h::RAMDISK_SIZE)), (initrd.start.0, 5000));
    assert_eq!(u64::from(word(boot_params::ACPI_RSDP_ADDR)), layout::RSDP);
    assert_eq!(word(boot_params::E820_ENTRIES) as u8 as usize, loaded.map.len());
    assert_eq!(bytes(&memory, page + h::TYPE_OF_LOADER as u64, 1), [0xff]);
}

#[test]
fn a_bzimage_unpacks_itself_after_the_32_bit_protocol() {
    let memory = memory(128 << 20);
    let file = bzimage(&lz4(&Elf::default().build()));
    let kernel = parse(file.clone()).unwrap();
    let all = [BootProtocol::Pvh, BootProtocol::Linux64, BootProtocol::Linux32];
    assert_eq!(kernel.info.protocols, all);
    let loaded = load(&memory, &kernel, &config(BootProtocol::Linux32)).unwrap();
    assert_eq!((loaded.entry.rip, loaded.entry.cr0 >> 31, loaded.entry.gpr[reg::RBX]), (0x10_0000, 0, 0));
    assert_eq!(bytes(&memory, 0x10_0000, file.len() - 1024), file[1024..]);
    let page = loaded.entry.gpr[reg::RSI];
    assert_eq!(memory.read_u32(Gpa(page + h::HEADER as u64)).unwrap().to_le_bytes(), h::HEADER_VALUE);

    // A program in this format without payload, whose last paragraph is not whole.
    let mut bare = file.clone();
    bare[h::PAYLOAD_LENGTH..h::PAYLOAD_LENGTH + 4].fill(0);
    bare.truncate(bare.len() / 16 * 16 - 8);
    let paragraphs = (bare.len() as u32 - 1024).div_ceil(16);
    bare[h::SYSSIZE..h::SYSSIZE + 4].copy_from_slice(&paragraphs.to_le_bytes());
    let kernel = parse(bare.clone()).unwrap();
    assert_eq!(kernel.info.protocols, [BootProtocol::Linux32]);
    bare.truncate(bare.len() - 8);
    assert!(matches!(parse(bare).unwrap_err(), BadKernel::Truncated { .. }));
}

#[test]
fn a_vmlinux_without_note_is_entered_by_the_linux_protocol() {
    let kernel = parse(Elf { pvh: None, ..Elf::default() }.build()).unwrap();
    assert_eq!(kernel.info.protocols, [BootProtocol::Linux64]);
    assert_eq!(kernel.info.version.as_deref(), Some("6.1.0-test"), "the banner, not its format");
    let memory = memory(128 << 20);
    let loaded = load(&memory, &kernel, &Config::default()).unwrap();
    assert_eq!(loaded.protocol, BootProtocol::Linux64);
    assert!(matches!(load(&memory, &kernel, &config(BootProtocol::Pvh)), Err(Error::Protocol { .. })));
}

#[test]
fn files_that_are_no_kernels_are_named() {
    let foreign = |file: &[u8]| match parse(file.to_vec()) {
        Err(BadKernel::Foreign { what }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(parse(Vec::new()).unwrap_err(), BadKernel::Empty);
    assert!(foreign(b"070701000").contains("initrd"));
    assert!(foreign(&[0x1f, 0x8b, 8, 0]).contains("compressed"));
    assert!(foreign(b"#!/bin/sh").contains("script"));
    assert!(foreign(b"x").contains("no known kind"));
    let program = Elf { pvh: None, text: b"int main".to_vec(), ..Elf::default() };
    assert_eq!(parse(program.build()).unwrap_err(), BadKernel::NotAKernel);
    let mut old = bzimage(&lz4(&Elf::default().build()));
    old[h::VERSION..h::VERSION + 2].copy_from_slice(&0x207_u16.to_le_bytes());
    assert_eq!(parse(old).unwrap_err(), BadKernel::OldProtocol { major: 2, minor: 7 });
    let outside = Elf { pvh: Some(0x50_0000), ..Elf::default() };
    assert!(matches!(parse(outside.build()), Ok(k) if k.info.protocols == [BootProtocol::Linux64]));
}

#[test]
fn a_truncated_file_says_so_wherever_it_is_cut() {
    for whole in [Elf::default().build(), bzimage(&lz4(&Elf::default().build()))] {
        for len in 0x210..whole.len() {
            let error = parse(whole[..len].to_vec()).unwrap_err();
            assert!(!error.to_string().contains('\n'));
            assert!(matches!(error, BadKernel::Truncated { .. }), "cut to {len}: {error}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_with_advice() {
    let memory = memory(128 << 20);
    let kernel = parse(Elf::default().build()).unwrap();
    let refused = |config: &Config| load(&memory, &kernel, config).unwrap_err();
    let large = Module { data: vec![0; 120 << 20], ..Module::default() };
    let large = Config { initrd: Initrd::new(vec![large]), ..Config::default() };
    assert!(matches!(refused(&large), Error::InitrdTooLarge { .. }));
    let cmdline = |text: String| Config { cmdline: Cmdline::Whole(text), ..Config::default() };
    assert!(load(&memory, &kernel, &cmdline("x".repeat(2047))).is_ok());
    assert!(matches!(refused(&cmdline("x".repeat(2048))), Error::CmdlineTooLong { max: 2047, .. }));
    assert!(matches!(refused(&cmdline("a\0b".into())), Error::CmdlineNul { at: 1 }));
    for cpus in [0, 4097] {
        let mut config = Config::default();
        config.platform.apic_ids = (0..cpus).collect();
        assert!(matches!(refused(&config), Error::Cpus { .. }));
    }
    for (paddr, memsz) in
        [(0x9_0000, 0x10_0000), (0, 0x3000), (0x100_0000, 0x800_0000), (0xfff0_0000, 0x1000)]
    {
        let elf = Elf { paddr, memsz, pvh: Some(paddr as u32), ..Elf::default() };
        let kernel = parse(elf.build()).unwrap();
        let error = load(&memory, &kernel, &Config::default()).unwrap_err();
        assert!(matches!(error, Error::KernelRange { .. }), "{paddr:#x}: {error}");
    }
}

/// A file with some bytes changed, biased to values that headers dislike.
fn mutated(file: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(0x7f), Just(0x80)];
    let change = (0..file.len(), value, 1_usize..9);
    proptest::collection::vec(change, 1..6).prop_map(move |changes| {
        let mut file = file.clone();
        for (at, value, len) in changes {
            let end = (at + len).min(file.len());
            file[at..end].fill(value);
        }
        file
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_mutated_vmlinux_panics(file in mutated(Elf { reloc: Some([1, 2, 3]), ..Elf::default() }.build())) {
        parse_and_load(file);
    }

    #[test]
    fn no_mutated_bzimage_panics(file in mutated(bzimage(&lz4(&Elf::default().build())))) {
        parse_and_load(file);
    }
}

fn parse_and_load(file: Vec<u8>) {
    if let Ok(kernel) = Kernel::parse(file, 1 << 20) {
        let memory = memory(20 << 20);
        for protocol in [BootProtocol::Pvh, BootProtocol::Linux64, BootProtocol::Linux32] {
            let config = Config { protocol: ProtocolChoice::Only(protocol), ..Config::default() };
            if let Ok(loaded) = load(&memory, &kernel, &config) {
                assert!(memory.page(Gpa(loaded.entry.rip)).is_some(), "the entry is in RAM");
            }
        }
    }
}

#[test]
fn a_linux_of_32_bits_without_pvh_note_is_entered_as_its_own_code_would() {
    // Unpacked on the host, as Debian's linux-image-686; the code around it could do that too.
    let kernel = parse(bzimage(&lz4(&Elf32::default().build()))).unwrap();
    assert_eq!(kernel.info.protocols, [BootProtocol::Linux32; 2]);
    for protocol in [ProtocolChoice::Auto, ProtocolChoice::Linux, ProtocolChoice::Only(BootProtocol::Linux32)]
    {
        let memory = memory(128 << 20);
        let loaded = load(&memory, &kernel, &Config { protocol, ..Config::default() }).unwrap();
        assert_eq!((loaded.protocol, loaded.entry.rip), (BootProtocol::Linux32, 0x10_000c));
        assert_eq!(bytes(&memory, 0xf_fff0, 1), [0xea], "the reset vector");
    }
    let why = load(&memory(128 << 20), &kernel, &config(BootProtocol::Pvh)).unwrap_err();
    assert!(matches!(why, Error::Protocol { .. }), "{why}");
    assert!(!crate::needs_long_mode(&kernel, ProtocolChoice::Auto));
}

#[test]
fn a_kernel_in_a_gzip_file_is_unpacked_and_nothing_else_in_one() {
    let elf = Elf::default().build();
    let kernel = parse(gzip(&elf)).unwrap();
    assert_eq!((kernel.info.format, kernel.info.compression), (Format::Vmlinux, Compression::Gzip));
    assert_eq!(kernel.elf(), elf);
    for other in [gzip(b"070701"), gzip(&gzip(&elf)), gzip(&elf)[..9].to_vec()] {
        assert!(matches!(parse(other), Err(BadKernel::Foreign { what }) if what.contains("compressed")));
    }
    let mut damaged = gzip(&elf);
    let checksum = damaged.len() - 5;
    damaged[checksum] ^= 1;
    assert!(matches!(parse(damaged), Err(BadKernel::Payload { .. })));
    assert!(matches!(Kernel::parse(gzip(&elf), 100), Err(BadKernel::PayloadTooLarge { .. })));
}

#[test]
fn a_payload_that_is_known_is_not_unpacked_again() {
    let elf = Elf::default().build();
    let file = bzimage(&gzip(&elf));
    let packed = Packed::of(&file).expect("a payload");
    assert_eq!((packed.compression, packed.length as usize), (Compression::Gzip, elf.len()));
    assert_eq!(packed.unpack().expect("unpacked"), elf);
    assert!(Packed::of(&elf).is_none() && Packed::of(&file[..file.len() / 2]).is_none());

    // Nobody looks at the packed bytes then: here they are damaged.
    let mut damaged = file.clone();
    let at = file.windows(16).position(|bytes| packed.bytes.starts_with(bytes)).expect("where it is");
    damaged[at + 20..at + 40].fill(0xff);
    assert!(Kernel::parse(damaged.clone(), KERNEL_MAX).is_err());
    let known = |max| Kernel::parse_known(damaged.clone(), Some(elf.clone().into()), max);
    let kernel = known(KERNEL_MAX).expect("a kernel");
    assert_eq!(kernel.elf(), elf);
    assert_eq!(kernel.info.compression, Compression::Gzip);
    // What would not have been unpacked is not taken either.
    assert!(matches!(known(elf.len() as u64 - 1), Err(BadKernel::PayloadTooLarge { .. })));
}
