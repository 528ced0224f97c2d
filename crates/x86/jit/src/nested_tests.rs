//! A hypervisor of a few instructions: VMXON, VMPTRLD, VMLAUNCH, and HLT where exits lead to. Both engines.

use satori_defs::x86::{cr4, efer, rflags};
use satori_engine::{Event, Exit, Until, Window};
use satori_memory::Gpa;
use satori_vmx::capability::{self, REVISION};
use satori_vmx::control::{entry, exit, pin, proc, proc2};
use satori_vmx::{ENTRY_FAILURE, Field, Vmcs, error};

mod enlightened;
mod features;
mod switches;

use crate::testing::{Machine, machine64};
use crate::{Host, Jit, Manner, Pool};
use satori_soft::cpu::Cpu;

/// The current-VMCS pointer when there is none.
const NONE: u64 = u64::MAX;
const REGION: u64 = 0x8_0000;
const VMCS: u64 = 0x8_1000;
const MAPS: u64 = 0x8_2000;
const EPT: u64 = 0x9_0000;
/// Pointers to the regions, as operands.
const POINTERS: u64 = 0x7_0000;
const LAUNCHER: u64 = 0x1_0000;
const HANDLER: u64 = 0x1_1000;
const GUEST: u64 = 0x1_2000;

fn fields() -> Vmcs {
    let mut vmcs = Vmcs::default();
    let long = efer::LME | efer::LMA | efer::NXE | efer::SCE;
    for (field, value) in [
        (Field::PinControls, capability::PIN.must.into()),
        (
            Field::ProcControls,
            u64::from(capability::PROC.must & !(proc::CR3_LOAD | proc::CR3_STORE) | proc::SECONDARY),
        ),
        (Field::ProcControls2, u64::from(proc2::RDTSCP | proc2::INVPCID | proc2::XSAVES)),
        (
            Field::ExitControls,
            u64::from(capability::EXIT.must | exit::HOST_64 | exit::LOAD_EFER | exit::SAVE_EFER),
        ),
        (Field::EntryControls, u64::from(capability::ENTRY.must | entry::IA32E | entry::LOAD_EFER)),
        (Field::LinkPointer, u64::MAX),
        (Field::HostEfer, long),
        (Field::GuestEfer, long),
        (Field::HostCs, 8),
        (Field::HostSs, 16),
        (Field::HostTr, 24),
        (Field::HostRip, HANDLER),
        (Field::HostRsp, 0x6_0000),
        (Field::GuestRip, GUEST),
        (Field::GuestRsp, 0x5_0000),
        (Field::GuestRflags, rflags::FIXED),
        (Field::GuestCs, 8),
        (Field::GuestCsRights, 0xa09b),
        (Field::GuestTr, 24),
        (Field::GuestTrRights, 0x8b),
        (Field::GuestTrLimit, 0x67),
        (Field::GuestLdtrRights, 1 << 16),
        (Field::MsrBitmap, MAPS),
        (Field::IoBitmapA, MAPS),
        (Field::IoBitmapB, MAPS),
    ] {
        vmcs.set(field, value);
    }
    for index in 0..6 {
        vmcs.set(Field::GuestEsLimit.plus(index), 0xffff_ffff);
        if index != 1 {
            vmcs.set(Field::GuestEs.plus(index), 16);
            vmcs.set(Field::GuestEsRights.plus(index), 0xc093);
        }
    }
    vmcs
}

