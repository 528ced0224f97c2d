//! Runs that are written down with all that came from outside, and run once more.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{SATORI, fetch, scratch};

/// Runs satori with `words`, and `input` at its standard input.
fn run(words: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "900", SATORI, "run"]).args(words);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("satori runs");
    // One that does not read may have closed it.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().expect("it ends")
}

/// The words of a run that is recorded or replayed, with a report in a file.
fn words<'a>(
    how: &'a str,
    record: &'a str,
    report: &'a str,
    kernel: &'a str,
    more: &[&'a str],
) -> Vec<&'a str> {
    let common =
        [how, record, "--kernel", kernel, "--report", "json", "--report-file", report, "--timeout", "10m"];
    [&common[..], more].concat()
}

struct Files {
    record: PathBuf,
    reports: [PathBuf; 2],
}

impl Files {
    fn new(name: &str) -> Self {
        let at = |what: &str| scratch(&format!("record-{name}-{what}"));
        Files { record: at("file"), reports: [at("first"), at("second")] }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.record);
        self.reports.iter().for_each(|report| drop(fs::remove_file(report)));
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A command's run and its replay: both outputs, and that the reports are alike.
fn twice(name: &str, kernel: &str, more: &[&str], input: &[u8], meanwhile: impl FnOnce()) -> [Output; 2] {
    let files = Files::new(name);
    let first = run(&words("--record", text(&files.record), text(&files.reports[0]), kernel, more), input);
    assert!(!first.stdout.is_empty(), "{first:?}");
    meanwhile();
    let second =
        run(&words("--replay", text(&files.record), text(&files.reports[1]), kernel, more), b"not these");
    assert_eq!(first.stdout, second.stdout, "{name}: {second:?}");
    assert_eq!((first.status, &first.stderr), (second.status, &second.stderr), "{name}");
    let reports = files.reports.each_ref().map(|report| fs::read(report).expect("a report"));
    assert!(reports[0] == reports[1], "{name}: the reports differ");
    [first, second]
}

#[test]
fn a_command_runs_again_without_its_folder_input_and_clock() {
    let kernel = fetch(&["kernel", "6.12"]);
    let folder = scratch("record-root");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("words");
    fs::write(&file, "of then\n").unwrap();
    let script = format!("date +%s%N; cat {}; read a; echo \"got $a\"; cat | wc -c; exit 7", file.display());
    let input = [b"first\n".to_vec(), vec![b'x'; 300_000]].concat();
    let [first, _] = twice("command", &kernel, &["--", "sh", "-c", &script], &input, || {
        fs::write(&file, "of now\n").unwrap();
    });
    let shown = String::from_utf8_lossy(&first.stdout);
    assert!(shown.contains("of then\ngot first\n300000\n"), "{shown}");
    assert_eq!(first.status.code(), Some(7), "{first:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_a_network_brought_comes_again() {
    let kernel = fetch(&["kernel", "6.12"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut guest, _) = listener.accept().unwrap();
        let mut asked = [0; 4];
        guest.read_exact(&mut asked).unwrap();
        guest.write_all(&[&asked[..], &vec![b'y'; 200_000]].concat()).unwrap();
    });
    let script = format!(
        "use Socket; socket(S, PF_INET, SOCK_STREAM, 0); connect(S, pack_sockaddr_in({port}, inet_aton('10.0.2.2'))) or die \"$!\"; \
         syswrite S, 'ping'; while (sysread S, $b, 65536) {{ $n .= $b }} print substr($n, 0, 6), length $n, \"\\n\""
    );
    let more = ["--net", "user,loopback", "--cpus", "2", "--", "perl", "-e", &script];
    let [first, _] = twice("network", &kernel, &more, b"", || {});
    assert_eq!(String::from_utf8_lossy(&first.stdout), "pingyy200004\n", "{first:?}");
    server.join().unwrap();
}

#[test]
fn another_run_and_a_file_that_is_not_whole_are_refused() {
    let kernel = fetch(&["kernel", "6.12"]);
    let files = Files::new("refused");
    let (record, report) = (text(&files.record), text(&files.reports[0]));
    let first = run(&words("--record", record, report, &kernel, &["--", "echo", "a"]), b"");
    assert_eq!((first.status.code(), &first.stdout[..]), (Some(0), &b"a\n"[..]), "{first:?}");
    // It has what the command was given and read.
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&files.record).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let whole = fs::read(&files.record).unwrap();
    let other = fetch(&["kernel", "6.1"]);
    let refused = |kernel: &str, more: &[&str], said: &str| {
        let ended = run(&words("--replay", record, report, kernel, more), b"");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{more:?}: {ended:?}");
        assert!(told.contains(said) && told.lines().count() == 1, "{more:?}: {told}");
    };
    refused(&other, &["--", "echo", "a"], "its kernel is not that of this run");
    refused(&kernel, &["--", "echo", "b"], "its command is not that of this run");
    refused(&kernel, &["-m", "2G", "--", "echo", "a"], "its memory is not that of this run");
    refused(&kernel, &["--cpus", "2", "--", "echo", "a"], "its number of processors");
    refused(&kernel, &["--net", "user", "--", "echo", "a"], "its list of devices");
    let socket = scratch("record-refused.sock");
    refused(&kernel, &["--vsock", text(&socket), "--", "echo", "a"], "(--vsock) is not recorded");
    assert!(!socket.exists(), "nothing was made for it");
    fs::write(&files.record, &whole[..whole.len() / 2]).unwrap();
    refused(&kernel, &["--", "echo", "a"], "it is cut off");
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&files.record, &damaged).unwrap();
    refused(&kernel, &["--", "echo", "a"], "it is damaged");
    fs::write(&files.record, "#!/bin/sh\nexit 0\n# nothing that anybody recorded\n").unwrap();
    refused(&kernel, &["--", "echo", "a"], "it is no record");
}
