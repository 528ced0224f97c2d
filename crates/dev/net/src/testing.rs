//! A cable in the process of who attacks it.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};

use smoltcp::wire::EthernetAddress;

use crate::addresses::Policy;
use crate::buffer::Buffer;
use crate::stack::{Doors, Stack};

/// What is at the other end of a guest's cable.
pub struct Wire {
    stack: Stack,
    input: Buffer,
}

impl Wire {
    /// One for the card `mac`, with these doors to the guest's ports. What the guest calls goes to this host's loopback where `loopback` is given,
    /// names to that address, and nothing anywhere else that the guest must not reach; without it everything is closed.
    pub fn new(
        mac: [u8; 6],
        loopback: Option<SocketAddr>,
        tcp: Vec<(TcpListener, u16)>,
        udp: Vec<(UdpSocket, u16)>,
    ) -> Wire {
        let policy = Policy {
            restrict: loopback.is_none(),
            loopback: loopback.is_some(),
            resolvers: loopback.into_iter().collect(),
        };
        let stack = Stack::new(EthernetAddress(mac), policy, true, Doors { tcp, udp });
        Wire { stack, input: Buffer::default() }
    }

    /// Takes bytes of the guest's side, and lets everybody say something. False where they are no frames and notes.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        let taken = self.input.fill(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            Ok::<_, Infallible>(bytes.len())
        });
        taken.is_ok() && self.stack.frames(&mut self.input).is_ok() && {
            self.stack.attend_to_all();
            true
        }
    }

    /// The frames for the guest.
    pub fn take(&mut self) -> Vec<Vec<u8>> {
        self.stack.out.take()
    }

    /// Connections that there are, and pairs of addresses that exchange datagrams.
    pub fn flows(&self) -> (usize, usize) {
        (self.stack.flows.len(), self.stack.datagrams.len())
    }
}

/// The gateway's address, the name server's and the guest's.
pub const ADDRESSES: [Ipv4Addr; 3] =
    [crate::addresses::GATEWAY, crate::addresses::DNS, crate::addresses::GUEST];
