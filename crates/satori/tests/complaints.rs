//! What users of virtme-ng, virtme, libkrun, crun and vmtest complained of for years, each complaint a check: nine about streams,
//! terminals and statuses, nine about owners, permissions and places. Numbers are those of their issues and pull requests.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::tcgetattr;

use common::{Ended, SATORI, fetch, read_until, scratch};

/// `satori run` in Debian's 6.12 with these options and words, on pipes.
fn guest(options: &[&str], words: &[&str]) -> Command {
    let kernel = fetch(&["kernel", "6.12"]);
    let mut command = Command::new(SATORI);
    command.args(["run", "--kernel", &kernel, "--timeout", "5m"]).args(options).arg("--").args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ended(command: &mut Command) -> Ended {
    command.output().expect("satori runs").into()
}

/// A folder of this test's, empty.
fn folder(name: &str) -> PathBuf {
    let path = scratch(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// virtme-ng 48: the command's status came back as 0. virtme 80: a script's standard input was not its caller's. libkrun 131: the
/// guest lived no longer than its standard input, and bytes that came while it booted were lost.
#[test]
fn input_that_ended_before_the_guest_began_reaches_a_script_and_its_status_comes_back() {
    let script =
        "sleep 0.5; read first; rest=$(wc -c); echo \"$first and $rest\"; sleep 0.5; echo late; exit 22";
    let (mut ours, theirs) = rustix::pipe::pipe().map(|(read, write)| (fs::File::from(write), read)).unwrap();
    let typed = format!("first\n{}", "x".repeat(50_000));
    ours.write_all(typed.as_bytes()).unwrap();
    drop(ours);
    let ended = ended(guest(&[], &["sh", "-c", script]).stdin(theirs));
    assert_eq!((ended.console.as_str(), ended.status), ("first and 50000\nlate\n", 22), "{ended:?}");
}

/// virtme 33: with /dev/null or nothing as standard input a command hung as soon as it wrote. libkrun 306, crun 1702: so did others
/// where a stream was closed.
#[test]
fn no_stream_need_be_there() {
    let kernel = fetch(&["kernel", "6.12"]);
    let line = format!("{SATORI} run --kernel {kernel} --timeout 5m -- sh -c 'cat; echo foo; exit 3'");
    let all = format!("{line} </dev/null; echo $?; {line} <&- >&- 2>&-; echo $?");
    let ended = ended(Command::new("sh").args(["-c", &all]).stdin(Stdio::null()));
    assert_eq!((ended.console.as_str(), ended.messages.as_str()), ("foo\n3\n3\n", ""));
}

/// virtme-ng 426: streams had to be a terminal, and to be opened again by their names in /proc. A socket cannot be, nor a terminal of
/// another user's.
#[test]
fn streams_that_cannot_be_opened_again_are_streams() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let end = || Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()));
    let mut command = guest(
        &[],
        &["sh", "-c", "read word; echo \"got $word\" > /dev/stdout; echo err > /dev/stderr; exit 4"],
    );
    let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    drop((command, theirs));
    ours.write_all(b"words\n").unwrap();
    let mut seen = String::new();
    ours.read_to_string(&mut seen).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4), "{seen}");
    assert!(seen.contains("got words\n") && seen.contains("err\n"), "{seen}");
}

