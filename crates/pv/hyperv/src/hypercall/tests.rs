use proptest::prelude::*;
use satori_defs::hyperv::{call, msr};
use satori_defs::x86::efer;
use satori_memory::{Gpa, GuestMemory};
use satori_state::{Segment, reg, seg};

use super::*;
use crate::Config;
use crate::flush::Flush;
use crate::msr::tests::rig_of;

/// End of the memory that [`rig_of`] makes.
const END: u64 = 0x8000;
const FAST: u64 = 1 << 16;

fn kernel64() -> CpuState {
    let mut cpu = CpuState { cr0: cr0::PE | cr0::PG, efer: efer::LMA | efer::LME, ..CpuState::default() };
    cpu.seg[seg::CS] = Segment::flat(8, 0xa09b);
    cpu.seg[seg::SS] = Segment::flat(16, 0xc093);
    cpu
}

struct Guest {
    partition: Partition,
    memory: GuestMemory,
    vp: Vp,
    cpu: CpuState,
}

fn guest(words: &str) -> Guest {
    guest_of(words.parse().unwrap())
}

fn guest_of(config: Config) -> Guest {
    let (partition, _, memory, _) = rig_of(config, 3);
    let mut vp = Vp::new(0);
    assert_eq!(partition.msr_write(&mut vp, msr::GUEST_OS_ID, 1), Ok(Outcome::Done));
    Guest { partition, memory, vp, cpu: kernel64() }
}

impl Guest {
    fn make(&mut self, input: u64, first: u64, second: u64) -> Result<Hypercall, Ud> {
        (self.cpu.gpr[reg::RCX], self.cpu.gpr[reg::RDX], self.cpu.gpr[reg::R8]) = (input, first, second);
        self.partition.hypercall(&mut self.vp, &mut self.cpu)
    }

    /// Status and reps done.
    fn status(&mut self, input: u64, first: u64, second: u64) -> (u16, u16) {
        let done = self.make(input, first, second);
        assert!(matches!(done, Ok(Hypercall::Done(_))), "{done:?}");
        let result = self.cpu.gpr[reg::RAX];
        assert_eq!(result & !0xfff_0000_ffff, 0);
        (result as u16, (result >> 32) as u16)
    }

    fn put(&self, gpa: u64, words: &[u64]) {
        words.iter().zip((gpa..).step_by(8)).for_each(|(word, gpa)| {
            self.memory.write(Gpa(gpa), &word.to_le_bytes()).unwrap();
        });
    }
}

const SPACE: u64 = call::FLUSH_VIRTUAL_ADDRESS_SPACE as u64;
const LIST: u64 = call::FLUSH_VIRTUAL_ADDRESS_LIST as u64;
const LIST_EX: u64 = call::FLUSH_VIRTUAL_ADDRESS_LIST_EX as u64;
const IPI: u64 = call::SEND_SYNTHETIC_CLUSTER_IPI as u64;
const IPI_EX: u64 = call::SEND_SYNTHETIC_CLUSTER_IPI_EX as u64;
const QUERY: u64 = call::EXT_QUERY_CAPABILITIES as u64;

#[test]
fn the_input_word_is_checked_before_the_call() {
    let mut guest = guest("tlbflush,ipi");
    assert_eq!(guest.status(SPACE, 0x1000, 0), (0, 0));
    assert_eq!(guest.status(0x7777, 0x1000, 0), (2, 0), "not known");
    assert_eq!(guest.status(call::NOTIFY_LONG_SPIN_WAIT.into(), 0x1000, 0), (6, 0), "not offered");
    for reserved in (27..32).chain(44..48).chain(60..64) {
        assert_eq!(guest.status(SPACE | 1 << reserved, 0x1000, 0), (3, 0), "bit {reserved}");
    }
    assert_eq!(guest.status(SPACE | 1 << 32, 0x1000, 0), (3, 0), "reps without a rep call");
    assert_eq!(guest.status(SPACE | 1 << 48, 0x1000, 0), (3, 0));
    assert_eq!(guest.status(SPACE | 1 << 17, 0x1000, 0), (3, 0), "a header that is not expected");
    assert_eq!(guest.status(LIST, 0x1000, 0), (3, 0), "a rep call without reps");
    assert_eq!(guest.status(LIST | 5 << 32, 0x1000, 0), (0, 5));
    assert_eq!(guest.cpu.gpr[reg::RCX], LIST | 5 << 32 | 5 << 48, "RCX has the new rep start index");
    assert_eq!(guest.status(LIST | 5 << 32 | 4 << 48, 0x1000, 0), (0, 5));
    assert_eq!(guest.status(LIST | 5 << 32 | 5 << 48, 0x1000, 0), (3, 0), "starts behind the end");
}

