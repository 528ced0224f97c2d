//! What README and the help texts print to be typed, typed as it stands.

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Parser;
use common::{Ended, SATORI, fetch, satori, scratch};
use satori::cli::Cli;
use satori::initramfs;

/// What takes minutes, has a test of its own or is of others: why it is not run here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("./tools/demo", "the gate boots what it boots"),
    ("./tools/test", "this is it"),
    ("cargo install", "it builds once more what the gate has built"),
    ("satori bench", "minutes; tests/bench.rs runs rows, and here the flags are looked at"),
    ("perf kvm stat", "needs KVM"),
];

/// The commands of `text`'s blocks for the shell, or of the examples of a help text.
fn commands(text: &str) -> Vec<String> {
    let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let examples = text.split("Examples:\n").nth(1).into_iter();
    let lines = blocks.chain(examples).flat_map(str::lines).map(str::trim).filter(|line| !line.is_empty());
    lines.map(Into::into).collect()
}

/// What the examples' names stand for.
fn furnish(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).unwrap();
    symlink(SATORI, folder.join("satori")).unwrap();
    symlink(fetch(&["kernel"]), folder.join("vmlinuz")).unwrap();
    let busybox = std::fs::read(fetch(&["busybox"])).unwrap();
    let archive = initramfs::build(&busybox, "#!/bin/busybox sh\n/bin/busybox poweroff -f\n", &[]);
    for name in ["initrd.img", "init.cpio"] {
        std::fs::write(folder.join(name), &archive).unwrap();
    }
    std::fs::write(folder.join("selftest.sh"), "echo KTAP version 1; echo 1..1; echo ok 1 it").unwrap();
    std::fs::write(folder.join("tests.toml"), "[[test]]\nname = 'it'\ncommand = 'true'\n").unwrap();
    let xml = "<domain><memory unit='MiB'>256</memory><os><kernel>vmlinuz</kernel><initrd>initrd.img</initrd>\
        <cmdline>console=ttyS0 quiet</cmdline></os></domain>";
    for name in ["guest.xml", "domain.xml"] {
        std::fs::write(folder.join(name), xml).unwrap();
    }
}

#[test]
fn every_printed_command_works_as_it_stands() {
    let folder = scratch("examples").with_file_name("examples-folder");
    furnish(&folder);
    let helps = ["run", "advise", "initrd"].map(|command| satori(&[command, "--help"]).console);
    let mut all = commands(include_str!("../../../README.md"));
    let of_readme = all.len();
    all.extend(helps.iter().flat_map(|help| commands(help)));
    let mut seen = BTreeSet::new();
    all.retain(|command| seen.insert(command.clone()));
    assert!(of_readme >= 10 && all.len() > of_readme, "{all:#?}");
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    for command in all {
        // Commands in guests are those of tests/command.rs, with words behind them that explain.
        if command.contains(" -- ") {
            continue;
        }
        if ELSEWHERE.iter().any(|(begin, _)| command.starts_with(begin)) {
            if command.starts_with("satori ") {
                let words = command.split_whitespace();
                assert!(Cli::try_parse_from(words).is_ok(), "{command}");
            }
            continue;
        }
        let mut run = Command::new("sh");
        run.args(["-c", &command]).current_dir(&folder).env("PATH", &path).stdin(Stdio::null());
        let ended: Ended = run.output().unwrap().into();
        assert_eq!(ended.status, 0, "{command}: {ended:?}");
    }
}
