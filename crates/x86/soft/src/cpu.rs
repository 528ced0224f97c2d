//! The virtual processor as the interpreter holds it: the register file, lazy flags, and what
//! is derived from them.

use std::ptr::NonNull;
use std::sync::Arc;

use iced_x86::Instruction;
use satori_defs::x86::{cr0, rflags};
use satori_engine::{
    Controls, Entropy, Event, Exception, Exit, Kick, PartitionParts, Resume, TimeSource, VcpuParts,
    Whereabouts, X86,
};
use satori_memory::GuestMemory;
use satori_state::{CpuState, seg};

use crate::code_mode;
use crate::debug::Debug;
use crate::flags::Flags;
use crate::isa::Isa;
use crate::mmu::{Fetches, Mode, Space, Tlb};
use crate::vmx::Vmx;
use crate::world::World;

/// A pointer to what is executed.
#[derive(Clone, Copy)]
struct Noted(NonNull<dyn Running>);

// SAFETY: it is noted and forgotten within a run, which is one thread's (`Cpu::enter_block`, `Cpu::leave_block`).
unsafe impl Send for Noted {}

/// Why an instruction did not complete; the details are in the [`Cpu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It raised [`Cpu::fault`].
    Fault,
    /// It needs the machine: [`Cpu::wanted`].
    Exit,
    /// It touches watched data, and has to be executed by itself.
    Alone,
}

/// The outcome of (part of) an instruction.
pub type Exec<T> = Result<T, Stop>;

/// The generic implementation of an instruction.
pub type Handler = fn(&mut Cpu, &Instruction) -> Exec<()>;

/// Decoded code that is being executed. It is told when its own vCPU writes to a page that holds decoded code: asking
/// behind each operation whether that happened would cost each of them.
pub trait Running {
    /// What is left of it must not be executed if it is of a page that was written.
    fn code_written(&self);
}

/// An instruction that asked the machine, as it was decoded: with the answer it is executed again.
#[derive(Clone, Copy)]
pub struct Asking {
    /// Its address.
    pub rip: u64,
    /// The mode that it was decoded for ([`Cpu::code_mode`]).
    pub code_mode: u64,
    /// Its generic implementation.
    pub handler: Handler,
    /// The instruction.
    pub insn: Instruction,
}

/// One virtual processor.
pub struct Cpu {
    /// The architectural registers. While executing, the six status flags are in
    /// [`Cpu::flags`] instead, and RIP is that of the block or of the generic instruction.
    pub state: CpuState,
    /// The status flags.
    pub flags: Flags,
    /// Whose rights data accesses have now.
    pub mode: Mode,
    /// The alignment of data is checked (CR0.AM and RFLAGS.AC at privilege level 3): then no
    /// access is answered by the TLB alone.
    pub aligned: bool,
    /// 64-bit code.
    pub code64: bool,
    /// What beside its address tells code apart ([`code_mode`]). It follows from the registers; translated code, which
    /// changes only privilege and RFLAGS.AC, keeps it up to date by itself.
    pub code_mode: u64,
    /// Segment bases by segment register, for 64-bit code: 0 but for FS and GS; the last
    /// slots are 0 too.
    pub segment_base: [u64; 8],
    /// Data translations.
    pub tlb: Tlb,
    /// Translations of addresses that code was fetched from.
    pub fetches: Fetches,
    /// The decoded code that is being executed, if any. It lives as long as it is here.
    running: Option<Noted>,
    /// Instructions of that which were retired and are not in [`Cpu::retired`]. True while an instruction is executed by
    /// its generic implementation, and once an operation stopped; operations that go on say nothing.
    pub(crate) before: u64,
    /// Writes by this vCPU that hit decoded code.
    pub code_writes: u64,
    /// Instructions executed one at a time.
    pub steps: u64,
    /// [`GuestMemory::changes`] when translations were last dropped for it.
    map_changes: u64,
    /// Guest RAM.
    pub memory: GuestMemory,
    /// The modelled processor's controls.
    pub controls: Controls,
    /// The instruction set, and what else of the processor the guest is offered.
    pub isa: Isa,
    /// Other vCPUs run at the same time.
    pub parallel: bool,
    /// The current run ends after so many instructions, exactly.
    pub counted: bool,
    /// The exception of the last [`Stop::Fault`].
    pub fault: Option<Exception>,
    /// The exit of the last [`Stop::Exit`].
    pub wanted: Exit,
    /// The instruction that wants it, if translated code called it.
    pub asking: Option<Asking>,
    /// Answers to the exits of the instruction at RIP, in order.
    pub(crate) answers: Vec<Resume>,
    answer_next: usize,
    /// Where the current instruction goes on.
    pub next_rip: u64,
    /// Instructions retired, or ended by a fault that was delivered, before the current block.
    pub retired: u64,
    /// Of those, how many [`TimeSource::retired`] was told.
    pub(crate) told: u64,
    /// Event to deliver before the next instruction.
    pub(crate) injected: Option<Event>,
    /// Look around before the next block.
    pub attention: bool,
    /// Somebody waits for a window: see [`Cpu::choose_windows`]. Translated code looks at this.
    pub interrupt_window: bool,
    /// The machine asked for [`Exit::InterruptWindow`].
    pub(crate) machine_window: bool,
    /// The lower half of the address behind the last STI that translated code executed, or 0. Such an STI keeps no interrupt
    /// shadow; a run that ends at that address gives the guest one ([`Cpu::keep_shadow`]).
    pub behind_sti: u32,
    /// The machine asked for [`Exit::NmiWindow`].
    pub nmi_window: bool,
    /// The clock that it reads, and tells of what it retired.
    pub time: Arc<dyn TimeSource>,
    /// The partition's vCPUs, for instructions during which no other may execute.
    pub world: Arc<World>,
    /// By which others make it look around.
    pub kick: Arc<Kick>,
    /// Where it says what it is doing.
    pub doing: Arc<Whereabouts>,
    /// An event is being delivered: nothing can be asked of the machine.
    pub(crate) delivering: bool,
    /// VMX operation.
    pub vmx: Box<Vmx>,
    /// Breakpoints.
    pub debug: Debug,
    /// PAUSEs in a row.
    pub pauses: u32,
    /// Instructions retired at the last PAUSE.
    pub last_pause: u64,
    /// The numbers behind RDRAND and RDSEED.
    pub entropy: Box<dyn Entropy>,
    /// Task switches whose exit has not been raised.
    pub(crate) task_switches: u32,
    /// Loads of CR3.
    pub cr3_loads: u64,
    /// The current address space.
    pub space: Space,
    /// What decided rights in it ([`Cpu::manner`]) since it was entered or last lost all.
    pub(crate) space_manner: u64,
    /// Exceptions delivered, by vector.
    pub exceptions: [u64; 32],
}