#[test]
fn blocks_in_memory_are_aligned_and_within_a_page_of_it() {
    let mut guest = guest("tlbflush,extended-calls");
    for unaligned in 1..8 {
        assert_eq!(guest.status(SPACE, 0x1000 + unaligned, 0), (4, 0));
        assert_eq!(guest.status(QUERY, 0, 0x1000 + unaligned), (4, 0));
    }
    assert_eq!(guest.status(SPACE, 0x1ff0, 0), (4, 0), "crosses a page");
    assert_eq!(guest.status(SPACE, 0x1fe8, 0), (0, 0), "ends with it");
    assert_eq!(guest.status(SPACE, END - 24, 0), (0, 0), "ends with memory");
    for outside in [END - 16, END, 1 << 40, !7] {
        assert_eq!(guest.status(SPACE, outside, 0), (4, 0), "{outside:#x}");
        assert_eq!(guest.status(QUERY, 0, outside & !0xfff | END), (4, 0));
    }
    // 24 bytes of header leave room for 509 elements.
    assert_eq!(guest.status(LIST | 510 << 32, 0x1000, 0), (4, 0));
    assert_eq!(guest.status(LIST | 0xfff << 32, 0x1000, 0), (4, 0));
    guest.put(0x3000, &[0x1234]);
    assert_eq!(guest.status(QUERY, u64::MAX, 0x3000), (0, 0), "no input: its address is ignored");
    assert_eq!(guest.memory.read_u64(Gpa(0x3000)).unwrap(), 0, "no capabilities");
}

#[test]
fn a_long_list_is_done_in_parts_and_the_instruction_executed_again() {
    let mut guest = guest("tlbflush");
    guest.put(0x2000, &[0, 0, 1]);
    let mut input = LIST | 509 << 32;
    let mut parts = 0;
    loop {
        guest.cpu.gpr[reg::RAX] = 0x77;
        match guest.make(input, 0x2000, 0) {
            Ok(Hypercall::Again(_)) => {
                assert_eq!(guest.cpu.gpr[reg::RAX], 0x77, "no result yet");
                assert!(Input(guest.cpu.gpr[reg::RCX]).start() > Input(input).start());
                input = guest.cpu.gpr[reg::RCX];
                parts += 1;
            }
            done => {
                assert_eq!(done, Ok(Hypercall::Done(Outcome::Done)));
                break;
            }
        }
    }
    assert_eq!((guest.cpu.gpr[reg::RAX], parts), (509 << 32, 7));
}

#[test]
fn translations_of_second_tables_go_on_all_processors_where_that_is_offered() {
    const SPACE: u64 = call::FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE as u64;
    const LIST: u64 = call::FLUSH_GUEST_PHYSICAL_ADDRESS_LIST as u64;
    let taken =
        |guest: &Guest| -> Vec<_> { (0..3).map(|index| guest.partition.slots.enter(index).take()).collect() };
    let mut guest = guest_of(Config::all_nested());
    guest.put(0x2000, &[0x1234_5000, 0, 0x10_0007, 0x4000_0800]);
    for (input, done) in [(SPACE, 0), (LIST | 2 << 32, 2)] {
        assert_eq!(guest.status(input, 0x2000, 0), (Status::Success as u16, done));
        assert_eq!(taken(&guest), [Flush::All, Flush::All, Flush::All]);
    }
    guest.put(0x2008, &[1]);
    assert_eq!(guest.status(SPACE, 0x2000, 0).0, Status::InvalidParameter as u16, "no flag is defined");
    assert_eq!(taken(&guest), [Flush::Nothing, Flush::Nothing, Flush::Nothing]);
    let mut other = self::guest("tlbflush");
    assert_eq!(other.status(SPACE, 0x2000, 0).0, Status::AccessDenied as u16);
}

#[test]
fn fast_calls_take_112_bytes_from_registers_and_more_than_16_only_where_offered() {
    let words = [0u64, 0, 1, 0x10_0000, 0x20_0000];
    for (offered, reps) in [("tlbflush", 2), ("tlbflush,xmm-input", 2), ("tlbflush,xmm-input", 12)] {
        let mut guest = guest(offered);
        for (at, word) in words[2..].iter().enumerate() {
            guest.cpu.fpu.ymm[at / 2].low |= u128::from(*word) << (64 * (at % 2));
        }
        let before = guest.cpu.fpu.clone();
        let done = guest.make(LIST | FAST | reps << 32, words[0], words[1]);
        assert_eq!(guest.cpu.fpu, before, "input registers stay");
        match (offered, reps) {
            ("tlbflush", _) => assert_eq!(done, Err(Ud)),
            (_, 2) => {
                assert_eq!((done, guest.cpu.gpr[reg::RAX]), (Ok(Hypercall::Done(Outcome::Done)), 2 << 32));
                let pages = Flush::Pages(words[3..].to_vec());
                assert_eq!(guest.partition.slots.enter(0).take(), pages);
                let used = guest.partition.usage();
                assert!(
                    used.iter().any(|used| used.name == Enlightenment::XmmInput.name() && used.count == 1)
                );
            }
            // 24 and 12 * 8 bytes are one word too much.
            _ => assert_eq!(guest.cpu.gpr[reg::RAX], 3),
        }
    }
    let mut guest = guest("ipi");
    let outcome = guest.make(IPI | FAST, 0x30, 0b101);
    let targets = Box::new(crate::VpSet::mask(0b101));
    assert_eq!(outcome, Ok(Hypercall::Done(Outcome::Interrupt { vector: 0x30, targets })));
}

