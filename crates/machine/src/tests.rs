//! Runs of a scripted processor, on both clocks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use satori_cpuid::Topology;
use satori_defs::msr;
use satori_defs::vmx::ExitReason;
use satori_engine::{Capabilities, Capability, Exit};

use crate::testing::{Log, Op, Program, machine, machine_on, stop_after};
use crate::{ClockMode, Config, Event, OnReset, Outcome};

const SVR: u32 = msr::X2APIC_BASE + 0x0f;
const EOI: u32 = msr::X2APIC_BASE + 0x0b;
const ICR: u32 = msr::X2APIC_BASE + 0x30;
const LVT_TIMER: u32 = msr::X2APIC_BASE + 0x32;

const INIT: u64 = 0x4500;
const STARTUP: u64 = 0x4600;
const SELF: u64 = 1 << 18;

fn write(msr: u32, value: u64) -> Op {
    Op::Exit(Exit::MsrWrite { msr, value })
}

fn out(port: u16, value: u32) -> Op {
    Op::Exit(Exit::IoWrite { port, size: 1, value })
}

/// isa-debug-exit.
fn debug_exit(value: u32) -> Op {
    out(0xf4, value)
}

/// Into x2APIC mode, with the APIC enabled.
fn enable_x2apic(bsp: bool) -> [Op; 2] {
    [write(msr::IA32_APIC_BASE, 0xfee0_0c00 | u64::from(bsp) << 8), write(SVR, 0x1ff)]
}

/// On a processor whose every step concerning interrupts exits.
fn virtual_clock() -> Config {
    let processor = "no-apicv".parse().expect("there is one");
    let hyperv = satori_hyperv::Config::off();
    Config { clock: ClockMode::VIRTUAL, hyperv, processor, ..Config::default() }
}

fn real_clock() -> Config {
    // No test hangs for ever.
    Config { clock: ClockMode::Real, timeout: Some(Duration::from_secs(20)), ..virtual_clock() }
}

fn run(config: &Config, program: Program) -> (Outcome, Vec<String>) {
    let (machine, log, _) = machine(config, program).unwrap();
    let outcome = machine.run();
    (outcome, said(&log))
}

fn said(log: &Log) -> Vec<String> {
    log.lock().unwrap().clone()
}

fn count(outcome: &Outcome, reason: ExitReason) -> u64 {
    outcome.profile.all().get(satori_engine::reason(reason)).count
}

/// `body`, and behind it a handler that ends the interrupt and returns.
fn with_handler(body: Vec<Op>) -> Program {
    let handler = body.len();
    let ops = [body, vec![write(EOI, 0), Op::Iret]].concat();
    Program { ops, handler, begin: Vec::new() }
}

#[test]
fn interrupts_come_by_priority_and_each_behind_a_window() {
    let body = [
        enable_x2apic(true).to_vec(),
        vec![
            Op::Cli,
            write(ICR, SELF | 0x41),
            write(ICR, SELF | 0x83),
            write(ICR, SELF | 0x82),
            Op::Work(500),
            Op::Sti,
            Op::Work(500),
            debug_exit(7),
        ],
    ];
    for config in [virtual_clock(), real_clock()] {
        let (outcome, said) = run(&config, with_handler(body.concat()));
        assert_eq!(outcome.event, Event::DebugExit(7));
        assert_eq!(said, ["0: Interrupt(131)", "0: Interrupt(130)", "0: Interrupt(65)"]);
        assert_eq!(count(&outcome, ExitReason::InterruptWindow), 3);
        assert_eq!(count(&outcome, ExitReason::MsrWrite), 5 + 3);
    }
}

#[test]
fn an_instruction_takes_its_answer_before_an_interrupt_comes() {
    let body = [
        enable_x2apic(true).to_vec(),
        vec![Op::Sti, write(ICR, SELF | 0x50), Op::Exit(Exit::IoRead { port: 0x80, size: 1 }), debug_exit(0)],
    ];
    let (_, said) = run(&virtual_clock(), with_handler(body.concat()));
    assert_eq!(said, ["0: Interrupt(80)", "0: Value(255)"]);
}

