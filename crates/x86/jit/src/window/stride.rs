//! Rounds of loops in which accesses are known to stay in their pages.
//!
//! Where the registers of an address change by constants only, or by a register that the loop does not change, it moves by the same
//! distance in each round: its *stride*. So a
//! loop with such accesses has a third copy, in which they do not look whether they left their page. Behind each round of the second
//! copy, which did look, it is computed how many more rounds all of them stay where they are; so many run in the third copy,
//! then one in the second again. The rounds are counted by the budget, which is lowered to what they take, so that counting
//! costs nothing; what was taken off waits in `Context::left`, as far as sums of both are concerned, and in `Context::reserve`, for
//! when the rounds are over.
//!
//! What leads from addresses to host memory is in registers of the host's there, as far as the guest's that are elsewhere in them are of no
//! use to the loop: those are in the register file meanwhile.
//!
//! What is computed is how far the range of bytes is from the end of its page, so no address wraps around on the way: that of a
//! round of the third copy is in the page that was seen, as all before it. Accesses with other addresses look as they do in the
//! second copy, and share its places.

use std::mem::offset_of;

use iced_x86::Instruction;

use super::paged::Kept;
use super::step::{Key, Sum};
use super::{Opened, PLACES, Place, Round, WINDOWS, Window, opened};
use crate::asm::{Alu, Label, Mem, Reg, cc};
use crate::lower::Lower;
use crate::memory::Address;
use crate::reach::Page;
use crate::stubs::{self, BUDGET, S1, S2};
use satori_soft::isa::Isa;
use satori_state::reg;

/// Bytes from one round to the next at most: what moves faster leaves its page too soon.
const FAR: i64 = 256;
/// Rounds if nothing moves: no budget lasts longer.
const ENDLESS: i32 = 0xffff;
/// Binary digits of the reciprocals that distances are multiplied by.
const DIGITS: u8 = 13;

/// How an access moves.
#[derive(Clone, Copy)]
pub(super) struct Stride {
    /// Bytes from one round to the next.
    by: i64,
    /// Bytes from where it would be at the round's start to where it is when it is made.
    moved: i64,
    /// What is added to `by`, if that is not all.
    more: Option<More>,
}

/// A part of a stride that is in a register, which the loop does not change.
#[derive(Clone, Copy)]
struct More {
    register: usize,
    /// By what it is shifted, and whether it is subtracted then.
    shift: u8,
    minus: bool,
    /// The access is made behind the addition of it.
    moved: bool,
    /// Whether the stride is likely upwards.
    up: bool,
}

impl Stride {
    /// Whether it is upwards.
    fn up(&self) -> bool {
        self.more.map_or(self.by > 0, |more| more.up)
    }
}

/// Where the third copy goes on.
#[derive(Clone, Copy)]
pub(crate) struct Over {
    /// The rounds are over that were known to stay in their pages.
    refill: Label,
    /// The block's page was written.
    gone: Label,
}

/// What is added to what the context holds of an access.
#[derive(Clone, Copy)]
enum Way {
    /// The whole address.
    Sum,
    /// Its base.
    Base(usize),
    /// Its index, with log2 of the scale.
    Index(usize, u8),
}

