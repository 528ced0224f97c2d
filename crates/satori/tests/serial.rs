//! Serial ports beyond the first: ttyS1 to ttyS3 in a stock kernel.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{SATORI, fetch, file, pvh, satori, scratch};

/// Says hello on two ports, and echoes a line of the third to the console.
const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s; PATH=/bin
mount -t devtmpfs devtmpfs /dev; mount -t proc proc /proc
echo hello on 1 >/dev/ttyS1
echo lost on 2 >/dev/ttyS2
stty -F /dev/ttyS3 raw -echo
exec 3<>/dev/ttyS3
echo ready on 3 >&3
head -n 1 <&3
grep -ci 'port:00000[23][ef]8' /proc/tty/driver/serial
poweroff -f
";

#[test]
fn a_guest_has_four_ports_of_which_one_is_a_socket() {
    let kernel = fetch(&["kernel"]);
    let busybox = std::fs::read(fetch(&["busybox"])).unwrap();
    let initrd = file("init.cpio", &satori::initramfs::build(&busybox, INIT, &[]));
    let (output, socket) = (file("ttyS1", b"what a former run left, which is longer"), scratch("ttyS3"));
    let socket_flag = format!("unix:{}", socket.display());
    let guest = Command::new(SATORI)
        .args(["run", "--kernel", &kernel, "--initrd", &initrd, "--append", "quiet", "--report", "off"])
        .args(["--serial", &output, "--serial", "none", "--serial", &socket_flag])
        .args(["--timeout", "120s", "--console-newlines", "lf", "--input", "none"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut peer = loop {
        match UnixStream::connect(&socket) {
            Ok(peer) => break peer,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert_eq!(common::read_until(&mut peer, "\n"), "ready on 3\n");
    // More than the FIFO holds.
    let line = "0123456789".repeat(20) + "\n";
    peer.write_all(line.as_bytes()).unwrap();
    let mut more = String::new();
    peer.read_to_string(&mut more).unwrap();
    let ended: common::Ended = guest.wait_with_output().unwrap().into();
    assert_eq!(ended.status, 0, "{ended:?}");
    assert_eq!(more, "", "the end of the guest is the connection's end");
    assert!(ended.console.contains(&line), "{ended:?}");
    assert!(ended.console.contains("\n4\n"), "four ports: {ended:?}");
    assert_eq!(std::fs::read_to_string(output).unwrap(), "hello on 1\r\n");
}

#[test]
fn mistakes_are_refused_and_leave_files_alone() {
    let kernel = file("off", &pvh::power_off("ran"));
    let kept = file("kept", b"kept");
    let new = scratch("new");
    let new = new.to_str().unwrap();
    let socket = format!("unix:{}", scratch("new-socket").display());
    for (words, told) in [
        (
            &["--kernel", "/etc/passwd", "--serial", &kept, "--serial", new, "--serial", &socket][..],
            "cannot boot",
        ),
        (&["--kernel", &kernel, "--serial", "/nowhere/x"], "--serial /nowhere/x"),
        (&["--kernel", &kernel, "--serial", &kernel], "would destroy"),
        (&["--kernel", &kernel, "--clock", "virtual", "--serial", &socket], "--clock virtual"),
        (&["--kernel", &kernel, "--serial=none", "--serial=none", "--serial=none", "--serial=none"], "four"),
    ] {
        let ended = satori(&[&["run"], words].concat());
        assert!(ended.status == 2 && ended.messages.contains(told), "{words:?} {ended:?}");
        assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
        assert!(!scratch("new").exists() && !scratch("new-socket").exists(), "{words:?}");
    }
}
