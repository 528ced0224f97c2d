//! The parts in which a register file is fetched and set.

use std::ops::BitOr;

/// Parts of [`CpuState`](crate::CpuState), as a set. They are cut as Linux's KVM hands them out, a system call each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts(u8);

impl Parts {
    /// `gpr`, `rip`, `rflags` (KVM_GET_REGS).
    pub const GENERAL: Parts = Parts(1);
    /// `seg`, `ldtr`, `tr`, `gdtr`, `idtr`, `cr0` to `cr4`, `pdpte`, `tpr`, `efer` (KVM_GET_SREGS2).
    pub const SYSTEM: Parts = Parts(1 << 1);
    /// `interrupt_shadow`, `ss_shadow`, `pending_debug`, `nmi_blocked`, `activity` (KVM_GET_VCPU_EVENTS).
    pub const EVENTS: Parts = Parts(1 << 2);
    /// `dr`, `dr6`, `dr7` (KVM_GET_DEBUGREGS).
    pub const DEBUG: Parts = Parts(1 << 3);
    /// `fpu`, `xcr0`, `pkru` (KVM_GET_XSAVE, KVM_GET_XCRS).
    pub const EXTENDED: Parts = Parts(1 << 4);
    /// `xss`, `star` to `fmask`, `kernel_gs_base`, `sysenter_*`, `tsc_aux`, `spec_ctrl`, `pat`, `tsc_offset` (KVM_GET_MSRS).
    pub const MSRS: Parts = Parts(1 << 5);
    /// What every exit hands out: KVM's `kvm_run` has these without another call (KVM_CAP_SYNC_REGS).
    pub const EXIT: Parts = Parts(Self::GENERAL.0 | Self::SYSTEM.0 | Self::EVENTS.0);
    /// The whole register file.
    pub const ALL: Parts = Parts(Self::EXIT.0 | Self::DEBUG.0 | Self::EXTENDED.0 | Self::MSRS.0);

    /// Whether all of `other` are among them.
    pub const fn has(self, other: Parts) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Parts {
    type Output = Parts;

    fn bitor(self, other: Parts) -> Parts {
        Parts(self.0 | other.0)
    }
}
