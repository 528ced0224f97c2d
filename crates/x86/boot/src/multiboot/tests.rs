//! From a multiboot kernel's bytes to its information block.

use proptest::prelude::*;
use satori_defs::acpi::address_range;
use satori_defs::multiboot::{header as h, info as f, mmap, module};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::reg;

use crate::testing::{Elf, Elf32};
use crate::{
    BadKernel, BootProtocol, Cmdline, Config, Error, Format, Initrd, KERNEL_MAX, Kernel, Module,
    ProtocolChoice, load,
};

fn memory(bytes: u64) -> GuestMemory {
    GuestMemory::new(&[Region { start: Gpa(0), len: bytes }]).unwrap()
}

fn parse(file: Vec<u8>) -> Result<Kernel, BadKernel> {
    Kernel::parse(file, KERNEL_MAX)
}

fn text(memory: &GuestMemory, at: u32) -> String {
    let mut bytes = vec![0; 64];
    memory.read(Gpa(at.into()), &mut bytes).unwrap();
    String::from_utf8(bytes.split(|&byte| byte == 0).next().unwrap().to_vec()).unwrap()
}

fn modules() -> Initrd {
    let module = |cmdline: &str, data: &[u8]| Module {
        cmdline: cmdline.into(),
        data: data.into(),
        modules_only: true,
        name: cmdline.find(" ").unwrap_or(cmdline.len()),
    };
    Initrd::new(vec![module("a.elf x y", &[1; 5000]), module("b", &[2; 3]), module("none", &[])])
}

#[test]
fn the_information_block_says_what_is_there() {
    let memory = memory(128 << 20);
    memory.write(Gpa(0x10_0000), &[0xcc; 0x3000]).unwrap();
    let kernel = parse(Elf32::default().build()).unwrap();
    assert_eq!(kernel.info.protocols, [BootProtocol::Multiboot]);
    let config = Config {
        kernel_name: "kernel.elf".into(),
        cmdline: Cmdline::Added("one two".into()),
        initrd: modules(),
        ..Config::default()
    };
    let loaded = load(&memory, &kernel, &config).unwrap();
    assert_eq!((loaded.entry.gpr[reg::RAX], loaded.entry.rip), (0x2bad_b002, 0x10_000c));
    let info = loaded.entry.gpr[reg::RBX];
    let word = |at: usize| memory.read_u32(Gpa(info + at as u64)).unwrap();
    assert_eq!(word(f::FLAGS), 0b10_0110_1101);
    assert_eq!(word(f::MEM_LOWER), 639);
    let ram = loaded.map.iter().find(|e| e.start == 0x10_0000 && e.kind == address_range::MEMORY).unwrap();
    assert_eq!(u64::from(word(f::MEM_UPPER)), (ram.end - ram.start) >> 10);
    assert_eq!(text(&memory, word(f::CMDLINE)), "kernel.elf one two");
    assert!(text(&memory, word(f::BOOT_LOADER_NAME)).starts_with("Satori "));
    assert_eq!(word(f::MMAP_LENGTH) as usize, loaded.map.len() * mmap::SIZE);
    for (entry, at) in loaded.map.iter().zip((u64::from(word(f::MMAP_ADDR))..).step_by(mmap::SIZE)) {
        assert_eq!(memory.read_u32(Gpa(at)).unwrap(), 20);
        assert_eq!(memory.read_u64(Gpa(at + mmap::BASE as u64)).unwrap(), entry.start);
        assert_eq!(memory.read_u64(Gpa(at + mmap::LENGTH as u64)).unwrap(), entry.end - entry.start);
        assert_eq!(memory.read_u32(Gpa(at + mmap::TYPE as u64)).unwrap(), entry.kind);
    }
    assert_eq!(memory.read_u32(Gpa(0x10_2ffc)).unwrap(), 0, "the bss is zero");
    assert_eq!(memory.read_u32(Gpa(loaded.entry.gdtr.base + 20)).unwrap(), 0x00cf_9b00);
    assert_eq!(word(f::MODS_COUNT), 3);
    for (index, module) in config.initrd.parts().iter().enumerate() {
        let entry = u64::from(word(f::MODS_ADDR)) + (index * module::SIZE) as u64;
        let field = |at: usize| memory.read_u32(Gpa(entry + at as u64)).unwrap();
        let (start, end) = (field(module::START), field(module::END));
        assert!(start >= 0x10_3000 && start.is_multiple_of(4096), "above the kernel: {start:#x}");
        assert_eq!((end - start) as usize, module.data.len());
        let mut data = vec![0; module.data.len()];
        memory.read(Gpa(start.into()), &mut data).unwrap();
        assert_eq!(data, module.data);
        assert_eq!(text(&memory, field(module::STRING)), module.cmdline);
    }
}

