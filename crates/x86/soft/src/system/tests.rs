//! Whole transfers between privilege levels and modes, on a small machine.

use satori_defs::msr;
use satori_defs::x86::{cr0, cr4, efer, rflags, vector};
use satori_engine::{Exception, Exit, Resume};
use satori_memory::Gpa;
use satori_state::{Activity, DescriptorTable, Segment, reg, seg};

use super::descriptor::system_type;
use super::{InterruptKind, Undelivered, interrupt, raise_fault};
use crate::cpu::{Cpu, Exec, Stop};
use crate::insn;
use crate::testing::{Machine, decode, execute, fault_of, machine, machine32, machine64};

const GDT: u64 = 0x2_0000;
const IDT: u64 = 0x2_1000;
const TSS: u64 = 0x2_2000;
const RSP0: u64 = 0x3_0000;
const IST1: u64 = 0x3_1008;
const USER_STACK: u64 = 0x3_8000;

const KERNEL_CODE: u16 = 0x08;
const KERNEL_DATA: u16 = 0x10;
const USER_CODE32: u16 = 0x18 | 3;
const USER_DATA: u16 = 0x20 | 3;
const USER_CODE: u16 = 0x28 | 3;
const TASK: u16 = 0x30;

fn put(cpu: &Cpu, at: u64, value: u64) {
    cpu.memory.write(Gpa(at), &value.to_le_bytes()).unwrap();
}

fn get(cpu: &Cpu, at: u64) -> u64 {
    cpu.memory.read_u64(Gpa(at)).unwrap()
}

fn flat(rights: u64) -> u64 {
    0xf << 48 | 0xffff | (rights & 0xf0ff) << 40
}

fn long_gate(cpu: &Cpu, vector: u8, kind: u32, dpl: u64, ist: u64, rip: u64) {
    let low = rip & 0xffff
        | u64::from(KERNEL_CODE) << 16
        | ist << 32
        | (0x80 | dpl << 5 | u64::from(kind)) << 40
        | (rip >> 16 & 0xffff) << 48;
    put(cpu, IDT + 16 * u64::from(vector), low);
    put(cpu, IDT + 16 * u64::from(vector) + 8, rip >> 32);
}

/// A 64-bit machine with Linux's kind of tables; privilege level 3 if `user`.
fn long_machine(user: bool) -> Machine {
    let mut cpu = machine64();
    for (i, descriptor) in [
        0,
        flat(0xa09a),
        flat(0xc092),
        flat(0xc0fa),
        flat(0xc0f2),
        flat(0xa0fa),
        TSS << 16 | 0x67 | 0x8900 << 32,
        0,
    ]
    .into_iter()
    .enumerate()
    {
        put(&cpu, GDT + 8 * i as u64, descriptor);
    }
    cpu.state.gdtr = DescriptorTable { base: GDT, limit: 0x3f };
    cpu.state.idtr = DescriptorTable { base: IDT, limit: 0xfff };
    cpu.state.tr = Segment { selector: TASK, rights: 0x8b, limit: 0x67, base: TSS };
    put(&cpu, TSS + 4, RSP0);
    put(&cpu, TSS + 0x24, IST1);
    // The I/O map begins beyond the limit.
    put(&cpu, TSS + 0x60, 0x68 << 48);
    if user {
        cpu.state.seg[seg::CS] = Segment::flat(USER_CODE, 0xa0fb);
        cpu.state.seg[seg::SS] = Segment::flat(USER_DATA, 0xc0f3);
        cpu.state.gpr[reg::RSP] = USER_STACK;
        cpu.set_rflags(rflags::IF | rflags::CF | rflags::ZF);
    } else {
        cpu.state.gpr[reg::RSP] = RSP0 - 0x100;
    }
    cpu.mode_changed();
    cpu
}

/// Executes one instruction at RIP.
fn run(cpu: &mut Cpu, bytes: &[u8]) -> Exec<()> {
    let insn = decode(cpu, bytes);
    assert!(!insn.is_invalid(), "{bytes:x?}");
    execute(cpu, &insn, insn::handler(&insn))
}

fn fault(cpu: &mut Cpu, bytes: &[u8]) -> Exception {
    let before = cpu.state.clone();
    let outcome = run(cpu, bytes);
    let exception = fault_of(cpu, outcome);
    assert_eq!(cpu.state, before, "a faulting instruction leaves nothing behind");
    exception
}

