//! Jumps, calls and the stack.

use super::{Asm, Label, Mem, Reg};

impl Asm {
    pub(crate) fn jcc(&mut self, condition: u8, to: Label) {
        self.raw(&[0x0f, 0x80 | condition]);
        self.fixups.push((self.code.len(), to));
        self.imm32(0);
    }

    pub(crate) fn jmp(&mut self, to: Label) {
        self.code.push(0xe9);
        self.fixups.push((self.code.len(), to));
        self.imm32(0);
    }

    pub(crate) fn call(&mut self, to: Label) {
        self.changes += 1;
        self.code.push(0xe8);
        self.fixups.push((self.code.len(), to));
        self.imm32(0);
    }

    pub(super) fn relative(&mut self, to: u64) {
        let distance = to.wrapping_sub(self.address(self.code.len()) + 4) as i64;
        self.imm32(i32::try_from(distance).expect("code memory is smaller than 2 GiB"));
    }

    pub(crate) fn jmp_to(&mut self, to: u64) {
        self.code.push(0xe9);
        self.relative(to);
    }

    pub(crate) fn call_to(&mut self, to: u64) {
        self.changes += 1;
        self.code.push(0xe8);
        self.relative(to);
    }

    pub(crate) fn jmp_reg(&mut self, to: Reg) {
        self.registers(false, &[0xff], 4, to);
    }

    pub(crate) fn jmp_mem(&mut self, to: Mem) {
        self.memory(false, &[0xff], 4, to);
    }

    /// `jmp [rip + distance to label]`.
    pub(crate) fn jmp_slot(&mut self, slot: Label) {
        self.raw(&[0xff, 0x25]);
        self.fixups.push((self.code.len(), slot));
        self.imm32(0);
    }

    pub(crate) fn call_reg(&mut self, to: Reg) {
        self.changes += 1;
        self.registers(false, &[0xff], 2, to);
    }

    pub(crate) fn push(&mut self, reg: Reg) {
        if reg.high() != 0 {
            self.code.push(0x41);
        }
        self.code.push(0x50 | reg.low());
    }

    pub(crate) fn pop(&mut self, reg: Reg) {
        self.changes += 1;
        if reg.high() != 0 {
            self.code.push(0x41);
        }
        self.code.push(0x58 | reg.low());
    }

    pub(crate) fn ret(&mut self) {
        self.code.push(0xc3);
    }
}
