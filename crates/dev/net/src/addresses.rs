//! Who is at the cable, and what lies beyond it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smoltcp::wire::EthernetAddress;

/// The gateway's and the name server's card.
pub(crate) const OUR_MAC: EthernetAddress = EthernetAddress([0x52, 0x55, 10, 0, 2, 2]);

pub(crate) const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
pub(crate) const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
pub(crate) const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
pub(crate) const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);
/// Subnet broadcast and all, to which DHCP goes.
pub(crate) const BROADCAST: Ipv4Addr = Ipv4Addr::BROADCAST;

/// A unique local prefix (RFC 4193) of 64 bits, whose 40 bits say `satori`'s first five letters.
pub(crate) const PREFIX: Ipv6Addr = Ipv6Addr::new(0xfd73, 0x6174, 0x6f72, 0x6900, 0, 0, 0, 0);
pub(crate) const PREFIX_LEN: u8 = 64;
pub(crate) const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
pub(crate) const DNS6: Ipv6Addr = Ipv6Addr::new(0xfd73, 0x6174, 0x6f72, 0x6900, 0, 0, 0, 3);

/// The port of name servers.
const DOMAIN: u16 = 53;

/// Whether `address` is in our prefix.
pub(crate) fn local6(address: Ipv6Addr) -> bool {
    address.segments()[..4] == PREFIX.segments()[..4]
}

/// What a guest may reach.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policy {
    /// Nothing but DHCP, and what comes in by forwards.
    pub restrict: bool,
    /// The gateway's address stands for this host's own.
    pub loopback: bool,
    /// Who answers the name server's questions.
    pub resolvers: Vec<SocketAddr>,
}

impl Policy {
    /// Where what is for `to` goes on the host, if anywhere.
    pub(crate) fn beyond(&self, to: SocketAddr) -> Option<SocketAddr> {
        if self.restrict {
            return None;
        }
        let name_server = to.ip() == DNS || to.ip() == DNS6;
        if name_server {
            return self.resolvers.first().copied().filter(|_| to.port() == DOMAIN);
        }
        if to.ip() == GATEWAY {
            return self.loopback.then(|| (Ipv4Addr::LOCALHOST, to.port()).into());
        }
        open(to.ip()).then_some(to)
    }
}

/// Whether an address is somebody's, and not this host's own, the cable's, link-local or a group's.
fn open(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, _] = v4.octets();
            let cable = (a, b, c) == (10, 0, 2);
            let reserved = a == 0 || a >= 240;
            !(cable || reserved || v4.is_loopback() || v4.is_link_local() || v4.is_multicast())
        }
        IpAddr::V6(v6) => {
            if let Some(v4) = v6.to_ipv4_mapped() {
                return open(v4.into());
            }
            let compatible = v6.segments()[..6] == [0; 6];
            // Prefixes under which an IPv4 address would hide: NAT64 and 6to4 (RFC 6052, RFC 3056).
            let hidden = v6.segments()[..2] == [0x64, 0xff9b] || v6.segments()[0] == 0x2002;
            let site = v6.segments()[0] & 0xffc0 == 0xfec0;
            !(compatible || hidden || site || local6(v6) || v6.is_unicast_link_local() || v6.is_multicast())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_itself_is_closed() {
        let closed = [
            "127.0.0.1",
            "127.8.9.1",
            "169.254.169.254",
            "0.0.0.0",
            "10.0.2.2",
            "10.0.2.3",
            "10.0.2.77",
            "224.0.0.251",
            "255.255.255.255",
            "240.0.0.1",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:169.254.1.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "fd73:6174:6f72:6900::9",
        ];
        let policy = Policy::default();
        for address in closed {
            let to = SocketAddr::new(address.parse().unwrap(), 80);
            assert_eq!(policy.beyond(to), None, "{address}");
        }
        for address in ["192.0.2.1", "10.0.3.1", "10.1.2.3", "2001:db8::1", "fd00::1"] {
            let to = SocketAddr::new(address.parse().unwrap(), 80);
            assert_eq!(policy.beyond(to), Some(to), "{address}");
        }
    }

    #[test]
    fn options_open_and_close() {
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        let resolvers = vec![at("127.0.0.53:53")];
        let policy = Policy { resolvers, loopback: true, ..Policy::default() };
        assert_eq!(policy.beyond(at("10.0.2.3:53")), Some(at("127.0.0.53:53")));
        assert_eq!(policy.beyond(at("10.0.2.3:80")), None);
        assert_eq!(policy.beyond(at("10.0.2.2:80")), Some(at("127.0.0.1:80")));
        assert_eq!(policy.beyond(at("127.0.0.1:80")), None);
        let policy = Policy { restrict: true, ..policy };
        for address in ["10.0.2.3:53", "10.0.2.2:80", "192.0.2.1:80"] {
            assert_eq!(policy.beyond(at(address)), None);
        }
    }
}
