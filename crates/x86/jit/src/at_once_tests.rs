//! Exits that are answered while the vCPU executes, and what INVLPG makes its code miss, on both engines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use satori_engine::{AtOnce, CpuidResult, Exit, Kick, Resume, Until, X86};
use satori_memory::Gpa;
use satori_state::{CpuState, reg};

use crate::testing::{Machine, machine64};
use crate::{Host, Jit, Manner, Pool, reason};

const CODE: u64 = 0x1_0000;
/// Where no RAM is.
const DEVICE: u64 = 0xf000_0000;
const ROUNDS: u64 = 2_000;

/// Answers all but what a device is written, and kicks the vCPU in one of the answers.
struct Answers {
    kick: Arc<Kick>,
    kicks_at: u64,
    given: AtomicU64,
}

impl AtOnce<X86> for Answers {
    fn answer(&self, exit: &Exit, _: &CpuState) -> Option<Resume> {
        let answer = match *exit {
            Exit::Cpuid { leaf, .. } => Resume::Cpuid(CpuidResult { eax: leaf + 1, ..Default::default() }),
            Exit::IoRead { .. } => Resume::Value(0x5a),
            Exit::MmioRead { gpa, .. } => Resume::Value(gpa),
            _ => return None,
        };
        if self.given.fetch_add(1, Ordering::Relaxed) + 1 == self.kicks_at {
            self.kick.kick();
        }
        Some(answer)
    }
}

fn machine(code: &[u8], translates: bool) -> Machine {
    let mut cpu = machine64();
    cpu.memory().write(Gpa(CODE), code).expect("RAM");
    cpu.state.rip = CODE;
    cpu.state.gpr[reg::RBX] = DEVICE;
    cpu.state.gpr[reg::R13] = ROUNDS;
    if translates {
        let manner = Manner { hot: 2, counting: false, watcher: None, host: Host::default() };
        cpu.put(Jit::new(&Pool::default(), manner));
    }
    cpu
}

fn answered(cpu: &mut Machine, kicks_at: u64) -> Arc<Answers> {
    let answers = Arc::new(Answers { kick: cpu.kick().clone(), kicks_at, given: AtomicU64::new(0) });
    cpu.set_at_once(answers.clone());
    answers
}

/// `body`; DEC R13; JNE to its start; HLT.
fn around(body: &[u8]) -> Vec<u8> {
    let back = -(body.len() as i8) - 5;
    [body, &[0x49, 0xff, 0xcd, 0x75, back as u8, 0xf4]].concat()
}

/// Runs until something else than an access to the device comes out, as those do that are interpreted in a block; how many did.
fn go_on(cpu: &mut Machine) -> (Exit, u64) {
    let mut outside = 0;
    loop {
        match cpu.run(Until::default()) {
            Exit::MmioRead { gpa, .. } => cpu.resume(Resume::Value(gpa)),
            exit => return (exit, outside),
        }
        outside += 1;
    }
}

const BODIES: [&[u8]; 3] = [
    // CPUID; IN AL, DX; MOV EDX, [RBX].
    &[0x0f, 0xa2],
    &[0xec],
    &[0x8b, 0x13],
];

#[test]
fn exits_are_answered_while_code_goes_on() {
    for translates in [false, true] {
        for body in BODIES {
            let mut cpu = machine(&around(body), translates);
            let answers = answered(&mut cpu, 0);
            let (exit, outside) = go_on(&mut cpu);
            assert_eq!(exit, Exit::Hlt);
            assert_eq!(answers.given.load(Ordering::Relaxed) + outside, ROUNDS, "{body:x?}");
            assert!(outside < 20 || !translates && body[0] == 0x8b, "{outside} {body:x?}");
            assert_eq!(cpu.retired(), 3 * ROUNDS + 1);
            match body[0] {
                0x0f => assert_eq!(cpu.state.gpr[reg::RAX], ROUNDS, "each asks for the last answer"),
                0xec => assert_eq!(cpu.state.gpr[reg::RAX], 0x5a),
                _ => assert_eq!(cpu.state.gpr[reg::RDX], DEVICE),
            }
        }
    }
}

#[test]
fn what_an_answer_wants_of_the_vcpu_comes_before_more_of_its_code() {
    for body in BODIES {
        let mut cpu = machine(&around(body), true);
        let answers = answered(&mut cpu, 1_000);
        let (exit, outside) = go_on(&mut cpu);
        assert_eq!(exit, Exit::Budget, "a kick of its own exit is none from outside");
        assert_eq!(answers.given.load(Ordering::Relaxed), 1_000);
        let round = 999 + outside;
        assert_eq!((cpu.state.rip, cpu.retired()), (CODE + body.len() as u64, 3 * round + 1), "{body:x?}");
        assert!(cpu.kick().take(), "the machine takes it");
        assert_eq!(go_on(&mut cpu), (Exit::Hlt, 0));
        let given = answers.given.load(Ordering::Relaxed);
        assert_eq!((given + outside, cpu.retired()), (ROUNDS, 3 * ROUNDS + 1));
    }
}

#[test]
fn an_instruction_that_asks_twice_keeps_the_answer_that_it_had_at_once() {
    // MOVSQ from a device to a device, whose writes are not answered.
    for translates in [false, true] {
        let mut cpu = machine(&around(&[0x48, 0xa5]), translates);
        (cpu.state.gpr[reg::RSI], cpu.state.gpr[reg::RDI]) = (DEVICE, DEVICE + 0x10_0000);
        let answers = answered(&mut cpu, 0);
        for round in 0..ROUNDS {
            let (from, to) = (DEVICE + 8 * round, DEVICE + 0x10_0000 + 8 * round);
            let mut exit = cpu.run(Until::default());
            // Only by itself an instruction is answered at once.
            if exit == (Exit::MmioRead { gpa: from, size: 8 }) {
                cpu.resume(Resume::Value(from));
                exit = cpu.run(Until::default());
            }
            assert_eq!(exit, Exit::MmioWrite { gpa: to, size: 8, value: from });
            cpu.resume(Resume::Done);
        }
        assert_eq!(cpu.run(Until::default()), Exit::Hlt);
        assert!(answers.given.load(Ordering::Relaxed) <= ROUNDS, "no device is read twice");
        assert_eq!(cpu.retired(), 3 * ROUNDS + 1);
    }
}

#[test]
fn an_access_behind_invlpg_stays_in_translated_code() {
    // INVLPG [RBX]; MOV EDX, [RBX].
    let mut code = around(&[0x0f, 0x01, 0x3b, 0x8b, 0x13]);
    code.push(0);
    let mut cpu = machine(&code, true);
    cpu.state.gpr[reg::RBX] = 0x3_0000;
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!(cpu.retired(), 4 * ROUNDS + 1);
    let counts = &cpu.jit().expect("it translates").counts;
    assert!(counts.misses > ROUNDS - 10, "each is looked up anew: {}", counts.misses);
    assert!(counts.left[reason::STEP as usize] < 10, "{:?}", counts.left);
}
