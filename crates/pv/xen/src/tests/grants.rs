//! Grant tables: what back ends reach, and what a hostile guest makes of it.

use satori_defs::xen::{call, errno, grant};
use satori_memory::Gpa;

use super::{ARGS, LINEAR, RAM, Rig, words};
use crate::Copied;

/// With a frame of entries at 0x2000.
fn rig() -> Rig {
    let mut rig = Rig::set_up();
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 1), 0, 2]), 0);
    rig
}

fn entry(rig: &Rig, reference: u64, flags: u16, domain: u16, frame: u32) {
    let bytes = [&flags.to_le_bytes()[..], &domain.to_le_bytes(), &frame.to_le_bytes()].concat();
    rig.memory.write(Gpa(0x2000 + reference * 8), &bytes).unwrap();
}

/// A copy of `len` bytes from one place to another, each a reference or a frame, and an offset.
fn copy(rig: &mut Rig, from: (u64, u16), to: (u64, u16), len: u16, flags: u16) -> i16 {
    let side = |offset: u16| 0x7ff0 | u64::from(offset) << 16;
    let last = u64::from(len) | u64::from(flags) << 16;
    assert_eq!(rig.with(0, 0, &[from.0, side(from.1), to.0, side(to.1), last]), errno::ENOSYS);
    assert_eq!(rig.call_as(0, call::GRANT_TABLE, [5, LINEAR + ARGS, 1]).0, 0);
    (rig.word(ARGS + 36) & 0xffff) as i16
}

#[test]
fn an_entry_is_looked_at_for_each_use() {
    let mut rig = rig();
    assert_eq!(rig.word(0x2004), 0xfefff, "the console's is granted from the beginning");
    entry(&rig, 9, grant::ACCESS, 0, 5);
    assert_eq!(rig.domain.grant(9, true), Ok(Gpa(0x5000)));
    assert_eq!(rig.word(0x2048) as u16, grant::ACCESS | grant::READING | grant::WRITING);
    assert_eq!(rig.domain.grant(9, false), Ok(Gpa(0x5000)));
    assert_eq!(rig.with(call::GRANT_TABLE, 8, &[2]), errno::EBUSY);
    rig.domain.end_grant(9, true);
    assert_eq!(rig.word(0x2048) as u16, grant::ACCESS | grant::READING);
    rig.domain.end_grant(9, false);
    rig.domain.end_grant(9, false);
    assert_eq!(rig.word(0x2048) as u16, grant::ACCESS);
    entry(&rig, 9, grant::ACCESS | grant::READ_ONLY, 0, 5);
    assert_eq!(rig.domain.grant(9, true), Err(grant::DENIED));
    entry(&rig, 9, 0, 0, 5);
    assert_eq!(rig.domain.grant(9, false), Err(grant::BAD_REFERENCE));
    entry(&rig, 9, grant::ACCESS, 3, 5);
    assert_eq!(rig.domain.grant(9, false), Err(grant::BAD_REFERENCE), "another domain's");
    for frame in [RAM as u32 >> 12, u32::MAX] {
        entry(&rig, 9, grant::ACCESS, 0, frame);
        assert_eq!(rig.domain.grant(9, false), Err(grant::BAD_PAGE));
    }
    for reference in [512, 64 * 512, u32::MAX] {
        assert_eq!(rig.domain.grant(reference, false), Err(grant::BAD_REFERENCE), "no frame there");
    }
    assert_eq!(rig.word(0x2048) as u16, grant::ACCESS, "nothing stays behind");
}

#[test]
fn bytes_are_copied_within_what_is_granted() {
    let mut rig = rig();
    entry(&rig, 9, grant::ACCESS, 0, 5);
    rig.domain.grant_copy(9, 4090, Copied::ToGuest(&[7; 6])).unwrap();
    assert_eq!(rig.word(0x5ffc), 0x0707_0707);
    for at in [4091, 5000, usize::MAX] {
        assert_eq!(rig.domain.grant_copy(9, at, Copied::ToGuest(&[7; 6])), Err(grant::CROSSES));
    }
    // Of the guest's own: a frame to what it grants itself, and back.
    entry(&rig, 10, grant::ACCESS, 1, 6);
    assert_eq!(copy(&mut rig, (5, 4092), (10, 8), 4, 2), 0);
    assert_eq!(rig.word(0x6008), 0x0707_0707);
    assert_eq!(copy(&mut rig, (10, 8), (4, 0), 4, 1), 0);
    assert_eq!(rig.word(0x4000), 0x0707_0707);
    assert_eq!(copy(&mut rig, (5, 4093), (10, 8), 4, 2), grant::CROSSES);
    assert_eq!(copy(&mut rig, (u64::MAX, 0), (10, 8), 4, 2), grant::BAD_PAGE);
    assert_eq!(copy(&mut rig, (9, 0), (4, 0), 4, 1), grant::BAD_REFERENCE, "the host's");
    assert_eq!(rig.call_as(0, call::GRANT_TABLE, [5, LINEAR + ARGS, 1025]).0, errno::EINVAL);
    assert_eq!(rig.call_as(0, call::GRANT_TABLE, [5, LINEAR + RAM - 8, 1]).0, errno::EFAULT);
    assert_eq!(rig.call_as(0, call::GRANT_TABLE, [5, u64::MAX - 8, 2]).0, errno::EFAULT);
}

