//! Help for the tests of this crate and of those above it: a machine in 64-bit mode, a generator of numbers, and the
//! real processor to compare with.

#[cfg(test)]
pub mod native;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, Instruction};
use satori_cpuid::Offered;
use satori_defs::x86::{cr0, cr4, efer, pte, rflags};
use satori_engine::{Controls, Entropy, Exception, Exit, PartitionParts, TimeSource, Until, VcpuParts};
use satori_memory::{Gpa, GuestMemory, Region};
use satori_state::{Segment, seg};
use satori_vmx::Vmcs;

use crate::cpu::{Cpu, Exec, Handler, Stop};
pub use crate::execute::Interpreting as Machine;
use crate::execute::run;

/// First address of RAM that tests may use as they like; host programs have nothing there.
pub const SCRATCH: u64 = 0x2000_0000;
/// Bytes of it.
pub const SCRATCH_LEN: u64 = 0x20_0000;
/// Bytes of RAM from address 0. The page tables are in the first 32 KiB.
pub const LOW_LEN: u64 = 0x40_0000;

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
/// The page directory, which maps two megabytes an entry.
pub const PD: u64 = 0x3000;

impl Deref for Machine {
    type Target = Cpu;

    fn deref(&self) -> &Cpu {
        &self.cpu
    }
}

impl DerefMut for Machine {
    fn deref_mut(&mut self) -> &mut Cpu {
        &mut self.cpu
    }
}

/// What tests of the translator look at.
impl Cpu {
    /// The current VMCS's fields.
    pub fn vmcs(&self) -> &Vmcs {
        &self.vmx.vmcs
    }

    /// The same, for change.
    pub fn vmcs_mut(&mut self) -> &mut Vmcs {
        &mut self.vmx.vmcs
    }

    /// Where the current VMCS is; all ones if there is none.
    pub fn current_vmcs(&self) -> u64 {
        self.vmx.current
    }

    /// Whether it is in VMX operation, and whether a guest executes.
    pub fn in_vmx(&self) -> (bool, bool) {
        (self.vmx.on, self.vmx.guest)
    }

    /// VM entries, and VM exits for `reason`.
    pub fn nested_counts(&self, reason: usize) -> (u64, u64) {
        (self.vmx.account.entries, self.vmx.account.exits[reason])
    }

    /// Instructions executed one at a time.
    pub fn steps(&self) -> u64 {
        self.decoded.steps
    }

    /// The controls in force, for change.
    pub fn controls_mut(&mut self) -> &mut Controls {
        &mut self.controls
    }
}

impl Machine {
    /// Executes until something needs the machine.
    pub fn run(&mut self, until: Until) -> Exit {
        run(self, until)
    }
}

/// Time that stands still.
struct Frozen;

impl TimeSource for Frozen {
    fn counter(&self) -> u64 {
        0
    }
    fn retired(&self, _instructions: u64) {}
}

/// RAM at 0 and at [`SCRATCH`], without exits at its first touch.
pub fn memory() -> GuestMemory {
    let regions = [Region { start: Gpa(0), len: LOW_LEN }, Region { start: Gpa(SCRATCH), len: SCRATCH_LEN }];
    let memory = GuestMemory::new(&regions).expect("a few MiB can be reserved");
    for region in regions {
        for piece in (region.start.0..region.start.0 + region.len).step_by(0x20_0000) {
            memory.page(Gpa(piece)).expect("it was just reserved").state.touch();
        }
    }
    memory
}

/// A processor in its reset state on [`memory`], with everything offered.
pub fn machine() -> Machine {
    machine_with(Offered::EVERYTHING)
}

/// A processor in its reset state on [`memory`], of which the guest is offered `offered`.
pub fn machine_with(offered: Offered) -> Machine {
    Machine::new(Cpu::new(
        PartitionParts { memory: memory(), time: Arc::new(Frozen), parallel: false, offered: offered.into() },
        VcpuParts { index: 0, entropy: Box::new(Numbers(1)) },
    ))
}

/// A processor at privilege level 0 of 64-bit mode, RIP at 0x10000, with flat segments and the
/// first 4 GiB mapped to themselves, writable and open to privilege level 3.
pub fn machine64() -> Machine {
    machine64_with(Offered::EVERYTHING)
}

/// As [`machine64`], with `offered`.
pub fn machine64_with(offered: Offered) -> Machine {
    let mut cpu = machine_with(offered);
    let entry = |at: u64, value: u64| {
        cpu.memory.write(Gpa(at), &value.to_le_bytes()).expect("tables are in RAM");
    };
    let open = pte::P | pte::W | pte::U;
    entry(PML4, PDPT | open);
    for gib in 0..4 {
        entry(PDPT + 8 * gib, (PD + 0x1000 * gib) | open);
        for piece in 0..512 {
            entry(PD + 0x1000 * gib + 8 * piece, gib << 30 | piece << 21 | open | pte::PS);
        }
    }
    let state = &mut cpu.state;
    state.cr0 = cr0::PE | cr0::PG | cr0::WP | cr0::NE | cr0::ET | cr0::MP;
    state.cr3 = PML4;
    state.cr4 = cr4::PAE | cr4::PGE | cr4::OSFXSR | cr4::OSXMMEXCPT;
    state.efer = efer::LME | efer::LMA | efer::NXE | efer::SCE;
    state.seg = [Segment::flat(0x10, 0xc093); 6];
    state.seg[seg::CS] = Segment::flat(8, 0xa09b);
    state.rip = 0x1_0000;
    state.rflags = rflags::FIXED;
    state.gpr = [0; 18];
    cpu.mode_changed();
    cpu
}

/// A processor at privilege level 0 of 32-bit protected mode without paging.
pub fn machine32() -> Machine {
    let mut cpu = machine();
    cpu.state.cr0 = cr0::PE | cr0::ET;
    cpu.state.seg = [Segment::flat(0x10, 0xc093); 6];
    cpu.state.seg[seg::CS] = Segment::flat(8, 0xc09b);
    cpu.state.rip = 0x1_0000;
    cpu.state.gpr = [0; 18];
    cpu.mode_changed();
    cpu
}

/// Decodes one instruction, as the block decoder does: as if at address 0.
pub fn decode(cpu: &Cpu, bytes: &[u8]) -> Instruction {
    Decoder::with_ip(cpu.bits(), bytes, 0, DecoderOptions::NONE).decode()
}

/// Executes one instruction at RIP by `handler`, all repetitions of it, and moves RIP.
pub fn execute(cpu: &mut Cpu, insn: &Instruction, handler: Handler) -> Exec<()> {
    loop {
        cpu.next_rip = cpu.next_ip(insn);
        cpu.begin();
        handler(cpu, insn)?;
        if cpu.next_rip != cpu.state.rip {
            cpu.state.rip = cpu.next_rip;
            return Ok(());
        }
    }
}

/// The exception of an instruction that must have failed with one.
pub fn fault_of(cpu: &mut Cpu, outcome: Exec<()>) -> Exception {
    assert_eq!(outcome, Err(Stop::Fault));
    cpu.pending.fault.take().expect("a fault carries its exception")
}

/// A generator of numbers (SplitMix64): the same seed gives the same numbers.
pub struct Numbers(pub u64);

impl Entropy for Numbers {
    fn next(&mut self) -> Option<u64> {
        Some(self.any())
    }
}

impl Numbers {
    /// Any value.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A value below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.any() % limit
    }
}
