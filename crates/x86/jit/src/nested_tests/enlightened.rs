//! The same hypervisor on Hyper-V: its VMCS is in memory, and no VMPTRLD makes it current.

use satori_defs::hyperv::assist;
use satori_defs::vmx::TRAP_AFTER_FLUSH;
use satori_engine::Resume;
use satori_vmx::evmcs::{self, clean, control};

use super::*;

const ASSIST: u64 = 0x8_3000;
const EVMCS: u64 = 0x8_4000;
/// The partition assist page.
const LOCKS: u64 = 0x8_5000;
/// VMRESUME; HLT.
const RESUMER: u64 = LAUNCHER + 0x100;

/// A hypervisor whose launcher leaves VMPTRLD out, with `changes` in the enlightened VMCS.
fn on_hyper_v(translates: bool, code: &[u8], changes: &[(Field, u64)]) -> Machine {
    let mut cpu = hypervisor(translates, code, changes);
    let mut region = [0; satori_vmx::vmcs::USED];
    cpu.memory().read(Gpa(VMCS), &mut region).unwrap();
    let vmcs = Vmcs::from_region(&region);
    for field in Field::ALL {
        if let Some(at) = evmcs::place(*field) {
            put(&cpu, at as u64, *field, vmcs.get(*field));
        }
    }
    let write = |at: u64, bytes: &[u8]| cpu.memory().write(Gpa(at), bytes).expect("it is RAM");
    write(EVMCS, &evmcs::VERSION.to_le_bytes());
    write(EVMCS + evmcs::CLEAN_FIELDS as u64, &0xffff_u32.to_le_bytes());
    write(ASSIST + assist::ENLIGHTEN_VM_ENTRY, &[1]);
    write(ASSIST + assist::CURRENT_NESTED_VMCS, &EVMCS.to_le_bytes());
    write(ASSIST + assist::NESTED_CONTROL, &assist::DIRECT_HYPERCALL.to_le_bytes());
    write(LAUNCHER, &[0xf3, 0x0f, 0xc7, 0x34, 0x25, 0, 0, 7, 0, 0x0f, 0x01, 0xc2, 0xf4]);
    write(RESUMER, &[0x0f, 0x01, 0xc3, 0xf4]);
    cpu.controls_mut().nesting.evmcs = true;
    cpu.controls_mut().nesting.assist = Some(ASSIST);
    cpu
}

fn put(cpu: &Cpu, at: u64, field: Field, value: u64) {
    let bytes = match field.width() {
        satori_vmx::field::Width::Word => 2,
        satori_vmx::field::Width::Double => 4,
        _ => 8,
    };
    cpu.memory().write(Gpa(EVMCS + at), &value.to_le_bytes()[..bytes]).unwrap();
}

fn set(cpu: &Cpu, field: Field, value: u64) {
    put(cpu, evmcs::place(field).unwrap() as u64, field, value);
}

fn in_memory(cpu: &Cpu, field: Field) -> u64 {
    cpu.memory().read_u64(Gpa(EVMCS + evmcs::place(field).unwrap() as u64)).unwrap() & field.mask()
}

fn resume(cpu: &mut Machine) -> u64 {
    cpu.state.rip = RESUMER;
    run(cpu)
}

#[test]
fn an_entry_takes_its_fields_from_memory_and_an_exit_leaves_them_there() {
    both(|translates| {
        // CPUID; HLT, which exits.
        let mut cpu = on_hyper_v(translates, &[0x0f, 0xa2, 0xf4], &[]);
        run(&mut cpu);
        assert_eq!(
            (in_memory(&cpu, Field::ExitReason), in_memory(&cpu, Field::ExitInstructionLength)),
            (10, 2)
        );
        assert_eq!(in_memory(&cpu, Field::GuestRip), GUEST);
        let clean_fields = Gpa(EVMCS + evmcs::CLEAN_FIELDS as u64);
        assert_eq!(cpu.memory().read_u32(clean_fields).unwrap(), 0, "VMLAUNCH makes all fields dirty");
        // Where all is clean, RIP is read and the controls are as they were.
        cpu.memory().write(clean_fields, &0xffff_u32.to_le_bytes()).unwrap();
        set(&cpu, Field::GuestRip, GUEST + 2);
        set(&cpu, Field::ProcControls, u64::from(PROC | proc::HLT));
        assert_eq!(resume(&mut cpu), GUEST + 3, "the machine sees the guest's HLT");
        assert!(cpu.in_vmx().1);
    });
    both(|translates| {
        let mut cpu = on_hyper_v(translates, &[0x0f, 0xa2, 0xf4], &[]);
        run(&mut cpu);
        let dirty = !clean::CONTROL_PROC & 0xffff;
        cpu.memory().write(Gpa(EVMCS + evmcs::CLEAN_FIELDS as u64), &dirty.to_le_bytes()).unwrap();
        set(&cpu, Field::GuestRip, GUEST + 2);
        set(&cpu, Field::ProcControls, u64::from(PROC | proc::HLT));
        resume(&mut cpu);
        assert_eq!(in_memory(&cpu, Field::ExitReason), 12, "what is not clean is read");
    });
}