#[test]
fn version_2_has_states_in_frames_of_their_own() {
    let mut rig = rig();
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 1), 1 << 31, 3]), errno::EINVAL, "of version 1");
    assert_eq!(rig.with(call::GRANT_TABLE, 8, &[3]), errno::EINVAL);
    assert_eq!(rig.with(call::GRANT_TABLE, 8, &[2]), 0);
    assert_eq!(rig.with(call::GRANT_TABLE, 10, &[0x7ff0]), 0);
    assert_eq!(rig.word(ARGS + 4), 2);
    let entry = |rig: &Rig, flags: u16, part: [u16; 2], frame: u64| {
        let parts = [flags, 0, part[0], part[1]].map(u16::to_le_bytes).concat();
        rig.memory.write(Gpa(0x2000 + 9 * 16), &[&parts[..], &frame.to_le_bytes()].concat()).unwrap();
    };
    entry(&rig, grant::ACCESS, [0, 0], 5);
    assert_eq!(rig.domain.grant(9, true), Err(grant::BAD_REFERENCE), "no frame with states");
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 1), 1 << 31, 3]), 0);
    assert_eq!(rig.with(call::GRANT_TABLE, 9, &[words(1, 0x7ff0), LINEAR + 0x9000]), 0);
    assert_eq!(rig.word(0x9000), 3);
    assert_eq!(rig.domain.grant(9, true), Ok(Gpa(0x5000)));
    assert_eq!(rig.word(0x3010) >> 16, u32::from(grant::READING | grant::WRITING), "the upper half word");
    rig.domain.end_grant(9, true);
    assert_eq!(rig.word(0x3010), 0);
    entry(&rig, grant::ACCESS | grant::SUB_PAGE, [16, 32], 5);
    assert_eq!(rig.domain.grant(9, false), Err(grant::BAD_REFERENCE), "a part is copied alone");
    let mut bytes = [0; 32];
    rig.domain.grant_copy(9, 16, Copied::FromGuest(&mut bytes)).unwrap();
    assert_eq!(rig.domain.grant_copy(9, 17, Copied::FromGuest(&mut bytes)), Err(grant::CROSSES));
    assert_eq!(rig.domain.grant_copy(9, 15, Copied::FromGuest(&mut bytes)), Err(grant::CROSSES));
    entry(&rig, grant::ACCESS, [0, 0], u64::MAX);
    assert_eq!(rig.domain.grant(9, false), Err(grant::BAD_PAGE));
}

#[test]
fn pages_beyond_the_ram_come_and_are_saved() {
    let mut rig = rig();
    let far = 0x8_0000_0000 / 4096;
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 1), 1, far]), 0);
    rig.memory.write(Gpa(far * 4096), &[9; 8]).unwrap();
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 1), 1, far + 1]), 0);
    assert_eq!(rig.word(far * 4096 + 4096), 0x0909_0909, "a frame moves with what it holds");
    for wrong in [u64::MAX, 1 << 50] {
        assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 1), 1, wrong]), errno::EINVAL);
    }
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 1), 64, 3]), errno::EINVAL);
    // However many it asks for, there are some.
    let some =
        (0..1000).take_while(|n| rig.with(call::MEMORY, 7, &[words(0x7ff0, 1), 1, (n + 7) << 20]) == 0);
    assert_eq!(some.count(), 256, "one of them is there already");
    let again = Rig::new();
    assert!(again.domain.restore(rig.domain.save()));
    assert!(again.memory.has(Gpa(far * 4096), 4096));
    assert!(again.domain.restore(Rig::new().domain.save()));
    assert!(!again.memory.has(Gpa(far * 4096), 4096), "and goes with the state");
}

#[test]
fn pages_are_given_away_and_come_back_empty() {
    let mut rig = Rig::set_up();
    let pages = |rig: &mut Rig| rig.call_as(0, call::MEMORY, [3, 0, 0]).0;
    assert_eq!(pages(&mut rig), 16);
    rig.memory.write(Gpa(0x5000), &[1; 8]).unwrap();
    rig.memory.write(Gpa(0x9000), &[5u64, 6, 99].map(u64::to_le_bytes).concat()).unwrap();
    assert_eq!(rig.with(call::MEMORY, 1, &[LINEAR + 0x9000, 3, 0, 0x7ff0]), 2, "the third is none");
    assert_eq!((pages(&mut rig), rig.word(0x5000)), (14, 0));
    assert_eq!(rig.with(call::MEMORY, 6, &[LINEAR + 0x9000, 1, 0, 0x7ff0]), 1);
    assert_eq!(pages(&mut rig), 15);
    assert_eq!(rig.with(call::MEMORY, 1, &[LINEAR + 0x9000, 1, 10, 0x7ff0]), errno::EPERM);
    assert_eq!(rig.with(call::MEMORY, 1, &[0, u64::MAX, 0, 0x7ff0]), 0);
}
