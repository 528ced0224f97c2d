//! What no kernel sends.

use satori_guests::defs::virtio::feature::{INDIRECT_DESC, VERSION_1};
use satori_guests::defs::virtio::net::{
    CSUM, GUEST_CSUM, HEADER, HOST_TSO4, HOST_TSO6, MRG_RXBUF, NEEDS_CSUM,
};
use satori_guests::defs::virtio::split::*;
use satori_guests::harness::option;
use satori_guests::place::{Random, put};
use satori_guests::{Test, paging, smp};

use crate::card::{Card, is_answer};
use crate::frames::*;

pub fn as_it_should_be(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    t.holds("an address is asked for", card.send(&discover(card.mac, &[53, 1, 1, 255])));
    t.holds(
        "and offered",
        card.comes(|frame| {
            frame.bytes[INNER..INNER + 4] == [0, 67, 0, 68] && frame.bytes[INNER + 24..][..4] == OWN
        }),
    );
}

pub fn lengths(t: &mut Test) {
    let mut card = Card::new();
    // Frames of every length, with and without a whole header of the card's.
    for len in 0..120 {
        for byte in [0, 0xff] {
            t.holds(("a frame", len), card.send_with(&[0; HEADER], &[byte; 120][..len]));
        }
        let whole = who_has(card.mac, GATEWAY);
        t.holds(("cut off", len), card.send_with(&[0; HEADER], &whole.all()[..len.min(whole.len)]));
    }
    for len in 0..HEADER {
        t.holds(("no whole header", len), card.send_with(&[0; HEADER][..len], &[]));
    }
    // As long as the longest, and longer: 16 pieces of a page each and more.
    let (page, features) = (paging::page(), card.features());
    for (pieces, len) in [(15, 4096), (16, 4096), (16, 4200), (16, 1 << 16), (16, 1 << 22)] {
        (0..pieces).for_each(|index| card.sending.descriptor(index, page, len, NEXT, index + 1));
        card.sending.descriptor(pieces - 1, page, len, 0, 0);
        t.holds(("long", pieces, len), card.sending.request(&card.device, 0));
    }
    // In bytes, in buffers to write, and in none.
    let whole = who_has(card.mac, GATEWAY);
    put(page, &[0; HEADER]);
    put(page + HEADER as u64, whole.all());
    card.sending.descriptor(0, page, 1, NEXT, 1);
    card.sending.descriptor(1, page + 1, (HEADER + whole.len) as u32 - 2, NEXT, 2);
    card.sending.descriptor(2, page + (HEADER + whole.len) as u64 - 1, 1, 0, 0);
    t.holds(
        "in three pieces",
        card.sending.request(&card.device, 0) && card.comes(|frame| is_answer(frame, GATEWAY)),
    );
    card.sending.descriptor(0, page, 100, WRITE, 0);
    t.holds("to write", card.sending.request(&card.device, 0));
    card.sending.descriptor(0, page, 0, 0, 0);
    t.holds("nothing", card.sending.request(&card.device, 0));
    card.begin(features);
    t.holds("it goes on", card.works());
}