impl Cpu {
    /// A processor in its reset state.
    pub fn new(partition: PartitionParts<X86>, parts: VcpuParts) -> Self {
        let PartitionParts { memory, time, parallel, offered } = partition;
        let VcpuParts { index: _, entropy } = parts;
        let mut cpu = Cpu {
            state: CpuState::default(),
            flags: Flags::default(),
            mode: Mode::Supervisor,
            aligned: false,
            code64: false,
            code_mode: 0,
            segment_base: [0; 8],
            tlb: Tlb::new(),
            fetches: Fetches::new(),
            running: None,
            before: 0,
            code_writes: 0,
            steps: 0,
            map_changes: memory.changes(),
            memory,
            controls: Controls::default(),
            isa: Isa::new(offered),
            parallel,
            counted: false,
            fault: None,
            wanted: Exit::Budget,
            asking: None,
            answers: Vec::new(),
            answer_next: 0,
            next_rip: 0,
            retired: 0,
            told: 0,
            injected: None,
            attention: false,
            interrupt_window: false,
            machine_window: false,
            behind_sti: 0,
            nmi_window: false,
            time,
            world: Arc::default(),
            kick: Arc::default(),
            doing: Arc::default(),
            delivering: false,
            vmx: Box::default(),
            debug: Debug::new(),
            pauses: 0,
            last_pause: 0,
            entropy,
            task_switches: 0,
            cr3_loads: 0,
            space: Space::default(),
            space_manner: 0,
            exceptions: [0; 32],
        };
        cpu.mode_changed();
        cpu
    }

    /// Records an exception; the instruction ends with the returned value as its error.
    #[cold]
    pub fn raise(&mut self, exception: Exception) -> Stop {
        self.fault = Some(exception);
        Stop::Fault
    }

    /// Asks the machine. The first time the instruction stops here; executed again, it finds
    /// the answer. A fault as the answer is raised at once.
    pub fn ask(&mut self, exit: Exit) -> Exec<Resume> {
        if self.delivering {
            return Ok(Resume::Value(u64::MAX));
        }
        match self.answers.get(self.answer_next) {
            Some(answer) => {
                self.answer_next += 1;
                match *answer {
                    Resume::Fault(exception) => Err(self.raise(exception)),
                    answer => Ok(answer),
                }
            }
            None => Err(self.exit(exit)),
        }
    }

    /// Leaves for the machine with the state as it is.
    #[cold]
    pub fn exit(&mut self, exit: Exit) -> Stop {
        self.wanted = exit;
        self.asking = None;
        Stop::Exit
    }