#[test]
fn the_timer_wakes_a_halted_processor() {
    let body = [
        enable_x2apic(true).to_vec(),
        vec![
            // Deadline mode, vector 0x60, in 3 ms at 1 GHz.
            write(LVT_TIMER, 0x4_0060),
            write(msr::IA32_TSC_DEADLINE, 3_000_000),
            Op::Sti,
            Op::Hlt,
            debug_exit(3),
        ],
    ];
    let (outcome, said) = run(&virtual_clock(), with_handler(body.concat()));
    assert_eq!((outcome.event, said), (Event::DebugExit(3), vec!["0: Interrupt(96)".into()]));
    let hlt = *outcome.profile.all().get(satori_engine::reason(ExitReason::Hlt));
    assert_eq!(hlt.count, 1);
    assert!((2_990_000..3_000_000).contains(&hlt.total), "idle time counts as HLT: {hlt:?}");
    assert!(outcome.elapsed < Duration::from_secs(2), "and is skipped");

    let config = Config { tsc_hz: Some(1_000_000_000), ..real_clock() };
    let (outcome, _) = run(&config, with_handler(body.concat()));
    assert_eq!(outcome.event, Event::DebugExit(3));
    assert!(outcome.elapsed >= Duration::from_millis(2), "{:?}", outcome.elapsed);
}

#[test]
fn an_interrupt_is_not_lost_where_two_timers_are_due_at_once() {
    let timer = |deadline| {
        let mode = u64::from(satori_defs::apic::lvt::TSC_DEADLINE);
        [write(LVT_TIMER, mode | 0x51), write(msr::IA32_TSC_DEADLINE, deadline), Op::Sti]
    };
    // Among the times is the one at which the second processor has just halted.
    for deadline in 10_990..11_030 {
        let mut ops = enable_x2apic(true).to_vec();
        ops.extend([write(ICR, 1 << 32 | INIT), Op::Work(2000), write(ICR, 1 << 32 | STARTUP | 0x10)]);
        ops.extend(timer(deadline));
        ops.extend([Op::Hlt, Op::Work(100_000), debug_exit(1)]);
        let second = ops.len();
        ops.extend(enable_x2apic(false));
        ops.extend(timer(deadline));
        ops.extend([Op::Work(9_000), Op::Hlt, Op::Cli, Op::Hlt]);
        let config = Config { topology: Topology::flat(2), tsc_hz: Some(1_000_000_000), ..virtual_clock() };
        let (outcome, said) = run(&config, Program { begin: vec![0, second], ..with_handler(ops) });
        assert_eq!(outcome.event, Event::DebugExit(1));
        for taken in ["0: Interrupt(81)", "1: Interrupt(81)"] {
            assert!(said.iter().any(|line| line == taken), "{deadline}: {said:?}");
        }
    }
}

/// The BSP starts three processors; each sends it an interrupt while it does `then` for ever.
fn smp(then: &[Op]) -> Program {
    let mut ops = enable_x2apic(true).to_vec();
    for apic_id in 1..4u64 {
        ops.extend([write(ICR, apic_id << 32 | INIT), Op::Work(2000)]);
        ops.extend([write(ICR, apic_id << 32 | STARTUP | 0x10), Op::Work(2000)]);
        // A second SIPI, as the manual asks for, has to be lost.
        ops.push(write(ICR, apic_id << 32 | STARTUP | 0x10));
    }
    ops.push(Op::Sti);
    let begin = ops.len();
    ops.extend_from_slice(then);
    ops.push(Op::Jump(begin));
    let others = ops.len();
    ops.extend(enable_x2apic(false));
    ops.extend([Op::Work(70_000), Op::Pause, write(ICR, 0x70), Op::Work(20_000), Op::Cli, Op::Hlt]);
    let handler = ops.len();
    ops.extend([Op::Exit(Exit::Cpuid { leaf: 0, subleaf: 0 }), write(EOI, 0), Op::Iret]);
    Program { ops, handler, begin: vec![0, others, others, others] }
}

