//! Accesses to what is not RAM, each an exit.

use satori_engine::{Exit, Resume};

use crate::cpu::{Cpu, Exec};
use crate::host::Scalar;

impl Cpu {
    pub(super) fn device_read<T: Scalar>(&mut self, gpa: u64) -> Exec<T> {
        let mut bytes = [0; 16];
        for half in 0..T::SIZE.div_ceil(8) {
            let (gpa, size) = (gpa + 8 * half, T::SIZE.min(8) as u8);
            if self.apic_access(gpa) {
                let value = self.read_virtual_apic(gpa & 0xfff, T::SIZE)?;
                bytes[..8].copy_from_slice(&value.to_le_bytes());
                break;
            }
            let value = match self.apic_offset(gpa) {
                // The TPR shadow answers without an exit (SDM 30.1.1).
                Some(0x80) if self.virtual_tpr() => u64::from(self.state.tpr),
                Some(offset) => value_of(self.ask(Exit::ApicRead { offset, size })?),
                None => value_of(self.ask_device(Exit::MmioRead { gpa, size })?),
            };
            bytes[8 * half as usize..][..8].copy_from_slice(&value.to_le_bytes());
        }
        Ok(T::from_bytes(&bytes))
    }

    pub(super) fn device_write<T: Scalar>(&mut self, gpa: u64, value: T) -> Exec<()> {
        let bytes = value.to_bytes();
        for half in 0..T::SIZE.div_ceil(8) {
            let (gpa, size) = (gpa + 8 * half, T::SIZE.min(8) as u8);
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * half as usize..][..8]);
            let value = u64::from_le_bytes(word);
            if self.apic_access(gpa) {
                return self.write_virtual_apic(gpa & 0xfff, &word[..T::SIZE.min(8) as usize], T::SIZE);
            }
            match self.apic_offset(gpa) {
                Some(0x80) if self.virtual_tpr() => self.set_tpr(value as u8),
                Some(offset) => self.ask(Exit::ApicWrite { offset, size, value }).map(drop)?,
                None => self.ask_device(Exit::MmioWrite { gpa, size, value }).map(drop)?,
            }
        }
        Ok(())
    }

    fn virtual_tpr(&self) -> bool {
        self.controls.tpr_shadow && self.controls.virtualize_apic_accesses
    }

    fn apic_offset(&self, gpa: u64) -> Option<u16> {
        (self.controls.apic_access_page == Some(gpa & !0xfff)).then_some((gpa & 0xfff) as u16)
    }
}

/// What a device gave.
fn value_of(answer: Resume) -> u64 {
    match answer {
        Resume::Value(value) => value,
        _ => 0,
    }
}
