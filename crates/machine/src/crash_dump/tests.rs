use satori_defs::x86::{cr0, efer};
use satori_state::reg;

use super::*;

const MIB: u64 = 1 << 20;

fn memory() -> GuestMemory {
    let regions = [Region { start: Gpa(0), len: MIB }, Region { start: Gpa(2 * MIB), len: MIB }];
    GuestMemory::new(&regions).unwrap()
}

fn vcpu(cr3: u64) -> CpuState {
    let mut state = CpuState { cr3, cr0: cr0::PG, efer: efer::LMA, rip: 0x1234, ..CpuState::default() };
    state.gpr[reg::RSP] = 0x5678;
    state
}

fn put(memory: &GuestMemory, at: u64, value: u64) {
    memory.write(Gpa(at), &value.to_le_bytes()).unwrap();
}

#[test]
fn stretches_are_joined_and_clipped_to_memory() {
    let memory = memory();
    // 4-level: entry 511, 511, 511 to a table with three pages, of which two follow each other.
    for table in [0x1000, 0x2000] {
        put(&memory, table + 511 * 8, (table + 0x1000) | 1);
    }
    put(&memory, 0x3000 + 511 * 8, 0x4000 | 1);
    put(&memory, 0x4000, 0x7000 | 1);
    put(&memory, 0x4008, 0x8000 | 1);
    put(&memory, 0x4010, 0x9_0000_0000 | 1);
    // A page of 2 MiB, of which the second half has no memory.
    put(&memory, 0x3000, (2 * MIB) | 0x81);
    // The lower half is the programs'.
    put(&memory, 0x1000, 0x2000 | 1);
    let runs = mappings::of(&memory, &[vcpu(0x1000)], 10);
    let base = 0xffff_ff80_0000_0000 | 511 << 30;
    assert_eq!(
        runs,
        [
            Run { linear: base, physical: 2 * MIB, len: MIB },
            Run { linear: base + (511 << 21), physical: 0x7000, len: 0x2000 },
        ]
    );
    assert_eq!(mappings::of(&memory, &[vcpu(0x1000)], 1).len(), 1, "the longest stays");
    assert!(mappings::of(&memory, &[CpuState::default()], 10).is_empty(), "no paging");
    assert!(mappings::of(&memory, &[vcpu(0x7fff_f000)], 10).is_empty(), "tables nowhere");
}

#[test]
fn tables_that_lead_to_themselves_come_to_an_end() {
    let memory = memory();
    for index in 0..512 {
        put(&memory, 0x1000 + index * 8, 0x1000 | 1);
    }
    let runs = mappings::of(&memory, &[vcpu(0x1000)], 100);
    assert!(!runs.is_empty() && runs.len() <= 100, "{}", runs.len());
}

#[test]
fn a_file_holds_memory_registers_and_what_linux_tells() {
    let memory = memory();
    memory.write(Gpa(2 * MIB + 5), b"here").unwrap();
    let mut note = [11u32, 14, 0].map(u32::to_le_bytes).concat();
    note.extend(b"VMCOREINFO\0\0OSRELEASE=6.1\n");
    memory.write(Gpa(0x6000), &note).unwrap();
    let path = std::env::temp_dir().join(format!("satori-dump-{}", std::process::id()));
    std::fs::write(&path, [0xff; 9000]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let told = write(&file, &memory, &[vcpu(0), vcpu(0)]).unwrap();
    assert_eq!(told, CrashDump { memory: 2 * MIB, mappings: 0, vmcoreinfo: true });
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!((bytes.len() as u64 % 4096, &bytes[..4]), (0, &b"\x7fELF"[..]));
    let segment = |index: usize| {
        let at = EHDR_BYTES + PHDR_BYTES * index;
        (word(at + 8) as usize, word(at + 24), word(at + 32) as usize)
    };
    let (notes, _, length) = segment(0);
    let text = &bytes[notes..notes + length];
    assert!(text.windows(13).any(|part| part == b"OSRELEASE=6.1"));
    // The first register set: header, name, then RIP and RSP in their places.
    let registers = notes + 20 + elf::prstatus::REG;
    assert_eq!((word(registers + 16 * 8), word(registers + 19 * 8)), (0x1234, 0x5678));
    let (offset, physical, length) = segment(2);
    assert_eq!((physical, length as u64), (2 * MIB, MIB));
    assert_eq!(&bytes[offset + 5..offset + 9], b"here");
    assert_eq!(offset + length, bytes.len(), "the last hole is there");
    let (offset, physical, length) = segment(1);
    assert_eq!(
        (physical, length as u64, &bytes[offset + 0x6018..offset + 0x6022]),
        (0, MIB, &b"OSRELEASE="[..])
    );
}
