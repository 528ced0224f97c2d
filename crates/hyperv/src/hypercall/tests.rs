use satori_defs::hyperv::msr;
use satori_defs::x86::efer;
use satori_state::{Segment, seg};

use super::*;
use crate::msr::tests::partition;

fn plain(_: &Partition, _: &mut Vp, call: &Call) -> Completion {
    assert_eq!((call.first, call.second), (1, 2));
    Completion::status(Status::Success)
}

fn rep(_: &Partition, _: &mut Vp, call: &Call) -> Completion {
    Completion { status: Status::Success, reps: call.input.reps(), outcome: Outcome::Done }
}

const TABLE: &[CallRow] = &[
    CallRow { code: 0x10, name: "plain", rep: false, header: false, run: plain },
    CallRow { code: 0x11, name: "rep", rep: true, header: true, run: rep },
];

#[test]
fn the_checks_of_the_input_word_come_before_the_call() {
    let (partition, ..) = partition("auto");
    let run = |input: u64| {
        let call = Call { input: Input(input), first: 1, second: 2 };
        let done = dispatch(TABLE, &partition, &mut Vp::new(0), &call);
        (done.status as u16, done.reps)
    };
    assert_eq!(run(0x10), (0, 0));
    assert_eq!(run(0x1_0010), (0, 0), "fast");
    assert_eq!(run(0x12), (2, 0));
    for reserved in (27..32).chain(44..48).chain(60..64) {
        assert_eq!(run(0x10 | 1 << reserved), (3, 0), "bit {reserved}");
    }
    assert_eq!(run(0x10 | 1 << 32), (3, 0), "reps without a rep call");
    assert_eq!(run(0x10 | 1 << 48), (3, 0));
    assert_eq!(run(0x10 | 1 << 17), (3, 0), "a header without one to expect");
    assert_eq!(run(0x11), (3, 0), "a rep call without reps");
    assert_eq!(run(0x11 | 5 << 32), (0, 5));
    assert_eq!(run(0x11 | 5 << 32 | 4 << 48 | 1 << 17), (0, 5));
    assert_eq!(run(0x11 | 5 << 32 | 5 << 48), (3, 0), "starts behind the end");
}

#[test]
fn both_conventions_answer_in_their_registers() {
    let (partition, ..) = partition("auto");
    let vp = &mut Vp::new(0);
    let mut cpu = CpuState { cr0: cr0::PE | cr0::PG, ..CpuState::default() };
    cpu.seg[seg::CS] = Segment::flat(8, 0xc09b);
    cpu.seg[seg::SS] = Segment::flat(16, 0xc093);
    assert_eq!(partition.hypercall(vp, &mut cpu), Err(Ud), "no identity yet");
    assert_eq!(partition.msr_write(vp, msr::GUEST_OS_ID, 1), Ok(Outcome::Done));
    cpu.gpr[reg::RAX] = 0x7777;
    cpu.gpr[reg::RDX] = 0xffff_ffff;
    assert_eq!(partition.hypercall(vp, &mut cpu), Ok(Outcome::Done));
    assert_eq!((cpu.gpr[reg::RAX], cpu.gpr[reg::RDX]), (2, 0));

    cpu.efer = efer::LMA | efer::LME;
    cpu.seg[seg::CS] = Segment::flat(8, 0xa09b);
    cpu.gpr[reg::RCX] = 0x7777;
    cpu.gpr[reg::RDX] = 99;
    cpu.gpr[reg::RAX] = u64::MAX;
    assert_eq!(partition.hypercall(vp, &mut cpu), Ok(Outcome::Done));
    assert_eq!((cpu.gpr[reg::RAX], cpu.gpr[reg::RDX]), (2, 99));

    let before = cpu.clone();
    cpu.seg[seg::SS] = Segment::flat(0x1b, 0xc0f3);
    assert_eq!(partition.hypercall(vp, &mut cpu), Err(Ud), "user mode");
    cpu.seg[seg::SS] = before.seg[seg::SS];
    assert_eq!(cpu, before, "and nothing changed");
    cpu.cr0 = 0;
    assert_eq!(partition.hypercall(vp, &mut cpu), Err(Ud), "real mode");
}
