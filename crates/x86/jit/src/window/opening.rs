//! What opens a window whose page the TLB does not have, for all blocks: where that is in two pages, they are looked for here first.

use std::mem::offset_of;

use super::Range;
use crate::asm::{Alu, Asm, Label, Mem, Reg, cc};
use crate::host::Host;
use crate::stubs::{self, HOST_RSP, S1, S2};
use satori_soft::mmu::{Mode, Tlb};

/// How many of them there are.
pub(crate) const OPENINGS: usize = 24;

/// The number of the one for an access with the rights of `mode`, of a block that uses the host's `vectors`.
pub(crate) fn opening(mode: Mode, write: bool, nested: bool, vectors: bool) -> usize {
    (tag(mode, write) << 1 | usize::from(nested)) << 1 | usize::from(vectors)
}

/// The number of a tag in an entry of the TLB.
fn tag(mode: Mode, write: bool) -> usize {
    2 * mode as usize + usize::from(write)
}

/// What they call.
pub(crate) struct Calls {
    /// [`Stubs::range`](stubs::Stubs::range), [`Stubs::crossed`](stubs::Stubs::crossed) and
    /// [`Stubs::load_vectors`](stubs::Stubs::load_vectors).
    pub range: u64,
    pub crossed: u64,
    pub load_vectors: u64,
}

const FIRST: Reg = Reg(1);
const LAST: Reg = Reg(2);
const ENTRY: Reg = Reg(6);

/// Emits all of them, and tells where they are.
pub(crate) fn emit(asm: &mut Asm, host: &Host, calls: &Calls) -> [u64; OPENINGS] {
    let mut places = [0; OPENINGS];
    for mode in [Mode::Supervisor, Mode::User, Mode::SupervisorAc] {
        for bits in 0..8 {
            let [write, nested, vectors] = [4, 2, 1].map(|bit| bits & bit != 0);
            places[opening(mode, write, nested, vectors)] = asm.address(asm.here());
            emit_one(asm, host, calls, (tag(mode, write), nested, vectors));
        }
    }
    places
}

/// Emits a function that opens the window of the range at S1 for the access at S2: S1 is the distance to the host's memory then, and
/// ZF is set if it must stand alone, with or without code for that in the context. S2 and flags are lost.
fn emit_one(asm: &mut Asm, host: &Host, calls: &Calls, (tag, nested, vectors): (usize, bool, bool)) {
    let field = |offset: usize| Mem::at(S1, offset as i32);
    let start = asm.bound();
    let [look, often, before] = std::array::from_fn(|_| asm.label());
    for register in [FIRST, LAST, ENTRY] {
        asm.push(register);
    }
    let restore = |asm: &mut Asm| {
        for register in [ENTRY, LAST, FIRST] {
            asm.pop(register);
        }
    };
    asm.load(FIRST, field(offset_of!(Range, low)));
    asm.lea(FIRST, Mem::sum(FIRST, S2, 0));
    asm.load(LAST, field(offset_of!(Range, high)));
    asm.lea(LAST, Mem::sum(LAST, S2, -1));
    asm.mov(ENTRY, FIRST);
    asm.alu(Alu::Xor, ENTRY, LAST);
    asm.alu_imm(Alu::And, ENTRY, -0x1000);
    asm.jcc(cc::E, look);
    // On either side of the end of 32-bit code's addresses.
    asm.shr(ENTRY, 32);
    asm.jcc(cc::NE, look);
    asm.alu_at(Alu::Sub, field(offset_of!(Range, crossings)), 1);
    asm.jcc(cc::S, often);
    asm.alu_at(Alu::Cmp, field(offset_of!(Range, without)), 0);
    asm.jcc(cc::NE, before);
    asm.alu_byte(Alu::Cmp, field(offset_of!(Range, joins)), 0);
    asm.jcc(cc::E, look);
    for page in [FIRST, LAST] {
        emit_look(asm, host, page, (tag, nested), look);
    }
    asm.alu(Alu::Cmp, FIRST, LAST);
    asm.jcc(cc::NE, look);
    asm.mov(S1, LAST);
    restore(asm);
    // Clears ZF.
    asm.alu_imm(Alu::Cmp, HOST_RSP, 0);
    asm.ret();
    asm.bind(before);
    asm.load(FIRST, field(offset_of!(Range, without)));
    asm.store(stubs::without(), FIRST);
    restore(asm);
    asm.alu(Alu::Cmp, S1, S1);
    asm.ret();
    asm.bind(often);
    restore(asm);
    asm.push(S1);
    asm.call_to(calls.crossed);
    asm.pop(S1);
    if vectors {
        asm.call_to(calls.load_vectors);
    }
    asm.jmp(start);
    asm.bind(look);
    restore(asm);
    if !vectors {
        asm.jmp_to(calls.range);
        return;
    }
    asm.alu_imm(Alu::Sub, HOST_RSP, 8);
    asm.call_to(calls.range);
    asm.call_to(calls.load_vectors);
    // Flags stay.
    asm.lea(HOST_RSP, Mem::at(HOST_RSP, 8));
    asm.ret();
}

/// Makes of the address of a byte in `page` how far its page on the host is; goes to `look` if the TLB does not have it.
fn emit_look(asm: &mut Asm, host: &Host, page: Reg, (tag, nested): (usize, bool), look: Label) {
    let shift = 12 - Tlb::ENTRY_SHIFT;
    if host.bmi2 {
        asm.rorx32(ENTRY, page, shift);
    } else {
        asm.mov32(ENTRY, page);
        asm.shr32(ENTRY, shift);
    }
    asm.alu_imm32(Alu::And, ENTRY, Tlb::SLOT_MASK);
    if nested {
        asm.alu_mem(Alu::Add, ENTRY, stubs::nested_entries());
    }
    asm.alu_mem(Alu::Xor, page, stubs::tlb(ENTRY, Tlb::TAG_OFFSET + 8 * tag));
    asm.alu_imm(Alu::Cmp, page, 0xfff);
    asm.jcc(cc::A, look);
    asm.load(page, stubs::tlb(ENTRY, Tlb::ADDEND_OFFSET));
}
