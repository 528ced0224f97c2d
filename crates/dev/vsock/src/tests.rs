//! Packets of a guest, and what becomes of them.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use crate::packet::{HEADER, Header, NO_RECEIVE, NO_SEND, Parsed, op, parse, put};
use crate::switch::Switch;

const CID: u64 = 3;

/// A guest's packet, as it comes from the machine.
fn packet(header: Header, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, CID, &header, payload);
    let mut bytes = bytes.split_off(4);
    // It goes the other way.
    bytes[..8].copy_from_slice(&CID.to_le_bytes());
    bytes[8..16].copy_from_slice(&2_u64.to_le_bytes());
    bytes
}

/// What the guest got since the last look: operation, flags, bytes.
fn got(switch: &mut Switch) -> Vec<(u16, u32, Vec<u8>)> {
    let mut all = Vec::new();
    let out = std::mem::take(&mut switch.out);
    let mut rest = &out[..];
    while let Some((len, behind)) = rest.split_first_chunk::<4>() {
        let (one, behind) = behind.split_at(u32::from_le_bytes(*len) as usize);
        let mut one = one.to_vec();
        one[..8].copy_from_slice(&CID.to_le_bytes());
        one[8..16].copy_from_slice(&2_u64.to_le_bytes());
        let Parsed::Packet(header, payload) = parse(&one, CID) else { panic!("{one:?}") };
        all.push((header.op, header.flags, payload.to_vec()));
        rest = behind;
    }
    all
}

fn header(op: u16) -> Header {
    Header { from: 1000, to: 52, op, flags: 0, room: 1 << 16, taken: 0 }
}

fn place(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("satori-vsock-{name}-{}", std::process::id()))
}

#[test]
fn a_guest_connects_to_whoever_listens_for_its_port() {
    let path = place("out");
    let mut name = path.clone().into_os_string();
    name.push("_52");
    let _ = std::fs::remove_file(&name);
    let mut switch = Switch::new(CID, path);
    switch.packet(&packet(header(op::REQUEST), &[]));
    assert_eq!(got(&mut switch), [(op::RST, 0, vec![])], "nobody listens");
    let door = UnixListener::bind(&name).unwrap();
    switch.packet(&packet(header(op::REQUEST), &[]));
    assert_eq!(got(&mut switch), [(op::RESPONSE, 0, vec![])]);
    let (mut host, _) = door.accept().unwrap();
    host.write_all(b"to the guest").unwrap();
    switch.packet(&packet(header(op::RW), b"to the host"));
    assert_eq!(got(&mut switch), [(op::RW, 0, b"to the guest".to_vec())]);
    // The guest has no room until it says so.
    host.write_all(b"more").unwrap();
    switch.packet(&packet(Header { room: 12, ..header(op::CREDIT_UPDATE) }, &[]));
    assert_eq!(got(&mut switch), []);
    switch.packet(&packet(Header { room: 12, taken: 3, ..header(op::CREDIT_REQUEST) }, &[]));
    assert_eq!(got(&mut switch), [(op::CREDIT_UPDATE, 0, vec![]), (op::RW, 0, b"mor".to_vec())]);
    switch.packet(&packet(Header { flags: NO_SEND, taken: 15, ..header(op::SHUTDOWN) }, &[]));
    assert_eq!(got(&mut switch), [(op::RW, 0, b"e".to_vec())]);
    let mut seen = String::new();
    host.read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "to the host");
    drop(host);
    switch.packet(&packet(Header { taken: 16, ..header(op::CREDIT_UPDATE) }, &[]));
    assert_eq!(got(&mut switch), [(op::SHUTDOWN, NO_SEND, vec![]), (op::RST, 0, vec![])]);
    assert_eq!(switch.connections(), 0);
    std::fs::remove_file(&name).unwrap();
}

#[test]
fn what_a_guest_may_not_do_ends_its_connection_and_nothing_else() {
    let path = place("bad");
    let mut name = path.clone().into_os_string();
    name.push("_52");
    let _ = std::fs::remove_file(&name);
    let door = UnixListener::bind(&name).unwrap();
    let mut switch = Switch::new(CID, path);
    let reset = [(op::RST, 0, vec![])];
    // Of no connection; of a kind that there is not.
    for op in [op::RW, op::RESPONSE, op::SHUTDOWN, op::CREDIT_REQUEST, 99] {
        switch.packet(&packet(header(op), b""));
        assert_eq!(got(&mut switch), reset, "{op}");
    }
    switch.packet(&packet(header(op::RST), b""));
    let mut seqpacket = packet(header(op::REQUEST), b"");
    seqpacket[28] = 2;
    switch.packet(&seqpacket);
    assert_eq!(got(&mut switch), reset);
    // From somebody else, for somebody else, shorter or longer than it says.
    for (at, byte) in [(0, 9), (8, 9), (24, 1)] {
        let mut wrong = packet(header(op::REQUEST), b"");
        wrong[at] = byte;
        switch.packet(&wrong);
    }
    switch.packet(&packet(header(op::REQUEST), b"")[..HEADER - 1]);
    assert_eq!(got(&mut switch), []);
    // More than there is room for; twice the same; bytes behind the end.
    let connect = |switch: &mut Switch| {
        switch.packet(&packet(header(op::REQUEST), b""));
        assert_eq!(got(switch), [(op::RESPONSE, 0, vec![])]);
        door.accept().unwrap().0
    };
    let host = connect(&mut switch);
    for _ in 0..64 {
        switch.packet(&packet(header(op::RW), &[7; 64 << 10]));
    }
    assert!(got(&mut switch).contains(&reset[0]), "nobody reads");
    assert_eq!(switch.connections(), 0);
    drop(host);
    let _host = connect(&mut switch);
    switch.packet(&packet(header(op::REQUEST), b""));
    assert_eq!((got(&mut switch), switch.connections()), (reset.to_vec(), 0));
    let _host = connect(&mut switch);
    switch.packet(&packet(Header { flags: NO_SEND, ..header(op::SHUTDOWN) }, b""));
    switch.packet(&packet(header(op::RW), b"behind"));
    assert_eq!((got(&mut switch), switch.connections()), (reset.to_vec(), 0));
    let _host = connect(&mut switch);
    switch.packet(&packet(Header { flags: NO_SEND | NO_RECEIVE, ..header(op::SHUTDOWN) }, b""));
    assert_eq!((got(&mut switch), switch.connections()), (reset.to_vec(), 0));
    std::fs::remove_file(&name).unwrap();
}
