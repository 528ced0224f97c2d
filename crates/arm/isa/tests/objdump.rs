//! The table agrees with binutils, whose decoder is another's, over words of every class and of every row.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;

use satori_arm_isa::{Op, ROWS, decode, text};

/// Whether what objdump names belongs to an extension that the table leaves out.
fn newer(word: u32, name: &str, operands: &str) -> bool {
    // Bits 28:25: UDF, SME and SVE.
    let scalable = word >> 27 & 3 == 0;
    let half = name.starts_with('f') || name.ends_with("cvtf");
    let half = half
        && (operands.starts_with('h')
            || operands.contains(".4h")
            || operands.contains(".8h")
            || operands.contains(", h"));
    // FEAT_CSSC gave minima and maxima to general registers.
    let cssc = matches!(name, "smin" | "smax" | "umin" | "umax") && operands.starts_with(['w', 'x']);
    // MSR and MRS with an op0 of 0 are no system registers.
    let nowhere = matches!(name, "mrs" | "msr") && word >> 20 & 1 == 0;
    let prefix = |list: &[&str]| list.iter().any(|start| name.starts_with(start));
    // Bits that should be ones, and are not: CONSTRAINED UNPREDICTABLE.
    let ones = (name.starts_with("ldar") || name.starts_with("ldlar")) && word & 0x001f_7c00 != 0x001f_7c00;
    ones || scalable || half || cssc || nowhere || prefix(NEWER_FAMILIES) || NEWER.contains(&name)
}

/// Beginnings of mnemonics of FEAT_MOPS, MTE, PAuth, FRINTTS, FHM and the like.
const NEWER_FAMILIES: &[&str] =
    &["cpy", "set", "bc.", "ldapur", "stlur", "dcps", "sm3", "sm4", "sha512", "bf"];

/// Mnemonics whose words are all newer.
const NEWER: &[&str] = &[
    "addg", "bcax", "eor3", "fcadd", "fcmla", "fmlal", "fmlal2", "fmlsl", "fmlsl2", "gmi", "irg", "ldg",
    "ldraa", "ldrab", "pacga", "rax1", "rmif", "smmla", "st2g", "st64bv", "st64bv0", "stg", "stgp", "stz2g",
    "stzg", "subg", "subp", "subps", "sudot", "tcancel", "ummla", "usdot", "usmmla", "xar",
];

/// LDPSW that loads one register twice, or its own base: CONSTRAINED UNPREDICTABLE, of which binutils makes UNDEFINED.
fn unpredictable(word: u32) -> bool {
    let (a, n, d) = (word >> 10 & 31, word >> 5 & 31, word & 31);
    let base = word >> 23 & 1 != 0 && n != 31 && (n == a || n == d);
    decode(word).is_some_and(|row| row.op == Op::Ldpsw) && (a == d || base)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 32) as u32 ^ (self.0 >> 13) as u32
    }
}

fn words() -> Vec<u32> {
    let mut random = Random(24);
    let mut words = Vec::new();
    for row in ROWS {
        words.extend((0..600).filter_map(|_| row.sample(random.next())).take(100));
    }
    // All classes: bits 31:21 and 15:10 choose nearly everything, the rest is random.
    for class in 0..1 << 17 {
        let fixed = (class >> 6) << 21 | (class & 63) << 10;
        words.push(fixed | random.next() & 0x001f_03ff);
    }
    words
}

#[test]
fn words_of_every_class_decode_as_binutils_decodes_them() {
    let words = words();
    let file = std::env::temp_dir().join(format!("satori-arm-isa-{}.bin", std::process::id()));
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::File::create(&file).unwrap().write_all(&bytes).unwrap();
    let output = Command::new("aarch64-linux-gnu-objdump")
        .args(["-D", "-z", "-b", "binary", "-m", "aarch64", "-M", "no-aliases"])
        .arg(&file)
        .output()
        .expect("aarch64-linux-gnu-objdump runs: install binutils-aarch64-linux-gnu");
    std::fs::remove_file(&file).unwrap();
    let listing = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = listing.lines().filter(|line| line.contains(":\t")).collect();
    assert_eq!(lines.len(), words.len());
    let mut wrong: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (word, line) in words.iter().zip(lines) {
        let mut columns = line.split('\t').skip(2);
        let theirs = columns.next().unwrap_or_default();
        let theirs = if theirs.starts_with("b.") { "b." } else { theirs };
        let operands = columns.next().unwrap_or_default();
        let said = format!("{word:08x} {}", line.split('\t').skip(2).collect::<Vec<_>>().join(" "));
        let key = match decode(*word) {
            Some(_) if theirs == ".inst" && unpredictable(*word) => continue,
            Some(_) if theirs == ".inst" => format!("only ours: {}", text(*word).split(' ').next().unwrap()),
            Some(row) if !row.names.split('/').any(|name| name == theirs) => {
                format!("{} is {theirs}", row.names)
            }
            None if theirs != ".inst" && !newer(*word, theirs, operands) => format!("only theirs: {theirs}"),
            _ => continue,
        };
        wrong.entry(key).or_default().push(said);
    }
    let list: Vec<_> = wrong.iter().map(|(key, all)| format!("{} x {key}: {}", all.len(), all[0])).collect();
    assert!(list.is_empty(), "\n{}", list.join("\n"));
}
