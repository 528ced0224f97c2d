//! A guest's local APIC: accesses to its page, and the task priority in the virtual-APIC page (SDM 29.1 to 29.5).

use satori_defs::vmx::ExitReason;
use satori_engine::Exception;
use satori_memory::Gpa;
use satori_state::reg;
use satori_vmx::Field::{ApicAccess, TprThreshold, VirtualApic};
use satori_vmx::control::{proc, proc2};

use super::{EXIT, VmExit};
use crate::cpu::{Cpu, Exec, Stop};

/// Where the virtual-APIC page has the task-priority register, and how many bytes.
const VTPR: u64 = 0x80;
const VTPR_LEN: u64 = 4;
/// The MSR of the task priority in x2APIC mode.
const X2APIC_TPR: u32 = 0x808;

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

    /// Whether `size` bytes at `offset` are of the task priority, and that is virtual.
    fn of_virtual_tpr(&self, offset: u64, size: u64) -> bool {
        self.guest_exits(proc::TPR_SHADOW)
            && (VTPR..VTPR + VTPR_LEN).contains(&offset)
            && offset + size <= VTPR + VTPR_LEN
    }

    /// A read of the page (SDM 29.4.2).
    pub(crate) fn read_virtual_apic(&mut self, offset: u64, size: u64) -> Exec<u64> {
        if !self.of_virtual_tpr(offset, size) {
            return Err(self.leave_for_apic(false, offset));
        }
        Ok(u64::from(self.guest_tpr()) >> (8 * (offset - VTPR)))
    }

    /// A write of the page (SDM 29.4.3).
    pub(crate) fn write_virtual_apic(&mut self, offset: u64, bytes: &[u8], size: u64) -> Exec<()> {
        if !self.of_virtual_tpr(offset, size) {
            return Err(self.leave_for_apic(true, offset));
        }
        self.set_virtual_tpr(bytes, offset - VTPR);
        Ok(())
    }

    /// Where the processor has the register.
    fn virtual_tpr_at(&self) -> Gpa {
        Gpa(self.memory.addressed(self.vmx.vmcs.get(VirtualApic) + VTPR))
    }

    /// The virtual task-priority register.
    fn guest_tpr(&self) -> u32 {
        self.memory.read_u32(self.virtual_tpr_at()).unwrap_or(0)
    }

    /// The virtual task priority's class.
    pub(super) fn virtual_priority(&self) -> u64 {
        u64::from(self.guest_tpr() >> 4 & 0xf)
    }

    /// Sets bytes of the register from `offset` on. Whether it is below the threshold is looked at behind the instruction.
    pub(super) fn set_virtual_tpr(&mut self, bytes: &[u8], offset: u64) {
        let Gpa(at) = self.virtual_tpr_at();
        let _ = self.memory.write(Gpa(at + offset), bytes);
        self.code_written();
        self.windows.attention = true;
    }

    /// The exit of a task priority below its threshold, where accesses and not only MOV of CR8 change it (SDM 29.1.2).
    pub(super) fn below_threshold(&self) -> Option<VmExit> {
        let changes = self.guest_exits(proc::TPR_SHADOW)
            && self.vmx.proc2 & (proc2::APIC_ACCESSES | proc2::X2APIC) != 0
            && self.virtual_priority() < self.vmx.vmcs.get(TprThreshold) & 0xf;
        changes.then(|| VmExit { reason: ExitReason::TprBelowThreshold as u32, ..VmExit::default() })
    }

    /// Whether RCX names the task priority of x2APIC mode, and that is virtual (SDM 29.5).
    fn names_virtual_tpr(&self) -> bool {
        self.vmx.proc2 & proc2::X2APIC != 0 && self.state.gpr[reg::RCX] as u32 == X2APIC_TPR
    }

    /// RDMSR of the virtual task priority; other registers are not its.
    pub(super) fn read_virtual_tpr(&mut self) -> Exec<()> {
        if self.names_virtual_tpr() {
            self.state.gpr[reg::RAX] = self.guest_tpr().into();
            self.state.gpr[reg::RDX] = 0;
            self.vmx.served = true;
        }
        Ok(())
    }

    /// WRMSR of it.
    pub(super) fn write_virtual_tpr(&mut self) -> Exec<()> {
        if !self.names_virtual_tpr() {
            return Ok(());
        }
        let (low, high) = (self.state.gpr[reg::RAX] as u32, self.state.gpr[reg::RDX] as u32);
        if low > 0xff || high != 0 {
            return Err(self.raise(Exception::gp(0)));
        }
        // The threshold is looked at behind it.
        self.execute_alone()?;
        self.set_virtual_tpr(&low.to_le_bytes(), 0);
        self.vmx.served = true;
        Ok(())
    }
}
