//! A hostile guest at the user network's cable: frames of any content, with forged addresses, lengths that lie, and options of IP, TCP and DHCP
//! that say anything; questions to a name server of ours, connections to and from a listener of ours.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use arbitrary::{Result, Unstructured};
use satori_net::testing::{ADDRESSES, Wire};

const MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];
const GATEWAY_MAC: [u8; 6] = [0x52, 0x55, 10, 0, 2, 2];
/// Steps at most, and bytes of a payload.
const STEPS: usize = 80;
const PAYLOAD: usize = 300;
/// Connections and pairs of addresses that the network keeps at most.
const FLOWS: usize = 1024;
const DATAGRAMS: usize = 512;
/// The guest's port that doors lead to.
const PORT: u16 = 22;

/// The host's side: who is called, and who calls.
struct Host {
    listener: TcpListener,
    names: UdpSocket,
    doors: [SocketAddr; 2],
    streams: Vec<TcpStream>,
}

impl Host {
    fn new(loopback: bool) -> std::io::Result<(Self, Wire)> {
        let here = (Ipv4Addr::LOCALHOST, 0);
        let listener = TcpListener::bind(here)?;
        listener.set_nonblocking(true)?;
        // One port of both kinds: the guest's calls to the gateway come to it, and its questions as well.
        let address = listener.local_addr()?;
        let names = UdpSocket::bind(address)?;
        names.set_nonblocking(true)?;
        let (door, datagrams) = (TcpListener::bind(here)?, UdpSocket::bind(here)?);
        door.set_nonblocking(true)?;
        datagrams.set_nonblocking(true)?;
        let doors = [door.local_addr()?, datagrams.local_addr()?];
        let wire = Wire::new(MAC, loopback.then_some(address), vec![(door, PORT)], vec![(datagrams, PORT)]);
        Ok((Host { listener, names, doors, streams: Vec::new() }, wire))
    }

    fn port(&self) -> u16 {
        self.listener.local_addr().map_or(0, |address| address.port())
    }

    /// Somebody on the host does something.
    fn act(&mut self, u: &mut Unstructured) -> Result<()> {
        if let Ok((stream, _)) = self.listener.accept() {
            let _ = stream.set_nonblocking(true);
            self.streams.push(stream);
        }
        let mut bytes = [0; 2048];
        match u.int_in_range(0..=4)? {
            0 => {
                if let Ok(stream) = TcpStream::connect(self.doors[0]) {
                    let _ = stream.set_nonblocking(true);
                    self.streams.push(stream);
                }
            }
            1 => drop(self.names.send_to(b"a datagram", self.doors[1])),
            2 => {
                if let Ok((count, from)) = self.names.recv_from(&mut bytes) {
                    let _ = self.names.send_to(&bytes[..count], from);
                }
            }
            3 => {
                for stream in &mut self.streams {
                    let _ = (stream.read(&mut bytes), stream.write(&bytes));
                }
            }
            _ => drop(self.streams.pop()),
        }
        Ok(())
    }
}

/// What the guest saw last of a connection: the ports of both sides and the numbers that come next.
#[derive(Clone, Copy, Default)]
struct Seen {
    ports: [u8; 4],
    sequence: u32,
    acknowledged: u32,
}

fn payload(u: &mut Unstructured) -> Result<Vec<u8>> {
    let count = u.int_in_range(0..=PAYLOAD)?.min(u.len());
    Ok(u.bytes(count)?.to_vec())
}

fn port(host: &Host, u: &mut Unstructured) -> Result<[u8; 2]> {
    Ok((*u.choose(&[host.port(), 53, 67, 68, PORT, 0, 40_000])?).to_be_bytes())
}

