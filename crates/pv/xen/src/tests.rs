//! The interface as a guest sees it: calls with right and wrong arguments, and what becomes of events.

mod delivery;
mod grants;
mod store;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use satori_bus::{Clock, PowerEvent};
use satori_defs::x86::{cr0, efer};
use satori_defs::xen::{call, errno, fifo, param, shared_info};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::{CpuState, reg, seg};

use crate::{
    CALLS, Caller, Config, Domain, Feature, Host, Kind, MapEntry, Outcome, SPECIAL, Saved, TscMode, Vcpu,
    leaves,
};

#[derive(Default)]
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn counter(&self) -> u64 {
        self.now()
    }
    fn counter_hz(&self) -> u64 {
        1_000_000_000
    }
    fn epoch(&self) -> u64 {
        5_000_000_000_000_000_009
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Host for Heard {
    fn request(&self, vcpu: u32, vector: u8, own: bool) {
        self.0.lock().unwrap().push(format!("vcpu {vcpu} vector {vector:#x} own {own}"));
    }
    fn wake(&self, vcpu: u32) {
        self.0.lock().unwrap().push(format!("wake {vcpu}"));
    }
    fn line(&self, gsi: u8, asserted: bool) {
        self.0.lock().unwrap().push(format!("line {gsi} {asserted}"));
    }
    fn intx(&self, device: u8, pin: u8) -> u8 {
        16 + (device + pin) % 4
    }
    fn console(&self, bytes: &[u8]) {
        self.0.lock().unwrap().push(String::from_utf8_lossy(bytes).into_owned());
    }
}

struct Rig {
    domain: Domain,
    vcpus: [Vcpu; 2],
    memory: GuestMemory,
    clock: Arc<Ticks>,
    heard: Arc<Heard>,
}

const RAM: u64 = 0x1_0000;
/// Linear addresses are physical ones above this.
const LINEAR: u64 = 0xffff_8000_0000_0000;
/// Where arguments are.
const ARGS: u64 = 0x8000;

impl Rig {
    fn new() -> Self {
        Rig::of(Config::new(Kind::Pvh))
    }

    fn of(config: Config) -> Self {
        let memory = GuestMemory::new(&[Region { start: Gpa(0), len: RAM }, SPECIAL]).unwrap();
        let (clock, heard) = (Arc::new(Ticks::default()), Arc::new(Heard::default()));
        let domain = Domain::new(config, memory.clone(), clock.clone(), 2, false, heard.clone());
        Rig { domain, vcpus: [Vcpu::new(0), Vcpu::new(1)], memory, clock, heard }
    }

    /// With a shared page at 0x1000, and a vector for each vCPU.
    fn set_up() -> Self {
        let mut rig = Rig::new();
        assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 0), 0, 1]), 0);
        for vcpu in 0..2 {
            assert_eq!(rig.with(call::HVM, 23, &[words(vcpu, 0x40 + vcpu)]), 0);
        }
        rig
    }

    fn call_as(&mut self, vcpu: usize, number: u64, arguments: [u64; 3]) -> (i64, Outcome) {
        let mut cpu = CpuState { cr0: cr0::PE | cr0::PG, efer: efer::LMA | efer::LME, ..CpuState::default() };
        cpu.seg[seg::CS].rights = 0xa09b;
        cpu.seg[seg::SS].rights = 0xc093;
        cpu.gpr[reg::RAX] = number;
        for (at, value) in [reg::RDI, reg::RSI, reg::RDX].into_iter().zip(arguments) {
            cpu.gpr[at] = value;
        }
        let caller = Caller { translate: &|linear| linear.checked_sub(LINEAR) };
        let (result, outcome) = self.domain.hypercall(&mut self.vcpus[vcpu], &cpu, &caller);
        (result as i64, outcome)
    }

    /// The call with a structure of these words as its argument.
    fn with(&mut self, number: u64, command: u64, structure: &[u64]) -> i64 {
        let bytes: Vec<u8> = structure.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.write(Gpa(ARGS), &bytes).unwrap();
        self.call_as(0, number, [command, LINEAR + ARGS, 0]).0
    }

    fn word(&self, at: u64) -> u32 {
        self.memory.read_u32(Gpa(at)).unwrap()
    }

    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.0.lock().unwrap())
    }
}

