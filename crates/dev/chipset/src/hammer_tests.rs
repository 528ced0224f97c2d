//! A hostile guest: anything written anywhere at any time neither panics nor spins the monitor.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use satori_bus::{Clock, Nanos, PowerEvent};
use satori_defs::chipset::{hpet, mmio, port};

use crate::support::MIN_PERIOD;
use crate::testing::{Bytes, Messages, Power, Time, Wire};
use crate::{Chipset, Com, DebugExitPorts, Error, MemorySizes, Options, Parts};

struct Rig {
    time: Arc<Time>,
    power: Arc<Power>,
    messages: Arc<Messages>,
    intr: Arc<Wire>,
    serial: Bytes,
    chipset: Chipset,
}

fn parts(time: &Arc<Time>, options: Options) -> Parts {
    Parts {
        clock: time.clone(),
        timers: time.timers.clone(),
        power: Power::new(),
        interrupts: Messages::new(),
        intr: Wire::new(),
        a20: Wire::new(),
        com1: Box::new(Bytes::default()),
        options,
    }
}

fn rig() -> Rig {
    let time = Time::at_epoch(1_700_000_000);
    let (power, messages, intr, serial) = (Power::new(), Messages::new(), Wire::new(), Bytes::default());
    let options = Options {
        memory: MemorySizes { below_4g: 3 << 30, above_4g: 1 << 40 },
        ecam: true,
        debugcon: Some(Box::new(Bytes::default())),
        testdev: Some(4),
        ..Options::default()
    };
    let parts = Parts {
        power: power.clone(),
        interrupts: messages.clone(),
        intr: intr.clone(),
        com1: Box::new(serial.clone()),
        ..parts(&time, options)
    };
    let chipset = Chipset::new(parts).unwrap();
    chipset.add_uart(Com::Com2, Box::new(Bytes::default())).unwrap();
    Rig { time, power, messages, intr, serial, chipset }
}

#[derive(Clone, Debug)]
enum Step {
    Out(u16, u8, u32),
    In(u16, u8),
    Store(u64, u8, u64),
    Load(u64, u8),
    Pass(Nanos),
    Late(Nanos),
    Eoi(u8),
    Acknowledge,
    Offer(Vec<u8>),
    Button,
    /// As fast a periodic timer as can be asked for.
    Fast {
        period: u8,
        timer: u8,
    },
}

fn ports() -> impl Strategy<Value = u16> {
    const BLOCKS: &[(u16, u16)] = &[
        (port::PIC_MASTER, 2),
        (port::PIT, 4),
        (port::I8042_DATA, 5),
        (port::RTC, 2),
        (port::SYSTEM_CONTROL_A, 1),
        (port::PIC_SLAVE, 2),
        (port::TESTDEV_DATA, 12),
        (port::DEBUG_EXIT, 4),
        (port::COM2, 8),
        (port::COM1, 8),
        (port::ELCR, 2),
        (port::PVPANIC, 1),
        (port::PM1A_EVT, 12),
        (port::FW_CFG, 2),
        (port::TESTDEV_IRQ, 24),
        (port::PCI_ADDRESS, 8),
    ];
    let claimed = select(BLOCKS).prop_flat_map(|(base, size)| base..base + size);
    prop_oneof![15 => claimed, 1 => any::<u16>()]
}

fn addresses() -> impl Strategy<Value = u64> {
    let hpet = (0..mmio::HPET_SIZE / 4).prop_map(|n| mmio::HPET + 4 * (n % 0x58));
    let ioapic = select(&[0u64, 0x10, 0x40, 0x20][..]).prop_map(|offset| mmio::IOAPIC + offset);
    let rest = (0..mmio::ECAM_SIZE).prop_map(|offset| mmio::ECAM + offset);
    prop_oneof![4 => hpet, 4 => ioapic, 1 => rest]
}

/// Numbers as drivers write them, and as nobody would.
fn values() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..=0xff, any::<u32>().prop_map(u64::from), any::<u64>(), select(&[0, u64::MAX][..])]
}

fn steps() -> impl Strategy<Value = Step> {
    let size = || select(&[1u8, 2, 4, 8][..]);
    let port_size = || select(&[1u8, 1, 1, 2, 4][..]);
    prop_oneof![
        12 => (ports(), port_size(), values()).prop_map(|(p, s, v)| Step::Out(p, s, v as u32)),
        6 => (ports(), port_size()).prop_map(|(p, s)| Step::In(p, s)),
        12 => (addresses(), size(), values()).prop_map(|(a, s, v)| Step::Store(a, s, v)),
        4 => (addresses(), size()).prop_map(|(a, s)| Step::Load(a, s)),
        3 => (0..20_000_000u64).prop_map(Step::Pass),
        1 => (0..3_000_000_000u64).prop_map(Step::Late),
        1 => any::<u8>().prop_map(Step::Eoi),
        1 => Just(Step::Acknowledge),
        1 => vec(any::<u8>(), 0..40).prop_map(Step::Offer),
        1 => Just(Step::Button),
        2 => (1..=50u8, 0..5u8).prop_map(|(period, timer)| Step::Fast { period, timer }),
    ]
}

impl Rig {
    /// Lets `passed` go by and serves every timer at its time; says how many there were.
    fn pass(&self, passed: Nanos) -> u64 {
        let end = self.time.now().saturating_add(passed);
        let mut served = 0;
        while let Some(next) = self.time.timers.next().filter(|&next| next <= end) {
            self.time.jump(next.max(self.time.now()));
            self.time.timers.run(self.time.now());
            served += 1;
        }
        self.time.jump(end);
        served
    }

