//! KVM's interface, as much of it as a monitor of one processor needs (Documentation/virt/kvm/api.rst).

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{Failure, sys};

const CREATE_VM: u64 = 0xae01;
const GET_VCPU_MMAP_SIZE: u64 = 0xae04;
const GET_SUPPORTED_CPUID: u64 = 0xc008_ae05;
const CREATE_VCPU: u64 = 0xae41;
const SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;
const SET_TSS_ADDR: u64 = 0xae47;
const RUN: u64 = 0xae80;
const SET_REGS: u64 = 0x4090_ae82;
const GET_SREGS: u64 = 0x8138_ae83;
const SET_SREGS: u64 = 0x4138_ae84;
const SET_CPUID2: u64 = 0x4008_ae90;

/// `struct kvm_regs`.
#[repr(C)]
#[derive(Default)]
pub struct Registers {
    pub rax_to_rdx: [u64; 4],
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8_to_r15: [u64; 8],
    pub rip: u64,
    pub rflags: u64,
}

/// `struct kvm_segment`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Segment {
    pub base: u64,
    pub limit: u32,
    pub selector: u16,
    pub kind: u8,
    pub present: u8,
    pub dpl: u8,
    pub db: u8,
    pub s: u8,
    pub l: u8,
    pub g: u8,
    pub avl: u8,
    pub unusable: u8,
    pub padding: u8,
}

/// `struct kvm_sregs`.
#[repr(C)]
#[derive(Default)]
pub struct System {
    /// CS, DS, ES, FS, GS, SS, TR and LDTR.
    pub segments: [Segment; 8],
    /// Base and limit of GDTR and IDTR.
    pub tables: [u64; 4],
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub cr8: u64,
    pub efer: u64,
    pub apic_base: u64,
    pub interrupts: [u64; 4],
}

const _: () = assert!(size_of::<Registers>() == 144 && size_of::<System>() == 312);

/// `struct kvm_cpuid_entry2`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Leaf {
    function: u32,
    index: u32,
    flags: u32,
    eax_to_edx: [u32; 4],
    padding: [u32; 3],
}

const LEAVES: usize = 256;

/// `struct kvm_cpuid2` with room.
#[repr(C)]
struct Leaves {
    count: u32,
    padding: u32,
    all: [Leaf; LEAVES],
}

/// The system's KVM.
pub struct Kvm(File);

impl Kvm {
    /// Opens it.
    pub fn open() -> Result<Kvm, Failure> {
        File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .map(Kvm)
            .map_err(|why| format!("/dev/kvm: {why}"))
    }

    /// A machine with so much memory, and without devices.
    pub fn machine(&self, length: usize) -> Result<Machine, Failure> {
        let told = |what: &'static str| move |why: std::io::Error| format!("{what}: {why}");
        // SAFETY: the machine's type is a number.
        let vm = unsafe { sys::ioctl(self.0.as_raw_fd(), CREATE_VM, 0) }.map_err(told("KVM_CREATE_VM"))?;
        // SAFETY: the descriptor is new, and nobody else's.
        let vm = unsafe { OwnedFd::from_raw_fd(vm as i32) };
        // SAFETY: an address is a number.
        unsafe { sys::ioctl(vm.as_raw_fd(), SET_TSS_ADDR, 0xfffb_d000) }.map_err(told("KVM_SET_TSS_ADDR"))?;
        let memory = sys::memory(None, length).map_err(told("the guest's memory"))?;
        // Slot and flags, guest address, length, address.
        let region = [0, 0, length as u64, memory.as_ptr().expose_provenance() as u64];
        // SAFETY: the memory is there until this process ends.
        unsafe { sys::ioctl(vm.as_raw_fd(), SET_USER_MEMORY_REGION, region.as_ptr().addr()) }
            .map_err(told("KVM_SET_USER_MEMORY_REGION"))?;
        // SAFETY: a processor's number.
        let vcpu = unsafe { sys::ioctl(vm.as_raw_fd(), CREATE_VCPU, 0) }.map_err(told("KVM_CREATE_VCPU"))?;
        // SAFETY: the descriptor is new, and nobody else's.
        let vcpu = unsafe { OwnedFd::from_raw_fd(vcpu as i32) };
        // SAFETY: it takes no argument.
        let length = unsafe { sys::ioctl(self.0.as_raw_fd(), GET_VCPU_MMAP_SIZE, 0) }
            .map_err(told("KVM_GET_VCPU_MMAP_SIZE"))?;
        let run = sys::memory(Some(vcpu.as_raw_fd()), length as usize).map_err(told("struct kvm_run"))?;
        let machine = Machine { _vm: vm, vcpu, memory, run };
        machine.cpuid(self).map_err(told("KVM_SET_CPUID2"))?;
        Ok(machine)
    }
}