/// Executes an instruction that must ask for `exit`, with `answer`.
fn run_asking(cpu: &mut Cpu, bytes: &[u8], exit: Exit, answer: Resume) -> Exec<()> {
    let before = cpu.state.clone();
    assert_eq!(run(cpu, bytes), Err(Stop::Exit));
    assert_eq!((cpu.pending.wanted, &cpu.state), (exit, &before));
    cpu.resume(answer);
    let outcome = run(cpu, bytes);
    cpu.pending.forget_answers();
    outcome
}

const IRETQ: &[u8] = &[0x48, 0xcf];

#[test]
fn a_page_fault_enters_the_kernel_on_its_ist_and_iretq_goes_back() {
    let mut cpu = long_machine(true);
    long_gate(&cpu, vector::PF, system_type::INTERRUPT_GATE, 0, 1, 0x12_3450);
    let before = cpu.state.clone();
    let flags = cpu.rflags();
    assert_eq!(raise_fault(&mut cpu, Exception::pf(0xdead_beef, 6)), Ok(()));
    assert_eq!((cpu.cpl(), cpu.state.rip, cpu.state.cr2), (0, 0x12_3450, 0xdead_beef));
    assert_eq!(cpu.state.seg[seg::CS].selector, KERNEL_CODE);
    assert_eq!(cpu.state.seg[seg::SS].selector, 0);
    assert!(cpu.state.seg[seg::SS].unusable());
    assert_eq!(cpu.rflags() & rflags::IF, 0);
    let rsp = cpu.state.gpr[reg::RSP];
    assert_eq!(rsp, (IST1 & !15) - 48, "the stack is aligned before the pushes");
    let frame: Vec<u64> = (0..6).map(|i| get(&cpu, rsp + 8 * i)).collect();
    let expected = [6, before.rip, USER_CODE.into(), flags | rflags::RF, USER_STACK, u64::from(USER_DATA)];
    assert_eq!(frame, expected);

    cpu.state.gpr[reg::RSP] += 8;
    run(&mut cpu, IRETQ).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.rip), (3, before.rip));
    assert_eq!(cpu.state.gpr[reg::RSP], USER_STACK);
    assert_eq!(cpu.rflags(), flags | rflags::RF, "until the next instruction");
    assert_eq!(cpu.state.seg[seg::CS], before.seg[seg::CS]);
    assert_eq!(cpu.state.seg[seg::SS], before.seg[seg::SS]);
    assert!(cpu.state.seg[seg::DS].unusable(), "level 3 cannot keep a level-0 data segment");
}

#[test]
fn interrupts_use_rsp0_and_trap_gates_keep_if() {
    let mut cpu = long_machine(true);
    long_gate(&cpu, 0x40, system_type::TRAP_GATE, 0, 0, 0xffff_8000_0000_1000);
    assert_eq!(interrupt(&mut cpu, 0x40, InterruptKind::External), Ok(()));
    assert_eq!(cpu.state.rip, 0xffff_8000_0000_1000);
    assert_eq!(cpu.state.gpr[reg::RSP], RSP0 - 40);
    assert_ne!(cpu.rflags() & rflags::IF, 0);
    assert_eq!(get(&cpu, RSP0 - 24) & rflags::RF, 0, "an interrupt is no fault");
}

#[test]
fn a_fault_during_a_fault_is_a_double_fault_and_then_the_end() {
    let mut cpu = long_machine(true);
    long_gate(&cpu, vector::DF, system_type::INTERRUPT_GATE, 0, 0, 0x5000);
    // The gate of #GP is not present: #NP, contributory like #GP.
    assert_eq!(raise_fault(&mut cpu, Exception::gp(0)), Ok(()));
    assert_eq!((cpu.state.rip, get(&cpu, cpu.state.gpr[reg::RSP])), (0x5000, 0));

    let mut cpu = long_machine(true);
    let before = cpu.state.clone();
    assert_eq!(raise_fault(&mut cpu, Exception::gp(0)), Err(Undelivered::Shutdown));
    assert_eq!(cpu.state, before);
}

