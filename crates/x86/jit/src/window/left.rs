//! The code of accesses whose page is not known, out of the way.

use std::mem::offset_of;

use super::opening::opening;
use super::{Opened, Paged, Range, Site, left_pages, opened};
use crate::asm::{Alu, Label, Mem, cc};
use crate::lower::Lower;
use crate::memory::Address;
use crate::stubs::{self, S1, S2};
use satori_soft::code_mode::side;
use satori_soft::mmu::{Side, Tlb};

impl Lower<'_> {
    /// The code of an access in a loop that left its page, out of the way.
    pub(crate) fn emit_paged(&mut self, paged: &Paged, range: u64, rip: u64, rest: u32) {
        let &Paged { label, retry, ref address, first, last, write, number, absolute, .. } = paged;
        let site = Site { range, first, last, write };
        if self.views.wide {
            return self.emit_range_of_loop(label, paged.have, address, site, (rip, rest), paged);
        }
        let (unknown, often) = (self.asm.label(), self.asm.label());
        self.asm.bind(label);
        self.look_for(address, write, (first, last));
        self.asm.jcc(cc::A, unknown);
        self.asm.alu_at(Alu::Sub, left_pages(), 1);
        self.asm.jcc(cc::S, often);
        if write && self.block.parallel {
            self.note_state(number as u8);
        }
        self.asm.load(S1, stubs::tlb(S1, Tlb::ADDEND_OFFSET));
        self.effective_beside(S2, S1, address, first);
        self.asm.alu_imm(Alu::And, S2, -0x1000);
        if absolute {
            self.asm.lea(S1, Mem::sum(S1, S2, 0));
        }
        self.asm.store(opened(number, offset_of!(Opened, place)), S1);
        self.asm.store(opened(number, offset_of!(Opened, page)), S2);
        self.asm.store_imm(opened(number, offset_of!(Opened, limit)), 0x1000 - (last - first) as i32);
        self.go_back(retry);
        self.asm.bind(often);
        self.emit_scattered(label);
        self.emit_range_of_loop(unknown, paged.have, address, site, (rip, rest), paged);
    }

    /// Tells that accesses left their pages many times, and goes on at `label`.
    fn emit_scattered(&mut self, label: Label) {
        self.asm.constant(S1, self.block.whole.into());
        self.asm.call_to(self.stubs.scattered);
        self.reload_vectors();
        self.asm.jmp(label);
    }

    /// Goes to `look` if the bytes from `first` to `last` are in one page, and to `beyond` if they are on either side of
    /// the end of 32-bit code's addresses.
    pub(super) fn in_one_page(
        &mut self,
        address: &Address,
        (first, last): (i64, i64),
        look: Label,
        beyond: Label,
    ) {
        self.effective(S2, address, first);
        self.asm.lea(S1, Mem::at(S2, (last - first) as i32));
        self.asm.alu(Alu::Xor, S1, S2);
        self.asm.alu_imm(Alu::And, S1, -0x1000);
        self.asm.jcc(cc::E, look);
        if address.narrow {
            self.asm.shr(S1, 32);
            self.asm.jcc(cc::NE, beyond);
        }
    }

    /// Goes to `found` if those bytes are in two pages that lie together, with the distance to the host's memory in S1; to
    /// `look` if they are in one, or the TLB does not have both. What comes next is emitted at `apart`.
    pub(crate) fn across(
        &mut self,
        address: &Address,
        write: bool,
        bytes: (i64, i64),
        (look, apart, found): (Label, Label, Label),
    ) {
        self.in_one_page(address, bytes, look, look);
        self.together(address, write, bytes, (look, apart, found));
    }

    /// As [`Lower::across`], if they are known to be in two pages.
    fn together(
        &mut self,
        address: &Address,
        write: bool,
        (first, last): (i64, i64),
        (look, apart, found): (Label, Label, Label),
    ) {
        self.look_for(address, write, (first, first));
        self.asm.jcc(cc::A, look);
        self.asm.load(S1, stubs::tlb(S1, Tlb::ADDEND_OFFSET));
        self.asm.store(stubs::spare(), S1);
        self.look_for(address, write, (last, last));
        self.asm.jcc(cc::A, look);
        self.asm.load(S1, stubs::tlb(S1, Tlb::ADDEND_OFFSET));
        self.asm.alu_mem(Alu::Cmp, S1, stubs::spare());
        self.asm.jcc(cc::NE, apart);
        self.asm.jmp(found);
    }

    /// The code of a range that the TLB does not have, out of the way.
    pub(crate) fn emit_range(
        &mut self,
        (label, have): (Label, Label),
        address: &Address,
        range: u64,
        write: bool,
        (rip, rest): (u64, u32),
    ) {
        let alone = self.asm.label();
        self.asm.bind(label);
        self.effective(S2, address, 0);
        self.asm.constant(S1, range);
        let nested = side(self.block.code_mode) == Side::Nested;
        self.asm.call_to(self.stubs.open[opening(self.block.mode, write, nested, self.block.units.vectors)]);
        self.asm.jcc(cc::E, alone);
        self.go_back(have);
        self.asm.bind(alone);
        self.emit_alone(rip, rest);
    }

    /// The same of an access in a loop that remembers its page.
    fn emit_range_of_loop(
        &mut self,
        label: Label,
        have: Label,
        address: &Address,
        Site { range, first, last, write }: Site,
        (rip, rest): (u64, u32),
        paged: &Paged,
    ) {
        let (alone, look, found) = (self.asm.label(), self.asm.label(), self.asm.label());
        let whole = self.asm.label();
        self.asm.bind(label);
        // It may be in two pages, and have been so before.
        let wide = self.views.wide;
        let often = self.asm.label();
        self.in_one_page(address, (first, last), look, look);
        self.asm.constant(S1, range);
        self.asm.alu_at(Alu::Sub, Mem::at(S1, offset_of!(Range, crossings) as i32), 1);
        self.asm.jcc(cc::S, often);
        self.asm.load(S1, Mem::at(S1, offset_of!(Range, without) as i32));
        self.asm.alu_imm(Alu::Cmp, S1, 0);
        let before = self.asm.label();
        self.asm.jcc(cc::NE, before);
        if !(wide || write && self.block.parallel) {
            self.together(address, write, (first, last), (look, look, whole));
        } else {
            self.asm.jmp(look);
        }
        self.asm.bind(before);
        self.asm.lea(stubs::BUDGET, Mem::at(stubs::BUDGET, rest as i32));
        self.asm.jmp_reg(S1);
        self.asm.bind(often);
        self.effective(S2, address, 0);
        self.asm.constant(S1, range);
        self.asm.call_to(self.stubs.crossed);
        self.reload_vectors();
        self.asm.jmp(label);
        self.asm.bind(look);
        if wide {
            let counted = self.asm.label();
            self.asm.alu_at(Alu::Sub, left_pages(), 1);
            self.asm.jcc(cc::NS, counted);
            self.emit_scattered(look);
            self.asm.bind(counted);
        }
        self.effective(S2, address, 0);
        self.asm.constant(S1, range);
        self.asm.call_to(self.stubs.range);
        self.reload_vectors();
        self.asm.jcc(cc::E, alone);
        self.asm.bind(found);
        if paged.absolute {
            self.effective_beside(S2, S1, address, first);
        } else {
            self.asm.store(opened(paged.number, offset_of!(Opened, place)), S1);
        }
        self.go_back(have);
        self.asm.bind(alone);
        self.emit_alone(rip, rest);
        self.asm.bind(whole);
        // In two pages that lie together: the next round looks again.
        self.asm.store_imm(opened(paged.number, offset_of!(Opened, limit)), 0);
        self.asm.jmp(found);
    }
}
