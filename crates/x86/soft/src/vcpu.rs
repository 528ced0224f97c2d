//! The software CPU at the seam: its engines, their partitions, and a vCPU.

use std::io;
use std::sync::Arc;

use satori_cpuid::Feature;
use satori_engine::{
    Capabilities, Capability, CodeWatcher, Controls, DebugPlan, Engine, Event, Exit, Kick, Partition,
    PartitionParts, Parts, Resume, Stat, Until, Vcpu, VcpuParts, Whereabouts, Window, X86,
};
use satori_memory::GuestMemory;
use satori_state::CpuState;

use crate::cpu::Cpu;
use crate::jit::{Arena, HOT, Host, Jit, Manner, Pool, reason};
use crate::world::World;

/// What the software CPU can do of what not every engine can.
const CAPABILITIES: Capabilities =
    Capabilities::of(&[Capability::ExactStop, Capability::BreakOnData, Capability::GivesPriority]);

/// What the vCPUs of a partition have in common.
struct SoftPartition {
    parts: PartitionParts<X86>,
    world: Arc<World>,
    /// The code memory and the manner of a translator.
    translator: Option<(Pool, Manner)>,
}

impl Partition<X86> for SoftPartition {
    fn memory(&self) -> &GuestMemory {
        &self.parts.memory
    }

    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu<X86>> {
        let mut cpu = Cpu::new(self.parts.clone(), parts);
        cpu.world = self.world.clone();
        if let Some((pool, manner)) = &self.translator {
            cpu.jit = Jit::new(pool, manner.clone());
        }
        Box::new(cpu)
    }
}

/// The interpreting engine.
#[derive(Clone, Debug, Default)]
pub struct Interpreter;

impl Engine<X86> for Interpreter {
    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn create_partition(&self, parts: PartitionParts<X86>) -> io::Result<Box<dyn Partition<X86>>> {
        Ok(Box::new(SoftPartition { parts, world: Arc::default(), translator: None }))
    }
}

/// The translating engine: hot code becomes host code, the rest is interpreted.
#[derive(Clone, Debug)]
pub struct Translator {
    pool: Pool,
    manner: Manner,
}

impl Default for Translator {
    fn default() -> Self {
        let manner = Manner { hot: HOT, counting: false, watcher: None, host: Host::default() };
        Translator { pool: Pool::default(), manner }
    }
}

impl Translator {
    /// Whether the host gives memory for code.
    pub fn works() -> io::Result<()> {
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

impl Engine<X86> for Translator {
    fn name(&self) -> &'static str {
        "translator"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn create_partition(&self, parts: PartitionParts<X86>) -> io::Result<Box<dyn Partition<X86>>> {
        let translator = Some((self.pool.clone(), self.manner.clone()));
        Ok(Box::new(SoftPartition { parts, world: Arc::default(), translator }))
    }
}

impl Vcpu<X86> for Cpu {
    fn run(&mut self, until: Until) -> Exit {
        Cpu::run(self, until)
    }

    fn resume(&mut self, answer: Resume) {
        Cpu::resume(self, answer);
    }

    fn inject(&mut self, event: Event) {
        self.injected = Some(event);
    }

    fn request_window(&mut self, window: Window, wanted: bool) {
        match window {
            Window::Interrupt => {
                self.machine_window = wanted;
                self.choose_windows();
            }
            Window::Nmi => self.nmi_window = wanted,
        }
    }

    fn can_take(&self, window: Window) -> bool {
        let state = &self.state;
        let open = match window {
            Window::Interrupt => self.interrupts_open(),
            Window::Nmi => self.nmis_open(),
        };
        open && !state.interrupt_shadow && state.pending_debug == 0
    }

    fn state(&self) -> &CpuState {
        &self.state
    }

    fn state_mut(&mut self, _parts: Parts) -> &mut CpuState {
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
        // Whoever asks from outside means each address space.
        self.forget_spaces(|_| true, true);
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

    fn wakes_at(&self) -> Option<u64> {
        self.timer_expires()
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
            ("translations kept of address spaces that returned", tlb.returned),
            ("CR3 loads", self.cr3_loads),
            ("page faults delivered", self.exceptions[14]),
            ("exceptions delivered", self.exceptions.iter().sum()),
        ];
        stats.extend(self.vmx.account.stats());
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
