//! The map of guest memory while vCPUs run: the dirty log has what was written, RAM comes, moves and goes.
//!
//! Every test looks through the machine's handle at guests that run, on each engine and each clock.

mod common;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{fetch, pvh, trials};
use satori_bus::ByteSink;
use satori_cpuid::Topology;
use satori_machine::{
    ClockMode, Cmdline, Config, DeviceConfig, Devices, EngineKind, Handle, Machine, Module, Outcome, Sinks,
};
use satori_memory::{Gpa, GuestMemory, PAGE_SIZE, Region};

#[derive(Clone, Default)]
struct Console(Arc<Mutex<Vec<u8>>>);

impl ByteSink for Console {
    fn put(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

fn machine(config: Config) -> (Machine, Console) {
    let console = Console::default();
    let sinks = Sinks { console: Box::new(console.clone()), debugcon: None, code: None };
    (Machine::new(config, sinks).expect("a machine"), console)
}

/// Runs `code` on every engine and clock, and two vCPUs beside each other; `look` looks meanwhile.
fn everywhere(code: &[u8], look: impl Fn(&Handle)) {
    everywhere_with(false, code, look);
}

/// The same, with a device for random numbers in slot 1 of the PCI bus, and pci-testdev in slot 31.
fn everywhere_with(devices: bool, code: &[u8], look: impl Fn(&Handle)) {
    let virtual_clock = ClockMode::Virtual { rate: 1_000_000_000 };
    for engine in [EngineKind::Interpreter, EngineKind::Translator, EngineKind::EagerTranslator] {
        for (clock, cpus) in [(ClockMode::Real, 1), (ClockMode::Real, 2), (virtual_clock, 1)] {
            println!("{engine:?}, {clock:?}, {cpus} vCPUs");
            let (machine, _) = machine(Config {
                kernel: pvh::kernel(code),
                memory: 128 << 20,
                topology: Topology::flat(cpus),
                clock,
                engine,
                devices: Devices::new(DeviceConfig { rng: devices, ..DeviceConfig::default() })
                    .expect("devices"),
                testdev: devices,
                timeout: Some(Duration::from_secs(120)),
                ..Config::default()
            });
            let handle = machine.handle();
            std::thread::scope(|scope| {
                let runs = scope.spawn(|| println!("ended: {:?}", machine.run().event));
                look(&handle);
                handle.stop();
                runs.join().expect("it ends");
            });
        }
    }
}

/// What `look` finds in the guest's memory while its vCPUs stand still.
fn with<R>(handle: &Handle, look: impl Fn(&GuestMemory) -> R) -> R {
    // There is none before the machine lives, and none behind its end.
    for _ in 0..60_000 {
        match handle.still(|space| look(space.memory())) {
            Some(found) => return found,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("the guest has ended");
}

/// Waits until `done` finds what it waits for. A guest that does not get there ends by its timeout, and the look then.
fn until(handle: &Handle, what: &str, done: impl Fn(&GuestMemory) -> bool) {
    for _ in 0..1_000_000 {
        if with(handle, &done) {
            return;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    panic!("never came: {what}");
}

/// Lets the guest go through its loop twice, whose `counter` is at that address.
fn two_rounds(handle: &Handle, counter: u64) {
    let read = |memory: &GuestMemory| memory.read_u32(Gpa(counter)).unwrap();
    let before = with(handle, read);
    until(handle, "a round", |memory| read(memory).wrapping_sub(before) >= 3);
}

/// All of memory, of each range so much at most.
fn bytes(memory: &GuestMemory, most: u64) -> Vec<(Gpa, Vec<u8>)> {
    let read = |region: Region| {
        let mut bytes = vec![0; region.len.min(most) as usize];
        memory.read(region.start, &mut bytes).expect("it is RAM");
        (region.start, bytes)
    };
    memory.regions().map(read).collect()
}

/// The pages that are not the same in both.
fn changed(before: &[(Gpa, Vec<u8>)], after: &[(Gpa, Vec<u8>)]) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    for ((start, before), (_, after)) in before.iter().zip(after) {
        let both = before.chunks(PAGE_SIZE as usize).zip(after.chunks(PAGE_SIZE as usize));
        let differ = both.zip(0..).filter(|((before, after), _)| before != after);
        pages.extend(differ.map(|(_, page)| start.0 + page * PAGE_SIZE));
    }
    pages
}

fn pages(log: &[Region]) -> BTreeSet<u64> {
    log.iter()
        .flat_map(|region| (region.start.0..region.start.0 + region.len).step_by(PAGE_SIZE as usize))
        .collect()
}

/// Stores of every kind, for ever; the counter of rounds is at 0x80_0000.
fn writer() -> Vec<u8> {
    let mut code = vec![
        0xbc, 0x00, 0x00, 0x90, 0x00, // mov $0x90_0000, %esp
        0xbb, 0x01, 0x00, 0x00, 0x00, // mov $1, %ebx
    ];
    let round = code.len();
    code.extend([
        0xbf, 0x00, 0x00, 0x40, 0x00, // mov $0x40_0000, %edi
        0xb9, 0x40, 0x00, 0x00, 0x00, // mov $64, %ecx
        0x89, 0x1f, // 1: mov %ebx, (%edi)
        0x81, 0xc7, 0x00, 0x20, 0x00, 0x00, // add $0x2000, %edi
        0x49, // dec %ecx
        0x75, 0xf5, // jnz 1b
        0xbf, 0x00, 0x00, 0x60, 0x00, // mov $0x60_0000, %edi
        0xb9, 0x00, 0x08, 0x00, 0x00, // mov $0x800, %ecx
        0x89, 0xd8, // mov %ebx, %eax
        0xf3, 0xab, // rep stosl: two pages
        0xf0, 0xff, 0x05, 0xf0, 0x0f, 0x70, 0x00, // lock incl 0x70_0ff0
        0x89, 0x1d, 0xfe, 0x2f, 0x70, 0x00, // mov %ebx, 0x70_2ffe: two pages
        0x53, 0x58, // push %ebx; pop %eax
        0x89, 0x1d, 0x00, 0x0f, 0x10, 0x00, // mov %ebx, 0x10_0f00: the page of this code
        0xff, 0x05, 0x00, 0x00, 0x80, 0x00, // incl 0x80_0000
        0x43, // inc %ebx
    ]);
    again(&mut code, round);
    code
}

/// What of memory that program has its hands in, and its firmware's tables.
const LOOKED: u64 = 16 << 20;

#[test]
fn the_dirty_log_has_the_pages_that_a_guest_and_its_devices_write() {
    let mut written: BTreeSet<u64> = (0..64).map(|n| 0x40_0000 + n * 0x2000).collect();
    written.extend([0x60_0000, 0x60_1000, 0x70_0000, 0x70_2000, 0x70_3000, 0x8f_f000, 0x10_0000, 0x80_0000]);
    everywhere(&writer(), |handle| {
        two_rounds(handle, 0x80_0000);
        assert_eq!(handle.still(|space| space.take_dirty_log()), Some(None), "it is off");
        let mut before = with(handle, |memory| {
            assert!(memory.start_dirty_log());
            assert_eq!(memory.take_dirty_log(), Some(Vec::new()));
            bytes(memory, LOOKED)
        });
        for round in 0..4_u8 {
            two_rounds(handle, 0x80_0000);
            // A device writes while vCPUs run.
            let device = 0xa0_0000 + u64::from(round) * PAGE_SIZE;
            let memory = with(handle, GuestMemory::clone);
            memory.write(Gpa(device), &[round + 1]).unwrap();
            let (log, after) =
                handle.still(|space| (space.take_dirty_log(), bytes(space.memory(), LOOKED))).unwrap();
            let (log, changed) = (pages(&log.expect("it is on")), changed(&before, &after));
            assert!(changed.is_subset(&log), "not logged: {:x?}", changed.difference(&log));
            let expected: BTreeSet<_> = written.iter().copied().chain([device]).collect();
            assert_eq!(log, expected, "{round}");
            before = after;
        }
        assert_eq!(handle.still(|space| space.stop_dirty_log()), Some(true));
        two_rounds(handle, 0x80_0000);
        assert_eq!(handle.still(|space| space.take_dirty_log()), Some(None));
    });
}

#[test]
fn ram_that_begins_inside_a_large_page_is_touched_once() {
    // Behind the first pages of what a host backs at once, and one more range in the same piece.
    let ranges =
        [(0x1010_3000, 0x8000), (0x1010_b000, 0x1000)].map(|(at, len)| Region { start: Gpa(at), len });
    let code = [
        0xff, 0x05, 0x00, 0x70, 0x10, 0x10, // incl 0x1010_7000
        0xff, 0x05, 0x00, 0xb0, 0x10, 0x10, // incl 0x1010_b000
        0xeb, 0xf2, // jmp back
    ];
    everywhere(&code, |handle| {
        with(handle, |memory| ranges.iter().for_each(|range| memory.add(*range).unwrap()));
        for at in [0x1010_7000, 0x1010_b000] {
            until(handle, "rounds", |memory| memory.read_u32(Gpa(at)).unwrap() > 1000);
        }
    });
}

const AWAY: Gpa = Gpa(0x4000_0000);
const SLOT: Region = Region { start: Gpa(0x1000_0000), len: 0x20_0000 };

/// Reads what is at the slot, writes beside it, and calls the code behind it if there is any. Where its results go: what it read
/// at 0x90_0000, what the code gave at 0x90_0004, and rounds at 0x90_0008.
fn caller() -> Vec<u8> {
    let mut code = vec![0xbc, 0x00, 0x00, 0xa0, 0x00]; // mov $0xa0_0000, %esp
    let round = code.len();
    code.extend([
        0xa1, 0x00, 0x00, 0x00, 0x10, // mov 0x1000_0000, %eax
        0xa3, 0x00, 0x00, 0x90, 0x00, // mov %eax, 0x90_0000
        0xff, 0x05, 0x04, 0x00, 0x00, 0x10, // incl 0x1000_0004
        0x3c, 0xff, // cmp $-1, %al
        0x74, 0x0c, // je 1f
        0xb8, 0x00, 0x10, 0x00, 0x10, // mov $0x1000_1000, %eax
        0xff, 0xd0, // call *%eax
        0xa3, 0x04, 0x00, 0x90, 0x00, // mov %eax, 0x90_0004
        0xff, 0x05, 0x08, 0x00, 0x90, 0x00, // 1: incl 0x90_0008
    ]);
    again(&mut code, round);
    code
}

/// Has the slot begin with `value`, and code that gives `answer`.
fn furnish(memory: &GuestMemory, value: u32, answer: u8) {
    memory.write(SLOT.start, &value.to_le_bytes()).unwrap();
    // mov $answer, %eax; ret
    memory.write(SLOT.start.add(0x1000), &[0xb8, answer, 0, 0, 0, 0xc3]).unwrap();
}

#[test]
fn ram_comes_moves_and_goes_under_vcpus_that_run() {
    let word = |at: u64| move |memory: &GuestMemory| memory.read_u32(Gpa(at)).unwrap();
    let (read, answer, rounds) = (word(0x90_0000), word(0x90_0004), 0x90_0008);
    everywhere(&caller(), |handle| {
        until(handle, "the first round", |memory| word(rounds)(memory) > 0);
        two_rounds(handle, rounds);
        assert_eq!(with(handle, read), u32::MAX, "nothing is there");
        handle.still(|space| {
            space.add_ram(SLOT).unwrap();
            furnish(space.memory(), 0x1234, 1);
        });
        two_rounds(handle, rounds);
        assert_eq!((with(handle, read), with(handle, answer)), (0x1234, 1));
        // Often enough that its code is translated.
        until(handle, "many rounds", |memory| word(SLOT.start.0 + 4)(memory) > 1000);
        // Away with its contents; other RAM comes in its place.
        handle.still(|space| {
            space.relocate_ram(SLOT.start, AWAY).unwrap();
            space.add_ram(SLOT).unwrap();
            furnish(space.memory(), 0x5678, 2);
        });
        let stays = with(handle, word(AWAY.0 + 4));
        two_rounds(handle, rounds);
        assert_eq!((with(handle, read), with(handle, answer)), (0x5678, 2));
        assert_eq!((with(handle, word(AWAY.0)), with(handle, word(AWAY.0 + 4))), (0x1234, stays));
        // And back.
        handle.still(|space| {
            space.remove_ram(SLOT.start).unwrap();
            space.relocate_ram(AWAY, SLOT.start).unwrap();
        });
        two_rounds(handle, rounds);
        assert_eq!((with(handle, read), with(handle, answer)), (0x1234, 1));
        assert!(with(handle, word(SLOT.start.0 + 4)) > stays);
        // It calls no more what is to go.
        handle.still(|space| furnish(space.memory(), u32::MAX, 3));
        two_rounds(handle, rounds);
        handle.still(|space| space.remove_ram(SLOT.start)).unwrap().unwrap();
        two_rounds(handle, rounds);
        assert_eq!(with(handle, read), u32::MAX, "nothing is there any more");
    });
}

/// Selects a register of the device's configuration space.
fn select(device: u8, register: u8) -> [u8; 10] {
    [0xb8, register, device << 3, 0x00, 0x80, 0x66, 0xba, 0xf8, 0x0c, 0xef] // mov $.., %eax; mov $0xcf8, %dx; out %eax, (%dx)
}

/// For ever what is behind `round`.
fn again(code: &mut Vec<u8>, round: usize) {
    let back = round as i32 - (code.len() as i32 + 5);
    code.push(0xe9);
    code.extend(back.to_le_bytes());
}

/// Moves the registers of the device in slot 1 from one address to another and back for ever, and looks for its number of queues,
/// which is 1, where it went, and for nothing where it was. At 0x90_0004 is how often that was otherwise, at 0x90_0008 are rounds.
fn mover() -> Vec<u8> {
    let mut code = select(1, 0x04).to_vec();
    code.extend([
        0xb8, 0x06, 0x00, 0x00, 0x00, // mov $6, %eax: it answers in memory, and masters the bus
        0x66, 0xba, 0xfc, 0x0c, 0xef, // mov $0xcfc, %dx; out %eax, (%dx)
        0xbe, 0x00, 0x00, 0x00, 0xd0, // mov $0xd000_0000, %esi
        0xbf, 0x00, 0x00, 0x01, 0xd1, // mov $0xd101_0000, %edi
    ]);
    let round = code.len();
    code.extend(select(1, 0x10)); // the base address
    code.extend([
        0x89, 0xf0, // mov %esi, %eax
        0x66, 0xba, 0xfc, 0x0c, 0xef, // mov $0xcfc, %dx; out %eax, (%dx)
        0x0f, 0xb7, 0x46, 0x12, // movzwl 0x12(%esi), %eax
        0x3d, 0x01, 0x00, 0x00, 0x00, // cmp $1, %eax
        0x75, 0x0b, // jne 1f
        0x0f, 0xb7, 0x47, 0x12, // movzwl 0x12(%edi), %eax
        0x3d, 0xff, 0xff, 0x00, 0x00, // cmp $0xffff, %eax
        0x74, 0x06, // je 2f
        0xff, 0x05, 0x04, 0x00, 0x90, 0x00, // 1: incl 0x90_0004
        0xff, 0x05, 0x08, 0x00, 0x90, 0x00, // 2: incl 0x90_0008
        0x87, 0xf7, // xchg %esi, %edi
    ]);
    again(&mut code, round);
    code
}

/// The same with the ports of pci-testdev, where it looks for the width of its test, which is 1.
fn port_mover() -> Vec<u8> {
    let mut code = select(31, 0x04).to_vec();
    code.extend([
        0xb8, 0x01, 0x00, 0x00, 0x00, // mov $1, %eax: it answers in port space
        0x66, 0xba, 0xfc, 0x0c, 0xef, // mov $0xcfc, %dx; out %eax, (%dx)
        0xbe, 0x00, 0xd0, 0x00, 0x00, // mov $0xd000, %esi
        0xbf, 0x00, 0xe1, 0x00, 0x00, // mov $0xe100, %edi
    ]);
    let round = code.len();
    code.extend(select(31, 0x18)); // the base address
    code.extend([
        0x89, 0xf0, // mov %esi, %eax
        0x66, 0xba, 0xfc, 0x0c, 0xef, // mov $0xcfc, %dx; out %eax, (%dx)
        0x89, 0xf2, // mov %esi, %edx
        0xb0, 0x00, 0xee, // mov $0, %al; out %al, (%dx): test 0
        0x42, 0xec, // inc %edx; in (%dx), %al
        0x3c, 0x01, // cmp $1, %al
        0x75, 0x08, // jne 1f
        0x89, 0xfa, // mov %edi, %edx
        0x42, 0xec, // inc %edx; in (%dx), %al
        0x3c, 0xff, // cmp $0xff, %al
        0x74, 0x06, // je 2f
        0xff, 0x05, 0x04, 0x00, 0x90, 0x00, // 1: incl 0x90_0004
        0xff, 0x05, 0x08, 0x00, 0x90, 0x00, // 2: incl 0x90_0008
        0x87, 0xf7, // xchg %esi, %edi
    ]);
    again(&mut code, round);
    code
}

#[test]
fn a_device_moves_under_vcpus_that_run() {
    moves(&mover());
}

#[test]
fn ports_move_under_vcpus_that_run() {
    moves(&port_mover());
}

fn moves(code: &[u8]) {
    let word = |at: u64| move |memory: &GuestMemory| memory.read_u32(Gpa(at)).unwrap();
    everywhere_with(true, code, |handle| {
        // Often enough that its code is translated; and RAM comes and goes meanwhile.
        for slot in 0..4 {
            let rounds = with(handle, word(0x90_0008));
            until(handle, "rounds", |memory| word(0x90_0008)(memory).wrapping_sub(rounds) > 300);
            handle.still(|space| match slot % 2 {
                0 => space.add_ram(SLOT).unwrap(),
                _ => space.remove_ram(SLOT.start).unwrap(),
            });
        }
        assert_eq!(
            with(handle, word(0x90_0004)),
            0,
            "it was not where it was put, or still where it had been"
        );
    });
}

/// The beginning of a boot of Debian's kernel on two vCPUs; `look` looks meanwhile.
fn boot(clock: ClockMode, look: impl FnOnce(&Handle)) -> (Outcome, String) {
    let initrd = std::fs::read(trials()).expect("the initramfs");
    let (machine, console) = machine(Config {
        kernel: std::fs::read(fetch(&["kernel"])).expect("the kernel"),
        initrds: vec![Module { data: initrd, ..Module::default() }],
        cmdline: Cmdline::Added("panic=-1 satori.seed=1".into()),
        memory: 128 << 20,
        topology: Topology::flat(2),
        clock,
        // In real time whoever looks ends it.
        guest_timeout: matches!(clock, ClockMode::Virtual { .. }).then_some(Duration::from_millis(600)),
        timeout: Some(Duration::from_secs(120)),
        engine: EngineKind::best(),
        ..Config::default()
    });
    let handle = machine.handle();
    let outcome = std::thread::scope(|scope| {
        let runs = scope.spawn(|| machine.run());
        look(&handle);
        runs.join().expect("it ends")
    });
    let console = String::from_utf8_lossy(&console.0.lock().unwrap()).into_owned();
    (outcome, console)
}

/// Compares the log with memory, again and again until the guest has ended or `enough` pages were logged; how many were.
fn compare(handle: &Handle, enough: usize) -> usize {
    let (mut before, mut logged) = (None, 0);
    loop {
        let found = handle.still(|space| {
            space.start_dirty_log();
            (space.take_dirty_log().expect("it is on"), bytes(space.memory(), u64::MAX))
        });
        match (found, before.take()) {
            (Some((log, after)), None) => {
                before = Some(after);
                drop(log);
            }
            (Some((log, after)), Some(earlier)) => {
                let (log, changed) = (pages(&log), changed(&earlier, &after));
                let missed: Vec<_> = changed.difference(&log).collect();
                assert!(missed.is_empty(), "not logged: {missed:x?}");
                logged += log.len();
                if logged >= enough {
                    return logged;
                }
                before = Some(after);
            }
            // It lives no more, or not yet.
            (None, Some(_)) => return logged,
            (None, None) => {}
        }
        std::thread::sleep(Duration::from_millis(30));
    }
}

#[test]
fn a_boot_is_logged_and_is_the_same_boot() {
    let virtual_clock = ClockMode::Virtual { rate: 1_000_000_000 };
    let (plain, expected) = boot(virtual_clock, |_| {});
    let mut logged = 0;
    let (outcome, console) = boot(virtual_clock, |handle| logged = compare(handle, usize::MAX));
    assert!(expected.contains("Linux version") && logged > 100, "{logged}: {expected}");
    assert_eq!((console, outcome.instructions), (expected, plain.instructions));
    assert_eq!((outcome.event, outcome.registers), (plain.event, plain.registers));
}

#[test]
fn a_boot_in_real_time_is_logged() {
    let mut logged = 0;
    boot(ClockMode::Real, |handle| {
        logged = compare(handle, 1000);
        handle.stop();
    });
    assert!(logged >= 1000, "{logged}");
}
