//! A processor for tests: its program is a list of operations, among them every exit.

use std::sync::{Arc, Mutex};

use satori_bus::{ByteSink, MsiSink};
use satori_defs::x86::rflags;
use satori_engine::{
    Capabilities, Capability, Controls, DebugPlan, Engine, Event, Exit, Kick, Partition, PartitionParts,
    Resume, Space, Stat, TimeSource, Until, Vcpu, VcpuParts, Window, X86,
};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::{Activity, CpuState};

use crate::life::Begin;
use crate::machine::{Machine, Parts, Sinks};
use crate::{Config, Error, Handle};

/// One operation; all but [`Op::Work`] are one instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// So many instructions.
    Work(u64),
    /// An instruction that exits and takes an answer, if the exit is one that has any.
    Exit(Exit),
    Sti,
    Cli,
    /// HLT.
    Hlt,
    /// PAUSE, exiting.
    Pause,
    Jump(usize),
    /// Back to where the interrupt came.
    Iret,
    /// Faults without end.
    TripleFault,
}

/// Where a processor begins: at RIP 0 after a SIPI, else wherever the entry state says.
#[derive(Clone, Default)]
pub(crate) struct Program {
    pub ops: Vec<Op>,
    /// Where interrupts and NMIs go.
    pub handler: usize,
    /// Where each vCPU begins; the SIPI does not decide.
    pub begin: Vec<usize>,
}

/// What happened, as `vcpu: what`.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

#[derive(Clone)]
pub(crate) struct ScriptEngine {
    pub program: Program,
    pub log: Log,
    pub capabilities: Capabilities,
    /// Where messages of devices go, if not to the machine's local APICs.
    pub routes: Option<Arc<dyn MsiSink>>,
}

impl Engine<X86> for ScriptEngine {
    fn name(&self) -> &'static str {
        "script"
    }
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
    fn create_partition(&self, parts: PartitionParts<X86>) -> std::io::Result<Box<dyn Partition<X86>>> {
        Ok(Box::new(ScriptPartition { engine: self.clone(), parts }))
    }
}

struct ScriptPartition {
    engine: ScriptEngine,
    parts: PartitionParts<X86>,
}

impl Space for ScriptPartition {
    fn memory(&self) -> &GuestMemory {
        &self.parts.memory
    }
    fn routes(&self) -> Option<Arc<dyn MsiSink>> {
        self.engine.routes.clone()
    }
}

impl Partition<X86> for ScriptPartition {
    fn create_vcpu(&self, VcpuParts { index, .. }: VcpuParts) -> Box<dyn Vcpu<X86>> {
        let ScriptEngine { program, log, .. } = self.engine.clone();
        Box::new(Script {
            index,
            time: self.parts.time.clone(),
            pc: program.begin.get(index as usize).copied().unwrap_or(0),
            program,
            log,
            state: CpuState::default(),
            controls: Controls::default(),
            kick: Arc::default(),
            worked: 0,
            returns: Vec::new(),
            injected: None,
            answer: None,
            exited: false,
            window: false,
            retired: 0,
        })
    }
}

struct Script {
    index: u32,
    time: Arc<dyn TimeSource>,
    program: Program,
    log: Log,
    state: CpuState,
    controls: Controls,
    kick: Arc<Kick>,
    pc: usize,
    /// Instructions of the current [`Op::Work`] already done.
    worked: u64,
    returns: Vec<usize>,
    injected: Option<Event>,
    answer: Option<Resume>,
    exited: bool,
    window: bool,
    retired: u64,
}

impl Script {
    fn say(&self, what: String) {
        self.log.lock().unwrap().push(format!("{}: {what}", self.index));
    }

    fn retire(&mut self, instructions: u64) {
        self.retired += instructions;
        self.time.retired(instructions);
    }

    fn step_over(&mut self) {
        self.pc += 1;
        self.worked = 0;
        self.retire(1);
    }
}

