//! Frames to the guest, and notes to its card: built in place, each behind its length.

use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;

use satori_defs::cable::{NOTE, NOTE_HEADER};
use smoltcp::phy::{Checksum, ChecksumCapabilities};
use smoltcp::wire::{
    ETHERNET_HEADER_LEN, EthernetAddress, EthernetFrame, EthernetProtocol, EthernetRepr,
    Icmpv4DstUnreachable, Icmpv4Packet, Icmpv4Repr, Icmpv6DstUnreachable, Icmpv6Packet, Icmpv6Repr,
    IpAddress, IpProtocol, IpRepr, TcpPacket, TcpRepr, UdpPacket, UdpRepr,
};

use crate::addresses::OUR_MAC;
use crate::buffer::Buffer;

/// Hops that a packet of ours may still make: none, as the guest is at the same cable; neighbour discovery asks for 255.
const HOPS: u8 = 64;
const NEIGHBOUR_HOPS: u8 = 255;
/// Bytes of a refused packet that are sent back (RFC 1812, 4.3.2.3).
const QUOTE: usize = 500;

/// What is looked at in what the guest sends. Its card may leave checksums of TCP and UDP to us, and between it and us
/// nothing gets lost.
pub(crate) fn trusting() -> ChecksumCapabilities {
    let mut caps = ChecksumCapabilities::default();
    caps.tcp = Checksum::Tx;
    caps.udp = Checksum::Tx;
    caps
}

/// Where frames for the guest wait to be sent.
#[derive(Debug)]
pub(crate) struct Out {
    bytes: Buffer,
    guest: EthernetAddress,
}

/// Why a packet goes nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nobody listens.
    Port,
    /// There is no way there.
    Host,
    /// It is not permitted.
    Prohibited,
}