/// A processor before VMXON, whose VMCS has these fields beside those of [`fields`] and whose guest executes `code`.
fn hypervisor(translates: bool, code: &[u8], changes: &[(Field, u64)]) -> Machine {
    let mut cpu = machine64();
    if translates {
        let manner = Manner { hot: 0, counting: false, watcher: None, host: Host::default() };
        cpu.put(Jit::new(&Pool::default(), manner));
    }
    cpu.state.cr4 |= cr4::VMXE;
    let mut vmcs = fields();
    for (guest, host, value) in [
        (Field::GuestCr0, Field::HostCr0, cpu.state.cr0),
        (Field::GuestCr3, Field::HostCr3, cpu.state.cr3),
        (Field::GuestCr4, Field::HostCr4, cpu.state.cr4),
    ] {
        vmcs.set(guest, value);
        vmcs.set(host, value);
    }
    for (field, value) in changes {
        vmcs.set(*field, *value);
    }
    let write = |at: u64, bytes: &[u8]| cpu.memory().write(Gpa(at), bytes).expect("it is RAM");
    write(REGION, &REVISION.to_le_bytes());
    write(VMCS, &vmcs.to_region(0));
    write(POINTERS, &REGION.to_le_bytes());
    write(POINTERS + 8, &VMCS.to_le_bytes());
    // VMXON [70000]; VMPTRLD [70008]; VMLAUNCH; HLT.
    write(
        LAUNCHER,
        &[
            0xf3, 0x0f, 0xc7, 0x34, 0x25, 0, 0, 7, 0, 0x0f, 0xc7, 0x34, 0x25, 8, 0, 7, 0, 0x0f, 0x01, 0xc2,
            0xf4,
        ],
    );
    write(HANDLER, &[0xf4]);
    write(GUEST, code);
    // Four levels that map the first two megabytes to themselves, by pages of 4 KiB.
    write(EPT, &(EPT + 0x1007).to_le_bytes());
    write(EPT + 0x1000, &(EPT + 0x2007).to_le_bytes());
    write(EPT + 0x2000, &(EPT + 0x3007).to_le_bytes());
    for page in 0..512 {
        write(EPT + 0x3000 + 8 * page, &(page << 12 | 0x37).to_le_bytes());
    }
    cpu
}

/// Runs until a HLT that the machine sees; the instruction pointer behind it.
fn run(cpu: &mut Machine) -> u64 {
    assert_eq!(cpu.run(Until { counter: None, instructions: Some(10_000) }), Exit::Hlt);
    cpu.state.rip
}

/// The reason, the qualification and the instruction length of the exit.
fn told(cpu: &Cpu) -> (u64, u64, u64) {
    let vmcs = &cpu.vmcs();
    (vmcs.get(Field::ExitReason), vmcs.get(Field::ExitQualification), vmcs.get(Field::ExitInstructionLength))
}

fn both(test: impl Fn(bool)) {
    [false, true].into_iter().for_each(test);
}

const PROC: u32 = capability::PROC.must & !(proc::CR3_LOAD | proc::CR3_STORE) | proc::SECONDARY;
const PROC2: u32 = proc2::RDTSCP | proc2::INVPCID | proc2::XSAVES;