#[test]
fn other_processors_start_by_init_and_sipi_and_interrupt_the_first() {
    for base in [virtual_clock(), real_clock()] {
        let config = Config { topology: Topology::flat(4), ..base };
        let (machine, log, _) = machine(&config, smp(&[Op::Hlt])).unwrap();
        let handle = machine.handle();
        let watch = log.clone();
        std::thread::spawn(move || {
            let start = Instant::now();
            // Each interrupt is one line, its handler's CPUID another. On the real clock two may
            // come so close together that the second joins the first.
            let done = || watch.lock().unwrap().iter().any(|line| line.contains("Interrupt(112)"));
            while start.elapsed() < Duration::from_secs(10) && !done() {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(50));
            handle.stop();
        });
        let outcome = machine.run();
        assert_eq!(outcome.event, Event::Stopped);
        assert!(said(&log).iter().all(|line| line.starts_with("0: ")), "only the first is interrupted");
        assert!(said(&log).iter().any(|line| line.contains("Interrupt(112)")));
        for (index, vcpu) in outcome.profile.vcpus.iter().enumerate().skip(1) {
            assert_eq!(
                vcpu.get(satori_engine::reason(ExitReason::Hlt)).count,
                1,
                "processor {index} went to the end"
            );
            assert_eq!(outcome.registers[index].seg[1].selector, 0x1000);
        }
    }
}

#[test]
fn two_virtual_runs_are_alike() {
    let once = || {
        let config = Config { topology: Topology::flat(4), ..virtual_clock() };
        let (outcome, said) = run(&config, smp(&[Op::Work(400_000), debug_exit(0)]));
        assert_eq!(outcome.event, Event::DebugExit(0));
        (outcome.profile, outcome.instructions, said)
    };
    let (first, second) = (once(), once());
    assert_eq!(first, second);
    assert!(first.2.iter().any(|line| line.contains("Interrupt(112)")), "{:?}", first.2);
}

#[test]
fn who_interrupts_and_who_is_interrupted_execute_as_much_as_the_others() {
    let mut ops = enable_x2apic(true).to_vec();
    for apic_id in 1..4u64 {
        ops.extend([write(ICR, apic_id << 32 | INIT), Op::Work(2000)]);
        ops.extend([write(ICR, apic_id << 32 | STARTUP | 0x10), Op::Work(2000)]);
    }
    // A round of each is about as long. The first interrupts the second in each, the third nobody; the fourth's timer
    // runs out all the time.
    let round = Op::Exit(Exit::Cpuid { leaf: 0, subleaf: 0 });
    let first = ops.len();
    ops.extend([write(ICR, 1 << 32 | 0x70), Op::Work(1000), round, Op::Jump(first)]);
    let mut begin = vec![0];
    for timer in [false, false, true] {
        begin.push(ops.len());
        ops.extend(enable_x2apic(false));
        ops.push(Op::Sti);
        if timer {
            ops.push(write(LVT_TIMER, 0x2_0000 | 0x71));
            ops.push(write(msr::X2APIC_BASE + 0x3e, 0b1011));
            ops.push(write(msr::X2APIC_BASE + 0x38, 2_000));
        }
        let again = ops.len();
        // An interrupt begins the operation again that it came into.
        ops.extend([Op::Work(6); 167]);
        ops.extend([round, Op::Jump(again)]);
    }
    let handler = ops.len();
    ops.extend([write(EOI, 0), Op::Iret]);
    let config = Config {
        topology: Topology::flat(4),
        guest_timeout: Some(Duration::from_millis(50)),
        ..virtual_clock()
    };
    let (outcome, said) = run(&config, Program { ops, handler, begin });
    assert_eq!(outcome.event, Event::Timeout);
    let of = |vector: u8| said.iter().filter(|line| line.contains(&format!("Interrupt({vector})"))).count();
    assert!(of(0x70) > 5_000 && of(0x71) > 200, "{} and {}", of(0x70), of(0x71));
    let rounds: Vec<u64> = outcome
        .profile
        .vcpus
        .iter()
        .map(|vcpu| vcpu.get(satori_engine::reason(ExitReason::Cpuid)).count)
        .collect();
    let (least, most) = (rounds.iter().min().unwrap(), rounds.iter().max().unwrap());
    assert!(most - least < most / 50, "{rounds:?}");
}

