//! Dependencies between crates point down, and those on others are ones we chose.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Every crate of the workspace and its floor (ARCHITECTURE.md).
const FLOORS: &[(&str, u8)] = &[
    ("satori-defs", 0),
    ("satori-lock", 0),
    ("satori-memory", 1),
    ("satori-state", 1),
    ("satori-rules", 1),
    ("satori-arm-isa", 1),
    ("satori-arm-state", 1),
    ("satori-bus", 1),
    ("satori-sandbox", 1),
    ("satori-host", 1),
    ("satori-journal", 1),
    ("satori-code", 1),
    ("satori-save", 1),
    ("satori-results", 1),
    ("satori-xenstore", 1),
    ("satori-seam", 2),
    ("satori-engine", 2),
    ("satori-arm-engine", 2),
    ("satori-arm-hypervisor", 2),
    ("satori-cpuid", 2),
    ("satori-lapic", 2),
    ("satori-pv", 2),
    ("satori-hyperv", 2),
    ("satori-vmbus", 2),
    ("satori-kvm", 2),
    ("satori-xen", 2),
    ("satori-boot", 2),
    ("satori-symbols", 2),
    ("satori-pci", 2),
    ("satori-image", 2),
    ("satori-cable", 2),
    ("satori-svm", 2),
    ("satori-vmx", 2),
    ("satori-soft", 3),
    ("satori-arm-soft", 3),
    ("satori-jit", 3),
    ("satori-arm-jit", 3),
    ("satori-kvm-engine", 3),
    ("satori-libvirt", 3),
    ("satori-report", 3),
    ("satori-virtio", 3),
    ("satori-xenback", 3),
    ("satori-vmbus-devices", 3),
    ("satori-chipset", 4),
    ("satori-arm-board", 4),
    ("satori-arm-compare", 4),
    ("satori-files", 4),
    ("satori-net", 4),
    ("satori-vsock", 4),
    ("satori-profile", 4),
    ("satori-trace", 4),
    ("satori-exits", 4),
    ("satori-compare", 4),
    ("satori-bench", 4),
    ("satori-machine", 5),
    ("satori-attack", 6),
    ("satori", 6),
];

