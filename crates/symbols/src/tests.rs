use proptest::prelude::*;
use satori_memory::{Gpa, GuestMemory, Region};

use crate::testing::{BASE, Layout, table};
use crate::{Error, Place, Symbols, kallsyms};

/// A per-CPU value, `count` functions a page apart, and one whose name needs two bytes of length.
fn symbols(count: u64) -> Vec<(u64, String)> {
    let functions = (0..count).map(|n| (BASE + n * 0x1000, format!("Tfunction_{n}")));
    let long = (BASE + count * 0x1000, format!("t{}", "long_".repeat(60)));
    [(0x1f000, "Atsc_khz".to_owned())].into_iter().chain(functions).chain([long]).collect()
}

fn build(count: u64, layout: Layout) -> crate::testing::Table {
    let rows = symbols(count);
    table(&rows.iter().map(|(address, name)| (*address, name.as_str())).collect::<Vec<_>>(), layout)
}

fn memory(bytes: &[u8], at: u64) -> GuestMemory {
    let memory = GuestMemory::new(&[Region { start: Gpa(0), len: 8 << 20 }]).unwrap();
    memory.write(Gpa(at), bytes).unwrap();
    memory
}

#[test]
fn a_table_in_memory_is_found_in_both_orders() {
    for (layout, told) in
        [(Layout::Old, "6.3 or older"), (Layout::Ordered, "6.3 or older"), (Layout::New, "6.4 or newer")]
    {
        // Across a border of what is read at once, and with an even and an odd number of markers.
        for (count, at) in [(300, 0x1000), (400, (1 << 20) - 2048), (700, (3 << 20) - 64)] {
            let symbols = Symbols::find(&memory(&build(count, layout).bytes, at)).expect("found");
            assert!(symbols.origin().contains(told), "{}", symbols.origin());
            assert_eq!(symbols.len() as u64, count + 1);
            assert_eq!(symbols.resolve(BASE + 0x1000 * 150 + 0x2f), Place::Function("function_150", 0x2f));
            let long = symbols.resolve(BASE + 0x1000 * count + 1).to_string();
            assert_eq!(long, format!("{}+0x1", "long_".repeat(60)));
            assert_eq!(symbols.resolve(BASE - 1), Place::Kernel);
            assert_eq!(symbols.resolve(0x1f000), Place::Low, "a per-CPU offset is no function");
            assert_eq!(symbols.resolve(u64::MAX), Place::Kernel);
        }
    }
}

#[test]
fn digits_are_found_at_every_distance_from_what_is_looked_at() {
    for skew in 0..32 {
        let skew = 0x2_0000 + 8 * skew;
        assert!(Symbols::find(&memory(&build(300, Layout::New).bytes, skew)).is_some(), "{skew:#x}");
    }
}

#[test]
fn memory_without_a_table_has_no_symbols() {
    assert_eq!(Symbols::find(&memory(&[], 0)), None);
    let decoys: Vec<u8> = kallsyms::DIGITS.iter().copied().cycle().take(1 << 16).collect();
    assert_eq!(Symbols::find(&memory(&decoys, 0x1000)), None);
}

#[test]
fn files_are_told_by_their_content() {
    let map = "0000000000000000 A fixed_percpu_data\nffffffff81000000 T _text\nffffffff81000040 t bad_\u{1b}get\n\
               ffffffff81002000 D data\nffffffffc0001000 t read_block\t[ext4]\n";
    let symbols = Symbols::parse(map.as_bytes(), "System.map").unwrap();
    assert_eq!(symbols.resolve(0xffff_ffff_8100_0041).to_string(), "bad_.get+0x1");
    assert_eq!(symbols.resolve(0xffff_ffff_c000_1004).to_string(), "read_block[ext4]+0x4");
    assert_eq!(symbols.resolve(0xffff_ffff_c050_0000), Place::Module);
    assert_eq!(symbols.resolve(0x40_1000), Place::Low);

    let stub = b"ffffffffffffffff B The real System.map is in the linux-image-<version>-dbg package\n";
    assert_eq!(Symbols::parse(stub, ""), Err(Error::Stub));
    assert_eq!(Symbols::parse(b"0000000000000000 T _text\n", ""), Err(Error::Hidden));
    assert_eq!(Symbols::parse(b"ffffffff81000000 T a\nhello\n", ""), Err(Error::Text { line: 2 }));
    assert_eq!(Symbols::parse(b"ffffffff81000000 TT a\n", ""), Err(Error::Text { line: 1 }));
    assert_eq!(Symbols::parse(b"", ""), Err(Error::Empty));
    assert!(matches!(Symbols::parse(b"\x7fELF\x02\x01", ""), Err(Error::Elf(_))));
}

#[test]
fn an_elf_file_names_its_functions() {
    // This test's own program: not stripped, as it has tests.
    let content = std::fs::read("/proc/self/exe").unwrap();
    let symbols = Symbols::parse(&content, "self").unwrap();
    assert!(symbols.len() > 100, "{}", symbols.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// What a guest changes in its table is answered, and neither a panic nor endless.
    #[test]
    fn a_spoilt_table_is_harmless(
        layout in prop_oneof![Just(Layout::Old), Just(Layout::Ordered), Just(Layout::New)],
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![Just(0u8), Just(255), any::<u8>()]), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut table = build(300, layout);
        for (at, value) in changes {
            let at = at.index(table.bytes.len());
            table.bytes[at] = value;
        }
        if let Some(symbols) = kallsyms::read(&table.bytes, table.digits) {
            symbols.resolve(BASE + 0x5000).to_string();
        }
        table.bytes.truncate(cut.index(table.bytes.len()));
        kallsyms::read(&table.bytes, table.digits);
    }

    /// Pieces that repeat look like counts, markers and names at once.
    #[test]
    fn repeated_pieces_are_harmless(unit in prop::collection::vec(prop_oneof![3 => 0u8..9, 1 => any::<u8>()], 1..24)) {
        let mut table = build(600, Layout::New);
        let end = table.digits - 2048;
        let begin = 64;
        for (byte, value) in table.bytes[begin..end].iter_mut().zip(unit.iter().cycle()) {
            *byte = *value;
        }
        kallsyms::read(&table.bytes, table.digits);
    }

    #[test]
    fn any_text_is_answered(content in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Symbols::parse(&content, "");
        let _ = Symbols::parse(&[b"\x7fELF\x02\x01\x01\0".as_slice(), &content].concat(), "");
    }
}