#[test]
fn the_shared_page_may_be_beyond_ram() {
    let mut rig = Rig::set_up();
    let beyond = 0x10_0000;
    assert!(!rig.memory.has(Gpa(beyond << 12), 0x1000));
    rig.memory.write(Gpa(0x1000 + 0x10), &[0x5a]).unwrap();
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 0), 0, beyond]), 0);
    assert_eq!(rig.word(beyond << 12 | 0x10) & 0xff, 0x5a, "it moves with what it holds");
}

#[test]
fn the_memory_map_is_what_the_guest_was_told_at_its_entry() {
    let mut rig = Rig::new();
    let entry = |start, len, kind| MapEntry { start, len, kind };
    rig.domain.with_memory_map(vec![
        entry(0, 0x9fc00, 1),
        entry(0x9fc00, 0x400, 2),
        entry(0x8000, 0x8000, 3),
    ]);
    assert_eq!(rig.with(call::MEMORY, 9, &[words(2, 0), LINEAR + 0x9000]), 0);
    assert_eq!(rig.word(ARGS), 2, "as many as there is room for");
    let read = [0, 8, 16, 20, 28, 36, 40].map(|at| rig.word(0x9000 + at));
    assert_eq!(read, [0, 0x9fc00, 1, 0x9fc00, 0x400, 2, 0]);
}

/// Two 32-bit fields as one word.
fn words(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

#[test]
fn leaves_and_page_say_how_to_call() {
    let config = Config::new(Kind::Pvh);
    let leaves = leaves(&config, 2_000_000_000);
    assert_eq!((leaves[0].value.eax, leaves[0].value.ebx), (config.vcpu_leaf(), 0x566e_6558));
    assert_eq!(leaves[4].value.eax, 0x58);
    let mut behind = config.with(Feature::UpcallVector, false);
    (behind.behind, behind.tsc) = (true, TscMode::Never);
    let other = crate::leaves(&behind, 2_000_000_000);
    assert_eq!(
        (other[0].leaf, other[0].value.eax, other[2].value.ebx),
        (0x4000_0100, 0x4000_0104, 0x4000_0200)
    );
    assert_eq!((other[3].value.eax, other[3].value.ebx, other[4].value.eax), (2, 2, 0x18));
    let rig = Rig::new();
    assert!(rig.domain.write_page(0x3000) && !rig.domain.write_page(RAM) && !rig.domain.write_page(u64::MAX));
    assert_eq!((rig.word(0x3000 + 32 * 17), rig.word(0x3004 + 32 * 17)), (0x11b8, 0xc101_0f00));
}

#[test]
fn no_call_takes_what_is_not_the_guests() {
    let mut rig = Rig::set_up();
    for row in CALLS {
        let commands = row.commands.iter().map(|(command, _)| *command).chain([99]);
        for command in commands {
            for address in [0, 8, LINEAR - 8, LINEAR + RAM - 1, LINEAR + RAM, u64::MAX, u64::MAX - 7] {
                let _ = rig.call_as(0, row.number, [command, address, address]);
                let _ = rig.call_as(1, row.number, [command, 0, address]);
            }
        }
    }
    assert_eq!(rig.call_as(0, 99, [0; 3]), (errno::ENOSYS, Outcome::Done));
    assert_eq!(rig.call_as(0, call::XEN_VERSION, [6, 1, 0]).0, errno::EFAULT);
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 0), 0, 1 << 34]), errno::EINVAL, "no address");
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 0), 0, u64::MAX]), errno::EINVAL);
    let cpu = CpuState::default();
    let caller = Caller { translate: &|_| None };
    assert_eq!(rig.domain.hypercall(&mut Vcpu::new(0), &cpu, &caller).0, 0xffff_ffda, "no 64-bit code");
}

#[test]
fn an_event_goes_through_mask_selector_and_vector() {
    let mut rig = Rig::set_up();
    assert_eq!(rig.with(call::EVENT_CHANNEL, 7, &[words(1, 0)]), 0);
    let port = rig.word(ARGS + 4);
    assert_eq!(port, 3, "behind the console's and the store's");
    assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[port.into()]), 0);
    assert_eq!(rig.word(0x1800), 1 << port);
    assert!(rig.heard().is_empty(), "masked");
    assert_eq!(rig.with(call::EVENT_CHANNEL, 9, &[port.into()]), 0);
    assert_eq!(rig.heard(), ["vcpu 1 vector 0x41 own false"]);
    let info = 0x1000 + shared_info::VCPU_INFO;
    assert_eq!((rig.word(info) & 0xff, rig.word(info + 8)), (1, 1));
    assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[port.into()]), 0);
    assert!(rig.heard().is_empty(), "pending already");
    assert_eq!(rig.with(call::EVENT_CHANNEL, 3, &[port.into()]), 0);
    assert_eq!(rig.word(0x1800), 0);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[port.into()]), errno::EINVAL);
    for wrong in [0, 4096, u64::from(u32::MAX)] {
        for command in [3, 4, 9] {
            assert_eq!(rig.with(call::EVENT_CHANNEL, command, &[wrong]), errno::EINVAL, "{command} {wrong}");
        }
    }
    assert_eq!(rig.with(call::EVENT_CHANNEL, 1, &[words(0, 0), 0]), 0);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 1, &[words(0, 0), 0]), errno::EEXIST);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 1, &[words(24, 0), 0]), errno::EINVAL);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 7, &[words(2, 0)]), errno::ENOENT);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 2, &[0, 0, 0]), errno::ENOSYS, "no physical interrupts");
}

