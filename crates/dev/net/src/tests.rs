//! A guest with another TCP than ours, at a cable of ours.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use satori_defs::cable::{ANEW, ASK, BEGUN, CONNECTION, NOTE, TOLD};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{dhcpv4, icmp, tcp, udp};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, Icmpv4Packet, Icmpv4Repr, IpAddress, IpCidr};

use crate::addresses::Policy;
use crate::stack::{Doors, Stack};

const MAC: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// The guest's card. Of every `loses` frames one is lost, in both directions, if that is not 0.
struct Card {
    socket: UnixStream,
    bytes: Vec<u8>,
    mtu: usize,
    loses: usize,
    count: usize,
}

impl Card {
    fn lost(&mut self) -> bool {
        self.count += 1;
        self.loses != 0 && self.count.is_multiple_of(self.loses)
    }
}

struct Came(Vec<u8>);
struct Goes<'a>(&'a mut Card);

impl RxToken for Came {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Goes<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        if !self.0.lost() {
            let whole = [&(len as u32).to_be_bytes()[..], &frame].concat();
            self.0.socket.set_nonblocking(false).unwrap();
            self.0.socket.write_all(&whole).unwrap();
            self.0.socket.set_nonblocking(true).unwrap();
        }
        result
    }
}

impl Device for Card {
    type RxToken<'a> = Came;
    type TxToken<'a> = Goes<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Came, Goes<'_>)> {
        let mut piece = [0; 70_000];
        while let Ok(count @ 1..) = self.socket.read(&mut piece) {
            self.bytes.extend_from_slice(&piece[..count]);
            if self.bytes.len() > 1 << 20 {
                break;
            }
        }
        loop {
            let (head, rest) = self.bytes.split_first_chunk::<4>()?;
            let len = u32::from_be_bytes(*head) as usize;
            let frame = rest.get(..len)?.to_vec();
            self.bytes.drain(..4 + len);
            if !self.lost() {
                return Some((Came(frame), Goes(self)));
            }
        }
    }

    fn transmit(&mut self, _: Instant) -> Option<Goes<'_>> {
        Some(Goes(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

struct Guest {
    card: Card,
    interface: Interface,
    sockets: SocketSet<'static>,
}

impl Guest {
    fn new(policy: Policy, doors: Doors, mtu: usize, loses: usize) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let stack = Stack::new(MAC, policy, false, doors);
        thread::spawn(move || stack.run(theirs));
        let mut card = Card { socket, bytes: Vec::new(), mtu, loses, count: 0 };
        let mut interface = Interface::new(Config::new(MAC.into()), &mut card, Instant::now());
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(IpAddress::v4(10, 0, 2, 15), 24)).unwrap();
        });
        interface.routes_mut().add_default_ipv4_route(GATEWAY).unwrap();
        Guest { card, interface, sockets: SocketSet::new(Vec::new()) }
    }

    /// Goes on until `done` has something to say.
    fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut SocketSet<'static>, &mut Interface) -> Option<T>,
    ) -> T {
        for _ in 0..200_000 {
            self.interface.poll(Instant::now(), &mut self.card, &mut self.sockets);
            if let Some(result) = done(&mut self.sockets, &mut self.interface) {
                return result;
            }
            thread::sleep(Duration::from_micros(200));
        }
        panic!("waited for {what}");
    }

    fn tcp(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 200_000]);
        self.sockets.add(tcp::Socket::new(buffer(), buffer()))
    }

    fn connect(&mut self, port: u16) -> SocketHandle {
        let handle = self.tcp();
        let context = self.interface.context();
        let local = 40_000 + (self.card.count % 1000) as u16;
        self.sockets.get_mut::<tcp::Socket>(handle).connect(context, (GATEWAY, port), local).unwrap();
        handle
    }

    /// Sends `data`, closes, and takes all that comes until the other side closes.
    fn exchange(&mut self, handle: SocketHandle, data: &[u8]) -> Vec<u8> {
        let (mut sent, mut got) = (0, Vec::new());
        self.until("the exchange", |sockets, _| {
            let socket = sockets.get_mut::<tcp::Socket>(handle);
            while sent < data.len() && socket.can_send() {
                sent += socket.send_slice(&data[sent..]).unwrap();
            }
            if sent == data.len() && socket.may_send() {
                socket.close();
            }
            while socket.can_recv() {
                socket
                    .recv(|bytes| {
                        got.extend_from_slice(bytes);
                        (bytes.len(), ())
                    })
                    .unwrap();
            }
            let over = sent == data.len() && !socket.may_recv() && !socket.may_send();
            over.then(|| std::mem::take(&mut got))
        })
    }
}

