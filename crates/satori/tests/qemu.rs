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

/// A tool that steers a guest by QMP: greeting, negotiation, state, stop and go on, the power button, the end.
#[test]
fn a_tool_steers_a_guest_by_qmp() {
    use serde_json::{Value, json};
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixStream;

    let kernel = fetch(&["kernel", "6.12"]);
    let file = initrd("qmp.cpio", "n=0; while :; do n=$((n + 1)); echo line $n; sleep 0.05; done");
    let path = scratch("qmp.sock");
    let qmp = format!("unix:{},server=on,wait=off", path.display());
    let mut command = Command::new(programs("qmp-words").join("qemu-system-x86_64"));
    command.args(["-kernel", &kernel, "-initrd", &file, "-append", "quiet console=ttyS0"]);
    command.args(["-nographic", "-serial", "stdio", "-qmp", &qmp]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut console = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("line 2") {
        line.clear();
        assert!(console.read_line(&mut line).unwrap() > 0, "the guest ended");
    }
    let mut socket = UnixStream::connect(&path).unwrap();
    let mut answers = BufReader::new(socket.try_clone().unwrap());
    let mut next = || -> Value {
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|why| panic!("{line}: {why}"))
    };
    assert!(next()["QMP"]["version"]["qemu"]["major"].is_u64());
    // Several at once, without anything between them.
    socket
        .write_all(
            br#"{"execute":"query-status"}{"execute":"qmp_capabilities","id":7}{"execute":"query-status"}"#,
        )
        .unwrap();
    assert_eq!(next()["error"]["class"], "CommandNotFound", "before the negotiation");
    assert_eq!(next(), json!({ "return": {}, "id": 7 }));
    assert_eq!(next()["return"]["status"], "running");
    let ask = |socket: &mut UnixStream, command: &str| {
        writeln!(socket, "{{\"execute\": \"{command}\"}}").unwrap();
    };
    ask(&mut socket, "no-such-command");
    assert_eq!(next()["error"]["class"], "CommandNotFound");
    ask(&mut socket, "stop");
    assert_eq!((next()["event"].as_str(), next()), (Some("STOP"), json!({ "return": {} })));
    ask(&mut socket, "query-status");
    assert_eq!(next()["return"], json!({ "status": "paused", "running": false, "singlestep": false }));
    ask(&mut socket, "cont");
    assert_eq!((next()["event"].as_str(), next()), (Some("RESUME"), json!({ "return": {} })));
    // It goes on.
    for _ in 0..3 {
        line.clear();
        assert!(console.read_line(&mut line).unwrap() > 0, "the guest ended");
    }
    ask(&mut socket, "system_powerdown");
    assert_eq!((next()["event"].as_str(), next()), (Some("POWERDOWN"), json!({ "return": {} })));
    ask(&mut socket, "quit");
    assert_eq!(next(), json!({ "return": {} }));
    let end = next();
    assert_eq!((end["event"].as_str(), &end["data"]["reason"]), (Some("SHUTDOWN"), &json!("host-qmp-quit")));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// vmtest's guest agent: a port of the guest's at a socket, whose client comes and goes, and has all that was written before the end.
#[test]
fn a_port_of_the_guest_is_at_a_socket() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::net::UnixStream;

    let script = "mkdir -p /sys; mount -t sysfs sys /sys
        p=/dev/$(basename $(dirname $(grep -l agent.0 /sys/class/virtio-ports/*/name)))
        exec 3<>$p; echo ready
        while read -r line <&3; do
            case $line in end) seq 1 50000 >&3; poweroff -f;; *) echo \"heard $line\" >&3;; esac
        done";
    let (kernel, file) = (fetch(&["kernel", "6.12"]), initrd("port.cpio", script));
    let path = scratch("port.sock");
    let socket = format!("socket,path={},server=on,wait=off,id=qga0", path.display());
    let mut command = Command::new(programs("port-words").join("qemu-system-x86_64"));
    command.args(["-kernel", &kernel, "-initrd", &file, "-append", "quiet console=ttyS0", "-nographic"]);
    command.args(["-chardev", &socket, "-device", "virtio-serial"]);
    command.args(["-device", "virtserialport,chardev=qga0,name=org.qemu.guest_agent.0"]);
    let mut guest =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("Satori under QEMU's name");
    let mut console = BufReader::new(guest.stdout.take().unwrap()).lines();
    assert!(console.any(|line| line.unwrap().trim() == "ready"));
    for word in ["one", "two"] {
        let mut client = UnixStream::connect(&path).unwrap();
        writeln!(client, "{word}").unwrap();
        let mut line = String::new();
        BufReader::new(&client).read_line(&mut line).unwrap();
        assert_eq!(line, format!("heard {word}\n"));
    }
    let mut client = UnixStream::connect(&path).unwrap();
    writeln!(client, "end").unwrap();
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    assert!(all.ends_with("\n49999\n50000\n") && all.lines().count() == 50_000, "{} bytes", all.len());
    assert!(guest.wait().unwrap().success());
}