#[test]
fn the_timeout_and_the_handle_end_a_guest_that_spins_or_sleeps() {
    let spin = || Program { ops: vec![Op::Work(1000), Op::Jump(0)], ..Program::default() };
    let sleep = || Program { ops: vec![Op::Cli, Op::Hlt], ..Program::default() };
    for base in [virtual_clock(), real_clock()] {
        for program in [spin(), sleep()] {
            let config = Config {
                timeout: Some(Duration::from_millis(40)),
                topology: Topology::flat(2),
                ..base.clone()
            };
            let (outcome, _) = run(&config, program.clone());
            assert_eq!(outcome.event, Event::Timeout);
            assert!(outcome.elapsed < Duration::from_secs(5), "{:?}", outcome.elapsed);
            let (machine, _, _) = machine(&base, program).unwrap();
            stop_after(machine.handle(), Duration::from_millis(20));
            assert_eq!(machine.run().event, Event::Stopped);
        }
    }
}

#[test]
fn a_reset_restarts_or_ends_and_a_stop_is_final() {
    let program =
        || Program { ops: vec![Op::Work(50), out(0xcf9, 6), Op::Work(1), Op::Jump(2)], ..Program::default() };
    for base in [virtual_clock(), real_clock()] {
        let config = Config { on_reset: OnReset::Exit, ..base.clone() };
        let (outcome, _) = run(&config, program());
        assert!(matches!(outcome.event, Event::Reset(_)), "{:?}", outcome.event);
        let (machine, _, _) = machine(&base, program()).unwrap();
        stop_after(machine.handle(), Duration::from_millis(50));
        let outcome = machine.run();
        assert_eq!(outcome.event, Event::Stopped);
        assert!(outcome.resets > 1, "{}", outcome.resets);
        assert!(count(&outcome, ExitReason::IoInstruction) >= outcome.resets.into(), "lives are summed");
    }
}

#[test]
fn a_guest_that_only_resets_itself_is_ended_in_time() {
    let program = || Program { ops: vec![out(0xcf9, 6)], ..Program::default() };
    for base in [virtual_clock(), real_clock()] {
        let limit = Duration::from_millis(30);
        let wall = Config { timeout: Some(limit), ..base.clone() };
        let guest = Config { guest_timeout: Some(limit), ..base };
        for config in [wall, guest] {
            let (outcome, _) = run(&config, program());
            assert_eq!(outcome.event, Event::Timeout);
            assert!(outcome.elapsed < Duration::from_secs(5), "{:?}", outcome.elapsed);
            // Under the real clock a busy host may not come to one.
            if config.guest_timeout.is_some() && config.clock != ClockMode::Real {
                assert_eq!((outcome.guest_time / 1_000_000, outcome.resets), (30, 30), "a millisecond each");
            }
        }
    }
}

#[test]
fn a_triple_fault_is_told_with_its_processor() {
    for config in [virtual_clock(), real_clock()] {
        let (outcome, _) =
            run(&config, Program { ops: vec![Op::Work(9), Op::TripleFault], ..Program::default() });
        assert_eq!(outcome.event, Event::TripleFault { vcpu: 0 });
        assert_eq!((outcome.instructions, count(&outcome, ExitReason::TripleFault)), (9, 1));
    }
}

#[test]
fn a_panic_on_the_console_waits_for_its_trace() {
    let print = |text: &str| text.bytes().map(|byte| out(0x3f8, byte.into())).collect::<Vec<_>>();
    let mut ops = print("hello\nKernel panic - not syncing: x\n");
    ops.extend([Op::Work(1000)]);
    ops.extend(print("Call Trace:\n"));
    let spin = ops.len();
    ops.extend([Op::Work(1000), Op::Jump(spin)]);
    let program = Program { ops, ..Program::default() };
    for config in [virtual_clock(), real_clock()] {
        let (machine, _, console) = machine(&config, program.clone()).unwrap();
        let outcome = machine.run();
        assert_eq!(outcome.event, Event::Panic("console"));
        assert_eq!(outcome.console_tail, ["hello", "Kernel panic - not syncing: x", "Call Trace:"]);
        assert!(console.0.lock().unwrap().ends_with(b"Call Trace:\n"));
    }
    let config = Config { panic_pattern: String::new(), ..virtual_clock() };
    let (machine, _, _) = machine(&config, program).unwrap();
    stop_after(machine.handle(), Duration::from_millis(100));
    assert_eq!(machine.run().event, Event::Stopped);
}

