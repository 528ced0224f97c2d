//! A guest that is saved, and one that goes on from there: what its card asks, and tells (`satori_defs::cable`).
//!
//! Connections are sockets of this process, and are not saved. A guest that goes on from a saved state has them reset: those that it
//! had then, which this process may never have seen, and with them all that there are now.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use satori_defs::cable::{ANEW, ASK, BEGUN, CONNECTION, CONNECTIONS_MAX, TOLD};
use smoltcp::wire::TcpSeqNumber;

use crate::stack::Stack;
use crate::tcp::{Key, refuse};
use crate::wire::Out;

/// An address of 16 bytes; of IPv4, as IPv6 maps it.
fn wide(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// A connection as its card keeps it: with the numbers of what is sent next to the guest, and of what comes next of it.
fn record(key: &Key, next: u32, expected: u32) -> [u8; CONNECTION] {
    let parts: [&[u8]; 6] = [
        &wide(key.guest.ip()),
        &wide(key.remote.ip()),
        &key.guest.port().to_be_bytes(),
        &key.remote.port().to_be_bytes(),
        &next.to_be_bytes(),
        &expected.to_be_bytes(),
    ];
    let mut record = [0; CONNECTION];
    record.iter_mut().zip(parts.concat()).for_each(|(place, byte)| *place = byte);
    record
}

/// Ends a connection as the guest had it. A number that it did not expect makes it ask, and it is told again as whoever asks is
/// of whose connection nothing is known (RFC 5961, 3.2).
fn end(out: &mut Out, record: &[u8; CONNECTION]) {
    let mut rest = &record[..];
    let mut take = |count: usize| {
        let (number, behind) = rest.split_at(count);
        rest = behind;
        number.iter().fold(0, |number: u128, byte| number << 8 | u128::from(*byte))
    };
    let [guest, remote] = [take(16), take(16)].map(|bits| Ipv6Addr::from_bits(bits).to_canonical());
    let [guest, remote] =
        [(guest, take(2)), (remote, take(2))].map(|(ip, port)| SocketAddr::new(ip, port as u16));
    let [next, expected] = [take(4), take(4)].map(|number| TcpSeqNumber(number as u32 as i32));
    refuse(out, remote, guest, next, Some(expected));
}

impl Stack {
    /// A note of the guest's card: its kind, its number, what it tells. One that is not understood is not answered.
    pub(crate) fn note(&mut self, kind: u8, number: u32, told: &[u8]) {
        match kind {
            ASK => {
                let all = self.flows.iter().take(CONNECTIONS_MAX);
                let records = all.map(|(key, flow)| record(key, flow.next(), flow.expected()));
                let records = records.collect::<Vec<_>>().concat();
                self.out.note(TOLD, number, &records);
            }
            ANEW => {
                self.flows.values_mut().for_each(|flow| flow.let_go());
                self.flows.clear();
                self.datagrams.clear();
                self.out.note(BEGUN, number, &[]);
                told.as_chunks::<CONNECTION>().0.iter().for_each(|record| end(&mut self.out, record));
            }
            _ => {}
        }
    }
}