/// The word of `port` in a page of words at 0x3000.
fn word_of(port: u32) -> u64 {
    0x3000 + u64::from(port) * 4
}

#[test]
fn queues_are_filled_by_priority() {
    const MASKED: u32 = fifo::MASKED;
    let mut rig = Rig::set_up();
    let event =
        |rig: &mut Rig, command: u64, port: u32| rig.with(call::EVENT_CHANNEL, command, &[port.into()]);
    let port: [u32; 4] = std::array::from_fn(|_| {
        assert_eq!(rig.with(call::EVENT_CHANNEL, 7, &[words(1, 0)]), 0);
        rig.word(ARGS + 4)
    });
    assert_eq!(rig.with(call::EVENT_CHANNEL, 12, &[3]), errno::ENOSYS, "no FIFO yet");
    assert_eq!(event(&mut rig, 4, port[3]), 0, "pending by the two-level ABI");
    for wrong in
        [[2, words(4, 1), 0], [2, words(0xfc0, 1), 0], [0x10, words(0, 1), 0], [u64::MAX, words(0, 1), 0]]
    {
        assert_eq!(rig.with(call::EVENT_CHANNEL, 11, &wrong), errno::EINVAL);
    }
    assert_eq!(rig.with(call::EVENT_CHANNEL, 11, &[2, words(0, 2), 0]), errno::ENOENT);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 11, &[2, words(0x40, 1), 0]), 0);
    assert_eq!(rig.word(ARGS + 16) & 0xff, 17);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 11, &[2, words(0x40, 1), 0]), errno::EINVAL, "once");
    let (ready, heads) = (0x2040, 0x2048);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 12, &[0x10]), errno::EINVAL);
    assert_eq!(
        (rig.with(call::EVENT_CHANNEL, 12, &[3]), rig.heard()),
        (0, vec!["vcpu 1 vector 0x41 own false".into()])
    );
    assert_eq!((rig.word(ready), rig.word(heads + 28)), (1 << 7, port[3]), "what was pending comes over");
    assert_eq!((event(&mut rig, 4, port[0]), event(&mut rig, 4, port[1])), (0, 0));
    assert_eq!(rig.word(word_of(port[3])), fifo::PENDING | fifo::LINKED | port[0]);
    assert_eq!(rig.word(word_of(port[0])), fifo::PENDING | fifo::LINKED | port[1]);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 13, &[words(port[2], 16)]), errno::EINVAL);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 13, &[words(port[2], 0)]), 0);
    rig.memory.write(Gpa(word_of(port[2])), &MASKED.to_le_bytes()).unwrap();
    assert_eq!((event(&mut rig, 4, port[2]), rig.word(ready)), (0, 1 << 7), "masked");
    assert_eq!((event(&mut rig, 9, port[2]), rig.word(ready)), (0, 1 << 7 | 1));
    assert_eq!(rig.word(heads), port[2]);
    // The guest takes all; the tail is taken, so the next one comes to the head.
    for one in port {
        rig.memory.write(Gpa(word_of(one)), &[0; 4]).unwrap();
    }
    rig.memory.write(Gpa(ready), &[0; 4]).unwrap();
    assert_eq!((event(&mut rig, 4, port[0]), rig.word(heads + 28)), (0, port[0]));
    assert_eq!(rig.word(word_of(port[1])), 0, "no link stays behind");
    // A queue that holds its own tail: what the guest wrote there leads nowhere, and hurts nobody.
    rig.memory.write(Gpa(word_of(port[0])), &[0; 4]).unwrap();
    assert_eq!((event(&mut rig, 4, port[0]), rig.word(word_of(port[0]))), (0, fifo::PENDING | fifo::LINKED));
    assert_eq!(event(&mut rig, 3, port[0]), 0);
    assert_eq!(rig.word(word_of(port[0])), fifo::LINKED, "closed, and still in its queue");
    assert_eq!(rig.with(call::EVENT_CHANNEL, 7, &[0]), 0);
    assert_eq!(rig.word(ARGS + 4), port[3] + 1, "not bound again until it is taken");
    let saved: Saved = serde_json::from_str(&serde_json::to_string(&rig.domain.save()).unwrap()).unwrap();
    assert!(Rig::new().domain.restore(saved.clone()));
    assert_eq!(rig.with(call::EVENT_CHANNEL, 10, &[0x7ff0]), 0);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 12, &[3]), errno::ENOSYS, "two levels again");
}

