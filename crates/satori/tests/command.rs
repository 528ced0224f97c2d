//! `satori run -- COMMAND` as people use it: streams, statuses, owners, folders, in Debian's kernels.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use common::{Ended, SATORI, fetch, read_until, satori, scratch};

/// `satori run` in Debian's 6.12 with these options and words, on pipes.
fn guest(options: &[&str], words: &[&str]) -> Command {
    let kernel = fetch(&["kernel", "6.12"]);
    let mut command = Command::new(SATORI);
    command.args(["run", "--kernel", &kernel, "--timeout", "5m"]).args(options).arg("--").args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn feed(mut command: Command, input: &[u8]) -> Output {
    let mut child = command.spawn().expect("satori runs");
    child.stdin.take().unwrap().write_all(input).expect("satori reads");
    child.wait_with_output().expect("satori ends")
}

fn shell(options: &[&str], script: &str) -> Ended {
    feed(guest(options, &["sh", "-c", script]), b"").into()
}

/// A terminal: our side, and the one for a program.
fn terminal(rows: u16, columns: u16) -> (fs::File, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let theirs = rustix::fs::open(ptsname(&ours, Vec::new()).unwrap(), flags, Mode::empty()).unwrap();
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size).unwrap();
    (ours.into(), theirs)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder of this test's, empty.
fn folder(name: &str) -> PathBuf {
    let path = scratch(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn streams_are_apart_and_the_status_is_the_commands() {
    let script = "echo out; echo err >&2; cat; printf end; exit 7";
    let ended = feed(guest(&[], &["sh", "-c", script]), b"typed\nwithout an end");
    assert_eq!(text(&ended.stdout), "out\ntyped\nwithout an endend");
    assert_eq!(text(&ended.stderr), "err\n", "Satori says nothing where nothing is wrong");
    assert_eq!(ended.status.code(), Some(7));
}

#[test]
fn a_terminal_is_one_in_the_guest_too() {
    let (mut ours, theirs) = terminal(33, 99);
    let script = "tty; stty size; read line; echo \"got $line\"; exit 5";
    let mut command = guest(&[], &["sh", "-c", script]);
    let stream = || Stdio::from(theirs.try_clone().unwrap());
    command.stdin(stream()).stdout(stream()).stderr(stream());
    let mut child = command.spawn().expect("satori runs");
    let begin = read_until(&mut ours, "33 99");
    assert!(begin.contains("/dev/pts/0"), "{begin}");
    ours.write_all(b"typed\n").unwrap();
    read_until(&mut ours, "got typed");
    assert_eq!(child.wait().unwrap().code(), Some(5));
}

#[test]
fn large_streams_come_whole_in_both_directions() {
    let input: Vec<u8> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut child = guest(&[], &["cat"]).spawn().unwrap();
    let (mut stdin, given) = (child.stdin.take().unwrap(), input.clone());
    let feeder = std::thread::spawn(move || stdin.write_all(&given));
    let mut seen = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut seen).unwrap();
    feeder.join().unwrap().unwrap();
    assert!(seen == input, "{} of {} bytes came, or others", seen.len(), input.len());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Whether the tests are root's, as what their commands may do in a guest is what they may do here.
fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn a_command_finds_what_its_caller_has() {
    let work = folder("caller");
    fs::write(work.join("file"), "of the host").unwrap();
    let script = "
        check() { if eval \"$2\"; then echo \"ok $1\"; else echo \"BAD $1\"; fi; }
        check folder '[ \"$(cat file)\" = \"of the host\" ]'
        check arguments '[ \"$ARGS\" = \"a b\" ]'
        check umask '[ \"$(umask)\" = 0027 ]'
        check user '[ \"$(id -u):$(id -g)\" = \"$IDS\" ]'
        check hostname '[ \"$(uname -n)\" = \"$NODE\" ]'
        check stdout 'echo again > /dev/stdout && echo more > /dev/stderr && true < /dev/fd/0'
        check not-a-terminal '! [ -t 0 ] && ! [ -t 1 ] && ! [ -t 2 ]'
        check null 'echo x > /dev/null && [ -c /dev/zero ]'
        check temporary 'f=$(mktemp) && echo x > $f && [ \"$(cat $f)\" = x ]'
        check shared-memory 'echo x > /dev/shm/x && [ \"$(stat -c %a /dev/shm)\" = 1777 ]'
        check run '[ -d /run/lock ] && [ -d /run/user/$(id -u) ]'
        check as-root-run 'mkdir /run/here'
        check processes '[ \"$(cat /proc/1/comm)\" = init ] && [ -d /sys/class ] && [ -e /dev/ptmx ]'
        check loopback '[ \"$(cat /sys/class/net/lo/flags)\" = 0x9 ]'
        check as-root-owners 'touch o && chown 4321:4322 o && [ \"$(stat -c %u:%g o)\" = 4321:4322 ]'
        check clock 'a=$(date +%s%3N) && touch t && b=$(stat -c %.3Y t | tr -d .) && c=$(date +%s%3N) && [ $((a - 250)) -le $b ] && [ $b -le $((c + 5)) ]'
        check modes 'touch m && chmod 4751 m && [ \"$(stat -c %a m)\" = 4751 ] && [ \"$(stat -c %u m)\" = $(id -u) ]'
        check as-root-read-only-places 'echo x > /usr/satori-was-here && mkdir -p /etc/satori-was-here/d && rm /etc/hostname'
        check links 'ln -s file s && ln file h && [ \"$(stat -c %h file)\" = 2 ] && mv h n && [ \"$(cat n s)\" = \"of the hostof the host\" ]'
        check sockets 'mkfifo p && { echo x > p & } && [ \"$(cat p)\" = x ]'
        check removal 'mkdir -p d/e && mv d f && rmdir f/e f && rm file && ! [ -e file ]'
        check change 'printf changed > c && printf X | dd of=c bs=1 seek=2 conv=notrunc 2>/dev/null && [ \"$(cat c)\" = chXnged ]'
        check execution 'printf \"#!/bin/sh\\nexit 9\\n\" > x && chmod +x x && ./x; [ $? = 9 ]'
    ";
    // A command has its caller's rights, and no others.
    let mine = |line: &&str| is_root() || !line.trim().starts_with("check as-root-");
    let script = script.lines().filter(mine).collect::<Vec<_>>().join("\n");
    let checks = script.lines().filter(|line| line.trim().starts_with("check ")).count();
    let mut command = guest(&[], &["sh", "-c", &script]);
    let me = fs::metadata("/proc/self").unwrap();
    let node = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    command.current_dir(&work).env("ARGS", "a b").env("IDS", format!("{}:{}", me.uid(), me.gid()));
    command.env("NODE", node.trim());
    // SAFETY: umask(2) only, between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::umask(0o027);
            Ok(())
        });
    }
    let ended = feed(command, b"");
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    let wrong: Vec<_> = out.lines().filter(|line| line.starts_with("BAD")).collect();
    assert!(wrong.is_empty(), "{out}\n{err}");
    assert_eq!(out.lines().filter(|line| line.starts_with("ok ")).count(), checks, "{out}\n{err}");
    assert_eq!((err.as_str(), ended.status.code()), ("more\n", Some(0)));
    // Of all that nothing is left.
    let left: Vec<_> = fs::read_dir(&work).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["file"]);
    assert_eq!(fs::read_to_string(work.join("file")).unwrap(), "of the host");
    for path in ["/usr/satori-was-here", "/etc/satori-was-here"] {
        assert!(!PathBuf::from(path).exists(), "{path}");
    }
}