/// Headers of the card's that tell where checksums are and how to cut, on frames where that cannot be.
pub fn offloads(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    let offered = card.device.features() & (CSUM | GUEST_CSUM | HOST_TSO4 | HOST_TSO6 | MRG_RXBUF);
    for features in [VERSION_1 | offered, VERSION_1] {
        card.begin(features);
        let frames = [
            segment(card.mac, card.gateway, GATEWAY, (999, 9), 0x10),
            datagram(card.mac, card.gateway, GATEWAY, (999, 9), b"text"),
            who_has(card.mac, GATEWAY),
            Frame::new(card.gateway, card.mac, 0x0800),
        ];
        for frame in &frames {
            for flags in [0, NEEDS_CSUM, 0xff] {
                for kind in [0, 1, 3, 4, 5, 0x80, 0x81, 0xff] {
                    for (length, size) in [(0, 0), (54, 1), (0, 1460), (0xffff, 0xffff), (1, 8)] {
                        for (start, offset) in
                            [(0, 0), (34, 16), (34, 0xffff), (0xffff, 0xffff), (53, 1), (0xffff, 1), (1, 0)]
                        {
                            let [length, size, start, offset] =
                                [length, size, start, offset].map(u16::to_le_bytes);
                            let mut header = [0; HEADER];
                            header[0] = flags;
                            header[1] = kind;
                            for (at, word) in [(2, length), (4, size), (6, start), (8, offset)] {
                                header[at..at + 2].copy_from_slice(&word);
                            }
                            if !card.send_with(&header, frame.all()) {
                                t.eq(("taken", flags, kind, header), false, true);
                            }
                        }
                    }
                }
            }
        }
        t.holds(("it goes on", features), card.works());
    }
}

pub fn packets(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    let good = ping(card.mac, card.gateway, 200);
    // Every first byte; lengths that are less than a header, and more than there is.
    for first in 0..=255 {
        t.holds(("version and length", first), card.send(&good.set(IP, &[first]).summed()));
    }
    for length in [0, 1, 19, 20, 21, 27, 28, 33, 0x100, 0x5dc, 0xffff_u16] {
        t.holds(("length", length), card.send(&good.set(IP + 2, &length.to_be_bytes()).summed()));
    }
    for place in [0x2000, 0x2001, 0x1fff, 0x3fff, 0xffff, 0x8000_u16] {
        t.holds(("a piece", place), card.send(&good.set(IP + 6, &place.to_be_bytes()).summed()));
    }
    for protocol in 0..=255 {
        t.holds(("protocol", protocol), card.send(&good.set(IP + 9, &[protocol]).summed()));
    }
    // Others' addresses: nobody is answered in their name.
    card.came(|_| false);
    for from in
        [GATEWAY, NAMES, [127, 0, 0, 1], [8, 8, 8, 8], [0; 4], [255; 4], [10, 0, 2, 16], [224, 0, 0, 1]]
    {
        t.holds(("from", from), card.send(&good.set(IP + 12, &from).summed()));
    }
    for kind in [0, 0x05dc, 0x0600, 0x8100, 0x88a8, 0x86dd, 0x8847, 0xffff_u16] {
        t.holds(("a kind of frame", kind), card.send(&good.set(12, &kind.to_be_bytes())));
    }
    t.holds("it goes on", card.works());
    let wrong = card.came(|frame| {
        frame.bytes[12..14] == [8, 0]
            && frame.bytes[IP + 16..IP + 20] != OWN
            && frame.bytes[IP + 16..IP + 20] != [255; 4]
    });
    t.holds("nobody else was answered", !wrong);
}

pub fn packets_of_version_6(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    let mut own = [0; 16];
    own[..2].copy_from_slice(&[0xfe, 0x80]);
    own[15] = 15;
    for to in [[0xfe, 0x80, 0, 0], [0xff, 2, 0, 0], [0; 4], [0x20, 1, 0x0d, 0xb8], [0xfd, 0, 0, 0]] {
        for next in [0, 1, 6, 17, 43, 44, 50, 51, 58, 59, 60, 135, 255] {
            for length in [0, 4, 8, 40, 0xffff_u16] {
                let frame = Frame::new([0x33, 0x33, 0, 0, 0, 1], card.mac, 0x86dd).with(&[0x60, 0, 0, 0]);
                let frame = frame.with(&length.to_be_bytes()).with(&[next, 255]).with(&own);
                // Headers that name themselves as the next one, and are of any length.
                let inside =
                    [next, 0, 1, 4, 0, 0, 0, 0, next, 255, 5, 2, 0, 0, 0, 0, next, 0, 0xff, 0xff, 0, 0, 0, 0];
                let frame = frame.with(&to).with(&[0; 11]).with(&[1]).with(&inside);
                if !card.send(&frame) {
                    t.eq(("taken", to, next, length), false, true);
                }
            }
        }
    }
    // Neighbours' and routers' messages with options that have no length.
    for kind in 133..=137 {
        for length in [0, 1, 255] {
            let frame =
                Frame::new([0x33, 0x33, 0, 0, 0, 1], card.mac, 0x86dd).with(&[0x60, 0, 0, 0, 0, 32, 58, 255]);
            let frame = frame.with(&own).with(&[0xff, 2]).with(&[0; 13]).with(&[1]).with(&[kind, 0, 0, 0]);
            t.holds(
                ("a neighbour", kind, length),
                card.send(&frame.with(&[0; 20]).with(&[1, length, 0, 0, 0, 0, 0, 0])),
            );
        }
    }
    t.holds("it goes on", card.works());
}