#[test]
fn a_benign_exception_gives_way_to_the_fault_of_its_delivery() {
    let mut cpu = long_machine(true);
    long_gate(&cpu, vector::NP, system_type::INTERRUPT_GATE, 0, 0, 0x6000);
    put(&cpu, IDT + 16 * u64::from(vector::UD), u64::from(system_type::INTERRUPT_GATE) << 40);
    assert_eq!(raise_fault(&mut cpu, Exception::ud()), Ok(()));
    let code = get(&cpu, cpu.state.gpr[reg::RSP]);
    assert_eq!((cpu.state.rip, code), (0x6000, u64::from(vector::UD) << 3 | 3), "IDT and EXT");
}

#[test]
fn a_handler_without_a_stack_is_a_double_fault() {
    let mut cpu = long_machine(true);
    long_gate(&cpu, vector::PF, system_type::INTERRUPT_GATE, 0, 0, 0x5000);
    long_gate(&cpu, vector::DF, system_type::INTERRUPT_GATE, 0, 1, 0x7000);
    // RSP0 points where nothing is mapped.
    put(&cpu, TSS + 4, 0xffff_8000_0000_1000);
    assert_eq!(raise_fault(&mut cpu, Exception::pf(0x1000, 4)), Ok(()));
    assert_eq!((cpu.state.rip, cpu.state.cr2), (0x7000, 0xffff_8000_0000_0ff8));
}

#[test]
fn software_interrupts_need_a_gate_of_their_privilege() {
    let mut cpu = long_machine(true);
    long_gate(&cpu, 0x80, system_type::INTERRUPT_GATE, 0, 0, 0x5000);
    assert_eq!(fault(&mut cpu, &[0xcd, 0x80]), Exception::gp(0x80 << 3 | 2));
    long_gate(&cpu, 0x80, system_type::INTERRUPT_GATE, 3, 0, 0x5000);
    let rip = cpu.state.rip;
    run(&mut cpu, &[0xcd, 0x80]).unwrap();
    assert_eq!((cpu.state.rip, get(&cpu, RSP0 - 40)), (0x5000, rip + 2));
}

#[test]
fn popf_leaves_what_privilege_protects() {
    let mut cpu = long_machine(true);
    let all = 0x3f_7fd5 & !rflags::TF;
    put(&cpu, USER_STACK, all);
    run(&mut cpu, &[0x9d]).unwrap();
    assert_eq!(cpu.rflags() & (rflags::IOPL | rflags::VIF | rflags::VIP | rflags::VM | rflags::RF), 0);
    assert_eq!(cpu.rflags() & (rflags::IF | rflags::AC | rflags::ID), rflags::IF | rflags::AC | rflags::ID);
    cpu.state.gpr[reg::RSP] = USER_STACK;
    put(&cpu, USER_STACK, 0);
    run(&mut cpu, &[0x9d]).unwrap();
    assert_eq!(cpu.rflags(), rflags::FIXED | rflags::IF);
    run(&mut cpu, &[0x9c]).unwrap();
    assert_eq!(get(&cpu, USER_STACK), rflags::FIXED | rflags::IF);
}

#[test]
fn segment_loads_are_checked_and_mark_their_descriptor() {
    let mut cpu = long_machine(true);
    cpu.state.gpr[reg::RAX] = KERNEL_DATA.into();
    assert_eq!(fault(&mut cpu, &[0x8e, 0xd8]), Exception::gp(KERNEL_DATA.into()));
    cpu.state.gpr[reg::RAX] = 0x48;
    assert_eq!(fault(&mut cpu, &[0x8e, 0xd8]), Exception::gp(0x48), "beyond the table");
    cpu.state.gpr[reg::RAX] = 0;
    assert_eq!(fault(&mut cpu, &[0x8e, 0xd0]), Exception::gp(0), "no null SS at level 3");
    cpu.state.gpr[reg::RAX] = USER_DATA.into();
    run(&mut cpu, &[0x8e, 0xd0]).unwrap();
    assert!(cpu.state.interrupt_shadow);
    assert_eq!(cpu.state.seg[seg::SS], Segment::flat(USER_DATA, 0xc0f3));
    assert_eq!(get(&cpu, GDT + 0x20) >> 40 & 1, 1, "accessed");
    cpu.state.seg[seg::FS].base = 0x1234;
    cpu.state.gpr[reg::RAX] = 3;
    run(&mut cpu, &[0x8e, 0xe0]).unwrap();
    assert_eq!((cpu.state.seg[seg::FS].base, cpu.state.seg[seg::FS].selector), (0, 3));
    assert!(cpu.state.seg[seg::FS].unusable());
}

