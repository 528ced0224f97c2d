//! Satori called as QEMU, with the words that tools write.

mod common;

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{Ended, SATORI, fetch, satori, scratch};

/// A folder with Satori under QEMU's name.
fn programs(name: &str) -> PathBuf {
    let folder = scratch(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    symlink(SATORI, folder.join("qemu-system-x86_64")).unwrap();
    folder
}

fn qemu(name: &str, words: &[&str]) -> Ended {
    let mut command = Command::new(programs(name).join("qemu-system-x86_64"));
    command.args(words).stdin(Stdio::null()).output().expect("it runs").into()
}

/// An initramfs whose init is this script of busybox.
fn initrd(name: &str, script: &str) -> String {
    let file = scratch(name).to_str().unwrap().to_owned();
    let made = satori(&["initrd", "--busybox", "--run", script, "-o", &file]);
    assert_eq!(made.status, 0, "{}", made.messages);
    file
}

#[test]
fn a_guest_runs_by_the_words_of_kunit_py() {
    let (kernel, file) = (
        fetch(&["kernel", "6.12"]),
        initrd("qemu.cpio", "cat /proc/cmdline; nproc; dmesg | grep -c Hyper-V; reboot -f"),
    );
    // With the empty word that it leaves, and those that say nothing here.
    let words = [
        "-nodefaults",
        "-m",
        "1024",
        "-kernel",
        &kernel,
        "-initrd",
        &file,
        "-append",
        "quiet console=ttyS0",
        "-no-reboot",
        "-nographic",
        "-accel",
        "kvm",
        "-accel",
        "tcg",
        "-serial",
        "stdio",
        "",
        "-smp",
        "2",
        "-cpu",
        "host",
    ];
    let ended = qemu("kunit-words", &words);
    assert_eq!(ended.status, 0, "{ended:?}");
    let lines: Vec<_> = ended.console.lines().map(str::trim).collect();
    assert!(
        lines.contains(&"quiet console=ttyS0") && lines.contains(&"2") && lines.contains(&"0"),
        "{ended:?}"
    );
}

#[test]
fn a_console_goes_where_its_words_say() {
    let (kernel, file) =
        (fetch(&["kernel", "6.12"]), initrd("qemu-file.cpio", "echo here it is; satori-exit 3"));
    let console = scratch("qemu-console");
    let end = format!("file,id=c,path={}", console.display());
    let words = [
        "qemu",
        "-kernel",
        &kernel,
        "-initrd",
        &file,
        "-append",
        "console=ttyS0",
        "-display",
        "none",
        "-chardev",
        &end,
        "-serial",
        "chardev:c",
        "-device",
        "isa-debug-exit,iobase=0xf4,iosize=0x04",
        "-no-reboot",
    ];
    let ended = satori(&words);
    assert_eq!((ended.status, ended.console.as_str()), (7, ""), "{ended:?}");
    assert!(std::fs::read_to_string(console).unwrap().contains("here it is"));
}

#[test]
fn what_tools_ask_first_is_answered() {
    let version = qemu("version", &["--version"]);
    let word = version.console.split_whitespace().nth(3).unwrap().to_owned();
    assert!(version.console.starts_with("QEMU emulator version ") && word.starts_with("7."), "{version:?}");
    assert!(qemu("help", &["--help"]).console.contains("QEMU"));
    assert!(satori(&["qemu", "--help"]).console.contains("-kernel FILE"));
    let devices = qemu("devices", &["-device", "?"]);
    assert!(devices.console.contains("\"pc-testdev\"") && devices.status == 0, "{devices:?}");
    assert!(qemu("cpus", &["-cpu", "help"]).console.contains("Haswell"));
}

#[test]
fn what_is_not_there_is_refused_by_name_with_qemus_status() {
    for (words, said) in [
        (&["-kernel", "/k", "-nographic", "-device", "vfio-pci,host=1"][..], "there is no 'vfio-pci' here"),
        (&["-kernel", "/nonexistent", "-nographic"], "cannot read --kernel /nonexistent"),
        (&["-kernel", "/k", "-nographic", "-smp", "0"], "satori run --help"),
        (&[], "name a kernel"),
    ] {
        let ended = qemu("refused-words", words);
        assert_eq!((ended.status, ended.console.as_str()), (1, ""), "{words:?}: {ended:?}");
        assert!(ended.messages.contains(said) && ended.messages.lines().count() == 1, "{words:?}: {ended:?}");
    }
}