pub fn segments(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    for flags in 0..=255 {
        let frame = segment(card.mac, card.gateway, NAMES, (3000 + u16::from(flags), 9), flags);
        t.holds(("flags", flags), card.send(&frame));
    }
    let syn = segment(card.mac, card.gateway, NAMES, (4000, 9), 2);
    for offset in 0..16 {
        let frame = syn.set(INNER + 12, &[offset << 4]).summed_inside(TCP, 16);
        t.holds(("offset", offset), card.send(&frame));
    }
    // Options without an end, without a length, and longer than there is.
    for options in [
        [2, 0, 0, 0],
        [2, 1, 1, 1],
        [2, 255, 1, 1],
        [3, 3, 255, 0],
        [2, 4, 0, 0],
        [5, 250, 9, 9],
        [1, 1, 1, 8],
        [255; 4],
    ] {
        let frame = syn.set(INNER + 12, &[0x60]).with(&options).set(IP + 2, &44_u16.to_be_bytes());
        t.holds(("options", options), card.send(&frame.summed().summed_inside(TCP, 16)));
    }
    for (at, wrong) in [(16, [0, 0]), (0, [0, 0]), (2, [0, 0])] {
        t.holds(("a checksum or port", at), card.send(&syn.set(INNER + at, &wrong)));
    }
    t.holds("it goes on", card.works());
}

/// Where nobody may arrive: the host itself, its link, groups.
pub fn closed_addresses(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    let port = option("closed").and_then(|port| port.parse().ok()).unwrap_or(9);
    let closed = [
        [127, 0, 0, 1],
        [127, 1, 2, 3],
        GATEWAY,
        NAMES,
        [0, 0, 0, 0],
        [0, 0, 0, 1],
        [169, 254, 169, 254],
        [169, 254, 0, 1],
        [224, 0, 0, 1],
        [239, 255, 255, 250],
        [255, 255, 255, 255],
        OWN,
    ];
    for (number, to) in (0..).zip(closed) {
        let from = 5000 + number;
        t.holds(("a connection", to), card.send(&segment(card.mac, card.gateway, to, (from, port), 2)));
        t.holds(("a datagram", to), card.send(&datagram(card.mac, card.gateway, to, (from, port), b"hello")));
        t.holds(
            ("a ping", to),
            card.send(&packet(card.mac, card.gateway, to, ICMP, &[8, 0, 0, 0, 0, 9, 0, 1], 2)),
        );
    }
    // By version 6: itself, and version 4's addresses in its forms.
    let mapped = [[0, 0xffff, 0x7f00, 1], [0, 0, 0x7f00, 1], [0, 0, 0, 1], [0xffff, 0, 0x7f00, 1]];
    for words in mapped {
        let frame = Frame::new(card.gateway, card.mac, 0x86dd).with(&[0x60, 0, 0, 0, 0, 20, 6, 64]);
        let frame = frame.with(&[0xfd, 0]).with(&[0; 13]).with(&[15]).with(&[0; 8]);
        let frame = words.iter().fold(frame, |frame, word| frame.with(&u16::to_be_bytes(*word)));
        let syn = segment(card.mac, card.gateway, OWN, (6000, port), 2);
        t.holds(("version 6", words), card.send(&frame.with(&syn.bytes[INNER..INNER + 20])));
    }
    smp::spin(300_000_000);
    // SYN and ACK: somebody was there.
    let answered = card.came(|frame| {
        frame.bytes[12..14] == [8, 0] && frame.bytes[IP + 9] == TCP && frame.bytes[INNER + 13] & 0x12 == 0x12
    });
    t.holds("nobody was there", !answered);
    t.holds("it goes on", card.works());
}

