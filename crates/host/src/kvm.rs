//! Whether /dev/kvm runs guests: a small one is run, which tries each way to leave a processor and to come back.

use kvm_bindings::{CpuId, kvm_cpuid_entry2, kvm_userspace_memory_region};
use kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd, VmFd};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

const PAGE: usize = 4096;
/// Where the guest's code begins: behind the real mode's table of interrupts.
const START: u64 = 0x400;
/// The end of its stack.
const STACK: u64 = 0xc00;
/// Where it leaves what it found.
const SUM: usize = 0x800;
const CPUID: usize = 0x810;
const MSR: usize = 0x820;
const HYPERCALL: usize = 0x830;
const INTERRUPT: usize = 0x840;
/// Where it expects a device.
const PORT: u16 = 0x3f8;
const DEVICE: u64 = 0xa_0020;
/// The vector of its interrupt, and that of the table where its handler is named.
const VECTOR: u8 = 0x20;
const ENTRY: usize = 4 * VECTOR as usize;
const HANDLER: u16 = 0x700;
/// CPUID's leaf that only the table of the vCPU has, and EBX there.
const LEAF: u32 = 0x4000_0000;
const NAME: u32 = u32::from_le_bytes(*b"Sato");
/// What the devices read: the guest writes one more.
const READ: u8 = 0x5a;
/// IA32_PAT, and the value that the guest gives it in both halves.
const PAT: u32 = 0x277;
const TYPES: u32 = 0x0001_0406;
/// A hypercall that there is not, and what KVM answers: -KVM_ENOSYS.
const CALL: u32 = 99;
const NO_SUCH_CALL: u32 = 1000_u32.wrapping_neg();
/// Seconds of the loop by which its speed is told.
const LONG_ENOUGH: f64 = 0.01;
/// So often it is measured at most, and so long its interrupt may take.
const MEASUREMENTS: usize = 20;
/// Turns of the loop, of two instructions, in a second: any processor makes a hundred times as many, Satori's own ten times.
const SLOW: f64 = 5e6;
/// Where KVM keeps three pages of its own for code in real mode, and one below them.
const TSS: usize = 0xfffb_d000;

/// Where the guest tells, by a number, which of [`STEPS`] comes now.
const STEP_PORT: u8 = 0x80;
const STEPS: [&str; 7] = [
    "an addition",
    "CPUID",
    "a port",
    "a device in memory",
    "an MSR",
    "a hypercall",
    "a halt with interrupts on",
];

/// `MOV AL,NUMBER; OUT STEP_PORT,AL`.
fn step(number: u8) -> Vec<u8> {
    vec![0xb0, number, 0xe6, STEP_PORT]
}

/// The guest's program, in 16-bit code.
fn program() -> Vec<u8> {
    let low = |place: usize| place.to_le_bytes()[..2].to_vec();
    [
        // MOV AX,1234; ADD AX,1111; MOV [SUM],AX.
        vec![0xb8, 0x34, 0x12, 0x05, 0x11, 0x11, 0xa3],
        low(SUM),
        step(1),
        // MOV EAX,LEAF; CPUID; MOV [CPUID],EBX.
        [vec![0x66, 0xb8], LEAF.to_le_bytes().to_vec(), vec![0x0f, 0xa2, 0x66, 0x89, 0x1e], low(CPUID)]
            .concat(),
        step(2),
        // MOV DX,PORT; IN AL,DX; INC AL; OUT DX,AL.
        [vec![0xba], PORT.to_le_bytes().to_vec(), vec![0xec, 0xfe, 0xc0, 0xee]].concat(),
        step(3),
        // MOV AX,a000; MOV ES,AX; MOV AL,ES:[20]; INC AL; MOV ES:[20],AL.
        vec![0xb8, 0x00, 0xa0, 0x8e, 0xc0, 0x26, 0xa0, 0x20, 0x00, 0xfe, 0xc0, 0x26, 0xa2, 0x20, 0x00],
        step(4),
        // MOV ECX,PAT; MOV EAX,TYPES; MOV EDX,EAX; WRMSR.
        [vec![0x66, 0xb9], PAT.to_le_bytes().to_vec(), vec![0x66, 0xb8], TYPES.to_le_bytes().to_vec()]
            .concat(),
        vec![0x66, 0x89, 0xc2, 0x0f, 0x30],
        // XOR EAX,EAX; XOR EDX,EDX; RDMSR; MOV [MSR],EAX; MOV [MSR+4],EDX.
        vec![0x66, 0x31, 0xc0, 0x66, 0x31, 0xd2, 0x0f, 0x32, 0x66, 0xa3],
        [low(MSR), vec![0x66, 0x89, 0x16], low(MSR + 4)].concat(),
        step(5),
        // MOV EAX,CALL; VMCALL; MOV [HYPERCALL],EAX.
        [vec![0x66, 0xb8], CALL.to_le_bytes().to_vec(), vec![0x0f, 0x01, 0xc1, 0x66, 0xa3], low(HYPERCALL)]
            .concat(),
        step(6),
        // XOR ECX,ECX; STI; HLT, where the interrupt comes; INC ECX for ever.
        vec![0x66, 0x31, 0xc9, 0xfb, 0xf4, 0x66, 0x41, 0xeb, 0xfc],
    ]
    .concat()
}

