//! What a run reads and writes: nothing is destroyed, and what could not be written is told.

mod common;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Ended, SATORI, file, pvh, satori};

/// An empty folder for one test.
fn folder(name: &str) -> PathBuf {
    let folder = common::scratch(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn inside(folder: &Path, words: &[&str]) -> Ended {
    Command::new(SATORI).args(words).current_dir(folder).stdin(Stdio::null()).output().unwrap().into()
}

const REPORT: &str = r#"{"format":"satori-report","version":1,"all":{"exits":[]}}"#;

#[test]
fn an_output_that_is_an_input_or_another_output_is_refused() {
    let folder = folder("pairs");
    let at = |name: &str| folder.join(name);
    let guest = pvh::debug_exit(0);
    let fill = || {
        for (name, content) in
            [("k", &guest[..]), ("i", b"initrd"), ("r", REPORT.as_bytes()), ("x", b"<domain/>")]
        {
            std::fs::write(at(name), content).unwrap();
        }
    };
    fill();
    symlink("k", at("soft")).unwrap();
    std::fs::hard_link(at("k"), at("hard")).unwrap();
    symlink("to-come", at("dangling")).unwrap();
    let k = ["run", "--kernel", "k"];
    let mut pairs: Vec<Vec<&str>> = vec![
        vec!["report", "html", "r", "-o", "r"],
        vec!["report", "import", "r", "-o", "./r"],
        vec!["costs", "calibrate", "r", "-o", "r"],
        vec!["report", "html", "r", "--costs", "x", "-o", "x"],
        vec!["bench", "--kernel", "k", "--svg", "k"],
        vec!["demo", "--kernel", "k", "--busybox", "i", "--trace", "i"],
        vec!["top", "--console", "k", "--once", "--", "run", "--kernel", "k"],
    ];
    const OUTPUTS: [&str; 5] =
        ["--report-file", "--crash-dump", "--crash-dump-l2", "--trace", "--stats-socket"];
    for output in OUTPUTS {
        for name in ["k", "soft", "hard"] {
            pairs.push([&k[..], &[output, name]].concat());
        }
        for (input, name) in
            [("--initrd", "i"), ("--module", "i"), ("--costs", "i"), ("--symbols", "i"), ("--libvirt", "x")]
        {
            pairs.push([&k[..], &[input, name, output, name]].concat());
        }
        for other in OUTPUTS {
            if other != output {
                pairs.push([&k[..], &[output, "to-come", other, "dangling"]].concat());
            }
        }
    }
    for words in &pairs {
        let ended = inside(&folder, words);
        assert_eq!((ended.status, ended.console.as_str()), (2, ""), "{words:?}: {ended:?}");
        assert_eq!(ended.messages.lines().count(), 1, "{words:?}: {ended:?}");
        let told = ["which it would destroy: name another", "are one file: name two"];
        assert!(told.iter().any(|told| ended.messages.trim_end().ends_with(told)), "{words:?}: {ended:?}");
        assert_eq!(std::fs::read(at("k")).unwrap(), guest, "{words:?}");
        assert_eq!(std::fs::read(at("i")).unwrap(), b"initrd", "{words:?}");
        assert_eq!(std::fs::read_to_string(at("r")).unwrap(), REPORT, "{words:?}");
        assert!(!at("to-come").exists(), "{words:?}");
    }
    // The kernel that a domain names.
    std::fs::write(at("x"), "<domain><os><kernel>k</kernel></os></domain>").unwrap();
    let ended = inside(&folder, &["run", "--libvirt", "x", "--report-file", "soft"]);
    assert!(ended.status == 2 && ended.messages.contains("is the file of <kernel> k"), "{ended:?}");
    assert_eq!(std::fs::read(at("k")).unwrap(), guest);
    // A file to which standard output goes.
    let log = File::create(at("log")).unwrap();
    let run = Command::new(SATORI)
        .args([&k[..], &["--report-file", "log"]].concat())
        .current_dir(&folder)
        .stdout(log)
        .output();
    let ended: Ended = run.unwrap().into();
    assert!(
        ended.status == 2 && ended.messages.contains("--report-file log and standard output are one file"),
        "{ended:?}"
    );
    // What a command reads of standard input, it does not write behind it.
    for (words, output) in [(&["advise", "-"][..], "r"), (&["report", "show", "-"], "hard-r")] {
        let _ = std::fs::hard_link(at("r"), at("hard-r"));
        let run = Command::new(SATORI)
            .args(words)
            .current_dir(&folder)
            .stdin(File::open(at("r")).unwrap())
            .stdout(File::options().append(true).open(at(output)).unwrap())
            .output();
        let ended: Ended = run.unwrap().into();
        let told = "standard output is the file of standard input, which it would destroy";
        assert!(ended.status == 2 && ended.messages.contains(told), "{words:?}: {ended:?}");
        assert_eq!(std::fs::read_to_string(at("r")).unwrap(), REPORT);
    }
    // Devices hold nothing, and two streams of one log are the shell's affair.
    let log = File::create(at("log")).unwrap();
    let words = [&k[..], &["--report-file", "/dev/null", "--trace", "/dev/null"]].concat();
    let run = Command::new(SATORI)
        .args(words)
        .current_dir(&folder)
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .status();
    assert_eq!(run.unwrap().code(), Some(1));
}

#[test]
fn what_a_full_disk_took_is_told_with_a_status() {
    let off = file("off", &pvh::power_off("text\n"));
    let run = |words: &[&str], stdout: Stdio| -> Ended {
        let kernel: &[&str] = if words.contains(&"--kernel") { &[] } else { &["--kernel", &off] };
        let words = [&["run", "-m", "128M", "--timeout", "60s"], kernel, words].concat();
        Command::new(SATORI)
            .args(words)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .output()
            .unwrap()
            .into()
    };
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    let ended = run(&[], Stdio::piped());
    assert_eq!((ended.status, ended.console.as_str()), (0, "text\n"), "{ended:?}");

    let ended = run(&["--trace", "/dev/full"], Stdio::piped());
    assert_eq!(ended.status, 125, "{ended:?}");
    assert!(ended.messages.contains("trace: it is not complete (No space left on device"), "{ended:?}");
    assert!(ended.messages.contains("powered off; exit status 125\n"), "{ended:?}");
    assert!(!ended.messages.contains("faster"), "{ended:?}");

    let sends = file("sends", &pvh::power_off_at(0x2f8, "text\n"));
    let ended = run(&["--kernel", &sends, "--serial", "/dev/full"], Stdio::piped());
    assert_eq!(ended.status, 125, "{ended:?}");
    let what = "what the guest sent to ttyS1 is not complete (No space left on device): ";
    assert!(ended.messages.contains(what), "{ended:?}");
    assert!(!ended.messages.contains("WARN"), "{ended:?}");

    // Also where the guest's own number is its status.
    let exits = file("exits", &pvh::print_and_exit("text\n", 0));
    let ended = run(&["--kernel", &exits, "--testdev", "exit=value", "--trace", "/dev/full"], Stdio::piped());
    assert_eq!(ended.status, 125, "{ended:?}");

    let ended = run(&["--report-file", "/dev/full"], Stdio::piped());
    assert_eq!(ended.status, 125, "{ended:?}");
    assert!(
        ended.messages.contains("cannot write the report: No space left on device; exit status 125\n"),
        "{ended:?}"
    );

    let ended = run(&[], full());
    assert_eq!(ended.status, 125, "{ended:?}");
    assert!(
        ended.messages.contains("standard output cannot be written (No space left on device)"),
        "{ended:?}"
    );
    assert!(!ended.messages.contains("by the user"), "{ended:?}");

    // A guest that goes on is ended, as when nobody reads its console.
    let on = file("on", &pvh::print("text\n"));
    let ended: Ended = Command::new(SATORI)
        .args(["run", "--kernel", &on, "--timeout", "60s"])
        .stdin(Stdio::null())
        .stdout(full())
        .output()
        .unwrap()
        .into();
    assert_eq!(ended.status, 125, "{ended:?}");
    assert!(
        ended.messages.contains("the guest was ended, as standard output cannot be written"),
        "{ended:?}"
    );

    // A guest's own failure comes first.
    let panics = file("panics", &pvh::pvpanic());
    let ended = satori(&["run", "--kernel", &panics, "--trace", "/dev/full"]);
    assert_eq!(ended.status, 120, "{ended:?}");
}

#[test]
fn commands_whose_output_cannot_be_written_fail() {
    for words in [
        &["--help"][..],
        &["--version"],
        &["cpu"],
        &["hyperv", "list"],
        &["explain", "stimer"],
        &["bench", "--list"],
        &["man", "run"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended: Ended =
            Command::new(SATORI).args(words).stdout(full).stderr(Stdio::piped()).output().unwrap().into();
        assert_eq!(ended.status, 125, "{words:?}: {ended:?}");
        assert!(
            ended.messages.contains("standard output cannot be written (No space left on device)"),
            "{ended:?}"
        );
    }
}

#[test]
fn a_chart_that_cannot_be_is_refused_before_anything_is_measured() {
    let kernel = file("chart", &pvh::halt());
    let ended = satori(&["bench", "--svg", "/nowhere/chart.svg", "--kernel", &kernel, "--busybox", &kernel]);
    assert_eq!(ended.status, 2, "{ended:?}");
    assert!(ended.messages.contains("cannot write --svg /nowhere/chart.svg"), "{ended:?}");
    let chart = common::scratch("chart.svg");
    let path = chart.to_str().unwrap();
    let ended = satori(&["bench", "--svg", path, "--kernel", "/nonexistent", "--busybox", &kernel]);
    assert_eq!(ended.status, 2, "{ended:?}");
    assert!(!chart.exists(), "nothing was measured");
}

#[test]
fn a_socket_that_somebody_serves_is_not_taken() {
    let kernel = file("socket-kernel", &pvh::debug_exit(0));
    for (flag, prefix) in [("--gdb", "unix:"), ("--stats-socket", "")] {
        let path = common::scratch(&format!("served{flag}"));
        let _ = std::fs::remove_file(&path);
        let served = UnixListener::bind(&path).unwrap();
        let address = format!("{prefix}{}", path.display());
        let words = ["run", "--kernel", &kernel, flag, &address];
        let ended = satori(&words);
        assert_eq!(ended.status, 2, "{ended:?}");
        assert!(ended.messages.contains("another process serves it"), "{ended:?}");
        drop(served);
        let ended = satori(&words);
        assert_eq!(ended.status, 1, "what nobody serves is replaced: {ended:?}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn names_of_files_need_not_be_text() {
    let folder = folder("bytes");
    let at = |name: &[u8]| folder.join(OsStr::from_bytes(name));
    std::fs::write(at(b"k\xff"), pvh::debug_exit(0)).unwrap();
    std::fs::write(at(b"i\xff"), b"initrd").unwrap();
    std::fs::write(at(b"System\xff.map"), "ffffffff81000000 T _stext\nffffffff81000040 T do_something\n")
        .unwrap();
    std::fs::write(at(b"x\xff"), "<domain><memory unit='MiB'>256</memory></domain>").unwrap();
    let words: [&[u8]; 19] = [
        b"run",
        b"--kernel",
        b"k\xff",
        b"--initrd",
        b"i\xff",
        b"--initrd",
        b"i\xff,i\xff",
        b"--symbols",
        b"System\xff.map",
        b"--libvirt",
        b"x\xff",
        b"--trace",
        b"t\xff,events=exit",
        b"--report-file",
        b"r\xff",
        b"--gdb",
        b"unix:g\xff",
        b"--stats-socket",
        b"s\xff",
    ];
    let run = Command::new(SATORI)
        .args(words.map(OsStr::from_bytes))
        .args(["--report", "json", "--crash-dump"])
        .arg(OsStr::from_bytes(b"d\xff"))
        .current_dir(&folder)
        .stdin(Stdio::null())
        .output();
    let ended: Ended = run.unwrap().into();
    assert_eq!(ended.status, 1, "{ended:?}");
    for made in [&b"t\xff"[..], b"r\xff", b"g\xff", b"s\xff", b"d\xff"] {
        assert!(at(made).exists(), "{made:?}");
    }
    // Nor that of a module.
    let module = [b"run", &b"--kernel"[..], b"k\xff", b"--module", b"i\xff x"].map(OsStr::from_bytes);
    let ended: Ended = Command::new(SATORI).args(module).current_dir(&folder).output().unwrap().into();
    assert_eq!(ended.status, 1, "{ended:?}");
    for words in [&["report", "show"][..], &["advise"]] {
        let ended: Ended = Command::new(SATORI).args(words).arg(at(b"r\xff")).output().unwrap().into();
        assert_eq!(ended.status, 0, "{ended:?}");
    }
    let top = Command::new(SATORI)
        .args(["top", "--once", "-d", "100ms", "--console"])
        .arg(OsStr::from_bytes(b"c\xff"))
        .args(["--", "run", "--kernel"])
        .arg(OsStr::from_bytes(b"k\xff"))
        .current_dir(&folder)
        .output();
    let ended: Ended = top.unwrap().into();
    assert_eq!(ended.status, 1, "the guest's own: {ended:?}");
    // A kernel of the bench and the demo is a file as well: it is read, and no kernel of Linux.
    for words in [&["demo", "--busybox", SATORI][..], &["bench", "--busybox", SATORI]] {
        let ended: Ended =
            Command::new(SATORI).args(words).arg("--kernel").arg(at(b"none\xff")).output().unwrap().into();
        assert!(ended.status == 2 && ended.messages.contains("No such file"), "{ended:?}");
    }
}

#[test]
fn a_debug_exit_can_mean_success_and_a_bisection_is_told_so() {
    let run = |value: u8, words: &[&str]| {
        let kernel = file(&format!("exit-{value}"), &pvh::debug_exit(value));
        satori(&[&["run", "--kernel", &kernel, "-m", "128M", "--report", "off"], words].concat()).status
    };
    assert_eq!(run(0, &["--testdev", "exit=value"]), 0);
    assert_eq!(run(3, &["--testdev", "exit=value"]), 3);
    assert_eq!(run(3, &["--testdev", "suite,exit=value", "--bisect"]), 1);
    assert_eq!(run(0, &["--testdev", "exit=value", "--bisect"]), 0);
    assert_eq!(run(0, &["--bisect"]), 1);
    let kernel = file("exit-told", &pvh::debug_exit(3));
    let ended = satori(&["run", "--kernel", &kernel, "--report", "off", "--bisect"]);
    assert!(ended.messages.contains("debug exit; exit status 1\n") && ended.status == 1, "{ended:?}");
    for words in
        [&["--kernel", "/nonexistent"][..], &["--kernel", "/dev/null", "--frob"], &["--kernel", SATORI]]
    {
        assert_eq!(satori(&[&["run", "--bisect"], words].concat()).status, 125, "{words:?}");
    }
}
