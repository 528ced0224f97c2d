//! Blocks that go on in other pages than the one where they begin.
//!
//! A block is found by the physical address of its first byte, so its own page is where it should be whenever it is
//! entered. Other pages are so only as long as nothing flushed their translations: then the block's first bytes become
//! a jump to a look at them, which brings them back, or takes the block out of use.

use satori_memory::PageState;

use super::links::scopes;
use super::moving::may_move;
use super::{Jit, bucket};
use crate::Translating;
use satori_soft::block::Block;
use satori_soft::code_mode::{self, CodeKey};
use satori_soft::cpu::Cpu;

/// Times that a block may be in vain before it is made without other pages.
const TIMES: u8 = 3;
/// Bytes of a jump, which a block begins with where it may not be entered without a look.
pub(crate) const HEAD: usize = 5;

/// A page that code was taken from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub linear: u64,
    /// Its first byte on the host.
    pub host: *const u8,
    pub state: *const PageState,
    /// The state's value that the code is valid under.
    pub value: u32,
    /// The translation is known to be as it was: a flush finds the block. Or it needs none.
    pub sure: bool,
}

impl Page {
    /// Whether `rip` is in it.
    pub(crate) fn has(&self, rip: u64) -> bool {
        self.linear == rip & !0xfff
    }

    /// Whether it was not written since.
    pub(crate) fn valid(&self) -> bool {
        // SAFETY: page states live as long as guest memory, which the Cpu holds.
        unsafe { (*self.state).value() == self.value }
    }
}

/// Where a block goes on.
pub(crate) struct Reach {
    /// All its pages.
    pub pages: Vec<Page>,
    /// The linear address of the block that theirs are for.
    pub rip: u64,
    /// The bytes that a jump may stand for.
    pub head: [u8; HEAD],
    /// Offset of the look at the pages, or of what leaves if the block is out of use.
    pub check: usize,
}

/// The jump at offset `from` of the code memory to offset `to`.
pub(crate) fn jump(from: usize, to: usize) -> [u8; HEAD] {
    let mut jump = [0xe9, 0, 0, 0, 0];
    jump[1..].copy_from_slice(&(to as i32 - (from + HEAD) as i32).to_le_bytes());
    jump
}

impl Jit {
    /// Block `number` must look at its pages in `bucket`, whose translations are void, before it runs again.
    pub(crate) fn guard(&mut self, number: u32, void: usize) {
        let Some(block) = self.blocks.get_mut(number) else { return };
        let Some(reach) = &mut block.reach else { return };
        for page in reach.pages.iter_mut().filter(|page| bucket(page.linear) == void) {
            page.sure = false;
        }
        let (entry, jump) = (block.entry, jump(block.entry, reach.check));
        self.arena().write(entry, &jump);
    }

    /// Whether code may be made that goes on in other pages from `key` on.
    pub(crate) fn may_reach(&self, key: CodeKey) -> bool {
        self.in_vain.get(&key).is_none_or(|times| *times < TIMES)
    }

    /// Block `number` was made over several pages in vain: one of the others was written, or is mapped elsewhere now. Counted by
    /// the block's address, so that it is not tried for ever.
    pub(crate) fn note_in_vain(&mut self, number: u32) {
        let key = self.key_of(number);
        let times = self.in_vain.entry(key).or_default();
        *times = times.saturating_add(1);
    }
}

impl Jit {
    /// Whether `pages` are still mapped where they were and unwritten; from then on block `number` is void when that changes. False
    /// also for a page with a breakpoint, whose instructions are executed one at a time.
    pub(crate) fn make_sure(&mut self, cpu: &mut Cpu, number: u32, pages: &mut [Page]) -> bool {
        let moves = pages.iter().any(|page| may_move(page.linear, cpu.derived.code_mode));
        for page in pages.iter_mut().filter(|page| !page.sure) {
            if cpu.breaks_in_page(page.linear) {
                return false;
            }
            let Some(scope) = cpu.scope_of_page(page.linear, page.host) else { return false };
            page.sure = true;
            let side = code_mode::side(cpu.derived.code_mode);
            for scope in scopes(scope, moves) {
                self.dependents(side, *scope)[bucket(page.linear)].blocks.push(number);
            }
        }
        true
    }
}

impl Translating {
    /// Whether block `number` reaches where it did; its code is as it was then, and out of use otherwise.
    fn still_reaches(&mut self, number: u32) -> bool {
        let jit = &mut self.jit;
        let Some(mut reach) = jit.blocks[number].reach.take() else { return false };
        let rip = jit.rip_of(number);
        let distance = rip.wrapping_sub(std::mem::replace(&mut reach.rip, rip));
        for page in reach.pages.iter_mut().filter(|_| distance != 0) {
            page.linear = page.linear.wrapping_add(distance);
            page.sure = false;
        }
        let there = jit.make_sure(&mut self.cpu, number, &mut reach.pages);
        let (entry, head) = (jit.blocks[number].entry, reach.head);
        jit.blocks[number].reach = Some(reach);
        if there {
            jit.arena().write(entry, &head);
        } else {
            jit.note_in_vain(number);
            jit.retire(&mut self.context, number);
        }
        there
    }
}

