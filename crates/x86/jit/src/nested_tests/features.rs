//! What a hypervisor is told of software events and NMIs, and the features that spare it exits.

use satori_engine::{Exception, Resume};
use satori_vmx::control::interruptibility;
use satori_vmx::{ept, error};

use super::*;

const PAGE: u64 = 0x8_6000;

#[test]
fn an_int_n_that_does_not_arrive_is_told_with_its_length() {
    both(|translates| {
        // INT 30 where the IDT is empty: #GP, which exits.
        let changes = [(Field::GuestIdtrLimit, 0), (Field::ExceptionBitmap, 1 << 13)];
        let mut cpu = hypervisor(translates, &[0xcd, 0x30], &changes);
        run(&mut cpu);
        let vmcs = &cpu.vmcs();
        assert_eq!((told(&cpu), vmcs.get(Field::GuestRip)), ((0, 0, 2), GUEST));
        assert_eq!(
            (vmcs.get(Field::IdtVectoring), vmcs.get(Field::ExitInterruption)),
            (0x8000_0430, 0x8000_0b0d)
        );
        // INT3, by #NP of its gate's handler or none: its type is another.
        let mut cpu = hypervisor(translates, &[0xcc], &changes);
        run(&mut cpu);
        assert_eq!(cpu.vmcs().get(Field::IdtVectoring), 0x8000_0603);
        // What comes later is not its.
        let mut cpu = hypervisor(translates, &[0x0f, 0xa2], &changes);
        run(&mut cpu);
        assert_eq!(cpu.vmcs().get(Field::IdtVectoring), 0);
    });
}

#[test]
fn an_iret_that_faults_says_that_it_unblocked_nmis() {
    both(|translates| {
        let pins = capability::PIN.must | pin::NMI;
        for (virtual_nmis, unblocked) in [(pin::VIRTUAL_NMIS, true), (0, false)] {
            let changes = [
                (Field::PinControls, u64::from(pins | virtual_nmis)),
                (Field::GuestInterruptibility, interruptibility::NMI.into()),
                (Field::ExceptionBitmap, 1 << 13),
            ];
            // PUSH 0 five times; IRETQ to a null CS.
            let code = [0x6a, 0, 0x6a, 0, 0x6a, 0, 0x6a, 0, 0x6a, 0, 0x48, 0xcf];
            let mut cpu = hypervisor(translates, &code, &changes);
            run(&mut cpu);
            let vmcs = &cpu.vmcs();
            let bit = u64::from(unblocked) << 12;
            assert_eq!(vmcs.get(Field::ExitInterruption), 0x8000_0b0d | bit);
            let blocked = vmcs.get32(Field::GuestInterruptibility) & interruptibility::NMI != 0;
            assert_eq!(blocked, !unblocked);
        }
    });
}

#[test]
fn vmcall_in_root_operation_fails_where_nobody_serves_it() {
    both(|translates| {
        let mut cpu = hypervisor(translates, &[0x0f, 0xa2], &[]);
        cpu.memory().write(Gpa(HANDLER), &[0x0f, 0x01, 0xc1, 0xf4]).unwrap();
        let until = Until { counter: None, instructions: Some(10_000) };
        assert_eq!(cpu.run(until), Exit::Vmcall);
        cpu.resume(Resume::Fault(Exception::ud()));
        assert_eq!(run(&mut cpu), HANDLER + 4);
        assert_eq!(cpu.rflags() & (rflags::ZF | rflags::CF), rflags::ZF);
        assert_eq!(cpu.vmcs().get32(Field::InstructionError), error::VMCALL_IN_ROOT);
    });
}