fn loopback() -> Policy {
    Policy { loopback: true, ..Policy::default() }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Takes all that comes and sends it back, once.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).unwrap();
        socket.write_all(&all).unwrap();
    });
    port
}

#[test]
fn streams_come_whole_both_ways() {
    for (mtu, loses, len) in [(65_534, 0, 3_000_000), (1514, 0, 300_000), (1514, 40, 60_000)] {
        let port = echo();
        let mut guest = Guest::new(loopback(), Doors::default(), mtu, loses);
        let handle = guest.connect(port);
        let data = pattern(len);
        let got = guest.exchange(handle, &data);
        assert!(got == data, "{} of {len} bytes came back, or others, at {mtu} {loses}", got.len());
    }
}

#[test]
fn ports_lead_in() {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    door.set_nonblocking(true).unwrap();
    let address = door.local_addr().unwrap();
    let udp_door = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp_door.set_nonblocking(true).unwrap();
    let udp_address = udp_door.local_addr().unwrap();
    let doors = Doors { tcp: vec![(door, 22)], udp: vec![(udp_door, 53)] };
    // Restricted, the guest is reached all the same.
    let policy = Policy { restrict: true, ..Policy::default() };
    let mut guest = Guest::new(policy, doors, 1514, 0);
    let handle = guest.tcp();
    guest.sockets.get_mut::<tcp::Socket>(handle).listen(22).unwrap();
    let caller = thread::spawn(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(b"from outside").unwrap();
        let mut got = Vec::new();
        socket.read_to_end(&mut got).unwrap();
        got
    });
    guest.until("a caller", |sockets, _| sockets.get_mut::<tcp::Socket>(handle).can_recv().then_some(()));
    assert_eq!(guest.exchange(handle, b"from inside"), b"from outside");
    assert_eq!(caller.join().unwrap(), b"from inside");

    let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 4], vec![0; 4096]);
    let handle = guest.sockets.add(udp::Socket::new(buffer(), buffer()));
    guest.sockets.get_mut::<udp::Socket>(handle).bind(53).unwrap();
    let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
    outside.send_to(b"question", udp_address).unwrap();
    let from = guest.until("a datagram", |sockets, _| {
        let (data, from) = sockets.get_mut::<udp::Socket>(handle).recv().ok()?;
        assert_eq!(data, b"question");
        Some(from.endpoint)
    });
    guest.sockets.get_mut::<udp::Socket>(handle).send_slice(b"answer", from).unwrap();
    outside.set_nonblocking(true).unwrap();
    let mut bytes = [0; 32];
    let len = guest.until("its answer", |_, _| outside.recv(&mut bytes).ok());
    assert_eq!(&bytes[..len], b"answer");
}

#[test]
fn who_is_closed_or_absent_refuses_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    for (policy, port) in [(Policy::default(), port), (loopback(), 1)] {
        let mut guest = Guest::new(policy, Doors::default(), 1514, 0);
        let handle = guest.connect(port);
        guest.until("a refusal", |sockets, _| {
            (sockets.get_mut::<tcp::Socket>(handle).state() == tcp::State::Closed).then_some(())
        });
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "the host itself was reached");
}

#[test]
fn the_name_server_asks_the_hosts_own() {
    let resolver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let policy = Policy { resolvers: vec![resolver.local_addr().unwrap()], ..Policy::default() };
    let mut guest = Guest::new(policy, Doors::default(), 1514, 0);
    let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 4], vec![0; 4096]);
    let handle = guest.sockets.add(udp::Socket::new(buffer(), buffer()));
    let socket = guest.sockets.get_mut::<udp::Socket>(handle);
    socket.bind(4000).unwrap();
    socket.send_slice(b"who?", (Ipv4Addr::new(10, 0, 2, 3), 53)).unwrap();
    let answered = thread::spawn(move || {
        let mut bytes = [0; 32];
        let (len, from) = resolver.recv_from(&mut bytes).unwrap();
        resolver.send_to(b"me", from).unwrap();
        bytes[..len].to_vec()
    });
    let from = guest.until("an answer", |sockets, _| {
        let (data, from) = sockets.get_mut::<udp::Socket>(handle).recv().ok()?;
        assert_eq!(data, b"me");
        Some(from.endpoint)
    });
    assert_eq!((from.addr, from.port), (IpAddress::v4(10, 0, 2, 3), 53));
    assert_eq!(answered.join().unwrap(), b"who?");
}