/// What users of other tools complained of for years, nine times about streams: no status, no end of input, a terminal needed, /dev/null
/// or a closed stream that hangs, /dev/stdout that cannot be opened again, standard error lost.
#[test]
fn streams_may_be_closed_sockets_or_one_file_and_are_opened_again_by_anybody() {
    let kernel = fetch(&["kernel", "6.12"]);
    let run = format!("{SATORI} run --kernel {kernel} --timeout 5m --");
    let ended = |line: String| -> Ended {
        feed(
            {
                let mut command = Command::new("sh");
                command
                    .args(["-c", &line])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                command
            },
            b"",
        )
        .into()
    };
    // Closed: input ends at once, the status comes, and so does what is still open.
    let closed = ended(format!("{run} sh -c 'cat; echo out; echo err >&2; exit 6' <&- 2>&-"));
    assert_eq!((closed.console.as_str(), closed.status), ("out\n", 6), "{closed:?}");
    let closed =
        ended(format!("{run} sh -c 'cat; readlink /proc/$$/fd/0 >&2; echo err >&2; exit 7' </dev/null >&-"));
    assert_eq!((closed.messages.as_str(), closed.status), ("/dev/null\nerr\n", 7), "{closed:?}");
    // One file for both, which is added to.
    let log = file_of("log", "first\n");
    let appended =
        ended(format!("{run} sh -c 'echo second; sleep 0.2; echo third >&2' >>{log} 2>&1; cat {log}"));
    assert_eq!(appended.console, "first\nsecond\nthird\n");
    // Sockets, as containers give them.
    let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command =
        guest(&[], &["sh", "-c", "read word; echo \"$word to a socket\" > /dev/stdout; exit 4"]);
    let end = || Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()));
    let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    drop((command, theirs));
    ours.write_all(b"words\n").unwrap();
    let mut seen = String::new();
    ours.read_to_string(&mut seen).unwrap();
    assert_eq!((seen.as_str(), child.wait().unwrap().code()), ("words to a socket\n", Some(4)));
}