#[test]
fn fast_output_is_in_the_registers_behind_the_input_where_offered() {
    let mut plain = guest("extended-calls");
    assert_eq!(plain.make(QUERY | FAST, 1, 2), Err(Ud));
    let mut guest = guest("extended-calls,xmm-output");
    assert_eq!(guest.status(QUERY | FAST, 1, 2), (0, 0));
    assert_eq!((guest.cpu.gpr[reg::RDX], guest.cpu.gpr[reg::R8]), (0, 2));
    let mut cpu = CpuState::default();
    cpu.fpu.ymm[1].low = u128::MAX;
    write_fast(&mut cpu, 4, &[7]);
    assert_eq!(cpu.fpu.ymm[1].low, u128::from(u64::MAX) << 64 | 7);
    assert_eq!(fast_output(3, 10, true, Abi::X64), Ok(4), "from the next pair on");
    assert_eq!(
        fast_output(3, 11, true, Abi::X64),
        Err(Refusal::Status(Status::InvalidHypercallInput)),
        "no further than XMM5"
    );
    assert_eq!(fast_output(0, 1, true, Abi::X86), Err(Refusal::Ud), "x64 only");
}

#[test]
fn interrupts_need_a_vector_above_15_and_a_set_that_fits_its_header() {
    let mut guest = guest("ipi,xmm-input");
    for vector in [0, 0xf, 0x100, 0xffff_ffff] {
        assert_eq!(guest.status(IPI | FAST, vector, 1), (3, 0), "{vector:#x}");
    }
    assert_eq!(guest.status(IPI | FAST, 0x10, 1), (0, 0));
    assert_eq!(guest.status(IPI | FAST, 0xff, 1), (0, 0));
    assert_eq!(guest.status(IPI | FAST, 0x11_0000_0030, 1), (5, 0), "trust level 1 does not exist");
    assert_eq!(guest.status(IPI | FAST, 0x10_0000_0030, 1), (0, 0), "level 0 by its number");
    guest.put(0x1000, &[0x30, 0, 0b11, 1, 2]);
    assert_eq!(guest.status(IPI_EX | 2 << 17, 0x1000, 0), (0, 0));
    assert_eq!(guest.status(IPI_EX | 1 << 17, 0x1000, 0), (3, 0), "two banks, one word");
    assert_eq!(guest.status(IPI_EX | 3 << 17, 0x1000, 0), (3, 0));
    assert_eq!(guest.status(IPI_EX | 0x3ff << 17, 0x1000, 0), (4, 0), "more than a page");
}

#[test]
fn elements_lie_behind_the_variable_header() {
    let mut guest = guest("tlbflush");
    guest.put(0x1000, &[0, 0, 0, 0b101, 0b100, 0, 0x5000, 0x6000]);
    assert_eq!(guest.status(LIST_EX | 2 << 17 | 2 << 32 | 1 << 48, 0x1000, 0), (0, 2));
    assert_eq!(guest.partition.slots.enter(2).take(), Flush::Pages(vec![0x6000]));
}

