//! What only a guest that means harm would set up.

use satori_cpuid::Vendor;
use satori_defs::x86::efer;

use super::*;

/// Code that keeps the privilege level of whoever comes there.
fn conforming(cpu: &Cpu) {
    describe(cpu, OTHER, descriptor(0, 0xf_ffff, 0xc09e));
}

/// At privilege level 3, on a stack that every push finds misaligned.
fn misaligned() -> Machine {
    let mut cpu = protected();
    conforming(&cpu);
    cpu.state.cr0 |= cr0::AM;
    cpu.state.seg[seg::CS] = Segment::flat(CODE3, 0xc0fb);
    cpu.state.seg[seg::SS] = Segment::flat(DATA3, 0xc0f3);
    cpu.state.gpr[reg::RSP] = u64::from(STACK3) - 1;
    cpu.set_rflags(rflags::AC);
    for vector in [vector::AC, vector::UD, 0x40] {
        idt(&cpu, vector, gate(OTHER, 0x5000, system_type::INTERRUPT_GATE, 3, 0));
    }
    cpu
}

#[test]
fn alignment_checks_without_end_use_up_the_budget() {
    // PUSH EAX; UD2.
    for code in [&[0x50_u8][..], &[0x0f, 0x0b]] {
        let mut cpu = misaligned();
        put(&cpu, cpu.state.rip, code);
        let before = cpu.state.rip;
        assert_eq!(cpu.run(Until { counter: None, instructions: Some(100) }), Exit::Budget);
        assert_eq!((cpu.state.rip, cpu.count.retired), (before, 100));
    }
}

#[test]
fn an_interrupt_whose_delivery_is_misaligned_does_not_hold_the_machine() {
    let mut cpu = misaligned();
    assert_eq!(interrupt(&mut cpu, 0x40, InterruptKind::External), Ok(()));
    // With a handler at level 0 the check is raised there.
    idt(&cpu, vector::AC, gate(CODE0, 0x6000, system_type::INTERRUPT_GATE, 0, 0));
    assert_eq!(interrupt(&mut cpu, 0x40, InterruptKind::External), Ok(()));
    assert_eq!((cpu.state.rip, cpu.cpl()), (0x6000, 0));
}

#[test]
fn pusha_on_an_odd_stack_is_a_protection_fault_of_intels() {
    for (vendor, sp, raised) in [
        (Vendor::Intel, 7, Exception::gp(0)),
        (Vendor::Intel, 15, Exception::gp(0)),
        (Vendor::Intel, 5, Exception::with_code(vector::SS, 0)),
        (Vendor::Amd, 7, Exception::with_code(vector::SS, 0)),
    ] {
        let mut cpu = virtual_8086(3, false);
        cpu.isa.offered.vendor = vendor;
        cpu.state.gpr[reg::RSP] = sp;
        assert_eq!(fault(&mut cpu, &[0x60]), raised, "{vendor:?} {sp}");
    }
    let mut cpu = virtual_8086(3, false);
    cpu.state.gpr[reg::RSP] = 17;
    run(&mut cpu, &[0x60]).unwrap();
    assert_eq!(cpu.state.gpr[reg::RSP], 1);
}

const SYSCALL: &[u8] = &[0x0f, 0x05];
const SYSRET: &[u8] = &[0x0f, 0x07];

#[test]
fn legacy_mode_has_amds_syscall_only() {
    let mut cpu = misaligned();
    cpu.state.efer = efer::SCE;
    assert_eq!(fault(&mut cpu, SYSCALL), Exception::ud());
    cpu.isa.offered.vendor = Vendor::Amd;
    cpu.state.star = 0x0010_0008 << 32 | 0x1234_5678;
    cpu.state.lstar = 1;
    cpu.state.fmask = u64::MAX;
    cpu.state.gpr[reg::R11] = 11;
    let (back, stack) = (cpu.state.rip + 2, cpu.state.gpr[reg::RSP]);
    cpu.set_rflags(rflags::IF | rflags::DF | rflags::CF);
    run(&mut cpu, SYSCALL).unwrap();
    // APM volume 3, SYSCALL: only IF, VM and RF go, the mask and R11 are long mode's.
    assert_eq!((cpu.cpl(), cpu.state.rip, cpu.bits()), (0, 0x1234_5678, 32));
    assert_eq!((cpu.state.gpr[reg::RCX], cpu.state.gpr[reg::R11]), (back, 11));
    assert_eq!(cpu.rflags(), rflags::FIXED | rflags::DF | rflags::CF);
    assert_eq!((cpu.state.seg[seg::CS].selector, cpu.state.seg[seg::SS].selector), (CODE0, DATA0));
    run(&mut cpu, SYSRET).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.rip, cpu.state.gpr[reg::RSP]), (3, back, stack));
    assert_eq!(cpu.rflags(), rflags::FIXED | rflags::IF | rflags::DF | rflags::CF);
    // CS has RPL 3, SS what IA32_STAR says (APM volume 3, SYSRET).
    assert_eq!((cpu.state.seg[seg::CS].selector, cpu.state.seg[seg::SS].selector), (0x13, 0x18));
    assert_eq!(fault(&mut cpu, SYSRET), Exception::gp(0));
}

#[test]
fn a_watched_descriptor_of_the_new_task_is_a_trap_there() {
    let mut cpu = protected();
    put(&cpu, cpu.state.rip, &far(JMP, TASK_B));
    put32(&cpu, TSS_B + 4, STACK0);
    put32(&cpu, TSS_B + 8, DATA0.into());
    idt(&cpu, vector::DB, gate(CODE0, 0x7000, system_type::INTERRUPT_GATE, 0, 0));
    // Read or written, four bytes, global.
    cpu.state.dr[0] = GDT + u64::from(CODE3 & !7);
    cpu.state.dr7 |= 0xf_0002;
    assert_eq!(cpu.run(Until { counter: None, instructions: Some(1) }), Exit::Budget);
    assert_eq!((cpu.state.rip, cpu.state.dr6 & 0xf, cpu.cpl()), (0x7000, 1, 0));
    // The frame is that of the new task, all of whose segments are loaded.
    let stack = u64::from(STACK0);
    assert_eq!((get32(&cpu, stack - 20), get32(&cpu, stack - 16)), (0x4000, CODE3.into()));
    assert_eq!(cpu.state.seg[seg::DS].selector, DATA3);
    assert_eq!(cpu.run(Until { counter: None, instructions: Some(1) }), Exit::TaskSwitch);
}

#[test]
fn nothing_is_asked_once_the_old_task_is_left() {
    let mut cpu = protected();
    // The new task's table is where there is no memory: all ones, readable code for everyone.
    describe(&cpu, OTHER, descriptor(0x5000_0000, 0xff, 0x82));
    put32(&cpu, TSS_B + 0x60, OTHER.into());
    put32(&cpu, TSS_B + 0x48 + 4 * seg::DS as u64, 0x0f);
    run(&mut cpu, &far(JMP, TASK_B)).unwrap();
    assert_eq!((cpu.state.rip, cpu.cpl()), (0x4000, 3));
    assert_eq!(cpu.state.seg[seg::DS].base, 0xffff_ffff);
}