#[test]
fn a_refused_entry_tells_its_number_in_memory() {
    both(|translates| {
        let bad = (Field::PinControls, u64::from(capability::PIN.must | pin::PREEMPTION_TIMER));
        let mut cpu = on_hyper_v(translates, &[0xf4], &[bad]);
        run(&mut cpu);
        assert_eq!(in_memory(&cpu, Field::InstructionError), u64::from(error::ENTRY_CONTROLS));
        assert_eq!(cpu.rflags() & (rflags::ZF | rflags::CF), rflags::ZF);
    });
    both(|translates| {
        let mut cpu = on_hyper_v(translates, &[0xf4], &[]);
        cpu.memory().write(Gpa(EVMCS), &[2]).unwrap();
        run(&mut cpu);
        assert_eq!(cpu.rflags() & (rflags::ZF | rflags::CF), rflags::CF, "no such version");
    });
}

#[test]
fn vmclear_leaves_the_structure_alone() {
    let mut cpu = on_hyper_v(false, &[0x0f, 0xa2], &[(Field::HostEs, 16)]);
    run(&mut cpu);
    let before = in_memory(&cpu, Field::HostEs);
    assert_ne!(before, 0);
    // VMCLEAR [70010], of the active one and once more.
    cpu.memory().write(Gpa(POINTERS + 0x10), &EVMCS.to_le_bytes()).unwrap();
    cpu.memory().write(Gpa(RESUMER), &[0x66, 0x0f, 0xc7, 0x34, 0x25, 0x10, 0, 7, 0, 0xf4]).unwrap();
    for _ in 0..2 {
        resume(&mut cpu);
        assert_eq!(cpu.rflags() & (rflags::ZF | rflags::CF), 0);
        assert_eq!(in_memory(&cpu, Field::HostEs), before);
    }
}

#[test]
fn a_flush_is_served_below_the_hypervisor_that_allows_it() {
    // MOV ECX,2; MOV EDX,30000; VMCALL; CPUID.
    let code = [0xb9, 2, 0, 0, 0, 0xba, 0, 0, 3, 0, 0x0f, 0x01, 0xc1, 0x0f, 0xa2];
    let with = |translates, control: u32| {
        let mut cpu = on_hyper_v(translates, &code, &[]);
        cpu.controls_mut().nesting.direct_flush = true;
        cpu.memory().write(Gpa(EVMCS + 0x344), &control.to_le_bytes()).unwrap();
        cpu.memory().write(Gpa(EVMCS + 0x358), &LOCKS.to_le_bytes()).unwrap();
        cpu
    };
    let until = || Until { counter: None, instructions: Some(10_000) };
    both(|translates| {
        for locked in [false, true] {
            let mut cpu = with(translates, control::NESTED_FLUSH_HYPERCALL);
            cpu.memory().write(Gpa(LOCKS), &[locked.into()]).unwrap();
            assert_eq!(cpu.run(until()), Exit::NestedFlush { block: Some(0x3_0000) });
            cpu.resume(Resume::Done);
            run(&mut cpu);
            let wanted = if locked { (TRAP_AFTER_FLUSH.into(), GUEST + 13) } else { (10, GUEST + 13) };
            assert_eq!((in_memory(&cpu, Field::ExitReason), in_memory(&cpu, Field::GuestRip)), wanted);
        }
        let mut cpu = with(translates, 0);
        run(&mut cpu);
        assert_eq!(in_memory(&cpu, Field::ExitReason), 18, "it was not asked for");
    });
}
