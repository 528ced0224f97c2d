//! KVM's interface, as much of it as a monitor of one processor needs (Documentation/virt/kvm/api.rst).

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{Failure, sys};

const CREATE_VM: u64 = 0xae01;
const GET_VCPU_MMAP_SIZE: u64 = 0xae04;
const GET_SUPPORTED_CPUID: u64 = 0xc008_ae05;
const CREATE_IRQCHIP: u64 = 0xae60;
const CREATE_PIT2: u64 = 0x4040_ae77;
const CREATE_VCPU: u64 = 0xae41;
const SET_USER_MEMORY_REGION: u64 = 0x4020_ae46;
const SET_TSS_ADDR: u64 = 0xae47;
const RUN: u64 = 0xae80;
const SET_REGS: u64 = 0x4090_ae82;
const GET_SREGS: u64 = 0x8138_ae83;
const SET_SREGS: u64 = 0x4138_ae84;
const SET_MSRS: u64 = 0x4008_ae89;
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
        self.machine_of(length, false)
    }

    /// The same with interrupt controllers and a timer.
    pub fn machine_with_chips(&self, length: usize) -> Result<Machine, Failure> {
        self.machine_of(length, true)
    }

    fn machine_of(&self, length: usize, chips: bool) -> Result<Machine, Failure> {
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
        if chips {
            // SAFETY: it takes no argument.
            unsafe { sys::ioctl(vm.as_raw_fd(), CREATE_IRQCHIP, 0) }.map_err(told("KVM_CREATE_IRQCHIP"))?;
            // Port 0x61 is the timer's as well.
            let timer: [u32; 16] = std::array::from_fn(|at| (at == 0).into());
            // SAFETY: the structure has the size that the request's number tells.
            unsafe { sys::ioctl(vm.as_raw_fd(), CREATE_PIT2, timer.as_ptr().addr()) }
                .map_err(told("KVM_CREATE_PIT2"))?;
        }
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
        machine.fast_strings().map_err(told("KVM_SET_MSRS"))?;
        Ok(machine)
    }
}

/// Where `struct kvm_run` tells of an exit.
const TOLD: usize = 32;

/// Why a guest stopped.
#[derive(Debug)]
pub enum Exit {
    /// It reads a port.
    In(u16),
    /// It wrote to one, this byte first.
    Out(u16, u8),
    /// It reads or wrote memory that there is not.
    Memory,
    /// Another of KVM's exit reasons.
    Other(u32),
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

    /// Sets IA32_MISC_ENABLE's first bit, as firmware does. Linux on a processor of Intel's with FSRM and without it copies too much.
    fn fast_strings(&self) -> std::io::Result<()> {
        const MISC_ENABLE: u64 = 0x1a0;
        // `struct kvm_msrs` with one entry.
        let one = [1, MISC_ENABLE, 1_u64];
        // SAFETY: the structure is as long as it says.
        unsafe { sys::ioctl(self.vcpu.as_raw_fd(), SET_MSRS, one.as_ptr().addr()) }.map(drop)
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
        const HALT: u32 = 5;
        match self.enter()? {
            Exit::Other(HALT) => Ok(()),
            other => Err(format!("L2 did not halt, its exit was {other:?}")),
        }
    }

    fn field<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|byte| self.run[at + byte])
    }

    /// Runs the guest until it wants something.
    pub fn enter(&mut self) -> Result<Exit, Failure> {
        const REASON: usize = 8;
        const IO: u32 = 2;
        const MMIO: u32 = 6;
        // SAFETY: it takes no argument; what it changes is read only afterwards.
        unsafe { sys::ioctl(self.vcpu.as_raw_fd(), RUN, 0) }.map_err(|why| format!("KVM_RUN: {why}"))?;
        Ok(match u32::from_le_bytes(self.field(REASON)) {
            IO => {
                let port = u16::from_le_bytes(self.field(TOLD + 2));
                if self.run[TOLD] == 0 {
                    Exit::In(port)
                } else {
                    Exit::Out(port, self.run[self.data().start])
                }
            }
            MMIO => Exit::Memory,
            other => Exit::Other(other),
        })
    }

    /// Where the bytes of an access to a port are.
    fn data(&self) -> std::ops::Range<usize> {
        let [size, count] = [self.run[TOLD + 1].into(), u32::from_le_bytes(self.field(TOLD + 4)) as usize];
        let start = u64::from_le_bytes(self.field(TOLD + 8)) as usize;
        start..start + size * count
    }

    /// Answers a read of a port, in all its bytes.
    pub fn answer(&mut self, byte: u8) {
        let data = self.data();
        self.run[data].fill(byte);
    }

    /// Answers an access to memory that there is not.
    pub fn answer_memory(&mut self) {
        self.run[TOLD + 8..TOLD + 16].fill(0xff);
    }
}