/// `INC WORD [INTERRUPT]; IRET`.
const HANDLES: &[u8] = &[0xff, 0x06, 0x40, 0x08, 0xcf];

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
    #[error("its guest ended with {0}")]
    End(String),
    /// It runs, and is of no use.
    #[error("its guest is slow: {0:.1} million turns of a loop in a second")]
    Slow(f64),
    /// The guest found something else than a processor does.
    #[error("its guest got {what} wrong: {found:#x} instead of {wanted:#x}")]
    Wrong {
        /// What it tried.
        what: &'static str,
        /// What it found.
        found: u64,
        /// What it should have.
        wanted: u64,
    },
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

/// The memory of the guest, which stays until the process ends.
struct Memory(*mut u8);

impl Memory {
    fn new() -> Result<Self, Error> {
        // SAFETY: a new anonymous mapping at an address that the kernel chooses.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
        };
        Ok(Memory(page.map_err(|errno| Error::Memory(errno.into()))?.cast()))
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= PAGE);
        // SAFETY: within the page, and the guest does not run.
        unsafe { self.0.add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn get(&self, at: usize) -> u32 {
        assert!(at + 4 <= PAGE && at.is_multiple_of(4));
        // SAFETY: within the page, and aligned.
        unsafe { self.0.add(at).cast::<u32>().read_volatile() }
    }
}

fn failed(what: &'static str) -> impl Fn(kvm_ioctls::Error) -> Error {
    move |why| Error::Call { what, why }
}

fn same(what: &'static str, found: impl Into<u64>, wanted: impl Into<u64>) -> Result<(), Error> {
    let (found, wanted) = (found.into(), wanted.into());
    if found == wanted { Ok(()) } else { Err(Error::Wrong { what, found, wanted }) }
}

/// Runs a guest of /dev/kvm that adds, asks CPUID, uses a port, a device in memory, an MSR and a hypercall, takes an interrupt, and
/// is brought out of a loop by a timer. It may hang: `tell` is told what it tries before each step.
pub fn attempt(tell: &dyn Fn(&str)) -> Result<(), Error> {
    tell("opening the device");
    let kvm = Kvm::new().map_err(failed("opening /dev/kvm"))?;
    let version = kvm.get_api_version();
    if version != 12 {
        return Err(Error::Version(version));
    }
    tell("making a VM");
    let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
    vm.set_identity_map_address(TSS as u64 - 0x1000).map_err(failed("KVM_SET_IDENTITY_MAP_ADDR"))?;
    vm.set_tss_address(TSS).map_err(failed("KVM_SET_TSS_ADDR"))?;
    let memory = Memory::new()?;
    memory.put(START as usize, &program());
    memory.put(HANDLER.into(), HANDLES);
    memory.put(ENTRY, &HANDLER.to_le_bytes());
    let region = kvm_userspace_memory_region {
        slot: 0,
        flags: 0,
        guest_phys_addr: 0,
        memory_size: PAGE as u64,
        userspace_addr: memory.0 as u64,
    };
    // SAFETY: the page is mapped until the process ends, and the VM is gone before.
    unsafe { vm.set_user_memory_region(region) }.map_err(failed("KVM_SET_USER_MEMORY_REGION"))?;
    tell("making a vCPU");
    let mut vcpu = processor(&vm)?;
    tell(STEPS[0]);
    until_halt(&mut vcpu, tell)?;
    same("an addition", memory.get(SUM), 0x2345_u32)?;
    same("CPUID", memory.get(CPUID), NAME)?;
    same("an MSR", memory.get(MSR), TYPES)?;
    same("an MSR's high half", memory.get(MSR + 4), TYPES)?;
    same("a hypercall", memory.get(HYPERCALL), NO_SUCH_CALL)?;
    let mut events = vcpu.get_vcpu_events().map_err(failed("KVM_GET_VCPU_EVENTS"))?;
    (events.interrupt.injected, events.interrupt.nr) = (1, VECTOR);
    vcpu.set_vcpu_events(&events).map_err(failed("KVM_SET_VCPU_EVENTS"))?;
    tell("an interrupt, and a loop that a timer ends");
    // On a busy host a timer may ring before the guest comes to anything, and others may have the processor in its name.
    let (mut taken, mut rate) = (0, 0.0_f64);
    for _ in 0..MEASUREMENTS {
        rate = rate.max(turns_a_second(&mut vcpu)?);
        taken = memory.get(INTERRUPT);
        if taken != 0 && rate >= SLOW {
            break;
        }
    }
    same("an interrupt", taken, 1_u32)?;
    if rate < SLOW { Err(Error::Slow(rate / 1e6)) } else { Ok(()) }
}

