//! Translations of pages that were written, kept until somebody is about to execute them again.
//!
//! Most writes to a page with code concern few of its instructions: kernels patch their text, programs that make code
//! have some in the same page. So a translation whose page was written is only closed: its first bytes become a jump to
//! what leaves. Links and tables go on leading to it. When its block is found again, with the bytes that it had,
//! the pages are ones with code from then on, and the guest's bytes are compared behind that mark with those that the
//! translation was made of: it is opened again, or out of use for good.

use satori_soft::block::{Block, stands};
use satori_soft::cpu::Cpu;

use super::moving::place_in_table;
use super::pieces::piece_of;
use super::reach::{HEAD, Page, jump};
use super::{Context, Jit, Translated, Translating};

/// Bytes of a page, one behind the other, that a translation was made of.
#[derive(Clone, Copy)]
struct Run {
    /// Which of its pages.
    page: u8,
    offset: u16,
    len: u16,
}

/// What translations were made of.
#[derive(Default)]
pub(crate) struct Source {
    runs: Vec<Run>,
    bytes: Vec<u8>,
}

/// The part of a [`Source`] that belongs to one translation: the first of its runs and bytes, and how many runs.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    run: u32,
    byte: u32,
    runs: u32,
}

impl Source {
    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.bytes.clear();
    }

    /// Adds `bytes` at `offset` of page number `page`.
    pub(crate) fn add(&mut self, page: usize, offset: usize, bytes: &[u8]) {
        self.bytes.extend(bytes);
        if let Some(last) = self.runs.last_mut()
            && usize::from(last.page) == page
            && usize::from(last.offset + last.len) == offset
        {
            last.len += bytes.len() as u16;
        } else {
            self.runs.push(Run { page: page as u8, offset: offset as u16, len: bytes.len() as u16 });
        }
    }

    /// Adds all of `other`.
    pub(crate) fn append(&mut self, other: &Source) -> Part {
        let part = Part {
            run: self.runs.len() as u32,
            byte: self.bytes.len() as u32,
            runs: other.runs.len() as u32,
        };
        self.runs.extend(&other.runs);
        self.bytes.extend(&other.bytes);
        part
    }

    /// Whether the bytes of `part` stand where they stood, in pages that are at `hosts` on the host.
    fn stand(&self, part: Part, host: impl Fn(usize) -> *const u8) -> bool {
        let mut bytes = &self.bytes[part.byte as usize..];
        self.runs[part.run as usize..][..part.runs as usize].iter().all(|run| {
            let (these, rest) = bytes.split_at(run.len.into());
            bytes = rest;
            // SAFETY: the pages of a translation are ones of guest memory, which the Cpu holds; instructions were read there.
            unsafe { stands(host(run.page.into()), run.offset.into(), these) }
        })
    }
}

/// Whether a translation may be entered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Open,
    /// No more, until [`Translating::open_again`]: its first bytes, and [`Reach::check`](super::reach::Reach), before that.
    Closed {
        head: [u8; HEAD],
        check: usize,
    },
    /// No more.
    Gone,
}

impl Translated {
    /// Where page number `page` of it is on the host.
    fn host(&self, page: usize) -> *const u8 {
        match &self.reach {
            Some(reach) => reach.pages[page].host,
            // SAFETY: `Blocks::sweep` and `Blocks::age` keep the blocks of translations.
            None => unsafe { (*self.block).host() },
        }
    }
}

impl Jit {
    /// Whether the guest has the bytes still that block `number` was made of.
    fn stands(&self, number: u32) -> bool {
        let one = &self.blocks[number];
        self.sources[piece_of(number)].stand(one.source, |page| one.host(page))
    }