#[test]
fn cr8_is_in_the_virtual_apic_page() {
    let changes = [
        (Field::ProcControls, u64::from(PROC & !(proc::CR8_LOAD | proc::CR8_STORE) | proc::TPR_SHADOW)),
        (Field::VirtualApic, PAGE),
        (Field::TprThreshold, 3),
    ];
    both(|translates| {
        // MOV RBX,CR8; MOV EAX,2; MOV CR8,RAX; NOP
        let code = [0x44, 0x0f, 0x20, 0xc3, 0xb8, 2, 0, 0, 0, 0x44, 0x0f, 0x22, 0xc0, 0x90];
        let mut cpu = hypervisor(translates, &code, &changes);
        cpu.memory().write(Gpa(PAGE + 0x80), &[0x5f]).unwrap();
        run(&mut cpu);
        assert_eq!((told(&cpu).0, cpu.vmcs().get(Field::GuestRip)), (43, GUEST + 13), "behind the MOV");
        assert_eq!((cpu.state.gpr[3], cpu.memory().read_u32(Gpa(PAGE + 0x80)).unwrap()), (5, 0x20));
        assert_eq!(cpu.state.tpr, 0, "its hypervisor's is another");
        // The threshold may not be above it.
        let mut cpu = hypervisor(translates, &code, &changes);
        run(&mut cpu);
        assert_eq!(cpu.vmcs().get32(Field::InstructionError), error::ENTRY_CONTROLS);
    });
}

/// With EPT, and these secondary controls besides.
fn paged(more: u32) -> [(Field, u64); 2] {
    let eptp = EPT | 3 << 3 | 6 | ept::EPTP_ACCESSED_DIRTY;
    [(Field::ProcControls2, u64::from(PROC2 | proc2::EPT | more)), (Field::Eptp, eptp)]
}

#[test]
fn pages_that_become_dirty_are_logged_until_the_log_is_full() {
    // MOV [30000],AL; MOV [30010],AL; MOV [31000],AL; CPUID.
    let store = |at: u32| [&[0x88, 0x04, 0x25][..], &at.to_le_bytes()].concat();
    let code = [&store(0x3_0000)[..], &store(0x3_0010), &store(0x3_1000), &[0x0f, 0xa2]].concat();
    both(|translates| {
        let with = |index: u64| {
            let [controls, eptp] = paged(proc2::PML);
            let changes = [controls, eptp, (Field::PmlAddress, PAGE), (Field::PmlIndex, index)];
            let mut cpu = hypervisor(translates, &code, &changes);
            // The guest's own page tables are dirty already.
            for page in (0..512).filter(|page| !(0x30..0x32).contains(page)) {
                cpu.memory()
                    .write(Gpa(EPT + 0x3000 + 8 * page), &(page << 12 | 0x337).to_le_bytes())
                    .unwrap();
            }
            run(&mut cpu);
            cpu
        };
        let cpu = with(511);
        let logged = |index: u64| cpu.memory().read_u64(Gpa(PAGE + 8 * index)).unwrap();
        assert_eq!((told(&cpu).0, cpu.vmcs().get(Field::PmlIndex)), (10, 509));
        assert_eq!((logged(511), logged(510)), (0x3_0000, 0x3_1000));
        let cpu = with(0);
        assert_eq!((told(&cpu).0, cpu.vmcs().get(Field::PmlIndex)), (62, 0xffff));
        assert_eq!(cpu.vmcs().get(Field::GuestRip), GUEST + 14, "the store is executed again");
    });
}

#[test]
fn a_guest_takes_another_eptp_of_the_list() {
    // MOV ECX,1; XOR EAX,EAX; VMFUNC; CPUID; behind that with 2.
    let code = |index: u8| [0xb9, index, 0, 0, 0, 0x31, 0xc0, 0x0f, 0x01, 0xd4, 0x0f, 0xa2];
    both(|translates| {
        let with = |index: u8, functions: u64| {
            let [controls, eptp] = paged(proc2::VM_FUNCTIONS);
            let changes = [controls, eptp, (Field::VmFunctions, functions), (Field::EptpList, PAGE)];
            let mut cpu = hypervisor(translates, &code(index), &changes);
            let other = EPT | 3 << 3 | 6;
            cpu.memory().write(Gpa(PAGE + 8), &other.to_le_bytes()).unwrap();
            run(&mut cpu);
            (told(&cpu).0, cpu.vmcs().get(Field::Eptp) == other)
        };
        assert_eq!(with(1, 1), (10, true));
        assert_eq!(with(2, 1), (59, false), "no EPTP is there");
        assert_eq!(with(1, 0), (59, false), "the function is off");
    });
}