impl Lower<'_> {
    /// How accesses through `key` move from here, if that is by the same distance each time, and likely not far.
    pub(super) fn stride(&self, key: &Key) -> Option<Stride> {
        if key.segment.is_some() {
            return None;
        }
        let mut stride = Stride { by: 0, moved: 0, more: None };
        for (at, step) in self.views.steps.iter().enumerate() {
            if key.loses(step.changes, step.changes) {
                let more = self.more(key, step.sum.filter(|_| step.changes.is_power_of_two())?)?;
                if stride.more.replace(More { moved: at < self.current.at, ..more }).is_some() {
                    return None;
                }
                continue;
            }
            let Some((register, amount)) = step.shift else { continue };
            let mut by = 0i64;
            if key.base == Some(register as u8) {
                by = by.wrapping_add(amount);
            }
            if let Some((index, shift)) = key.index
                && index == register as u8
            {
                by = by.wrapping_add(amount << shift);
            }
            stride.by = stride.by.wrapping_add(by);
            if at < self.current.at {
                stride.moved = stride.moved.wrapping_add(by);
            }
        }
        let mut likely = stride.by;
        if let Some(more) = &mut stride.more {
            let part = (self.block.gpr[more.register] as i64) << more.shift;
            likely = if more.minus { likely.wrapping_sub(part) } else { likely.wrapping_add(part) };
            more.up = likely >= 0;
        }
        let near = i32::try_from(stride.moved).is_ok() && i32::try_from(stride.by).is_ok();
        (near && (-FAR..=FAR).contains(&likely)).then_some(stride)
    }

    /// What `sum` adds to addresses through `key`, if it is the same each time.
    fn more(&self, key: &Key, sum: Sum) -> Option<More> {
        let shift = match (key.base, key.index) {
            (Some(base), Some((index, _))) if base == index => return None,
            (Some(base), _) if base == sum.to => 0,
            (_, Some((index, shift))) if index == sum.to => shift,
            _ => return None,
        };
        let constant = self.block.changed & 1 << sum.from == 0;
        // Operands have room for three bits at most.
        let shift = Some(shift + sum.shift).filter(|shift| constant && *shift <= 3)?;
        Some(More { register: sum.from.into(), shift, minus: sum.minus, moved: false, up: true })
    }

    /// Whether the loop has accesses that move by a constant.
    pub(crate) fn strides(&self) -> bool {
        let stays = |key: &Key| self.views.windows.open.iter().any(|(_, window)| window.key == *key);
        let strides = |key: &Key| !stays(key) && self.stride(key).is_some();
        // Of four rounds or less none is left for which looking ahead was worth it.
        let short = self.block.often >> (self.block.all.len() - 1) & 1 != 0;
        self.views.paged
            && !short
            && self.views.paired.is_none()
            && self.views.steps.iter().any(|step| step.uses().any(|one| strides(&one.key)))
    }

    /// Whether the next access, through `key` at an address that must be a multiple of `align`, is known to be in its page, and at
    /// such an address.
    pub(super) fn planned(&self, key: &Key, align: u8) -> bool {
        let next = self.views.plan.get(self.views.windows.paged.len());
        self.views.round == Round::Strided
            && next.is_some_and(|kept| {
                kept.stride.is_some() && Key::of(&kept.address) == Some(*key) && kept.align >= align
            })
    }

    fn way(&self, address: &Address) -> Way {
        let moves = |register: usize| self.block.changed & 1 << register != 0;
        match (address.base, address.index) {
            // Its sum is of 32 bits.
            _ if address.short => Way::Sum,
            (Some(base), None) => Way::Base(base),
            (None, Some((index, shift))) => Way::Index(index, shift),
            (Some(base), Some((index, shift))) => match (moves(base), moves(index)) {
                (true, true) => Way::Sum,
                (true, false) => Way::Base(base),
                (false, _) => Way::Index(index, shift),
            },
            (None, None) => Way::Sum,
        }
    }

    /// Whether what the second copy remembers of `kept` is all that [`Lower::way`] needs.
    fn in_place(&self, kept: &Kept) -> bool {
        let whole = match self.way(&kept.address) {
            Way::Sum => true,
            Way::Base(_) => kept.address.index.is_none(),
            Way::Index(..) => kept.address.base.is_none(),
        };
        whole && !kept.absolute
    }

    /// The operand for an access that is in its page, and whether S2 is free. Flags stay.
    pub(super) fn at_stride(&mut self, address: &Address, write: bool, number: usize) -> (Mem, bool) {
        if write && self.block.parallel {
            (self.current.stores, self.views.stored_in) = (true, Some(number as u8));
        }
        let pointer = self.pointer(number).unwrap_or(S1);
        if pointer == S1 {
            if self.views.pointer != Some((number, self.asm.changes())) {
                self.asm.load(S1, self.led_to(number));
            }
            self.views.pointer = Some((number, self.asm.changes()));
        }
        // What has a register has no more than 32 bits beside it.
        let disp = address.disp as i32;
        match self.way(address) {
            Way::Sum => {
                self.effective_beside(S2, S1, address, 0);
                (Mem::sum(pointer, S2, 0), false)
            }
            Way::Base(base) => {
                let (host, free) = self.held(base);
                (Mem::sum(pointer, host, disp), free)
            }
            Way::Index(index, shift) => {
                let (host, free) = self.held(index);
                (Mem { cpu: false, base: Some(pointer), index: Some((host, shift)), disp }, free)
            }
        }
    }

    /// The host's register that has what leads to host memory by window `number`.
    pub(super) fn pointer(&self, number: usize) -> Option<Reg> {
        self.places.pointers[number].filter(|_| self.views.round == Round::Strided)
    }

    /// Where the context has what window `number` adds to addresses in the third copy, or its pointer.
    fn led_to(&self, number: usize) -> Mem {
        let kept = number.checked_sub(WINDOWS).and_then(|at| self.views.plan.get(at));
        let now = kept.is_some_and(|kept| !self.in_place(kept));
        opened(number, if now { offset_of!(Opened, now) } else { offset_of!(Opened, place) })
    }

    /// Loads all registers that have such a value in the third copy.
    pub(crate) fn load_pointers(&mut self) {
        for number in 0..PLACES {
            if let Some(register) = self.places.pointers[number] {
                self.asm.load(register, self.led_to(number));
            }
        }
    }

    /// Gives what leads to host memory the registers that the loop has no use for: first what is strided, then windows that stay.
    fn keep_pointers(&mut self) {
        let strided = self.views.plan.iter().enumerate().filter(|(_, kept)| kept.stride.is_some());
        let mut wanted: Vec<usize> = strided.map(|(at, _)| WINDOWS + at).collect();
        let stays = |one: &&(usize, Window)| one.1.place == Place::Pointer;
        wanted.extend(self.views.windows.open.iter().filter(stays).map(|(number, _)| *number));
        let all = self.block.all.clone();
        let (homes, free) = self.places.loop_homes.freed(self.info, &all, self.block.code_mode, wanted.len());
        self.places.pointers = [None; PLACES];
        for (number, register) in wanted.into_iter().zip(free) {
            self.places.pointers[number] = Some(register);
        }
        self.places.strided = homes;
        self.move_to(homes);
        self.load_pointers();
    }

    /// The host's register with the guest's `register`, which may be S2, and whether S2 is free.
    fn held(&mut self, register: usize) -> (Reg, bool) {
        match self.home(register) {
            Some(host) => (host, true),
            None => {
                self.asm.load(S2, stubs::gpr(register));
                (S2, false)
            }
        }
    }

    /// Behind the second copy, whose rounds start at `round`: the third one, and how many rounds it may run. Returns the labels of what
    /// comes behind those rounds; nothing if there is no third copy.
    pub(crate) fn strided(
        &mut self,
        isa: &Isa,
        all: &[Instruction],
        pages: &[Page],
        round: Label,
    ) -> Option<Over> {
        let plan = self.views.windows.paged.clone();
        // What calls its generic implementation may have the budget filled up.
        if !self.output.sites.is_empty() || plan.iter().all(|kept| kept.stride.is_none()) {
            self.asm.jmp(round);
            return None;
        }
        let (mark, cold, links, ranges, values) = (
            self.asm.mark(),
            self.output.cold.len(),
            self.output.links.len(),
            self.views.ranges.len(),
            self.output.values.len(),
        );
        self.begin_round(Round::Strided);
        self.plan(&plan, round, all.len() as u32);
        self.views.plan = plan;
        self.keep_pointers();
        let (gone, refill, start) = (self.asm.label(), self.asm.label(), self.asm.bound());
        self.head(pages, all.len(), refill, gone);
        self.views.again = Some(start);
        self.body(isa, all);
        if !std::mem::take(&mut self.views.astray) && self.output.sites.is_empty() {
            return Some(Over { refill, gone });
        }
        self.places.pointers = [None; PLACES];
        self.asm.rollback(mark);
        self.output.cold.truncate(cold);
        self.output.links.truncate(links);
        self.output.values.truncate(values);
        self.views.ranges.truncate(ranges);
        self.output.sites.clear();
        self.asm.jmp(round);
        None
    }

    /// Emits what computes how many rounds of `count` instructions all that is strided stays in its page, and lowers the budget to
    /// that; goes back to `round` if they are none.
    fn plan(&mut self, plan: &[Kept], round: Label, count: u32) {
        let mut known = false;
        for (at, kept) in plan.iter().enumerate() {
            let Some(stride) = kept.stride else { continue };
            let number = WINDOWS + at;
            if let Some(more) = &stride.more {
                self.measure(more, stride.by as i32, round);
            }
            self.offset_at_start(kept, number);
            if kept.align > 1 {
                // It was a multiple in the round before: if it is one now, the stride is one, too.
                self.asm.test_byte(S2, kept.align - 1);
                self.asm.jcc(cc::NE, round);
            }
            if stride.up() {
                self.asm.load(S1, opened(number, offset_of!(Opened, limit)));
                self.asm.alu(Alu::Sub, S1, S2);
                self.asm.jcc(cc::BE, round);
                self.asm.lea(S1, Mem::at(S1, -1));
            } else {
                self.asm.alu_mem(Alu::Cmp, S2, opened(number, offset_of!(Opened, limit)));
                self.asm.jcc(cc::AE, round);
                self.asm.mov(S1, S2);
            }
            let by = stride.by;
            if by != 0 || stride.more.is_some() {
                match stride.more {
                    Some(_) => self.divide_by_stride(),
                    None => self.rounds(S1, by.unsigned_abs() as u32),
                }
                let fewer = self.asm.label();
                if known {
                    self.asm.alu_mem(Alu::Cmp, S1, stubs::rounds());
                    self.asm.jcc(cc::AE, fewer);
                }
                self.asm.store(stubs::rounds(), S1);
                self.asm.bind(fewer);
                known = true;
            }
            self.lead_to(kept, number);
        }
        if known {
            self.asm.load(S1, stubs::rounds());
            self.asm.alu_imm(Alu::Cmp, S1, 1);
            self.asm.jcc(cc::B, round);
        } else {
            self.asm.constant(S1, ENDLESS as u64);
        }
        // The last of them is the one that begins where all still are in their pages.
        self.asm.imul32(S1, S1, count);
        self.asm.lea(S1, Mem::at(S1, count as i32));
        let enough = self.asm.label();
        self.asm.store_imm(stubs::reserve(), 0);
        self.asm.mov(S2, BUDGET);
        self.asm.alu(Alu::Sub, S2, S1);
        self.asm.jcc(cc::BE, enough);
        self.asm.store(stubs::reserve(), S2);
        self.asm.alu(Alu::Sub, BUDGET, S2);
        self.asm.alu_mem(Alu::Add, S2, stubs::left());
        self.asm.store(stubs::left(), S2);
        self.asm.bind(enough);
    }

    /// Puts into S2 how far from the start of its page the range of `kept` begins in the round that comes next; S1 is lost.
    fn offset_at_start(&mut self, kept: &Kept, number: usize) {
        let (moved, more) = kept.stride.map_or((0, None), |stride| (stride.moved, stride.more));
        let mut address = kept.address;
        let mut first = kept.first;
        if address.short {
            // That wraps around, while bytes behind the first do not.
            address.disp = i64::from(address.disp.wrapping_add(moved) as i32);
        } else {
            first = first.wrapping_add(moved);
        }
        self.effective(S2, &address, first);
        if let Some(more) = more.filter(|more| more.moved) {
            self.part(S1, &more, 0);
            self.asm.alu(if more.minus { Alu::Sub } else { Alu::Add }, S2, S1);
        }
        self.asm.alu_mem(Alu::Sub, S2, opened(number, offset_of!(Opened, page)));
    }

    /// Puts the part of a stride that is in a register into `to`, before it is subtracted if so, plus `disp`.
    fn part(&mut self, to: Reg, more: &More, disp: i32) {
        let host = self.home(more.register).unwrap_or_else(|| {
            self.asm.load(to, stubs::gpr(more.register));
            to
        });
        self.asm.lea(to, Mem { cpu: false, base: None, index: Some((host, more.shift)), disp });
    }

    /// Leaves in the context how many bytes a stride has of which `by` is a constant part; goes back to `round` if it
    /// is none, far, or the other way than it was likely.
    fn measure(&mut self, more: &More, by: i32, round: Label) {
        // It is the stride, or the same downwards.
        self.part(S2, more, if more.minus { by.wrapping_neg() } else { by });
        if more.minus == more.up {
            self.asm.neg(S2, true);
        }
        self.asm.lea(S1, Mem::at(S2, -1));
        self.asm.alu_imm(Alu::Cmp, S1, FAR as i32);
        self.asm.jcc(cc::AE, round);
        self.asm.store(stubs::spare(), S2);
    }

    /// Divides S1, which is less than 2^32, by what [`Lower::measure`] left; S2 is lost.
    fn divide_by_stride(&mut self) {
        let rdx = Reg(reg::RDX as u8);
        self.asm.load(S2, stubs::spare());
        self.asm.push(rdx);
        self.asm.constant(rdx, 0);
        self.asm.divide32(S2);
        self.asm.pop(rdx);
    }

    /// Makes of a number of bytes how many whole steps of `by` are in them, or one less.
    fn rounds(&mut self, bytes: Reg, by: u32) {
        if by.is_power_of_two() {
            if by > 1 {
                self.asm.shr32(bytes, by.ilog2() as u8);
            }
            return;
        }
        self.asm.imul32(bytes, bytes, (1 << DIGITS) / by);
        self.asm.shr32(bytes, DIGITS);
    }

    /// Leaves in the context what the register that moves is to be added to; both scratch registers are lost.
    fn lead_to(&mut self, kept: &Kept, number: usize) {
        if self.in_place(kept) {
            return;
        }
        self.asm.load(S1, opened(number, offset_of!(Opened, place)));
        if kept.absolute {
            self.asm.alu_mem(Alu::Sub, S1, opened(number, offset_of!(Opened, page)));
        }
        let other = match self.way(&kept.address) {
            Way::Sum => None,
            Way::Base(_) => kept.address.index,
            Way::Index(..) => kept.address.base.map(|base| (base, 0)),
        };
        if let Some((register, shift)) = other {
            let host = self.home(register).unwrap_or_else(|| {
                self.asm.load(S2, stubs::gpr(register));
                S2
            });
            self.asm.lea(S1, Mem { cpu: false, base: Some(S1), index: Some((host, shift)), disp: 0 });
        }
        self.asm.store(opened(number, offset_of!(Opened, now)), S1);
    }

    /// Behind the rounds that were known to stay in their pages: the budget is whole again, and the second copy goes on at `round`, or
    /// at `gone` if the block's page was written.
    pub(crate) fn end_strided(&mut self, over: Over, count: usize, (round, gone): (Label, Label)) {
        self.asm.bind(over.refill);
        self.asm.alu_imm(Alu::Add, BUDGET, count as i32);
        self.asm.load(S1, stubs::reserve());
        self.asm.alu(Alu::Add, BUDGET, S1);
        self.asm.load(S2, stubs::left());
        self.asm.alu(Alu::Sub, S2, S1);
        self.asm.store(stubs::left(), S2);
        for (label, to) in [(None, round), (Some(over.gone), gone)] {
            if let Some(label) = label {
                self.asm.bind(label);
            }
            self.places.homes = self.places.strided;
            self.move_to(self.places.loop_homes);
            self.asm.jmp(to);
        }
    }
}
