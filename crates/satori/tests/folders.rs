//! What programs rely on in a folder of the host's: the same program here and in a guest, line by line.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Ended, SATORI, fetch, scratch};

/// `guest/files.c`, built by the compiler that Rust links with, statically.
fn program() -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/guest/files.c");
    let program = scratch("files");
    let built = Command::new("cc").args(["-O1", "-w", "-static", "-o"]).arg(&program).arg(source).status();
    assert!(built.is_ok_and(|s| s.success()), "cc cannot build {source}: install gcc and libc6-dev");
    program
}

/// A folder of this test's, empty.
fn folder(name: &str) -> PathBuf {
    let path = scratch(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn ended(command: &mut Command, within: &Path) -> Ended {
    command.current_dir(within).stdin(Stdio::null()).output().expect("it runs").into()
}

/// Renames, links, files without names, locks, mappings, holes, attributes, modes, times, directories that change while they are read,
/// inotify: a guest's folder that is changed itself, and one that keeps its changes in memory, answer as the host's does.
#[test]
fn a_program_finds_in_a_guests_folder_what_it_finds_here() {
    let (program, kernel) = (program(), fetch(&["kernel", "6.12"]));
    let here = folder("here");
    let native = ended(&mut Command::new(&program), &here);
    assert_eq!((native.status, native.console.ends_with("== end\n")), (0, true), "{native:?}");
    let wanted: Vec<_> = native.console.lines().collect();
    for mode in [&["--rwdir", "."][..], &[]] {
        let there = folder("there");
        let mut command = Command::new(SATORI);
        command.args(["run", "--kernel", &kernel, "--timeout", "5m"]).args(mode).arg("--").arg(&program);
        let seen = ended(&mut command, &there);
        assert_eq!((seen.status, seen.messages.as_str()), (0, ""), "{mode:?}");
        // What the host's file system lacks, changes in memory may have.
        let excused = |line: &str| mode.is_empty() && line.ends_with("EOPNOTSUPP");
        let told: BTreeSet<_> = seen.console.lines().collect();
        let missing: Vec<_> = wanted.iter().filter(|line| !told.contains(*line) && !excused(line)).collect();
        assert!(missing.is_empty(), "{mode:?}: {missing:#?}\nof what came:\n{}", seen.console);
        let any = wanted.iter().any(|line| excused(line));
        assert!(any || seen.console.lines().eq(wanted.iter().copied()), "{mode:?}:\n{}", seen.console);
        assert_eq!(fs::read_dir(&there).unwrap().count() == 0, mode.is_empty());
    }
}

/// What is in memory needs an open file of the host's only where it is large: with 400 of them a guest makes, changes and reads 1,500.
#[test]
fn a_command_changes_more_files_than_its_server_may_have_open() {
    let (kernel, within) = (fetch(&["kernel", "6.12"]), folder("many"));
    let script =
        "i=0; while [ $i -lt 1500 ]; do echo $i > f$i; i=$((i + 1)); done; cat f* | sort -n | uniq | wc -l";
    let line = format!("ulimit -n 400; exec {SATORI} run --kernel {kernel} --timeout 5m -- sh -c '{script}'");
    let seen = ended(Command::new("bash").args(["-c", &line]), &within);
    assert_eq!((seen.console.as_str(), seen.messages.as_str(), seen.status), ("1500\n", "", 0));
}

#[test]
fn a_working_directory_that_is_no_more_is_refused() {
    let kernel = fetch(&["kernel", "6.12"]);
    let line = format!("mkdir gone; cd gone; rmdir ../gone; exec {SATORI} run --kernel {kernel} --rw -- pwd");
    let seen = ended(Command::new("bash").args(["-c", &line]), &folder("working"));
    assert_eq!((seen.console.as_str(), seen.status), ("", 2), "{seen:?}");
    assert!(seen.messages.contains("the working directory is no more"), "{seen:?}");
}