impl Vcpu<X86> for Script {
    fn run(&mut self, until: Until) -> Exit {
        let asleep = self.state.activity != Activity::Active && self.injected.is_none();
        assert!(!asleep, "entered while {:?}", self.state.activity);
        let end = until.instructions.map_or(u64::MAX, |n| self.retired + n);
        if let Some(answer) = self.answer.take() {
            assert!(std::mem::take(&mut self.exited));
            if !matches!(answer, Resume::Done) {
                self.say(format!("{answer:?}"));
            }
            self.step_over();
        }
        if let Some(event) = self.injected.take() {
            self.state.activity = Activity::Active;
            self.say(format!("{event:?}"));
            if event != Event::Nmi {
                assert!(self.state.rflags & rflags::IF != 0, "injected with interrupts off");
            }
            self.returns.push(self.pc);
            self.pc = self.program.handler;
            self.worked = 0;
            self.state.rflags &= !rflags::IF;
        }
        loop {
            if self.kick.take() {
                return Exit::ExternalInterrupt;
            }
            if self.window && self.state.rflags & rflags::IF != 0 {
                return Exit::InterruptWindow;
            }
            if until.counter.is_some_and(|tsc| self.time.counter() >= tsc) {
                return Exit::PreemptionTimer;
            }
            if self.retired >= end {
                return Exit::Budget;
            }
            match self.program.ops[self.pc] {
                Op::Work(n) => {
                    let now = (n - self.worked).min(end - self.retired).min(100);
                    self.worked += now;
                    self.retire(now);
                    if self.worked == n {
                        self.pc += 1;
                        self.worked = 0;
                    }
                }
                Op::Exit(exit) => {
                    self.exited = true;
                    return exit;
                }
                Op::Sti => {
                    self.state.rflags |= rflags::IF;
                    self.step_over();
                    // The shadow of STI: no interrupt comes between it and HLT.
                    if matches!(self.program.ops[self.pc], Op::Hlt) {
                        self.step_over();
                        self.state.activity = Activity::Halted;
                        return Exit::Hlt;
                    }
                }
                Op::Cli => {
                    self.state.rflags &= !rflags::IF;
                    self.step_over();
                }
                Op::Hlt => {
                    self.step_over();
                    self.state.activity = Activity::Halted;
                    return Exit::Hlt;
                }
                Op::Pause => {
                    self.step_over();
                    return Exit::Pause;
                }
                Op::Jump(to) => {
                    self.step_over();
                    self.pc = to;
                }
                Op::Iret => {
                    self.step_over();
                    self.state.rflags |= rflags::IF;
                    self.pc = self.returns.pop().unwrap();
                }
                Op::TripleFault => {
                    self.state.activity = Activity::Shutdown;
                    return Exit::TripleFault;
                }
            }
        }
    }

    fn resume(&mut self, answer: Resume) {
        self.answer = (answer != Resume::Continue).then_some(answer);
    }
    fn inject(&mut self, event: Event) {
        assert!(self.injected.replace(event).is_none(), "two events at one entry");
    }
    fn request_window(&mut self, window: Window, wanted: bool) {
        match window {
            Window::Interrupt => self.window = wanted,
            Window::Nmi => {}
        }
    }
    fn state(&self) -> &CpuState {
        &self.state
    }
    fn state_mut(&mut self, _parts: satori_engine::Parts) -> &mut CpuState {
        &mut self.state
    }
    fn controls_mut(&mut self) -> &mut Controls {
        &mut self.controls
    }
    fn flush_tlb(&mut self) {}
    fn kick(&self) -> Arc<Kick> {
        self.kick.clone()
    }
    fn set_debug(&mut self, _plan: DebugPlan) {}
    fn translate(&self, linear: u64) -> Option<u64> {
        Some(linear)
    }
    fn retired(&self) -> u64 {
        self.retired
    }
    fn stats(&self) -> Vec<Stat> {
        vec![("instructions retired", self.retired)]
    }
}

/// Bytes that stay reachable.
#[derive(Clone, Default)]
pub(crate) struct Buffer(pub Arc<Mutex<Vec<u8>>>);

impl ByteSink for Buffer {
    fn put(&mut self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

/// A machine that runs `program`, its log and its console.
pub(crate) fn machine(config: &Config, program: Program) -> Result<(Machine, Log, Buffer), Error> {
    let capabilities = Capabilities::of(&[Capability::ExactStop, Capability::GivesPriority]);
    machine_on(config, program, capabilities, None)
}

/// The same, on an engine that can do so much, and to whose routes messages go if it has any.
pub(crate) fn machine_on(
    config: &Config,
    program: Program,
    capabilities: Capabilities,
    routes: Option<Arc<dyn MsiSink>>,
) -> Result<(Machine, Log, Buffer), Error> {
    let (log, console) = (Log::default(), Buffer::default());
    let parts = Parts {
        engine: Arc::new(ScriptEngine { program, log: log.clone(), capabilities, routes }),
        features: crate::EngineKind::choose(&Config::default(), None)
            .expect("the interpreter is always there")
            .features,
        host_lacks: Vec::new(),
        regions: vec![Region { start: Gpa(0), len: 1 << 20 }],
        load: Box::new(|_| {
            Ok(Begin { state: CpuState::default(), firmware: false, facs: None, map: Vec::new() })
        }),
    };
    let sinks = Sinks { console: Box::new(console.clone()), debugcon: None, code: None };
    Machine::assemble(config.clone(), sinks, parts, String::new()).map(|machine| (machine, log, console))
}

/// Stops the machine of `handle` after `time`.
pub(crate) fn stop_after(handle: Handle, time: std::time::Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(time);
        handle.stop();
    });
}
