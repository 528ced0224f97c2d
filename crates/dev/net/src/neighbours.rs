//! What the gateway and the name server answer themselves: who they are, which address the guest has, pings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr, EthernetAddress,
    EthernetProtocol, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags, NdiscPrefixInfoFlags,
    NdiscPrefixInformation, NdiscRepr, NdiscRouterFlags,
};

use crate::addresses::{
    BROADCAST, DNS, DNS6, GATEWAY, GATEWAY6, GUEST, NETMASK, OUR_MAC, PREFIX, PREFIX_LEN,
};
use crate::wire::Out;

const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;
/// Seconds that a guest may keep its address; it is never given to anybody else.
const LEASE: u32 = 86_400;
/// DHCP options that the wire format has no field for: name server (RFC 2132, 3.8).
const OPTION_DNS: u8 = 6;
/// How long a router is believed to be there (RFC 4861, 6.2.1).
const ROUTER: Duration = Duration::from_secs(9000);
const PREFIX_VALID: smoltcp::time::Duration = smoltcp::time::Duration::from_secs(86_400);

/// Answers a question for the gateway's or the name server's card.
pub(crate) fn arp(out: &mut Out, bytes: &[u8]) {
    let packet = ArpPacket::new_checked(bytes).and_then(|packet| ArpRepr::parse(&packet));
    let Ok(ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Request,
        source_hardware_addr,
        source_protocol_addr,
        target_protocol_addr,
        ..
    }) = packet
    else {
        return;
    };
    if target_protocol_addr != GATEWAY && target_protocol_addr != DNS {
        return;
    }
    let reply = ArpRepr::EthernetIpv4 {
        operation: ArpOperation::Reply,
        source_hardware_addr: OUR_MAC,
        source_protocol_addr: target_protocol_addr,
        target_hardware_addr: source_hardware_addr,
        target_protocol_addr: source_protocol_addr,
    };
    out.frame(EthernetProtocol::Arp, reply.buffer_len(), |room| {
        reply.emit(&mut ArpPacket::new_unchecked(room));
    });
}

/// Whether a datagram is one for the DHCP server.
pub(crate) fn is_dhcp(to: Ipv4Addr, from_port: u16, to_port: u16) -> bool {
    (to == BROADCAST || to == GATEWAY) && (from_port, to_port) == (DHCP_CLIENT, DHCP_SERVER)
}

/// Offers and gives the one address there is.
pub(crate) fn dhcp(out: &mut Out, guest: EthernetAddress, restrict: bool, bytes: &[u8]) {
    let packet = DhcpPacket::new_checked(bytes);
    let Ok(request) = packet.as_ref().map_err(|_| ()).and_then(|p| DhcpRepr::parse(p).map_err(|_| ())) else {
        return;
    };
    let other = request.server_identifier.is_some_and(|server| server != GATEWAY);
    if other || request.client_hardware_address != guest {
        return;
    }
    let wanted = request.requested_ip.unwrap_or(request.client_ip);
    let message_type = match request.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request if wanted == GUEST => DhcpMessageType::Ack,
        DhcpMessageType::Request => DhcpMessageType::Nak,
        DhcpMessageType::Inform => DhcpMessageType::Ack,
        _ => return,
    };
    let refused = message_type == DhcpMessageType::Nak;
    let inform = request.message_type == DhcpMessageType::Inform;
    let server = DNS.octets();
    let dns = [DhcpOption { kind: OPTION_DNS, data: &server }];
    let reply = DhcpRepr {
        message_type,
        transaction_id: request.transaction_id,
        secs: 0,
        client_hardware_address: request.client_hardware_address,
        client_ip: Ipv4Addr::UNSPECIFIED,
        your_ip: if refused || inform { Ipv4Addr::UNSPECIFIED } else { GUEST },
        server_ip: Ipv4Addr::UNSPECIFIED,
        // A guest that reaches nobody has no use for a way there.
        router: (!refused && !restrict).then_some(GATEWAY),
        subnet_mask: (!refused).then_some(NETMASK),
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: request.broadcast,
        requested_ip: None,
        client_identifier: None,
        server_identifier: Some(GATEWAY),
        parameter_request_list: None,
        dns_servers: None,
        max_size: None,
        lease_duration: (!refused && !inform).then_some(LEASE),
        renew_duration: None,
        rebind_duration: None,
        additional_options: if refused || restrict { &[] } else { &dns },
    };
    let mut bytes = vec![0; reply.buffer_len()];
    if reply.emit(&mut DhcpPacket::new_unchecked(&mut bytes[..])).is_ok() {
        let to = if request.broadcast || refused { BROADCAST } else { GUEST };
        out.udp((GATEWAY.into(), DHCP_SERVER), (to.into(), DHCP_CLIENT), &bytes);
    }
}

/// Answers what IPv6 asks of neighbours and routers, and pings. `routed` tells whether there is a way out.
pub(crate) fn icmp6(out: &mut Out, from: Ipv6Addr, to: Ipv6Addr, routed: bool, bytes: &[u8]) {
    let caps = ChecksumCapabilities::default();
    let Ok(packet) = Icmpv6Packet::new_checked(bytes) else { return };
    let Ok(message) = Icmpv6Repr::parse(&from, &to, &packet, &caps) else { return };
    let ours = |address: Ipv6Addr| address == GATEWAY6 || address == DNS6;
    match message {
        Icmpv6Repr::EchoRequest { ident, seq_no, data } if ours(to) => {
            out.icmp6(to.into(), from.into(), &Icmpv6Repr::EchoReply { ident, seq_no, data });
        }
        Icmpv6Repr::Ndisc(NdiscRepr::NeighborSolicit { target_addr, .. })
            // One without an address of its own asks whether somebody has the one that it wants.
            if ours(target_addr) && !from.is_unspecified() =>
        {
            let flags = NdiscNeighborFlags::SOLICITED | NdiscNeighborFlags::OVERRIDE | NdiscNeighborFlags::ROUTER;
            let lladdr = Some(OUR_MAC.into());
            let reply = Icmpv6Repr::Ndisc(NdiscRepr::NeighborAdvert { flags, target_addr, lladdr });
            out.icmp6(IpAddr::V6(target_addr), from.into(), &reply);
        }
        Icmpv6Repr::Ndisc(NdiscRepr::RouterSolicit { .. }) if routed => router(out),
        _ => {}
    }
}

/// Tells everybody at the cable of the way out.
fn router(out: &mut Out) {
    let prefix = NdiscPrefixInformation {
        prefix_len: PREFIX_LEN,
        flags: NdiscPrefixInfoFlags::ON_LINK | NdiscPrefixInfoFlags::ADDRCONF,
        valid_lifetime: PREFIX_VALID,
        preferred_lifetime: PREFIX_VALID,
        prefix: PREFIX,
    };
    let advert = NdiscRepr::RouterAdvert {
        hop_limit: 64,
        flags: NdiscRouterFlags::empty(),
        router_lifetime: ROUTER.into(),
        reachable_time: smoltcp::time::Duration::ZERO,
        retrans_time: smoltcp::time::Duration::ZERO,
        lladdr: Some(OUR_MAC.into()),
        mtu: None,
        prefix_info: Some(prefix),
    };
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    out.icmp6(GATEWAY6.into(), all_nodes.into(), &Icmpv6Repr::Ndisc(advert));
}
