//! Branches: the ends of blocks.

use satori_arm_isa::Op;

use crate::asm::{Alu, RAX, Rm, cc};
use crate::emit::Emit;
use crate::integer::condition;

/// What ends a block beside branches: instructions behind which the interpreter has to look around, or that cannot be passed.
pub(crate) fn ends(op: Option<Op>) -> bool {
    let Some(op) = op else { return true };
    is_branch(op) || matches!(op, Op::Svc | Op::Hvc | Op::Smc | Op::Brk | Op::Hlt | Op::Eret | Op::Isb)
}

/// Instructions that [`Emit::branch`] translates.
pub(crate) fn is_branch(op: Op) -> bool {
    matches!(
        op,
        Op::B | Op::Bl | Op::Cbz | Op::Cbnz | Op::Tbz | Op::Tbnz | Op::BCond | Op::Br | Op::Blr | Op::Ret
    )
}

impl Emit<'_> {
    /// The address that bits `high:low` of the word lead to.
    fn destination(&self, high: u32, low: u32) -> u64 {
        let up = 64 - (high - low + 1);
        let offset = ((u64::from(self.bits(high, low)) << up) as i64 >> (up - 2)) as u64;
        self.pc.wrapping_add(offset)
    }

    /// Translates the branch at the block's end. `code` tells where the code of an address of the page is.
    pub(crate) fn branch(&mut self, op: Op, code: &dyn Fn(u64) -> Option<u64>) {
        let next = self.pc.wrapping_add(4);
        self.settle_vectors();
        let link = |emit: &mut Self| emit.put_constant(30, next);
        let taken = match op {
            Op::B | Op::Bl => {
                if op == Op::Bl {
                    link(self);
                }
                let to = self.destination(25, 0);
                return self.go(to, code(to));
            }
            Op::Br | Op::Ret | Op::Blr => {
                self.copy(self.r(5), RAX);
                if op == Op::Blr {
                    link(self);
                }
                return self.go_indirect();
            }
            Op::BCond => match condition(self.bits(3, 0)) {
                Some(holds) => {
                    self.load_flags();
                    holds
                }
                None => {
                    let to = self.destination(23, 5);
                    return self.go(to, code(to));
                }
            },
            Op::Cbz | Op::Cbnz => {
                let (wide, register) = (self.bit(31), self.r(0));
                match self.rm(register) {
                    Rm::Reg(own) => self.asm.op(wide, &[0x85], own, Rm::Reg(own)),
                    memory => self.asm.alu_imm(wide, Alu::Cmp, memory, 0),
                }
                if op == Op::Cbz { cc::E } else { cc::NE }
            }
            _ => {
                let (register, bit) = (self.r(0), self.bits(31, 31) << 5 | self.bits(23, 19));
                // BT
                let rm = self.rm(register);
                self.asm.op(true, &[0x0f, 0xba], 4, rm);
                self.asm.bytes(&[bit as u8]);
                if op == Op::Tbnz { cc::B } else { cc::AE }
            }
        };
        let to =
            if matches!(op, Op::Tbz | Op::Tbnz) { self.destination(18, 5) } else { self.destination(23, 5) };
        let yes = self.asm.label();
        self.asm.jump_if(taken, yes);
        self.go(next, code(next));
        self.asm.bind(yes);
        self.go(to, code(to));
    }
}
