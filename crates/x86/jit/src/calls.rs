//! SYSCALL and SYSRET between 64-bit code at privilege levels 3 and 0, when their target is known.

use std::mem::offset_of;

use iced_x86::Instruction;
use satori_cpuid::Vendor;
use satori_defs::x86::{efer, rflags};
use satori_state::{CpuState, Segment, reg, seg};

use super::asm::{Alu, Label, Mem, Reg, cc};
use super::cold::Cold;
use super::lower::Lower;
use super::stubs::{self, S1, S2};
use super::system::{segment, state};
use satori_soft::code_mode;
use satori_soft::isa::Isa;
use satori_soft::mmu::Mode;
use satori_soft::system::{CODE64, DATA, DPL3, SYSRET_FLAGS};

const RCX: Reg = Reg(1);

impl Lower<'_> {
    /// SYSCALL, which ends the block; false if it is left to its generic implementation.
    pub(crate) fn system_call(&mut self, isa: &Isa, insn: &Instruction, next: u64) -> bool {
        if code_mode::is_low(self.block.code_mode) {
            return false;
        }
        self.save_flags();
        let other = self.asm.label();
        self.find_entry(Mode::Supervisor, other, |this| {
            this.asm.load(S2, state(offset_of!(CpuState, lstar)));
        });
        self.flags_image();
        self.store_guest(reg::R11, S2);
        self.asm.load(S1, state(offset_of!(CpuState, fmask)));
        self.asm.alu(Alu::And, S1, S2);
        self.asm.alu(Alu::Sub, S2, S1);
        // What would change how the next instruction is executed.
        self.asm.mov(S1, S2);
        self.asm.alu_imm32(Alu::And, S1, (rflags::AC | rflags::TF) as i32);
        self.asm.jcc(cc::NE, other);
        self.set_flags_image(!0);
        self.asm.linear(RCX, next);
        self.asm.load(S1, state(offset_of!(CpuState, star)));
        self.asm.shr(S1, 32);
        self.asm.alu_imm32(Alu::And, S1, 0xfffc);
        self.flat(seg::CS, CODE64);
        self.asm.lea32(S1, Mem::at(S1, 8));
        self.flat(seg::SS, DATA);
        self.enter(Mode::Supervisor, self.block.code_mode & !(code_mode::USER | code_mode::AC));
        self.left_to_generic(isa, insn, other);
        true
    }

    /// SYSRET to 64-bit code, at privilege level 0.
    pub(crate) fn system_return(&mut self, isa: &Isa, insn: &Instruction) -> bool {
        if !self.block.privileged {
            return false;
        }
        self.save_flags();
        let other = self.asm.label();
        // Interrupts may be let in.
        self.asm.alu_byte(Alu::Cmp, stubs::interrupt_window(), 0);
        self.asm.jcc(cc::NE, other);
        self.load_r11();
        self.asm.alu_imm32(Alu::And, S2, (rflags::AC | rflags::TF) as i32);
        self.asm.jcc(cc::NE, other);
        self.asm.mov(S2, RCX);
        self.unless_canonical(S2, other);
        self.find_entry(Mode::User, other, |this| this.asm.mov(S2, RCX));
        self.load_r11();
        self.set_flags_image(SYSRET_FLAGS);
        self.asm.load(S1, state(offset_of!(CpuState, star)));
        self.asm.shr(S1, 48);
        self.asm.lea32(S1, Mem::at(S1, 8));
        if isa.offered.vendor == Vendor::Amd {
            // What is hidden stays, but for the privilege; see the generic implementation.
            self.asm.store16(segment(seg::SS, offset_of!(Segment, selector)), S1);
            self.asm.alu_at(Alu::Or, segment(seg::SS, offset_of!(Segment, rights)), DPL3 as i32);
        } else {
            self.asm.alu_imm32(Alu::Or, S1, 3);
            self.flat(seg::SS, DATA | DPL3);
        }
        self.asm.load(S1, state(offset_of!(CpuState, star)));
        self.asm.shr(S1, 48);
        self.asm.lea32(S1, Mem::at(S1, 16));
        self.asm.alu_imm32(Alu::Or, S1, 3);
        self.flat(seg::CS, CODE64 | DPL3);
        self.enter(Mode::User, self.block.code_mode & !code_mode::AC | code_mode::USER);
        self.left_to_generic(isa, insn, other);
        true
    }

    /// Makes sure of SCE and of the code at the address that `load` brings to S2, for code of `mode`;
    /// the code's address waits then.
    fn find_entry(&mut self, mode: Mode, other: Label, load: impl FnOnce(&mut Self)) {
        self.asm.test_at(state(offset_of!(CpuState, efer)), efer::SCE as u8);
        self.asm.jcc(cc::E, other);
        load(self);
        let (retry, missing) = (self.asm.bound(), self.asm.label());
        self.seldom(Cold::Second { label: missing, retry, other });
        self.target_place(mode);
        let (rip, code) = stubs::target(S1);
        self.asm.alu_mem(Alu::Cmp, S2, rip);
        self.asm.jcc(cc::NE, missing);
        self.asm.load(S1, code);
        self.asm.store(stubs::temporary(), S1);
    }

    /// Goes on in `mode`, where the code waits.
    fn enter(&mut self, mode: Mode, code_mode: u64) {
        self.asm.store_imm(stubs::mode(), mode as i32);
        self.asm.constant(S1, code_mode);
        self.asm.store(stubs::code_mode(), S1);
        self.asm.jmp_mem(stubs::temporary());
    }

    /// The generic implementation of the block's last instruction.
    fn left_to_generic(&mut self, isa: &Isa, insn: &Instruction, other: Label) {
        let back = self.asm.label();
        self.otherwise(isa, insn, other, back);
    }

    /// Makes segment register `i` flat, with the selector in S1.
    fn flat(&mut self, i: usize, rights: u32) {
        let Segment { limit, base, .. } = Segment::flat(0, rights);
        self.asm.store16(segment(i, offset_of!(Segment, selector)), S1);
        self.asm.store_imm32(segment(i, offset_of!(Segment, rights)), rights);
        self.asm.store_imm32(segment(i, offset_of!(Segment, limit)), limit);
        self.asm.store_imm(segment(i, offset_of!(Segment, base)), base as i32);
    }

    fn load_r11(&mut self) {
        match self.home(reg::R11) {
            Some(host) => self.asm.mov(S2, host),
            None => self.asm.load(S2, stubs::gpr(reg::R11)),
        }
    }

    fn store_guest(&mut self, to: usize, from: Reg) {
        match self.home(to) {
            Some(host) => self.asm.mov(host, from),
            None => self.asm.store(stubs::gpr(to), from),
        }
    }

    /// Loads RFLAGS into S2, with RF and VM clear; the status flags are put away.
    pub(crate) fn flags_image(&mut self) {
        let others = !(rflags::STATUS | rflags::RF | rflags::VM);
        self.asm.load(S2, stubs::rflags());
        self.asm.alu_imm(Alu::And, S2, others as i32);
        self.asm.load(S1, stubs::flags());
        self.asm.shr32(S1, 8);
        self.asm.alu_imm32(Alu::And, S1, (rflags::STATUS & 0xff) as i32);
        self.asm.alu(Alu::Or, S2, S1);
        self.asm.load(S1, stubs::flags());
        self.asm.alu_imm32(Alu::And, S1, 1);
        self.asm.imul32(S1, S1, rflags::OF as u32);
        self.asm.alu(Alu::Or, S2, S1);
    }

    /// Sets RFLAGS to what S2 has of `mask`. The status flags stay put away.
    fn set_flags_image(&mut self, mask: u64) {
        self.asm.mov(S1, S2);
        self.asm.alu_imm(Alu::And, S1, (mask & !rflags::STATUS) as i32);
        self.asm.alu_imm(Alu::Or, S1, rflags::FIXED as i32);
        self.asm.store(stubs::rflags(), S1);
        // As `stubs::packed` does.
        self.asm.mov32(S1, S2);
        self.asm.alu_imm32(Alu::And, S1, (rflags::STATUS & 0xff) as i32);
        self.asm.alu_imm32(Alu::Or, S1, 2);
        self.asm.imul32(S1, S1, 0x100);
        self.asm.shr32(S2, rflags::OF.trailing_zeros() as u8);
        self.asm.alu_imm32(Alu::And, S2, 1);
        self.asm.alu(Alu::Or, S1, S2);
        self.asm.store16(stubs::flags(), S1);
    }
}
