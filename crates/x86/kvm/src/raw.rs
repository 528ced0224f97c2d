//! The calls of KVM that kvm-ioctls does not have.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};

use kvm_bindings::{
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVM_XEN_HVM_CONFIG_INTERCEPT_HCALL, kvm_device_attr,
    kvm_interrupt, kvm_msr_filter, kvm_xen_hvm_config,
};
use kvm_ioctls::{VcpuFd, VmFd};

/// Number of a request of KVM's that hands in a structure (`_IOW(KVMIO, number, T)`).
const fn writes<T>(number: u64) -> u64 {
    1 << 30 | (size_of::<T>() as u64) << 16 | 0xae << 8 | number
}

const KVM_INTERRUPT: u64 = writes::<kvm_interrupt>(0x86);
const KVM_X86_SET_MSR_FILTER: u64 = writes::<kvm_msr_filter>(0xc6);
const KVM_SET_DEVICE_ATTR: u64 = writes::<kvm_device_attr>(0xe1);
const KVM_XEN_HVM_CONFIG: u64 = writes::<kvm_xen_hvm_config>(0x7a);
/// It hands in nothing (`_IO(KVMIO, 0xce)`).
const KVM_GET_STATS_FD: u64 = 0xaece;

/// Makes a request that hands in `argument`.
fn call<T>(fd: RawFd, request: u64, argument: &T) -> io::Result<()> {
    // SAFETY: the request's number holds the size of `T`, of which the kernel reads no more; what `T` points to is valid at
    // every caller below.
    let result = unsafe { libc::ioctl(fd, request as libc::Ioctl, std::ptr::from_ref(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Queues an external interrupt of `vector`.
pub(crate) fn interrupt(vcpu: &VcpuFd, vector: u8) -> io::Result<()> {
    call(vcpu.as_raw_fd(), KVM_INTERRUPT, &kvm_interrupt { irq: vector.into() })
}

/// Has the vCPU's time-stamp counter be the host's plus `offset`.
pub(crate) fn set_tsc_offset(vcpu: &VcpuFd, offset: u64) -> io::Result<()> {
    let attribute = kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: KVM_VCPU_TSC_OFFSET.into(),
        addr: std::ptr::from_ref(&offset) as u64,
        flags: 0,
    };
    call(vcpu.as_raw_fd(), KVM_SET_DEVICE_ATTR, &attribute)
}

/// Has all MSRs that are not in `filter`'s ranges, or not set in their bitmaps, exit.
pub(crate) fn set_msr_filter(vm: &VmFd, filter: &kvm_msr_filter) -> io::Result<()> {
    call(vm.as_raw_fd(), KVM_X86_SET_MSR_FILTER, filter)
}

/// Has VMCALL and VMMCALL come to us as Xen's hypercalls do.
pub(crate) fn intercept_hypercalls(vm: &VmFd) -> io::Result<()> {
    // By this register a guest would have KVM fill a page; the filter keeps it from that.
    let config =
        kvm_xen_hvm_config { flags: KVM_XEN_HVM_CONFIG_INTERCEPT_HCALL, msr: PAGE_MSR, ..Default::default() };
    call(vm.as_raw_fd(), KVM_XEN_HVM_CONFIG, &config)
}

/// The last of the registers that Linux 6.14 and newer take for it.
const PAGE_MSR: u32 = 0x4fff_ffff;

/// The file of a vCPU's statistics.
pub(crate) fn statistics(vcpu: &VcpuFd) -> io::Result<File> {
    // SAFETY: the request hands in nothing, and gives a new descriptor.
    let fd = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_GET_STATS_FD as libc::Ioctl, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_of_the_kernels_headers() {
        let numbers = [KVM_INTERRUPT, KVM_X86_SET_MSR_FILTER, KVM_SET_DEVICE_ATTR, KVM_XEN_HVM_CONFIG];
        assert_eq!(numbers, [0x4004_ae86, 0x4188_aec6, 0x4018_aee1, 0x4038_ae7a]);
    }
}