pub fn connections_without_end(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    // More than are kept, to a network for documentation, where nobody is.
    for port in 0..1500_u16 {
        if !card.send(&segment(card.mac, card.gateway, [192, 0, 2, 1], (10_000 + port, 80), 2)) {
            t.eq(("taken", port), false, true);
        }
    }
    for port in 0..1500_u16 {
        if !card.send(&datagram(card.mac, card.gateway, [192, 0, 2, 1], (10_000 + port, 80), b"x")) {
            t.eq(("taken", port), false, true);
        }
    }
    t.holds("it goes on", card.works());
}

pub fn datagrams(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    let good = datagram(
        card.mac,
        card.gateway,
        NAMES,
        (7000, 53),
        &[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1],
    );
    for length in [0, 1, 7, 8, 9, 26, 28, 0x200, 0xffff_u16] {
        t.holds(
            ("length", length),
            card.send(&good.set(INNER + 4, &length.to_be_bytes()).summed_inside(UDP, 6)),
        );
    }
    // Names that are a circle, that do not end, and questions that there are not.
    for body in [
        &[][..],
        &[0],
        &[0, 1, 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1],
        &[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 63, b'x'],
        &[0, 1, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1],
        &[0xff; 300],
    ] {
        t.holds(
            ("a question", body.len()),
            card.send(&datagram(card.mac, card.gateway, NAMES, (7001, 53), body)),
        );
    }
    // DHCP: options without an end or longer than there is, other kinds, other addresses.
    for options in [
        &[][..],
        &[53],
        &[53, 1],
        &[53, 255, 1],
        &[53, 0, 255],
        &[0; 200],
        &[50, 4, 127, 0, 0, 1, 53, 1, 3, 255],
        &[53, 1, 3, 50, 4, 10, 0, 2, 2, 255],
        &[53, 1, 200, 255],
        &[53, 1, 5, 255],
        &[82, 255, 1, 2, 3],
        &[55, 200, 1, 1, 1],
    ] {
        t.holds(("an address", options.len()), card.send(&discover(card.mac, options)));
    }
    let question = discover(card.mac, &[53, 1, 1, 255]);
    for (at, byte) in [(0, 2), (1, 0), (2, 255), (2, 0), (3, 255), (236, 0)] {
        t.holds(
            ("its head", at, byte),
            card.send(&question.set(INNER + 8 + at, &[byte]).summed_inside(UDP, 6)),
        );
    }
    t.holds("it goes on", card.works());
}

pub fn neighbours(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    let good = who_has(card.mac, GATEWAY);
    for at in 14..42 {
        for byte in [0, 1, 5, 7, 0x80, 0xff] {
            if !card.send(&good.set(at, &[byte])) {
                t.eq(("taken", at, byte), false, true);
            }
        }
    }
    // Who says to be the gateway or the server of names, is not.
    for address in [GATEWAY, NAMES] {
        t.holds(
            "a claim",
            card.send(&good.set(20, &[0, 2]).set(28, &address).set(32, &card.mac).set(38, &address)),
        );
        t.holds("to everybody", card.send(&good.set(28, &address).set(38, &address)));
    }
    card.came(|_| false);
    let gateway = card.gateway;
    t.holds("it goes on", card.works());
    t.eq("the same gateway", card.gateway, gateway);
    // Nobody answers for the guest, nor for who is not there.
    for address in [OWN, [10, 0, 2, 99], [127, 0, 0, 1], [8, 8, 8, 8]] {
        t.holds("a question", card.send(&who_has(card.mac, address)));
    }
    t.holds("it goes on", card.works());
    t.holds(
        "nobody else answered",
        !card.came(|frame| is_answer(frame, OWN) || is_answer(frame, [8, 8, 8, 8])),
    );
}

