//! The stack, and jumps between blocks.

use iced_x86::{Code, FlowControl, Instruction, OpKind};
use satori_defs::x86::rflags;
use satori_state::{reg, seg};

use super::asm::{Alu, Mem, Reg, cc};
use super::cold::Cold;
use super::flags::Flags;
use super::lower::Lower;
use super::memory::Address;
use super::moving::NEAR;
use super::narrow::is_flat;
use super::reason;
use super::stubs::{self, GUEST_RSP, S1, S2};
use super::targets::{PLACES, SPREAD, Target, table};
use super::window::Step;
use satori_soft::code_mode;
use satori_soft::isa::Isa;
use satori_soft::mmu::{Mode, canonical};

/// Binary logarithm of the size of a place in the table of targets.
const PLACE: u32 = size_of::<Target>().ilog2();

impl Lower<'_> {
    /// Emits `insn` if it is one of the stack or a branch: whether it ends the block. Nothing if
    /// it is none, whatever was emitted.
    pub(crate) fn flow(&mut self, isa: &Isa, insn: &Instruction) -> Option<bool> {
        if self.narrow() && insn.is_stack_instruction() && !is_flat(self.block.code_mode, seg::SS) {
            return None;
        }
        if let Some(emitted) = self.of_the_stack(insn) {
            return emitted.then_some(false);
        }
        let next = self.block.rip.wrapping_add(insn.next_ip());
        if let Some(emitted) = self.changing_mode(isa, insn, next) {
            return emitted.then_some(true);
        }
        let target = self.block.rip.wrapping_add(insn.near_branch_target());
        let near = insn.op0_kind() == OpKind::NearBranch64;
        match insn.flow_control() {
            FlowControl::UnconditionalBranch if near => self.jump(target),
            FlowControl::ConditionalBranch if insn.is_jcc_short_or_near() => {
                if !near {
                    return None;
                }
                self.restore_flags();
                self.jump_if(insn.condition_code() as u8 - 1, target, next)
            }
            FlowControl::ConditionalBranch if near && canonical(target) && canonical(next) => {
                let condition = self.count_down(insn)?;
                self.jump_if(condition, target, next)
            }
            FlowControl::Call if near => self.call_near(target, next),
            FlowControl::IndirectCall if matches!(insn.code(), Code::Call_rm64 | Code::Call_rm32) => {
                self.call_indirect(insn, next)
            }
            FlowControl::IndirectBranch if matches!(insn.code(), Code::Jmp_rm64 | Code::Jmp_rm32) => {
                self.indirect_target(insn)?;
                self.look_up();
                let (_, code) = stubs::target(S1);
                self.asm.jmp_mem(code);
                Some(true)
            }
            FlowControl::Return => self.return_near(insn),
            _ => None,
        }
    }

    /// Emits `insn` if it works on the stack or a flag of its own, and goes on behind itself: whether that was possible. Nothing if
    /// it is none of these.
    fn of_the_stack(&mut self, insn: &Instruction) -> Option<bool> {
        match insn.code() {
            Code::Push_r64
            | Code::Pushq_imm8
            | Code::Pushq_imm32
            | Code::Push_rm64
            | Code::Push_r32
            | Code::Pushd_imm8
            | Code::Pushd_imm32
            | Code::Push_rm32 => return Some(self.push(insn)),
            Code::Pop_r64 | Code::Pop_r32 => self.pop(insn.op0_register().number()),
            Code::Pop_rm64 | Code::Pop_rm32 => return Some(self.pop_to_memory(insn)),
            Code::Leaveq | Code::Leaved => self.leave(),
            Code::Pushfq | Code::Pushfd => self.push_flags(insn),
            Code::Cld | Code::Std => self.direction(insn.code() == Code::Std),
            _ => return None,
        }
        Some(true)
    }

    /// Emits `insn` if what follows it, at `next` or in the kernel, may be code of another mode: whether that was possible. Nothing
    /// if it is none of these.
    fn changing_mode(&mut self, isa: &Isa, insn: &Instruction, next: u64) -> Option<bool> {
        Some(match insn.code() {
            Code::Cli | Code::Sti => self.interrupt_flag(insn.code() == Code::Sti, next),
            Code::Stac | Code::Clac => self.access_check(insn.code() == Code::Stac, next),
            Code::Wrfsbase_r64 | Code::Wrgsbase_r64 => {
                if !canonical(next) {
                    return Some(false);
                }
                let to = if insn.code() == Code::Wrfsbase_r64 { seg::FS } else { seg::GS };
                self.write_base(insn, to, next);
                true
            }
            Code::Syscall if canonical(next) && !self.narrow() => self.system_call(isa, insn, next),
            Code::Sysretq => self.system_return(isa, insn),
            Code::Swapgs => self.swap_gs(next),
            _ => return None,
        })
    }

    fn jump(&mut self, target: u64) -> Option<bool> {
        if self.current.rest > 1 {
            return Some(false);
        }
        if !canonical(target) {
            return None;
        }
        if let Some(again) = self.go_again(target) {
            self.asm.jmp(again);
            return Some(true);
        }
        self.put_flags_away();
        self.come_home();
        self.link(target);
        Some(true)
    }

    /// Goes to `target` if the host's flags fulfil `condition`, else to `next`.
    fn jump_if(&mut self, mut condition: u8, target: u64, next: u64) -> Option<bool> {
        if !canonical(target) || !canonical(next) {
            return None;
        }
        if let Some(on) = self.goes_on_at() {
            let label = self.asm.label();
            let (condition, target) = if on == next { (condition, target) } else { (condition ^ 1, next) };
            self.asm.jcc(condition, label);
            let flags = self.status.flags == Flags::Host;
            let often = self.block.often >> self.current.at & 1 != 0;
            self.seldom(Cold::Exit { label, flags, rest: self.current.rest - 1, target, often });
            return Some(false);
        }
        let (mut there, mut here) = (target, next);
        if here == self.block.rip {
            (there, here, condition) = (here, there, condition ^ 1);
        }
        if let Some(again) = self.go_again(there) {
            self.asm.jcc(condition, again);
            self.put_flags_away();
            self.come_home();
        } else {
            self.put_flags_away();
            self.come_home();
            self.link_if(condition, there);
        }
        self.link(here);
        Some(true)
    }

    fn call_near(&mut self, target: u64, next: u64) -> Option<bool> {
        if !canonical(target) {
            return None;
        }
        if self.current.rest > 1 {
            self.push_return(next, Some(target));
            return Some(false);
        }
        self.put_flags_away();
        self.push_return(next, None);
        self.link(target);
        Some(true)
    }

    fn call_indirect(&mut self, insn: &Instruction, next: u64) -> Option<bool> {
        self.indirect_target(insn)?;
        self.expect_target(insn, next);
        self.look_up();
        let (_, code) = stubs::target(S1);
        self.asm.load(S1, code);
        // The access of the push may need the other place to hold something.
        self.asm.store(stubs::temporary(), S1);
        self.push_return(next, None);
        self.asm.jmp_mem(stubs::temporary());
        Some(true)
    }

    fn return_near(&mut self, insn: &Instruction) -> Option<bool> {
        let more = match insn.code() {
            Code::Retnq | Code::Retnd => 0,
            Code::Retnq_imm16 | Code::Retnd_imm16 => i32::from(insn.immediate16()),
            _ => return None,
        };
        if let Some(on) = self.goes_on_at() {
            self.return_to(on);
            return Some(false);
        }
        self.save_flags();
        self.load_top();
        self.look_up();
        self.jump_back(more);
        Some(true)
    }

    /// Where the block goes on behind the current instruction, if it does.
    fn goes_on_at(&self) -> Option<u64> {
        let next = self.block.all.get(self.current.at + 1).filter(|_| self.current.rest > 1)?;
        Some(self.block.rip.wrapping_add(next.ip()))
    }

    /// A return that likely goes on in this block, at `on`.
    fn return_to(&mut self, on: u64) {
        self.load_top();
        self.spare_flags();
        self.compare_target(on, false);
        let label = self.asm.label();
        self.asm.jcc(cc::NE, label);
        self.seldom(Cold::Return { label, rip: self.current.rip, rest: self.current.rest });
        self.move_stack(self.word());
    }

    /// Returns to the target at S1, and takes `more` bytes of parameters off the stack.
    pub(crate) fn jump_back(&mut self, more: i32) {
        self.move_stack(self.word() + more);
        let (_, code) = stubs::target(S1);
        self.asm.jmp_mem(code);
    }

    /// STI and CLI at privilege level 0. Nobody can tell whether an interrupt was held back for one
    /// more instruction when none waits; where the run ends behind STI, `Cpu::run` notices.
    fn interrupt_flag(&mut self, on: bool, next: u64) -> bool {
        if !self.block.privileged || !canonical(next) || self.asm.moves() {
            return false;
        }
        self.save_flags();
        if on {
            let waiting = self.step(reason::STEP);
            self.asm.alu_byte(Alu::Cmp, stubs::interrupt_window(), 0);
            self.asm.jcc(cc::NE, waiting);
            // One may come before the next run: there the shadow counts.
            self.asm.alu_imm(Alu::Cmp, stubs::BUDGET, 0);
            self.asm.jcc(cc::E, waiting);
            self.asm.store_imm32(stubs::behind_sti(), next as u32);
            self.asm.alu_at(Alu::Or, stubs::rflags(), rflags::IF as i32);
        } else {
            self.asm.alu_at(Alu::And, stubs::rflags(), !(rflags::IF as i32));
        }
        self.link(next);
        true
    }

    /// STAC and CLAC at privilege level 0: what follows has other rights, and so is other code.
    fn access_check(&mut self, lift: bool, next: u64) -> bool {
        if !self.block.privileged || !canonical(next) {
            return false;
        }
        self.save_flags();
        let (mode, code_mode) = if lift {
            self.asm.alu_at(Alu::Or, stubs::rflags(), rflags::AC as i32);
            (Mode::SupervisorAc, self.block.code_mode | code_mode::AC)
        } else {
            self.asm.alu_at(Alu::And, stubs::rflags(), !(rflags::AC as i32));
            (Mode::Supervisor, self.block.code_mode & !code_mode::AC)
        };
        self.asm.store_imm(stubs::mode(), mode as i32);
        self.asm.constant(S1, code_mode);
        self.asm.store(stubs::code_mode(), S1);
        // The link is to code of that mode.
        self.block.code_mode = code_mode;
        self.link(next);
        true
    }

    /// SWAPGS at privilege level 0.
    fn swap_gs(&mut self, next: u64) -> bool {
        if !self.block.privileged || !canonical(next) {
            return false;
        }
        self.put_flags_away();
        self.asm.load(S1, stubs::gs_base());
        self.asm.load(S2, stubs::kernel_gs_base());
        self.asm.store(stubs::kernel_gs_base(), S1);
        self.asm.store(stubs::gs_base(), S2);
        self.asm.store(stubs::segment_base(seg::GS), S2);
        self.link(next);
        true
    }

    fn direction(&mut self, down: bool) {
        self.save_flags();
        if down {
            self.asm.alu_at(Alu::Or, stubs::rflags(), rflags::DF as i32);
        } else {
            self.asm.alu_at(Alu::And, stubs::rflags(), !(rflags::DF as i32));
        }
    }

    /// PUSHFQ: the image shows RF and VM clear, and the status flags from where they are put away.
    fn push_flags(&mut self, insn: &Instruction) {
        self.save_flags();
        self.flags_image();
        self.asm.store(stubs::temporary(), S2);
        let mem = self.below();
        self.store_temporary(mem);
        self.move_stack(-self.word());
        self.look_behind(self.block.rip.wrapping_add(insn.next_ip()), false);
    }

    fn push(&mut self, insn: &Instruction) -> bool {
        match insn.op0_kind() {
            OpKind::Register => {
                let guest = insn.op0_register().number();
                let mem = self.below();
                match self.home(guest) {
                    Some(host) => self.store_word(mem, host),
                    None => {
                        self.asm.load(S2, stubs::gpr(guest));
                        self.store_word(mem, S2);
                    }
                }
            }
            OpKind::Memory => {
                let Some(address) = Address::of(insn, self.block.rip, self.block.code_mode) else {
                    return false;
                };
                let (mem, _) = self.access(&address, self.word() as u32, false, 1);
                self.load_word(S2, mem);
                self.asm.store(stubs::temporary(), S2);
                let mem = self.below();
                self.store_temporary(mem);
            }
            _ => {
                let value = insn.immediate(0) as i64;
                let narrow = self.narrow();
                let value = if narrow { Ok(value as i32) } else { i32::try_from(value) };
                let Ok(value) = value else { return false };
                let mem = self.below();
                if narrow { self.asm.store_imm32(mem, value as u32) } else { self.asm.store_imm(mem, value) }
            }
        }
        self.places.deferred -= self.word();
        if self.current.stores {
            self.settle_stack();
        }
        self.look_behind(self.block.rip.wrapping_add(insn.next_ip()), false);
        true
    }

    /// Whether `insn` pushes or pops a register through a window, for which the stack pointer need not be up to date.
    pub(crate) fn runs_on(&self, insn: &Instruction) -> bool {
        let word = self.word();
        let (disp, write) = match insn.code() {
            Code::Push_r64 | Code::Push_r32 => (-word, true),
            Code::Pop_r64 | Code::Pop_r32 => (0, false),
            _ => return false,
        };
        let address = Address::stack(self.block.code_mode, disp.into());
        insn.op0_register().full_register().number() != reg::RSP
            && !(write && self.block.parallel)
            && self.points_to(&address, word.into(), write)
    }

    /// Adds to the stack pointer what is still to be added; flags stay.
    pub(crate) fn settle_stack(&mut self) {
        let by = std::mem::take(&mut self.places.deferred);
        if by != 0 {
            self.move_stack(by);
        }
    }

    fn pop(&mut self, guest: usize) {
        let mem = self.top();
        match self.home(guest) {
            Some(GUEST_RSP) => {
                self.load_word(GUEST_RSP, mem);
                return;
            }
            Some(host) => self.load_word(host, mem),
            None => {
                self.load_word(S2, mem);
                self.asm.store(stubs::gpr(guest), S2);
            }
        }
        self.places.deferred += self.word();
    }

    /// Bytes that pushes and returns take off the stack.
    pub(crate) fn word(&self) -> i32 {
        if self.narrow() { 4 } else { 8 }
    }

    fn load_word(&mut self, to: Reg, mem: Mem) {
        if self.narrow() { self.asm.load32(to, mem) } else { self.asm.load(to, mem) }
    }

    fn store_word(&mut self, mem: Mem, from: Reg) {
        if self.narrow() { self.asm.store32(mem, from) } else { self.asm.store(mem, from) }
    }

    /// The operand of what is on top of the stack.
    fn top(&mut self) -> Mem {
        self.access(&Address::stack(self.block.code_mode, 0), self.word() as u32, false, 1).0
    }

    /// The operand of what is to be pushed.
    fn below(&mut self) -> Mem {
        let (word, mode) = (self.word(), self.block.code_mode);
        self.access(&Address::stack(mode, (-word).into()), word as u32, true, 1).0
    }

    /// Loads S2 with what is on top of the stack.
    pub(crate) fn load_top(&mut self) {
        let mem = self.top();
        self.load_word(S2, mem);
    }

    /// Pushes what waits in the context.
    pub(crate) fn store_temporary(&mut self, mem: Mem) {
        let mut mem = mem;
        if mem.index == Some((S2, 0)) {
            self.asm.lea(S1, mem);
            mem = Mem::at(S1, 0);
        }
        self.asm.load(S2, stubs::temporary());
        self.store_word(mem, S2);
    }

    /// Adds `by` to the stack pointer.
    pub(crate) fn move_stack(&mut self, by: i32) {
        let sum = Mem::at(GUEST_RSP, by);
        if self.narrow() { self.asm.lea32(GUEST_RSP, sum) } else { self.asm.lea(GUEST_RSP, sum) }
    }

    fn leave(&mut self) {
        let frame = Address { base: Some(reg::RBP), ..Address::stack(self.block.code_mode, 0) };
        let (mem, _) = self.access(&frame, self.word() as u32, false, 1);
        let Some(rbp) = self.home(reg::RBP) else { unreachable!("RBP has a host register") };
        self.load_word(S2, mem);
        let sum = Mem::at(rbp, self.word());
        if self.narrow() {
            self.asm.lea32(GUEST_RSP, sum)
        } else {
            self.asm.lea(GUEST_RSP, sum)
        }
        self.asm.mov(rbp, S2);
    }

    /// Pushes the address of what comes behind a call, which goes on in this block at `on`, or ends it.
    fn push_return(&mut self, next: u64, on: Option<u64>) {
        let mem = self.below();
        match i32::try_from(next as i64) {
            _ if self.narrow() && !self.asm.moves() => self.asm.store_imm32(mem, next as u32),
            _ if self.narrow() => {
                // Both scratch registers may be in the operand.
                self.asm.lea(S2, mem);
                self.asm.linear(S1, next);
                self.asm.store32(Mem::at(S2, 0), S1);
            }
            Ok(short) if !self.asm.moves() => self.asm.store_imm(mem, short),
            _ => {
                self.asm.linear(S2, next);
                self.asm.store(mem, S2);
            }
        }
        self.move_stack(-self.word());
        self.look_behind(on.unwrap_or(next), on.is_none());
    }

    /// Loads the target of an indirect branch into S2.
    fn indirect_target(&mut self, insn: &Instruction) -> Option<()> {
        match insn.op0_kind() {
            OpKind::Register => {
                self.save_flags();
                let guest = insn.op0_register().full_register().number();
                match self.home(guest) {
                    Some(host) if self.narrow() => self.asm.mov32(S2, host),
                    Some(host) => self.asm.mov(S2, host),
                    None => self.asm.load(S2, stubs::gpr(guest)),
                }
            }
            OpKind::Memory => {
                let address = Address::of(insn, self.block.rip, self.block.code_mode)?;
                self.save_flags();
                let (mem, _) = self.access(&address, self.word() as u32, false, 1);
                self.load_word(S2, mem);
            }
            _ => return None,
        }
        Some(())
    }

    /// An indirect call whose target, at S2, no instruction of the block changes: it is likely to go where it goes now, as
    /// comparators and other callbacks do. What follows is for when it does not.
    fn expect_target(&mut self, insn: &Instruction, next: u64) {
        let register = insn.op0_register();
        if insn.op0_kind() != OpKind::Register || !self.views.grouping {
            return;
        }
        let (number, before) =
            (register.full_register().number(), self.views.steps.get(..self.current.at).unwrap_or(&[]));
        let target =
            if self.narrow() { self.block.gpr[number] & 0xffff_ffff } else { self.block.gpr[number] };
        if Step::changes(before) & 1 << number != 0 || !canonical(target) {
            return;
        }
        let other = self.asm.label();
        // What is far away is of another mapping, which does not move with this one.
        let fixed = target.abs_diff(self.block.rip) >= NEAR;
        self.compare_target(target, fixed);
        self.asm.jcc(cc::NE, other);
        let (windows, stores) = (self.views.windows.clone(), (self.current.stores, self.views.stored_in));
        self.push_return(next, None);
        if fixed {
            self.link_far(target, true);
        } else {
            self.link(target);
        }
        (self.views.windows, (self.current.stores, self.views.stored_in)) = (windows, stores);
        self.asm.bind(other);
    }

    /// Compares S2 with the address of code, which moves with this or is `fixed`; S1 may be lost.
    fn compare_target(&mut self, rip: u64, fixed: bool) {
        match i32::try_from(rip as i64) {
            Ok(rip) if fixed || !self.asm.moves() => self.asm.alu_imm(Alu::Cmp, S2, rip),
            _ => {
                if fixed {
                    self.asm.constant(S1, rip);
                } else {
                    self.asm.linear(S1, rip);
                }
                self.asm.alu(Alu::Cmp, S2, S1);
            }
        }
    }

    /// Computes where the table for `mode` has the target at S2, into S1.
    pub(crate) fn target_place(&mut self, mode: Mode) {
        // As the function of that name does, times the size of a place.
        self.asm.imul32(S1, S2, SPREAD);
        self.asm.shr32(S1, (32 - PLACES.ilog2() - PLACE) as u8);
        self.asm.alu_imm32(Alu::And, S1, (PLACES as i32 - 1) << PLACE);
        self.asm.alu_mem(Alu::Add, S1, stubs::targets(table(mode, self.block.code_mode)));
    }

    /// Looks for the code at S2; S1 is its place in the table then, or what leaves for it.
    pub(crate) fn look_up(&mut self) {
        let (have, missing) = (self.asm.label(), self.asm.label());
        self.seldom(Cold::Branch { label: missing, have, rip: self.current.rip, rest: self.current.rest });
        self.target_place(self.block.mode);
        let (rip, _) = stubs::target(S1);
        self.asm.alu_mem(Alu::Cmp, S2, rip);
        self.asm.jcc(cc::NE, missing);
        if self.block.counting {
            self.asm.alu_at(Alu::Add, stubs::met(), 1);
        }
        self.asm.bind(have);
    }
}
