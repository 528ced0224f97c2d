//! `--net user` in Debian's kernel: a command reaches out and is reached, with what Debian's busybox brings.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use common::{Ended, SATORI, fetch};

const BYTES: usize = 4_000_000;

fn guest(net: &str, script: &str) -> Command {
    let busybox = fetch(&["busybox"]);
    let mut command = Command::new(SATORI);
    command.args([
        "run",
        "--kernel",
        "6.1",
        "--cpus",
        "2",
        "--net",
        net,
        "--timeout",
        "5m",
        "--",
        &busybox,
        "sh",
        "-c",
    ]);
    command.arg(format!("bb() {{ {busybox} \"$@\"; }}\n{script}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Sends back what comes, on as many connections.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                std::io::copy(&mut &socket, &mut &socket).and_then(|_| socket.shutdown(Shutdown::Write))
            });
        }
    });
    port
}

/// Answers every question for an address of IPv4 with 192.0.2.7, and has no others.
fn name_server() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut question = [0; 512];
        while let Ok((len, from)) = socket.recv_from(&mut question) {
            let mut answer = question[..len].to_vec();
            answer[2..4].copy_from_slice(&[0x81, 0x80]);
            answer.truncate(12 + answer[12..].iter().position(|&b| b == 0).unwrap() + 5);
            let address = answer[answer.len() - 3] == 1;
            answer[6..12].copy_from_slice(&[0, u8::from(address), 0, 0, 0, 0]);
            if address {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 7]);
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    port
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0
}

#[test]
fn a_command_reaches_out() {
    let (port, dns) = (echo(), name_server());
    let script = format!(
        "bb head -c {BYTES} /dev/urandom > /tmp/sent
        bb nc 10.0.2.2 {port} < /tmp/sent > /tmp/got
        bb cmp /tmp/sent /tmp/got && echo same of $(bb stat -c %s /tmp/got)
        bb nc -w 5 127.0.0.1 {port} < /dev/null || echo closed itself
        bb nslookup -type=a some.test | bb grep -A1 some.test
        bb udhcpc -i eth0 -n -q -f -s /bin/true 2>&1 | bb grep -o 'lease of 10.0.2.15 obtained from 10.0.2.2'
        bb ip route | bb grep -o 'default via 10.0.2.2'"
    );
    let ended: Ended = guest(&format!("user,loopback,dns=127.0.0.1:{dns}"), &script).output().unwrap().into();
    for told in [
        format!("same of {BYTES}"),
        "closed itself".into(),
        "192.0.2.7".into(),
        // Only root may send what asks for a lease.
        if is_root() { "lease of 10.0.2.15".into() } else { "closed itself".into() },
        "default via".into(),
    ] {
        assert!(ended.console.contains(&told), "{told} of: {}\n{}", ended.console, ended.messages);
    }
}

#[test]
fn a_command_is_reached_by_a_forward_and_reaches_nobody() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let closed = echo();
    let script = format!(
        "bb nc -w 5 10.0.2.2 {closed} < /dev/null 2>/dev/null && echo reached
        bb nc -w 5 192.0.2.1 80 < /dev/null 2>/dev/null && echo reached
        echo listens; bb nc -l -p 7007 -e {} cat",
        fetch(&["busybox"])
    );
    let net = format!("user,restrict,forward=tcp:127.0.0.1:{port}:7007");
    let mut child = guest(&net, &script).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "listens");
    let sent: Vec<u8> = (0..BYTES as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut got = Vec::new();
    // Until it listens its kernel refuses, as it would at home.
    for _ in 0..300 {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut to, data) = (socket.try_clone().unwrap(), sent.clone());
        let feeder = thread::spawn(move || to.write_all(&data).and_then(|()| to.shutdown(Shutdown::Write)));
        got.clear();
        let read = (&socket).read_to_end(&mut got);
        let fed = feeder.join().unwrap();
        if read.is_ok() && fed.is_ok() && !got.is_empty() {
            break;
        }
        thread::sleep(Duration::from_millis(100));
    }
    assert!(got == sent, "{} of {BYTES} bytes came back, or others", got.len());
    let ended = child.wait().unwrap();
    assert!(ended.success(), "{ended}");
}

