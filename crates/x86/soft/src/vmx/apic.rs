//! A guest's local APIC: accesses to its page and to x2APIC's MSRs, and which of them the virtual-APIC page answers (SDM 29.3 to
//! 29.5).

use satori_defs::vmx::ExitReason;
use satori_engine::Exception;
use satori_state::reg;
use satori_vmx::Field::ApicAccess;
use satori_vmx::control::{proc, proc2};

use super::virtual_interrupts::{VEOI, VTPR};
use super::{EXIT, VmExit};
use crate::cpu::{Cpu, Exec, Stop};

/// ICR's halves, and SELF IPI, in the virtual-APIC page.
const VICR: u64 = 0x300;
const VICR_HIGH: u64 = 0x310;
const SELF_IPI: u64 = 0x3f0;
/// The first MSR of x2APIC mode; a register's is a sixteenth of its offset behind it.
const X2APIC: u32 = 0x800;

/// How the page was accessed: bits 15:12 of the qualification (SDM table 27-6).
mod access {
    pub(super) const READ: u64 = 0 << 12;
    pub(super) const WRITE: u64 = 1 << 12;
    pub(super) const FETCH: u64 = 2 << 12;
    pub(super) const DELIVERY: u64 = 3 << 12;
    /// By a physical address of the guest's.
    pub(super) const PHYSICAL_DELIVERY: u64 = 10 << 12;
    pub(super) const PHYSICAL: u64 = 15 << 12;
}

impl Cpu {
    /// Whether the processor's own address `at` is one of the guest's APIC-access page.
    #[inline]
    pub(crate) fn apic_access(&self, at: u64) -> bool {
        self.vmx.proc2 & proc2::APIC_ACCESSES != 0
            && self.memory.addressed(self.vmx.vmcs.get(ApicAccess)) == at & !0xfff
    }

    fn apic_exit(&self, kind: u64, offset: u64, length: u32) -> VmExit {
        let reason = ExitReason::ApicAccess as u32;
        VmExit { reason, qualification: kind | offset & 0xfff, length, ..VmExit::default() }
    }

    /// Leaves the guest for an access to data of the page.
    fn leave_for_apic(&mut self, write: bool, offset: u64) -> Stop {
        let exit = if self.pending.delivering {
            self.apic_exit(access::DELIVERY, offset, 0)
        } else {
            let length = self.next_rip.wrapping_sub(self.state.rip) as u32;
            self.apic_exit(if write { access::WRITE } else { access::READ }, offset, length)
        };
        self.leave(exit)
    }

    /// Leaves the guest for a fetch from it.
    pub(crate) fn leave_for_apic_fetch(&mut self, linear: u64) -> Stop {
        let exit = self.apic_exit(access::FETCH, linear, 0);
        self.leave(exit)
    }

    /// The exit of a page walk that meets it.
    pub(crate) fn apic_walk_exit(&mut self) -> Exception {
        let kind = if self.pending.delivering { access::PHYSICAL_DELIVERY } else { access::PHYSICAL };
        self.vmx.exit = Some(self.apic_exit(kind, 0, 0));
        EXIT
    }

    /// Whether the processor has already written the page virtually in the instruction, or the delivery, that is executed: another
    /// place of it, or other bytes, is too much (SDM 29.4.2, 29.4.3.1).
    fn wrote_elsewhere(&self, offset: u64, size: u64) -> bool {
        self.vmx.written.is_some_and(|written| written != (offset, size))
    }

    /// Whether `size` bytes at `offset` are of one register, of those that can be virtual at all.
    fn within_register(&self, offset: u64, size: u64) -> bool {
        self.guest_exits(proc::TPR_SHADOW) && (offset & 0xf) + size <= 4
    }

    /// Whether reads of `size` bytes at `offset` are virtual (SDM 29.4.2).
    fn reads_virtually(&self, offset: u64, size: u64) -> bool {
        let all = self.vmx.proc2 & proc2::APIC_REGISTERS != 0;
        self.within_register(offset, size)
            && self.vmx.written.is_none()
            && match offset & 0xff0 {
                VTPR => true,
                0x020 | 0x030 | VEOI | 0x0d0 | 0x0e0 | 0x0f0 | 0x100..=0x280 | VICR | VICR_HIGH => all,
                0x320..=0x380 | 0x3e0 => all,
                _ => false,
            }
    }

    /// Whether writes are (SDM 29.4.3.1).
    fn writes_virtually(&self, offset: u64, size: u64) -> bool {
        let all = self.vmx.proc2 & proc2::APIC_REGISTERS != 0;
        self.within_register(offset, size)
            && !self.wrote_elsewhere(offset, size)
            && match offset & 0xff0 {
                VTPR => true,
                VEOI | VICR => all || self.delivers_virtually(),
                0x020 | 0x0d0 | 0x0e0 | 0x0f0 | 0x280 | VICR_HIGH | 0x320..=0x380 | 0x3e0 => all,
                _ => false,
            }
    }

