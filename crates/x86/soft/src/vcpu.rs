//! The interpreter as an engine.

use std::sync::Arc;

use satori_cpuid::Feature;
use satori_engine::{
    CodeWatcher, Controls, DebugPlan, Engine, Event, Exit, Kick, Resume, Stat, Until, Vcpu, VcpuParts,
    Whereabouts,
};
use satori_state::CpuState;

use crate::cpu::Cpu;
use crate::jit::{Arena, HOT, Host, Jit, Manner, Pool, reason};
use crate::world::World;

/// The interpreting engine, for the vCPUs of one partition.
#[derive(Clone, Debug, Default)]
pub struct Interpreter {
    world: Arc<World>,
}

impl Engine for Interpreter {
    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu> {
        let mut cpu = Cpu::new(parts);
        cpu.world = self.world.clone();
        Box::new(cpu)
    }
}

/// The translating engine, for the vCPUs of one partition: hot code becomes host code, the rest is
/// interpreted.
#[derive(Clone, Debug)]
pub struct Translator {
    world: Arc<World>,
    pool: Pool,
    manner: Manner,
}

impl Default for Translator {
    fn default() -> Self {
        let manner = Manner { hot: HOT, counting: false, watcher: None, host: Host::default() };
        Translator { world: Arc::default(), pool: Pool::default(), manner }
    }
}

impl Translator {
    /// Whether the host gives memory for code.
    pub fn works() -> std::io::Result<()> {
        Arena::new().map(drop)
    }

    /// One that translates a block before its first execution, so that translated code is what
    /// is tried out.
    pub fn eager() -> Self {
        Self::after(0)
    }

    /// One that translates a block after so many executions.
    pub fn after(executions: u32) -> Self {
        let usual = Translator::default();
        Translator { manner: Manner { hot: executions, ..usual.manner }, ..usual }
    }

    /// The same; if `counting`, translated code counts the indirect branches that met a known target.
    pub fn counting(self, counting: bool) -> Self {
        Translator { manner: Manner { counting, ..self.manner }, ..self }
    }

    /// The same, as on a host without these features.
    pub fn without(self, features: &[Feature]) -> Self {
        Translator { manner: Manner { host: Host::without(features), ..self.manner }, ..self }
    }

    /// The same; `watcher` is told of all code that is made.
    pub fn watched(self, watcher: Option<Arc<dyn CodeWatcher>>) -> Self {
        Translator { manner: Manner { watcher, ..self.manner }, ..self }
    }
}

impl Engine for Translator {
    fn name(&self) -> &'static str {
        "translator"
    }

    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu> {
        let mut cpu = Cpu::new(parts);
        cpu.world = self.world.clone();
        cpu.jit = Jit::new(&self.pool, self.manner.clone());
        Box::new(cpu)
    }
}

impl Vcpu for Cpu {
    fn run(&mut self, until: Until) -> Exit {
        Cpu::run(self, until)
    }

    fn resume(&mut self, answer: Resume) {
        Cpu::resume(self, answer);
    }

    fn inject(&mut self, event: Event) {
        self.injected = Some(event);
    }

    fn request_interrupt_window(&mut self, wanted: bool) {
        self.interrupt_window = wanted;
    }

    fn request_nmi_window(&mut self, wanted: bool) {
        self.nmi_window = wanted;
    }

    fn state(&self) -> &CpuState {
        &self.state
    }

    fn state_mut(&mut self) -> &mut CpuState {
        &mut self.state
    }

    fn controls_mut(&mut self) -> &mut Controls {
        &mut self.controls
    }

    fn flush_tlb(&mut self) {
        Cpu::flush_tlb(self, false);
    }

    fn flush_page(&mut self, linear: u64) {
        Cpu::flush_page(self, linear);
    }

    fn flush_non_global(&mut self) {
        Cpu::flush_tlb(self, true);
    }

    fn kick(&self) -> Arc<Kick> {
        self.kick.clone()
    }

    fn whereabouts(&self) -> Option<Arc<Whereabouts>> {
        Some(self.doing.clone())
    }

    fn set_debug(&mut self, plan: DebugPlan) {
        self.debug.set_plan(plan);
    }

    fn translate(&self, linear: u64) -> Option<u64> {
        self.look_up(linear)
    }

    fn retired(&self) -> u64 {
        self.retired
    }

    fn stats(&self) -> Vec<Stat> {
        let (tlb, blocks) = (&self.tlb.counts, &self.blocks.counts);
        let mut stats = vec![
            ("instructions retired", self.retired),
            ("blocks executed", blocks.executed),
            ("blocks decoded", blocks.decoded),
            ("instructions decoded", blocks.instructions),
            ("instructions stepped", blocks.steps),
            ("jump cache misses", blocks.jump_misses),
            ("code pages translated", blocks.fetch_fills),
            ("stale blocks found", blocks.stale),
            ("writes to code pages", blocks.code_writes),
            ("stale blocks freed", blocks.swept),
            ("block cache resets", blocks.resets),
            ("TLB fills", tlb.fills),
            ("TLB flushes, local", tlb.flushes),
            ("TLB flushes, full", tlb.full_flushes),
            ("TLB flushes, one page", tlb.page_flushes),
            ("CR3 loads", self.cr3_loads),
            ("page faults delivered", self.exceptions[14]),
            ("exceptions delivered", self.exceptions.iter().sum()),
        ];
        if let Some(jit) = &self.jit {
            let (counting, met) = (jit.counting(), self.context.met());
            let jit = &jit.counts;
            stats.extend([
                ("blocks translated", jit.translated),
                ("instructions translated", jit.instructions),
                ("of those, by calls", jit.generic),
                ("bytes of host code", jit.bytes),
                ("entries of translated code", jit.entered),
                ("left to look around", jit.left[reason::DISPATCH as usize]),
                ("left for one instruction", jit.left[reason::STEP as usize]),
                ("left by jumps not linked", jit.left[reason::LINK as usize]),
                ("left by branches to unknown targets", jit.left[reason::BRANCH as usize]),
                ("left by calls that went elsewhere", jit.left[reason::ARRIVE as usize]),
                ("left by calls that raised an exception", jit.left[reason::FAULT as usize]),
                ("left by calls that need the machine", jit.left[reason::EXIT as usize]),
                ("jumps linked", jit.linked),
                ("translations dropped", jit.dropped),
                ("code memory resets", jit.resets),
                ("pieces of code memory emptied", jit.pieces),
                ("pages whose translations moved", jit.moved),
                ("data misses of translated code", jit.misses),
                ("instructions called", jit.helped),
                ("bytes of code memory in use, at most", jit.most),
                ("branch targets not in their table", jit.unmet),
            ]);
            if counting {
                stats.push(("branch targets in their table", met));
            }
        }
        stats
    }
}
