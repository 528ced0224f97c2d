//! String instructions. REP MOVS and REP STOS of what lies within one page on either side are the host's own instruction, or
//! for few elements, which that takes long to begin with, a loop.

mod once;

use iced_x86::{Code, Instruction, OpKind};
use satori_defs::x86::rflags;
use satori_state::{reg, seg};

use once::Way;

use super::asm::{Alu, Mem, Reg, cc};
use super::lower::Lower;
use super::narrow::is_flat;
use super::stubs::{self, GUEST_RAX, S1, S2};
use satori_soft::code_mode::BITS_64;
use satori_soft::isa::Isa;
use satori_soft::mmu::Tlb;

/// Elements that a loop is faster for: the host's instruction takes as long as some twenty of others to begin.
const FEW: i32 = 8;

/// Bytes of a page.
const PAGE: i32 = 4096;

/// The host's registers for a string instruction are the guest's.
const RCX: Reg = Reg(1);
const RSI: Reg = Reg(6);
const RDI: Reg = Reg(7);

/// Binary logarithm of the size of `insn`'s elements, and whether it is MOVS; nothing for others.
fn shape(insn: &Instruction, code_mode: u64) -> Option<(u8, bool)> {
    let (shift, moves) = match insn.code() {
        Code::Stosb_m8_AL => (0, false),
        Code::Stosw_m16_AX => (1, false),
        Code::Stosd_m32_EAX => (2, false),
        Code::Stosq_m64_RAX => (3, false),
        Code::Movsb_m8_m8 => (0, true),
        Code::Movsw_m16_m16 => (1, true),
        Code::Movsd_m32_m32 => (2, true),
        Code::Movsq_m64_m64 => (3, true),
        _ => return None,
    };
    let repeated = insn.has_rep_prefix() || insn.has_repne_prefix();
    let narrow = code_mode & BITS_64 == 0;
    let (to, from) = match narrow {
        true => (OpKind::MemoryESEDI, OpKind::MemorySegESI),
        false => (OpKind::MemoryESRDI, OpKind::MemorySegRSI),
    };
    let whole = insn.op0_kind() == to && (!moves || insn.op1_kind() == from);
    let source = insn.memory_segment().number();
    let flat = !moves || !matches!(source, seg::FS | seg::GS) && (!narrow || is_flat(code_mode, source));
    let flat = flat && (!narrow || is_flat(code_mode, seg::ES));
    (repeated && whole && flat).then_some((shift, moves))
}

impl Lower<'_> {
    /// Emits `insn` if it is a string instruction without a repetition, or a repeated MOVS or STOS. Of those what does not lie within one page, goes
    /// downwards, or has no translation yet is left to the generic implementation.
    pub(crate) fn strings(&mut self, isa: &Isa, insn: &Instruction) -> bool {
        let Some((shift, moves)) = shape(insn, self.block.code_mode) else { return self.once(insn) };
        let homes = [(reg::RCX, RCX), (reg::RSI, RSI), (reg::RDI, RDI)];
        debug_assert!(homes.iter().all(|(guest, host)| self.home(*guest) == Some(*host)), "copied as it is");
        self.save_flags();
        let (other, back) = (self.asm.label(), self.asm.label());
        if self.narrow() {
            // Their upper halves do not count.
            self.asm.mov(S1, RCX);
            self.asm.alu(Alu::Or, S1, RDI);
            if moves {
                self.asm.alu(Alu::Or, S1, RSI);
            }
            self.asm.shr(S1, 32);
            self.asm.jcc(cc::NE, other);
        }
        self.asm.alu_imm(Alu::Cmp, RCX, PAGE >> shift);
        self.asm.jcc(cc::A, other);
        self.asm.test_at(stubs::rflags_high(), (rflags::DF >> 8) as u8);
        self.asm.jcc(cc::NE, other);
        if moves {
            self.range(RSI, shift, false);
            self.asm.jcc(cc::NE, other);
            self.asm.load(S1, stubs::tlb(S1, Tlb::ADDEND_OFFSET));
            self.asm.store(stubs::temporary(), S1);
        }
        self.range(RDI, shift, true);
        self.asm.jcc(cc::NE, other);
        if self.block.parallel {
            self.asm.store(stubs::stored(), S1);
            (self.current.stores, self.views.stored_in) = (true, None);
        }
        self.asm.load(S2, stubs::tlb(S1, Tlb::ADDEND_OFFSET));
        self.asm.alu(Alu::Add, RDI, S2);
        if moves {
            self.asm.alu_mem(Alu::Add, RSI, stubs::temporary());
        } else {
            self.asm.mov(S1, GUEST_RAX);
        }
        let (many, done) = (self.asm.label(), self.asm.label());
        self.asm.alu_imm(Alu::Cmp, RCX, FEW);
        self.asm.jcc(cc::A, many);
        let next = self.asm.bound();
        self.asm.alu_imm(Alu::Sub, RCX, 1);
        self.asm.jcc(cc::S, done);
        if moves {
            self.element(Way::Load, shift, S1, Mem::at(RSI, 0));
            self.asm.lea(RSI, Mem::at(RSI, 1 << shift));
        }
        self.element(Way::Store, shift, S1, Mem::at(RDI, 0));
        self.asm.lea(RDI, Mem::at(RDI, 1 << shift));
        self.asm.jmp(next);
        self.asm.bind(many);
        self.asm.rep(shift, moves);
        self.asm.bind(done);
        self.asm.constant(RCX, 0);
        self.asm.alu(Alu::Sub, RDI, S2);
        if moves {
            self.asm.alu_mem(Alu::Sub, RSI, stubs::temporary());
        }
        self.otherwise(isa, insn, other, back);
        true
    }

    /// Compares the tag of the page at `start` with that of the last of RCX elements; S1 is where the
    /// TLB's entry is. RCX is at most a page's worth, so equal tags mean that all are in the page.
    fn range(&mut self, start: Reg, shift: u8, write: bool) {
        let entry = 2 * self.block.mode as usize + usize::from(write);
        self.asm.lea(S2, Mem { cpu: false, base: Some(start), index: Some((RCX, shift)), disp: -1 });
        self.asm.mov32(S1, start);
        self.asm.alu_imm(Alu::And, S2, -PAGE);
        self.asm.shr32(S1, 12 - Tlb::ENTRY_SHIFT);
        self.entry_place();
        self.asm.alu_mem(Alu::Cmp, S2, stubs::tlb(S1, Tlb::TAG_OFFSET + 8 * entry));
    }
}
