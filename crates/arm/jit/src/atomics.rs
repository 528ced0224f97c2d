//! Exclusive and ordered accesses, and the atomic instructions of LSE: the host's with LOCK.
//!
//! LDXR notes address, size and value, and STXR is a compare-exchange, as the interpreter does it. Pairs are left to that. What is
//! not aligned goes there, too, as it faults.

use std::mem::offset_of;

use satori_arm_isa::Op;
use satori_arm_soft::{Cpu, Exclusive};

use crate::asm::{Alu, LEFT, Label, RAX, RCX, RDX, RSP, Reg, Rm, cc};
use crate::emit::{Emit, ZERO, field};

const LOCK: u8 = 0xf0;

/// A field of what LDXR noted.
const fn noted(offset: usize) -> Rm {
    field(offset_of!(Cpu, exclusive) + offset)
}

impl Emit<'_> {
    /// Translates the instruction, if it is one of these.
    pub(crate) fn atomic(&mut self, op: Op) -> bool {
        let size = self.bits(31, 30);
        match op {
            Op::Ldxr | Op::Ldaxr => self.load_ordered(size, true),
            Op::Ldar | Op::Ldlar | Op::Ldapr => self.load_ordered(size, false),
            Op::Stlr | Op::Stllr => self.exchange(size, self.r(0), ZERO, true),
            Op::Stxr | Op::Stlxr => self.store_exclusive(size),
            Op::Swp => self.exchange(size, self.r(16), self.r(0), true),
            Op::Ldadd => self.exchange(size, self.r(16), self.r(0), false),
            Op::Ldclr | Op::Ldeor | Op::Ldset => self.change(op, size),
            Op::Cas => self.compare_and_swap(size),
            Op::Clrex => {
                self.store_zero(noted(offset_of!(Exclusive, size)));
                self.flags = self.flags_before;
            }
            _ => return false,
        }
        true
    }

    /// MOV qword, 0
    fn store_zero(&mut self, to: Rm) {
        self.asm.op(true, &[0xc7], 0, to);
        self.asm.bytes(&[0; 4]);
    }

    /// An instruction with an operand of so many bytes: the opcode of bytes, and the next one.
    fn sized(&mut self, opcode: &[u8], size: u32, reg: Reg, rm: Rm) {
        let wide = [&opcode[..opcode.len() - 1], &[opcode[opcode.len() - 1] + 1]].concat();
        match size {
            0 => self.asm.op8(opcode, reg, rm),
            1 => self.asm.op_with(0x66, false, &wide, reg, rm),
            _ => self.asm.op(size == 3, &wide, reg, rm),
        }
    }

    fn locked(&mut self, opcode: &[u8], size: u32, reg: Reg, rm: Rm) {
        self.asm.bytes(&[LOCK]);
        self.sized(opcode, size, reg, rm);
    }

    /// Bytes and halves without what is above them; longer ones are without it.
    fn zero_extend(&mut self, size: u32, register: Reg) {
        match size {
            0 => self.asm.op8(&[0x0f, 0xb6], register, Rm::Reg(register)),
            1 => self.asm.op(false, &[0x0f, 0xb7], register, Rm::Reg(register)),
            _ => {}
        }
    }

    /// Loads what RAX points to, with zeros above.
    fn load_zeros(&mut self, size: u32, to: Reg, from: Rm) {
        match size {
            0 => self.asm.op(false, &[0x0f, 0xb6], to, from),
            1 => self.asm.op(false, &[0x0f, 0xb7], to, from),
            _ => self.asm.mov(size == 3, to, from),
        }
    }

    /// The base in RAX, aligned.
    fn aligned_address(&mut self, size: u32, cold: Label) {
        let base = self.r_sp(5);
        self.check_stack(base, cold);
        self.copy(base, RAX);
        if size > 0 {
            // TEST AL, mask
            self.asm.bytes(&[0xa8, (1 << size) - 1]);
            self.asm.jump_if(cc::NE, cold);
        }
    }

    /// The host's address of what is changed in RAX, and RCX for [`Emit::load_state`].
    fn changed_place(&mut self, size: u32, cold: Label) {
        self.aligned_address(size, cold);
        self.look_up(1 << size, true, cold);
    }

    /// Loads of TSO are acquiring ones.
    fn load_ordered(&mut self, size: u32, exclusive: bool) {
        let (cold, back) = self.or_step();
        self.aligned_address(size, cold);
        self.look_up(1 << size, false, cold);
        self.load_zeros(size, RCX, Rm::At(RAX, 0));
        if exclusive {
            let value = offset_of!(Exclusive, value);
            self.asm.store(true, noted(value), RCX);
            self.store_zero(noted(value + 8));
            self.copy(self.r_sp(5), RAX);
            self.asm.store(true, noted(offset_of!(Exclusive, address)), RAX);
            self.asm.op(true, &[0xc7], 0, noted(offset_of!(Exclusive, size)));
            self.asm.bytes(&(1_u32 << size).to_le_bytes());
        }
        self.put(self.r(0), RCX);
        self.over(back);
    }

    /// XCHG, or XADD. A releasing store is an exchange: a later acquiring load does not pass it.
    fn exchange(&mut self, size: u32, from: u8, to: u8, swap: bool) {
        let (cold, back) = self.or_step();
        self.changed_place(size, cold);
        self.copy(from, RDX);
        let place = Rm::At(RAX, 0);
        // RCX becomes the page's state before RDX is one.
        self.state_to_rcx();
        match swap {
            true => self.sized(&[0x86], size, RDX, place),
            false => self.locked(&[0x0f, 0xc0], size, RDX, place),
        }
        self.zero_extend(size, RDX);
        self.put(to, RDX);
        self.noticed_from_rcx();
        self.over(back);
    }

    fn state_to_rcx(&mut self) {
        let state = satori_arm_soft::layout::STATE as i32;
        self.asm.mov(true, RCX, Rm::Sum(crate::asm::PAGES, RCX, 0, state));
    }

    fn noticed_from_rcx(&mut self) {
        self.asm.mov(true, RDX, Rm::Reg(RCX));
        self.notice();
    }

    /// A register in one that nothing else is in: its own, or LEFT, which [`Emit::give_back_left`] makes good.
    fn in_left(&mut self, guest: u8) -> Reg {
        if let Some(own) = crate::emit::pin(guest) {
            return own;
        }
        self.asm.store(true, field(offset_of!(Cpu, left)), LEFT);
        self.copy(guest, LEFT);
        LEFT
    }

    fn give_back_left(&mut self, used: Reg) {
        if used == LEFT {
            self.asm.mov(true, LEFT, field(offset_of!(Cpu, left)));
        }
    }

    fn store_exclusive(&mut self, size: u32) {
        let (cold, back) = self.or_step();
        let (fail, done) = (self.asm.label(), self.asm.label());
        let (status, data) = (self.r(16), self.r(0));
        self.aligned_address(size, cold);
        self.asm.alu(true, Alu::Cmp, RAX, noted(offset_of!(Exclusive, address)));
        self.asm.jump_if(cc::NE, fail);
        self.asm.alu_imm(true, Alu::Cmp, noted(offset_of!(Exclusive, size)), 1 << size);
        self.asm.jump_if(cc::NE, fail);
        self.look_up(1 << size, true, cold);
        self.asm.mov(true, RDX, Rm::Reg(RAX));
        self.state_to_rcx();
        let new = self.in_left(data);
        self.asm.mov(true, RAX, noted(offset_of!(Exclusive, value)));
        self.store_zero(noted(offset_of!(Exclusive, size)));
        self.locked(&[0x0f, 0xb0], size, new, Rm::At(RDX, 0));
        // SETNE AL; MOVZX EAX, AL
        self.asm.bytes(&[0x0f, 0x95, 0xc0, 0x0f, 0xb6, 0xc0]);
        self.give_back_left(new);
        self.put(status, RAX);
        self.noticed_from_rcx();
        self.asm.jump(done);
        self.asm.bind(fail);
        self.store_zero(noted(offset_of!(Exclusive, size)));
        self.asm.constant(RAX, 1);
        self.put(status, RAX);
        self.asm.bind(done);
        self.over(back);
    }

    /// LDCLR, LDEOR, LDSET.
    fn change(&mut self, op: Op, size: u32) {
        let (cold, back) = self.or_step();
        let (from, to) = (self.r(16), self.r(0));
        let what = match op {
            Op::Ldclr => Alu::And,
            Op::Ldeor => Alu::Xor,
            _ => Alu::Or,
        };
        self.changed_place(size, cold);
        if to == ZERO {
            // Nobody asks what it was.
            self.copy(from, RDX);
            if op == Op::Ldclr {
                self.asm.op(true, &[0xf7], 2, Rm::Reg(RDX));
            }
            self.locked(&[(what as u8) << 3], size, RDX, Rm::At(RAX, 0));
            self.state_to_rcx();
        } else {
            self.asm.mov(true, RDX, Rm::Reg(RAX));
            self.state_to_rcx();
            self.asm.store(true, field(offset_of!(Cpu, left)), LEFT);
            self.load_zeros(size, RAX, Rm::At(RDX, 0));
            let again = self.asm.label();
            self.asm.bind(again);
            self.copy(from, LEFT);
            if op == Op::Ldclr {
                self.asm.op(true, &[0xf7], 2, Rm::Reg(LEFT));
            }
            self.asm.alu(true, what, LEFT, Rm::Reg(RAX));
            self.locked(&[0x0f, 0xb0], size, LEFT, Rm::At(RDX, 0));
            self.asm.jump_if(cc::NE, again);
            self.give_back_left(LEFT);
            self.put(to, RAX);
        }
        self.noticed_from_rcx();
        self.over(back);
    }

    fn compare_and_swap(&mut self, size: u32) {
        let (cold, back) = self.or_step();
        let (old, new) = (self.r(16), self.r(0));
        self.changed_place(size, cold);
        self.asm.mov(true, RDX, Rm::Reg(RAX));
        self.state_to_rcx();
        self.copy(old, RAX);
        self.zero_extend(size, RAX);
        if size == 2 {
            self.asm.mov(false, RAX, Rm::Reg(RAX));
        }
        let new = self.in_left(new);
        self.locked(&[0x0f, 0xb0], size, new, Rm::At(RDX, 0));
        self.give_back_left(new);
        self.put(old, RAX);
        self.noticed_from_rcx();
        self.over(back);
    }

    /// A barrier between all accesses: LOCK OR dword [RSP], 0.
    pub(crate) fn full_barrier(&mut self) {
        self.asm.bytes(&[LOCK]);
        self.asm.alu_imm(false, Alu::Or, Rm::At(RSP, 0), 0);
    }
}
