//! The cable: every frame of the guest goes to who it is for, every socket of the host to the guest.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketType, connect};
use satori_defs::cable::{CONNECTIONS_MAX, NOTE, NOTE_HEADER, NOTE_MAX};
use satori_host::spin::{Spins, for_a_moment};
use smoltcp::wire::{
    EthernetAddress, EthernetFrame, EthernetProtocol, Icmpv4Packet, Icmpv4Repr, IpProtocol, IpRepr,
    Ipv4Packet, Ipv4Repr, Ipv6Packet, Ipv6Repr, TcpControl, TcpPacket, TcpRepr, UdpPacket,
};

use crate::addresses::{BROADCAST, DNS, GATEWAY, GUEST, OUR_MAC, Policy, local6};
use crate::buffer::Buffer;
use crate::wire::{Out, Refusal, trusting};
use crate::{datagram, neighbours, tcp};

/// Most connections, and most pairs of addresses that exchange datagrams. Beyond, whoever was not used for longest goes.
const FLOWS: usize = CONNECTIONS_MAX;
const DATAGRAMS: usize = 512;
/// Most of the host's peers that datagrams came in from by forwards.
const PEERS: usize = 256;
/// Where their ports begin, as the guest sees them.
const PEER_PORTS: u16 = 32_768;
/// Bytes of the longest frame, and of what is read at once.
const FRAME: usize = 14 + 4 + (64 << 10);
const PIECE: usize = 256 << 10;
/// Milliseconds between looks for what nobody uses.
const SWEEP: u64 = 5_000;

/// Ports of the host that lead in, which were opened before the sandbox.
#[derive(Debug, Default)]
pub(crate) struct Doors {
    pub tcp: Vec<(TcpListener, u16)>,
    pub udp: Vec<(UdpSocket, u16)>,
}

/// Somebody on the host who sent a datagram through a door.
#[derive(Debug)]
struct Peer {
    door: usize,
    address: SocketAddr,
    touched: u64,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Stack {
    guest: EthernetAddress,
    policy: Policy,
    /// There is a way out for IPv6.
    routed6: bool,
    doors: Doors,
    pub(crate) flows: BTreeMap<tcp::Key, tcp::Flow>,
    pub(crate) datagrams: BTreeMap<datagram::Key, datagram::Flow>,
    peers: BTreeMap<u16, Peer>,
    next_port: u16,
    pub(crate) out: Out,
    begun: Instant,
    swept: u64,
    /// Who waits without sleeping for a moment: whoever speaks mostly has an answer soon.
    pub(crate) spins: Spins,
}

/// Whose descriptor was waited for.
#[derive(Clone, Copy)]
enum Whose {
    Guest,
    TcpDoor(usize),
    UdpDoor(usize),
    Flow(tcp::Key),
    Datagram(datagram::Key),
}

impl Stack {
    pub(crate) fn new(guest: EthernetAddress, policy: Policy, routed6: bool, doors: Doors) -> Self {
        Stack {
            guest,
            policy,
            routed6,
            doors,
            flows: BTreeMap::new(),
            datagrams: BTreeMap::new(),
            peers: BTreeMap::new(),
            next_port: 0,
            out: Out::new(guest),
            begun: Instant::now(),
            swept: 0,
            spins: Spins::default(),
        }
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Serves until the guest's side closes. What is no frame is an error.
    pub(crate) fn run(mut self, mut socket: UnixStream) -> std::io::Result<()> {
        socket.set_nonblocking(true)?;
        let (mut input, mut spins) = (Buffer::default(), std::mem::take(&mut self.spins));
        loop {
            let ready = self.wait(&socket, &mut spins)?;
            for (whose, events) in ready {
                match whose {
                    Whose::Guest if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) => {
                        match input.fill(PIECE, |room| socket.read(room)) {
                            Ok(0) => return Ok(()),
                            Ok(_) => self.frames(&mut input)?,
                            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                            Err(error) => return Err(error),
                        }
                    }
                    Whose::Guest => {}
                    other => self.attend(other),
                }
            }
            self.serve();
            self.out.send(&socket)?;
        }
    }

