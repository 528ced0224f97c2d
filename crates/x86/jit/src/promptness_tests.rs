//! An interrupt that is requested while a vCPU executes is taken within 4,096 guest instructions,
//! whatever the vCPU executes: counted, on both engines.
//!
//! RDTSC is where the request comes: it asks the time source, which kicks the vCPU and notes how many
//! instructions were retired by then. The guest goes round: RDTSC, then more than 4,096 instructions of the path
//! under test. Requests begin when the path has been translated and its parts lead to each other, and come at
//! varied distances from the last look around.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use satori_cpuid::Offered;
use satori_defs::x86::rflags;
use satori_engine::{
    Engine, Exit, Kick, PartitionParts, Parts, Resume, TimeSource, Until, Vcpu, VcpuParts, Window, X86,
};
use satori_memory::Gpa;
use satori_state::reg;

use crate::Translator;
use satori_soft::Interpreter;
use satori_soft::testing::machine64;
use satori_soft::testing::{Numbers, SCRATCH};

/// Guest instructions in which a request is taken.
const BOUND: u64 = 4096;
/// Bytes that a repeated string instruction does at most before interrupts get in between.
const PIECE: u64 = 8 * 4096;
/// Bytes of a repeated string instruction.
const LENGTH: u64 = 256 << 10;

/// Where code, handlers and tables are.
const CODE: u64 = 0x1_0000;
const IDT: u64 = 0x9000;
const HANDLERS: u64 = 0xa000;
const GDT: u64 = 0xb000;
const STACK: u64 = 0x30_0000;

/// Time in which the reading of a chosen number requests an interrupt.
#[derive(Default)]
struct Requests {
    kick: OnceLock<Arc<Kick>>,
    retired: AtomicU64,
    /// Readings until the request.
    laps: AtomicU64,
    requested: AtomicU64,
}

impl TimeSource for Requests {
    fn counter(&self) -> u64 {
        if self.laps.fetch_sub(1, Relaxed) == 1
            && let Some(kick) = self.kick.get()
        {
            kick.kick();
            self.requested.store(self.retired.load(Relaxed), Relaxed);
        }
        0
    }
    fn retired(&self, instructions: u64) {
        self.retired.fetch_add(instructions, Relaxed);
    }
}

