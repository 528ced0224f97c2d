//! A vCPU whose hot code is translated: going into translated code, and out of it.

use satori_engine::{Doing, Exit, Stat};
use satori_memory::PageState;
use satori_soft::block::{Block, Blocks};
use satori_soft::code_mode::{self, CodeKey};
use satori_soft::cpu::{Cpu, Stop};
use satori_soft::execute::{Executor, Ran};
use satori_soft::mmu::{Mode, Scope};
use satori_soft::run::Horizon;

use crate::pieces::PIECES;
use crate::{CHUNK, Context, Jit, moving, reason, stubs};

/// Instructions of a translated block at most.
const SLACK: u64 = 128;

/// What to do with the next translated block that is found.
#[derive(Clone, Copy)]
enum After {
    Nothing,
    /// Let this link lead there.
    Link(u32),
    /// Let indirect branches from code of this mode find it.
    Branch(Mode),
}

/// A processor, what it has decoded, and what was made of that. While translated code runs, GS points into it.
pub(crate) struct Translating {
    /// The processor.
    pub cpu: Cpu,
    /// What it has decoded.
    pub blocks: Blocks,
    /// What translated code needs beside the registers.
    pub context: Context,
    /// Translated code.
    pub jit: Box<Jit>,
    /// Instructions that translated code was given, less those counted in [`Cpu::retired`].
    pub(crate) started: i64,
    after: After,
}

impl Executor for Translating {
    /// Translated code executes more of them in the same time.
    const INTERVAL: u64 = 32768;

    #[inline(always)]
    fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    #[inline(always)]
    fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    #[inline(always)]
    fn parts(&mut self) -> (&mut Cpu, &mut Blocks) {
        (&mut self.cpu, &mut self.blocks)
    }

    fn begin(&mut self) {
        self.after = After::Nothing;
    }

    #[inline(always)]
    fn run_hot(&mut self, block: *mut Block, horizon: &Horizon) -> Ran {
        if self.translates()
            && let Some(code) = self.translation(block)
        {
            return self.run_code(code, horizon).into();
        }
        Ran::Not
    }

    fn abandon(&mut self) {
        self.blocks.abandon();
        self.jit.abandon();
    }

    fn make_room(&mut self) {
        let translated = self.jit.translated();
        self.blocks.sweep(&translated);
        if !self.blocks.is_full() {
            return;
        }
        // What did not get hot goes first, and then what was translated first.
        self.blocks.age(&translated);
        for _ in 0..PIECES {
            if self.blocks.has_room() {
                return;
            }
            self.jit.next_piece(&mut self.context);
            self.blocks.age(&self.jit.translated());
        }
    }

    fn stats(&self, stats: &mut Vec<Stat>) {
        let jit = &self.jit.counts;
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
            ("translations kept through writes to their pages", jit.opened),
            ("pieces of code memory emptied", jit.pieces),
            ("pages whose translations moved", jit.moved),
            ("jumps and targets found again with their pages", jit.again),
            ("data misses of translated code", jit.misses),
            ("instructions called", jit.helped),
            ("bytes of code memory in use, at most", jit.most),
            ("branch targets not in their table", jit.unmet),
        ]);
        if self.jit.counting() {
            stats.push(("branch targets in their table", self.context.met()));
        }
    }
}

impl Translating {
    /// Nothing is decoded nor translated yet.
    pub(crate) fn new(mut cpu: Cpu, jit: Box<Jit>) -> Self {
        cpu.guard_code();
        Translating {
            cpu,
            blocks: Blocks::with_crossings(),
            context: Context::new(),
            jit,
            started: 0,
            after: After::Nothing,
        }
    }

    /// Whether translated code may run now: nothing needs a look at each instruction, or at data. Breakpoints on
    /// instructions do not hinder it: their pages have no blocks, and nothing goes on into them ([`Jit::make_sure`]).
    #[inline(always)]
    pub(crate) fn translates(&self) -> bool {
        let cpu = &self.cpu;
        cpu.derived.code_mode & (code_mode::BITS_64 | code_mode::FLAT_32) != 0
            && !cpu.derived.aligned
            && !cpu.looks_at_all()
            && !cpu.intercepts_inline()
    }

    /// Brings the translations up to date with what happened outside.
    #[inline(always)]
    pub(crate) fn refresh(&mut self) {
        self.jit.refresh(&mut self.context, &mut self.cpu.mmu.fetches, self.cpu.derived.code_mode);
    }

    /// The translation of `block` at RIP, made now if the block has become hot.
    #[inline(always)]
    fn translation(&mut self, block: *mut Block) -> Option<u64> {
        let key = self.cpu.code_key(self.cpu.state.rip);
        // SAFETY: `block` was just looked up.
        let found = unsafe { (*block).translation(key) };
        match found {
            Some(code) => Some(code),
            None => self.translate_if_hot(block, key),
        }
    }

    #[inline(never)]
    fn translate_if_hot(&mut self, block: *mut Block, key: CodeKey) -> Option<u64> {
        // SAFETY: `block` was just looked up.
        if unsafe { !(*block).heat(self.jit.manner.hot) } {
            return None;
        }
        // What is brought to an address is brought there after the last flush.
        self.refresh();
        if !self.jit.closed.is_empty() || !self.blocks.replaced.is_empty() {
            self.open_again(block);
        }
        let rip = self.cpu.state.rip;
        // SAFETY: as above.
        let known = match unsafe { (*block).translated() } {
            true => {
                let local = self.blocks.scope_of(&self.cpu, key) == Some(Scope::Local);
                self.jit.find(&mut self.context, block, (key, rip), local, false)
            }
            false => None,
        };
        let code = match known {
            Some(code) => Some(code),
            None => {
                self.cpu.doing().set(Doing::Translating);
                let code = self.translate(block, key);
                self.cpu.doing().set(Doing::Interpreting);
                code
            }
        };
        if let Some(code) = code
            && !moving::may_move(rip, self.cpu.derived.code_mode)
        {
            // SAFETY: as above; translating frees no block.
            unsafe { (*block).set_translation(key, code) };
        }
        code
    }

