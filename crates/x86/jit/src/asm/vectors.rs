//! Vector registers, the control words of these and of the x87, and saved states.

use super::{Asm, Mem, Width};

impl Asm {
    /// MOVUPS of a register, from or to a field of the vCPU.
    fn vector(&mut self, opcode: u8, register: u8, mem: Mem, width: Width) {
        let length = match width {
            Width::Sse => {
                self.memory(false, &[0x0f, opcode], register, mem);
                return;
            }
            Width::Low => 0,
            Width::Whole => 4,
        };
        debug_assert!(mem.cpu && mem.base.is_none() && mem.index.is_none(), "a field");
        // VEX.0F, of 128 or 256 bits; no base, no index.
        let vex = if register < 8 { 0xf8 } else { 0x78 } | length;
        self.raw(&[0x65, 0xc5, vex, opcode, (register & 7) << 3 | 4, 0x25]);
        self.imm32(mem.disp);
    }

    pub(crate) fn load_vector(&mut self, to: u8, from: Mem, width: Width) {
        self.vector(0x10, to, from, width);
    }

    pub(crate) fn store_vector(&mut self, to: Mem, from: u8, width: Width) {
        self.vector(0x11, from, to, width);
    }

    /// XSAVE of the components in EDX:EAX.
    pub(crate) fn save_state(&mut self, to: Mem) {
        self.memory(true, &[0x0f, 0xae], 4, to);
    }

    /// XRSTOR of the components in EDX:EAX.
    pub(crate) fn restore_state(&mut self, from: Mem) {
        self.memory(true, &[0x0f, 0xae], 5, from);
    }

    /// FLDCW.
    pub(crate) fn load_x87_control(&mut self, from: Mem) {
        self.memory(false, &[0xd9], 5, from);
    }

    pub(crate) fn load_mxcsr(&mut self, from: Mem) {
        self.memory(false, &[0x0f, 0xae], 2, from);
    }

    pub(crate) fn store_mxcsr(&mut self, to: Mem) {
        self.memory(false, &[0x0f, 0xae], 3, to);
    }
}
