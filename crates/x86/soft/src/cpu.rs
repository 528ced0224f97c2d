//! The virtual processor as the interpreter holds it: the register file, lazy flags, and parts that own the rest.

mod around;
mod count;
mod decoded;
mod derived;
mod outside;
mod pending;
mod resume;
mod windows;

use std::ptr::NonNull;
use std::sync::Arc;

use iced_x86::Instruction;
use satori_defs::x86::rflags;
use satori_engine::{Controls, Exception, Exit, Kick, PartitionParts, Resume, VcpuParts, X86};
use satori_memory::GuestMemory;
use satori_state::CpuState;

use around::Around;
pub(crate) use count::Count;
pub(crate) use decoded::{Decoded, Running};
pub use derived::Derived;
pub use pending::Asking;
pub(crate) use pending::Pending;
use resume::Resumption;
pub use windows::Windows;

use crate::debug::Debug;
use crate::flags::Flags;
use crate::isa::Isa;
use crate::isa::recent::Recent;
use crate::mmu::Mmu;
use crate::svm::Svm;
use crate::vmx::Vmx;
use crate::world::World;

/// Why an instruction did not complete; the details are in the [`Cpu`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It raised [`Pending::fault`].
    Fault,
    /// It needs the machine: [`Pending::wanted`].
    Exit,
    /// It touches watched data, and has to be executed by itself.
    Alone,
}

/// The outcome of (part of) an instruction.
pub type Exec<T> = Result<T, Stop>;

/// The generic implementation of an instruction.
pub type Handler = fn(&mut Cpu, &Instruction) -> Exec<()>;

/// One virtual processor: parts that own what is theirs, and this that executes by them.
///
/// Four parts are public, since code that the translator makes reads and writes them by their offsets: the register file, what
/// follows from it, the TLB and the windows. Of all others it knows what the methods in `outside` say.
pub struct Cpu {
    /// The architectural registers. While executing, the six status flags are in
    /// [`Cpu::flags`] instead, and RIP is that of the block or of the generic instruction.
    pub state: CpuState,
    /// The status flags.
    pub(crate) flags: Flags,
    /// What follows from the registers.
    pub derived: Derived,
    /// Translations of addresses, and the address space that they are of.
    pub mmu: Mmu,
    /// The decoded code that is executed.
    pub(crate) decoded: Decoded,
    /// How the instruction at RIP stopped, and what it was answered.
    pub(crate) pending: Pending,
    /// Windows that are waited for.
    pub windows: Windows,
    /// What was executed, in numbers.
    pub(crate) count: Count,
    /// VMX operation.
    pub(crate) vmx: Box<Vmx>,
    /// SVM.
    pub(crate) svm: Box<Svm>,
    /// Breakpoints.
    pub(crate) debug: Debug,
    /// RF while it masks nothing.
    resume: Resumption,
    /// Where the current instruction goes on.
    pub(crate) next_rip: u64,
    /// The modelled processor's controls.
    pub(crate) controls: Controls,
    /// The instruction set, and what else of the processor the guest is offered.
    pub(crate) isa: Isa,
    /// Of that, what was executed by itself lately.
    pub(crate) recent: Recent,
    /// IA32_SPEC_CTRL has held a bit, so that reads and writes pass through.
    pub(crate) speculation_passed: bool,
    /// Guest RAM.
    pub(crate) memory: GuestMemory,
    /// The clock, the other vCPUs, who watches, random numbers.
    around: Around,
}

impl Cpu {
    /// A processor in its reset state.
    pub fn new(partition: PartitionParts<X86>, parts: VcpuParts) -> Self {
        let PartitionParts { memory, time, parallel, offered } = partition;
        let VcpuParts { index: _, entropy } = parts;
        let state = CpuState::default();
        let kick = Arc::<Kick>::default();
        let mut cpu = Cpu {
            derived: Derived::of(&state, false),
            state,
            flags: Flags::default(),
            mmu: Mmu::new(memory.changes()),
            decoded: Decoded::default(),
            pending: Pending::default(),
            windows: Windows::default(),
            count: Count::default(),
            vmx: Box::default(),
            svm: Box::default(),
            debug: Debug::new(),
            resume: Resumption::default(),
            next_rip: 0,
            controls: Controls::default(),
            isa: Isa::new(offered.offered),
            recent: Recent::new(),
            speculation_passed: false,
            memory,
            around: Around {
                time,
                seat: Arc::<World>::default().join(kick.clone()),
                parallel,
                kick,
                doing: Arc::default(),
                entropy,
                at_once: None,
            },
        };
        cpu.mode_changed();
        cpu
    }