    /// Takes block `number`, which has a page that was written, out of use: for good, if its bytes are others.
    pub(crate) fn close(&mut self, context: &mut Context, number: u32) {
        match self.blocks[number].used {
            Use::Open => {}
            Use::Closed { .. } | Use::Gone => return,
        }
        // Without windows it is entered by the one with windows only, which looks for it then.
        if self.blocks[number].rest || !self.stands(number) {
            self.counts.dropped += 1;
            if self.blocks[number].reaches() {
                self.note_in_vain(number);
            }
            self.retire(context, number);
            return;
        }
        let (entry, leave) = (self.blocks[number].entry, self.blocks[number].leave);
        let head = self.arena().read(entry);
        let one = &mut self.blocks[number];
        one.used = Use::Closed { head, check: leave };
        if let Some(reach) = &mut one.reach {
            let check = std::mem::replace(&mut reach.check, leave);
            one.used = Use::Closed { head: reach.head, check };
            for page in &reach.pages {
                if let Some(numbers) = self.pages.get_mut(&page.state) {
                    numbers.retain(|other| *other != number);
                }
            }
        }
        let block = one.block;
        let place = place_in_table(one.key, one.rip, block, one.parts.group.is_some());
        self.arena().write(entry, &jump(entry, leave));
        self.closed.entry(block).or_default().push(number);
        // SAFETY: `Blocks::sweep` and `Blocks::age` keep the blocks of translations.
        let block = unsafe { &*block };
        block.forget_translation();
        self.codes.forget(block.host(), place.0);
    }

    /// Opens block `number` again; false if it is not closed, or the guest's bytes are others. No translated code may be running.
    fn open(&mut self, cpu: &mut Cpu, number: u32) -> bool {
        let one = &mut self.blocks[number];
        let Use::Closed { head, check } = one.used else { return false };
        let (entry, leave) = (one.entry, one.leave);
        // SAFETY: as above.
        let own = unsafe { (*one.block).state() };
        let states: Vec<_> = match &one.reach {
            Some(reach) => reach.pages.iter().map(|page| page.state).collect(),
            None => vec![own],
        };
        // SAFETY: page states live as long as guest memory, which the Cpu holds.
        let values: Vec<u32> = states.iter().map(|state| cpu.mark_code(unsafe { &**state })).collect();
        // What is written from here on changes those values.
        if !self.stands(number) {
            return false;
        }
        let one = &mut self.blocks[number];
        (one.used, one.value) = (Use::Open, values[0]);
        if let Some(reach) = &mut one.reach {
            reach.check = check;
            for (page, value) in reach.pages.iter_mut().zip(&values) {
                *page = Page { value: *value, ..*page };
            }
            // Flushes did not concern it meanwhile.
            reach.pages.iter_mut().skip(1).for_each(|page| page.sure = false);
        }
        let head = if check == leave { head } else { jump(entry, check) };
        for (place, page) in std::mem::take(&mut self.blocks[number].parts.values) {
            self.arena().write(place, &values[usize::from(page)].to_le_bytes());
            self.blocks[number].parts.values.push((place, page));
        }
        self.arena().write(entry, &head);
        for state in states {
            self.pages.entry(state).or_default().push(number);
        }
        true
    }
}

impl Translating {
    /// Brings what was made of `block`, which is valid, into use again, and takes what was made of others that are replaced out of
    /// use for good. No translated code may be running.
    pub(crate) fn open_again(&mut self, block: *mut Block) {
        for replaced in std::mem::take(&mut self.blocks.replaced) {
            for number in self.jit.closed.remove(&replaced).unwrap_or_default() {
                self.give_up(number);
            }
        }
        for number in self.jit.closed.remove(&block).unwrap_or_default() {
            if self.jit.open(&mut self.cpu, number) {
                self.jit.counts.opened += 1;
            } else {
                self.give_up(number);
            }
        }
    }

    fn give_up(&mut self, number: u32) {
        self.jit.counts.dropped += 1;
        self.jit.retire(&mut self.context, number);
    }
}

#[cfg(test)]
mod tests {
    use satori_engine::{Exit, Until};
    use satori_memory::Gpa;
    use satori_state::reg;

    use super::super::{Host, Manner, Pool};
    use super::*;
    use crate::testing::{Machine, machine64};

    /// A loop: INC RAX; ADD RBX, imm8; DEC RCX; JNE back; HLT.
    const LOOP: u64 = 0x1_0100;
    const CODE: [u8; 13] = [0x48, 0xff, 0xc0, 0x48, 0x83, 0xc3, 1, 0x48, 0xff, 0xc9, 0x75, 0xf4, 0xf4];
    /// The operand of ADD, behind the loop's first instruction.
    const OPERAND: u64 = LOOP + 6;
    /// Data in the same page.
    const DATA: u64 = 0x1_0800;
    const ROUNDS: u64 = 100;