#[test]
fn each_instruction_leaves_by_its_control_and_only_by_that() {
    // Code, primary and secondary controls, reason, qualification, length. Each ends in VMCALL.
    let cases: &[(&[u8], [u32; 2], [u64; 3])] = &[
        (&[0x0f, 0xa2], [0, 0], [10, 0, 2]),
        (&[0x0f, 0x01, 0xc1], [0, 0], [18, 0, 3]),
        (&[0xf4], [proc::HLT, 0], [12, 0, 1]),
        (&[0x0f, 0x01, 0x3c, 0x25, 0x34, 0x12, 0, 0], [proc::INVLPG, 0], [14, 0x1234, 8]),
        (&[0x0f, 0x31], [proc::RDTSC, 0], [16, 0, 2]),
        (&[0x0f, 0x01, 0xc8], [proc::MONITOR, 0], [39, 0, 3]),
        (&[0x0f, 0x01, 0xc9], [proc::MWAIT, 0], [36, 0, 3]),
        (&[0x0f, 0x01, 0xf9], [proc::RDTSC, 0], [51, 0, 3]),
        (&[0xf3, 0x90], [proc::PAUSE, 0], [40, 0, 2]),
        (&[0x0f, 0x09], [0, proc2::WBINVD], [54, 0, 2]),
        (&[0x0f, 0xc7, 0xf0], [0, proc2::RDRAND], [57, 0, 3]),
        (&[0x0f, 0x22, 0xdb], [proc::CR3_LOAD, 0], [28, 0x303, 3]),
        (&[0x0f, 0x20, 0xda], [proc::CR3_STORE, 0], [28, 0x213, 3]),
        (&[0x44, 0x0f, 0x20, 0xc0], [proc::CR8_STORE, 0], [28, 0x18, 4]),
        (&[0x0f, 0x23, 0xf8], [proc::MOV_DR, 0], [29, 7, 3]),
        (&[0xe6, 0x80], [proc::UNCONDITIONAL_IO, 0], [30, 0x80_0040, 2]),
        (&[0xed], [proc::UNCONDITIONAL_IO, 0], [30, 0xb, 1]),
        (&[0x0f, 0x01, 0x14, 0x25, 0, 0, 7, 0], [0, proc2::DESCRIPTOR_TABLES], [46, 0x7_0000, 8]),
        (&[0x0f, 0x01, 0xc3], [0, 0], [24, 0, 3]),
    ];
    both(|translates| {
        for (code, [procs, procs2], [reason, qualification, length]) in cases {
            let controls = [
                (Field::ProcControls, u64::from(PROC | procs)),
                (Field::ProcControls2, u64::from(PROC2 | procs2)),
            ];
            let mut cpu = hypervisor(translates, code, &controls);
            // CR3 is loaded with RBX, which nothing but the exit sees.
            assert_eq!(run(&mut cpu), HANDLER + 1, "{code:x?}");
            assert_eq!(told(&cpu), (*reason, *qualification, *length), "{code:x?}");
            assert_eq!(cpu.vmcs().get(Field::GuestRip), GUEST, "RIP stays at it");
            assert_eq!(cpu.nested_counts(*reason as usize), (1, 1));
            assert!(!cpu.in_vmx().1 && cpu.current_vmcs() == VMCS);
        }
    });
}

#[test]
fn without_its_control_an_instruction_is_the_guests_own() {
    // RDTSC; PAUSE; MOV RAX,CR3; MOV CR3,RAX; OUT 80,AL with an empty map; VMCALL.
    let code = [0x0f, 0x31, 0xf3, 0x90, 0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8, 0x0f, 0x01, 0xc1];
    both(|translates| {
        let mut cpu =
            hypervisor(translates, &code, &[(Field::ProcControls, u64::from(PROC | proc::IO_BITMAPS))]);
        assert_eq!(run(&mut cpu), HANDLER + 1);
        assert_eq!(told(&cpu), (18, 0, 3));
        assert_eq!(cpu.vmcs().get(Field::GuestRip), GUEST + 10);
    });
}

#[test]
fn bitmaps_choose_among_ports_and_registers() {
    both(|translates| {
        for (code, byte, bit, reason) in [
            // OUT 80,AL; MOV ECX,10: RDMSR; WRMSR of c0000102.
            (&[0xe6, 0x80][..], 0x10, 0, 30),
            (&[0xb9, 0x3a, 0, 0, 0, 0x0f, 0x32][..], 0x7, 2, 31),
            (&[0xb9, 2, 1, 0, 0xc0, 0x0f, 0x30][..], 0xc20, 2, 32),
        ] {
            let controls = u64::from(PROC | proc::IO_BITMAPS | proc::MSR_BITMAPS);
            let mut cpu = hypervisor(translates, code, &[(Field::ProcControls, controls)]);
            cpu.memory().write(Gpa(MAPS + byte), &[1 << bit]).unwrap();
            assert_eq!(run(&mut cpu), HANDLER + 1);
            assert_eq!(told(&cpu).0, reason, "{code:x?}");
        }
    });
}