#[test]
fn both_conventions_answer_in_their_registers() {
    let mut guest = guest("tlbflush");
    guest.cpu.gpr[reg::RAX] = u64::MAX;
    assert_eq!(guest.status(0x7777, 99, 0), (2, 0));
    assert_eq!(guest.cpu.gpr[reg::RDX], 99);

    let before = guest.cpu.clone();
    guest.cpu.seg[seg::SS] = Segment::flat(0x1b, 0xc0f3);
    assert_eq!(guest.make(0x7777, 99, 0), Err(Ud), "user mode");
    guest.cpu.seg[seg::SS] = before.seg[seg::SS];
    guest.cpu.cr0 = 0;
    assert_eq!(guest.make(0x7777, 99, 0), Err(Ud), "real mode");

    // EDX:EAX is the input word, EBX:ECX and EDI:ESI the arguments; upper halves do not count.
    guest.cpu = CpuState { efer: 0, ..before };
    guest.cpu.seg[seg::CS] = Segment::flat(8, 0xc09b);
    guest.put(0x2000, &[0, 0, 1, 0x5000, 0x6000]);
    let high = 0xdead_0000_0000_0000;
    guest.cpu.gpr[reg::RAX] = high | LIST;
    guest.cpu.gpr[reg::RDX] = high | 2;
    guest.cpu.gpr[reg::RCX] = high | 0x2000;
    guest.cpu.gpr[reg::RBX] = high;
    assert_eq!(guest.partition.hypercall(&mut guest.vp, &mut guest.cpu), Ok(Hypercall::Done(Outcome::Done)));
    assert_eq!((guest.cpu.gpr[reg::RAX], guest.cpu.gpr[reg::RDX]), (0, 2));
    assert_eq!(guest.partition.slots.enter(0).take(), Flush::Pages(vec![0x5000, 0x6000]));

    assert_eq!(guest.partition.msr_write(&mut guest.vp, msr::GUEST_OS_ID, 0), Ok(Outcome::Done));
    guest.cpu = kernel64();
    assert_eq!(guest.make(SPACE, 0x1000, 0), Err(Ud), "without an identity there are no calls");
}

/// Calls that are likely to pass some checks, and calls that are anything.
fn input() -> impl Strategy<Value = u64> {
    let code = prop_oneof![
        prop::sample::select(CALLS.iter().map(|row| u64::from(row.code)).collect::<Vec<_>>()),
        any::<u16>().prop_map(u64::from),
    ];
    let header = prop_oneof![Just(0u64), 0..4u64, 0..0x400u64];
    let reps = prop_oneof![Just(0u64), 1..12u64, 0..0x1000u64];
    let fields = (code, any::<bool>(), header, reps.clone(), reps);
    let plausible = fields.prop_map(|(code, fast, header, reps, start)| {
        code | u64::from(fast) << 16 | header << 17 | reps << 32 | start << 48
    });
    prop_oneof![4 => plausible, 1 => any::<u64>()]
}

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![(0..END / 8).prop_map(|word| word * 8), 0..END + 64, any::<u64>()]
}

proptest! {
    #[test]
    fn any_call_ends_with_a_status_and_touches_only_what_it_may(
        input in input(),
        (first, second) in (address(), address()),
        words in prop::collection::vec(prop_oneof![0..8u64, any::<u64>()], 16),
        xmm in any::<[u128; 6]>(),
        all in any::<bool>(),
    ) {
        let mut guest = guest(if all { "tlbflush-ext,ipi,spinlocks,extended-calls,xmm-input,xmm-output" } else { "ipi" });
        guest.put(0x1000, &words);
        guest.put(0x2000, &words);
        for (at, value) in xmm.iter().enumerate() {
            guest.cpu.fpu.ymm[at].low = *value;
        }
        let mut before = vec![0; END as usize];
        guest.memory.read(Gpa(0), &mut before).unwrap();
        let mut input = input;
        for _ in 0..70 {
            let state = {
                (guest.cpu.gpr[reg::RCX], guest.cpu.gpr[reg::RDX], guest.cpu.gpr[reg::R8]) =
                    (input, first, second);
                guest.cpu.clone()
            };
            let done = guest.partition.hypercall(&mut guest.vp, &mut guest.cpu);
            let call = Input(input);
            match done {
                Err(Ud) => {
                    prop_assert!(call.fast());
                    prop_assert_eq!(&guest.cpu, &state, "a fault changes nothing");
                    break;
                }
                Ok(Hypercall::Again(_)) => {
                    prop_assert!(Input(guest.cpu.gpr[reg::RCX]).start() > call.start());
                    input = guest.cpu.gpr[reg::RCX];
                }
                Ok(Hypercall::Done(_)) => {
                    let result = guest.cpu.gpr[reg::RAX];
                    prop_assert!([0, 2, 3, 4, 5, 6].contains(&(result as u16)), "status {}", result as u16);
                    prop_assert!((result >> 32) as u16 <= call.reps());
                    if result as u16 == 0 && call.reps() != 0 {
                        prop_assert_eq!((result >> 32) as u16, call.reps());
                    }
                    break;
                }
            }
        }
        let mut after = vec![0; END as usize];
        guest.memory.read(Gpa(0), &mut after).unwrap();
        let output = second as usize..second.saturating_add(8) as usize;
        let changed = before.iter().zip(&after).enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at);
        for at in changed {
            prop_assert!(output.contains(&at) && !Input(input).fast() && Input(input).code() == QUERY as u16);
        }
    }
}
