//! The stack, and operands whose size is a number.

use satori_engine::Exception;
use satori_state::seg;

use crate::cpu::{Cpu, Exec, Stop};

impl Cpu {
    /// Pushes a value of `size` (2, 4 or 8) bytes.
    pub fn push(&mut self, size: u32, value: u64) -> Exec<()> {
        let (sp, mask) = self.stack_pointer();
        let sp = sp.wrapping_sub(size.into()) & mask;
        let linear = self.stack_linear(sp, size)?;
        self.write_sized(linear, size, value)?;
        self.set_stack_pointer(sp);
        Ok(())
    }

    /// Pops a value of `size` (2, 4 or 8) bytes.
    pub fn pop(&mut self, size: u32) -> Exec<u64> {
        let (sp, mask) = self.stack_pointer();
        let linear = self.stack_linear(sp, size)?;
        let value = self.read_sized(linear, size)?;
        self.set_stack_pointer(sp.wrapping_add(size.into()) & mask);
        Ok(value)
    }

    /// The linear address of `size` stack bytes at `sp`, checked as an access through SS.
    pub fn stack_linear(&mut self, sp: u64, size: u32) -> Exec<u64> {
        self.segment_linear(seg::SS, sp, size.into(), true)
    }

    /// Reads 1, 2, 4 or 8 bytes, zero-extended.
    pub fn read_sized(&mut self, linear: u64, size: u32) -> Exec<u64> {
        Ok(match size {
            1 => self.read::<u8>(linear)?.into(),
            2 => self.read::<u16>(linear)?.into(),
            4 => self.read::<u32>(linear)?.into(),
            _ => self.read::<u64>(linear)?,
        })
    }

    /// Writes the low 1, 2, 4 or 8 bytes of `value`.
    pub fn write_sized(&mut self, linear: u64, size: u32, value: u64) -> Exec<()> {
        match size {
            1 => self.write(linear, value as u8),
            2 => self.write(linear, value as u16),
            4 => self.write(linear, value as u32),
            _ => self.write(linear, value),
        }
    }

    /// A second look at an access that faults when it is not canonical: through SS it is #SS.
    pub(crate) fn refuse_address(&mut self, segment: usize) -> Stop {
        if segment == seg::SS {
            self.raise(Exception::with_code(satori_defs::x86::vector::SS, 0))
        } else {
            self.raise(Exception::gp(0))
        }
    }
}