#[test]
fn syscall_and_sysret_are_each_others_inverse() {
    let mut cpu = long_machine(true);
    cpu.state.star = 0x0018_0008 << 32;
    cpu.state.lstar = 0xffff_ffff_8000_0000;
    cpu.state.fmask = rflags::IF | rflags::DF;
    let (before, flags) = (cpu.state.clone(), cpu.rflags());
    run(&mut cpu, &[0x0f, 0x05]).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.rip), (0, 0xffff_ffff_8000_0000));
    assert_eq!((cpu.state.gpr[reg::RCX], cpu.state.gpr[reg::R11]), (before.rip + 2, flags));
    assert_eq!(cpu.state.seg[seg::CS].selector, KERNEL_CODE);
    assert_eq!(cpu.rflags() & rflags::IF, 0);
    run(&mut cpu, &[0x48, 0x0f, 0x07]).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.rip, cpu.rflags()), (3, before.rip + 2, flags));
    assert_eq!(cpu.state.seg[seg::CS], before.seg[seg::CS]);
    assert_eq!(cpu.state.seg[seg::SS], before.seg[seg::SS]);

    let mut cpu = long_machine(false);
    cpu.state.gpr[reg::RCX] = 1 << 47;
    assert_eq!(fault(&mut cpu, &[0x48, 0x0f, 0x07]), Exception::gp(0));
    assert_eq!(cpu.cpl(), 0);
}

#[test]
fn a_far_return_reaches_compatibility_mode_and_an_interrupt_leaves_it() {
    let mut cpu = long_machine(false);
    let rsp = cpu.state.gpr[reg::RSP];
    for (i, value) in
        [0x40_0000, u64::from(USER_CODE32), USER_STACK, u64::from(USER_DATA)].into_iter().enumerate()
    {
        put(&cpu, rsp + 8 * i as u64, value);
    }
    run(&mut cpu, &[0x48, 0xcb]).unwrap();
    assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip), (3, 32, 0x40_0000));
    assert_eq!(cpu.state.gpr[reg::RSP], USER_STACK);
    long_gate(&cpu, 0x80, system_type::INTERRUPT_GATE, 3, 0, 0xffff_8000_0000_5000);
    run(&mut cpu, &[0xcd, 0x80]).unwrap();
    assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip), (0, 64, 0xffff_8000_0000_5000));
    run(&mut cpu, IRETQ).unwrap();
    assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip), (3, 32, 0x40_0002));
    assert_eq!(cpu.state.seg[seg::CS].selector, USER_CODE32);
}

#[test]
fn iret_refuses_what_it_cannot_return_to() {
    let mut cpu = long_machine(false);
    let rsp = cpu.state.gpr[reg::RSP];
    let frame = |cpu: &Cpu, values: [u64; 5]| {
        values.iter().enumerate().for_each(|(i, value)| put(cpu, rsp + 8 * i as u64, *value));
    };
    frame(&cpu, [1 << 47, USER_CODE.into(), 2, USER_STACK, USER_DATA.into()]);
    assert_eq!(fault(&mut cpu, IRETQ), Exception::gp(0));
    frame(&cpu, [0x1000, USER_CODE.into(), 2, USER_STACK, 3]);
    assert_eq!(fault(&mut cpu, IRETQ), Exception::gp(0), "null SS at level 3");
    frame(&cpu, [0x1000, USER_DATA.into(), 2, USER_STACK, USER_DATA.into()]);
    assert_eq!(fault(&mut cpu, IRETQ), Exception::gp(u32::from(USER_DATA & !3)));
    frame(&cpu, [0x1000, KERNEL_CODE.into(), 2, 0x3_4560, 0]);
    run(&mut cpu, IRETQ).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.gpr[reg::RSP]), (0, 0x3_4560));
}