fn tcp(host: &Host, seen: &Seen, u: &mut Unstructured) -> Result<Vec<u8>> {
    let mut segment = Vec::new();
    if u.ratio(2, 3)? {
        segment.extend([seen.ports[2], seen.ports[3], seen.ports[0], seen.ports[1]]);
    } else {
        segment.extend([port(host, u)?, port(host, u)?].concat());
    }
    let near = |base: u32, u: &mut Unstructured| {
        Ok(match u.int_in_range(0..=3)? {
            0 => base.wrapping_add(u.int_in_range(0..=3)?).wrapping_sub(1),
            1 => u.arbitrary()?,
            _ => base,
        })
    };
    segment.extend(near(seen.acknowledged, u)?.to_be_bytes());
    segment.extend(near(seen.sequence, u)?.to_be_bytes());
    let words = *u.choose(&[5_u8, 5, 6, 10, 15, 3])?;
    segment.extend([words << 4, *u.choose(&[0x02, 0x10, 0x18, 0x11, 0x14, 0x04, 0x12, 0x3f, 0])?]);
    segment.extend([u.arbitrary::<[u8; 2]>()?, [0; 2], [0; 2]].concat());
    for _ in 5..words {
        segment.extend(u.arbitrary::<[u8; 4]>()?);
    }
    segment.extend(payload(u)?);
    Ok(segment)
}

fn udp(host: &Host, u: &mut Unstructured) -> Result<Vec<u8>> {
    let mut body = payload(u)?;
    let mut ports = [port(host, u)?, port(host, u)?].concat();
    if u.ratio(1, 3)? {
        // DHCP, with options of any kind and length.
        ports = [68_u16.to_be_bytes(), 67_u16.to_be_bytes()].concat();
        let mut message = vec![1, 1, 6, 0, 1, 2, 3, 4, 0, 0, 0, 0];
        message.extend([0; 16]);
        message.extend(MAC);
        message.extend([0; 202]);
        message.extend([0x63, 0x82, 0x53, 0x63, 53, 1, u.int_in_range(0..=9)?]);
        message.extend(&body);
        message.push(255);
        body = message;
    }
    let length = if u.ratio(1, 8)? { u.arbitrary()? } else { (8 + body.len()) as u16 };
    Ok([&ports[..], &length.to_be_bytes(), &[0; 2], &body].concat())
}

/// Where the guest may send to without a word of it leaving this host.
fn to(u: &mut Unstructured) -> Result<Ipv4Addr> {
    let closed = [
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::BROADCAST,
        Ipv4Addr::UNSPECIFIED,
        Ipv4Addr::new(169, 254, 169, 254),
        Ipv4Addr::new(10, 0, 2, 255),
        Ipv4Addr::new(224, 0, 0, 1),
    ];
    Ok(if u.ratio(3, 4)? { *u.choose(&ADDRESSES)? } else { *u.choose(&closed)? })
}

fn ipv4(host: &Host, seen: &Seen, u: &mut Unstructured) -> Result<Vec<u8>> {
    let (protocol, body) = match u.int_in_range(0..=5)? {
        0..=2 => (6, tcp(host, seen, u)?),
        3 | 4 => (17, udp(host, u)?),
        // An echo to the gateway, or another message; a ping of somebody else would leave this host.
        _ => (1, [&[*u.choose(&[8_u8, 0, 3, 5])?, 0, 0, 0, 0, 1, 0, 1], &payload(u)?[..]].concat()),
    };
    let words = *u.choose(&[5_u8, 5, 5, 6, 15, 4])?;
    let whole = usize::from(words) * 4 + body.len();
    let total = if u.ratio(1, 8)? { u.arbitrary()? } else { whole as u16 };
    let mut packet = vec![0x40 | words, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 1]);
    packet.extend(if u.ratio(1, 8)? { u.arbitrary::<[u8; 2]>()? } else { [0x40, 0] });
    packet.extend([64, protocol, 0, 0]);
    let from = if u.ratio(1, 8)? { Ipv4Addr::from(u.arbitrary::<u32>()?) } else { ADDRESSES[2] };
    packet.extend(from.octets());
    packet.extend(to(u)?.octets());
    for _ in 5..words {
        packet.extend(u.arbitrary::<[u8; 4]>()?);
    }
    packet.extend(body);
    Ok(packet)
}