fn file_of(name: &str, text: &str) -> String {
    common::file(name, text.as_bytes())
}

/// And nine times about owners: files of others in the guest, places that cannot be written, no root, sudo that refuses.
#[test]
fn a_command_may_be_another_user_of_the_guest() {
    let work = folder("users");
    let script = "
        id -u; echo $HOME $USER
        mkdir /run/t && mount -t tmpfs run /run/t && echo mounted
        echo changed > /etc/satori-was-here && touch mine && chown 1234:5678 mine && stat -c %u:%g mine
        setpriv --reuid 65534 --regid 65534 --clear-groups sh -c '
            echo to stdout > /dev/stdout; echo to stderr > /dev/stderr; cat < /dev/stdin
            touch /tmp/t$$ /dev/shm/s && echo temporary; touch /etc/no 2>/dev/null || echo refused'
        install -m 4755 -o root /usr/bin/id /usr/local/bin/rooted-id
        setpriv --reuid 65534 --regid 65534 --clear-groups /usr/local/bin/rooted-id -u
    ";
    let mut command = guest(&["--user", "root"], &["sh", "-c", script]);
    command.current_dir(&work);
    let ended: Ended = feed(command, b"typed\n").into();
    let wanted = "0\n/root root\nmounted\n1234:5678\nto stdout\ntyped\ntemporary\nrefused\n0\n";
    assert_eq!((ended.console.as_str(), ended.messages.as_str()), (wanted, "to stderr\n"), "{ended:?}");
    let ended: Ended = feed(
        guest(&["--user", "4711"], &["sh", "-c", "id -u; id -g; touch /tmp/mine && stat -c %u /tmp/mine"]),
        b"",
    )
    .into();
    assert_eq!((ended.console.as_str(), ended.status), ("4711\n4711\n4711\n", 0), "{ended:?}");
    assert_eq!(fs::read_dir(&work).unwrap().count(), 0);
}

