//! Datagrams and pings: a socket of the host for each pair of addresses, until nobody has used it for a while.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send, socket_with,
};
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, IpRepr};

use crate::wire::{Out, Refusal, trusting};

/// The largest datagram.
const LARGEST: usize = 65_507;
/// Milliseconds that an unused one is kept.
pub(crate) const IDLE: u64 = 60_000;
/// Datagrams that are taken from one socket before the others' turn.
const TURN: usize = 32;

/// Who speaks with whom, as the guest sees it; a ping's number stands for the guest's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub guest: SocketAddr,
    pub remote: SocketAddr,
    pub ping: bool,
}

/// A socket, connected to who the guest speaks with: from others it hears nothing.
#[derive(Debug)]
pub(crate) struct Flow {
    key: Key,
    socket: OwnedFd,
    /// When it was last used, in milliseconds.
    pub touched: u64,
    /// The guest's last packet: who refuses it is told of it.
    last: Option<(IpRepr, Vec<u8>)>,
}

/// A socket that does not wait.
pub(crate) fn open(to: IpAddr, kind: SocketType, ping: bool) -> Result<OwnedFd, Errno> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let protocol = ping.then_some(ipproto::ICMP);
    socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, protocol)
}

fn refusal(errno: Errno) -> Refusal {
    match errno {
        Errno::CONNREFUSED => Refusal::Port,
        Errno::ACCESS | Errno::PERM | Errno::PROTONOSUPPORT => Refusal::Prohibited,
        _ => Refusal::Host,
    }
}

impl Flow {
    /// One that leads to `to`.
    pub(crate) fn new(key: Key, to: SocketAddr, now: u64) -> Result<Self, Refusal> {
        let socket = open(to.ip(), SocketType::DGRAM, key.ping).map_err(refusal)?;
        connect(&socket, &to).map_err(refusal)?;
        Ok(Flow { key, socket, touched: now, last: None })
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sends what came in a packet of this header and payload. That the host has no room is a datagram that is lost.
    pub(crate) fn send(
        &mut self,
        now: u64,
        header: &IpRepr,
        payload: &[u8],
        data: &[u8],
    ) -> Result<(), Refusal> {
        self.touched = now;
        let quote = payload.len().min(64);
        self.last = Some((header.clone(), payload[..quote].to_vec()));
        match send(&self.socket, data, SendFlags::empty()) {
            Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) | Ok(_) => Ok(()),
            Err(errno) => Err(refusal(errno)),
        }
    }

    /// Takes what came for the guest.
    pub(crate) fn pull(&mut self, out: &mut Out, now: u64) {
        let mut data = vec![0; LARGEST];
        for _ in 0..TURN {
            match recv(&self.socket, &mut data[..], RecvFlags::empty()) {
                Ok((len, _)) => {
                    self.touched = now;
                    self.bring(out, &data[..len]);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    if let Some((header, payload)) = self.last.take() {
                        out.refuse(self.key.remote.ip(), &header, &payload, refusal(errno));
                    }
                    return;
                }
            }
        }
    }

    fn bring(&self, out: &mut Out, data: &[u8]) {
        let (from, to) = (self.key.remote, self.key.guest);
        if !self.key.ping {
            return out.udp((from.ip(), from.port()), (to.ip(), to.port()), data);
        }
        // The host numbers pings by itself.
        let packet = Icmpv4Packet::new_checked(data);
        let message = packet.as_ref().map(|packet| Icmpv4Repr::parse(packet, &trusting()));
        if let Ok(Ok(Icmpv4Repr::EchoReply { seq_no, data, .. })) = message {
            let reply = Icmpv4Repr::EchoReply { ident: to.port(), seq_no, data };
            out.icmp4(from.ip(), to.ip(), &reply);
        }
    }
}