    fn program(&self, period: u8, timer: u8) {
        let Chipset { ports, mmio, .. } = &self.chipset;
        match timer {
            3 => {
                for (port, value) in [(3, 0x34), (0, period), (0, 0)] {
                    ports.write(port::PIT + port, 1, value.into());
                }
            }
            4 => {
                for (index, value) in [(0x0a, 0x23), (0x0b, 0x42)] {
                    ports.write(port::RTC, 1, index);
                    ports.write(port::RTC + 1, 1, value);
                }
            }
            n => {
                let block = mmio::HPET + hpet::TIMER + u64::from(n) * hpet::TIMER_STRIDE;
                let conf = hpet::TN_INT_ENB_CNF | hpet::TN_TYPE_CNF | hpet::TN_VAL_SET_CNF;
                mmio.write(block, 8, conf | 20 << hpet::TN_INT_ROUTE_SHIFT);
                mmio.write(mmio::HPET + hpet::GEN_CONF, 8, hpet::ENABLE_CNF);
                let counter = mmio.read(mmio::HPET + hpet::MAIN_CNT, 8);
                mmio.write(block + hpet::TN_COMP, 8, counter.wrapping_add(period.into()));
                mmio.write(block + hpet::TN_COMP, 8, period.into());
            }
        }
    }

    fn step(&self, step: Step) {
        let Chipset { ports, mmio, pic, ioapic, pm, com1, .. } = &self.chipset;
        match step {
            Step::Out(port, size, value) => ports.write(port, size, value),
            Step::In(port, size) => {
                ports.read(port, size);
            }
            Step::Store(address, size, value) => mmio.write(address, size, value),
            Step::Load(address, size) => {
                mmio.read(address, size);
            }
            Step::Pass(passed) => {
                // PIT, three HPET timers, RTC, PM timer, and what was due already.
                let most = 8 + 6 * (passed / MIN_PERIOD + 1);
                let served = self.pass(passed);
                assert!(served <= most, "{served} timers in {passed} ns");
            }
            Step::Late(passed) => {
                self.time.jump(self.time.now() + passed);
                self.time.timers.run(self.time.now());
            }
            Step::Eoi(vector) => ioapic.eoi(vector),
            Step::Acknowledge => {
                pic.acknowledge();
            }
            Step::Offer(bytes) => assert!(com1.offer(&bytes) <= bytes.len()),
            Step::Button => pm.press_power_button(),
            Step::Fast { period, timer } => self.program(period, timer),
        }
        assert_eq!(self.intr.level(), pic.intr(), "INTR shows what the PIC has");
    }
}

/// A fixed seed unless PROPTEST_RNG_SEED gives another; PROPTEST_CASES gives the number of guests.
fn config() -> ProptestConfig {
    let given = ProptestConfig::default();
    let rng_seed = match given.rng_seed {
        RngSeed::Random => RngSeed::Fixed(8259),
        seed => seed,
    };
    ProptestConfig { rng_seed, failure_persistence: None, ..given }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn garbage_neither_panics_nor_spins(steps in vec(steps(), 1..400)) {
        let rig = rig();
        for step in steps {
            rig.step(step);
        }
    }
}

#[test]
fn a_board_is_wired() {
    let rig = rig();
    let Chipset { ports, mmio, .. } = &rig.chipset;
    for byte in *b"hi" {
        ports.write(port::COM1, 1, byte.into());
    }
    assert_eq!(rig.serial.take(), b"hi");
    // Pin 4, edge, vector 0x44; then THRE interrupts with OUT2.
    mmio.write(mmio::IOAPIC, 4, 0x18);
    mmio.write(mmio::IOAPIC + 0x10, 4, 0x44);
    ports.write(port::COM1 + 4, 1, 0x08);
    ports.write(port::COM1 + 1, 1, 0x02);
    assert_eq!(rig.messages.take().iter().map(|m| m.data as u8).collect::<Vec<_>>(), [0x44]);
    assert!(rig.intr.level(), "and the PIC, which nobody has masked");
    ports.write(port::RESET_CONTROL, 1, 6);
    ports.write(port::DEBUG_EXIT, 4, 0x1234);
    ports.write(port::PM1A_CNT, 2, 0x3400);
    let expected = [PowerEvent::Reset("port cf9"), PowerEvent::DebugExit(0x1234), PowerEvent::PowerOff];
    assert_eq!(rig.power.take(), expected);
    ports.write(port::PCI_ADDRESS, 4, 0x8000_0000);
    assert_eq!(ports.read(port::PCI_DATA, 4), mmio.read(mmio::ECAM, 4) as u32);
}

#[test]
fn what_is_left_out_does_not_exist_and_overlaps_are_told() {
    let time = Time::new();
    let none = Options { hpet: false, i8042: false, pvpanic: false, debug_exit: None, ..Options::default() };
    let chipset = Chipset::new(parts(&time, none)).unwrap();
    for port in [port::I8042_DATA, port::I8042_COMMAND, port::PVPANIC, port::DEBUG_EXIT, port::DEBUGCON] {
        assert_eq!(chipset.ports.name(port), None);
        assert_eq!(chipset.ports.read(port, 1), 0xff);
    }
    assert_eq!((chipset.ports.name(port::FW_CFG), chipset.ports.name(port::TESTDEV_DATA)), (None, None));
    assert_eq!(chipset.mmio.read(mmio::HPET, 4), 0xffff_ffff);
    for (base, size) in [(0x3f0, 16), (0xffff, 2), (0x100, 0)] {
        let options = Options { debug_exit: Some(DebugExitPorts { base, size }), ..Options::default() };
        let error = Chipset::new(parts(&time, options)).err().unwrap();
        match base {
            0x3f0 => assert_eq!(error, Error::Overlap { taken_by: "isa-debug-exit", refused: "COM1" }),
            _ => assert_eq!(error, Error::DebugExitPorts { base, size }),
        }
    }
}
