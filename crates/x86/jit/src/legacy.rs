//! What compilers hardly write: POP to memory, JRCXZ and LOOP, stores of high bytes. Lisp's, assembly's and old programs' code has
//! it in its innermost loops.

use iced_x86::{Code, Instruction, OpKind, Register};
use satori_state::reg;

use super::asm::{Mem, Reg, cc};
use super::copy::{put_address, sized};
use super::lower::Lower;
use super::memory::Address;
use super::stubs::{self, S1, S2};

const RCX: Reg = Reg(reg::RCX as u8);

/// Whether `insn` is a MOV of a high byte register to memory.
pub(crate) fn is_high_store(insn: &Instruction) -> bool {
    insn.code() == Code::Mov_rm8_r8
        && insn.op0_kind() == OpKind::Memory
        && matches!(insn.op1_register(), Register::AH | Register::CH | Register::DH | Register::BH)
}

impl Lower<'_> {
    /// POP to memory, whose address is made with the stack pointer behind it.
    pub(crate) fn pop_to_memory(&mut self, insn: &Instruction) -> bool {
        if insn.op0_kind() != OpKind::Memory {
            return false;
        }
        let Some(mut to) = Address::of(insn, self.block.rip, self.block.code_mode) else { return false };
        if to.base == Some(reg::RSP) {
            to.disp = to.disp.wrapping_add(self.word().into());
        }
        self.load_top();
        self.asm.store(stubs::temporary(), S2);
        let (mem, spare) = self.access(&to, self.word() as u32, true, 1);
        let mem = self.without_s2(mem, spare);
        self.store_temporary(mem);
        self.move_stack(self.word());
        self.look_behind(self.block.rip.wrapping_add(insn.next_ip()), false);
        true
    }

    /// An operand that leaves S2 free, which the one of an access does if it is `spare`.
    fn without_s2(&mut self, mem: Mem, spare: bool) -> Mem {
        if spare {
            return mem;
        }
        self.asm.lea(S1, mem);
        Mem::at(S1, 0)
    }

    /// JRCXZ, JECXZ and LOOP in code of 64 bits, which change no flags: whether `insn` is one of them, and a condition that holds
    /// where it jumps.
    pub(crate) fn count_down(&mut self, insn: &Instruction) -> Option<u8> {
        let (wide, down) = match insn.code() {
            Code::Jrcxz_rel8_64 => (true, false),
            Code::Jecxz_rel8_64 => (false, false),
            Code::Loop_rel8_64_RCX => (true, true),
            Code::Loop_rel8_64_ECX => (false, true),
            _ => return None,
        };
        self.save_flags();
        if down {
            let less = Mem::at(RCX, -1);
            if wide { self.asm.lea(RCX, less) } else { self.asm.lea32(RCX, less) }
        }
        self.asm.test(RCX, RCX, wide);
        Some(if down { cc::NE } else { cc::E })
    }

    /// `insn`, for which [`is_high_store`] holds. A copy would need a prefix that such registers do not go with.
    pub(crate) fn store_high(&mut self, insn: &Instruction) -> bool {
        let Some(host) = self.home(insn.op1_register().full_register().number()) else { return false };
        let Some(to) = Address::of(insn, self.block.rip, self.block.code_mode) else { return false };
        let (mem, spare) = self.access(&to, 1, true, 1);
        let mem = self.without_s2(mem, spare);
        self.asm.rorx32(S2, host, 8);
        let mut copy = *insn;
        copy.set_op1_register(sized(S2.0, Register::AL));
        put_address(&mut copy, mem);
        self.asm.copy(&copy)
    }
}