/// IPv6 to the cable's own addresses only.
fn ipv6(u: &mut Unstructured) -> Result<Vec<u8>> {
    let body = payload(u)?;
    let length = if u.ratio(1, 8)? { u.arbitrary()? } else { body.len() as u16 };
    let local = |last: u8| {
        let mut address = [0; 16];
        address[..8].copy_from_slice(&[0xfd, 0x73, 0x61, 0x74, 0x6f, 0x72, 0x69, 0]);
        address[15] = last;
        address
    };
    let mut all_routers = [0; 16];
    (all_routers[0], all_routers[1], all_routers[15]) = (0xff, 2, 2);
    let mut gateway = [0; 16];
    (gateway[0], gateway[1], gateway[15]) = (0xfe, 0x80, 2);
    let next = *u.choose(&[58_u8, 58, 6, 17, 0, 43, 44])?;
    let (from, to) = (local(15), *u.choose(&[all_routers, gateway, local(9)])?);
    Ok([&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[next, 255], &from, &to, &body].concat())
}

fn frame(host: &Host, seen: &Seen, u: &mut Unstructured) -> Result<Vec<u8>> {
    let (kind, body) = match u.int_in_range(0..=7)? {
        0 => ([8, 6], [&[0, 1, 8, 0, 6, 4, 0, u.int_in_range(0..=3)?], &payload(u)?[..]].concat()),
        1 => ([0x86, 0xdd], ipv6(u)?),
        _ => ([8, 0], ipv4(host, seen, u)?),
    };
    let to = if u.ratio(1, 4)? { [0xff; 6] } else { GATEWAY_MAC };
    let from = if u.ratio(1, 16)? { u.arbitrary()? } else { MAC };
    Ok([&to[..], &from, &kind, &body].concat())
}

/// What comes to the guest is for it, and from this cable.
fn looked_at(frame: &[u8], seen: &mut Seen) {
    assert!(frame.len() >= 14 && frame.len() <= 14 + (64 << 10), "a frame of {} bytes", frame.len());
    assert!(frame[..6] == MAC || frame[0] & 1 != 0, "it is for somebody else");
    assert_eq!(frame[6..12], GATEWAY_MAC, "it is of somebody else");
    if let (Some([8, 0, 0x45]), Some(6)) = (frame.get(12..15), frame.get(23))
        && let Some(segment) = frame.get(34..54)
    {
        let word =
            |at: usize| u32::from_be_bytes([segment[at], segment[at + 1], segment[at + 2], segment[at + 3]]);
        let more = u32::from(segment[13] & 3 != 0);
        seen.ports = [segment[0], segment[1], segment[2], segment[3]];
        (seen.sequence, seen.acknowledged) = (word(4).wrapping_add(more), word(8));
    }
}

fn attack(u: &mut Unstructured) -> Result<()> {
    // Where anything may stand in a frame, nothing may leave the cable.
    let raw = u.ratio(1, 4)?;
    let Ok((mut host, mut wire)) = Host::new(!raw) else { return Ok(()) };
    let mut seen = Seen::default();
    for _ in 0..STEPS {
        if u.is_empty() {
            break;
        }
        if u.ratio(1, 5)? {
            host.act(u)?;
        }
        let mut frame = frame(&host, &seen, u)?;
        for _ in 0..if raw { u.int_in_range(0..=8)? } else { 0 } {
            let at = u.choose_index(frame.len())?;
            frame[at] = u.arbitrary()?;
        }
        let length = if raw && u.ratio(1, 16)? { u.arbitrary()? } else { frame.len() as u32 };
        let going = wire.send(&[&length.to_be_bytes()[..], &frame].concat());
        wire.take().iter().for_each(|frame| looked_at(frame, &mut seen));
        let (flows, datagrams) = wire.flows();
        assert!(flows <= FLOWS && datagrams <= DATAGRAMS, "{flows} connections, {datagrams} pairs");
        if !going {
            // The process ends, as what comes can not be divided into frames any more.
            assert!(raw, "frames of the right length are frames");
            break;
        }
    }
    Ok(())
}

/// Sends what `data` says.
pub fn net(data: &[u8]) {
    let _ = attack(&mut Unstructured::new(data));
}
