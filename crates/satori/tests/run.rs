//! `satori run` with guests of a few bytes: exit statuses, streams, signals and the terminal.

mod common;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Ended, SATORI, file, pvh, read_until, satori, scratch};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

/// Runs the guest `kernel` with more `arguments`.
fn run(name: &str, kernel: &[u8], arguments: &[&str]) -> Ended {
    let kernel = file(name, kernel);
    let timeout: &[&str] = if arguments.contains(&"--timeout") { &[] } else { &["--timeout", "60s"] };
    satori(&[&["run", "--kernel", &kernel, "-m", "128M"], timeout, arguments].concat())
}

#[test]
fn debug_exit_gives_the_odd_statuses() {
    for (value, status) in [(0, 1), (1, 3), (0x10, 33), (0x7f, 255), (0xff, 255)] {
        let ended = run(&format!("debug-exit-{value}"), &pvh::debug_exit(value), &[]);
        assert_eq!(ended.status, status, "{ended:?}");
    }
}

#[test]
fn what_stands_on_a_screen_that_nobody_sees_is_told_of_a_guest_that_prints_nothing() {
    let ended = run("screen", &pvh::screen("all is well"), &[]);
    assert_eq!((ended.status, ended.console.as_str()), (1, ""), "{ended:?}");
    assert!(
        ended.messages.contains("text screen") && ended.messages.contains("\n  all is well\n"),
        "{ended:?}"
    );
    assert!(!run("no-screen", &pvh::debug_exit(0), &[]).messages.contains("text screen"));
}

#[test]
fn resets_end_or_restart() {
    let ended = run("reset", &pvh::reset(), &["--on-reset", "exit"]);
    assert_eq!(ended.status, 118, "{ended:?}");
    // Restarted, it resets again, for ever.
    let ended = run("reset-again", &pvh::reset(), &["--timeout", "1s"]);
    assert_eq!(ended.status, 124, "{ended:?}");
    assert!(ended.messages.contains(" resets"), "{ended:?}");
}

#[test]
fn panics_show_registers_and_last_lines() {
    let ended = run("pvpanic", &pvh::pvpanic(), &[]);
    assert_eq!(ended.status, 120, "{ended:?}");
    assert!(ended.messages.contains("RIP ") && ended.messages.contains("CR3 "), "{ended:?}");

    let text = "first\r\nKernel panic - not syncing: test\r\nlast\r\n";
    let ended = run("panic-text", &pvh::print(text), &[]);
    assert_eq!((ended.status, ended.console.as_str()), (120, text), "{ended:?}");
    // The headline, once: the console has the rest.
    assert!(ended.messages.contains("told by console: Kernel panic - not syncing: test;"), "{ended:?}");
    assert_eq!(ended.messages.matches("Kernel panic").count(), 1, "{ended:?}");

    let ended = run("own-pattern", &pvh::print("all is lost"), &["--panic-pattern", "is lost"]);
    assert_eq!(ended.status, 120, "{ended:?}");
}

#[test]
fn a_triple_fault_shows_registers() {
    let ended = run("triple", &pvh::triple_fault(), &[]);
    assert_eq!(ended.status, 122, "{ended:?}");
    assert!(ended.messages.contains("RIP 0000000000100007"), "{ended:?}");
}

#[test]
fn standard_output_carries_only_the_console() {
    let report = scratch("report.json");
    let kernel = file("print", &pvh::print("hello"));
    let path = report.to_str().unwrap();
    let arguments =
        ["run", "--kernel", &kernel, "--timeout", "1s", "--report", "json", "--report-file", path];
    let ended = satori(&arguments);
    assert_eq!((ended.status, ended.console.as_str()), (124, "hello"), "{ended:?}");
    assert!(ended.messages.contains("translator"), "the engine is told: {ended:?}");
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(report["status"], 124);
    let exits = report["all"]["exits"].as_array().unwrap();
    let io = exits.iter().find(|e| e["reason"] == "IO_INSTRUCTION").expect("the guest printed");
    assert_eq!(io["samples"], 5);
}