/// How many turns of its loop the guest makes in a second of this thread's.
fn turns_a_second(vcpu: &mut VcpuFd) -> Result<f64, Error> {
    let turns = |vcpu: &VcpuFd| Ok(vcpu.get_regs().map_err(failed("KVM_GET_REGS"))?.rcx as u32);
    let (before, mut time) = (turns(vcpu)?, 0.0);
    while time < LONG_ENOUGH {
        let begin = processor_time();
        until_timer(vcpu)?;
        time += processor_time() - begin;
    }
    Ok(f64::from(turns(vcpu)?.wrapping_sub(before)) / time)
}

/// Seconds that this thread has had of a processor, its guest's included.
fn processor_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A vCPU at the program's start.
fn processor(vm: &VmFd) -> Result<VcpuFd, Error> {
    let vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
    let leaf = kvm_cpuid_entry2 { function: LEAF, eax: LEAF, ebx: NAME, ..Default::default() };
    let table = CpuId::from_entries(&[leaf]).map_err(|why| Error::End(format!("{why:?}")))?;
    vcpu.set_cpuid2(&table).map_err(failed("KVM_SET_CPUID2"))?;
    let mut special = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
    (special.cs.base, special.cs.selector) = (0, 0);
    vcpu.set_sregs(&special).map_err(failed("KVM_SET_SREGS"))?;
    let mut registers = vcpu.get_regs().map_err(failed("KVM_GET_REGS"))?;
    (registers.rip, registers.rsp, registers.rflags) = (START, STACK, 2);
    vcpu.set_regs(&registers).map_err(failed("KVM_SET_REGS"))?;
    Ok(vcpu)
}

/// Runs it to its HLT, and is its devices.
fn until_halt(vcpu: &mut VcpuFd, tell: &dyn Fn(&str)) -> Result<(), Error> {
    let (mut port, mut device) = (0, 0);
    loop {
        match vcpu.run().map_err(failed("KVM_RUN"))? {
            VcpuExit::IoOut(port, [number]) if port == STEP_PORT.into() => {
                STEPS.get(usize::from(*number)).into_iter().for_each(|step| tell(step));
            }
            VcpuExit::IoIn(PORT, [value]) => *value = READ,
            VcpuExit::IoOut(PORT, [value]) => port = *value,
            VcpuExit::MmioRead(DEVICE, [value]) => *value = READ,
            VcpuExit::MmioWrite(DEVICE, [value]) => device = *value,
            VcpuExit::Hlt => break,
            other => return Err(Error::End(format!("{other:?}"))),
        }
    }
    same("a port", port, READ + 1)?;
    same("a device in memory", device, READ + 1)
}

extern "C" fn rings(_signal: libc::c_int) {}

/// Runs it until a timer of this process brings it out.
fn until_timer(vcpu: &mut VcpuFd) -> Result<(), Error> {
    let handler: extern "C" fn(libc::c_int) = rings;
    // Again and again: one that rings before the guest is entered is not the last.
    let every = libc::timeval { tv_sec: 0, tv_usec: 20_000 };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: an all-zero sigaction is a valid one, the handler does nothing, and the structures outlive the calls.
    let set = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) == 0
            && libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) == 0
    };
    if !set {
        return Err(Error::End(std::io::Error::last_os_error().to_string()));
    }
    match vcpu.run() {
        Err(why) if why.errno() == libc::EINTR => Ok(()),
        Err(why) => Err(failed("KVM_RUN")(why)),
        Ok(VcpuExit::Intr) => Ok(()),
        Ok(other) => Err(Error::End(format!("{other:?}"))),
    }
}
