//! Whether /dev/kvm runs guests: one of four instructions is run.

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Cap, Kvm, VcpuExit};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// `mov ax, 0x1234; add ax, 0x1111; mov [0x800], ax; hlt`, in 16-bit code.
const PROGRAM: &[u8] = &[0xb8, 0x34, 0x12, 0x05, 0x11, 0x11, 0xa3, 0x00, 0x08, 0xf4];
const WORD: usize = 0x800;
const RESULT: u16 = 0x2345;
const PAGE: usize = 4096;

/// Why it does not.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call of the device's.
    #[error("{what} failed: {why}")]
    Call {
        /// Which one.
        what: &'static str,
        /// What the kernel said.
        why: kvm_ioctls::Error,
    },
    /// Another interface than that of every kernel since 2.6.22.
    #[error("it speaks API version {0}, not 12")]
    Version(i32),
    /// The host gives no memory.
    #[error("a page of memory cannot be had: {0}")]
    Memory(std::io::Error),
    /// The guest ended otherwise than by its HLT.
    #[error("instead of halting, its guest ended with {0}")]
    End(String),
    /// The guest's result is not that of its instructions.
    #[error("it ran four instructions wrongly: {0:#x}")]
    Wrong(u16),
}

/// What the device says that it can.
pub fn capabilities() -> String {
    let Ok(kvm) = Kvm::new() else { return String::new() };
    const ASKED: [(Cap, &str); 5] = [
        (Cap::Hyperv, "Hyper-V"),
        (Cap::HypervTime, "hv-time"),
        (Cap::HypervSynic2, "hv-synic"),
        (Cap::NestedState, "nesting"),
        (Cap::XenHvm, "Xen"),
    ];
    let (has, lacks): (Vec<_>, Vec<_>) = ASKED.iter().partition(|(cap, _)| kvm.check_extension(*cap));
    let names = |list: &[(Cap, &str)]| match list {
        [] => "nothing".into(),
        _ => list.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", "),
    };
    format!(
        "it has up to {} vCPUs; of what Satori asks for it offers {}, and lacks {}",
        kvm.get_max_vcpus(),
        names(&has),
        names(&lacks)
    )
}

/// Runs four instructions in a guest of /dev/kvm.
pub fn attempt() -> Result<(), Error> {
    let failed = |what: &'static str| move |why| Error::Call { what, why };
    let kvm = Kvm::new().map_err(failed("opening /dev/kvm"))?;
    let version = kvm.get_api_version();
    if version != 12 {
        return Err(Error::Version(version));
    }
    let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
    // SAFETY: a new anonymous mapping at an address that the kernel chooses.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    };
    let page = page.map_err(|errno| Error::Memory(errno.into()))?;
    // SAFETY: the page is ours, and the program is shorter.
    unsafe { std::ptr::copy_nonoverlapping(PROGRAM.as_ptr(), page.cast::<u8>(), PROGRAM.len()) };
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: PAGE as u64,
        userspace_addr: page as u64,
    };
    // SAFETY: the page is mapped until the process ends, and the VM is gone before.
    unsafe { vm.set_user_memory_region(region) }.map_err(failed("KVM_SET_USER_MEMORY_REGION"))?;
    let mut vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
    let mut special = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
    special.cs.base = 0;
    special.cs.selector = 0;
    vcpu.set_sregs(&special).map_err(failed("KVM_SET_SREGS"))?;
    let mut registers = vcpu.get_regs().map_err(failed("KVM_GET_REGS"))?;
    registers.rip = 0;
    registers.rflags = 2;
    vcpu.set_regs(&registers).map_err(failed("KVM_SET_REGS"))?;
    match vcpu.run().map_err(failed("KVM_RUN"))? {
        VcpuExit::Hlt => {}
        other => return Err(Error::End(format!("{other:?}"))),
    }
    // SAFETY: within the page, and aligned.
    let word = unsafe { page.cast::<u8>().add(WORD).cast::<u16>().read_volatile() };
    if word == RESULT { Ok(()) } else { Err(Error::Wrong(word)) }
}