#[test]
fn no_report_when_it_is_off() {
    let ended = run("quiet", &pvh::debug_exit(1), &["--report", "off"]);
    assert!(!ended.messages.contains("VM-EXIT"), "{ended:?}");
    let ended = run("text", &pvh::debug_exit(1), &[]);
    assert!(ended.messages.contains("VM-EXIT") && ended.messages.contains("IO_INSTRUCTION"), "{ended:?}");
}

/// Starts the guest `kernel`.
fn start(name: &str, kernel: &[u8], stdin: Stdio, stdout: Stdio) -> Child {
    let kernel = file(name, kernel);
    let arguments = ["run", "--kernel", &kernel, "--report", "off", "--timeout", "60s"];
    Command::new(SATORI)
        .args(arguments)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(Stdio::piped())
        .spawn()
        .expect("satori runs")
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("the child runs");
}

/// The end of `child`, which must come soon.
fn end(child: Child) -> Ended {
    let started = Instant::now();
    let ended: Ended = child.wait_with_output().expect("an end").into();
    assert!(started.elapsed() < Duration::from_secs(20), "it was told to end: {ended:?}");
    ended
}

#[test]
fn the_end_of_input_does_not_end_the_guest() {
    let mut child = start("echo-eof", &pvh::echo(), Stdio::piped(), Stdio::piped());
    let mut console = child.stdout.take().unwrap();
    read_until(&mut console, "ready");
    child.stdin.take().unwrap().write_all(b"last words").unwrap();
    read_until(&mut console, "last words");
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "the guest must go on");
    send(&child, Signal::TERM);
    assert_eq!(end(child).status, 130);
}

#[test]
fn a_closed_output_pipe_ends_the_guest() {
    for (name, kernel, first) in [("chatter", pvh::chatter(), "x"), ("silent", pvh::print("ready"), "ready")]
    {
        let mut child = start(name, &kernel, Stdio::null(), Stdio::piped());
        let mut console = child.stdout.take().unwrap();
        read_until(&mut console, first);
        drop(console);
        assert_eq!(end(child).status, 130, "{name}");
    }
}

#[test]
fn commands_that_run_no_guest_do_not_mind_a_closed_pipe() {
    let commands: [&[&str]; 13] = [
        &["--help"],
        &["--version"],
        &["run", "--help"],
        &["cpu"],
        &["cpu", "--format", "json"],
        &["msrs"],
        &["hyperv", "list"],
        &["engines"],
        &["doctor"],
        &["costs", "show"],
        &["explain", "stimer"],
        &["man", "run"],
        &["completions", "bash"],
    ];
    for command in commands {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        drop(reader);
        let child = Command::new(SATORI).args(command).stdout(writer).stderr(Stdio::piped()).spawn();
        let ended = end(child.expect("satori can be started"));
        assert_eq!((ended.status, ended.messages.as_str()), (0, ""), "{command:?}");
    }
}

#[test]
fn an_output_that_nobody_reads_does_not_hold_the_way_out() {
    let child = start("unread", &pvh::chatter(), Stdio::null(), Stdio::piped());
    let (pipe, started) = (child.stdout.as_ref().unwrap(), Instant::now());
    let room = rustix::pipe::fcntl_getpipe_size(pipe).unwrap() as u64;
    while rustix::io::ioctl_fionread(pipe).unwrap() + 4096 <= room {
        assert!(started.elapsed() < Duration::from_secs(60), "it is not full");
        std::thread::sleep(Duration::from_millis(5));
    }
    send(&child, Signal::INT);
    assert_eq!(end(child).status, 130);
}