    /// Records an exception; the instruction ends with the returned value as its error.
    #[cold]
    pub fn raise(&mut self, exception: Exception) -> Stop {
        self.pending.raise(exception)
    }

    /// Asks the machine ([`Pending::ask`]).
    pub fn ask(&mut self, exit: Exit) -> Exec<Resume> {
        self.pending.ask(exit)
    }

    /// Leaves for the machine with the state as it is.
    #[cold]
    pub fn exit(&mut self, exit: Exit) -> Stop {
        self.pending.exit(exit)
    }

    /// Starts an instruction: answers are replayed from the first.
    #[inline(always)]
    pub fn begin(&mut self) {
        self.pending.begin();
    }

    /// Ends `insn` early: RIP moves past it, for exits that follow completion.
    pub fn complete(&mut self, insn: &Instruction) {
        self.state.rip = self.next_ip(insn);
        self.decoded.before += 1;
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

    /// Code size in bits: 16, 32 or 64.
    pub fn bits(&self) -> u32 {
        derived::bits(&self.state, self.derived.code64)
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
        self.derived = Derived::of(&self.state, self.vmx.guest);
        self.mmu.tlb.hide(self.derived.aligned);
        self.mmu.tlb.set_pkru(self.state.pkru);
        self.windows.attention = true;
    }

    /// Drops cached translations, also those of address spaces that are not current.
    pub fn flush_tlb(&mut self, keep_global: bool) {
        let (space, manner) = (self.named_space(), self.manner());
        self.mmu.flush(keep_global, space, manner);
    }

    /// Drops translations if RAM came, moved or went. Decoded code of such RAM is void by itself.
    pub(crate) fn notice_map(&mut self) {
        if self.mmu.map_changed(self.memory.changes()) {
            self.flush_tlb(false);
        }
    }

    /// Drops the translation of one page of the current address space, or a global one.
    pub fn flush_page(&mut self, linear: u64) {
        self.mmu.flush_page(linear);
    }

    /// Decoded code was overwritten by this vCPU.
    #[cold]
    #[inline(never)]
    pub fn code_written(&mut self) {
        self.decoded.written();
    }

    /// Notes that `running` is executed from here on.
    ///
    /// # Safety
    /// It must live until [`Cpu::leave_block`], which every look-up and every instruction by itself comes behind.
    #[inline(always)]
    pub(crate) unsafe fn enter_block(&mut self, running: NonNull<dyn Running>) {
        // SAFETY: the caller's promise.
        unsafe { self.decoded.enter(running) };
    }

    /// Notes that no decoded code is executed.
    #[inline(always)]
    pub fn leave_block(&mut self) {
        self.decoded.leave();
    }

    /// Counts what was retired of the decoded code that is executed, which ends here.
    #[inline(always)]
    pub(crate) fn settle_block(&mut self) {
        self.count.retired += self.decoded.before;
        self.leave_block();
    }

    /// Tells the time source what was retired since it was told last.
    pub(crate) fn tell_retired(&mut self, retired: u64) {
        self.count.tell(&*self.around.time, retired);
    }

    /// Instructions retired before the one that is executed.
    pub(crate) fn retired_now(&self) -> u64 {
        self.count.retired + self.decoded.before
    }

    /// The guest's time-stamp counter. A timer that is due by then is noted: no guest may see how late the clock is looked
    /// at, for which a host that had others to run may be to blame.
    pub fn tsc(&mut self) -> u64 {
        let retired = self.retired_now();
        self.tell_retired(retired);
        let now = self.time().guest_counter();
        // The second is another one only where the guest's frequency was changed.
        let passed = |at: u64| now >= at && self.time().counter() >= at;
        self.windows.due = self.windows.until.is_some_and(passed) || self.vmx.timer.is_some_and(passed);
        let tsc = now.wrapping_add(self.state.tsc_offset);
        if self.vmx.guest { self.nested_tsc(tsc) } else { tsc }
    }

    /// The same for an instruction: if a timer is due, it is executed by itself, and the timer comes right behind it.
    pub(crate) fn read_tsc(&mut self) -> Exec<u64> {
        let tsc = self.tsc();
        if self.windows.due {
            self.execute_alone()?;
            self.windows.attention = true;
        }
        Ok(tsc)
    }

    /// Sets the task priority; the machine looks if it fell below its threshold.
    pub fn set_tpr(&mut self, tpr: u8) {
        self.state.tpr = tpr;
        if tpr >> 4 < self.controls.tpr_threshold {
            self.windows.attention = true;
        }
    }
}
