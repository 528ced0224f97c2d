//! The software CPU at the seam: partitions, a vCPU whoever executes it, and the interpreting engine.

use std::io;
use std::sync::Arc;

use satori_engine::{
    AtOnce, Capabilities, Capability, Controls, DebugPlan, Engine, Event, Exit, Fate, Kick, NestedView,
    Partition, PartitionParts, Parts, Resume, Signal, Space, Stat, Stretch, Until, Vcpu, VcpuParts,
    Whereabouts, Window, X86,
};
use satori_memory::GuestMemory;
use satori_save::Value;
use satori_state::CpuState;

use crate::cpu::Cpu;
use crate::execute::{Executor, Interpreting, run};
use crate::saved;
use crate::world::World;

/// What the software CPU can do of what not every engine can.
pub const CAPABILITIES: Capabilities =
    Capabilities::of(&[Capability::ExactStop, Capability::BreakOnData, Capability::GivesPriority]);

/// What a partition's vCPUs have in common, and how an engine makes one of a processor.
struct SoftPartition<F> {
    parts: PartitionParts<X86>,
    world: Arc<World>,
    make: F,
}

impl<F: Send + Sync> Space for SoftPartition<F> {
    fn memory(&self) -> &GuestMemory {
        &self.parts.memory
    }
}

impl<F: Fn(Cpu) -> Box<dyn Vcpu<X86>> + Send + Sync> Partition<X86> for SoftPartition<F> {
    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu<X86>> {
        let mut cpu = Cpu::new(self.parts.clone(), parts);
        cpu.join(&self.world);
        (self.make)(cpu)
    }
}

/// A partition whose vCPUs `make` makes of their processors.
pub fn partition(
    parts: PartitionParts<X86>,
    make: impl Fn(Cpu) -> Box<dyn Vcpu<X86>> + Send + Sync + 'static,
) -> Box<dyn Partition<X86>> {
    Box::new(SoftPartition { parts, world: Arc::default(), make })
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
        Ok(partition(parts, |cpu| Box::new(SoftVcpu(Interpreting::new(cpu)))))
    }
}

/// A vCPU, whoever executes it.
pub struct SoftVcpu<E>(pub E);

impl<E: Executor> Vcpu<X86> for SoftVcpu<E> {
    fn run(&mut self, until: Until) -> Exit {
        run(&mut self.0, until)
    }

    fn resume(&mut self, answer: Resume) {
        self.cpu().resume(answer);
    }

    fn answer_at_once(&mut self, by: Arc<dyn AtOnce<X86>>) {
        self.cpu().set_at_once(by);
    }

    fn inject(&mut self, event: Event) {
        self.cpu().inject(event);
    }

    fn signal(&mut self, signal: Signal) -> Fate {
        self.cpu().signal(signal)
    }

    fn abandon_caches(&mut self) {
        self.0.abandon();
    }

    fn request_window(&mut self, window: Window, wanted: bool) {
        self.cpu().request_window(window, wanted);
    }

    fn can_take(&self, window: Window) -> bool {
        self.0.cpu().can_take(window)
    }

    fn state(&self) -> &CpuState {
        &self.0.cpu().state
    }

    fn state_mut(&mut self, _parts: Parts) -> &mut CpuState {
        &mut self.cpu().state
    }

    fn controls_mut(&mut self) -> &mut Controls {
        &mut self.cpu().controls
    }

    fn flush_tlb(&mut self) {
        self.cpu().flush_tlb(false);
    }

    fn flush_page(&mut self, linear: u64) {
        self.cpu().flush_page(linear);
        // Whoever asks from outside means each address space.
        self.cpu().forget_spaces(|_| true, true);
    }

    fn flush_non_global(&mut self) {
        self.cpu().flush_tlb(true);
    }

    fn kick(&self) -> Arc<Kick> {
        self.0.cpu().kick().clone()
    }

    fn whereabouts(&self) -> Option<Arc<Whereabouts>> {
        Some(self.0.cpu().doing().clone())
    }

    fn set_debug(&mut self, plan: DebugPlan) {
        self.cpu().debug.set_plan(plan);
    }

    fn translate(&self, linear: u64) -> Option<u64> {
        self.0.cpu().look_up(linear)
    }

    fn nested(&self) -> Option<NestedView<CpuState>> {
        self.0.cpu().nested_view()
    }

    fn nested_memory(&self) -> Vec<Stretch> {
        self.0.cpu().nested_memory()
    }

    fn translate_other(&self, linear: u64) -> Option<u64> {
        self.0.cpu().look_up_other(linear)
    }

    fn retired(&self) -> u64 {
        self.0.cpu().count.retired
    }

    fn wakes_at(&self) -> Option<u64> {
        self.0.cpu().timer_expires()
    }

    fn save(&self) -> Result<Value, satori_save::Error> {
        saved::save(self.0.cpu())
    }

    fn restore(&mut self, value: &Value) -> Result<(), satori_save::Error> {
        saved::restore(self.cpu(), value)
    }

    fn stats(&self) -> Vec<Stat> {
        let cpu = self.0.cpu();
        let (tlb, blocks) = (&cpu.mmu.tlb.counts, &self.0.blocks().counts);
        let mut stats = vec![
            ("instructions retired", cpu.count.retired),
            ("blocks executed", blocks.executed),
            ("blocks decoded", blocks.decoded),
            ("instructions decoded", blocks.instructions),
            ("instructions stepped", cpu.decoded.steps),
            ("jump cache misses", blocks.jump_misses),
            ("code pages translated", cpu.mmu.fetches.fills),
            ("stale blocks found", blocks.stale),
            ("blocks in written pages found unchanged", blocks.same),
            ("writes to code pages", cpu.decoded.writes()),
            ("blocks freed", blocks.swept),
            ("times that cold blocks were freed", blocks.aged),
            ("block cache resets", blocks.resets),
            ("TLB fills", tlb.fills),
            ("TLB flushes, local", tlb.flushes),
            ("TLB flushes, full", tlb.full_flushes),
            ("TLB flushes, one page", tlb.page_flushes),
            ("translations kept of address spaces that returned", tlb.returned),
            ("CR3 loads", cpu.mmu.cr3_loads()),
            ("page faults delivered", cpu.count.exceptions()[14]),
            ("exceptions delivered", cpu.count.exceptions().iter().sum()),
        ];
        stats.extend(cpu.vmx.account.stats());
        stats.extend(cpu.svm.account.stats());
        self.0.stats(&mut stats);
        stats
    }
}

impl<E: Executor> SoftVcpu<E> {
    fn cpu(&mut self) -> &mut Cpu {
        self.0.parts().0
    }
}