#[test]
fn dhcp_gives_the_address_and_the_gateway_answers_pings() {
    let mut guest = Guest::new(Policy::default(), Doors::default(), 1514, 0);
    let handle = guest.sockets.add(dhcpv4::Socket::new());
    let (address, router, dns) =
        guest.until("an address", |sockets, _| match sockets.get_mut::<dhcpv4::Socket>(handle).poll()? {
            dhcpv4::Event::Configured(config) => {
                Some((config.address, config.router, config.dns_servers.first().copied()))
            }
            dhcpv4::Event::Deconfigured => None,
        });
    assert_eq!((address.address(), address.prefix_len()), (Ipv4Addr::new(10, 0, 2, 15), 24));
    assert_eq!((router, dns), (Some(GATEWAY), Some(Ipv4Addr::new(10, 0, 2, 3))));

    let buffer = || icmp::PacketBuffer::new(vec![icmp::PacketMetadata::EMPTY; 4], vec![0; 4096]);
    let handle = guest.sockets.add(icmp::Socket::new(buffer(), buffer()));
    let socket = guest.sockets.get_mut::<icmp::Socket>(handle);
    socket.bind(icmp::Endpoint::Ident(7)).unwrap();
    let ping = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 3, data: b"ping" };
    let room = socket.send(ping.buffer_len(), GATEWAY.into()).unwrap();
    ping.emit(&mut Icmpv4Packet::new_unchecked(room), &Default::default());
    guest.until("an echo", |sockets, _| {
        let (data, _) = sockets.get_mut::<icmp::Socket>(handle).recv().ok()?;
        let packet = Icmpv4Packet::new_checked(data).unwrap();
        let reply = Icmpv4Repr::parse(&packet, &Default::default()).unwrap();
        assert_eq!(reply, Icmpv4Repr::EchoReply { ident: 7, seq_no: 3, data: b"ping" });
        Some(())
    });
}

/// Asks for the connections, and takes what else came for the guest.
fn connections(guest: &mut Guest) -> Vec<u8> {
    let card = &mut guest.card;
    card.socket.set_nonblocking(false).unwrap();
    card.socket.write_all(&[0x80, 0, 0, 5, ASK, 0, 0, 0, 9]).unwrap();
    let told = loop {
        let mut head = [0; 4];
        card.socket.read_exact(&mut head).unwrap();
        let head = u32::from_be_bytes(head);
        let mut message = vec![0; (head & !NOTE) as usize];
        card.socket.read_exact(&mut message).unwrap();
        if head & NOTE != 0 {
            assert_eq!(message[..5], [TOLD, 0, 0, 0, 9]);
            break message[5..].to_vec();
        }
        card.bytes.extend([&head.to_be_bytes()[..], &message].concat());
    };
    card.socket.set_nonblocking(true).unwrap();
    told
}

/// A guest with a connection that was saved finds it reset, by the network that it had and by one that never saw it; what was sent
/// on the connection of before does not come, and what it begins then goes on.
#[test]
fn connections_of_a_guest_that_was_saved_are_reset() {
    for same in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut guest = Guest::new(loopback(), Doors::default(), 1514, 0);
        let handle = guest.connect(port);
        guest.until("a connection", |sockets, _| sockets.get::<tcp::Socket>(handle).may_send().then_some(()));
        let (mut outside, _) = listener.accept().unwrap();
        outside.write_all(b"one").unwrap();
        guest.until("the bytes", |sockets, _| {
            let socket = sockets.get_mut::<tcp::Socket>(handle);
            (socket.recv_queue() == 3).then(|| socket.recv(|bytes| (bytes.len(), ())).unwrap())
        });
        let told = connections(&mut guest);
        assert_eq!(told.len(), CONNECTION);
        if !same {
            let (socket, theirs) = UnixStream::pair().unwrap();
            socket.set_nonblocking(true).unwrap();
            let stack = Stack::new(MAC, loopback(), false, Doors::default());
            thread::spawn(move || stack.run(theirs));
            guest.card.socket = socket;
            guest.card.bytes.clear();
        }
        let note = [&(NOTE + 5 + CONNECTION as u32).to_be_bytes()[..], &[ANEW, 0, 0, 0, 10], &told].concat();
        guest.card.socket.write_all(&note).unwrap();
        // The card drops what comes before the answer.
        guest.card.socket.set_nonblocking(false).unwrap();
        let mut answer = [0; 9];
        guest.card.socket.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0x80, 0, 0, 5, BEGUN, 0, 0, 0, 10]);
        guest.card.socket.set_nonblocking(true).unwrap();
        guest.until("a reset", |sockets, _| {
            (sockets.get::<tcp::Socket>(handle).state() == tcp::State::Closed).then_some(())
        });
        assert_eq!(
            outside.read(&mut [0; 8]).is_err(),
            same,
            "the host's side sees that it was no orderly end"
        );
        let handle = guest.connect(port);
        guest.until("another", |sockets, _| sockets.get::<tcp::Socket>(handle).may_send().then_some(()));
    }
}