#[test]
fn loose_sections_are_in_memory_and_their_headers_say_where() {
    let memory = memory(128 << 20);
    let kernel = parse(Elf32::default().build()).unwrap();
    let loaded = load(&memory, &kernel, &Config::default()).unwrap();
    let word = |at: u64| memory.read_u32(Gpa(at)).unwrap();
    let info = loaded.entry.gpr[reg::RBX];
    let field = |at: usize| word(info + at as u64);
    assert_eq!((field(f::SHDR_NUM), field(f::SHDR_SIZE), field(f::SHDR_SHNDX)), (3, 40, 2));
    let header = |index: u64| u64::from(field(f::SHDR_ADDR)) + index * 40;
    assert_eq!(word(header(1) + 12), 0x10_0000);
    let strings = word(header(2) + 12);
    assert!(strings >= 0x10_3000);
    let mut bytes = vec![0; Elf32::STRINGS.len()];
    memory.read(Gpa(strings.into()), &mut bytes).unwrap();
    assert_eq!(bytes, Elf32::STRINGS);
}

#[test]
fn what_the_header_may_not_want_is_refused() {
    assert_eq!(
        parse(Elf32 { flags: 0x8001, ..Elf32::default() }.build()).unwrap_err(),
        BadKernel::MultibootFlags { flags: 0x8000 }
    );
    assert!(parse(Elf32 { flags: 0, ..Elf32::default() }.build()).is_ok());
    // The upper half is for the loader to ignore.
    let asking = parse(Elf32 { flags: 0x8000_0007, ..Elf32::default() }.build()).unwrap();
    assert!(asking.info.wants_video && !parse(Elf32::default().build()).unwrap().info.wants_video);
    let outside = Elf32 { entry: 0x20_0000, ..Elf32::default() };
    assert!(matches!(parse(outside.build()).unwrap_err(), BadKernel::Multiboot { .. }));
}

#[test]
fn a_kernel_may_lie_anywhere_but_on_the_tables() {
    let loads = |paddr: u32, memsz: u32| {
        let kernel = parse(Elf32 { paddr, entry: paddr, memsz, ..Elf32::default() }.build()).unwrap();
        let loaded = load(&memory(128 << 20), &kernel, &Config::default());
        loaded.map(|loaded| loaded.entry.gpr[reg::RBX])
    };
    for (paddr, memsz) in [(0, 0x1000), (0x8000, 0x4000), (0xf_f000, 0x2000), (0x7f0_0000, 0x8_0000)] {
        let info = loads(paddr, memsz).unwrap();
        assert!(!(u64::from(paddr)..u64::from(paddr + memsz)).contains(&info), "{paddr:#x}: {info:#x}");
    }
    for (paddr, memsz) in [(0xe_0000, 0x10), (0xe_f000, 0x2000), (0x7ff_f000, 0x2000)] {
        assert!(matches!(loads(paddr, memsz), Err(Error::KernelRange { .. })), "{paddr:#x}");
    }
}

