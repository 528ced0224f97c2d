//! A whole Debian, as `satori demo --system` makes and boots it. Its disk is made of packages the first time, which takes
//! minutes: the soak runs this.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use common::{SATORI, read_until};

#[test]
#[ignore = "makes a disk of packages: the soak runs it"]
fn a_whole_debian_boots_to_its_login_runs_and_powers_off() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let net = format!("user,forward=tcp:127.0.0.1:{}:22", free.port());
    let mut child = Command::new(SATORI)
        .args(["demo", "--system", "--timeout", "30m", "--net", &net])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("satori runs");
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut type_line = |line: &str| input.write_all(line.as_bytes()).expect("satori reads");
    read_until(&mut output, "login:");
    type_line("root\n");
    read_until(&mut output, "~#");
    type_line("echo \"it is $(systemctl is-system-running --wait)\"\n");
    read_until(&mut output, "it is running");
    let mut banner = [0; 8];
    TcpStream::connect(free).and_then(|mut ssh| ssh.read_exact(&mut banner)).expect("ssh answers");
    assert_eq!(banner, *b"SSH-2.0-");
    type_line("poweroff\n");
    let mut rest = Vec::new();
    output.read_to_end(&mut rest).expect("output");
    assert_eq!(child.wait().expect("satori ends").code(), Some(0), "{}", String::from_utf8_lossy(&rest));
}