impl Out {
    pub(crate) fn new(guest: EthernetAddress) -> Self {
        Out { bytes: Buffer::default(), guest }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All frames, for who attacks and for tests; notes are left out.
    pub(crate) fn take(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some((head, rest)) = self.bytes.bytes().split_first_chunk::<4>() {
            let head = u32::from_be_bytes(*head);
            let len = (head & !NOTE) as usize;
            if head & NOTE == 0 {
                frames.push(rest[..len].to_vec());
            }
            self.bytes.pass(4 + len);
        }
        frames
    }

    /// Sends what the socket takes without waiting.
    pub(crate) fn send(&mut self, mut socket: &UnixStream) -> std::io::Result<()> {
        while !self.bytes.is_empty() {
            match socket.write(self.bytes.bytes()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.bytes.pass(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A frame with `len` bytes of payload, which `fill` fills.
    pub(crate) fn frame(&mut self, kind: EthernetProtocol, len: usize, fill: impl FnOnce(&mut [u8])) {
        let whole = ETHERNET_HEADER_LEN + len;
        let repr = EthernetRepr { src_addr: OUR_MAC, dst_addr: self.guest, ethertype: kind };
        let Ok(_) = self.bytes.fill(4 + whole, |room| -> Result<usize, std::convert::Infallible> {
            let (head, frame) = room.split_at_mut(4);
            head.copy_from_slice(&(whole as u32).to_be_bytes());
            repr.emit(&mut EthernetFrame::new_unchecked(&mut frame[..ETHERNET_HEADER_LEN]));
            fill(&mut frame[ETHERNET_HEADER_LEN..]);
            Ok(4 + whole)
        });
    }

    /// A note for the guest's card.
    pub(crate) fn note(&mut self, kind: u8, number: u32, told: &[u8]) {
        let len = NOTE | (NOTE_HEADER + told.len()) as u32;
        self.bytes.put(&len.to_be_bytes());
        self.bytes.put(&[kind]);
        self.bytes.put(&number.to_be_bytes());
        self.bytes.put(told);
    }

    fn packet(
        &mut self,
        (from, to): (IpAddr, IpAddr),
        protocol: IpProtocol,
        hops: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8], &IpAddress, &IpAddress),
    ) {
        let (from, to) = (IpAddress::from(from), IpAddress::from(to));
        let kind = match (from, to) {
            (IpAddress::Ipv4(_), IpAddress::Ipv4(_)) => EthernetProtocol::Ipv4,
            (IpAddress::Ipv6(_), IpAddress::Ipv6(_)) => EthernetProtocol::Ipv6,
            // Nobody sends from one to the other.
            _ => return,
        };
        let header = IpRepr::new(from, to, protocol, len, hops);
        let at = header.header_len();
        self.frame(kind, at + len, |room| {
            header.emit(&mut room[..], &ChecksumCapabilities::default());
            fill(&mut room[at..], &from, &to);
        });
    }

    pub(crate) fn tcp(&mut self, from: IpAddr, to: IpAddr, segment: &TcpRepr<'_>) {
        self.packet((from, to), IpProtocol::Tcp, HOPS, segment.buffer_len(), |room, from, to| {
            segment.emit(&mut TcpPacket::new_unchecked(room), from, to, &ChecksumCapabilities::default());
        });
    }

    pub(crate) fn udp(&mut self, from: (IpAddr, u16), to: (IpAddr, u16), data: &[u8]) {
        let repr = UdpRepr { src_port: from.1, dst_port: to.1 };
        let len = repr.header_len() + data.len();
        self.packet((from.0, to.0), IpProtocol::Udp, HOPS, len, |room, from, to| {
            let caps = ChecksumCapabilities::default();
            let mut packet = UdpPacket::new_unchecked(room);
            repr.emit(&mut packet, from, to, data.len(), |place| place.copy_from_slice(data), &caps);
        });
    }

    pub(crate) fn icmp4(&mut self, from: IpAddr, to: IpAddr, message: &Icmpv4Repr<'_>) {
        self.packet((from, to), IpProtocol::Icmp, HOPS, message.buffer_len(), |room, _, _| {
            message.emit(&mut Icmpv4Packet::new_unchecked(room), &ChecksumCapabilities::default());
        });
    }

    pub(crate) fn icmp6(&mut self, from: IpAddr, to: IpAddr, message: &Icmpv6Repr<'_>) {
        let (IpAddr::V6(a), IpAddr::V6(b)) = (from, to) else { return };
        self.packet((from, to), IpProtocol::Icmpv6, NEIGHBOUR_HOPS, message.buffer_len(), |room, _, _| {
            message.emit(&a, &b, &mut Icmpv6Packet::new_unchecked(room), &ChecksumCapabilities::default());
        });
    }

    /// Tells the guest that its packet, of this header and payload, went nowhere. It hears it from `from`.
    pub(crate) fn refuse(&mut self, from: IpAddr, header: &IpRepr, payload: &[u8], why: Refusal) {
        let data = &payload[..payload.len().min(QUOTE)];
        match *header {
            IpRepr::Ipv4(header) => {
                let reason = match why {
                    Refusal::Port => Icmpv4DstUnreachable::PortUnreachable,
                    Refusal::Host => Icmpv4DstUnreachable::HostUnreachable,
                    Refusal::Prohibited => Icmpv4DstUnreachable::CommProhibited,
                };
                let header = smoltcp::wire::Ipv4Repr { payload_len: data.len(), ..header };
                let to = header.src_addr.into();
                self.icmp4(from, to, &Icmpv4Repr::DstUnreachable { reason, header, data });
            }
            IpRepr::Ipv6(header) => {
                let reason = match why {
                    Refusal::Port => Icmpv6DstUnreachable::PortUnreachable,
                    Refusal::Host => Icmpv6DstUnreachable::AddrUnreachable,
                    Refusal::Prohibited => Icmpv6DstUnreachable::AdminProhibit,
                };
                let header = smoltcp::wire::Ipv6Repr { payload_len: data.len(), ..header };
                let to = header.src_addr.into();
                self.icmp6(from, to, &Icmpv6Repr::DstUnreachable { reason, header, data });
            }
        }
    }
}