#[test]
fn the_end_of_a_command_is_told_as_a_shell_tells_it() {
    let file = scratch("status.json");
    let path = file.to_str().unwrap();
    let told = || serde_json::from_str::<serde_json::Value>(&fs::read_to_string(path).unwrap()).unwrap();
    let ended = shell(&["--status-file", path], "kill -9 $$");
    assert_eq!((ended.status, ended.messages.as_str()), (137, ""));
    assert_eq!((told()["who"].as_str(), told()["how"].as_str()), (Some("command"), Some("killed")));
    assert_eq!((told()["number"].as_u64(), told()["status"].as_u64()), (Some(9), Some(137)));
    let ended: Ended = feed(guest(&["--status-file", path], &["/etc/passwd"]), b"").into();
    assert_eq!(ended.status, 126, "{}", ended.messages);
    assert!(ended.messages.contains("cannot execute '/etc/passwd'"), "{}", ended.messages);
    assert_eq!(told()["how"].as_str(), Some("not-started"));
    let ended: Ended = feed(guest(&[], &["no-such-command"]), b"").into();
    assert_eq!(ended.status, 127, "{}", ended.messages);
    // Whoever is left behind does not hold the guest.
    let ended = shell(&[], "sleep 1000 & echo on; exit 124");
    assert_eq!((ended.status, ended.console.as_str()), (124, "on\n"));
}

