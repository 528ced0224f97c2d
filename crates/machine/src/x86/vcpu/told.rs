//! What KVM's and Xen's interfaces are told of a vCPU's sleep and its entries.

use super::MachineVcpu;

impl MachineVcpu {
    /// Whether it sleeps in a poll of Xen's, which any interrupt ends as well.
    pub(super) fn polls(&mut self) -> bool {
        let Some(xen) = &self.platform.xen else { return false };
        if !xen.polls(&mut self.xen) {
            return false;
        }
        let arrived = self.injector.arrived(&self.lapic);
        if arrived {
            xen.end_poll(&mut self.xen);
        }
        !arrived
    }

    /// Tells the interfaces that it sleeps.
    pub(super) fn tell_of_sleep(&mut self) {
        if let Some(kvm) = &self.platform.kvm {
            kvm.sleeps(&mut self.kvm);
        }
        if let Some(xen) = &self.platform.xen {
            xen.sleeps(&mut self.xen);
        }
    }

    /// Tells the interfaces of an entry. KVM's may want the TLB flushed first.
    pub(super) fn tell_of_entry(&mut self) {
        if let Some(xen) = &self.platform.xen {
            xen.enters(&mut self.xen);
        }
        let Some(kvm) = &self.platform.kvm else { return };
        let (runtime, vcpu) = (&self.platform.runtime, &self.vcpu);
        if kvm.enters(&mut self.kvm, || runtime.ran(vcpu.retired())) {
            self.vcpu.flush_tlb();
        }
    }
}