impl Page {
    /// The page of `block`, which stands at `rip`.
    pub(crate) fn of(block: &Block, rip: u64) -> Page {
        let (host, state, value) = (block.host(), block.state(), block.value());
        Page { linear: rip & !0xfff, host, state, value, sure: true }
    }

    /// The second page of the crossing instruction of `block` at `rip`, if it is one.
    pub(crate) fn behind(block: &Block, rip: u64) -> Option<Page> {
        let crossing = block.crossing()?;
        let linear = (rip & !0xfff).wrapping_add(0x1000);
        let (host, state, value) = (crossing.host, crossing.state, crossing.value);
        Some(Page { linear, host, state, value, sure: false })
    }
}

/// Called by translated code at the entry of block `number`: 1 if the pages that it was made of are still mapped and unwritten.
pub(crate) extern "sysv64" fn reaches(vcpu: &mut Translating, number: u64) -> u64 {
    vcpu.still_reaches(number as u32).into()
}

#[cfg(test)]
mod tests {
    use satori_defs::x86::pte;
    use satori_engine::{DebugCause, DebugPlan, Exit, Until};
    use satori_memory::Gpa;
    use satori_state::reg;

    use super::super::tests::{DATA, TABLE};
    use super::super::{Host, Manner, Pool};
    use super::*;
    use crate::testing::{Machine, machine64};
    use satori_soft::testing::{PD, SCRATCH};

    const ROUNDS: u64 = 100;
    /// Where the loop begins: its second instruction reaches into the next page.
    const LOOP: u64 = DATA + 0xffa;
    /// Linear address of the loop's second page through another entry.
    const ALIAS: u64 = DATA + 0x4000;

    fn write(cpu: &Cpu, at: u64, bytes: &[u8]) {
        cpu.memory().write(Gpa(at), bytes).expect("RAM");
    }

    fn map(cpu: &Cpu, linear: u64, physical: u64) {
        write(cpu, TABLE + 8 * ((linear - DATA) >> 12), &(physical | pte::P | pte::W).to_le_bytes());
    }

    /// A loop that lies in two pages, of which the second is one of two that add different numbers; and what flushes.
    fn machine() -> Machine {
        let mut cpu = machine64();
        write(&cpu, PD + 0x1000 + 8 * ((DATA - (1 << 30)) >> 21), &(TABLE | pte::P | pte::W).to_le_bytes());
        for (page, number) in [(0x1000, 1), (0x2000, 2)] {
            // INC RAX, and a NOP of five bytes, of which three are in the first page; then ADD of the number to RBX, DEC
            // of RCX, JNE back, HLT.
            let first = [0x48, 0xff, 0xc0, 0x0f, 0x1f, 0x44, 0x00, 0x00];
            let bytes =
                [&first[..], &[0x48, 0x83, 0xc3, number, 0x48, 0xff, 0xc9, 0x75, 0xef, 0xf4]].concat();
            write(&cpu, SCRATCH + 0xffa, &bytes[..6]);
            write(&cpu, SCRATCH + page, &bytes[6..]);
        }
        map(&cpu, LOOP, SCRATCH);
        map(&cpu, LOOP + 0x1000, SCRATCH + 0x1000);
        map(&cpu, ALIAS, SCRATCH + 0x1000);
        // MOV CR3, RDX; JMP R8; at 0x10010 INVLPG [R9]; JMP R8.
        write(&cpu, 0x1_0000, &[0x0f, 0x22, 0xda, 0x41, 0xff, 0xe0]);
        write(&cpu, 0x1_0010, &[0x41, 0x0f, 0x01, 0x39, 0x41, 0xff, 0xe0]);
        let manner = Manner { hot: 3, counting: false, watcher: None, host: Host::default() };
        cpu.put(Jit::new(&Pool::default(), manner));
        cpu
    }

    /// Runs the loop from `rip` on, and tells what it added to RBX.
    fn run(cpu: &mut Machine, rip: u64) -> u64 {
        let cr3 = cpu.state.cr3;
        let gpr = &mut cpu.state.gpr;
        (gpr[reg::RCX], gpr[reg::RBX], gpr[reg::RAX]) = (ROUNDS, 0, 0);
        (gpr[reg::RDX], gpr[reg::R8], gpr[reg::R9]) = (cr3, LOOP, LOOP + 0x1000);
        cpu.state.rip = rip;
        assert_eq!(cpu.run(Until { counter: None, instructions: Some(1 << 20) }), Exit::Hlt);
        assert_eq!(cpu.state.gpr[reg::RAX], ROUNDS);
        cpu.state.gpr[reg::RBX]
    }

