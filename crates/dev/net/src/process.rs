//! The network's process: how it is started, what it gives away, what it tells before it serves.

use std::io::stdin;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use rustix::net::SocketType;
use satori_host::spin::Spins;
use satori_sandbox::helper::{FAILED, Helper, Unstarted, more_files, say_ready, say_why};
use satori_sandbox::{Mode as Sandbox, enter_network};
use smoltcp::wire::EthernetAddress;

use crate::Options;
use crate::addresses::Policy;
use crate::datagram;
use crate::stack::{Doors, Stack};

/// The word that makes our own binary a user network; no row of the table of commands.
pub const COMMAND: &str = "__net";

/// Bytes that the socket to the machine should take: some frames of 64 KiB.
const SOCKET: usize = 1 << 20;

/// Where the host's name servers stand.
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process did not come to be.
    #[error("the user network cannot be started ({0}): free memory or processes, and try again")]
    Start(std::io::Error),
    /// It said why it cannot serve.
    #[error("--net user: {0}")]
    Refused(String),
}

/// Starts `program`, which is this binary, as the network of the guest with card `mac`. Returns when it serves.
pub fn start(program: &Path, options: &Options, mac: [u8; 6], sandbox: Sandbox) -> Result<Helper, Error> {
    let (ours, theirs) = UnixStream::pair().map_err(Error::Start)?;
    for socket in [&ours, &theirs] {
        // The host's limit may be less, which costs time and nothing else.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, SOCKET);
    }
    let mut command = Command::new(program);
    command.args([COMMAND, sandbox.name(), &EthernetAddress(mac).to_string()]).args(options.words());
    Helper::start(&mut command, ours, theirs).map_err(|why| match why {
        Unstarted::Start(error) => Error::Start(error),
        Unstarted::Refused(_) => Error::Refused(why.to_string()),
    })
}

/// The network's own process: `arguments` as [`start`] gives them, the socket as standard input. Returns its
/// exit status.
pub fn main(arguments: &[std::ffi::OsString]) -> i32 {
    match prepare(arguments) {
        Ok((stack, socket)) => match stack.run(socket) {
            Ok(()) => 0,
            // Who is at the other end sees that the socket is closed.
            Err(_) => FAILED,
        },
        Err(why) => say_why(&why),
    }
}

fn prepare(arguments: &[std::ffi::OsString]) -> Result<(Stack, UnixStream), String> {
    let words: Vec<_> = arguments.iter().filter_map(|word| word.to_str()).collect();
    let [sandbox, mac, words @ ..] = &words[..] else { return Err("two arguments are wanted".into()) };
    let sandbox = Sandbox::of(sandbox).ok_or("no such sandbox")?;
    let mac = mac.parse::<EthernetAddress>().map_err(|()| "no such address of a card")?;
    let mut options = Options::default();
    words.iter().try_for_each(|word| options.word(word))?;
    let socket = stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    more_files();
    let doors = open_doors(&options)?;
    let resolvers = match options.dns {
        Some(dns) => vec![dns],
        None => resolvers(&std::fs::read_to_string(RESOLV_CONF).unwrap_or_default()),
    };
    let mut limits = limits(&resolvers);
    let routed6 = routed6();
    let keep: Vec<_> = (doors.tcp.iter().map(|(door, _)| door.as_raw_fd()))
        .chain(doors.udp.iter().map(|(door, _)| door.as_raw_fd()))
        .chain([socket.as_raw_fd()])
        .collect();
    let spins = Spins::here();
    let measures = enter_network(sandbox, &keep, FAILED).map_err(|why| why.to_string())?;
    if !routed6 {
        limits.push("IPv6: this host has no way out, so the guest is given none".into());
    }
    say_ready(&measures, &limits).map_err(|why| why.to_string())?;
    let policy = Policy { restrict: options.restrict, loopback: options.loopback, resolvers };
    let mut stack = Stack::new(mac, policy, routed6, doors);
    stack.spins = spins;
    Ok((stack, socket.into()))
}

/// Opens the ports that lead in, while that is permitted.
fn open_doors(options: &Options) -> Result<Doors, String> {
    let mut doors = Doors::default();
    for forward in &options.forwards {
        let failed = |why: std::io::Error| {
            let why = why.to_string();
            let why = why.split(" (os error").next().unwrap_or(&why).to_owned();
            format!("{forward}: cannot listen there ({why}): name another address or port")
        };
        if forward.udp {
            let socket = UdpSocket::bind(forward.host).map_err(failed)?;
            socket.set_nonblocking(true).map_err(failed)?;
            doors.udp.push((socket, forward.guest));
        } else {
            let door = TcpListener::bind(forward.host).map_err(failed)?;
            door.set_nonblocking(true).map_err(failed)?;
            doors.tcp.push((door, forward.guest));
        }
    }
    Ok(doors)
}

/// The name servers of a resolv.conf(5).
fn resolvers(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    // A zone behind a link-local address is the host's, and so would be the way there.
    lines.filter_map(|rest| Some(SocketAddr::new(rest.trim().parse().ok()?, 53))).collect()
}

/// What the guest will miss, in words.
fn limits(resolvers: &[SocketAddr]) -> Vec<String> {
    let mut lines = Vec::new();
    if let Err(why) = datagram::open(SocketAddr::from(([0, 0, 0, 0], 0)).ip(), SocketType::DGRAM, true) {
        lines.push(format!(
            "ping: only the gateway answers, as this host permits no ICMP sockets ({why}): net.ipv4.ping_group_range"
        ));
    }
    if resolvers.is_empty() {
        lines.push(format!(
            "names: {RESOLV_CONF} names no server, so nobody answers at 10.0.2.3: dns=ADDRESS"
        ));
    }
    lines
}

/// Whether there is a way out for IPv6. No packet is sent for that.
fn routed6() -> bool {
    let outside = SocketAddr::new(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1).into(), 53);
    datagram::open(outside.ip(), SocketType::DGRAM, false)
        .is_ok_and(|socket| rustix::net::connect(socket, &outside).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_found_where_the_host_keeps_them() {
        let text =
            "# x\nsearch a\nnameserver 192.0.2.1\n nameserver\t2001:db8::1 \nnameserver fe80::1%eth0\n";
        let found = resolvers(text);
        assert_eq!(found, ["192.0.2.1:53".parse().unwrap(), "[2001:db8::1]:53".parse().unwrap()]);
    }
}