/// Notes may be of any bytes, as whoever takes a saved state back may have it of anybody.
#[test]
fn notes_that_are_damaged_harm_nobody() {
    let mut stack = stack();
    for kind in 0..=255 {
        stack.note(kind, 1, &[]);
        stack.note(kind, 2, &[0xff; 3 * CONNECTION + 7]);
        stack.note(kind, 3, &[0; CONNECTION]);
    }
    let mut stack = self::stack();
    // One address of IPv4, one of IPv6: nobody is told.
    let mut mixed = [0; CONNECTION];
    mixed[..16].copy_from_slice(&Ipv4Addr::new(10, 0, 2, 15).to_ipv6_mapped().octets());
    mixed[16] = 0xfe;
    stack.note(ANEW, 1, &mixed);
    assert_eq!(stack.out.len(), 9, "the answer alone");
}

fn stack() -> Stack {
    Stack::new(MAC, Policy { restrict: true, ..Policy::default() }, true, Doors::default())
}

/// A frame of the guest with this payload, of a kind of packet.
fn framed(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&crate::addresses::OUR_MAC.0[..], &MAC.0, &kind.to_be_bytes(), payload].concat()
}

#[test]
fn arp_answers_for_the_two_that_are_ours() {
    let mut stack = stack();
    let mut question = vec![0, 1, 8, 0, 6, 4, 0, 1];
    question.extend(MAC.0);
    question.extend([10, 0, 2, 15, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
    stack.frame(&framed(0x806, &question));
    let answers = stack.out.take();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0][14 + 8..14 + 18], [&crate::addresses::OUR_MAC.0[..], &[10, 0, 2, 2]].concat());
    for other in [4, 15, 255] {
        *question.last_mut().unwrap() = other;
        stack.frame(&framed(0x806, &question));
        assert!(stack.out.take().is_empty());
    }
}

#[test]
fn frames_of_others_are_dropped() {
    let mut stack = stack();
    let mut frame = framed(0x806, &[0; 28]);
    frame[6] ^= 2;
    stack.frame(&frame);
    // A ping of the gateway by somebody who is not the guest.
    let mut ping = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 10, 0, 2, 16, 10, 0, 2, 2];
    let sum: u32 = ping.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    ping[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    ping.extend([8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    stack.frame(&framed(0x800, &ping));
    assert!(stack.out.take().is_empty());
    // The same with the guest's address is answered.
    ping[15] = 15;
    ping[11] += 1;
    stack.frame(&framed(0x800, &ping));
    assert_eq!(stack.out.take().len(), 1);
}

proptest! {
    /// Whatever a frame holds, the stack goes on, and says no more than a little.
    #[test]
    fn frames_may_hold_anything(
        kind in prop_oneof![Just(0x800_u16), Just(0x86dd), Just(0x806), any::<u16>()],
        protocol in prop_oneof![Just(6_u8), Just(17), Just(1), Just(58), any::<u8>()],
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        whole in any::<bool>(),
    ) {
        let mut stack = stack();
        let mut payload = payload;
        if whole && payload.len() >= 60 {
            let len = payload.len() as u16;
            if kind == 0x800 {
                payload[0] = 0x45;
                payload[2..4].copy_from_slice(&len.to_be_bytes());
                payload[6..10].copy_from_slice(&[0, 0, 64, protocol]);
                payload[10..12].fill(0);
                payload[12..16].copy_from_slice(&[10, 0, 2, 15]);
                let sum: u32 = payload[..20].chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
                let sum = (sum & 0xffff) + (sum >> 16);
                let sum = (sum & 0xffff) + (sum >> 16);
                payload[10..12].copy_from_slice(&(!sum as u16).to_be_bytes());
            } else {
                payload[0] = 0x60;
                payload[4..6].copy_from_slice(&(len - 40).to_be_bytes());
                payload[6] = protocol;
            }
        }
        stack.frame(&framed(kind, &payload));
        prop_assert!(stack.out.take().len() <= 1);
    }
}

/// What a person is told when the port of a forward is taken.
#[test]
fn words_of_a_forward_name_it() {
    let forward = crate::Forward { udp: false, host: SocketAddr::from(([127, 0, 0, 1], 2222)), guest: 22 };
    assert_eq!(forward.to_string(), "forward=tcp:127.0.0.1:2222:22");
}
