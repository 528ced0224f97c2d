//! `--vsock` in Debian's kernel: the guest is reached, and reaches out, by Unix sockets of the host.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use common::{SATORI, fetch, read_until, satori, scratch};

/// Bytes that are no text, each time the same.
fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// AF_VSOCK is 40, and an address family, reserved, port and CID, as linux/vm_sockets.h has them. The guest listens at port 77 and sends
/// back what comes; connects to the host's port 99, which somebody serves, and to 98, which nobody does.
const GUEST: &str = r#"use Socket; $| = 1;
sub address { pack("S S L L", 40, 0, $_[0], $_[1]) . "\0" x 4 }
socket($l, 40, SOCK_STREAM, 0) or die "socket: $!"; bind($l, address(77, 0xffffffff)) or die "bind: $!"; listen($l, 5); print "listening\n";
for (1 .. 2) { accept($c, $l) or die "accept: $!"; while (sysread($c, $b, 1 << 16)) { for ($at = 0; $at < length $b;) { $at += syswrite($c, $b, length($b) - $at, $at) or die "write: $!" } } close $c }
socket($s, 40, SOCK_STREAM, 0); connect($s, address(99, 2)) or die "connect: $!";
syswrite($s, "from the guest\n"); shutdown($s, 1); print "host: ", <$s>;
socket($n, 40, SOCK_STREAM, 0); print connect($n, address(98, 2)) ? "reached\n" : "refused\n";
"#;

#[test]
fn a_guest_is_reached_and_reaches_out_by_unix_sockets() {
    let (kernel, path) = (fetch(&["kernel", "6.12"]), scratch("sock"));
    let shown = path.to_str().unwrap();
    let served = format!("{shown}_99");
    let _ = std::fs::remove_file(&served);
    let door = UnixListener::bind(&served).unwrap();
    let mut command = Command::new(SATORI);
    let vsock = format!("{shown},cid=5");
    command.args(["run", "--kernel", &kernel, "--cpus", "2", "--vsock", &vsock, "--timeout", "5m"]);
    command.args(["--", "perl", "-e", GUEST]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("satori runs");
    let mut output = child.stdout.take().unwrap();
    read_until(&mut output, "listening\n");
    // Nobody listens at this port of the guest's, and this is no line that asks for one.
    for line in ["CONNECT 78\n", "CONNECT x\n", "HELLO ".repeat(30).as_str()] {
        let mut wrong = UnixStream::connect(&path).unwrap();
        let _ = wrong.write_all(line.as_bytes());
        let mut said = String::new();
        let _ = wrong.read_to_string(&mut said);
        assert_eq!(said, "", "{line}");
    }
    for bytes in [0, 3_000_000] {
        let data = noise(bytes);
        let mut guest = UnixStream::connect(&path).unwrap();
        guest.write_all(b"CONNECT 77\n").unwrap();
        let mut reader = BufReader::new(guest.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(line.starts_with("OK ") && line.trim_end()[3..].parse::<u32>().is_ok(), "{line}");
        let sent = data.clone();
        let sender = std::thread::spawn(move || {
            guest.write_all(&sent).unwrap();
            guest.shutdown(Shutdown::Write).unwrap();
        });
        let mut back = Vec::new();
        reader.read_to_end(&mut back).unwrap();
        sender.join().unwrap();
        assert!(back == data, "{} of {bytes} bytes came back, or others", back.len());
    }
    let (mut host, _) = door.accept().unwrap();
    let mut said = String::new();
    host.read_to_string(&mut said).unwrap();
    assert_eq!(said, "from the guest\n");
    host.write_all(b"from the host\n").unwrap();
    drop(host);
    let told = std::io::read_to_string(&mut output).unwrap();
    let ended = child.wait_with_output().unwrap();
    let messages = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((told.as_str(), messages.as_ref()), ("host: from the host\nrefused\n", ""));
    assert_eq!(ended.status.code(), Some(0));
    std::fs::remove_file(&served).unwrap();
}

#[test]
fn a_place_where_nobody_can_listen_is_refused() {
    let kernel = fetch(&["kernel", "6.12"]);
    let file = common::file("taken", b"a file");
    for (place, said) in [
        (file.as_str(), "Address already in use"),
        ("/nonexistent/folder/sock", "No such file or directory"),
        ("sock,cid=1", "from 3"),
    ] {
        let ended = satori(&["run", "--kernel", &kernel, "--vsock", place, "--", "true"]);
        assert_eq!((ended.status, ended.messages.lines().count()), (2, 1), "{ended:?}");
        assert!(ended.messages.contains(said), "{ended:?}");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"a file");
}
