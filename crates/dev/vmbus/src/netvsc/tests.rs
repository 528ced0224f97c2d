use super::oid::Facts;
use super::*;

const FACTS: Facts = Facts { mac: [2, 0, 0, 0, 0, 1], ours: true, up: true };

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn a_frame_comes_out_as_it_went_in() {
    let frame: Vec<u8> = (0..60).collect();
    for right in [false, true] {
        let bytes = rndis::packet(&frame, right);
        assert_eq!(bytes.u32_at(4) as usize, bytes.len());
        assert_eq!(rndis::frame(&bytes), Some(frame.clone()));
    }
}

#[test]
fn what_was_left_to_the_card_is_done() {
    let mut frame = vec![0; 100];
    frame[12] = 8;
    frame[14] = 0x45;
    // A tag of network 5, and TCP that was not cut.
    let info = words(&[16, 6, 12, 5 << 4, 16, 2, 12, 1 << 31]);
    let mut bytes = words(&[1, 44 + 32 + 100, 36 + 32, 100, 0, 0, 0, 36, 32, 0, 0]);
    bytes.extend(info);
    bytes.extend(&frame);
    let sent = rndis::frame(&bytes).unwrap();
    assert_eq!((sent.len(), &sent[12..18]), (104, &[0x81, 0, 0, 5, 8, 0][..]));
    assert_eq!(sent[20..22], [0, 86]);
    // 0x4500 + 86, and all others are zero.
    assert_eq!(sent[28..30], (!0x4556_u16).to_be_bytes());
}

#[test]
fn lengths_that_lie_bring_no_frame() {
    for at in [8, 12, 28, 32] {
        let mut bytes = rndis::packet(&[1; 60], true);
        for lie in [u32::MAX, 1 << 31, 1000, 3] {
            bytes[at..at + 4].copy_from_slice(&lie.to_le_bytes());
            let _ = rndis::frame(&bytes);
        }
    }
    // Sizes of information that lead nowhere, or go on for ever.
    for size in [0, 4, u32::MAX] {
        let mut bytes = rndis::packet(&[1; 60], true);
        bytes[44..48].copy_from_slice(&size.to_le_bytes());
        assert!(rndis::frame(&bytes).is_some());
    }
    assert_eq!(rndis::split(&words(&[1, 7])), None);
    assert_eq!(rndis::split(&words(&[1, 16])), None);
    assert_eq!(rndis::split(&[]), None);
}

#[test]
fn questions_are_answered_by_their_number() {
    let mac = rndis::answer(&words(&[4, 28, 9, 0x0101_0101, 0, 0, 0]), &FACTS).unwrap();
    assert_eq!((mac.u32_at(0), mac.u32_at(8), mac.u32_at(16)), (0x8000_0004, 9, 6));
    assert_eq!(mac[24..], FACTS.mac);
    let unknown = rndis::answer(&words(&[4, 28, 9, 77, 0, 0, 0]), &FACTS).unwrap();
    assert!(unknown.u32_at(12) != 0 && unknown.u32_at(16) == 0 && unknown.len() == 24);
    assert_eq!(rndis::answer(&words(&[2, 24, 1, 1, 0, 0x4000]), &FACTS).unwrap().len(), 52);
    assert_eq!(rndis::answer(&words(&[3, 12, 1]), &FACTS), None);
}
