//! Loops whose accesses lie across the end of a page, while they do.
//!
//! A group of accesses has no window where its range is in two pages that are apart on the host: the block goes on
//! without any then. Where that happens at the start of a loop, it happens in the next rounds too, as an array's end of a
//! page passes through the group. So what goes on without windows has a second copy, as other loops do, in
//! which the distances to both pages are remembered, and each access chooses by its page. Once the group is in
//! one page, the block itself goes on.

use std::mem::offset_of;

use super::{Cold, Opened, Round, Use, opened, range};
use crate::Context;
use crate::Translating;
use crate::asm::{Alu, Label, Mem, Reg, cc};
use crate::flags::Flags;
use crate::lower::Lower;
use crate::memory::Address;
use crate::stubs::{self, BUDGET, S1, S2};
use satori_soft::mmu::Tlb;

/// Pages whose numbers differ in the low byte.
pub(crate) const PAIRS: usize = 256;
/// The longest access that a group may begin with: others are seldom where they should be.
const LONGEST: u32 = 8;

/// A group of accesses at the start of a loop, and where its code is.
pub(crate) struct Paired {
    label: Label,
    retry: Label,
    /// The code that goes on without windows.
    without: Label,
    address: Address,
    /// Its first and its last byte, from the access.
    first: i64,
    last: i64,
    write: bool,
    number: usize,
    /// What its first byte's address must be a multiple of.
    by: u8,
}

impl Paired {
    pub(crate) fn label(&mut self) -> &mut Label {
        &mut self.label
    }

    /// Bytes from where the range may begin to the second page: all that leaves it in both, and the first place
    /// before those that is a multiple.
    fn reach(&self) -> i32 {
        ((self.last - self.first + 1) as u64).next_multiple_of(self.by.into()) as i32
    }
}

/// Where the distance to the page is whose number's low byte is in `index`.
fn distance(index: Reg) -> Mem {
    Mem::word(index, offset_of!(Translating, context) + offset_of!(Context, pairs))
}

impl Lower<'_> {
    /// Whether the loop begins with a group of accesses that may be in two pages.
    pub(crate) fn pairs(&self) -> bool {
        let first = self.views.steps.first().and_then(|step| step.uses().next());
        first.is_some_and(|first| {
            let size = (first.high - first.low) as u32;
            let range = range(first, &self.views.steps, self.extent(self.block.rip));
            range.is_some_and(|range| self.can_pair(first, size, range))
        })
    }

    fn can_pair(&self, first: &Use, size: u32, (low, _): (i64, i64)) -> bool {
        // Who stores looks at the state of the one page.
        self.host.bmi2
            && self.views.paged
            && !(first.write && self.block.parallel)
            && size <= LONGEST
            && fits(first.low - low, size, size as u8)
    }

    /// Whether the window that `first` opens may lie in two pages: it is the first of a paired loop's round.
    pub(super) fn is_paired(&self, first: &Use, size: u32, range: (i64, i64)) -> bool {
        let begins = self.views.paired.is_some() && self.views.round == Round::Next && self.current.at == 0;
        begins && self.views.windows.paged.is_empty() && self.can_pair(first, size, range)
    }

    /// Emits the check that the range from displacement `low` to `high` lies in the two pages whose host distances window `number` of
    /// the context holds; a miss is cold code that opens it anew.
    pub(super) fn open_pair(
        &mut self,
        address: &Address,
        write: bool,
        (low, high): (i64, i64),
        number: usize,
        by: u8,
    ) {
        let Some(without) = self.views.paired else { return };
        self.spare_flags();
        let (first, last) = (low.wrapping_sub(address.disp), high.wrapping_sub(address.disp) - 1);
        let (label, retry) = (self.asm.label(), self.asm.bound());
        self.effective(S2, address, first);
        self.asm.alu_mem(Alu::Sub, S2, opened(number, offset_of!(Opened, page)));
        self.asm.alu_mem(Alu::Cmp, S2, opened(number, offset_of!(Opened, limit)));
        self.asm.jcc(cc::AE, label);
        if by > 1 {
            self.asm.test_byte(S2, by - 1);
            self.asm.jcc(cc::NE, label);
        }
        let paired = Paired { label, retry, without, address: *address, first, last, write, number, by };
        self.seldom(Cold::Paired { paired, rest: self.current.rest });
    }

    /// The operand for an access `place` bytes from the start of a range whose address is a multiple of `by`; nothing if it
    /// may be in two pages itself. Flags stay, unless there is a segment.
    pub(super) fn through_pair(
        &mut self,
        address: &Address,
        place: i64,
        size: u32,
        by: u8,
    ) -> Option<(Mem, bool)> {
        if !fits(place, size, by) {
            return None;
        }
        if address.segment.is_some() {
            // The sum changes flags.
            self.spare_flags();
        }
        // Who asks for a register and a displacement has a use for the other scratch register.
        let direct = self.register_only(address);
        let to = if direct.is_some() { S1 } else { S2 };
        self.effective(to, address, 0);
        self.number_of_page(to);
        self.asm.load(S1, distance(S1));
        Some(match direct {
            Some((base, disp)) => (Mem::sum(S1, base, disp), true),
            None => (Mem::sum(S1, S2, 0), false),
        })
    }

    /// Puts the low byte of the number of the page at `address` into S1.
    fn number_of_page(&mut self, address: Reg) {
        self.asm.rorx32(S1, address, 12);
        self.asm.extend_al();
    }

    /// The code of a group that left the two pages.
    pub(crate) fn emit_paired(&mut self, paired: &Paired, rest: u32) {
        let &Paired { label, retry, without, ref address, first, last, write, number, by } = paired;
        let (whole, alone) = (self.asm.label(), self.asm.label());
        self.asm.bind(label);
        self.in_one_page(address, (first, last), whole, alone);
        if by > 1 {
            self.asm.test_byte(S2, by - 1);
            self.asm.jcc(cc::NE, alone);
        }
        for byte in [first, last] {
            self.look_for(address, write, (byte, byte));
            self.asm.jcc(cc::A, alone);
            self.asm.load(S1, stubs::tlb(S1, Tlb::ADDEND_OFFSET));
            self.asm.store(stubs::spare(), S1);
            self.effective(S2, address, byte);
            self.number_of_page(S2);
            self.asm.load(S2, stubs::spare());
            self.asm.store(distance(S1), S2);
        }
        self.effective(S2, address, last);
        self.asm.alu_imm(Alu::And, S2, -0x1000);
        self.asm.lea(S2, Mem::at(S2, -paired.reach()));
        self.asm.store(opened(number, offset_of!(Opened, page)), S2);
        self.asm.store_imm(opened(number, offset_of!(Opened, limit)), paired.reach());
        self.go_back(retry);
        self.asm.bind(alone);
        self.asm.lea(BUDGET, Mem::at(BUDGET, rest as i32));
        self.asm.jmp(without);
        self.asm.bind(whole);
        self.asm.lea(BUDGET, Mem::at(BUDGET, rest as i32));
        self.status.flags = Flags::Saved;
        self.link(self.block.rip);
    }
}

/// Whether an access `place` bytes from an address that is a multiple of `by` is in one page.
fn fits(place: i64, size: u32, by: u8) -> bool {
    size.is_power_of_two() && size <= by.into() && place % i64::from(size) == 0
}
