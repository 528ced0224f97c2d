//! `satori top`: what it shows of a guest that runs, as text and on a terminal.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Ended, SATORI, file, pvh, satori, scratch};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

/// `xor %eax, %eax; cpuid; jmp` to the CPUID, which is at [`pvh::BASE`] + 2.
const CPUID: &[u8] = &[0x31, 0xc0, 0x0f, 0xa2, 0xeb, 0xfa];

/// A guest that executes CPUID for ever, and the socket on which it is watched.
struct Guest(Child, String);

impl Guest {
    fn start(name: &str) -> Self {
        let kernel = file(&format!("{name}.elf"), &pvh::kernel(CPUID));
        let socket = scratch(&format!("{name}.sock")).display().to_string();
        let _ = std::fs::remove_file(&socket);
        let child = Command::new(SATORI)
            .args(["run", "--kernel", &kernel, "-m", "128M", "--cpus", "2", "--report", "off"])
            .args(["--stats-socket", &socket, "--timeout", "60s"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("satori runs");
        let begin = Instant::now();
        // It is there a moment before it can be reached.
        while UnixStream::connect(&socket).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(30), "no socket");
            std::thread::sleep(Duration::from_millis(10));
        }
        Guest(child, socket)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_picture_shows_what_the_guest_does() {
    let mut guest = Guest::start("top");
    let ended = satori(&["top", "--once", "-d", "300ms", &guest.1]);
    assert_eq!(ended.status, 0, "{}", ended.messages);
    let row = |name: &str| {
        let line = ended.console.lines().find(|line| line.contains(name));
        line.unwrap_or_else(|| panic!("no {name}:\n{}", ended.console)).split_whitespace().collect::<Vec<_>>()
    };
    let exits = row(" CPUID");
    assert!(exits[0].parse::<f64>().unwrap() > 1000.0, "{}", ended.console);
    let hot = row("0x0000000000100002");
    assert_eq!(hot[2], "CPUID", "{}", ended.console);
    let vcpus: Vec<_> = ended.console.lines().filter(|line| line.ends_with(" CPUID")).collect();
    assert!(
        ended.console.contains("2 vCPUs") && vcpus.len() == 2,
        "the reason's row and vCPU 0's:\n{}",
        ended.console
    );

    let mut several = Command::new(SATORI)
        .args(["top", "--batch", "-d", "200ms", &guest.1])
        .stdout(Stdio::piped())
        .spawn()
        .expect("satori runs");
    common::read_until(several.stdout.as_mut().unwrap(), "satori top: guest time");
    guest.0.kill().unwrap();
    let ended: Ended = several.wait_with_output().unwrap().into();
    assert_eq!(ended.status, 0, "the guest's end is the end: {}", ended.messages);
}

#[test]
fn a_terminal_is_drawn_on_and_given_back() {
    let guest = Guest::start("screen");
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    let theirs = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
    let size = rustix::termios::Winsize { ws_row: 40, ws_col: 140, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&theirs, size).unwrap();
    let before = rustix::termios::tcgetattr(&theirs).unwrap().local_modes;
    let fd = || Stdio::from(theirs.try_clone().unwrap());
    let mut top = Command::new(SATORI)
        .args(["top", "-d", "100ms", &guest.1])
        .stdin(fd())
        .stdout(fd())
        .stderr(fd())
        .spawn()
        .expect("satori runs");
    let mut ours: std::fs::File = ours.into();
    common::read_until(&mut ours, "0x0000000000100002");
    ours.write_all(b"q").unwrap();
    // Read on, so that it is not stopped by a full terminal.
    let mut reader = ours.try_clone().unwrap();
    let rest = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(1..) = reader.read(&mut buffer) {}
    });
    assert!(top.wait().unwrap().success());
    assert_eq!(rustix::termios::tcgetattr(&theirs).unwrap().local_modes, before, "the terminal is as it was");
    drop((theirs, ours));
    rest.join().unwrap();
}