#[test]
fn control_registers_exit_for_the_hosts_bits_only() {
    let mut cpu = long_machine(false);
    // MOV CR0, RAX.
    let write: &[u8] = &[0x0f, 0x22, 0xc0];
    cpu.state.gpr[reg::RAX] = cpu.state.cr0 ^ cr0::TS;
    run(&mut cpu, write).unwrap();
    assert_ne!(cpu.state.cr0 & cr0::TS, 0);
    run(&mut cpu, &[0x0f, 0x06]).unwrap();
    assert_eq!(cpu.state.cr0 & cr0::TS, 0);
    let value = cpu.state.cr0 | cr0::AM;
    cpu.state.gpr[reg::RAX] = value;
    run_asking(&mut cpu, write, Exit::CrWrite { register: 0, value }, Resume::Done).unwrap();
    assert_eq!(cpu.state.cr0, value);
    let value = cpu.state.cr0 & !cr0::PG;
    cpu.state.gpr[reg::RAX] = value;
    let outcome = run_asking(&mut cpu, write, Exit::CrWrite { register: 0, value }, Resume::Done);
    assert_eq!(fault_of(&mut cpu, outcome), Exception::gp(0), "not from 64-bit code");
    // MOV CR4, RAX.
    cpu.state.gpr[reg::RAX] = cpu.state.cr4 ^ cr4::PGE;
    run(&mut cpu, &[0x0f, 0x22, 0xe0]).unwrap();
    // MOV CR3, RAX beyond the physical address width; MOV CR8, RAX.
    cpu.state.gpr[reg::RAX] = 1 << 50;
    assert_eq!(fault(&mut cpu, &[0x0f, 0x22, 0xd8]), Exception::gp(0));
    cpu.state.gpr[reg::RAX] = 9;
    run(&mut cpu, &[0x44, 0x0f, 0x22, 0xc0]).unwrap();
    assert_eq!(cpu.state.tpr, 0x90);
}

#[test]
fn the_privileged_are_refused_at_level_3() {
    let mut cpu = long_machine(true);
    for bytes in [
        &[0xf4][..],
        &[0xfa],
        &[0xfb],
        &[0x0f, 0x06],
        &[0x0f, 0x09],
        &[0x0f, 0x20, 0xc0],
        &[0x0f, 0x22, 0xd8],
        &[0x0f, 0x23, 0xf8],
        &[0x0f, 0x30],
        &[0x0f, 0x32],
        &[0x0f, 0x01, 0x10],
        &[0x0f, 0x01, 0x38],
        &[0x0f, 0x01, 0xf8],
        &[0x0f, 0x00, 0xd8],
        &[0xec],
    ] {
        assert_eq!(fault(&mut cpu, bytes), Exception::gp(0), "{bytes:x?}");
    }
    assert_eq!(fault(&mut cpu, &[0x0f, 0x01, 0xcb]), Exception::ud(), "STAC");
}

#[test]
fn ltr_marks_its_task_busy_and_lar_and_lsl_see_it() {
    let mut cpu = long_machine(false);
    cpu.state.gpr[reg::RAX] = TASK.into();
    run(&mut cpu, &[0x0f, 0x00, 0xd8]).unwrap();
    assert_eq!(cpu.state.tr, Segment { selector: TASK, rights: 0x8b, limit: 0x67, base: TSS });
    assert_eq!(fault(&mut cpu, &[0x0f, 0x00, 0xd8]), Exception::gp(TASK.into()), "busy");
    run(&mut cpu, &[0x0f, 0x02, 0xc8]).unwrap();
    assert_eq!((cpu.state.gpr[reg::RCX], cpu.flags.zf()), (0x8b00, true));
    run(&mut cpu, &[0x0f, 0x03, 0xc8]).unwrap();
    assert_eq!((cpu.state.gpr[reg::RCX], cpu.flags.zf()), (0x67, true));
    cpu.state.gpr[reg::RAX] = 0x100;
    run(&mut cpu, &[0x0f, 0x03, 0xc8]).unwrap();
    assert_eq!((cpu.state.gpr[reg::RCX], cpu.flags.zf()), (0x67, false));
}