    /// Starts an instruction: answers are replayed from the first.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.answer_next = 0;
    }

    /// Ends `insn` early: RIP moves past it, for exits that follow completion.
    pub fn complete(&mut self, insn: &Instruction) {
        self.state.rip = self.next_ip(insn);
        self.before += 1;
    }

    /// For an instruction that completes and faults at its target: RIP is `target` from here on,
    /// and tells no more how much of the block was executed.
    pub(crate) fn arrive_and_fault(&mut self, target: u64) {
        self.settle_block();
        self.state.rip = target;
    }

    /// The current privilege level.
    #[inline(always)]
    pub fn cpl(&self) -> u8 {
        self.state.cpl()
    }

    /// Code size in bits: 16, 32 or 64. Real-address mode keeps the D bit of the segment that
    /// protected mode loaded (SDM 10.9.2); virtual-8086 mode always has it clear.
    pub fn bits(&self) -> u32 {
        if self.code64 {
            64
        } else if self.state.seg[seg::CS].big() {
            32
        } else {
            16
        }
    }

    /// RFLAGS, complete.
    pub fn rflags(&self) -> u64 {
        self.state.rflags & !rflags::STATUS | self.flags.bits()
    }

    /// Sets all of RFLAGS.
    pub fn set_rflags(&mut self, value: u64) {
        self.state.rflags = value & !rflags::STATUS | rflags::FIXED;
        self.flags.set_bits(value);
        self.mode_changed();
    }

    /// Derives anew what is kept beside the register file: rights, code size, segment bases.
    pub fn mode_changed(&mut self) {
        self.code64 = self.state.code64();
        self.mode = if self.state.cpl() == 3 {
            Mode::User
        } else if self.state.rflags & rflags::AC != 0 {
            Mode::SupervisorAc
        } else {
            Mode::Supervisor
        };
        self.code_mode = code_mode::of_vectors(&self.state)
            | if self.mode == Mode::User { code_mode::USER } else { 0 }
            | if self.code64 { code_mode::BITS_64 } else { code_mode::of_segments(&self.state) }
            | if self.bits() == 16 { code_mode::BITS_16 } else { 0 }
            | if self.mode == Mode::SupervisorAc { code_mode::AC } else { 0 }
            | if matches!(self.state.cpl(), 1 | 2) { code_mode::LOW } else { 0 };
        self.aligned =
            self.mode == Mode::User && self.state.rflags & rflags::AC != 0 && self.state.cr0 & cr0::AM != 0;
        self.tlb.hide(self.aligned);
        self.tlb.set_pkru(self.state.pkru);
        let (fs, gs) = (self.state.seg[seg::FS].base, self.state.seg[seg::GS].base);
        self.segment_base = [0, 0, 0, 0, fs, gs, 0, 0];
        self.attention = true;
    }

    /// Drops cached translations, also those of address spaces that are not current.
    pub fn flush_tlb(&mut self, keep_global: bool) {
        (self.space, self.space_manner) = (self.named_space(), self.manner());
        self.tlb.flush(keep_global);
        self.fetches.flush(keep_global);
    }

    /// Drops translations if RAM came, moved or went. Decoded code of such RAM is void by itself.
    pub(crate) fn notice_map(&mut self) {
        let changes = self.memory.changes();
        if self.map_changes != changes {
            self.map_changes = changes;
            self.flush_tlb(false);
        }
    }

    /// Drops the translation of one page of the current address space, or a global one.
    pub fn flush_page(&mut self, linear: u64) {
        self.tlb.counts.page_flushes += 1;
        self.tlb.flush_page(linear);
        self.fetches.flush_page(linear);
    }

    /// Decoded code was overwritten by this vCPU.
    #[cold]
    #[inline(never)]
    pub fn code_written(&mut self) {
        self.code_writes += 1;
        if let Some(running) = self.running {
            // SAFETY: whoever notes what runs keeps it until it is noted no more (`Cpu::enter_block`).
            unsafe { running.0.as_ref() }.code_written();
        }
    }

    /// Notes that `running` is executed from here on.
    ///
    /// # Safety
    /// It must live until [`Cpu::leave_block`], which every look-up and every instruction by itself comes behind.
    #[inline(always)]
    pub(crate) unsafe fn enter_block(&mut self, running: NonNull<dyn Running>) {
        self.running = Some(Noted(running));
    }

    /// Notes that no decoded code is executed.
    #[inline(always)]
    pub fn leave_block(&mut self) {
        self.running = None;
        self.before = 0;
    }

    /// Counts what was retired of the decoded code that is executed, which ends here.
    #[inline(always)]
    pub(crate) fn settle_block(&mut self) {
        self.retired += self.before;
        self.leave_block();
    }

    /// Tells the time source what was retired since it was told last.
    pub(crate) fn tell_retired(&mut self, retired: u64) {
        self.time.retired(retired - self.told);
        self.told = retired;
    }

    /// Instructions retired before the one that is executed.
    pub(crate) fn retired_now(&self) -> u64 {
        self.retired + self.before
    }

    /// The guest's time-stamp counter.
    pub fn tsc(&mut self) -> u64 {
        let retired = self.retired_now();
        self.tell_retired(retired);
        let tsc = self.time.guest_tsc().wrapping_add(self.state.tsc_offset);
        if self.vmx.guest { self.nested_tsc(tsc) } else { tsc }
    }

    /// Sets the task priority; the machine looks if it fell below its threshold.
    pub fn set_tpr(&mut self, tpr: u8) {
        self.state.tpr = tpr;
        if tpr >> 4 < self.controls.tpr_threshold {
            self.attention = true;
        }
    }
}
