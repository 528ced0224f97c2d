//! A guest in real mode that executes one instruction again and again: RDMSR is none of user programs.

use crate::Failure;
use crate::kvm::{Kvm, Machine, Registers};
use crate::measure::{Amount, samples};

/// CPUID, and RDMSR of a register that KVM lets its guests read, and of one that it does not.
pub const ROWS: [&str; 3] = ["cpuid-l2", "rdmsr-passed", "rdmsr-intercepted"];

const KERNEL_GS_BASE: u64 = 0xc000_0102;
const APIC_BASE: u64 = 0x1b;
const START: usize = 0x1000;
/// The fewest operations of a sample: beside them its entry and its exit are nothing.
const FEWEST: u64 = 1024;

/// ```text
/// next:  mov eax, 1
///        cpuid
///        dec esi
///        jnz next
///        hlt
///        jmp next
/// ```
const CPUID: &[u8] = &[0x66, 0xb8, 1, 0, 0, 0, 0x0f, 0xa2, 0x66, 0x4e, 0x75, 0xf4, 0xf4, 0xeb, 0xf1];

/// ```text
/// next:  rdmsr
///        dec esi
///        jnz next
///        hlt
///        jmp next
/// ```
const RDMSR: &[u8] = &[0x0f, 0x32, 0x66, 0x4e, 0x75, 0xfa, 0xf4, 0xeb, 0xf7];

/// What lets L2 execute so many CPUIDs.
pub fn cpuid(kvm: &Kvm) -> Result<impl FnMut(u64) -> Result<(), Failure>, Failure> {
    let mut machine = machine(kvm, CPUID)?;
    Ok(move |count| {
        let registers = Registers { rsi: count, rip: START as u64, rflags: 2, ..Registers::default() };
        begin(&machine, &registers)?;
        machine.run()
    })
}

/// Measures the row `name`.
pub fn row(kvm: &Kvm, name: &str, amount: &Amount) -> Result<String, Failure> {
    let (code, msr) = match name {
        "cpuid-l2" => (CPUID, 0),
        "rdmsr-passed" => (RDMSR, KERNEL_GS_BASE),
        _ => (RDMSR, APIC_BASE),
    };
    let mut machine = machine(kvm, code)?;
    samples(name, amount, FEWEST, |count| {
        let registers = Registers {
            rax_to_rdx: [0, 0, msr, 0],
            rsi: count,
            rip: START as u64,
            rflags: 2,
            ..Registers::default()
        };
        begin(&machine, &registers)?;
        machine.run()
    })
}

/// A machine with `code` to be executed.
fn machine(kvm: &Kvm, code: &[u8]) -> Result<Machine, Failure> {
    let machine = kvm.machine(0x1_0000)?;
    machine.memory[START..START + code.len()].copy_from_slice(code);
    Ok(machine)
}

fn begin(machine: &Machine, registers: &Registers) -> Result<(), Failure> {
    machine.set(registers, |system| (system.segments[0].base, system.segments[0].selector) = (0, 0))
}

/// Whether KVM tells its guest that the clock which it shares with it is stable, so that user programs can read it
/// (Documentation/virt/kvm/x86/msr.rst, MSR_KVM_SYSTEM_TIME_NEW).
pub fn stable_clock(kvm: &Kvm) -> Result<bool, Failure> {
    const SYSTEM_TIME: u64 = 0x4b56_4d01;
    const PLACE: usize = 0x2000;
    /// Of `struct pvclock_vcpu_time_info`, and PVCLOCK_TSC_STABLE_BIT in it.
    const FLAGS: usize = 29;
    const STABLE: u8 = 1;
    // WRMSR; HLT.
    let mut machine = machine(kvm, &[0x0f, 0x30, 0xf4])?;
    let registers = Registers {
        rax_to_rdx: [PLACE as u64 | 1, 0, SYSTEM_TIME, 0],
        rip: START as u64,
        rflags: 2,
        ..Registers::default()
    };
    begin(&machine, &registers)?;
    machine.run()?;
    if machine.memory[PLACE..PLACE + 32].iter().all(|byte| *byte == 0) {
        return Err("KVM wrote no clock for its guest".into());
    }
    Ok(machine.memory[PLACE + FLAGS] & STABLE != 0)
}