#[test]
fn entries_that_are_refused_say_why_and_change_nothing_else() {
    both(|translates| {
        for (field, value, number) in
            [(Field::PinControls, 0, error::ENTRY_CONTROLS), (Field::HostCs, 0, error::ENTRY_HOST_STATE)]
        {
            let mut cpu = hypervisor(translates, &[0xf4], &[(field, value)]);
            assert_eq!(run(&mut cpu), LAUNCHER + 21, "the HLT behind VMLAUNCH");
            assert_eq!(cpu.vmcs().get32(Field::InstructionError), number);
            assert_eq!(cpu.rflags() & rflags::STATUS, rflags::ZF);
        }
        let mut cpu = hypervisor(translates, &[0xf4], &[(Field::GuestRflags, 0)]);
        assert_eq!(run(&mut cpu), HANDLER + 1, "a failure of guest state is an exit");
        assert_eq!(told(&cpu).0, u64::from(33 | ENTRY_FAILURE));
        assert!(!cpu.vmcs().launched, "the launch state stays");
        let mut cpu = hypervisor(translates, &[0xf4], &[]);
        cpu.memory().write(Gpa(LAUNCHER + 19), &[0xc3]).unwrap();
        assert_eq!(run(&mut cpu), LAUNCHER + 21);
        assert_eq!(cpu.vmcs().get32(Field::InstructionError), error::VMRESUME_NOT_LAUNCHED);
    });
}

#[test]
fn vmxon_and_pointers_fail_as_the_manual_says() {
    // Without the revision VMXON fails; VMPTRLD then is outside VMX operation: #UD, a triple fault without an IDT.
    let mut cpu = hypervisor(false, &[], &[]);
    cpu.memory().write(Gpa(REGION), &[0]).unwrap();
    cpu.state.idtr.limit = 0;
    assert_eq!(cpu.run(Until { counter: None, instructions: Some(100) }), Exit::TripleFault);
    assert!(!cpu.in_vmx().0 && cpu.current_vmcs() == NONE);
    // VMPTRLD of the VMXON region: error 10 would need a current VMCS, so it is VMfailInvalid.
    let mut cpu = hypervisor(false, &[], &[]);
    cpu.memory().write(Gpa(POINTERS + 8), &REGION.to_le_bytes()).unwrap();
    assert_eq!(run(&mut cpu), LAUNCHER + 21, "VMLAUNCH fails, too");
    assert_eq!((cpu.current_vmcs(), cpu.rflags() & rflags::STATUS), (NONE, rflags::CF));
}

#[test]
fn memory_that_the_ept_withholds_leaves_the_guest() {
    let controls =
        |more: u64| [(Field::ProcControls2, u64::from(PROC2 | proc2::EPT)), (Field::Eptp, EPT | 0x1e | more)];
    // MOV [30000],AL; MOV AL,[30000].
    let (store, load) = (&[0x88, 0x04, 0x25, 0, 0, 3, 0][..], &[0x8a, 0x04, 0x25, 0, 0, 3, 0][..]);
    both(|translates| {
        for (code, entry, reason, qualification) in [
            (store, 0, 48, 0x182),
            (load, 0, 48, 0x181),
            (store, 0x3_0000 | 0x35, 48, 0x1aa),
            (load, 0x3_0000 | 0x34, 48, 0x1a1),
            (load, 0x3_0000 | 0x36, 49, 0),
        ] {
            let mut cpu = hypervisor(translates, code, &controls(0));
            cpu.memory().write(Gpa(EPT + 0x3000 + 8 * 0x30), &u64::to_le_bytes(entry)).unwrap();
            assert_eq!(run(&mut cpu), HANDLER + 1, "{entry:#x}");
            assert_eq!((told(&cpu).0, told(&cpu).1), (reason, qualification), "{entry:#x} {code:x?}");
            assert_eq!(cpu.vmcs().get(Field::GuestPhysicalAddress), 0x3_0000);
        }
        // A table of the guest's is withheld: the walk faults, as a write if accessed and dirty bits are on.
        for (more, qualification) in [(0, 0x81), (0x40, 0x83)] {
            let mut cpu = hypervisor(translates, store, &controls(more));
            cpu.memory().write(Gpa(EPT + 0x3000 + 8), &[0; 8]).unwrap();
            assert_eq!(run(&mut cpu), HANDLER + 1);
            assert_eq!((told(&cpu).0, told(&cpu).1), (48, qualification));
            assert_eq!(cpu.vmcs().get(Field::GuestPhysicalAddress) & !0xfff, 0x1000);
        }
        // What is allowed goes where the EPT leads, and leaves its marks there.
        let mut cpu = hypervisor(translates, &[store, &[0x0f, 0x01, 0xc1]].concat(), &controls(0x40));
        cpu.state.gpr[0] = 0x5a;
        cpu.memory().write(Gpa(EPT + 0x3000 + 8 * 0x30), &(0x4_0000_u64 | 0x37).to_le_bytes()).unwrap();
        run(&mut cpu);
        assert_eq!(told(&cpu).0, 18);
        assert_eq!(cpu.memory().read_u64(Gpa(0x4_0000)).unwrap() & 0xff, 0x5a);
        assert_eq!(cpu.memory().read_u64(Gpa(EPT + 0x3000 + 8 * 0x30)).unwrap(), 0x4_0337);
    });
}

