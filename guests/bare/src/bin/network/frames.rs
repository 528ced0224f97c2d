//! Frames as bytes, right ones and such as can be spoiled.

/// Addresses of the user network.
pub const GATEWAY: [u8; 4] = [10, 0, 2, 2];
pub const NAMES: [u8; 4] = [10, 0, 2, 3];
pub const OWN: [u8; 4] = [10, 0, 2, 15];
pub const EVERYBODY: [u8; 6] = [0xff; 6];

/// Where packets begin, and what is in those of version 4 without options.
pub const IP: usize = 14;
pub const INNER: usize = IP + 20;

/// Protocols.
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// A frame of up to 1,600 bytes.
#[derive(Clone, Copy)]
pub struct Frame {
    pub bytes: [u8; 1600],
    pub len: usize,
}

impl Frame {
    pub fn new(to: [u8; 6], from: [u8; 6], kind: u16) -> Frame {
        let frame = Frame { bytes: [0; 1600], len: 0 };
        frame.with(&to).with(&from).with(&kind.to_be_bytes())
    }

    /// With these bytes behind it.
    pub fn with(mut self, bytes: &[u8]) -> Frame {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    pub fn all(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// With other bytes somewhere.
    pub fn set(mut self, at: usize, bytes: &[u8]) -> Frame {
        self.bytes[at..][..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// With the checksum of its IPv4 header.
    pub fn summed(self) -> Frame {
        let cleared = self.set(IP + 10, &[0, 0]);
        let sum = checksum(0, &cleared.bytes[IP..INNER]);
        cleared.set(IP + 10, &sum.to_be_bytes())
    }

    /// With the checksum at `at` of what is behind the IPv4 header, with its addresses.
    pub fn summed_inside(self, protocol: u8, at: usize) -> Frame {
        let cleared = self.set(INNER + at, &[0, 0]);
        let mut pseudo = if protocol == ICMP {
            0
        } else {
            words(&cleared.bytes[IP + 12..IP + 20]) + u32::from(protocol) + (self.len - INNER) as u32
        };
        pseudo = (pseudo & 0xffff) + (pseudo >> 16);
        let sum = checksum(pseudo, &cleared.bytes[INNER..self.len]);
        cleared.set(INNER + at, &sum.to_be_bytes())
    }
}

fn words(bytes: &[u8]) -> u32 {
    let high = |(at, byte): (usize, &u8)| if at % 2 == 0 { u32::from(*byte) << 8 } else { u32::from(*byte) };
    bytes.iter().enumerate().map(high).sum()
}

/// The checksum of the Internet's (RFC 1071).
fn checksum(start: u32, bytes: &[u8]) -> u16 {
    let mut sum = start + words(bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Who has `address`?
pub fn who_has(mac: [u8; 6], address: [u8; 4]) -> Frame {
    let frame = Frame::new(EVERYBODY, mac, 0x0806).with(&[0, 1, 8, 0, 6, 4, 0, 1]);
    frame.with(&mac).with(&OWN).with(&[0; 6]).with(&address)
}

/// A packet from the guest with this inside, whose checksum is at `sum`.
pub fn packet(mac: [u8; 6], gateway: [u8; 6], to: [u8; 4], protocol: u8, inside: &[u8], sum: usize) -> Frame {
    let length = (20 + inside.len()) as u16;
    let frame = Frame::new(gateway, mac, 0x0800).with(&[0x45, 0]).with(&length.to_be_bytes());
    let frame = frame.with(&[0, 1, 0x40, 0, 64, protocol, 0, 0]).with(&OWN).with(&to).with(inside);
    frame.summed().summed_inside(protocol, sum)
}

pub fn ping(mac: [u8; 6], gateway: [u8; 6], number: u8) -> Frame {
    packet(mac, gateway, GATEWAY, ICMP, &[8, 0, 0, 0, 0, 7, 0, number, b'p', b'i', b'n', b'g'], 2)
}

/// A segment with these flags.
pub fn segment(mac: [u8; 6], gateway: [u8; 6], to: [u8; 4], ports: (u16, u16), flags: u8) -> Frame {
    let [from, port] = [ports.0.to_be_bytes(), ports.1.to_be_bytes()];
    let mut inside = [0; 20];
    inside[..2].copy_from_slice(&from);
    inside[2..4].copy_from_slice(&port);
    inside[4..8].copy_from_slice(&1000_u32.to_be_bytes());
    inside[12] = 0x50;
    inside[13] = flags;
    inside[14..16].copy_from_slice(&0xffff_u16.to_be_bytes());
    packet(mac, gateway, to, TCP, &inside, 16)
}

/// A datagram of up to 512 bytes.
pub fn datagram(mac: [u8; 6], gateway: [u8; 6], to: [u8; 4], ports: (u16, u16), body: &[u8]) -> Frame {
    let mut inside = [0; 520];
    inside[..2].copy_from_slice(&ports.0.to_be_bytes());
    inside[2..4].copy_from_slice(&ports.1.to_be_bytes());
    inside[4..6].copy_from_slice(&(8 + body.len() as u16).to_be_bytes());
    inside[8..8 + body.len()].copy_from_slice(body);
    packet(mac, gateway, to, UDP, &inside[..8 + body.len()], 6)
}

/// DHCP's first question, with these options.
pub fn discover(mac: [u8; 6], options: &[u8]) -> Frame {
    let mut body = [0; 512];
    body[..4].copy_from_slice(&[1, 1, 6, 0]);
    body[28..34].copy_from_slice(&mac);
    body[236..240].copy_from_slice(&[0x63, 0x82, 0x53, 0x63]);
    body[240..240 + options.len()].copy_from_slice(options);
    let frame = datagram(mac, EVERYBODY, [255; 4], (68, 67), &body[..240 + options.len()]);
    let frame = frame.set(IP + 12, &[0; 4]).summed();
    frame.summed_inside(UDP, 6)
}