    /// Runs translated code from `code`, and does what it was left for.
    #[inline(always)]
    fn run_code(&mut self, code: u64, horizon: &Horizon) -> Option<Exit> {
        let rip = self.cpu.state.rip;
        match std::mem::replace(&mut self.after, After::Nothing) {
            After::Nothing => {}
            After::Link(link) => self.link(link, rip, code),
            After::Branch(mode) => {
                self.jit.notice_mode(&mut self.context, self.cpu.derived.code_mode);
                self.note_target(mode, rip, code);
            }
        }
        self.cpu.leave_block();
        let before = self.cpu.retired();
        // Where only the clock waits to be looked at, a block may end a little later.
        let budget = (horizon.look - before).max(SLACK).min(horizon.end - before);
        let why = self.run_translated(code, budget);
        let kind = why & ((1 << reason::BITS) - 1);
        self.jit.counts.left[kind as usize & 7] += 1;
        let cpu = &mut self.cpu;
        match kind {
            // The budget is too small for a whole block.
            reason::DISPATCH if cpu.retired() == before => cpu.step(),
            reason::DISPATCH => None,
            reason::LINK => {
                self.after = After::Link(why >> reason::BITS);
                None
            }
            reason::ARRIVE => {
                self.after = After::Branch(cpu.derived.mode);
                None
            }
            reason::BRANCH => {
                self.after = After::Branch(cpu.derived.mode);
                cpu.step()
            }
            reason::FAULT => cpu.stopped(Stop::Fault),
            reason::EXIT => cpu.stopped(Stop::Exit),
            _ => cpu.step(),
        }
    }

    /// Runs translated code from `code`, the translation of the block at RIP, for at most `budget`
    /// instructions. Returns why it was left; RIP says where.
    fn run_translated(&mut self, code: u64, budget: u64) -> u32 {
        self.refresh();
        self.jit.counts.entered += 1;
        let (enter, direct) = (self.jit.stubs.enter, self.jit.manner.host.fsgsbase);
        self.context.unknown.code = self.jit.stubs.arrive;
        let budget = budget.min(1 << 40) as i64;
        let first = budget.min(CHUNK);
        self.context.cpu = std::ptr::from_mut(self);
        self.context.nested_entries = self.cpu.mmu.tlb.nested_distance();
        self.context.kick = self.cpu.kick().flag();
        self.context.budget = first;
        self.context.left = budget - first;
        self.started = budget;
        self.context.flags = stubs::packed(self.cpu.status());
        stubs::set_gs(std::ptr::from_mut(self), direct);
        self.cpu.doing().set(Doing::Translated);
        // SAFETY: the code was made for this vCPU, whose address GS holds; it keeps to the System V
        // convention at its outside.
        unsafe {
            let enter: extern "sysv64" fn(u64) = std::mem::transmute(enter);
            enter(code);
        }
        self.cpu.doing().set(Doing::Interpreting);
        self.collect_x87();
        self.cpu.set_status(stubs::unpacked(self.context.flags));
        let remaining = self.context.budget + self.context.left;
        self.cpu.retire((self.started - remaining) as u64);
        self.context.reason as u32
    }

    /// Drops what was decoded from the page with `state`, which translated code has just written to.
    pub(crate) fn translated_store(&mut self, state: &PageState) {
        if state.wrote() {
            self.cpu.code_written();
        }
        self.refresh();
    }

    /// A store to RAM at `linear` is about to be made by the code of block `number`: if that holds decoded code, but
    /// not that of the block itself, it is taken out of use now, and the store can be made as any other. So can one to a page
    /// that is logged, behind which nobody looks.
    pub(crate) fn expect_store(&mut self, linear: u64, number: u32) {
        let cpu = &mut self.cpu;
        let Some((_, state)) = cpu.mmu.tlb.lookup(linear, 1, cpu.derived.mode, false) else { return };
        // SAFETY: it is the state of a page of guest RAM, which lives as long as that.
        if cpu.parallel() || unsafe { !(*state).watched() } {
            return;
        }
        if self.jit.blocks.get(number).is_none_or(|own| own.made_of(state)) {
            return;
        }
        // SAFETY: as above.
        if unsafe { (*state).wrote() } {
            cpu.code_written();
        }
        self.refresh();
    }

    /// What translated code retired so far is the processor's own count from here on; `rest` instructions
    /// that were paid for were not executed.
    pub(crate) fn settle_retired(&mut self, rest: i64) {
        let remaining = self.context.budget + self.context.left + rest;
        self.cpu.retire((self.started - remaining) as u64);
        self.started = remaining;
    }

    /// Whether there is nothing to look at before the next instruction, though an instruction asked
    /// for a look; the look is then as good as done. The instruction is not counted as retired yet.
    pub(crate) fn settled(&mut self) -> bool {
        let cpu = &mut self.cpu;
        cpu.drop_resume(cpu.retired() + 1);
        let settled = cpu.nothing_to_see();
        if settled {
            cpu.windows.attention = cpu.windows.interrupt || cpu.windows.nmi;
        }
        settled
    }
}