#[test]
fn multiboot_comes_first_and_can_be_chosen_against() {
    let header = h::VALUE.to_le_bytes();
    let text = [&header[..], &[0; 4], &h::VALUE.wrapping_neg().to_le_bytes(), &[0xf4; 64]].concat();
    let both = Elf { text, ..Elf::default() };
    let kernel = parse(both.build()).unwrap();
    assert_eq!(kernel.info.protocols, [BootProtocol::Multiboot, BootProtocol::Pvh]);
    let by = |protocol| {
        load(&memory(128 << 20), &kernel, &Config { protocol, ..Config::default() }).map(|l| l.entry.rip)
    };
    assert_eq!(by(ProtocolChoice::Auto).unwrap(), both.entry);
    assert_eq!(by(ProtocolChoice::Only(BootProtocol::Multiboot)).unwrap(), both.entry);
    assert_eq!(by(ProtocolChoice::Only(BootProtocol::Pvh)).unwrap(), u64::from(both.pvh.unwrap()));
    assert!(by(ProtocolChoice::Only(BootProtocol::Linux64)).is_err());
    // What multiboot cannot have, PVH may still load.
    let high = Elf { pvh: both.pvh, text: both.text.clone(), entry: 0, ..Elf::default() };
    assert_eq!(parse(high.build()).unwrap().info.protocols, [BootProtocol::Pvh]);
}

#[test]
fn a_file_of_no_format_is_loaded_by_its_addresses() {
    let flags = h::ADDRESSES;
    let words = [
        h::VALUE,
        flags,
        0_u32.wrapping_sub(h::VALUE + flags),
        0x20_0000,
        0x20_0000,
        0,
        0x20_4000,
        0x20_0020,
    ];
    let mut file: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.extend([0xf4; 64]);
    let kernel = parse(file).unwrap();
    assert_eq!(kernel.info.format, Format::Multiboot);
    let memory = memory(128 << 20);
    memory.write(Gpa(0x20_0000), &[0xcc; 0x4000]).unwrap();
    let loaded = load(&memory, &kernel, &Config::default()).unwrap();
    assert_eq!(loaded.entry.rip, 0x20_0020);
    assert_eq!(memory.read_u32(Gpa(0x20_0020)).unwrap(), 0xf4f4_f4f4);
    assert_eq!(memory.read_u32(Gpa(0x20_3ffc)).unwrap(), 0);
}

#[test]
fn what_does_not_fit_is_refused() {
    let kernel = parse(Elf32::default().build()).unwrap();
    let refused = |config: &Config| load(&memory(128 << 20), &kernel, config).unwrap_err();
    let large = Module { data: vec![0; 127 << 20], ..Module::default() };
    let large = Config { initrd: Initrd::new(vec![large]), ..Config::default() };
    assert!(matches!(refused(&large), Error::InitrdTooLarge { .. }));
    let long = Config { cmdline: Cmdline::Whole("x".repeat(40_000)), ..Config::default() };
    assert!(matches!(refused(&long), Error::CmdlineTooLong { .. }));
    let nul = Config { cmdline: Cmdline::Whole("a\0".into()), ..Config::default() };
    assert!(matches!(refused(&nul), Error::CmdlineNul { .. }));
}

fn any_word() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), Just(0), Just(u32::MAX), 0x10_0000..0x11_0000_u32, 0..0x1000_u32]
}

fn survives(file: Vec<u8>) {
    if let Ok(kernel) = Kernel::parse(file, 1 << 20) {
        let memory = memory(20 << 20);
        let config = Config { initrd: modules(), ..Config::default() };
        if let Ok(loaded) = load(&memory, &kernel, &config) {
            assert!(memory.page(Gpa(loaded.entry.rip)).is_some(), "the entry is in RAM");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_mutated_or_truncated_kernel_panics(
        changes in proptest::collection::vec((0_usize..80, any_word()), 0..6),
        cut in prop_oneof![Just(usize::MAX), 0_usize..320],
    ) {
        let mut file = Elf32::default().build();
        for (word, value) in changes {
            let at = word * 4;
            if let Some(bytes) = file.get_mut(at..at + 4) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
        file.truncate(cut);
        survives(file);
    }

    #[test]
    fn no_addresses_panic(at in 0_usize..64, fields in proptest::collection::vec(any_word(), 5), len in 0_usize..200) {
        let mut file = vec![0x90; at * 4];
        for word in [h::VALUE, h::ADDRESSES, 0_u32.wrapping_sub(h::VALUE + h::ADDRESSES)].iter().chain(&fields) {
            file.extend(word.to_le_bytes());
        }
        file.truncate(file.len().saturating_sub(len % 24));
        file.resize(file.len() + len, 0xf4);
        survives(file);
    }
}
