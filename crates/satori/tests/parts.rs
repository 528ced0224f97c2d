//! The machine fetches every part of the register file that it reads, and says of every part that it changes it.
//!
//! Debian's kernel boots on an engine that hands out nothing but what was asked for, as one does for which each part costs
//! a system call. What was not fetched reads as garbage, and a change that was not announced is found at the next entry.

mod common;
#[path = "common/forward.rs"]
mod forward;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{fetch, trials};
use forward::forward_vcpu;
use satori_bus::ByteSink;
use satori_engine::{
    Capabilities, Engine, Exit, Partition, PartitionParts, Parts, Space, Until, Vcpu, VcpuParts, X86,
};
use satori_machine::{ClockMode, Cmdline, Config, EngineKind, Machine, Module, Outcome, Sinks};
use satori_memory::GuestMemory;
use satori_state::{CpuState, FpuState, Segment};

struct Frugal(Arc<dyn Engine<X86>>);

impl Engine<X86> for Frugal {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn create_partition(&self, parts: PartitionParts<X86>) -> std::io::Result<Box<dyn Partition<X86>>> {
        Ok(Box::new(FrugalPartition(self.0.create_partition(parts)?)))
    }
}

struct FrugalPartition(Box<dyn Partition<X86>>);

impl Space for FrugalPartition {
    fn memory(&self) -> &GuestMemory {
        self.0.memory()
    }
}

impl Partition<X86> for FrugalPartition {
    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu<X86>> {
        let inner = self.0.create_vcpu(parts);
        let mut vcpu =
            FrugalVcpu { inner, shown: garbage(), fetched: Parts::default(), changed: Parts::default() };
        vcpu.fetch(Parts::EXIT);
        Box::new(vcpu)
    }
}

struct FrugalVcpu {
    inner: Box<dyn Vcpu<X86>>,
    shown: CpuState,
    fetched: Parts,
    changed: Parts,
}

/// A register file of which nothing is right.
fn garbage() -> CpuState {
    const WRONG: u64 = 0xdead_beef_dead_beef;
    let segment = Segment { selector: 0xdead, rights: 0xdead, limit: 0xdead, base: WRONG };
    CpuState {
        gpr: [WRONG; 18],
        rip: WRONG,
        cr0: WRONG,
        cr3: WRONG,
        cr4: WRONG,
        seg: [segment; 6],
        dr: [WRONG; 4],
        dr6: WRONG,
        dr7: WRONG,
        xcr0: WRONG,
        pkru: 0xdead,
        fpu: FpuState { fcw: 0xdead, mxcsr: 0xdead, fip: WRONG, st: [1 << 79; 8], ..FpuState::default() },
        xss: WRONG,
        star: WRONG,
        lstar: WRONG,
        cstar: WRONG,
        fmask: WRONG,
        kernel_gs_base: WRONG,
        sysenter_cs: WRONG,
        sysenter_esp: WRONG,
        sysenter_eip: WRONG,
        tsc_aux: WRONG,
        pat: WRONG,
        tsc_offset: WRONG,
        ..CpuState::default()
    }
}

/// Copies `parts` of `from`. Every field is named, so that a new one has to get its part.
fn copy(to: &mut CpuState, from: &CpuState, parts: Parts) {
    macro_rules! copy {
        ($part:expr; $($field:ident)*) => {
            if parts.has($part) {
                $(to.$field.clone_from(&from.$field);)*
            }
        };
    }
    copy!(Parts::GENERAL; gpr rip rflags);
    copy!(Parts::SYSTEM; seg ldtr tr gdtr idtr cr0 cr2 cr3 cr4 pdpte tpr efer);
    copy!(Parts::EVENTS; interrupt_shadow ss_shadow pending_debug nmi_blocked activity);
    copy!(Parts::DEBUG; dr dr6 dr7);
    copy!(Parts::EXTENDED; fpu xcr0 pkru);
    copy!(Parts::MSRS; xss star lstar cstar fmask kernel_gs_base sysenter_cs sysenter_esp sysenter_eip);
    copy!(Parts::MSRS; tsc_aux pat tsc_offset);
}

impl FrugalVcpu {
    /// Sets what was changed, which has to have been announced.
    fn set(&mut self) {
        let mut expected = self.shown.clone();
        copy(&mut expected, self.inner.state(), self.fetched);
        copy(&mut expected, &self.shown, self.changed);
        assert!(expected == self.shown, "changed without a word:\n{:#x?}\n{expected:#x?}", self.shown);
        let changed = std::mem::take(&mut self.changed);
        copy(self.inner.state_mut(changed), &self.shown, changed);
    }
}

impl Vcpu<X86> for FrugalVcpu {
    fn run(&mut self, until: Until) -> Exit {
        self.set();
        let exit = self.inner.run(until);
        (self.shown, self.fetched) = (garbage(), Parts::default());
        self.fetch(Parts::EXIT);
        exit
    }
    fn fetch(&mut self, parts: Parts) {
        for part in [Parts::GENERAL, Parts::SYSTEM, Parts::EVENTS, Parts::DEBUG, Parts::EXTENDED, Parts::MSRS]
        {
            if parts.has(part) && !self.fetched.has(part) {
                copy(&mut self.shown, self.inner.state(), part);
                self.fetched = self.fetched | part;
            }
        }
    }
    fn state(&self) -> &CpuState {
        &self.shown
    }
    fn state_mut(&mut self, parts: Parts) -> &mut CpuState {
        self.fetch(parts);
        self.changed = self.changed | parts;
        &mut self.shown
    }
    forward_vcpu!();
}

#[derive(Clone, Default)]
struct Console(Arc<Mutex<Vec<u8>>>);

impl ByteSink for Console {
    fn put(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

/// The beginning of a boot on two vCPUs with the whole interface; what it was, and its console.
fn boot(wrap: impl FnOnce(Arc<dyn Engine<X86>>) -> Arc<dyn Engine<X86>>) -> (Outcome, String) {
    let initrd = std::fs::read(trials()).expect("the initramfs");
    let config = Config {
        kernel: std::fs::read(fetch(&["kernel"])).expect("the kernel"),
        initrds: vec![Module { data: initrd, ..Module::default() }],
        cmdline: Cmdline::Added("panic=-1 satori.seed=1".into()),
        memory: 256 << 20,
        topology: satori_cpuid::Topology::flat(2),
        clock: ClockMode::Virtual { rate: 1_000_000_000 },
        guest_timeout: Some(Duration::from_millis(900)),
        engine: EngineKind::best(),
        ..Config::default()
    };
    let console = Console::default();
    let sinks = Sinks { console: Box::new(console.clone()), debugcon: None, code: None };
    let outcome = Machine::with_engine(config, sinks, wrap).expect("a machine").run();
    let console = String::from_utf8_lossy(&console.0.lock().unwrap()).into_owned();
    (outcome, console)
}

#[test]
fn a_boot_with_registers_fetched_in_parts_is_the_same_boot() {
    let (plain, expected) = boot(|engine| engine);
    let (frugal, console) = boot(|engine| Arc::new(Frugal(engine)));
    assert!(expected.contains("Linux version") && expected.contains("smp: Brought up"), "{expected}");
    assert_eq!((console, frugal.instructions), (expected, plain.instructions));
    assert_eq!((frugal.event, frugal.registers), (plain.event, plain.registers));
    assert_eq!(frugal.profile, plain.profile);
}