    /// Takes all whole frames and notes.
    pub(crate) fn frames(&mut self, input: &mut Buffer) -> std::io::Result<()> {
        while let Some((head, rest)) = input.bytes().split_first_chunk::<4>() {
            let (head, note) = (u32::from_be_bytes(*head), u32::from_be_bytes(*head) & NOTE != 0);
            let len = (head & !NOTE) as usize;
            if len > if note { NOTE_MAX } else { FRAME } {
                return Err(ErrorKind::InvalidData.into());
            }
            let Some(bytes) = rest.get(..len) else { break };
            match bytes.split_first_chunk::<NOTE_HEADER>() {
                Some((&[kind, a, b, c, d], told)) if note => {
                    self.note(kind, u32::from_be_bytes([a, b, c, d]), told);
                }
                None if note => return Err(ErrorKind::InvalidData.into()),
                _ => self.frame(bytes),
            }
            input.pass(4 + len);
        }
        Ok(())
    }

    /// Waits for whoever has something that there is room for.
    fn wait<'a>(
        &'a self,
        socket: &'a UnixStream,
        spins: &mut Spins,
    ) -> std::io::Result<Vec<(Whose, PollFlags)>> {
        let crowded = self.out.len() >= tcp::CROWDED;
        let mut whose = vec![Whose::Guest];
        // Answers have to have room, too, before another question is read.
        let mut wanted = if crowded { PollFlags::empty() } else { PollFlags::IN };
        if !self.out.is_empty() {
            wanted |= PollFlags::OUT;
        }
        let mut files = vec![PollFd::new(socket, wanted)];
        let mut add = |one, file: BorrowedFd<'a>, wanted: PollFlags| {
            if !wanted.is_empty() {
                whose.push(one);
                files.push(PollFd::from_borrowed_fd(file, wanted));
            }
        };
        let incoming = if crowded { PollFlags::empty() } else { PollFlags::IN };
        if self.flows.len() < FLOWS {
            for (index, (door, _)) in self.doors.tcp.iter().enumerate() {
                add(Whose::TcpDoor(index), door.as_fd(), incoming);
            }
        }
        for (index, (door, _)) in self.doors.udp.iter().enumerate() {
            add(Whose::UdpDoor(index), door.as_fd(), incoming);
        }
        for (key, flow) in &self.flows {
            add(Whose::Flow(*key), flow.socket().as_fd(), flow.wanted(crowded));
        }
        for (key, flow) in &self.datagrams {
            add(Whose::Datagram(*key), flow.socket().as_fd(), incoming);
        }
        let now = self.now();
        let sweep = (!self.datagrams.is_empty() || !self.peers.is_empty()).then_some(self.swept + SWEEP);
        let next = self.flows.values().filter_map(tcp::Flow::deadline).chain(sweep).min();
        let timeout = next.map(|at| {
            let ms = at.saturating_sub(now);
            Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: (ms % 1000 * 1_000_000) as i64 }
        });
        let mut came = false;
        if spins.now() {
            let mut now = || matches!(poll(&mut files, Some(&Timespec::default())), Ok(1..)).then_some(());
            came = for_a_moment(&mut now).is_some();
            spins.done(came);
        }
        if !came {
            match poll(&mut files, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let ready = whose.into_iter().zip(&files).map(|(one, file)| (one, file.revents()));
        Ok(ready.filter(|(_, events)| !events.is_empty()).collect())
    }

    fn attend(&mut self, whose: Whose) {
        let now = self.now();
        match whose {
            Whose::Guest => {}
            Whose::TcpDoor(index) => self.come_in(index, now),
            Whose::UdpDoor(index) => self.bring_in(index, now),
            Whose::Flow(key) => {
                let Some(flow) = self.flows.get_mut(&key) else { return };
                match flow.connected(&mut self.out, now) {
                    Ok(()) => flow.pull(&mut self.out, now),
                    Err(_) => self.unreachable(&key),
                }
            }
            Whose::Datagram(key) => {
                if let Some(flow) = self.datagrams.get_mut(&key) {
                    flow.pull(&mut self.out, now);
                }
            }
        }
    }

    /// Attends to everybody, whether there is something or not, and lets every connection send.
    pub(crate) fn attend_to_all(&mut self) {
        let doors = (0..self.doors.tcp.len()).map(Whose::TcpDoor);
        let doors = doors.chain((0..self.doors.udp.len()).map(Whose::UdpDoor));
        let flows = self.flows.keys().copied().map(Whose::Flow);
        let all: Vec<_> =
            doors.chain(flows).chain(self.datagrams.keys().copied().map(Whose::Datagram)).collect();
        for whose in all {
            self.attend(whose);
        }
        self.serve();
    }

    /// Tells the guest that there is no way to whom it called.
    fn unreachable(&mut self, key: &tcp::Key) {
        let mut ports = [0; 8];
        ports[..2].copy_from_slice(&key.guest.port().to_be_bytes());
        ports[2..4].copy_from_slice(&key.remote.port().to_be_bytes());
        if let Some(flow) = self.flows.remove(key) {
            ports[4..].copy_from_slice(&flow.first_seq().to_be_bytes());
        }
        let (from, to) = (key.guest.ip().into(), key.remote.ip().into());
        let header = IpRepr::new(from, to, IpProtocol::Tcp, ports.len(), 64);
        self.out.refuse(gateway(key.remote.ip()), &header, &ports, Refusal::Host);
    }

    /// Lets every connection send, and ends what is over.
    fn serve(&mut self) {
        let now = self.now();
        let out = &mut self.out;
        self.flows.retain(|_, flow| flow.serve(out, now) == tcp::Life::Goes);
        if now >= self.swept + SWEEP {
            self.swept = now;
            self.datagrams.retain(|_, flow| flow.touched + datagram::IDLE > now);
            self.peers.retain(|_, peer| peer.touched + datagram::IDLE > now);
        }
    }

    /// Somebody connects to a door: the guest is called.
    fn come_in(&mut self, index: usize, now: u64) {
        let Some((door, port)) = self.doors.tcp.get(index) else { return };
        let (Ok((socket, _)), guest) = (door.accept(), SocketAddr::new(GUEST.into(), *port)) else { return };
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        let _ = socket.set_nodelay(true);
        for _ in 0..=u16::MAX - PEER_PORTS {
            let remote = SocketAddr::new(GATEWAY.into(), self.port());
            let key = tcp::Key { guest, remote };
            if !self.flows.contains_key(&key) {
                self.flows.insert(key, tcp::Flow::calling(key, socket, &mut self.out, now));
                return;
            }
        }
    }

    /// The next of the ports that peers have.
    fn port(&mut self) -> u16 {
        self.next_port = (self.next_port + 1) % (u16::MAX - PEER_PORTS);
        PEER_PORTS + self.next_port
    }

    /// Datagrams came to a door.
    fn bring_in(&mut self, index: usize, now: u64) {
        let mut data = vec![0; 65_507];
        for _ in 0..32 {
            let Some((door, guest)) = self.doors.udp.get(index) else { return };
            let Ok((len, address)) = door.recv_from(&mut data) else { return };
            let guest = *guest;
            let known = self.peers.iter().find(|(_, peer)| peer.door == index && peer.address == address);
            let port = match known.map(|(&port, _)| port) {
                Some(port) => port,
                None => {
                    if self.peers.len() >= PEERS {
                        let oldest =
                            self.peers.iter().min_by_key(|(_, peer)| peer.touched).map(|(&port, _)| port);
                        if let Some(port) = oldest {
                            self.peers.remove(&port);
                        }
                    }
                    let mut port = self.port();
                    while self.peers.contains_key(&port) {
                        port = self.port();
                    }
                    port
                }
            };
            self.peers.insert(port, Peer { door: index, address, touched: now });
            self.out.udp((GATEWAY.into(), port), (GUEST.into(), guest), &data[..len]);
        }
    }

    /// A frame of the guest. What is not understood, or not from the guest's own address, goes nowhere.
    pub(crate) fn frame(&mut self, bytes: &[u8]) {
        let Ok(frame) = EthernetFrame::new_checked(bytes) else { return };
        let for_us = frame.dst_addr() == OUR_MAC || !frame.dst_addr().is_unicast();
        if frame.src_addr() != self.guest || !for_us {
            return;
        }
        match frame.ethertype() {
            EthernetProtocol::Arp => neighbours::arp(&mut self.out, frame.payload()),
            EthernetProtocol::Ipv4 => self.ipv4(frame.payload()),
            EthernetProtocol::Ipv6 => self.ipv6(frame.payload()),
            _ => {}
        }
    }

    fn ipv4(&mut self, bytes: &[u8]) {
        let Ok(packet) = Ipv4Packet::new_checked(bytes) else { return };
        // Pieces of packets are not put together: the guest's card takes whole ones of 64 KiB.
        let piece = packet.more_frags() || packet.frag_offset() != 0;
        let Ok(header) = Ipv4Repr::parse(&packet, &trusting()) else { return };
        let to = header.dst_addr;
        if piece || !(header.src_addr == GUEST || header.src_addr.is_unspecified()) {
            return;
        }
        let payload = packet.payload();
        if header.next_header == IpProtocol::Udp
            && let Ok(udp) = UdpPacket::new_checked(payload)
            && neighbours::is_dhcp(to, udp.src_port(), udp.dst_port())
        {
            return neighbours::dhcp(&mut self.out, self.guest, self.policy.restrict, udp.payload());
        }
        let group =
            to == BROADCAST || to.is_multicast() || to.octets()[..3] == [10, 0, 2] && to.octets()[3] == 255;
        if header.src_addr != GUEST || group {
            return;
        }
        let whole = IpRepr::Ipv4(header);
        match header.next_header {
            IpProtocol::Tcp => self.tcp(&whole, payload),
            IpProtocol::Udp => self.udp(&whole, payload),
            IpProtocol::Icmp => self.icmp4(&whole, to, payload),
            _ => {}
        }
    }

    fn ipv6(&mut self, bytes: &[u8]) {
        let Ok(packet) = Ipv6Packet::new_checked(bytes) else { return };
        let Ok(header) = Ipv6Repr::parse(&packet) else { return };
        let (from, to) = (header.src_addr, header.dst_addr);
        match header.next_header {
            IpProtocol::Icmpv6 => {
                neighbours::icmp6(&mut self.out, from, to, self.routed6, packet.payload());
            }
            IpProtocol::Tcp if local6(from) => self.tcp(&IpRepr::Ipv6(header), packet.payload()),
            IpProtocol::Udp if local6(from) && !to.is_multicast() => {
                self.udp(&IpRepr::Ipv6(header), packet.payload());
            }
            _ => {}
        }
    }

    fn icmp4(&mut self, header: &IpRepr, to: Ipv4Addr, payload: &[u8]) {
        let Ok(packet) = Icmpv4Packet::new_checked(payload) else { return };
        let Ok(Icmpv4Repr::EchoRequest { ident, seq_no, data }) = Icmpv4Repr::parse(&packet, &trusting())
        else {
            return;
        };
        if to == GATEWAY || to == DNS {
            let reply = Icmpv4Repr::EchoReply { ident, seq_no, data };
            return self.out.icmp4(to.into(), GUEST.into(), &reply);
        }
        let guest = SocketAddr::new(GUEST.into(), ident);
        let key = datagram::Key { guest, remote: SocketAddr::new(to.into(), 0), ping: true };
        self.datagram(key, header, payload, payload);
    }

    fn udp(&mut self, header: &IpRepr, payload: &[u8]) {
        let Ok(packet) = UdpPacket::new_checked(payload) else { return };
        let (from, to) = (IpAddr::from(header.src_addr()), IpAddr::from(header.dst_addr()));
        let guest = SocketAddr::new(from, packet.src_port());
        let remote = SocketAddr::new(to, packet.dst_port());
        let now = self.now();
        if to == GATEWAY
            && let Some(peer) = self.peers.get_mut(&remote.port())
            && let Some((door, port)) = self.doors.udp.get(peer.door)
            && *port == guest.port()
        {
            peer.touched = now;
            // A datagram that the host has no room for is lost.
            let _ = door.send_to(packet.payload(), peer.address);
            return;
        }
        let key = datagram::Key { guest, remote, ping: false };
        self.datagram(key, header, payload, packet.payload());
    }

    /// Sends `data`, which came in `payload`, by the socket for it.
    fn datagram(&mut self, key: datagram::Key, header: &IpRepr, payload: &[u8], data: &[u8]) {
        let now = self.now();
        let result = self.socket(key, now).and_then(|flow| flow.send(now, header, payload, data));
        if let Err(why) = result {
            self.datagrams.remove(&key);
            let from = if why == Refusal::Port { key.remote.ip() } else { gateway(key.remote.ip()) };
            self.out.refuse(from, header, payload, why);
        }
    }

    fn socket(&mut self, key: datagram::Key, now: u64) -> Result<&mut datagram::Flow, Refusal> {
        if !self.datagrams.contains_key(&key) {
            let to = self.policy.beyond(key.remote).ok_or(Refusal::Prohibited)?;
            let flow = datagram::Flow::new(key, to, now)?;
            if self.datagrams.len() >= DATAGRAMS {
                let oldest = self.datagrams.iter().min_by_key(|(_, flow)| flow.touched).map(|(key, _)| *key);
                if let Some(key) = oldest {
                    self.datagrams.remove(&key);
                }
            }
            self.datagrams.insert(key, flow);
        }
        self.datagrams.get_mut(&key).ok_or(Refusal::Host)
    }

    fn tcp(&mut self, header: &IpRepr, payload: &[u8]) {
        let (from, to) = (header.src_addr(), header.dst_addr());
        let Ok(packet) = TcpPacket::new_checked(payload) else { return };
        let Ok(segment) = TcpRepr::parse(&packet, &from, &to, &trusting()) else { return };
        let guest = SocketAddr::new(from.into(), segment.src_port);
        let remote = SocketAddr::new(to.into(), segment.dst_port);
        let key = tcp::Key { guest, remote };
        let now = self.now();
        if let Some(flow) = self.flows.get_mut(&key) {
            return flow.segment(&mut self.out, now, &segment);
        }
        let beyond = self.policy.beyond(remote).filter(|_| !to.is_multicast());
        let Some(beyond) =
            beyond.filter(|_| segment.control == TcpControl::Syn && segment.ack_number.is_none())
        else {
            return tcp::reset(&mut self.out, header, &segment);
        };
        match call(beyond) {
            Ok(socket) => {
                self.make_room();
                self.flows.insert(key, tcp::Flow::called(key, socket, &segment, now));
            }
            Err(Errno::CONNREFUSED) => tcp::reset(&mut self.out, header, &segment),
            Err(_) => self.out.refuse(gateway(remote.ip()), header, payload, Refusal::Host),
        }
    }

    /// Ends the connection that was not used for longest, if there are too many.
    fn make_room(&mut self) {
        if self.flows.len() < FLOWS {
            return;
        }
        let oldest = self.flows.iter().min_by_key(|(_, flow)| flow.touched).map(|(key, _)| *key);
        if let Some(mut flow) = oldest.and_then(|key| self.flows.remove(&key)) {
            flow.let_go();
        }
    }
}

/// Who tells the guest that there is no way to `to`.
fn gateway(to: IpAddr) -> IpAddr {
    if to.is_ipv4() { GATEWAY.into() } else { crate::addresses::GATEWAY6.into() }
}

/// Begins a connection.
fn call(to: SocketAddr) -> Result<TcpStream, Errno> {
    let socket = datagram::open(to.ip(), SocketType::STREAM, false)?;
    match connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno),
    }
}
