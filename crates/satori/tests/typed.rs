//! A guest on a terminal: its size, and SysRq.

mod common;

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::Command;

use common::{SATORI, fetch, read_until, satori, scratch};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A terminal of 33 rows and 111 columns: our side, and the one for a program.
fn terminal() -> (File, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let theirs = rustix::fs::open(ptsname(&ours, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
    let size = Winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).unwrap();
    (ours.into(), theirs)
}

#[test]
fn linux_hears_of_the_terminals_size_and_of_sysrq() {
    let kernel = fetch(&["kernel"]);
    let initrd = scratch("shell.cpio");
    let packed = satori(&["initrd", "--busybox", "-o", initrd.to_str().unwrap()]);
    assert_eq!(packed.status, 0, "{packed:?}");
    let (mut ours, theirs) = terminal();
    let mut guest = Command::new(SATORI)
        .args(["run", "--kernel", &kernel, "--append", "quiet", "--timeout", "120s", "--report", "off"])
        .arg("--initrd")
        .arg(&initrd)
        .stdin(theirs.try_clone().unwrap())
        .stdout(theirs.try_clone().unwrap())
        .stderr(theirs)
        .spawn()
        .unwrap();
    read_until(&mut ours, "# ");
    ours.write_all(b"stty size\n").unwrap();
    read_until(&mut ours, "33 111");
    // Off the console's loglevel, help is not shown.
    ours.write_all(b"dmesg -n 8; echo 1 >/proc/sys/kernel/sysrq; echo rea''dy\n").unwrap();
    read_until(&mut ours, "ready");
    ours.write_all(b"\x01bh").unwrap();
    read_until(&mut ours, "sysrq: HELP");
    ours.write_all(b"\x01bo").unwrap();
    assert_eq!(guest.wait().unwrap().code(), Some(0), "SysRq o powers off");
}