#[test]
fn msrs_pass_through_or_exit() {
    let mut cpu = long_machine(false);
    cpu.state.gpr[reg::RCX] = msr::IA32_GS_BASE.into();
    cpu.state.gpr[reg::RDX] = 0xffff_8000;
    cpu.state.gpr[reg::RAX] = 0x1234_5678;
    run(&mut cpu, &[0x0f, 0x30]).unwrap();
    assert_eq!(cpu.state.seg[seg::GS].base, 0xffff_8000_1234_5678);
    assert_eq!(cpu.derived.segment_base[seg::GS], 0xffff_8000_1234_5678);
    run(&mut cpu, &[0x0f, 0x01, 0xf8]).unwrap();
    assert_eq!((cpu.derived.segment_base[seg::GS], cpu.state.kernel_gs_base), (0, 0xffff_8000_1234_5678));
    cpu.state.gpr[reg::RDX] = 0x8000;
    assert_eq!(fault(&mut cpu, &[0x0f, 0x30]), Exception::gp(0), "not canonical");
    cpu.state.gpr[reg::RCX] = msr::IA32_PAT.into();
    let exit = Exit::MsrRead { msr: msr::IA32_PAT };
    run_asking(&mut cpu, &[0x0f, 0x32], exit, Resume::Value(0x1_0000_0002)).unwrap();
    assert_eq!((cpu.state.gpr[reg::RDX], cpu.state.gpr[reg::RAX]), (1, 2));
    let outcome = run_asking(&mut cpu, &[0x0f, 0x32], exit, Resume::Fault(Exception::gp(0)));
    assert_eq!(fault_of(&mut cpu, outcome), Exception::gp(0));
}

#[test]
fn spec_ctrl_passes_through_once_it_has_held_a_bit() {
    let mut cpu = long_machine(false);
    (cpu.state.gpr[reg::RCX], cpu.state.gpr[reg::RDX]) = (msr::IA32_SPEC_CTRL.into(), 0);
    for value in [0, 1] {
        cpu.state.gpr[reg::RAX] = value;
        let exit = Exit::MsrWrite { msr: msr::IA32_SPEC_CTRL, value };
        run_asking(&mut cpu, &[0x0f, 0x30], exit, Resume::Done).unwrap();
    }
    for value in [4, 0] {
        cpu.state.gpr[reg::RAX] = value;
        run(&mut cpu, &[0x0f, 0x30]).unwrap();
        run(&mut cpu, &[0x0f, 0x32]).unwrap();
        assert_eq!((cpu.state.spec_ctrl, cpu.state.gpr[reg::RAX]), (value, value));
    }
    cpu.state.gpr[reg::RAX] = 8;
    assert_eq!(fault(&mut cpu, &[0x0f, 0x30]), Exception::gp(0), "no such bit");
}

#[test]
fn hlt_is_complete_when_it_exits() {
    let mut cpu = long_machine(false);
    let rip = cpu.state.rip;
    assert_eq!(run(&mut cpu, &[0xf4]), Err(Stop::Exit));
    assert_eq!(
        (cpu.pending.wanted, cpu.state.rip, cpu.state.activity),
        (Exit::Hlt, rip + 1, Activity::Halted)
    );
}

#[test]
fn sti_holds_interrupts_back_only_when_it_changes_something() {
    let mut cpu = long_machine(false);
    run(&mut cpu, &[0xfb]).unwrap();
    assert!(cpu.state.interrupt_shadow);
    cpu.state.interrupt_shadow = false;
    run(&mut cpu, &[0xfb]).unwrap();
    assert!(!cpu.state.interrupt_shadow);
}

#[test]
fn the_bitmap_of_the_task_opens_ports_to_level_3() {
    let mut cpu = long_machine(true);
    cpu.state.tr.limit = 0x67 + 0x20;
    put(&cpu, TSS + 0x68, u64::MAX);
    put(&cpu, TSS + 0x70, !(1 << 3));
    // Port 0x43 is open, 0x44 is not.
    let exit = Exit::IoRead { port: 0x43, size: 1 };
    run_asking(&mut cpu, &[0xe4, 0x43], exit, Resume::Value(0x1ff)).unwrap();
    assert_eq!(cpu.state.gpr[reg::RAX], 0xff);
    assert_eq!(fault(&mut cpu, &[0xe4, 0x44]), Exception::gp(0));
    assert_eq!(fault(&mut cpu, &[0x66, 0xe5, 0x43]), Exception::gp(0), "a word needs both");
    let rflags = cpu.rflags();
    cpu.set_rflags(rflags | rflags::IOPL);
    let exit = Exit::IoWrite { port: 0x44, size: 1, value: 0xff };
    run_asking(&mut cpu, &[0xe6, 0x44], exit, Resume::Done).unwrap();
}