    /// Blocks in use that begin as the loop does, and go on in the other page.
    fn reaching(cpu: &Machine) -> usize {
        let jit = cpu.jit().expect("there is one");
        jit.blocks.iter().filter(|block| block.rip == LOOP && block.reaches()).count()
    }

    #[test]
    fn a_loop_in_two_pages_is_made_of_those_that_are_there() {
        for flush in [0x1_0000, 0x1_0010] {
            let mut cpu = machine();
            assert_eq!(run(&mut cpu, LOOP), ROUNDS);
            assert!(reaching(&cpu) > 0, "no block has both pages");
            for (page, number) in
                [(0x1000, 1), (0x2000, 2), (0x2000, 2), (0x1000, 1), (0x2000, 2), (0x1000, 1)]
            {
                map(&cpu, LOOP + 0x1000, SCRATCH + page);
                assert_eq!(run(&mut cpu, flush), number * ROUNDS, "by {flush:#x}");
            }
            assert_eq!(reaching(&cpu), 0, "what is in vain so often is not made again");
        }
    }

    /// A debugger's breakpoint on the instruction at `at`, or none.
    fn set_breakpoint(cpu: &mut Machine, at: Option<u64>) {
        cpu.set_debug(DebugPlan { breakpoints: at.into_iter().collect(), ..DebugPlan::default() });
    }

    #[test]
    fn a_breakpoint_is_met_in_either_page_of_a_hot_loop() {
        // INC RAX, ADD, JNE.
        for (at, incremented) in [(LOOP, 0), (LOOP + 8, 1), (LOOP + 15, 1)] {
            let mut cpu = machine();
            run(&mut cpu, LOOP);
            assert!(reaching(&cpu) > 0, "no block has both pages");
            set_breakpoint(&mut cpu, Some(at));
            let gpr = &mut cpu.state.gpr;
            (gpr[reg::RCX], gpr[reg::RBX], gpr[reg::RAX]) = (ROUNDS, 0, 0);
            cpu.state.rip = LOOP;
            let exit = cpu.run(Until { counter: None, instructions: Some(1 << 20) });
            assert_eq!(exit, Exit::Debug(DebugCause::Breakpoint), "{at:#x}");
            assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RAX]), (at, incremented));
            // Taken away, the loop is fast again.
            set_breakpoint(&mut cpu, None);
            run(&mut cpu, LOOP);
            let before = cpu.steps();
            run(&mut cpu, LOOP);
            assert_eq!(cpu.steps(), before);
        }
    }

    #[test]
    fn a_breakpoint_makes_only_its_page_slow() {
        let mut cpu = machine();
        run(&mut cpu, LOOP);
        let translated = |cpu: &Machine| cpu.jit().expect("there is one").counts.entered;
        set_breakpoint(&mut cpu, Some(ALIAS + 0x1000));
        // Made anew, after the breakpoint dropped everything.
        run(&mut cpu, LOOP);
        let (entered, steps) = (translated(&cpu), cpu.steps());
        assert_eq!(run(&mut cpu, LOOP), ROUNDS);
        assert!(translated(&cpu) > entered, "the loop ran in no translated code");
        assert_eq!(cpu.steps(), steps, "instructions were executed one at a time");
    }

    #[test]
    fn a_flush_that_changes_nothing_leaves_the_code() {
        for flush in [0x1_0000, 0x1_0010] {
            let mut cpu = machine();
            run(&mut cpu, LOOP);
            let count = |cpu: &Machine| cpu.jit().expect("there is one").counts.translated;
            for _ in 0..6 {
                run(&mut cpu, flush);
            }
            let (before, blocks) = (count(&cpu), reaching(&cpu));
            for _ in 0..10 {
                assert_eq!(run(&mut cpu, flush), ROUNDS);
            }
            assert_eq!((count(&cpu), reaching(&cpu)), (before, blocks));
        }
    }

    #[test]
    fn code_that_is_written_in_the_second_page_is_executed() {
        let mut cpu = machine();
        // MOV BYTE [R10], R11B; JMP R8.
        write(&cpu, 0x1_0020, &[0x45, 0x88, 0x1a, 0x41, 0xff, 0xe0]);
        run(&mut cpu, LOOP);
        for number in [7, 9, 7, 1, 3, 5] {
            (cpu.state.gpr[reg::R10], cpu.state.gpr[reg::R11]) = (ALIAS + 5, number);
            assert_eq!(run(&mut cpu, 0x1_0020), number * ROUNDS);
        }
    }

    #[test]
    fn what_others_write_in_the_second_page_is_executed() {
        let mut cpu = machine();
        cpu.set_parallel(true);
        run(&mut cpu, LOOP);
        for number in [7, 9, 7] {
            write(&cpu, SCRATCH + 0x1000 + 5, &[number]);
            cpu.memory().page(Gpa(SCRATCH + 0x1000)).expect("RAM").state.wrote();
            assert_eq!(run(&mut cpu, LOOP), u64::from(number) * ROUNDS);
        }
    }
}