#[test]
fn exceptions_go_to_the_hypervisor_that_wants_them() {
    both(|translates| {
        // UD2, INT3, a load from where nothing is mapped.
        for (code, bitmap, info, length) in [
            (&[0x0f, 0x0b][..], 1 << 6, 0x8000_0306, 0),
            (&[0xcc][..], 1 << 3, 0x8000_0603, 1),
            (&[0xa0, 0, 0, 0, 0, 0xff, 0, 0, 0][..], 1 << 14, 0x8000_0b0e, 0),
        ] {
            let mut cpu = hypervisor(translates, code, &[(Field::ExceptionBitmap, bitmap)]);
            cpu.state.cr2 = 7;
            run(&mut cpu);
            let vmcs = &cpu.vmcs();
            assert_eq!((vmcs.get(Field::ExitReason), vmcs.get(Field::ExitInterruption)), (0, info));
            assert_eq!((vmcs.get(Field::ExitInstructionLength), cpu.state.cr2), (length, 7));
            assert_eq!(vmcs.get(Field::IdtVectoring) >> 31, 0);
        }
        // Without an IDT #UD becomes a triple fault, which is an exit and not the machine's end.
        let mut cpu = hypervisor(translates, &[0x0f, 0x0b], &[]);
        run(&mut cpu);
        assert_eq!(told(&cpu).0, 2);
    });
}

#[test]
fn an_exit_in_a_delivery_tells_what_was_delivered() {
    both(|translates| {
        // The guest's IDT is in a page that the EPT withholds.
        let changes = [
            (Field::ProcControls2, u64::from(PROC2 | proc2::EPT)),
            (Field::Eptp, EPT | 0x1e),
            (Field::GuestIdtrBase, 0x3_0000),
            (Field::GuestIdtrLimit, 0xfff),
            (Field::EntryInterruption, 0x8000_0b0d),
            (Field::EntryErrorCode, 0x18),
        ];
        let mut cpu = hypervisor(translates, &[0xf4], &changes);
        cpu.memory().write(Gpa(EPT + 0x3000 + 8 * 0x30), &[0; 8]).unwrap();
        run(&mut cpu);
        let vmcs = &cpu.vmcs();
        assert_eq!((told(&cpu).0, vmcs.get(Field::GuestPhysicalAddress)), (48, 0x3_00d0));
        assert_eq!(vmcs.get(Field::IdtVectoring), 0x8000_0b0d);
        assert_eq!(vmcs.get(Field::IdtVectoringErrorCode), 0x18);
        assert_eq!(vmcs.get(Field::EntryInterruption) >> 31, 0, "it is not injected twice");
    });
}