#[test]
fn ports_of_one_domain_meet() {
    let mut rig = Rig::set_up();
    assert_eq!(rig.with(call::EVENT_CHANNEL, 6, &[words(0x7ff0_7ff0, 0)]), 0);
    let first = rig.word(ARGS + 4);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 0, &[words(0x7ff0, first), 0]), 0);
    let second = rig.word(ARGS + 8);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[second.into()]), 0);
    assert_eq!(rig.word(0x1800) & 1 << first, 1 << first);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 3, &[second.into()]), 0);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 5, &[words(0x7ff0, first), 0, 0]), 0);
    assert_eq!(rig.word(ARGS + 8), 1, "unbound again");
    while rig.with(call::EVENT_CHANNEL, 7, &[0]) == 0 {}
    assert_eq!(rig.with(call::EVENT_CHANNEL, 7, &[0]), errno::ENOSPC);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 10, &[0x7ff0]), 0);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 7, &[0]), 0);
}

#[test]
fn vcpu_info_moves_once_with_what_it_holds() {
    let mut rig = Rig::set_up();
    rig.memory.write(Gpa(0x1004), &[7]).unwrap();
    let place = |gfn: u64, offset: u32| [gfn, offset.into()];
    let register = |rig: &mut Rig, place: [u64; 2]| {
        rig.memory.write(Gpa(ARGS), &place.map(u64::to_le_bytes).concat()).unwrap();
        rig.call_as(0, call::VCPU, [10, 0, LINEAR + ARGS]).0
    };
    assert_eq!(register(&mut rig, place(2, 0xfc4)), errno::ENXIO, "crosses a page");
    assert_eq!(register(&mut rig, place(2, 1)), errno::ENXIO);
    assert_eq!(register(&mut rig, place(0x10, 0)), errno::EINVAL);
    assert_eq!(register(&mut rig, place(2, 0x40)), 0);
    assert_eq!(register(&mut rig, place(2, 0x80)), errno::EINVAL, "once");
    assert_eq!((rig.word(0x2044), rig.word(0x2048), rig.word(0x204c)), (7, u32::MAX, u32::MAX));
    assert_eq!((rig.word(0x2040) & 0xff, rig.word(0x2060)), (1, 2), "pending, and its time is there");
    assert_eq!(rig.heard(), ["vcpu 0 vector 0x40 own true"]);
    assert_eq!((rig.word(0x1c04), rig.word(0x1c08), rig.word(0x1c0c)), (705_032_704, 9, 1));
}

#[test]
fn an_upcall_that_nobody_took_is_asked_for_again() {
    let mut rig = Rig::new();
    assert_eq!(rig.with(call::MEMORY, 7, &[words(0x7ff0, 0), 0, 1]), 0);
    rig.memory.write(Gpa(ARGS), &[2u64, 0].map(u64::to_le_bytes).concat()).unwrap();
    assert_eq!(rig.call_as(0, call::VCPU, [10, 0, LINEAR + ARGS]).0, 0);
    assert!(rig.heard().is_empty(), "pending, but there is no vector yet");
    for vcpu in 0..2 {
        assert_eq!(rig.with(call::HVM, 23, &[words(vcpu, 0x40 + vcpu)]), 0);
    }
    assert_eq!(rig.heard(), ["vcpu 0 vector 0x40 own true"], "nothing is pending at the other");
    rig.domain.apic_enabled(0);
    rig.domain.apic_enabled(1);
    assert_eq!(rig.heard(), ["vcpu 0 vector 0x40 own true"]);
}