#[test]
fn a_guest_does_not_see_the_time_that_it_is_stopped_for() {
    let report = scratch("stopped.json");
    let kernel = file("stopped", &pvh::echo());
    let report_file = report.to_str().unwrap();
    let began = Instant::now();
    let mut child = Command::new(SATORI)
        .args(["run", "--kernel", &kernel, "--cpus", "3", "--report", "json", "--report-file", report_file])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    read_until(child.stdout.as_mut().unwrap(), "ready");
    let stopped = Duration::from_secs(2);
    send(&child, Signal::TSTP);
    // Stopped, as the shell sees it, and not only asked to.
    while !std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap().contains("State:\tT") {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(stopped);
    send(&child, Signal::CONT);
    child.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    read_until(child.stdout.as_mut().unwrap(), "x");
    send(&child, Signal::TERM);
    end(child);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    // The guest's clock began after `began`, ended before now, and stood still in between.
    let guest = Duration::from_nanos(report["guest_time_ns"].as_u64().unwrap());
    let all = began.elapsed();
    assert!(
        guest + stopped <= all,
        "{guest:?} of the guest's in {all:?}, {stopped:?} of which it stood still"
    );
}

/// A pseudo-terminal: our end, and the guest's.
fn terminal() -> (std::fs::File, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
    let theirs = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap();
    (ours.into(), theirs)
}

fn is_raw(terminal: impl AsFd) -> bool {
    !tcgetattr(terminal)
        .unwrap()
        .local_modes
        .intersects(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
}

/// Starts the echo guest on a terminal and waits until it answers.
fn on_terminal(name: &str) -> (Child, std::fs::File, OwnedFd) {
    let (mut ours, theirs) = terminal();
    assert!(!is_raw(&theirs));
    let clone = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
    let child = start(name, &pvh::echo(), clone(&theirs), clone(&theirs));
    read_until(&mut ours, "ready");
    assert!(is_raw(&theirs), "the guest is to see every key");
    (child, ours, theirs)
}

#[test]
fn control_a_is_understood_on_a_terminal() {
    let (child, mut ours, theirs) = on_terminal("keys");
    ours.write_all(b"\x03\x01a.").unwrap();
    let seen = read_until(&mut ours, ".");
    assert_eq!(seen, "\x03\x01.", "Ctrl-C and Ctrl-A a reach the guest");
    ours.write_all(b"\x01h\x01x").unwrap();
    let ended = end(child);
    assert_eq!(ended.status, 130, "{ended:?}");
    assert!(ended.messages.matches("Ctrl-A x ends the guest").count() == 2, "at the start and on Ctrl-A h");
    assert!(!is_raw(&theirs), "the terminal must be given back");
}

#[test]
fn the_terminal_is_given_back_on_every_signal() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let (child, _ours, theirs) = on_terminal(&format!("signal-{}", signal.as_raw()));
        send(&child, signal);
        assert_eq!(end(child).status, 130, "{signal:?}");
        assert!(!is_raw(&theirs), "{signal:?}");
    }
}

#[test]
fn control_a_means_nothing_without_a_terminal() {
    let mut child = start("no-terminal", &pvh::echo(), Stdio::piped(), Stdio::piped());
    let mut console = child.stdout.take().unwrap();
    read_until(&mut console, "ready");
    child.stdin.take().unwrap().write_all(b"\x01x.").unwrap();
    assert_eq!(read_until(&mut console, "."), "\x01x.");
    send(&child, Signal::HUP);
    assert_eq!(end(child).status, 130);
}

#[test]
fn a_stop_from_the_shell_gives_the_terminal_back_meanwhile() {
    let (child, mut ours, theirs) = on_terminal("stop");
    let wait_for = |raw: bool| {
        let started = Instant::now();
        while is_raw(&theirs) != raw {
            assert!(started.elapsed() < Duration::from_secs(10), "raw mode is not {raw}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    send(&child, Signal::TSTP);
    wait_for(false);
    send(&child, Signal::CONT);
    wait_for(true);
    ours.write_all(b"\x01x").unwrap();
    assert_eq!(end(child).status, 130);
}
