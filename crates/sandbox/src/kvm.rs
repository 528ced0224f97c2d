//! What running a guest by the host's KVM needs beside everything else.

use libc::c_ulong;

use crate::calls::{Row, When};

const EXEC: u64 = libc::PROT_EXEC as u64;
const SHARED: u64 = libc::MAP_SHARED as u64;

/// Permitted beside [`ALLOWED`](crate::calls::ALLOWED), where the engine is KVM.
pub(crate) const ALLOWED: &[Row] = &[
    (libc::SYS_ioctl, When::OneOf(1, REQUESTS), "KVM's own requests"),
    (
        libc::SYS_mmap,
        When::Both((2, EXEC, 0), (3, SHARED, SHARED)),
        "what a vCPU shares with the kernel, when a machine starts again; of files that are open already",
    ),
    (
        libc::SYS_timer_create,
        When::Always,
        "the timer that brings a vCPU out; its signal goes to a thread of ours",
    ),
    (libc::SYS_timer_settime, When::Always, "as timer_create"),
    (libc::SYS_timer_delete, When::Always, "as timer_create"),
];

/// Requests of linux/kvm.h for x86-64.
const REQUESTS: &[c_ulong] = &[
    0xae01,      // KVM_CREATE_VM
    0xae03,      // KVM_CHECK_EXTENSION
    0xae04,      // KVM_GET_VCPU_MMAP_SIZE
    0xae41,      // KVM_CREATE_VCPU
    0x4010_ae42, // KVM_GET_DIRTY_LOG
    0x4020_ae46, // KVM_SET_USER_MEMORY_REGION
    0xae47,      // KVM_SET_TSS_ADDR
    0x4008_ae48, // KVM_SET_IDENTITY_MAP_ADDR
    0x4038_ae7a, // KVM_XEN_HVM_CONFIG
    0xae80,      // KVM_RUN
    0x4090_ae82, // KVM_SET_REGS
    0x8090_ae81, // KVM_GET_REGS
    0x8138_ae83, // KVM_GET_SREGS
    0x4138_ae84, // KVM_SET_SREGS
    0xc018_ae85, // KVM_TRANSLATE
    0x4004_ae86, // KVM_INTERRUPT
    0xc008_ae88, // KVM_GET_MSRS
    0x4008_ae89, // KVM_SET_MSRS
    0x4008_ae90, // KVM_SET_CPUID2
    0xae9a,      // KVM_NMI
    0x4048_ae9b, // KVM_SET_GUEST_DEBUG
    0x8040_ae9f, // KVM_GET_VCPU_EVENTS
    0x4040_aea0, // KVM_SET_VCPU_EVENTS
    0x8080_aea1, // KVM_GET_DEBUGREGS
    0x4080_aea2, // KVM_SET_DEBUGREGS
    0x4068_aea3, // KVM_ENABLE_CAP
    0x9000_aea4, // KVM_GET_XSAVE
    0x5000_aea5, // KVM_SET_XSAVE
    0x8188_aea6, // KVM_GET_XCRS
    0x4188_aea7, // KVM_SET_XCRS
    0x4188_aec6, // KVM_X86_SET_MSR_FILTER
    0x4008_ae6a, // KVM_SET_GSI_ROUTING
    0x4020_aea5, // KVM_SIGNAL_MSI
    0x8400_ae8e, // KVM_GET_LAPIC
    0x4400_ae8f, // KVM_SET_LAPIC
    0x8004_ae98, // KVM_GET_MP_STATE
    0x4004_ae99, // KVM_SET_MP_STATE
    0xaece,      // KVM_GET_STATS_FD
    0x4018_aee1, // KVM_SET_DEVICE_ATTR
];