#[test]
fn timers_expire_as_an_event() {
    let mut rig = Rig::set_up();
    assert_eq!(rig.with(call::EVENT_CHANNEL, 1, &[words(0, 0), 0]), 0);
    let port = rig.word(ARGS + 8);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 9, &[port.into()]), 0);
    rig.memory.write(Gpa(ARGS), &1000u64.to_le_bytes()).unwrap();
    rig.memory.write(Gpa(ARGS + 8), &0u64.to_le_bytes()).unwrap();
    assert_eq!(rig.call_as(0, call::VCPU, [8, 0, LINEAR + ARGS]).0, 0);
    assert_eq!(rig.call_as(1, call::VCPU, [8, 0, LINEAR + ARGS]).0, errno::EINVAL, "of another");
    assert_eq!(rig.domain.deadline_tsc(&rig.vcpus[0]), Some(1000));
    assert!(!rig.domain.run_timers(&mut rig.vcpus[0]));
    rig.clock.0.store(1000, Ordering::SeqCst);
    assert!(rig.domain.run_timers(&mut rig.vcpus[0]) && !rig.domain.run_timers(&mut rig.vcpus[0]));
    assert_eq!(rig.heard(), ["vcpu 0 vector 0x40 own true"]);
    assert_eq!(rig.call_as(0, call::SET_TIMER, [u64::MAX, 0, 0]).0, 0);
    assert_eq!(rig.domain.deadline_tsc(&rig.vcpus[0]), Some(100_001_000), "a guest's confusion");
    assert_eq!(rig.call_as(0, call::SET_TIMER, [0, 0, 0]).0, 0);
    assert_eq!(rig.domain.deadline_tsc(&rig.vcpus[0]), None);
}

#[test]
fn a_poll_ends_by_its_port_or_its_time() {
    let mut rig = Rig::set_up();
    assert_eq!(rig.with(call::EVENT_CHANNEL, 7, &[words(0, 0)]), 0);
    let port = rig.word(ARGS + 4);
    let poll = |rig: &mut Rig, count: u64, until: u64| {
        rig.memory.write(Gpa(0x9000), &port.to_le_bytes()).unwrap();
        rig.memory.write(Gpa(ARGS), &[LINEAR + 0x9000, count, until].map(u64::to_le_bytes).concat()).unwrap();
        rig.call_as(0, call::SCHED, [3, LINEAR + ARGS, 0])
    };
    assert_eq!(poll(&mut rig, 129, 0).0, errno::EINVAL);
    assert_eq!(poll(&mut rig, 1, 500), (0, Outcome::Sleep));
    assert!(rig.domain.polls(&mut rig.vcpus[0]));
    rig.clock.0.store(500, Ordering::SeqCst);
    assert!(!rig.domain.polls(&mut rig.vcpus[0]));
    assert_eq!(poll(&mut rig, 1, 0), (0, Outcome::Sleep));
    rig.memory.write(Gpa(ARGS), &port.to_le_bytes()).unwrap();
    assert_eq!(rig.call_as(1, call::EVENT_CHANNEL, [4, LINEAR + ARGS, 0]).0, 0);
    assert_eq!(rig.heard(), ["wake 0"], "masked ports count, too");
    assert!(!rig.domain.polls(&mut rig.vcpus[0]));
    assert_eq!(poll(&mut rig, 1, 0), (0, Outcome::Done), "pending already");
    for (reason, event) in [(0u64, PowerEvent::PowerOff), (1, PowerEvent::Reset("Xen's sched_op"))] {
        rig.memory.write(Gpa(ARGS), &reason.to_le_bytes()).unwrap();
        assert_eq!(rig.call_as(0, call::SCHED, [2, LINEAR + ARGS, 0]), (0, Outcome::Power(event)));
    }
    rig.memory.write(Gpa(ARGS), &2u64.to_le_bytes()).unwrap();
    assert_eq!(
        rig.call_as(0, call::SCHED, [2, LINEAR + ARGS, 0]),
        (1, Outcome::Done),
        "suspended, and goes on"
    );
}