/// A machine with one processor.
pub struct Machine {
    _vm: OwnedFd,
    vcpu: OwnedFd,
    /// The guest's memory from address 0.
    pub memory: &'static mut [u8],
    run: &'static mut [u8],
}

impl Machine {
    /// Gives the processor what KVM supports, as QEMU's `-cpu host` does: with the hypervisor bit and the deadline timer, and
    /// without the invariant TSC, which no guest keeps that may be moved.
    fn cpuid(&self, kvm: &Kvm) -> std::io::Result<()> {
        let mut leaves = Leaves { count: LEAVES as u32, padding: 0, all: [Leaf::default(); LEAVES] };
        // SAFETY: the table is as long as it says.
        unsafe { sys::ioctl(kvm.0.as_raw_fd(), GET_SUPPORTED_CPUID, (&raw mut leaves).expose_provenance()) }?;
        for leaf in leaves.all.iter_mut().take(leaves.count as usize) {
            match leaf.function {
                1 => leaf.eax_to_edx[2] |= 1 << 31 | 1 << 24,
                0x8000_0007 => leaf.eax_to_edx[3] &= !(1 << 8),
                _ => {}
            }
        }
        // SAFETY: as above.
        unsafe { sys::ioctl(self.vcpu.as_raw_fd(), SET_CPUID2, (&raw const leaves).expose_provenance()) }
            .map(drop)
    }

    /// Sets the registers; `change` what KVM had in the others.
    pub fn set(&self, registers: &Registers, change: impl FnOnce(&mut System)) -> Result<(), Failure> {
        let fd = self.vcpu.as_raw_fd();
        let mut system = System::default();
        // SAFETY: the structure has the size that the request's number tells.
        unsafe { sys::ioctl(fd, GET_SREGS, (&raw mut system).expose_provenance()) }
            .map_err(|why| format!("KVM_GET_SREGS: {why}"))?;
        change(&mut system);
        // SAFETY: as above.
        unsafe { sys::ioctl(fd, SET_SREGS, (&raw const system).expose_provenance()) }
            .map_err(|why| format!("KVM_SET_SREGS: {why}"))?;
        // SAFETY: as above.
        unsafe { sys::ioctl(fd, SET_REGS, std::ptr::from_ref(registers).expose_provenance()) }
            .map_err(|why| format!("KVM_SET_REGS: {why}"))?;
        Ok(())
    }

    /// Runs the guest until it halts.
    pub fn run(&mut self) -> Result<(), Failure> {
        const REASON: usize = 8;
        const HALT: u32 = 5;
        // SAFETY: it takes no argument; what it changes is read only afterwards.
        unsafe { sys::ioctl(self.vcpu.as_raw_fd(), RUN, 0) }.map_err(|why| format!("KVM_RUN: {why}"))?;
        match u32::from_le_bytes(std::array::from_fn(|at| self.run[REASON + at])) {
            HALT => Ok(()),
            other => Err(format!("L2 did not halt, KVM's exit reason is {other}")),
        }
    }
}