/// virtme-ng 49: `timeout 10 vng -- sleep 20` left the terminal without echo.
#[test]
fn a_terminal_is_as_it_was_when_a_timeout_ends_the_run() {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let theirs = rustix::fs::open(ptsname(&ours, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
    // virtme-ng 426 again: nobody may open it by its name.
    rustix::fs::fchmod(&theirs, Mode::empty()).unwrap();
    let modes = || tcgetattr(&theirs).map(|all| format!("{all:?}")).unwrap();
    let before = modes();
    let kernel = fetch(&["kernel", "6.12"]);
    let mut command = Command::new("timeout");
    command.args(["--foreground", "-s", "TERM", "1000", SATORI, "run", "--kernel", &kernel]);
    command.args(["--", "sh", "-c", "echo on; exec sleep 1000"]);
    let stream = || Stdio::from(theirs.try_clone().unwrap());
    let mut child = command.stdin(stream()).stdout(stream()).stderr(stream()).spawn().unwrap();
    read_until(&mut fs::File::from(ours.try_clone().unwrap()), "on");
    assert_ne!(modes(), before, "keys are the guest's while it runs");
    // What timeout(1) does when its time is over, it does on a signal too.
    // SAFETY: our own child's number.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGTERM) }, 0);
    child.wait().unwrap();
    assert_eq!(modes(), before);
}

/// virtme-ng 70: a panic with a command hung for ever, and had no status.
#[test]
fn a_panic_ends_the_run_with_a_status_of_its_own() {
    let ended = ended(&mut guest(
        &["--user", "root"],
        &["sh", "-c", "echo on; sleep 0.5; echo c > /proc/sysrq-trigger; sleep 1000"],
    ));
    assert_eq!((ended.console.as_str(), ended.status), ("on\n", 120), "{}", ended.messages);
    assert!(ended.messages.contains("sysrq triggered crash"), "{}", ended.messages);
}

/// A reset is no reason to run the command again and again. What the guest gave the port is told; `on` has the time to come there
/// first: until its init is scheduled it is in a pipe of the guest's, which ends with its kernel.
#[test]
fn a_reset_ends_the_run_with_a_status_of_its_own() {
    let script = "echo on; sleep 0.5; echo b > /proc/sysrq-trigger; sleep 1000";
    let ended = ended(&mut guest(&["--user", "root"], &["sh", "-c", script]));
    assert_eq!((ended.console.as_str(), ended.status), ("on\n", 118), "{}", ended.messages);
    assert!(ended.messages.contains("asked for a reset"), "{}", ended.messages);
}

/// crun 1694: a folder and a file without permission as the command ended with 0.
#[test]
fn what_cannot_be_executed_has_a_shells_status() {
    let path = folder("commands");
    let bare = path.join("bare");
    fs::write(&bare, "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(&bare, PermissionsExt::from_mode(0o000)).unwrap();
    let missing = path.join("missing");
    for (word, status) in [(&path, 126), (&bare, 126), (&missing, 127)] {
        let ended = ended(&mut guest(&[], &[word.to_str().unwrap()]));
        assert_eq!(ended.status, status, "{ended:?}");
        assert!(ended.messages.contains(word.to_str().unwrap()), "{ended:?}");
    }
}

/// What runs in the guest: each line is a check with a name.
fn checks(command: &mut Command, script: &str) {
    let check =
        "check() { if eval \"$2\" >/dev/null 2>&1; then echo \"ok $1\"; else echo \"BAD $1\"; fi; }\n";
    let wanted: Vec<_> = script
        .lines()
        .filter_map(|line| line.trim().strip_prefix("check "))
        .map(|line| format!("ok {}", line.split(' ').next().unwrap()))
        .collect();
    let ended = ended(command.arg(format!("{check}{script}")));
    assert_eq!(ended.console.lines().collect::<Vec<_>>(), wanted, "{ended:?}");
    assert_eq!((ended.messages.as_str(), ended.status), ("", 0));
}

/// On this machine's own root. virtme-ng 50: nothing could be done as root. virtme-ng 76: neither /tmp nor the working directory could be
/// written with a command. virtme-ng 117: `--rwdir` with a relative name ended in a panic. virtme-ng 129: a folder that the caller may
/// not search (/var/lib/containers) kept the guest from booting. vmtest 83, and 76 and 78 before it: /tmp was another one than the host's.
#[test]
fn a_command_on_this_machines_root_writes_where_users_write() {
    let path = folder("host");
    for name in ["closed", "own"] {
        fs::create_dir(path.join(name)).unwrap();
    }
    fs::set_permissions(path.join("closed"), PermissionsExt::from_mode(0o000)).unwrap();
    let temporary = tempfile_in_tmp();
    let script = format!(
        "
        check 50-root '[ $(id -u) = 0 ] && mkdir /run/m && mount -t tmpfs none /run/m && touch /run/m/x'
        check 50-owner 'touch o && chown 1234:5678 o && [ $(stat -c %u:%g o) = 1234:5678 ]'
        check 76-tmp 'f=$(mktemp -p /tmp ns-XXXXXX) && chmod 600 $f && echo x > $f'
        check 76-folder 'mktemp -p . ns-XXXXXX && [ $(stat -c %a /tmp) = 1777 ]'
        check 117-relative 'echo of the guest > own/new'
        check 129-closed '[ -d closed ] && ls -d /var/lib'
        check 83-tmp '[ \"$(cat {temporary})\" = here ]'
    "
    );
    let mut command = guest(&["--user", "root", "--rwdir", "own"], &["sh", "-c"]);
    checks(command.current_dir(&path), &script);
    fs::remove_file(temporary).unwrap();
    fs::set_permissions(path.join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(fs::read_to_string(path.join("own/new")).unwrap(), "of the guest\n");
    let mine = fs::metadata("/proc/self").unwrap().uid();
    assert_eq!(fs::metadata(path.join("own/new")).unwrap().uid(), mine);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 2);
}

/// A file with "here" in it in /tmp.
fn tempfile_in_tmp() -> String {
    let path = format!("/tmp/satori-complaints-{}", std::process::id());
    fs::write(&path, "here").unwrap();
    path
}

/// On a root that somebody made without being root. virtme-ng 202, libkrun 383: all files were the maker's, so that nothing could be
/// mounted and nothing was root's. virtme-ng 371: /root could not be written. virtme-ng 237: a folder of the host had to be in the root.
#[test]
fn a_command_on_a_root_of_the_callers_own_is_its_root() {
    let (root, other) = (folder("root"), folder("other"));
    for name in ["bin", "root", "etc", "mnt"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    fs::copy(fetch(&["busybox"]), root.join("bin/busybox")).unwrap();
    fs::set_permissions(root.join("bin/busybox"), PermissionsExt::from_mode(0o755)).unwrap();
    for name in ["sh", "stat", "mount", "touch", "cat", "chown", "mkdir"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    fs::write(other.join("a"), "of the host").unwrap();
    let there = other.to_str().unwrap();
    let script = format!(
        "
        check 202-run 'mount -t tmpfs run /run && touch /run/x'
        check 202-mnt 'mkdir /mnt/sub && mount -t tmpfs none /mnt/sub'
        check 383-owner '[ $(stat -c %u:%g /etc/passwd) = 0:0 ] && [ $(stat -c %u /) = 0 ]'
        check 383-given 'touch /etc/new && chown 12:34 /etc/new && [ $(stat -c %u:%g /etc/new) = 12:34 ]'
        check 371-home '[ $HOME = /root ] && touch /root/x && [ $(stat -c %u /root/x) = 0 ]'
        check 237-there '[ \"$(cat {there}/a)\" = \"of the host\" ] && touch {there}/new'
    "
    );
    let options = ["--root", root.to_str().unwrap(), "--user", "root", "--rwdir", there];
    checks(&mut guest(&options, &["/bin/sh", "-c"]), &script);
    assert!(other.join("new").exists() && !root.join("root/x").exists());
}
