//! The engine, as the seam has it.

use std::io;
use std::sync::Arc;

use satori_arm_engine::{Answer, Arm, Controls, Exit, NoEvent};
use satori_arm_state::CpuState;
use satori_memory::GuestMemory;
use satori_seam::{
    Capabilities, Capability, DebugPlan, Engine, Kick, Partition, PartitionParts, Space, Stat, Until, Vcpu,
    VcpuParts,
};

use crate::cpu::Cpu;
use crate::run::Execute;
use crate::shoot::Everyone;

/// The interpreter, for partitions of up to so many vCPUs.
#[derive(Clone, Copy, Debug)]
pub struct Interpreter {
    /// vCPUs that a partition will have.
    pub vcpus: u32,
}

/// Makes what executes a vCPU's instructions, if that is not the interpreter.
type Executor = dyn Fn(&Cpu) -> Option<Box<dyn Execute>> + Send + Sync;

struct Guest {
    parts: PartitionParts<Arm>,
    everyone: Arc<Everyone>,
    executor: Box<Executor>,
}

impl Engine<Arm> for Interpreter {
    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::of(&[Capability::ExactStop])
    }

    fn create_partition(&self, parts: PartitionParts<Arm>) -> io::Result<Box<dyn Partition<Arm>>> {
        Ok(partition(parts, self.vcpus, |_| None))
    }
}

impl Space for Guest {
    fn memory(&self) -> &GuestMemory {
        &self.parts.memory
    }
}

impl Partition<Arm> for Guest {
    fn create_vcpu(&self, parts: VcpuParts) -> Box<dyn Vcpu<Arm>> {
        let own = self.parts.clone();
        let cpu =
            Cpu::new(own.memory, own.time, own.offered, !own.parallel, parts.index, self.everyone.clone());
        let executor = (self.executor)(&cpu);
        Box::new(SoftVcpu(cpu, executor))
    }
}

/// A vCPU, and what executes its instructions if that is not the interpreter.
struct SoftVcpu(Cpu, Option<Box<dyn Execute>>);

/// The partition that `parts` describe, of up to so many vCPUs; `executor` makes what executes a vCPU's instructions.
pub fn partition(
    parts: PartitionParts<Arm>,
    vcpus: u32,
    executor: impl Fn(&Cpu) -> Option<Box<dyn Execute>> + Send + Sync + 'static,
) -> Box<dyn Partition<Arm>> {
    Box::new(Guest { parts, everyone: Everyone::new(vcpus as usize), executor: Box::new(executor) })
}

impl Vcpu<Arm> for SoftVcpu {
    fn run(&mut self, until: Until) -> Exit {
        self.0.run(until, self.1.as_deref_mut().map(|with| with as &mut dyn Execute))
    }

    fn resume(&mut self, answer: Answer) {
        self.0.answer(answer);
    }

    fn inject(&mut self, event: NoEvent) {
        match event {}
    }

    fn request_window(&mut self, window: NoEvent, _wanted: bool) {
        match window {}
    }

    fn state(&self) -> &CpuState {
        &self.0.s
    }

    fn state_mut(&mut self, (): ()) -> &mut CpuState {
        self.0.changed_outside();
        &mut self.0.s
    }

    fn controls_mut(&mut self) -> &mut Controls {
        &mut self.0.controls
    }

    fn flush_tlb(&mut self) {
        self.0.invalidate(crate::mmu::Tlbi::Everything);
    }

    fn kick(&self) -> Arc<Kick> {
        self.0.kick.clone()
    }

    fn set_debug(&mut self, plan: DebugPlan) {
        self.0.debug = plan;
    }

    fn translate(&self, linear: u64) -> Option<u64> {
        self.0.peek(linear)
    }

    fn retired(&self) -> u64 {
        self.0.retired
    }

    fn stats(&self) -> Vec<Stat> {
        let own = self.1.iter().flat_map(|with| with.stats());
        self.0.tlb.stats().into_iter().chain(self.0.exits.stats()).chain(own).collect()
    }
}
