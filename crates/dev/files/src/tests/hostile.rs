//! Requests that no kernel makes.

use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;
use rustix::io::Errno;

use super::Folder;
use super::client::{Client, body};
use crate::wire::{MAX_REQUEST, Reply, op};
use crate::{Mode, Protocol, plan9, process};

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.join("d")).unwrap();
    for mode in Mode::ALL {
        let mut client = Client::new(&folder, mode);
        let node = client.stat("d").unwrap().node;
        for name in ["..", ".", "", "../d", "d/..", "/etc/passwd"] {
            assert_eq!(client.ask(op::LOOKUP, node, body().name(name)), Err(Errno::INVAL), "{name}");
        }
        let nul = client.ask(op::LOOKUP, node, body().bytes(b"endless"));
        assert_eq!(nul, Err(Errno::INVAL));
    }
}

#[test]
fn a_link_put_in_a_directorys_place_leads_nowhere() {
    let folder = Folder::new();
    fs::create_dir(folder.join("d")).unwrap();
    let mut client = Client::new(&folder, Mode::Rw);
    let before = client.stat("d").unwrap().node;
    fs::remove_dir(folder.join("d")).unwrap();
    symlink("/", folder.join("d")).unwrap();
    assert_eq!(client.lookup(before, "etc"), Err(Errno::NOENT));
    let after = client.stat("d").unwrap().node;
    assert_eq!(client.lookup(after, "etc"), Err(Errno::NOTDIR));
}

#[test]
fn counts_of_forgetting_are_not_believed() {
    let folder = Folder::new();
    fs::write(folder.join("a"), "x").unwrap();
    let mut client = Client::new(&folder, Mode::Cow);
    for _ in 0..3 {
        let node = client.stat("a").unwrap().node;
        let many = body().u32(u32::MAX).u32(0).u64(node).u64(u64::MAX).u64(1).u64(u64::MAX).u64(99);
        client.ask(op::BATCH_FORGET, 0, many).unwrap();
        assert_eq!(client.ask(op::GETATTR, node, body()), Err(Errno::STALE));
        assert!(client.ask(op::GETATTR, 1, body()).is_ok(), "the root is never forgotten");
    }
    assert_eq!(client.server.nodes.len(), 1);
}

#[test]
fn numbers_that_were_never_given_are_errors() {
    let folder = Folder::new();
    let mut client = Client::new(&folder, Mode::Rw);
    for opcode in 0..60 {
        // INIT, DESTROY, FLUSH, SYNCFS, STATFS and what has no reply ask for no node.
        let long = body().bytes(&[b'x'; 200]).bytes(&[0]);
        let _ = client.ask(opcode, 1 << 40, long);
        let _ = client.ask(opcode, u64::MAX, body());
    }
    assert_eq!(client.pread(5, 0, 10), Err(Errno::BADF));
    assert_eq!(client.pwrite(5, 0, b"x"), Err(Errno::BADF));
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

#[test]
fn a_write_at_the_end_of_numbers_is_refused() {
    let folder = Folder::new();
    for mode in [Mode::Rw, Mode::Cow] {
        let mut client = Client::new(&folder, mode);
        let handle = client.create("f", 2, 0o600).unwrap();
        assert_eq!(client.pwrite(handle, u64::MAX, b"xx"), Err(Errno::FBIG));
        assert_eq!(client.setattr("f", 1 << 3, u64::MAX, 0, 0), Err(Errno::FBIG));
        client.unlink("f").unwrap();
    }
}

#[test]
fn a_stream_that_is_none_ends_the_server_and_not_by_a_panic() {
    let folder = Folder::new();
    for (protocol, least, most) in
        [(Protocol::Fuse, 40, MAX_REQUEST), (Protocol::Plan9, plan9::HEADER, plan9::MOST)]
    {
        let serve = |from: &[u8], out: &mut Vec<u8>| {
            process::serve(Client::new(&folder, Mode::Ro).server, protocol, from, out)
        };
        for length in [0, least as u32 - 1, most as u32 + 1, u32::MAX] {
            let mut out = Vec::new();
            assert!(serve(&length.to_le_bytes(), &mut out).is_err());
            assert!(out.is_empty());
        }
        let mut out = Vec::new();
        assert!(serve(&[least as u8, 0, 0], &mut out).is_err(), "it ends within a length");
        assert!(serve(&[], &mut out).is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_request_makes_it_panic_or_leave_the_folder(
        requests in prop::collection::vec(
            (0..60_u32, 0..8_u64, prop::collection::vec(any::<u8>(), 0..100)), 1..40),
        mode in prop::sample::select(Mode::ALL.to_vec()),
    ) {
        let outer = Folder::new();
        let inner = Folder(outer.join("inner"));
        fs::create_dir(&inner.0).unwrap();
        fs::write(inner.join("x"), "x").unwrap();
        let mut client = Client::new(&inner, mode);
        let _ = client.stat("x");
        for (opcode, node, bytes) in requests {
            let _ = client.ask(opcode, node, body().bytes(&bytes));
        }
        let mut reply = Reply::default();
        prop_assert!(client.server.answer(&[0; 10], &mut reply).is_none());
        prop_assert_eq!(fs::read_dir(&outer.0).unwrap().count(), 1);
    }
}
