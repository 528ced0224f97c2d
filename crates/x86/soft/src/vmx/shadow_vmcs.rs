//! VMCS shadowing: VMREAD and VMWRITE of a guest that is a hypervisor itself reach the VMCS at the link pointer (SDM 24.10, 25.1.3).

use iced_x86::{Instruction, Mnemonic};
use satori_memory::Gpa;
use satori_vmx::Field::{self, LinkPointer, VmreadBitmap, VmwriteBitmap};
use satori_vmx::control::proc2;
use satori_vmx::{Vmcs, error, vmcs};

use super::NONE;
use crate::cpu::{Cpu, Exec};

impl Cpu {
    /// Whether VMREAD, or VMWRITE, of `encoding` leaves the guest.
    fn shadow_exits(&self, encoding: u64, write: bool) -> bool {
        let bitmap = if write { VmwriteBitmap } else { VmreadBitmap };
        self.vmx.proc2 & proc2::SHADOW_VMCS == 0
            || encoding >> 15 != 0
            || self.bitmap_byte(self.vmx.vmcs.get(bitmap) + (encoding >> 3)) >> (encoding & 7) & 1 != 0
    }

    /// VMREAD or VMWRITE of a guest, if it does not leave for it; whether it did not.
    pub(super) fn shadow_access(&mut self, insn: &Instruction) -> Exec<bool> {
        let write = insn.mnemonic() == Mnemonic::Vmwrite;
        let encoding = self.reg(if write { insn.op0_register() } else { insn.op1_register() });
        if self.shadow_exits(encoding, write) {
            return Ok(false);
        }
        self.require_supervisor()?;
        let value = if write { self.operand(insn, 1)? } else { 0 };
        let link = self.vmx.vmcs.get(LinkPointer);
        let outcome = match Field::find(encoding) {
            _ if link == NONE => Err(0),
            None => Err(error::UNSUPPORTED_COMPONENT),
            Some((field, high)) => {
                let at = Gpa(self.memory.addressed(link + vmcs::place(field) as u64));
                let mut shadow = Vmcs::default();
                shadow.set(field, self.memory.read_u64(at).unwrap_or(u64::MAX));
                if write {
                    shadow.write(field, high, value);
                    let _ = self.memory.write(at, &shadow.get(field).to_le_bytes());
                    self.code_written();
                } else {
                    self.set_operand(insn, 0, shadow.read(field, high))?;
                }
                Ok(())
            }
        };
        self.conclude(outcome);
        Ok(true)
    }
}
