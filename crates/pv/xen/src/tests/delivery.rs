//! How vCPUs hear of events.

use satori_defs::xen::{call, errno, param, shared_info};
use satori_memory::Gpa;

use super::{ARGS, Rig, words};
use crate::{Config, Feature, Kind, Saved};

const CALLBACK: u64 = 0x7ff0 | (param::CALLBACK_IRQ as u64) << 32;

fn set_callback(rig: &mut Rig, kind: u64, value: u64) -> i64 {
    rig.with(call::HVM, 0, &[CALLBACK, kind << param::CALLBACK_TYPE_SHIFT | value])
}

/// With a shared page, no vectors, and an unmasked IPI of each vCPU; their ports.
fn with_ports(config: Config) -> (Rig, [u32; 2]) {
    let mut rig = Rig::of(config);
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 0), 0, 1]), 0);
    let ports = [0, 1].map(|vcpu| {
        assert_eq!(rig.with(call::EVENT_CHANNEL, 7, &[words(vcpu, 0)]), 0);
        let port = rig.word(ARGS + 4);
        assert_eq!(rig.with(call::EVENT_CHANNEL, 9, &[port.into()]), 0);
        port
    });
    (rig, ports)
}

fn send(rig: &mut Rig, port: u32) {
    assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[port.into()]), 0);
}

/// vCPU `vcpu` looks at all of its events.
fn look(rig: &Rig, vcpu: u64) {
    let info = 0x1000 + vcpu * shared_info::VCPU_INFO;
    rig.memory.write(Gpa(info), &[0; 16]).unwrap();
    rig.memory.write(Gpa(0x1000 + shared_info::EVTCHN_PENDING), &[0; 8]).unwrap();
}

#[test]
fn the_callback_vector_waits_for_whoever_looks() {
    let (mut rig, [first, second]) = with_ports(Config::new(Kind::Hvm));
    send(&mut rig, second);
    assert!(rig.heard().is_empty() && rig.domain.callback(1).is_none(), "nobody said how");
    assert_eq!(set_callback(&mut rig, param::CALLBACK_VECTOR, 0xf3), 0);
    assert_eq!(rig.heard(), ["wake 1"], "what was pending before is told");
    assert_eq!((rig.domain.callback(0), rig.domain.callback(1)), (None, Some(0xf3)));
    send(&mut rig, first);
    assert!(rig.heard().is_empty(), "its own thread looks");
    assert_eq!(rig.domain.callback(0), Some(0xf3));
    look(&rig, 0);
    look(&rig, 1);
    assert_eq!((rig.domain.callback(0), rig.domain.callback(1)), (None, None));
    // It stands in a saved state, too.
    send(&mut rig, second);
    let saved: Saved = serde_json::from_str(&serde_json::to_string(&rig.domain.save()).unwrap()).unwrap();
    let mut page = vec![0; 4096];
    rig.memory.read(Gpa(0x1000), &mut page).unwrap();
    let other = Rig::of(Config::new(Kind::Hvm));
    other.memory.write(Gpa(0x1000), &page).unwrap();
    assert!(other.domain.restore(saved));
    assert_eq!(other.domain.callback(1), Some(0xf3));
    assert_eq!(set_callback(&mut rig, 0, 0), 0);
    assert_eq!(rig.domain.callback(1), None);
}

#[test]
fn a_line_follows_the_first_vcpu() {
    for (kind, value, gsi) in [(param::CALLBACK_GSI, 9, 9), (param::CALLBACK_INTX, 3 << 11 | 1, 16)] {
        let (mut rig, [first, second]) = with_ports(Config::new(Kind::Hvm));
        assert_eq!(set_callback(&mut rig, kind, value), 0);
        send(&mut rig, second);
        assert!(rig.heard().is_empty(), "of other vCPUs it does not tell");
        let (up, down) = (format!("line {gsi} true"), format!("line {gsi} false"));
        send(&mut rig, first);
        assert_eq!(rig.heard(), [&*up]);
        rig.domain.settle();
        assert!(rig.heard().is_empty(), "nobody looked");
        look(&rig, 0);
        rig.domain.settle();
        rig.domain.settle();
        assert_eq!(rig.heard(), [&*down]);
        send(&mut rig, first);
        // Another way: this one's line falls.
        assert_eq!(set_callback(&mut rig, param::CALLBACK_GSI, 5), 0);
        assert_eq!(rig.heard(), [up, down, "line 5 true".into()]);
        let saved = rig.domain.save();
        let mut page = vec![0; 4096];
        rig.memory.read(Gpa(0x1000), &mut page).unwrap();
        let other = Rig::of(Config::new(Kind::Hvm));
        other.memory.write(Gpa(0x1000), &page).unwrap();
        assert!(other.domain.restore(saved) && other.heard().is_empty());
        look(&other, 0);
        other.domain.settle();
        assert_eq!(other.heard(), ["line 5 false"], "a saved line is known to be asserted");
        // A vector of the vCPU's own is told instead.
        assert_eq!(rig.with(call::HVM, 23, &[words(0, 0x41)]), 0);
        assert_eq!(rig.heard(), ["line 5 false", "vcpu 0 vector 0x41 own true"]);
        assert_eq!(rig.with(call::HVM, 1, &[CALLBACK, 0]), 0);
        assert_eq!(rig.word(ARGS + 8), 5);
    }
}

#[test]
fn what_is_not_offered_is_refused() {
    let config = Config::new(Kind::Hvm);
    let config = config.with(Feature::UpcallVector, false).with(Feature::CallbackVector, false);
    let (mut rig, [first, _]) = with_ports(config.with(Feature::Fifo, false));
    assert_eq!(rig.with(call::HVM, 23, &[words(0, 0x41)]), errno::ENOSYS);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 11, &[2, words(0x40, 1), 0]), errno::ENOSYS);
    assert_eq!(rig.with(call::XEN_VERSION, 6, &[0]), 0);
    assert_eq!(rig.word(ARGS + 4) & 1 << 8, 0);
    assert_eq!(
        set_callback(&mut rig, param::CALLBACK_VECTOR, 0xf3),
        0,
        "an old Xen takes what it does not know"
    );
    send(&mut rig, first);
    assert!(rig.heard().is_empty() && rig.domain.callback(0).is_none());
    assert_eq!(rig.with(call::HVM, 0, &[words(0x7ff0, param::VIRIDIAN), 1]), errno::ENOSYS);
}