    /// A read of the page.
    pub(crate) fn read_virtual_apic(&mut self, offset: u64, size: u64) -> Exec<u64> {
        if !self.reads_virtually(offset, size) {
            return Err(self.leave_for_apic(false, offset));
        }
        Ok(u64::from(self.virtual_register(offset & 0xff0)) >> (8 * (offset & 0xf)))
    }

    /// A write of the page. What it does comes behind the instruction.
    pub(crate) fn write_virtual_apic(&mut self, offset: u64, bytes: &[u8], size: u64) -> Exec<()> {
        if !self.writes_virtually(offset, size) {
            return Err(self.leave_for_apic(true, offset));
        }
        let _ = self.memory.write(self.virtual_at(offset), bytes);
        self.code_written();
        self.note_virtual_write(offset, size);
        Ok(())
    }

    fn note_virtual_write(&mut self, offset: u64, size: u64) {
        self.vmx.written = Some((offset, size));
        self.windows.attention = true;
    }

    /// What the processor does behind an instruction, or a delivery, that wrote the page or an MSR (SDM 29.4.3.2, 29.5). Whether the
    /// guest was left.
    pub(crate) fn follow_virtual_write(&mut self) -> bool {
        let Some((offset, _)) = self.vmx.written.take() else { return false };
        let register = offset & 0xff0;
        let value = self.virtual_register(register);
        let delivers = self.delivers_virtually();
        let exit = match register {
            VTPR => {
                self.set_virtual_register(VTPR, value & 0xff);
                self.virtualize_tpr()
            }
            VEOI if delivers => {
                self.set_virtual_register(VEOI, 0);
                self.virtualize_eoi()
            }
            VICR if delivers && asks_itself(value) => {
                self.virtualize_self_ipi(value as u8);
                None
            }
            SELF_IPI if value & 0xf0 != 0 => {
                self.virtualize_self_ipi(value as u8);
                None
            }
            VICR_HIGH => {
                self.set_virtual_register(VICR_HIGH, value & 0xff00_0000);
                None
            }
            _ => Some(VmExit {
                reason: ExitReason::ApicWrite as u32,
                qualification: register,
                ..VmExit::default()
            }),
        };
        self.vmx.exit = exit;
        let leaves = exit.is_some();
        if leaves {
            self.vm_exit();
        }
        leaves
    }

    /// The register that RCX names, if x2APIC's MSRs are virtual: its offset in the page.
    fn named_register(&self) -> Option<u64> {
        let number = self.state.gpr[reg::RCX] as u32;
        let named = self.vmx.proc2 & proc2::X2APIC != 0 && (X2APIC..=X2APIC + 0xff).contains(&number);
        named.then(|| u64::from(number - X2APIC) << 4)
    }

    /// RDMSR of a virtual register; others are not its (SDM 29.5).
    pub(super) fn read_virtual_msr(&mut self) -> Exec<()> {
        let all = self.vmx.proc2 & proc2::APIC_REGISTERS != 0;
        let Some(register) = self.named_register().filter(|register| all || *register == VTPR) else {
            return Ok(());
        };
        let high = if all { self.virtual_register(register + 4) } else { 0 };
        self.state.gpr[reg::RAX] = self.virtual_register(register).into();
        self.state.gpr[reg::RDX] = high.into();
        self.vmx.served = true;
        Ok(())
    }

    /// WRMSR of one: of the task priority, and where interrupts are delivered virtually of EOI and SELF IPI.
    pub(super) fn write_virtual_msr(&mut self) -> Exec<()> {
        let delivers = self.delivers_virtually();
        let (register, most) = match self.named_register() {
            Some(VTPR) => (VTPR, 0xff),
            Some(VEOI) if delivers => (VEOI, 0),
            Some(SELF_IPI) if delivers => (SELF_IPI, 0xff),
            _ => return Ok(()),
        };
        let (low, high) = (self.state.gpr[reg::RAX] as u32, self.state.gpr[reg::RDX] as u32);
        if low > most || high != 0 {
            return Err(self.raise(Exception::gp(0)));
        }
        // What follows of it comes behind it.
        self.execute_alone()?;
        self.set_virtual_register(register, low);
        self.note_virtual_write(register, 4);
        self.vmx.served = true;
        Ok(())
    }

    /// Sets the task priority by MOV of CR8, to `priority` (SDM 29.3); the exit that follows.
    pub(super) fn set_virtual_priority(&mut self, priority: u32) -> Option<VmExit> {
        self.set_virtual_register(VTPR, priority << 4);
        self.virtualize_tpr()
    }
}

/// Whether a write of ICR's low half is an interrupt to this processor alone that is virtual: fixed, an edge, by the shorthand, of a
/// legal vector, with no reserved bit (SDM 29.4.3.2).
fn asks_itself(icr: u32) -> bool {
    /// Reserved bits, the delivery status, shorthand, trigger and delivery mode.
    const FIXED: u32 = 0xfff0_0000 | 3 << 18 | 3 << 16 | 1 << 15 | 1 << 13 | 1 << 12 | 7 << 8;
    icr & FIXED == 1 << 18 && icr & 0xf0 != 0
}