/// Dependencies within a floor, with the reason for each. One that is no longer used is an error
/// too, so that this list cannot grow stale.
const SIDEWAYS: &[(&str, &str, &str)] = &[
    ("satori-engine", "satori-cpuid", "a vCPU is made with the features that its guest is offered"),
    (
        "satori-engine",
        "satori-seam",
        "an instruction set's side of the seam is an implementation of its family",
    ),
    ("satori-arm-engine", "satori-seam", "the same for AArch64"),
    ("satori-cpuid", "satori-svm", "leaf 8000000A tells what of SVM there is"),
    (
        "satori-cpuid",
        "satori-vmx",
        "the MSR table has the capability registers, which follow from the controls",
    ),
    ("satori-jit", "satori-soft", "the translator executes a processor's blocks in a better way"),
    ("satori-arm-jit", "satori-arm-soft", "the same for AArch64"),
    ("satori-state", "satori-save", "the register file is saved as it is, its wide numbers as everybody's"),
    ("satori-hyperv", "satori-cpuid", "the interface contributes a layer to the one CPUID table"),
    ("satori-pv", "satori-cpuid", "a personality is leaves of the one CPUID table"),
    ("satori-hyperv", "satori-pv", "a mistake in an option is told alike, whichever interface it chooses"),
    ("satori-kvm", "satori-pv", "clock areas, leaves and counts of uses are any interface's"),
    ("satori-xen", "satori-pv", "clock areas, leaves and counts of uses are any interface's"),
    ("satori-xen", "satori-cpuid", "the interface contributes a layer to the one CPUID table"),
    ("satori-kvm", "satori-cpuid", "the interface contributes a layer to the one CPUID table"),
];

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn metadata(more: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked"])
        .args(more)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn items<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

#[test]
fn dependencies_between_crates_point_down() {
    let floors: BTreeMap<_, _> = FLOORS.iter().copied().collect();
    let metadata = metadata(&["--no-deps"]);
    let (mut wrong, mut sideways, mut seen) = (Vec::new(), Vec::new(), 0);
    for package in items(&metadata, "packages") {
        let from = text(package, "name");
        let Some(&high) = floors.get(from) else {
            wrong.push(format!("{from} stands on no floor: add it to FLOORS"));
            continue;
        };
        seen += 1;
        for dependency in items(package, "dependencies").filter(|d| d["path"].is_string()) {
            let to = text(dependency, "name");
            match floors.get(to) {
                Some(&low) if low < high => {}
                Some(&low) if low == high && SIDEWAYS.iter().any(|&(a, b, _)| (a, b) == (from, to)) => {
                    sideways.push((from, to));
                }
                Some(low) => wrong.push(format!("{from} (F{high}) depends on {to} (F{low})")),
                None => wrong.push(format!("{from} depends on {to}, which stands on no floor")),
            }
        }
    }
    for &(from, to, _) in SIDEWAYS {
        if !sideways.contains(&(from, to)) {
            wrong.push(format!("{from} no longer depends on {to}: take it out of SIDEWAYS"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(seen, FLOORS.len(), "a crate of FLOORS is not in the workspace");
}

#[test]
fn other_crates_have_a_permitted_licence_and_source() {
    let policy = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let policy: toml::Table = policy.parse().expect("deny.toml is TOML");
    let allowed: Vec<_> =
        policy["licenses"]["allow"].as_array().unwrap().iter().flat_map(|l| l.as_str()).collect();
    let metadata = metadata(&[]);
    let mut wrong = Vec::new();
    for package in items(&metadata, "packages").filter(|p| p["source"].is_string()) {
        let (name, licence) = (text(package, "name"), text(package, "license"));
        if !permitted(licence, &allowed) {
            wrong.push(format!("{name}: licence '{licence}' is not among those of deny.toml"));
        }
        if !text(package, "source").starts_with("registry+") {
            wrong.push(format!("{name}: comes from {}, not from the registry", text(package, "source")));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Whether an SPDX expression can be met by `allowed` ones. Old manifests write `/` for OR.
fn permitted(expression: &str, allowed: &[&str]) -> bool {
    let plain = expression.replace('/', " OR ").replace(['(', ')'], " ");
    // With the parentheses gone "(A OR B) AND C" reads as A OR (B AND C): asking that every
    // AND-ed group has a permitted alternative is right for both ways crates write it.
    plain.split(" AND ").all(|group| group.split(" OR ").any(|one| allowed.contains(&one.trim())))
}

/// Crates of others that are there in two versions, and who keeps the older one. One that is no more is an error too.
const TWICE: &[(&str, &str)] = &[
    ("bitflags", "smoltcp; kvm-bindings, by vmm-sys-util"),
    ("miniz_oxide", "imago"),
    ("syn", "crossterm, imago and ratatui, by derives"),
];

#[test]
fn other_crates_are_there_in_one_version() {
    let metadata = metadata(&[]);
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in items(&metadata, "packages").filter(|package| package["source"].is_string()) {
        versions.entry(text(package, "name")).or_default().insert(text(package, "version"));
    }
    let twice: Vec<_> = versions.iter().filter(|(_, found)| found.len() > 1).map(|(name, _)| *name).collect();
    let known: Vec<_> = TWICE.iter().map(|(name, _)| *name).collect();
    assert_eq!(twice, known, "{versions:?}");
}

#[test]
fn every_dependency_on_others_says_why() {
    let mut wrong = Vec::new();
    let members = metadata(&["--no-deps"]);
    let members = items(&members, "packages").map(|member| text(member, "manifest_path").into());
    let manifests: Vec<PathBuf> = [root().join("Cargo.toml")].into_iter().chain(members).collect();
    for manifest in manifests {
        let (mut inside, mut reason) = (false, false);
        for line in std::fs::read_to_string(&manifest).unwrap().lines() {
            if line.starts_with('[') {
                inside = line.contains("dependencies]");
            } else if line.starts_with('#') {
                reason = true;
                continue;
            } else if inside
                && line.contains('=')
                && !reason
                && !line.contains(".workspace = true")
                && !line.contains("path =")
            {
                wrong.push(format!("{}: no comment says why: {line}", manifest.display()));
            }
            // One comment may stand over several lines of a family.
            reason &= !line.is_empty() && !line.starts_with('[');
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The words of a file's code, without comments and in small letters.
fn words(file: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).unwrap().to_lowercase();
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let separates = |letter: char| !letter.is_alphanumeric() && letter != '_';
    code.flat_map(|line| line.split(separates)).filter(|word| !word.is_empty()).map(str::to_string).collect()
}

/// The Rust files of a folder and those below it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = Vec::new();
    for path in entries.map(|entry| entry.unwrap().path()) {
        match path.is_dir() {
            true => found.extend(sources(&path)),
            false => found.extend(path.extension().is_some_and(|end| end == "rs").then_some(path)),
        }
    }
    found.sort();
    found
}

fn folder(package: &Value) -> &Path {
    Path::new(text(package, "manifest_path")).parent().expect("a manifest is in a folder")
}

#[test]
fn every_dependency_is_used() {
    let mut wrong = Vec::new();
    let metadata = metadata(&["--no-deps"]);
    for package in items(&metadata, "packages") {
        let words_of = |parts: &[&str]| -> BTreeSet<String> {
            let files = parts.iter().flat_map(|part| match part.ends_with(".rs") {
                true => vec![folder(package).join(part)],
                false => sources(&folder(package).join(part)),
            });
            files.filter(|file| file.exists()).flat_map(|file| words(&file)).collect()
        };
        let (own, tests) =
            (words_of(&["src", "build.rs", "examples"]), words_of(&["src", "tests", "examples"]));
        for dependency in items(package, "dependencies") {
            let name = dependency["rename"].as_str().unwrap_or(text(dependency, "name")).replace('-', "_");
            let used = if dependency["kind"] == "dev" { tests.contains(&name) } else { own.contains(&name) };
            if !used {
                wrong.push(format!(
                    "{} does not use {name}: take it out of its Cargo.toml",
                    text(package, "name")
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    let mut wrong = Vec::new();
    let metadata = metadata(&["--no-deps"]);
    for package in items(&metadata, "packages") {
        let library = folder(package).join("src/lib.rs");
        let has = sources(&folder(package).join("src")).iter().any(|file| words(file).contains("unsafe"));
        let forbids =
            std::fs::read_to_string(&library).is_ok_and(|text| text.contains("#![forbid(unsafe_code)]"));
        if !has && !forbids {
            wrong.push(format!("{}: write #![forbid(unsafe_code)]", library.display()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Crates that are any machine's, whatever its instruction set.
const NEUTRAL: &[&str] = &[
    "satori-memory",
    "satori-bus",
    "satori-seam",
    "satori-sandbox",
    "satori-code",
    "satori-save",
    "satori-symbols",
    "satori-lock",
    "satori-results",
    "satori-image",
    "satori-cable",
    "satori-pci",
    "satori-virtio",
    "satori-files",
    "satori-net",
    "satori-vsock",
    "satori-profile",
    "satori-trace",
];

/// Files of the machine that run vCPUs of whatever instruction set.
const LOOPS: &[&str] = &[
    "clock.rs",
    "control.rs",
    "cores.rs",
    "real.rs",
    "runs.rs",
    "sampler.rs",
    "shared.rs",
    "virtual_time.rs",
];

/// What of x86 they do not name.
const X86: &[&str] = &[
    "a20",
    "apic",
    "apic_id",
    "cr0",
    "deliverymode",
    "0xfee",
    "cr3",
    "cr4",
    "cpuid",
    "efer",
    "ept",
    "lapic",
    "msr",
    "rflags",
    "rip",
    "satori_cpuid",
    "satori_engine",
    "satori_exits",
    "satori_lapic",
    "satori_rules",
    "satori_state",
    "tsc",
    "tsc_hz",
    "vmx",
    "x86",
];

/// What they still name, file by file, and why. What is gone has to leave the list.
const STILL: &[(&str, &str, &str)] = &[
    (
        "profile/src/json.rs",
        "rip",
        "the report's format calls the guest's address so, whichever the processor is",
    ),
    ("profile/src/live.rs", "rip", "the live format does too"),
    (
        "trace/src/filter.rs",
        "msr",
        "events=msr is the user's word for registers that the machine answers for",
    ),
    ("trace/src/vcpu.rs", "msr", "the same as a category of events in the file"),
    ("trace/src/tests.rs", "msr", "the same"),
];

#[test]
fn neutral_crates_name_no_x86() {
    let (mut wrong, mut still) = (Vec::new(), BTreeSet::new());
    let metadata = metadata(&["--no-deps"]);
    let neutral = items(&metadata, "packages").filter(|package| NEUTRAL.contains(&text(package, "name")));
    let loops = LOOPS.iter().map(|name| root().join("crates/machine/src").join(name));
    for file in neutral.flat_map(|package| sources(&folder(package).join("src"))).chain(loops) {
        let found = words(&file);
        for word in X86.iter().filter(|word| found.contains(**word)) {
            match STILL.iter().position(|(path, known, _)| file.ends_with(path) && known == word) {
                Some(known) => _ = still.insert(known),
                None => wrong.push(format!("{}: {word} is x86's", file.display())),
            }
        }
    }
    for (at, (path, word, _)) in STILL.iter().enumerate() {
        if !still.contains(&at) {
            wrong.push(format!("{path} no longer names {word}: take it out of STILL"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The Rust files of this repository.
fn everything() -> impl Iterator<Item = PathBuf> {
    let files = ["crates", "guests", "fuzz"].iter().flat_map(|part| sources(&root().join(part)));
    files.filter(|file| !file.components().any(|part| part.as_os_str() == "target"))
}

#[test]
fn modules_with_parts_stand_beside_their_folder() {
    // Cargo takes each file of tests/ for a test, and only there what several share has to be a mod.rs.
    let wrong: Vec<_> = everything()
        .filter(|file| file.ends_with("mod.rs") && !file.ends_with("tests/common/mod.rs"))
        .map(|file| format!("{}: name it as its folder, and put it beside that", file.display()))
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn modules_for_tests_say_so() {
    let mut wrong = Vec::new();
    for file in everything().filter(|file| !file.ends_with("testing.rs")) {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]") {
            let name = pair[1].strip_prefix("pub ").unwrap_or(pair[1]).strip_prefix("mod ");
            let Some(name) = name.and_then(|rest| rest.strip_suffix([';', '{'])) else { continue };
            if !matches!(name.trim(), "tests" | "testing") && !name.trim().ends_with("_tests") {
                wrong.push(format!("{}: mod {name} is for tests: let its name end so", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn one_place_decides_what_a_panic_does_to_a_lock() {
    let mut wrong = Vec::new();
    let here = |file: &PathBuf| file.starts_with(root().join("crates/lock")) || file.ends_with(file!());
    for file in everything().filter(|file| !here(file)) {
        if words(&file).iter().any(|word| matches!(word.as_str(), "poisonerror" | "poisoned")) {
            wrong.push(format!("{}: take the lock with satori_lock", file.display()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Files beyond [`FILE_LINES`], and why each is one. One that has become shorter has to leave the list.
const LONG_FILES: &[(&str, &str)] = &[];

/// Functions beyond [`FUNCTION_LINES`], by file and name, and why each is one.
const LONG_FUNCTIONS: &[(&str, &str, &str)] = &[
    ("report/tests/advice.rs", "each_rule_fires_and_does_not", "a table"),
    ("features/main.rs", "instructions", "a table"),
    ("arm/soft/src/exec/integer.rs", "handler", "one match over instructions, a line each"),
    ("jit/src/warm_tests.rs", "text", "a text"),
];

const FILE_LINES: usize = 650;
const FUNCTION_LINES: usize = 100;

/// `text` with blanks for comments, strings and characters, so that a brace is a brace.
fn bare(text: &str) -> String {
    let bytes = text.as_bytes();
    let at = |from: usize, what: &str| {
        text[from..].find(what).map_or(bytes.len(), |found| from + found + what.len())
    };
    let (mut out, mut i) = (String::new(), 0);
    while i < bytes.len() {
        let word = i > 0 && (bytes[i - 1].is_ascii_alphanumeric() || bytes[i - 1] == b'_');
        let hashes = bytes[i + 1..].iter().take_while(|byte| **byte == b'#').count();
        let end = match bytes[i] {
            b'/' if text[i..].starts_with("//") => at(i, "\n") - 1,
            b'/' if text[i..].starts_with("/*") => at(i, "*/"),
            b'r' if !word && bytes.get(i + 1 + hashes) == Some(&b'"') => {
                at(i + hashes + 2, &format!("\"{}", "#".repeat(hashes)))
            }
            b'"' => {
                let mut end = i + 1;
                while bytes.get(end).is_some_and(|byte| *byte != b'"') {
                    end += if bytes[end] == b'\\' { 2 } else { 1 };
                }
                end + 1
            }
            b'\'' if bytes.get(i + 1) == Some(&b'\\') => at(i + 3, "'"),
            // A lifetime has no second one.
            b'\'' => match text[i + 1..].char_indices().nth(1) {
                Some((length, '\'')) => i + length + 2,
                _ => i + 1,
            },
            _ => {
                out.push(char::from(bytes[i]));
                i += 1;
                continue;
            }
        };
        let end = end.min(bytes.len());
        out.extend(text[i..end].matches('\n'));
        i = end;
    }
    out
}

/// The functions of a file, and how many lines each has.
fn functions(text: &str) -> Vec<(String, usize)> {
    let code = bare(text);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if code[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_') {
            continue;
        }
        let rest = &code[at + 3..];
        let name: String =
            rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        let (mut depth, mut begun, mut lines) = (0_i32, false, 1);
        for letter in rest.chars() {
            match letter {
                '\n' => lines += 1,
                '(' | '[' if !begun => depth += 1,
                ')' | ']' if !begun => depth -= 1,
                ';' if !begun && depth == 0 => break,
                '{' if begun || depth == 0 => {
                    begun = true;
                    depth += 1;
                }
                '}' if begun => {
                    depth -= 1;
                    if depth == 0 {
                        found.push((name, lines));
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn files_and_functions_are_short_or_say_why_not() {
    let (mut wrong, mut files, mut long) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for file in everything() {
        let text = std::fs::read_to_string(&file).unwrap();
        let shown = file.display();
        if text.lines().count() > FILE_LINES {
            match LONG_FILES.iter().position(|(known, _)| file.ends_with(known)) {
                Some(known) => _ = files.insert(known),
                None => wrong.push(format!("{shown} has over {FILE_LINES} lines: give it rooms")),
            }
        }
        for (name, lines) in functions(&text).into_iter().filter(|(_, lines)| *lines > FUNCTION_LINES) {
            match LONG_FUNCTIONS.iter().position(|(known, its, _)| file.ends_with(known) && *its == name) {
                Some(known) => _ = long.insert(known),
                None => wrong.push(format!("{shown}: {name} has {lines} lines: divide it")),
            }
        }
    }
    let gone = LONG_FILES.iter().enumerate().filter(|(at, _)| !files.contains(at));
    wrong.extend(gone.map(|(_, (file, _))| format!("{file} is short now: take it out of LONG_FILES")));
    let gone = LONG_FUNCTIONS.iter().enumerate().filter(|(at, _)| !long.contains(at));
    wrong.extend(gone.map(|(_, (_, name, _))| format!("{name} is short now: take it out of LONG_FUNCTIONS")));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn lines_of_functions_are_counted_between_their_braces() {
    let text = "fn a<'a>(x: &'a str) -> [u8; 2] {\n  // }\n  let b = '}'; let c = \"}\\\"\";\n  let d = r#\"}\"#;\n}\n\
                trait T {\n  fn none(&self);\n  fn one(&self) { match x { _ => {} } }\n}\n";
    let counted: Vec<_> =
        functions(text).into_iter().map(|(name, lines)| format!("{name} {lines}")).collect();
    assert_eq!(counted, ["a 5", "one 1"]);
}

#[test]
fn licences_are_read_as_spdx() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
    assert!(permitted("MIT/Apache-2.0", &allowed));
    assert!(permitted("(MIT OR GPL-3.0) AND Unicode-3.0", &allowed));
    assert!(!permitted("MIT AND GPL-3.0", &allowed));
    assert!(!permitted("", &allowed));
}