#[test]
fn repeated_input_takes_one_element_an_exit() {
    let mut cpu = long_machine(false);
    let (exit, rip) = (Exit::IoRead { port: 0x60, size: 2 }, cpu.state.rip);
    cpu.state.gpr[reg::RCX] = 2;
    cpu.state.gpr[reg::RDX] = 0x60;
    cpu.state.gpr[reg::RDI] = 0x4_0000;
    // Only one element is executed at a time here: the second asks again.
    let insn = decode(&cpu, &[0xf3, 0x66, 0x6d]);
    let handler = insn::handler(&insn);
    for (element, left, next) in [(0x1111, 1, rip), (0x2222, 0, rip + 3)] {
        cpu.begin();
        assert_eq!(handler(&mut cpu, &insn), Err(Stop::Exit));
        assert_eq!(cpu.pending.wanted, exit);
        cpu.resume(Resume::Value(element));
        cpu.begin();
        cpu.next_rip = cpu.next_ip(&insn);
        handler(&mut cpu, &insn).unwrap();
        cpu.pending.forget_answers();
        assert_eq!((cpu.state.gpr[reg::RCX], cpu.next_rip), (left, next));
    }
    assert_eq!(cpu.state.gpr[reg::RDI], 0x4_0004);
    assert_eq!(get(&cpu, 0x4_0000), 0x2222_1111);
}

#[test]
fn protected_mode_switches_stacks_by_the_task_and_iretd_goes_back() {
    let mut cpu = machine32();
    for (i, descriptor) in [0, flat(0xc09a), flat(0xc092), flat(0xc0fa), flat(0xc0f2)].into_iter().enumerate()
    {
        put(&cpu, GDT + 8 * i as u64, descriptor);
    }
    cpu.state.gdtr = DescriptorTable { base: GDT, limit: 0x27 };
    cpu.state.idtr = DescriptorTable { base: IDT, limit: 0x7ff };
    cpu.state.tr = Segment { selector: TASK, rights: 0x8b, limit: 0x67, base: TSS };
    put(&cpu, TSS + 4, RSP0 | u64::from(KERNEL_DATA) << 32);
    put(&cpu, IDT + 8 * 0x80, 0x0012_ee00_0008_3450);
    cpu.state.seg[seg::CS] = Segment::flat(USER_CODE32, 0xc0fb);
    cpu.state.seg[seg::SS] = Segment::flat(USER_DATA, 0xc0f3);
    cpu.state.seg[seg::DS] = Segment::flat(USER_DATA, 0xc0f3);
    cpu.state.gpr[reg::RSP] = USER_STACK;
    cpu.set_rflags(rflags::IF | rflags::CF);
    let (before, flags) = (cpu.state.clone(), cpu.rflags());
    run(&mut cpu, &[0xcd, 0x80]).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.rip, cpu.state.gpr[reg::RSP]), (0, 0x12_3450, RSP0 - 20));
    assert_eq!(cpu.state.seg[seg::SS].selector, KERNEL_DATA);
    assert_eq!(get(&cpu, RSP0 - 20), (before.rip + 2) | u64::from(USER_CODE32) << 32);
    assert_eq!(get(&cpu, RSP0 - 12), flags | USER_STACK << 32);
    run(&mut cpu, &[0xcf]).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.rip), (3, before.rip + 2));
    assert_eq!((cpu.state.gpr[reg::RSP], cpu.rflags()), (USER_STACK, flags));
    assert_eq!(cpu.state.seg[seg::DS], before.seg[seg::DS]);
    assert!(cpu.state.seg[seg::ES].unusable());

    // No stack for level 0: #TS names the selector, with EXT clear for INT n.
    put(&cpu, TSS + 4, RSP0 | u64::from(USER_DATA) << 32);
    assert_eq!(fault(&mut cpu, &[0xcd, 0x80]), Exception::with_code(vector::TS, u32::from(USER_DATA & !3)));
}

