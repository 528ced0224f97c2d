//! Moves between registers and memory, constants and addresses.

use super::{Asm, Base, Mem, Reg};

impl Asm {
    /// 64-bit move between registers.
    pub(crate) fn mov(&mut self, to: Reg, from: Reg) {
        self.registers(true, &[0x89], from.0, to);
    }

    /// 32-bit move between registers.
    pub(crate) fn mov32(&mut self, to: Reg, from: Reg) {
        self.registers(false, &[0x89], from.0, to);
    }

    pub(crate) fn load(&mut self, to: Reg, from: Mem) {
        self.memory(true, &[0x8b], to.0, from);
    }

    /// Loads 32 bits, and clears the upper ones.
    pub(crate) fn load32(&mut self, to: Reg, from: Mem) {
        self.memory(false, &[0x8b], to.0, from);
    }

    pub(crate) fn store(&mut self, to: Mem, from: Reg) {
        self.memory(true, &[0x89], from.0, to);
    }

    pub(crate) fn store32(&mut self, to: Mem, from: Reg) {
        self.memory(false, &[0x89], from.0, to);
    }

    /// Stores a sign-extended constant as 64 bits.
    pub(crate) fn store_imm(&mut self, to: Mem, value: i32) {
        self.memory(true, &[0xc7], 0, to);
        self.imm32(value);
    }

    /// Stores a constant of 32 bits.
    pub(crate) fn store_imm32(&mut self, to: Mem, value: u32) {
        self.memory(false, &[0xc7], 0, to);
        self.imm32(value as i32);
    }

    pub(crate) fn lea(&mut self, to: Reg, from: Mem) {
        self.memory(true, &[0x8d], to.0, from);
    }

    /// LEA of which 32 bits are kept.
    pub(crate) fn lea32(&mut self, to: Reg, from: Mem) {
        self.memory(false, &[0x8d], to.0, from);
    }

    /// A constant, in the shortest way that leaves the flags alone.
    pub(crate) fn constant(&mut self, to: Reg, value: u64) {
        self.changes += u32::from(to.0 == 0);
        if u32::try_from(value).is_ok() {
            if to.high() != 0 {
                self.code.push(0x41);
            }
            self.code.push(0xb8 | to.low());
            self.imm32(value as i32);
        } else if i32::try_from(value as i64).is_ok() {
            self.registers(true, &[0xc7], 0, to);
            self.imm32(value as i32);
        } else {
            self.raw(&[0x48 | to.high(), 0xb8 | to.low()]);
            self.raw(&value.to_le_bytes());
        }
    }

    /// As [`Asm::constant`], for a linear address that moves with the code. Flags stay, too.
    pub(crate) fn linear(&mut self, to: Reg, address: u64) {
        let Some(Base { cell, linear, narrow }) = self.base else { return self.constant(to, address) };
        self.changes += u32::from(to.0 == 0);
        // MOV from what stands at a distance from RIP.
        self.raw(&[0x48 | to.high() << 2, 0x8b, to.low() << 3 | 5]);
        self.relative(cell);
        let mut distance = address.wrapping_sub(linear) as i64;
        if narrow {
            return self.lea32(to, Mem::at(to, distance as i32));
        }
        while distance != 0 {
            let some = distance.clamp(i32::MIN.into(), i32::MAX.into());
            self.lea(to, Mem::at(to, some as i32));
            distance -= some;
        }
    }

    /// Whether linear addresses of the code are no constants.
    pub(crate) fn moves(&self) -> bool {
        self.base.is_some()
    }

    /// Stores a constant byte.
    pub(crate) fn store_byte(&mut self, to: Mem, value: u8) {
        self.memory(false, &[0xc6], 0, to);
        self.code.push(value);
    }

    /// Stores the lowest 16 bits.
    pub(crate) fn store16(&mut self, to: Mem, from: Reg) {
        self.code.push(0x66);
        self.memory(false, &[0x89], from.0, to);
    }

    /// Loads 16 bits, and clears the upper ones.
    pub(crate) fn load16(&mut self, to: Reg, from: Mem) {
        self.memory(false, &[0x0f, 0xb7], to.0, from);
    }
}