#[test]
fn an_interrupt_leaves_a_guest_that_masks_it_and_is_acknowledged() {
    both(|translates| {
        let pins = capability::PIN.must | pin::EXTERNAL_INTERRUPT;
        let exits = capability::EXIT.must | exit::HOST_64 | exit::LOAD_EFER | exit::ACKNOWLEDGE;
        let changes = [(Field::PinControls, pins.into()), (Field::ExitControls, exits.into())];
        // JMP to itself, with IF clear.
        let mut cpu = hypervisor(translates, &[0xeb, 0xfe], &changes);
        assert_eq!(cpu.run(Until { counter: None, instructions: Some(5_000) }), Exit::Budget);
        assert!(cpu.in_vmx().1 && cpu.can_take(Window::Interrupt));
        cpu.inject(Event::Interrupt(0x31));
        run(&mut cpu);
        let vmcs = &cpu.vmcs();
        assert_eq!((told(&cpu).0, vmcs.get(Field::ExitInterruption)), (1, 0x8000_0031));
        assert_eq!(cpu.rflags() & rflags::IF, 0);
    });
}

#[test]
fn windows_timers_and_the_trap_flag_come_between_instructions() {
    both(|translates| {
        // STI; NOP; NOP: the window opens behind the shadow.
        let window = (Field::ProcControls, u64::from(PROC | proc::INTERRUPT_WINDOW));
        let mut cpu = hypervisor(translates, &[0xfb, 0x90, 0x90, 0xf4], &[window]);
        run(&mut cpu);
        assert_eq!((told(&cpu).0, cpu.vmcs().get(Field::GuestRip)), (7, GUEST + 2));
        // A timer of 0 expires before any instruction.
        let timer = (Field::PinControls, u64::from(capability::PIN.must | pin::PREEMPTION_TIMER));
        let mut cpu = hypervisor(translates, &[0x90, 0xf4], &[timer]);
        run(&mut cpu);
        assert_eq!((told(&cpu).0, cpu.vmcs().get(Field::GuestRip)), (52, GUEST));
        // The trap flag's exit follows each instruction.
        let trap = (Field::ProcControls, u64::from(PROC | proc::MONITOR_TRAP));
        let mut cpu = hypervisor(translates, &[0x90, 0x90, 0xf4], &[trap]);
        run(&mut cpu);
        assert_eq!((told(&cpu).0, cpu.vmcs().get(Field::GuestRip)), (37, GUEST + 1));
    });
}

#[test]
fn shadows_hide_what_the_hypervisor_owns() {
    // MOV RAX,CR0; MOV RBX,CR4; MOV CR4,RBX; VMCALL: what is read can be written back.
    let code = [0x0f, 0x20, 0xc0, 0x0f, 0x20, 0xe3, 0x0f, 0x22, 0xe3, 0x0f, 0x01, 0xc1];
    both(|translates| {
        let changes = [
            (Field::Cr0Mask, 0x20),
            (Field::Cr0Shadow, 0),
            (Field::Cr4Mask, cr4::VMXE),
            (Field::Cr4Shadow, 0),
        ];
        let mut cpu = hypervisor(translates, &code, &changes);
        run(&mut cpu);
        assert_eq!(told(&cpu).0, 18);
        let (cr0, cr4) = (cpu.state.gpr[0], cpu.state.gpr[3]);
        assert_eq!((cr0 & 0x20, cr4 & cr4::VMXE), (0, 0));
        assert_ne!(cpu.vmcs().get(Field::GuestCr4) & cr4::VMXE, 0);
        // Another value of an owned bit leaves: MOV EBX,2020; MOV CR4,RBX.
        let mut cpu = hypervisor(translates, &[0xbb, 0x20, 0x20, 0, 0, 0x0f, 0x22, 0xe3], &changes);
        run(&mut cpu);
        assert_eq!((told(&cpu).0, told(&cpu).1), (28, 0x304));
    });
}

#[test]
fn a_guests_time_is_scaled_and_moved() {
    let changes = [(Field::ProcControls, u64::from(PROC | proc::TSC_OFFSETTING)), (Field::TscOffset, 0x1234)];
    both(|translates| {
        let mut cpu = hypervisor(translates, &[0x0f, 0x31, 0x0f, 0x01, 0xc1], &changes);
        cpu.state.tsc_offset = 0x100;
        run(&mut cpu);
        assert_eq!(cpu.state.gpr[0], 0x1334);
    });
}
