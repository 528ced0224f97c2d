//! The store's ring, and ports of back ends.

use std::sync::{Arc, Mutex};

use satori_defs::xen::{call, errno, param, store as layout};
use satori_memory::Gpa;

use super::{ARGS, Rig, words};
use crate::BackEnds;

const PAGE: u64 = 0xfeffc << 12;

#[derive(Default)]
struct Ends(Mutex<Vec<String>>);

impl BackEnds for Ends {
    fn notified(&self, back: u32) {
        self.0.lock().unwrap().push(format!("port of {back}"));
    }
    fn changed(&self, paths: &[String]) {
        self.0.lock().unwrap().extend_from_slice(paths);
    }
}

/// Puts bytes into the ring and notifies.
fn send(rig: &mut Rig, bytes: &[u8]) {
    let mut given = rig.word(PAGE + layout::REQUEST_PROD);
    for byte in bytes {
        rig.memory.write(Gpa(PAGE + u64::from(given % layout::BYTES)), &[*byte]).unwrap();
        given = given.wrapping_add(1);
    }
    rig.memory.store_u32(Gpa(PAGE + layout::REQUEST_PROD), given).unwrap();
    assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[2]), 0);
}

/// Takes what is there.
fn got(rig: &Rig) -> Vec<u8> {
    let (taken, given) = (rig.word(PAGE + layout::RESPONSE_CONS), rig.word(PAGE + layout::RESPONSE_PROD));
    let byte = |at: u32| rig.word(PAGE + 1024 + u64::from((at % 1024) & !3)).to_le_bytes()[at as usize % 4];
    let bytes = (0..given.wrapping_sub(taken)).map(|at| byte(taken.wrapping_add(at))).collect();
    rig.memory.store_u32(Gpa(PAGE + layout::RESPONSE_CONS), given).unwrap();
    bytes
}

fn message(kind: u32, payload: &[u8]) -> Vec<u8> {
    let words = [kind, 5, 0, payload.len() as u32].map(u32::to_le_bytes).concat();
    [&words[..], payload].concat()
}

#[test]
fn messages_go_through_the_ring_however_they_lie_in_it() {
    let mut rig = Rig::set_up();
    let ends = Arc::new(Ends::default());
    rig.domain.with_back_ends(ends.clone());
    assert_eq!(rig.with(call::HVM, 1, &[words(0x7ff0, param::STORE_PFN), 0]), 0);
    assert_eq!(u64::from(rig.word(ARGS + 8)) << 12, PAGE);
    for at in [layout::REQUEST_CONS, layout::REQUEST_PROD, layout::RESPONSE_CONS, layout::RESPONSE_PROD] {
        rig.memory.store_u32(Gpa(PAGE + at), u32::MAX - 9).unwrap();
    }
    send(&mut rig, &message(2, b"name\0"));
    assert_eq!(got(&rig), message(2, b"satori"));
    let long = message(11, &[b"data/x\0", &[b'v'; 2000][..]].concat());
    for piece in long.chunks(700) {
        send(&mut rig, piece);
    }
    assert_eq!(got(&rig), message(11, b"OK\0"));
    assert_eq!(ends.0.lock().unwrap().split_off(0), ["/local/domain/1/data/x"]);
    send(&mut rig, &message(2, b"data/x\0"));
    let mut all = Vec::new();
    while all.len() < 2016 {
        all.extend(got(&rig));
        assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[2]), 0);
    }
    assert_eq!(all, message(2, &[b'v'; 2000]));
    send(&mut rig, &message(4, b"control/shutdown\0t\0"));
    assert_eq!(got(&rig).len(), message(4, b"OK\0").len() + message(15, b"control/shutdown\0t\0").len());
    assert!(!rig.domain.ask_to_power_off(), "nobody listens");
    send(&mut rig, &message(11, b"control/feature-poweroff\x001"));
    got(&rig);
    assert!(rig.domain.ask_to_power_off());
    assert!(got(&rig).ends_with(b"control/shutdown\0t\0"));
}

#[test]
fn nonsense_stops_the_ring_until_the_guest_begins_anew() {
    for (at, value, told) in [
        (layout::REQUEST_PROD, 1025, layout::ERROR_INDEX),
        (layout::RESPONSE_CONS, 7, layout::ERROR_INDEX),
        (0, 0, layout::ERROR_MESSAGE),
    ] {
        let mut rig = Rig::set_up();
        if at == 0 {
            send(&mut rig, &[11, 5, 0, 4097].map(u32::to_le_bytes).concat());
        } else {
            rig.memory.store_u32(Gpa(PAGE + at), value).unwrap();
            assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[2]), 0);
        }
        assert_eq!(rig.word(PAGE + layout::ERROR), told);
        for _ in 0..3 {
            assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[2]), 0);
        }
        assert_eq!(rig.word(PAGE + layout::ERROR), told, "it stands still");
        rig.memory.store_u32(Gpa(PAGE + layout::CONNECTION), layout::RECONNECT).unwrap();
        assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[2]), 0);
        assert_eq!((rig.word(PAGE + layout::ERROR), rig.word(PAGE + layout::CONNECTION)), (0, 0));
        send(&mut rig, &message(2, b"domid\0"));
        assert_eq!(got(&rig), message(2, b"1"));
    }
}

#[test]
fn a_guest_that_does_not_read_is_not_answered_without_end() {
    let mut rig = Rig::set_up();
    for _ in 0..2000 {
        send(&mut rig, &message(1, b"\0"));
        send(&mut rig, &message(1, b"/local/domain/1\0"));
        let given = rig.word(PAGE + layout::REQUEST_PROD);
        if given.wrapping_sub(rig.word(PAGE + layout::REQUEST_CONS)) > 900 {
            break;
        }
    }
    let saved = serde_json::to_string(&rig.domain.save()).unwrap();
    assert!(saved.len() < 1 << 20, "{}", saved.len());
    let again = Rig::new();
    assert!(again.domain.restore(serde_json::from_str(&saved).unwrap()));
    assert!(!got(&rig).is_empty());
}

#[test]
fn a_back_end_has_the_ports_that_wait_for_it() {
    let mut rig = Rig::set_up();
    let ends = Arc::new(Ends::default());
    rig.domain.with_back_ends(ends.clone());
    assert_eq!(rig.with(call::EVENT_CHANNEL, 6, &[words(0x7ff0, 0)]), 0);
    let port = rig.word(ARGS + 4);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 0, &[words(0x7ff0, port), 0]), errno::EINVAL, "not the guest's");
    assert!(rig.domain.bind_back(port, 17) && !rig.domain.bind_back(port, 18));
    assert!(!rig.domain.bind_back(u32::MAX, 17) && !rig.domain.bind_back(0, 17));
    assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[port.into()]), 0);
    assert_eq!(ends.0.lock().unwrap().split_off(0), ["port of 17"]);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 9, &[port.into()]), 0);
    rig.heard();
    rig.domain.notify(port, 18);
    rig.domain.notify(u32::MAX, 17);
    assert!(rig.heard().is_empty(), "of another");
    rig.domain.notify(port, 17);
    assert_eq!(rig.heard(), ["vcpu 0 vector 0x40 own false"]);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 3, &[port.into()]), 0);
    rig.domain.notify(port, 17);
    assert!(rig.heard().is_empty(), "closed");
    rig.domain.leave_back(port, 17);
    assert!(!rig.domain.bind_back(port, 17));
}