#[test]
fn signals_reach_the_command() {
    let mut child =
        guest(&[], &["sh", "-c", "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.1; done"])
            .spawn()
            .unwrap();
    read_until(child.stdout.as_mut().unwrap(), "ready");
    signal(&child, libc::SIGTERM);
    assert_eq!(read_until(child.stdout.as_mut().unwrap(), "caught"), "caught\n");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn a_stop_from_the_shell_stops_the_guest_and_its_clock() {
    let began = Instant::now();
    let mut child = guest(&[], &["sh", "-c", "echo ready; read word; cat /proc/uptime"]).spawn().unwrap();
    read_until(child.stdout.as_mut().unwrap(), "ready");
    signal(&child, libc::SIGTSTP);
    while !fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap().contains("State:\tT") {
        assert!(began.elapsed() < Duration::from_secs(120), "it does not stop");
        std::thread::sleep(Duration::from_millis(5));
    }
    let stopped = Duration::from_secs(2);
    std::thread::sleep(stopped);
    signal(&child, libc::SIGCONT);
    let ended = {
        child.stdin.take().unwrap().write_all(b"on\n").unwrap();
        child.wait_with_output().unwrap()
    };
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let uptime = text(&ended.stdout).split_whitespace().next().unwrap().parse().unwrap();
    let (uptime, all) = (Duration::from_secs_f64(uptime), began.elapsed());
    assert!(uptime + stopped <= all, "{uptime:?} of the guest's in {all:?}");
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: our own child's number.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

#[test]
fn a_reader_that_goes_ends_the_command_as_a_pipe_does() {
    let mut child = guest(&[], &["sh", "-c", "yes; echo $? >&2"]).spawn().unwrap();
    read_until(child.stdout.as_mut().unwrap(), "y\n");
    drop(child.stdout.take());
    let mut messages = String::new();
    child.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    assert_eq!((messages.as_str(), child.wait().unwrap().code()), ("141\n", Some(0)));
}

#[test]
fn what_a_full_disk_took_is_no_success() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let why = "(No space left on device";
    let ended: Ended = guest(&[], &["echo", "text"]).stdout(full()).output().unwrap().into();
    assert_eq!(ended.status, 125, "{ended:?}");
    assert!(ended.messages.contains(&format!("standard output cannot be written {why}")), "{ended:?}");
    let files = ["--trace", "--report-file", "--status-file"];
    let options = [&files.map(|flag| [flag, "/dev/null"]).concat()[..], &["--report", "json"]].concat();
    for (flag, what) in files.iter().zip([
        "trace: it is not complete",
        "the report cannot be written",
        "--status-file cannot be written",
    ]) {
        let mut options = options.clone();
        let at = options.iter().position(|word| word == flag).unwrap();
        options[at + 1] = "/dev/full";
        let ended = shell(&options, "exit 0");
        assert_eq!(ended.status, 125, "{flag}: {ended:?}");
        assert!(ended.messages.contains(&format!("{what} {why}")), "{ended:?}");
    }
    // The command's own failure comes first.
    assert_eq!(shell(&["--trace", "/dev/full"], "exit 7").status, 7);
}

#[test]
fn folders_are_changed_where_that_is_said() {
    let (work, other) = (folder("rw"), folder("ro"));
    let path = work.to_str().unwrap();
    let share = format!("{}:source", other.display());
    fs::write(other.join("a"), "x").unwrap();
    let mounted = "mkdir /run/m && mount -t virtiofs source /run/m && cat /run/m/a
        mount -o remount,rw /run/m; echo y > /run/m/a || echo refused";
    let (mounted, told) = if is_root() { (mounted, "xrefused\n") } else { ("", "") };
    let script = format!(
        "echo new > {path}/new && chmod 600 {path}/new && mkdir {path}/d && echo lost > {}/lost
        {mounted}",
        other.display()
    );
    let ended = shell(&["--rwdir", path, "--share", &share], &script);
    assert_eq!(ended.console, told, "{}", ended.messages);
    let seen = fs::metadata(work.join("new")).unwrap();
    assert_eq!(
        (fs::read_to_string(work.join("new")).unwrap().as_str(), seen.mode() & 0o777),
        ("new\n", 0o600)
    );
    assert!(work.join("d").is_dir() && !other.join("lost").exists());
    assert_eq!(fs::read_to_string(other.join("a")).unwrap(), "x");
}

#[test]
fn another_root_is_all_that_there_is() {
    let root = folder("root");
    let busybox = fs::read(fetch(&["busybox"])).unwrap();
    fs::create_dir(root.join("bin")).unwrap();
    fs::write(root.join("bin/busybox"), busybox).unwrap();
    fs::set_permissions(root.join("bin/busybox"), PermissionsExt::from_mode(0o755)).unwrap();
    let words = ["/bin/busybox", "sh", "-c", "pwd; cd /; echo *; echo x > /made; exit 5"];
    let ended: Ended = feed(guest(&["--root", root.to_str().unwrap()], &words), b"").into();
    assert_eq!(
        (ended.console.as_str(), ended.status),
        ("/\nbin dev proc run sys\n", 5),
        "{}",
        ended.messages
    );
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
}

#[test]
fn a_guest_without_its_root_says_so() {
    // Debian's 6.1 has virtio as modules, which this folder does not hold.
    let (kernel, modules) = (fetch(&["kernel", "6.1"]), folder("modules"));
    fs::write(modules.join("modules.builtin"), "kernel/x.ko\n").unwrap();
    let modules = modules.to_str().unwrap();
    let ended = satori(&["run", "--kernel", &kernel, "--modules", modules, "--timeout", "5m", "--", "true"]);
    assert_eq!(ended.status, 125, "{}", ended.messages);
    for said in
        ["the kernel has no module virtio_pci", "before the command ran", "there is no port for the host"]
    {
        assert!(ended.messages.contains(said), "{}", ended.messages);
    }
}

#[test]
fn a_limit_ends_a_command_and_says_so() {
    let file = scratch("limit.json");
    let ended = shell(&["--guest-timeout", "20s", "--status-file", file.to_str().unwrap()], "sleep 100000");
    assert_eq!(ended.status, 124);
    assert!(ended.messages.contains("--guest-timeout ran out"), "{}", ended.messages);
    assert!(fs::read_to_string(file).unwrap().contains("\"how\":\"timeout\""));
}

#[test]
fn what_says_nothing_with_a_command_is_refused() {
    let kernel = fetch(&["kernel", "6.12"]);
    for (options, said) in [
        (&["--clock", "virtual"][..], "--clock virtual does not go with a command"),
        (&["--initrd", "x"], "--initrd does not go with a command"),
        (&["--root", "/nonexistent"], "--root /nonexistent cannot be found"),
        (&["--rwdir", "/etc/passwd"], "--rwdir /etc/passwd is no folder"),
        (&["--share", "/tmp"], "--share /tmp: write DIR:TAG"),
        (&["--share", "/tmp:a,rx"], "'rx' is none of ro, rw, cow and 9p"),
        (&["--user", "no-such-user"], "--user no-such-user: /etc/passwd has no user of this name"),
        (&["--modules", "/dev"], "--modules /dev: there are no modules in it"),
        (&["--status-file", "/nonexistent/x"], "cannot write --status-file /nonexistent/x"),
    ] {
        let ended = satori(&[&["run", "--kernel", &kernel], options, &["--", "true"]].concat());
        assert_eq!(ended.status, 2, "{options:?}: {}", ended.messages);
        assert!(ended.messages.contains(said), "{options:?}: {}", ended.messages);
        assert_eq!(ended.messages.lines().count(), 1, "{}", ended.messages);
    }
    let ended = satori(&["run", "--cpus", "2", "--"]);
    assert_eq!(ended.status, 2, "{}", ended.messages);
    assert!(ended.messages.contains("write the command that is to run there"), "{}", ended.messages);
}

#[test]
fn a_guest_whose_memory_is_full_says_so() {
    let ended = shell(&["-m", "256M"], "x=$(head -c 400M /dev/zero | tr '\\0' x); echo ${#x}");
    assert_eq!(ended.status, 137, "{ended:?}");
    let told = "satori: the guest's memory was full, and its kernel killed 'sh': give it more with -m\n";
    assert_eq!((ended.console.as_str(), ended.messages.as_str()), ("", told));
}

#[test]
fn a_loop_around_commands_that_do_not_read_loses_not_a_byte() {
    let kernel = fetch(&["kernel", "6.12"]);
    let looped = format!(
        "while read -r line; do {SATORI} run --kernel {kernel} -- sh -c ':; sleep 0.2' </dev/stdin; echo got $line; done"
    );
    let mut outer = Command::new("sh");
    outer.args(["-c", &looped]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended: Ended = feed(outer, b"one\ntwo\n").into();
    assert_eq!((ended.console.as_str(), ended.messages.as_str()), ("got one\ngot two\n", ""));
}

#[test]
fn a_command_that_reads_late_or_waits_with_select_gets_its_input() {
    let big = "0123456789abcde\n".repeat(20_000);
    let late = "sleep 0.3; perl -e 'vec($r, 0, 1) = 1; select($r, undef, undef, undef); print \"there \"' && (sleep 0.1; exec cat)";
    let ended: Ended = feed(guest(&[], &["sh", "-c", late]), big.as_bytes()).into();
    assert_eq!(ended.status, 0, "{}", ended.messages);
    assert!(ended.console == format!("there {big}"), "{} bytes of {}", ended.console.len(), big.len());
}

/// What 'satori fetch' prints is a kernel with modules, as a series is.
#[test]
fn a_fetched_kernel_that_is_named_by_its_path_has_its_modules() {
    let kernel = fetch(&["kernel", "6.1"]);
    let mut command = Command::new(SATORI);
    command.args(["run", "--kernel", &kernel, "--timeout", "5m", "--", "uname", "-r"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended: Ended = command.output().unwrap().into();
    assert!(ended.status == 0 && ended.console.starts_with("6.1."), "{ended:?}");
}

#[test]
fn modprobe_finds_modules_that_the_root_does_not_need() {
    let mut command = Command::new(SATORI);
    // The kernel calls modprobe itself where somebody opens the node of a module that is not there yet.
    let load = if is_root() { ": </dev/net/tun && grep -o ^tun /proc/modules" } else { "echo tun" };
    let script = format!("PATH=$PATH:/usr/sbin:/sbin; modprobe -n -v veth; {load}");
    command.args(["run", "--kernel", "6.1", "--timeout", "5m", "--", "sh", "-c", &script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended: Ended = command.output().unwrap().into();
    let lines: Vec<_> = ended.console.lines().collect();
    let [found, loaded] = lines[..] else { panic!("{ended:?}") };
    assert!(found.starts_with("insmod /lib/modules/6.1") && found.contains("veth.ko"), "{ended:?}");
    assert_eq!((ended.status, loaded), (0, "tun"), "{ended:?}");
}

/// Another root, and this machine's own where it is changed, get the kernel's modules as a folder of their own.
#[test]
fn modprobe_finds_modules_in_a_root_that_has_none_and_in_one_that_is_kept() {
    let root = scratch("bare-root");
    for folder in ["lib/modules/1.0-other", "dev", "proc", "sys", "run"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let busybox = fetch(&["busybox"]);
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    let root_word = root.to_str().unwrap();
    let listed = |inside: &str| {
        let mut all: Vec<_> =
            fs::read_dir(root.join(inside)).unwrap().map(|e| e.unwrap().file_name()).collect();
        all.sort();
        all
    };
    let before = (listed(""), listed("lib"), listed("lib/modules"));
    for how in [&["--root", root_word][..], &["--root", root_word, "--rw"]] {
        let mut command = Command::new(SATORI);
        command.args(["run", "--kernel", "6.1", "--timeout", "5m", "--user", "root"]).args(how);
        let script = "busybox modprobe veth && busybox grep -o ^veth /proc/modules; busybox touch /lib/modules/$(busybox uname -r)/x || echo read-only";
        command.args(["--", "/bin/busybox", "sh", "-c", script]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended: Ended = command.output().unwrap().into();
        assert_eq!((ended.status, ended.console.as_str()), (0, "veth\nread-only\n"), "{how:?}: {ended:?}");
        assert_eq!(before, (listed(""), listed("lib"), listed("lib/modules")), "{how:?}");
    }
    fs::remove_dir_all(root).unwrap();
}

#[test]
fn who_looks_on_and_another_input_go_with_a_command() {
    let (trace, socket) = (scratch("trace.json"), scratch("gdb"));
    let input = common::file("words", b"words of a file\n");
    let gdb = format!("unix:{}", socket.display());
    let options = ["--trace", trace.to_str().unwrap(), "--gdb", &gdb, "--input", &input];
    let more = ["--testdev", "exit=value", "--serial", "none", "--stall-timeout", "4m"];
    let exit = fetch(&["exit"]);
    // Only root may write to a port.
    let script = if is_root() { format!("cat; exec {exit} 9") } else { "cat; exit 9".into() };
    let words = ["sh", "-c", script.as_str()];
    let ended: Ended = feed(guest(&[&options[..], &more].concat(), &words), b"not these").into();
    assert_eq!((ended.status, ended.console.as_str()), (9, "words of a file\n"), "{}", ended.messages);
    assert_eq!(ended.messages.contains("debug exit"), is_root(), "{}", ended.messages);
    let traced = fs::read_to_string(trace).unwrap();
    assert!(traced.contains("CPUID"), "{} bytes", traced.len());
}

#[test]
fn a_command_that_stands_still_is_ended_when_that_is_asked_for() {
    let status = scratch("stalled.json");
    let options = ["--stall-timeout", "15s", "--status-file", status.to_str().unwrap()];
    let ended = shell(&options, "sleep 1000");
    assert_eq!(ended.status, 124, "{ended:?}");
    assert!(ended.messages.contains("--stall-timeout ran out"), "{ended:?}");
    // Its name is another one in kernels that are patched while they boot.
    let slept = |line: &str| line.starts_with("vCPU 0 slept ") && line.contains("native_safe_halt+0x");
    assert!(ended.messages.lines().any(slept), "{ended:?}");
    assert!(fs::read_to_string(status).unwrap().contains("\"how\":\"stalled\""));
}

/// A large program of Rust, each time at other addresses: its pages' code is moved along, and nothing leads to where it was.
#[test]
fn a_program_that_starts_again_and_again_says_the_same() {
    let script = format!(
        "first=$({SATORI} run --help); i=0
        while [ $i -lt 60 ]; do i=$((i + 1))
            [ \"$({SATORI} run --help)\" = \"$first\" ] || echo start $i of $$: other words
        done; echo $i starts"
    );
    let ended = shell(&[], &script);
    assert_eq!((ended.status, ended.console.as_str()), (0, "60 starts\n"), "{ended:?}");
}