/// A path: its name, how often its code is repeated in a lap, which has more than [`BOUND`] instructions, and the
/// code.
type Path = (&'static str, u32, Vec<u8>);

/// `mov $value, %reg32`.
fn load(register: u8, value: u32) -> Vec<u8> {
    [&[0xb8 + register][..], &value.to_le_bytes()].concat()
}

/// A REP over so many bytes of the scratch memory.
fn string(length: u64, before: &[u8], instruction: &[u8], after: &[u8]) -> Vec<u8> {
    let scratch = SCRATCH as u32;
    let (count, to, from) = (load(1, length as u32), load(7, scratch), load(6, scratch + LENGTH as u32));
    [&count, &to, &from, before, instruction, after].concat()
}

fn paths() -> Vec<Path> {
    // To the next page, and back behind the jump.
    let mut far = vec![0x90; 0x1005];
    far[..5].copy_from_slice(&[0xe9, 0xfb, 0x0f, 0, 0]);
    far[0x1000..].copy_from_slice(&[0xe9, 0, 0, 0, 0]);
    // call 1f; jmp 2f; 1: ret; 2:
    let calls = vec![0xe8, 2, 0, 0, 0, 0xeb, 1, 0xc3];
    // lea 2f(%rip), %rax; jmp *%rax; 2:
    let indirect = vec![0x48, 0x8d, 0x05, 2, 0, 0, 0, 0xff, 0xe0];
    // mov (%rbx), %rax; add $0x1000, %rbx; and $0x1fffff, %ebx: more pages than the TLB has, if not mapped large.
    let misses = vec![0x48, 0x8b, 0x03, 0x48, 0x81, 0xc3, 0, 0x10, 0, 0, 0x81, 0xe3, 0xff, 0xff, 0x1f, 0];
    // mov $SCRATCH, %esi; mov $9000, %ecx; 1: add (%rsi), %rax; mov %rax, 64(%rsi); add $12, %rsi; dec %ecx; jnz 1b
    let around = [0x48, 0x03, 0x06, 0x48, 0x89, 0x46, 0x40, 0x48, 0x83, 0xc6, 12, 0xff, 0xc9, 0x75, 0xf1];
    let strides = [&load(6, SCRATCH as u32)[..], &load(1, 9000), &around].concat();
    // The immediate of the first instruction changes each time.
    let own = vec![0xb8, 0, 0, 0, 0, 0xfe, 0x05, 0xf6, 0xff, 0xff, 0xff];
    let set = |register, value| load(register, value);
    vec![
        ("straight line", 1, [0x48, 0xff, 0xc0].repeat(0x6000)),
        ("loop", 1, [&load(1, 6000)[..], &[0xff, 0xc9, 0x75, 0xfc]].concat()),
        ("loop of one instruction", 1, [&load(1, 9000)[..], &[0xe2, 0xfe]].concat()),
        ("chained across pages", 3000, far),
        ("calls and returns", 3000, calls),
        ("indirect branches", 3000, indirect),
        ("REP MOVSB", 300, string(LENGTH, &[], &[0xf3, 0xa4], &[])),
        ("REP STOSQ", 300, string(LENGTH, &[0xc1, 0xe9, 0x03], &[0xf3, 0x48, 0xab], &[])),
        ("REP LODSB", 900, string(256, &[], &[0xf3, 0xac], &[])),
        ("REPE CMPSB", 900, string(256, &[], &[0xf3, 0xa6], &[])),
        ("REPNE SCASB", 900, string(256, &[0xb0, 1], &[0xf2, 0xae], &[])),
        ("REP MOVSB backwards", 1, string(8000, &[0x81, 0xc7, 0, 0, 1, 0, 0xfd], &[0xf3, 0xa4], &[0xfc])),
        ("helpers", 6000, vec![0x0f, 0x20, 0xc0, 0x0f, 0xae, 0x03]),
        ("x87", 3000, vec![0xd9, 0xeb, 0xd9, 0xfe, 0xdd, 0xd8]),
        ("vectors", 3000, vec![0x66, 0x0f, 0xef, 0xc0, 0x0f, 0x58, 0xc1]),
        ("divisions", 3000, [&set(3, 3)[..], &[0x99, 0xf7, 0xfb]].concat()),
        ("locked", 3000, [&set(3, SCRATCH as u32)[..], &[0xf0, 0xff, 0x03]].concat()),
        ("misses", 3000, misses),
        ("strides", 1, strides),
        ("code that writes itself", 3000, own),
        ("faults", 3000, vec![0x0f, 0x0b]),
        ("PAUSE", 3000, vec![0xf3, 0x90]),
        ("interrupts off and on", 3000, vec![0xfa, 0x90, 0xfb, 0x90]),
        ("CR3 loads", 3000, vec![0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8]),
        ("flags", 3000, vec![0x9c, 0x9d]),
        (
            "single steps",
            3000,
            vec![
                0x9c, 0x81, 0x0c, 0x24, 0, 1, 0, 0, 0x9d, 0x90, 0x9c, 0x81, 0x24, 0x24, 0xff, 0xfe, 0xff,
                0xff, 0x9d,
            ],
        ),
    ]
}

/// A vCPU that goes round `path`, from its warm-up on.
fn vcpu(engine: &dyn Engine<X86>, parallel: bool, path: &Path, time: &Arc<Requests>) -> Box<dyn Vcpu<X86>> {
    let template = machine64();
    let memory = template.memory().clone();
    let (parts, own) = (
        PartitionParts {
            memory: memory.clone(),
            time: time.clone(),
            parallel,
            offered: Offered::EVERYTHING.into(),
        },
        VcpuParts { index: 0, entropy: Box::new(Numbers(1)) },
    );
    let partition = engine.create_partition(parts).expect("nothing of the host's is needed");
    let mut vcpu = partition.create_vcpu(own);
    let (_, repeats, body) = path;
    // 1: mov %r13d, %ecx; 2: dec %ecx; jns 2b; rdtsc; mov $repeats, %r12d; 3: BODY; dec %r12d; jnz 3b; jmp 1b
    let mut code = vec![0x44, 0x89, 0xe9, 0xff, 0xc9, 0x79, 0xfc, 0x0f, 0x31, 0x41, 0xbc];
    code.extend(repeats.to_le_bytes());
    let again = code.len();
    code.extend(body);
    code.extend([0x41, 0xff, 0xcc, 0x0f, 0x85]);
    code.extend((again as i32 - code.len() as i32 - 4).to_le_bytes());
    code.push(0xe9);
    code.extend((-(code.len() as i32) - 4).to_le_bytes());
    let write = |at: u64, bytes: &[u8]| memory.write(Gpa(at), bytes).expect("it is RAM");
    write(CODE, &code);
    // #UD returns behind the UD2, #DB to where it was raised.
    write(HANDLERS, &[0x48, 0x83, 0x04, 0x24, 2, 0x48, 0xcf]);
    write(HANDLERS + 0x10, &[0x48, 0xcf]);
    for (vector, handler) in [(6, HANDLERS), (1, HANDLERS + 0x10)] {
        write(IDT + 16 * vector, &u64::to_le_bytes(handler | 8 << 16 | 0x8e00 << 32));
    }
    // Code of 64 bits and data, for the gate and the return.
    write(GDT + 8, &0x00af_9b00_0000_ffff_u64.to_le_bytes());
    write(GDT + 16, &0x00cf_9300_0000_ffff_u64.to_le_bytes());
    *vcpu.state_mut(Parts::ALL) = template.state.clone();
    let state = vcpu.state_mut(Parts::ALL);
    (state.rip, state.gpr[reg::RSP], state.gpr[reg::RBX]) = (CODE, STACK, SCRATCH);
    (state.idtr.base, state.idtr.limit) = (IDT, 0xfff);
    (state.gdtr.base, state.gdtr.limit) = (GDT, 0xff);
    state.rflags |= rflags::IF;
    vcpu.controls_mut().ple_window = 0;
    vcpu
}

/// Instructions between a request and its exit, and bytes that a REP went on for, the largest of many.
fn longest(engine: &dyn Engine<X86>, parallel: bool, path: &Path) -> (u64, u64) {
    let name = path.0;
    let time = Arc::new(Requests::default());
    let mut vcpu = vcpu(engine, parallel, path, &time);
    time.kick.set(vcpu.kick()).expect("it is set once");
    let mut longest = (0, 0);
    // A lap of these is megabytes.
    let requests = if matches!(name, "REP MOVSB" | "REP STOSQ") { 3 } else { 12 };
    for request in 0..requests {
        // The first lap makes the code, the second leads it to itself.
        time.laps.store(if request == 0 { 4 } else { 1 + request % 2 }, Relaxed);
        vcpu.state_mut(Parts::ALL).gpr[reg::R13] = request * 89;
        let exit = vcpu.run(Until::default());
        assert_eq!(exit, Exit::ExternalInterrupt, "{name}, at {:#x}", vcpu.state().rip);
        let since = time.retired.load(Relaxed) - time.requested.load(Relaxed);
        assert!(since <= BOUND, "{name}: {since} instructions");
        longest.0 = longest.0.max(since);
        // What a REP did since the request, which came at the start of the lap.
        if let Some(element) = match name {
            "REP MOVSB" => Some(1),
            "REP STOSQ" => Some(8),
            _ => None,
        } {
            let gpr = &vcpu.state().gpr;
            let whole = u64::from(path.1) - (gpr[12] & 0xffff_ffff);
            let bytes = (whole * LENGTH + LENGTH).saturating_sub(gpr[reg::RCX] * element);
            assert!(bytes <= 2 * PIECE, "{name}: {bytes} bytes");
            longest.1 = longest.1.max(bytes);
        }
        vcpu.resume(Resume::Continue);
    }
    longest
}

#[test]
fn no_interrupt_comes_between_sti_and_the_next_instruction() {
    // cli; rdtsc; sti; nop; nop
    let path: Path = ("STI", 50, vec![0xfa, 0x0f, 0x31, 0xfb, 0x90, 0x90]);
    let behind_sti = CODE + 15 + 4;
    let engines: [Box<dyn Engine<X86>>; 3] =
        [Box::new(Translator::eager()), Box::new(Translator::default()), Box::new(Interpreter)];
    for engine in &engines {
        let mut met = 0;
        // Each has its code and its links made anew.
        for first in 1..60 {
            let time = Arc::new(Requests::default());
            let mut vcpu = vcpu(&**engine, true, &path, &time);
            time.kick.set(vcpu.kick()).expect("it is set once");
            for request in 0..4 {
                time.laps.store(first + request, Relaxed);
                assert_eq!(vcpu.run(Until::default()), Exit::ExternalInterrupt);
                if vcpu.state().rip == behind_sti {
                    met += 1;
                    assert!(!vcpu.can_take(Window::Interrupt), "in the shadow, {first} {request}");
                }
                vcpu.resume(Resume::Continue);
            }
        }
        assert!(met > 0, "it ends there");
    }
}

/// Time that each reading moves on by one.
#[derive(Default)]
struct Readings(AtomicU64);

impl TimeSource for Readings {
    fn counter(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }
    fn retired(&self, _instructions: u64) {}
}

#[test]
fn a_timer_comes_right_behind_the_instruction_that_read_its_time() {
    let engines: [Box<dyn Engine<X86>>; 3] =
        [Box::new(Translator::eager()), Box::new(Translator::default()), Box::new(Interpreter)];
    // 1: rdtsc or rdtscp; mov %rax, (%rbx); jmp 1b
    for read in [&[0x0f, 0x31][..], &[0x0f, 0x01, 0xf9]] {
        let code = [read, &[0x48, 0x89, 0x03, 0xeb, 0xfb - read.len() as u8]].concat();
        for engine in &engines {
            let template = machine64();
            let memory = template.memory().clone();
            let (parts, own) = (
                PartitionParts {
                    memory: memory.clone(),
                    time: Arc::new(Readings::default()),
                    parallel: false,
                    offered: Offered::EVERYTHING.into(),
                },
                VcpuParts { index: 0, entropy: Box::new(Numbers(1)) },
            );
            let mut vcpu = engine.create_partition(parts).expect("nothing of the host's").create_vcpu(own);
            memory.write(Gpa(CODE), &code).expect("it is RAM");
            *vcpu.state_mut(Parts::ALL) = template.state.clone();
            let state = vcpu.state_mut(Parts::ALL);
            (state.rip, state.gpr[reg::RBX]) = (CODE, SCRATCH);
            for deadline in [5, 900, 1500, 9999] {
                let exit = vcpu.run(Until { counter: Some(deadline), instructions: None });
                assert_eq!(exit, Exit::PreemptionTimer);
                let (state, stored) = (vcpu.state(), memory.read_u64(Gpa(SCRATCH)).expect("it is RAM"));
                assert_eq!(state.rip, CODE + read.len() as u64, "behind the reading");
                assert!(stored < deadline && state.gpr[reg::RAX] >= deadline, "{stored} {deadline}");
                vcpu.resume(Resume::Continue);
            }
        }
    }
}

#[test]
fn an_interrupt_is_taken_within_4096_instructions_on_every_path() {
    let engines: [(&str, Box<dyn Engine<X86>>); 3] = [
        ("eager", Box::new(Translator::eager())),
        ("translator", Box::new(Translator::default())),
        ("interpreter", Box::new(Interpreter)),
    ];
    for path in paths() {
        let mut told = Vec::new();
        for (engine, make) in &engines {
            // Code for several vCPUs is other code.
            let both: &[bool] = if *engine == "eager" { &[false, true] } else { &[false] };
            for &parallel in both {
                let (instructions, bytes) = longest(&**make, parallel, &path);
                told.push(format!("{engine} {instructions}"));
                if bytes > 0 {
                    told.push(format!("{bytes} bytes"));
                }
            }
        }
        println!("{:<24} {}", path.0, told.join(", "));
    }
}