#[test]
fn networks_that_cannot_be_are_refused() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let door = format!("user,forward=tcp:{}:22", taken.local_addr().unwrap());
    for (net, told) in [
        (&door[..], "cannot listen there"),
        ("passt=/nonexistent", "start 'passt --socket"),
        ("tap=tap0", "ip tuntap add"),
        ("bridge=br0", "write tap=NAME"),
        ("user,forward=tcp:22:22", "127.0.0.1:2222:22"),
    ] {
        let ended: Ended = guest(net, "true").output().unwrap().into();
        assert_eq!(ended.status, 2, "{net}: {}", ended.messages);
        assert!(
            ended.messages.contains(told) && ended.messages.lines().count() == 1,
            "{net}: {}",
            ended.messages
        );
    }
}

/// What runs in a network namespace of its own: a tap, a server behind it, and a guest.
const TAP: &str = r#"
set -e
ip tuntap add dev tap0 mode tap multi_queue
ip addr add 192.168.77.1/24 dev tap0
ip link set tap0 up
ip link set lo up
perl -MIO::Socket::INET -e '
    $l = IO::Socket::INET->new(LocalAddr => "192.168.77.1:99", Listen => 9, ReuseAddr => 1) or die "listen: $!";
    while ($c = $l->accept) { if (!fork) { while (sysread($c, $b, 1 << 16)) { syswrite($c, $b) or last } exit } close $c }' &
server=$!
trap 'kill $server' EXIT
"$SATORI" run --kernel "$KERNEL" --cpus 2 --user root --net tap=tap0,queues=2 --timeout 5m -- "$BUSYBOX" sh -c "
    bb() { $BUSYBOX \"\$@\"; }
    bb ip addr add 192.168.77.2/24 dev eth0; bb ip link set eth0 up
    bb ping -c 2 -s 1400 192.168.77.1 | bb grep -o '2 packets received'
    bb head -c 4000000 /dev/urandom > /tmp/sent
    bb nc 192.168.77.1 99 < /tmp/sent > /tmp/got & bb nc 192.168.77.1 99 < /tmp/sent > /tmp/more; wait
    bb cmp /tmp/sent /tmp/got && bb cmp /tmp/sent /tmp/more && echo same twice
    cat /sys/class/net/eth0/queues/tx-1/tx_timeout > /dev/null && echo two queues"
"#;

#[test]
fn a_guest_on_a_tap_speaks_with_its_host() {
    let (kernel, busybox) = (fetch(&["kernel", "6.12"]), fetch(&["busybox"]));
    let own = ["unshare", "--net", if is_root() { "--mount" } else { "--map-root-user" }];
    let inside = |script: &str| -> Ended {
        let mut command = Command::new(own[0]);
        command.args(&own[1..]).args(["sh", "-c", script]).stdin(Stdio::null());
        command.env("SATORI", SATORI).env("KERNEL", &kernel).env("BUSYBOX", &busybox);
        command.output().expect("unshare(1)").into()
    };
    // In a container there may be neither namespaces nor taps.
    let can = inside("ip tuntap add dev tap0 mode tap multi_queue");
    if can.status != 0 {
        eprintln!("not tried: no tap in a network namespace of its own can be had here: {}", can.messages);
        return;
    }
    let ended = inside(TAP);
    let told = "2 packets received\nsame twice\ntwo queues\n";
    assert_eq!((ended.console.as_str(), ended.status), (told, 0), "{ended:?}");
    for (tap, said) in [("nowhere", "there is none of this name"), ("lo", "ip tuntap add dev lo")] {
        let net = format!("tap={tap}");
        let ended = common::satori(&["run", "--kernel", &kernel, "--net", &net, "--", "true"]);
        assert_eq!((ended.status, ended.messages.lines().count()), (2, 1), "{ended:?}");
        assert!(ended.messages.contains(said), "{ended:?}");
    }
}