#[test]
fn typed_input_reaches_the_serial_port() {
    // Wait for data-ready, then read the byte and end with it.
    let ops = vec![Op::Work(100_000), Op::Exit(Exit::IoRead { port: 0x3f8, size: 1 }), debug_exit(1)];
    for config in [virtual_clock(), real_clock()] {
        let (machine, log, _) = machine(&config, Program { ops: ops.clone(), ..Program::default() }).unwrap();
        assert_eq!(machine.handle().input(b"A"), 1);
        machine.run();
        // On the real clock the guest may be faster than the thread that types.
        assert!(config.clock == ClockMode::Real || said(&log) == ["0: Value(65)"], "{:?}", said(&log));
    }
}

#[test]
fn mistakes_of_the_configuration_are_told() {
    let refused = |config: Config| machine(&config, Program::default()).err().map(|e| e.to_string());
    assert!(refused(Config { topology: Topology::flat(0), ..virtual_clock() }).unwrap().contains("--cpus"));
    assert!(refused(Config { cpu_model: Some("z80".into()), ..virtual_clock() }).unwrap().contains("z80"));
    assert_eq!(refused(Config { hyperv: satori_hyperv::Config::auto(), ..virtual_clock() }), None);
}

#[test]
fn an_engine_is_asked_for_what_the_machine_needs() {
    use satori_engine::Capability::{ExactStop, GivesPriority, KeepsInterruptController};
    let real = Config::default();
    let counted = Config { clock: ClockMode::Virtual { rate: 1_000_000_000 }, ..Config::default() };
    let made = |config: &Config, can: &[_]| {
        machine_on(config, Program::default(), Capabilities::of(can), None)
            .map(drop)
            .map_err(|e| e.to_string())
    };
    assert_eq!(made(&real, &[GivesPriority]), Ok(()));
    let error = made(&counted, &[GivesPriority]).unwrap_err();
    assert!(error.starts_with("--clock virtual needs an engine that stops after an exact number"), "{error}");
    assert_eq!(made(&counted, &[GivesPriority, ExactStop]), Ok(()));
    assert!(made(&real, &[ExactStop]).unwrap_err().contains("gives the task priority"));
    assert_eq!(made(&real, &[GivesPriority, KeepsInterruptController]), Ok(()));
}

#[test]
fn messages_of_devices_go_to_the_routes_of_an_engine_that_has_some() {
    #[derive(Default)]
    struct Heard(std::sync::Mutex<Vec<satori_bus::Msi>>);
    impl satori_bus::MsiSink for Heard {
        fn signal(&self, msi: satori_bus::Msi) {
            self.0.lock().unwrap().push(msi);
        }
    }
    use satori_defs::chipset::ioapic::{IOREDTBL, IOREGSEL, IOWIN};
    let ioapic =
        |register: u64, value: u64| Op::Exit(Exit::MmioWrite { gpa: 0xfec0_0000 + register, size: 4, value });
    // The serial port's line is pin 4; its interrupt is asked for while it has room for a byte.
    let pin = u64::from(IOREDTBL) + 2 * 4;
    let ops = vec![
        ioapic(IOREGSEL, pin),
        ioapic(IOWIN, 0x51),
        Op::Exit(Exit::IoWrite { port: 0x3fc, size: 1, value: 8 }),
        Op::Exit(Exit::IoWrite { port: 0x3f9, size: 1, value: 2 }),
        debug_exit(0),
    ];
    let program = Program { ops, ..Program::default() };
    let heard = Arc::new(Heard::default());
    let can = Capabilities::of(&[Capability::ExactStop, Capability::GivesPriority]);
    let (machine, ..) = machine_on(&virtual_clock(), program, can, Some(heard.clone())).unwrap();
    assert_eq!(machine.run().event, Event::DebugExit(0));
    let data: Vec<_> = heard.0.lock().unwrap().iter().map(|msi| msi.data & 0xff).collect();
    assert_eq!(data, [0x51]);
}