#[test]
fn a_guest_is_started_and_ended_with_the_last_picture() {
    let kernel = file("own.elf", &pvh::kernel(CPUID));
    let own = |more: &[&str]| {
        let words = ["top", "--once", "-d", "200ms", "--", "run", "--kernel", &kernel, "-m", "128M"];
        satori(&[&words[..], more].concat())
    };
    let ended = own(&[]);
    assert_eq!(ended.status, 0, "{}", ended.messages);
    assert!(ended.console.contains(" CPUID"), "{}", ended.console);
    assert!(ended.messages.contains("ended by the user"), "{}", ended.messages);
    assert!(ended.messages.contains("Total Samples:"), "its report: {}", ended.messages);
    for (more, told) in [
        (&["--memory", "1K"][..], "the guest did not start: "),
        (&["--stats-socket", "/nowhere/socket"], "--stats-socket is chosen here"),
    ] {
        let ended = own(more);
        assert!(ended.status == 2 && ended.messages.contains(told), "{}", ended.messages);
    }
    for words in
        [&["top", "--once", "--", "true"][..], &["top", "--once"], &["top", "--once", "a", "--", "run"]]
    {
        assert_eq!(satori(words).status, 2, "{words:?}");
    }
}

#[test]
fn the_end_of_a_guest_that_was_started_is_passed_on() {
    let kernel = file("own-end.elf", &pvh::debug_exit(3));
    let ended = satori(&["top", "--batch", "--", "run", "--kernel", &kernel, "-m", "128M", "--cpus", "1"]);
    assert_eq!(ended.status, 7, "{}", ended.messages);
    assert!(ended.messages.contains("to its debug exit; exit status 7"), "{}", ended.messages);
}

#[test]
fn nothing_is_left_of_a_guest_whose_watcher_is_killed() {
    let kernel = file("orphan.elf", &pvh::kernel(CPUID));
    let folder = scratch("orphans");
    for (signal, status) in [(Signal::TERM, Some(130)), (Signal::KILL, None)] {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mark = format!("orphan-{}", signal.as_raw());
        let mut top = Command::new(SATORI)
            .args(["top", "--batch", "-d", "100ms", "--", "run", "--kernel", &kernel, "-m", "128M"])
            .args(["--timeout", "60s", "--append", &mark])
            .env("TMPDIR", &folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("satori runs");
        common::read_until(top.stdout.as_mut().unwrap(), "satori top: guest time");
        kill_process(Pid::from_child(&top), signal).unwrap();
        assert_eq!(top.wait().unwrap().code(), status, "{signal:?}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "{signal:?}: a folder is left");
        let begin = Instant::now();
        while runs(&mark) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{signal:?}: the guest runs on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whether a process has `word` on its command line.
fn runs(word: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes.into_iter().any(|process| {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|one| one == word.as_bytes())
    })
}

#[test]
fn what_is_no_guest_is_told() {
    let ended = satori(&["top", "--once", "/nowhere/guest.sock"]);
    assert_eq!(ended.status, 2);
    assert!(ended.messages.contains("cannot reach a guest at /nowhere/guest.sock"), "{}", ended.messages);

    let ended = satori(&["top", "/nowhere/guest.sock"]);
    assert!(ended.status == 2 && ended.messages.contains("--batch"), "{}", ended.messages);

    let path = scratch("foreign.sock").display().to_string();
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let foreign = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream.write_all(b"220 mail.example ESMTP\n").unwrap();
    });
    let ended = satori(&["top", "--once", &path]);
    foreign.join().unwrap();
    assert!(ended.status == 2 && ended.messages.contains("no Satori"), "{}", ended.messages);

    let kernel = file("busy.elf", &pvh::halt());
    let ended = satori(&["run", "--kernel", &kernel, "--stats-socket", "/nowhere/guest.sock"]);
    assert!(ended.status == 2 && ended.messages.contains("--stats-socket /nowhere"), "{}", ended.messages);
}