    fn machine(parallel: bool) -> Machine {
        let mut cpu = machine64();
        cpu.memory().write(Gpa(LOOP), &CODE).unwrap();
        let manner = Manner { hot: 3, counting: false, watcher: None, host: Host::default() };
        cpu.put(Jit::new(&Pool::default(), manner));
        cpu.set_parallel(parallel);
        cpu
    }

    /// Runs the loop, which adds `number` in each round.
    fn run(cpu: &mut Machine, number: u8) {
        let gpr = &mut cpu.state.gpr;
        (gpr[reg::RCX], gpr[reg::RBX], gpr[reg::RAX]) = (ROUNDS, 0, 0);
        cpu.state.rip = LOOP;
        assert_eq!(cpu.run(Until { counter: None, instructions: Some(1 << 20) }), Exit::Hlt);
        assert_eq!((cpu.state.gpr[reg::RAX], cpu.state.gpr[reg::RBX]), (ROUNDS, u64::from(number) * ROUNDS));
    }

    fn write(cpu: &Machine, at: u64, byte: u8) {
        cpu.memory().write(Gpa(at), &[byte]).unwrap();
    }

    /// Blocks translated, opened again, and dropped.
    fn counts(cpu: &Machine) -> [u64; 3] {
        let counts = cpu.jit().expect("there is one").counts;
        [counts.translated, counts.opened, counts.dropped]
    }

    #[test]
    fn a_write_beside_it_leaves_code_in_use() {
        for parallel in [false, true] {
            let mut cpu = machine(parallel);
            // What is behind the loop is translated later.
            (0..10).for_each(|_| run(&mut cpu, 1));
            let [translated, ..] = counts(&cpu);
            let decoded = |cpu: &Machine| cpu.blocks().counts.decoded;
            let before = decoded(&cpu);
            for byte in 1..=10 {
                write(&cpu, DATA, byte);
                let interpreted = cpu.blocks().counts.executed;
                run(&mut cpu, 1);
                assert!(cpu.blocks().counts.executed - interpreted <= 2, "the loop was interpreted");
            }
            let [again, opened, dropped] = counts(&cpu);
            assert_eq!((again, dropped, decoded(&cpu)), (translated, 0, before));
            assert!(opened >= 10, "{opened}");
        }
    }

    #[test]
    fn a_write_into_it_is_executed_whenever_it_comes() {
        for parallel in [false, true] {
            let mut cpu = machine(parallel);
            run(&mut cpu, 1);
            for number in 2..=20 {
                // At once, behind a write beside it, and after it was closed for that.
                match number % 3 {
                    0 => write(&cpu, DATA, number),
                    1 => {
                        write(&cpu, DATA, number);
                        let at = cpu.state.rip;
                        cpu.state.rip = DATA + 1;
                        assert_eq!(cpu.run(Until { counter: None, instructions: Some(1) }), Exit::Budget);
                        cpu.state.rip = at;
                    }
                    _ => {}
                }
                write(&cpu, OPERAND, number);
                run(&mut cpu, number);
                // And once more, as it is used again.
                run(&mut cpu, number);
            }
            let [.., dropped] = counts(&cpu);
            assert!(dropped >= 10, "{dropped}");
        }
    }

    #[test]
    fn what_a_block_goes_on_into_is_compared_too() {
        // The loop in two halves, a jump between them: translated as one, found by the first.
        const SECOND: u64 = LOOP + 0x40;
        for parallel in [false, true] {
            let mut cpu = machine(parallel);
            cpu.memory().write(Gpa(LOOP), &[0x48, 0xff, 0xc0, 0xeb, 0x3b]).unwrap();
            let second = [0x48, 0x83, 0xc3, 1, 0x48, 0xff, 0xc9, 0x75, 0xb7, 0xf4];
            cpu.memory().write(Gpa(SECOND), &second).unwrap();
            run(&mut cpu, 1);
            for number in 2..=20 {
                write(&cpu, DATA, number);
                run(&mut cpu, number - 1);
                write(&cpu, SECOND + 3, number);
                run(&mut cpu, number);
            }
        }
    }
}