#[test]
fn the_console_is_a_ring_whatever_its_indices_say() {
    let mut rig = Rig::set_up();
    assert_eq!(rig.with(call::HVM, 1, &[words(0x7ff0, param::CONSOLE_PFN), 0]), 0);
    let page = u64::from(rig.word(ARGS + 8)) << 12;
    assert!((SPECIAL.start.0..SPECIAL.start.0 + SPECIAL.len).contains(&page));
    assert_eq!(rig.with(call::HVM, 1, &[words(0x7ff0, param::CONSOLE_EVTCHN), 0]), 0);
    let port = u64::from(rig.word(ARGS + 8));
    let put =
        |rig: &Rig, at: u64, value: u32| rig.memory.write(Gpa(page + at), &value.to_le_bytes()).unwrap();
    assert!(!rig.domain.has_console());
    rig.memory.write(Gpa(page + 1024 + 2047), b"a").unwrap();
    rig.memory.write(Gpa(page + 1024), b"bc").unwrap();
    put(&rig, 3080, u32::MAX);
    put(&rig, 3084, 2);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[port]), 0);
    assert_eq!((rig.heard(), rig.word(page + 3080)), (vec!["abc".to_owned()], 2));
    put(&rig, 3084, 1 << 30);
    assert_eq!(rig.with(call::EVENT_CHANNEL, 4, &[port]), 0);
    assert_eq!(rig.heard(), [""], "more than the ring holds is nothing");
    assert_eq!(rig.domain.offer(&[b'x'; 2000]), 1024);
    assert_eq!(rig.domain.offer(b"y"), 0);
    put(&rig, 3072, 77777);
    assert_eq!(rig.domain.offer(b"y"), 0);
    rig.memory.write(Gpa(0x9000), b"hello").unwrap();
    assert_eq!(rig.call_as(0, call::CONSOLE_IO, [0, 5, LINEAR + 0x9000]).0, 0);
    assert!(rig.heard().contains(&"hello".to_owned()));
}

#[test]
fn calls_in_a_list_have_their_results_beside_them() {
    let mut rig = Rig::set_up();
    let mut list = vec![0u64; 16];
    (list[0], list[2]) = (call::XEN_VERSION, 7);
    (list[8], list[10]) = (99, 0);
    assert_eq!(rig.with(0, 0, &list), errno::ENOSYS);
    assert_eq!(rig.call_as(0, call::MULTICALL, [LINEAR + ARGS, 2, 0]).0, 0);
    assert_eq!((rig.word(ARGS + 8), rig.word(ARGS + 72)), (4096, errno::ENOSYS as u32));
    list[8] = call::MULTICALL;
    let _ = rig.with(0, 0, &list);
    assert_eq!(rig.call_as(0, call::MULTICALL, [LINEAR + ARGS, 2, 0]).0, errno::EINVAL);
    assert_eq!(rig.call_as(0, call::MULTICALL, [u64::MAX - 8, 2, 0]).0, errno::EFAULT);
    assert_eq!(rig.call_as(0, call::MULTICALL, [LINEAR + ARGS, 129, 0]).0, errno::EINVAL);
}

#[test]
fn what_a_guest_has_set_survives_saving() {
    let mut rig = Rig::set_up();
    assert_eq!(rig.with(call::EVENT_CHANNEL, 7, &[words(1, 0)]), 0);
    assert_eq!(rig.call_as(0, call::SET_TIMER, [5000, 0, 0]).0, 0);
    let text = serde_json::to_string(&(rig.domain.save(), &rig.vcpus)).unwrap();
    let again = Rig::new();
    let (saved, vcpus): (Saved, [Vcpu; 2]) = serde_json::from_str(&text).unwrap();
    assert!(again.domain.restore(saved.clone()) && vcpus == rig.vcpus);
    assert_eq!(again.domain.save(), saved);
    let alone = Domain::new(
        Config::new(Kind::Pvh),
        again.memory.clone(),
        again.clock.clone(),
        1,
        false,
        again.heard.clone(),
    );
    assert!(!alone.restore(saved));
    // Where the guest has its pages, and whose a port is, may have been damaged on the way.
    let mut value = serde_json::to_value(rig.domain.save()).unwrap();
    for (place, damaged) in [
        ("/state/shared_info", u64::MAX.into()),
        ("/state/vcpus/1/runstate", (u64::MAX - 8).into()),
        ("/state/vcpus/0/info", (1_u64 << 52).into()),
        ("/state/ports/1", serde_json::json!({ "Ipi": { "vcpu": 2 } })),
    ] {
        let field = value.pointer_mut(place).unwrap_or_else(|| panic!("{place}"));
        let before = std::mem::replace(field, damaged);
        let damaged: Saved = serde_json::from_value(value.clone()).unwrap();
        assert!(!Rig::new().domain.restore(damaged), "{place}");
        *value.pointer_mut(place).unwrap() = before;
    }
    assert!(Rig::new().domain.restore(serde_json::from_value(value).unwrap()));
}