pub fn small_buffers(t: &mut Test) {
    let mut card = Card::new();
    let page = paging::page();
    for features in [VERSION_1, VERSION_1 | MRG_RXBUF, VERSION_1 | MRG_RXBUF | INDIRECT_DESC] {
        for len in [0, 1, 11, 12, 13, 20, 53] {
            for flags in [WRITE, 0] {
                card.begin(features);
                // In the place of the good ones.
                let begun = card.device.begin(features, [&mut card.sending, &mut card.receiving]);
                (0..16).for_each(|index| {
                    card.receiving.descriptor(index, page + 64 * u64::from(index), len, flags, 0)
                });
                (0..16).for_each(|index| card.receiving.offer(index));
                card.device.ring(0);
                t.holds(
                    ("questions", features, len, flags),
                    begun && (0..3).all(|_| card.send(&who_has(card.mac, GATEWAY))),
                );
            }
        }
        card.begin(features);
        t.holds(("it goes on", features), card.works());
    }
}

pub fn other_queues(t: &mut Test) {
    let mut card = Card::new();
    let device = card.device;
    let page = paging::page();
    for number in 0..device.queues() {
        let mut queue = satori_guests::virtio::Queue::new(number, 16);
        for length in [0, 1, 2, 3, 4, 64] {
            t.holds("a reset", device.begin(device.features(), [&mut queue]));
            for (class, command) in [(0, 0), (1, 0), (4, 0), (4, 1), (5, 0), (255, 255)] {
                for word in [0, 1, 2, 0x8000, 0xffff_u16] {
                    put(page, &[class, command]);
                    put(page + 2, &word.to_le_bytes());
                    queue.descriptor(0, page, length, NEXT, 1);
                    queue.descriptor(1, page + 128, 1, WRITE, 0);
                    queue.offer(0);
                    device.ring(number);
                }
            }
        }
    }
    let features = card.features();
    card.begin(features);
    t.holds("it goes on", card.works());
}

/// Good frames with some bytes changed, at random.
pub fn anything(t: &mut Test) {
    let mut card = Card::new();
    t.holds("it answers", card.works());
    let mut random = Random(0xeb_0e);
    let good = [
        ping(card.mac, card.gateway, 100),
        who_has(card.mac, GATEWAY),
        discover(card.mac, &[53, 1, 1, 255]),
        segment(card.mac, card.gateway, [192, 0, 2, 2], (9000, 9), 2),
        datagram(
            card.mac,
            card.gateway,
            NAMES,
            (9000, 53),
            &[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1],
        ),
    ];
    for round in 0..4000_u32 {
        let mut frame = random.of(&good);
        for _ in 0..=random.below(4) {
            let at = 12 + random.below(frame.len as u64 - 12) as usize;
            frame = frame.set(at, &[random.number() as u8]);
        }
        // Addresses beyond the networks for documentation are left alone.
        if frame.bytes[12..14] == [8, 0] {
            let to = random.of(&[[192, 0, 2, 2], NAMES, GATEWAY, [255; 4]]);
            frame = frame.set(IP + 16, &to);
        }
        if random.below(2) == 0 {
            frame = frame.summed();
        }
        frame.len -= random.below(8) as usize;
        if !card.send(&frame) {
            t.eq(("taken", round), false, true);
        }
        if round % 16 == 0 {
            card.came(|_| false);
        }
    }
    t.holds("it goes on", card.works());
}