#[test]
fn real_mode_interrupts_go_through_the_vector_table() {
    let mut cpu = machine();
    cpu.state.seg[seg::CS] = Segment { selector: 0x1000, rights: 0x9b, limit: 0xffff, base: 0x1_0000 };
    cpu.state.rip = 0x20;
    cpu.state.gpr[reg::RSP] = 0x1000;
    cpu.set_rflags(rflags::IF | rflags::CF);
    put(&cpu, 4 * 0x10, 0x2000_0040);
    run(&mut cpu, &[0xcd, 0x10]).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.seg[seg::CS].base), (0x40, 0x2_0000));
    assert_eq!(cpu.rflags() & rflags::IF, 0);
    assert_eq!(get(&cpu, 0xffa) & 0xffff_ffff_ffff, 0x0203_1000_0022);
    run(&mut cpu, &[0xcf]).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.seg[seg::CS].base), (0x22, 0x1_0000));
    assert_eq!((cpu.state.gpr[reg::RSP], cpu.rflags()), (0x1000, 0x203));
}

#[test]
fn the_way_from_real_mode_to_64_bit_code() {
    let mut cpu = long_machine(false);
    let (cr3, gdtr, long_cr0) = (cpu.state.cr3, cpu.state.gdtr, cpu.state.cr0);
    let mut cpu = {
        let memory = cpu.memory.clone();
        cpu = machine();
        cpu.memory = memory;
        cpu
    };
    put(&cpu, GDT + 0x18, flat(0xc09a));
    cpu.state.gdtr = gdtr;
    cpu.state.seg[seg::CS] = Segment { selector: 0x1000, rights: 0x9b, limit: 0xffff, base: 0x1_0000 };
    cpu.state.rip = 0x100;
    cpu.mode_changed();
    let value = cr0::PE | cr0::ET;
    cpu.state.gpr[reg::RAX] = value;
    run_asking(&mut cpu, &[0x0f, 0x22, 0xc0], Exit::CrWrite { register: 0, value }, Resume::Done).unwrap();
    // JMP 0x18:0x10200 with a 32-bit operand, from 16-bit code.
    assert_eq!(cpu.bits(), 16);
    run(&mut cpu, &[0x66, 0xea, 0, 2, 1, 0, 0x18, 0]).unwrap();
    assert_eq!((cpu.bits(), cpu.state.rip), (32, 0x1_0200));
    cpu.state.gpr[reg::RAX] = cr4::PAE;
    let exit = Exit::CrWrite { register: 4, value: cr4::PAE };
    run_asking(&mut cpu, &[0x0f, 0x22, 0xe0], exit, Resume::Done).unwrap();
    cpu.state.gpr[reg::RAX] = cr3;
    run(&mut cpu, &[0x0f, 0x22, 0xd8]).unwrap();
    cpu.state.efer = efer::LME;
    cpu.state.gpr[reg::RAX] = long_cr0;
    let exit = Exit::CrWrite { register: 0, value: long_cr0 };
    run_asking(&mut cpu, &[0x0f, 0x22, 0xc0], exit, Resume::Done).unwrap();
    assert!(cpu.state.long_mode());
    assert_eq!(cpu.bits(), 32, "compatibility mode until CS changes");
    run(&mut cpu, &[0xea, 0, 3, 1, 0, 8, 0]).unwrap();
    assert_eq!((cpu.bits(), cpu.state.rip), (64, 0x1_0300));
}

#[test]
fn cpuid_answers_clear_the_upper_halves() {
    let mut cpu = long_machine(false);
    cpu.state.gpr[reg::RAX] = 0xffff_ffff_0000_0001;
    cpu.state.gpr[reg::RBX] = u64::MAX;
    let answer = satori_engine::CpuidResult { eax: 1, ebx: 2, ecx: 3, edx: 4 };
    let exit = Exit::Cpuid { leaf: 1, subleaf: 0 };
    run_asking(&mut cpu, &[0x0f, 0xa2], exit, Resume::Cpuid(answer)).unwrap();
    assert_eq!(cpu.state.gpr[..4], [1, 3, 4, 2]);
}

#[test]
fn only_the_pauses_of_one_loop_make_an_exit() {
    const PAUSE: [u8; 2] = [0xf3, 0x90];
    let mut cpu = long_machine(false);
    cpu.controls.ple_window = 3;
    for retired in [1_000, 1_003, 2_000, 2_003] {
        cpu.count.retired = retired;
        run(&mut cpu, &PAUSE).unwrap();
    }
    cpu.count.retired = 2_006;
    assert_eq!(run(&mut cpu, &PAUSE), Err(Stop::Exit));
    assert_eq!(cpu.pending.wanted, Exit::Pause);
}

mod amd;
