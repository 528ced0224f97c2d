//! Virtual-8086 mode, task switches, segments and gates outside IA-32e mode.

use satori_defs::x86::{cr0, cr4, rflags, vector};
use satori_engine::{Exception, Exit, Until};
use satori_memory::Gpa;
use satori_state::{DescriptorTable, Segment, reg, seg};

use super::descriptor::system_type;
use super::{InterruptKind, Undelivered, interrupt, raise_fault, v86};
use crate::cpu::{Cpu, Exec};
use crate::insn;
use crate::testing::{Machine, decode, execute, fault_of, machine32};

const GDT: u64 = 0x2_0000;
const IDT: u64 = 0x2_1000;
const TSS_A: u64 = 0x2_2000;
const TSS_B: u64 = 0x2_3000;
const STACK0: u32 = 0x3_0000;
const STACK3: u32 = 0x3_8000;

const CODE0: u16 = 0x08;
const DATA0: u16 = 0x10;
const CODE3: u16 = 0x18 | 3;
const DATA3: u16 = 0x20 | 3;
const TASK_A: u16 = 0x28;
const TASK_B: u16 = 0x30;
const GATE: u16 = 0x38;
const OTHER: u16 = 0x40;

fn put(cpu: &Cpu, at: u64, bytes: &[u8]) {
    cpu.memory.write(Gpa(at), bytes).unwrap();
}

fn put32(cpu: &Cpu, at: u64, value: u32) {
    put(cpu, at, &value.to_le_bytes());
}

fn get32(cpu: &Cpu, at: u64) -> u32 {
    cpu.memory.read_u64(Gpa(at)).unwrap() as u32
}

fn get16(cpu: &Cpu, at: u64) -> u16 {
    get32(cpu, at) as u16
}

fn descriptor(base: u64, limit: u64, rights: u64) -> u64 {
    limit & 0xffff
        | (limit & 0xf_0000) << 32
        | (base & 0xff_ffff) << 16
        | (base & 0xff00_0000) << 32
        | (rights & 0xf0ff) << 40
}

fn describe(cpu: &Cpu, selector: u16, descriptor: u64) {
    put(cpu, GDT + u64::from(selector & !7), &descriptor.to_le_bytes());
}

fn gate(selector: u16, offset: u32, kind: u32, dpl: u64, parameters: u64) -> u64 {
    let offset = u64::from(offset);
    offset & 0xffff
        | u64::from(selector) << 16
        | parameters << 32
        | (0x80 | dpl << 5 | u64::from(kind)) << 40
        | (offset & 0xffff_0000) << 32
}

fn idt(cpu: &Cpu, vector: u8, gate: u64) {
    put(cpu, IDT + 8 * u64::from(vector), &gate.to_le_bytes());
}

/// 32-bit protected mode at privilege level 0 in task A, with a second 32-bit task B at level 3.
fn protected() -> Machine {
    let mut cpu = machine32();
    describe(&cpu, CODE0, descriptor(0, 0xf_ffff, 0xc09a));
    describe(&cpu, DATA0, descriptor(0, 0xf_ffff, 0xc092));
    describe(&cpu, CODE3, descriptor(0, 0xf_ffff, 0xc0fa));
    describe(&cpu, DATA3, descriptor(0, 0xf_ffff, 0xc0f2));
    describe(&cpu, TASK_A, descriptor(TSS_A, 0x67, 0x8b));
    describe(&cpu, TASK_B, descriptor(TSS_B, 0x67, 0x89));
    describe(&cpu, GATE, gate(TASK_B, 0, system_type::TASK_GATE, 3, 0));
    cpu.state.gdtr = DescriptorTable { base: GDT, limit: 0x7f };
    cpu.state.idtr = DescriptorTable { base: IDT, limit: 0x7ff };
    cpu.state.tr = Segment { selector: TASK_A, rights: 0x8b, limit: 0x67, base: TSS_A };
    cpu.state.ldtr = Segment { selector: 0, rights: Segment::UNUSABLE, limit: 0, base: 0 };
    cpu.state.gpr[reg::RSP] = u64::from(STACK0) - 0x100;
    put32(&cpu, TSS_A + 4, STACK0);
    put32(&cpu, TSS_A + 8, DATA0.into());
    put32(&cpu, TSS_A + 0x64, 0x68 << 16);
    task_b(&cpu, rflags::IF as u32);
    cpu
}

/// Fills in task B: level 3, general registers 0xb0 and on.
fn task_b(cpu: &Cpu, flags: u32) {
    put32(cpu, TSS_B + 0x20, 0x4000);
    put32(cpu, TSS_B + 0x24, flags);
    for i in 0..8 {
        put32(cpu, TSS_B + 0x28 + 4 * i, 0xb0 + i as u32);
    }
    put32(cpu, TSS_B + 0x38, STACK3);
    for (i, selector) in [DATA3, CODE3, DATA3, DATA3, 0, 3].into_iter().enumerate() {
        put32(cpu, TSS_B + 0x48 + 4 * i as u64, selector.into());
    }
    put32(cpu, TSS_B + 0x60, 0);
    put32(cpu, TSS_B + 0x64, 0x68 << 16);
}

/// Virtual-8086 mode: code at 0x1000:0, stack at 0x2000:0x8000.
fn virtual_8086(iopl: u64, extensions: bool) -> Machine {
    let mut cpu = protected();
    cpu.state.seg = [0x3000, 0x1000, 0x2000, 0x4000, 0x5000, 0x6000].map(v86::segment);
    cpu.state.rip = 0;
    cpu.state.gpr[reg::RSP] = 0x8000;
    cpu.state.cr4 = if extensions { cr4::VME } else { 0 };
    // A redirection bit map of ones, an I/O bit map of zeros.
    cpu.state.tr.limit = 0x2fff;
    put32(&cpu, TSS_A + 0x64, 0x88 << 16);
    put(&cpu, TSS_A + 0x68, &[0xff; 32]);
    put(&cpu, TSS_A + 0x88, &[0; 16]);
    cpu.set_rflags(rflags::VM | rflags::IF | iopl << 12);
    cpu
}

fn run(cpu: &mut Cpu, bytes: &[u8]) -> Exec<()> {
    let insn = decode(cpu, bytes);
    assert!(!insn.is_invalid(), "{bytes:x?}");
    cpu.debug.begin();
    let outcome = execute(cpu, &insn, insn::handler(&insn));
    cpu.debug.end(outcome.is_ok());
    outcome
}

/// A fault that leaves nothing behind.
fn fault(cpu: &mut Cpu, bytes: &[u8]) -> Exception {
    let before = cpu.state.clone();
    let outcome = run(cpu, bytes);
    let exception = fault_of(cpu, outcome);
    assert_eq!(cpu.state, before);
    exception
}

fn far(opcode: u8, selector: u16) -> [u8; 7] {
    let [low, high] = selector.to_le_bytes();
    [opcode, 0, 0x50, 0, 0, low, high]
}

const JMP: u8 = 0xea;
const CALL: u8 = 0x9a;
const IRET: &[u8] = &[0xcf];

#[test]
fn iret_enters_virtual_8086_mode_and_an_interrupt_leaves_it() {
    let mut cpu = protected();
    let sp = u64::from(STACK0) - 0x100;
    let image = (rflags::VM | rflags::IF | rflags::VIF | 3 << 12) as u32;
    for (i, value) in
        [0x1234, 0x1000, image, 0x8000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000].into_iter().enumerate()
    {
        put32(&cpu, sp + 4 * i as u64, value);
    }
    run(&mut cpu, IRET).unwrap();
    assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip, cpu.state.gpr[reg::RSP]), (3, 16, 0x1234, 0x8000));
    for (index, selector) in [0x3000, 0x1000, 0x2000, 0x4000, 0x5000, 0x6000].into_iter().enumerate() {
        let expected = Segment { selector, rights: 0xf3, limit: 0xffff, base: u64::from(selector) << 4 };
        assert_eq!(cpu.state.seg[index], expected);
    }
    assert_eq!(cpu.rflags(), u64::from(image) | rflags::FIXED);

    idt(&cpu, 0x20, gate(CODE0, 0x7000, system_type::INTERRUPT_GATE, 0, 0));
    assert_eq!(interrupt(&mut cpu, 0x20, InterruptKind::External), Ok(()));
    assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip), (0, 32, 0x7000));
    let sp = cpu.state.gpr[reg::RSP];
    assert_eq!(sp, u64::from(STACK0) - 36);
    let frame: Vec<u32> = (0..9).map(|i| get32(&cpu, sp + 4 * i)).collect();
    let flags = image | rflags::FIXED as u32;
    assert_eq!(frame, [0x1234, 0x1000, flags, 0x8000, 0x2000, 0x3000, 0x4000, 0x5000, 0x6000]);
    for index in [seg::ES, seg::DS, seg::FS, seg::GS] {
        assert!(cpu.state.seg[index].unusable() && cpu.state.seg[index].selector == 0);
    }
    assert_eq!(cpu.rflags() & (rflags::VM | rflags::IF), 0);
}

#[test]
fn a_handler_of_virtual_8086_mode_runs_at_level_0() {
    let mut cpu = virtual_8086(3, false);
    idt(&cpu, 0x30, gate(CODE3, 0x7000, system_type::INTERRUPT_GATE, 3, 0));
    assert_eq!(fault(&mut cpu, &[0xcd, 0x30]), Exception::gp(u32::from(CODE3 & !3)));
    idt(&cpu, 0x30, gate(CODE0, 0x7000, system_type::INTERRUPT_GATE16, 2, 0));
    assert_eq!(fault(&mut cpu, &[0xcd, 0x30]), Exception::gp(0x30 << 3 | 2), "the gate's DPL");
    idt(&cpu, 0x30, gate(CODE0, 0x7000, system_type::INTERRUPT_GATE16, 3, 0));
    run(&mut cpu, &[0xcd, 0x30]).unwrap();
    let sp = cpu.state.gpr[reg::RSP];
    assert_eq!((sp, get16(&cpu, sp), get16(&cpu, sp + 16)), (u64::from(STACK0) - 18, 2, 0x6000));
}

#[test]
fn iopl_below_3_traps_what_touches_if() {
    let sensitive: &[&[u8]] = &[
        &[0xfa],
        &[0xfb],
        &[0x9c],
        &[0x9d],
        &[0x66, 0x9c],
        &[0x66, 0x9d],
        &[0xcd, 3],
        &[0xcf],
        &[0x66, 0xcf],
    ];
    for bytes in sensitive {
        let mut cpu = virtual_8086(2, false);
        cpu.state.nmi_blocked = false;
        assert_eq!(fault(&mut cpu, bytes), Exception::gp(0), "{bytes:x?}");
    }
    let mut cpu = virtual_8086(3, false);
    run(&mut cpu, &[0xfa]).unwrap();
    run(&mut cpu, &[0x9c]).unwrap();
    assert_eq!(get16(&cpu, 0x2_7ffe), 0x3002);
    run(&mut cpu, &[0x9d]).unwrap();
    run(&mut cpu, &[0xfb]).unwrap();
    assert_eq!(cpu.rflags() & (rflags::IF | rflags::IOPL | rflags::VM), rflags::IF | 3 << 12 | rflags::VM);
    // INT3 does not look at IOPL.
    let mut cpu = virtual_8086(0, false);
    idt(&cpu, 3, gate(CODE0, 0x7000, system_type::TRAP_GATE, 3, 0));
    run(&mut cpu, &[0xcc]).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.rip), (0, 0x7000));
}

#[test]
fn an_iret_that_faults_unblocks_nmis_too() {
    let mut cpu = virtual_8086(0, false);
    cpu.state.nmi_blocked = true;
    let outcome = run(&mut cpu, &[0xcf]);
    assert_eq!(fault_of(&mut cpu, outcome), Exception::gp(0));
    assert!(!cpu.state.nmi_blocked);
}

#[test]
fn the_extensions_give_the_program_a_virtual_interrupt_flag() {
    let mut cpu = virtual_8086(0, true);
    run(&mut cpu, &[0xfb]).unwrap();
    assert_ne!(cpu.rflags() & rflags::VIF, 0);
    assert!(!cpu.state.interrupt_shadow, "a virtual flag has no shadow");
    run(&mut cpu, &[0x9c]).unwrap();
    assert_eq!(get16(&cpu, 0x2_7ffe), 0x3202, "IF is VIF, and IOPL reads as 3");
    run(&mut cpu, &[0xfa]).unwrap();
    assert_eq!(cpu.rflags() & (rflags::VIF | rflags::IF), rflags::IF);
    run(&mut cpu, &[0x9d]).unwrap();
    assert_eq!(cpu.rflags() & (rflags::VIF | rflags::IF | rflags::IOPL), rflags::VIF | rflags::IF);
    for bytes in [&[0x66, 0x9c][..], &[0x66, 0x9d], &[0x66, 0xcf]] {
        assert_eq!(fault(&mut cpu, bytes), Exception::gp(0), "32 bits: {bytes:x?}");
    }
    // TF cannot be loaded, and interrupts not be enabled while one is pending.
    cpu.state.gpr[reg::RSP] = 0x8000;
    put32(&cpu, 0x2_8000, 0x100);
    assert_eq!(fault(&mut cpu, &[0x9d]), Exception::gp(0));
    let rflags = cpu.rflags();
    cpu.set_rflags(rflags & !rflags::VIF | rflags::VIP);
    put32(&cpu, 0x2_8000, 0x200);
    assert_eq!(fault(&mut cpu, &[0x9d]), Exception::gp(0));
    assert_eq!(fault(&mut cpu, &[0xfb]), Exception::gp(0));
    put32(&cpu, 0x2_8000, 0x0801_0005);
    put32(&cpu, 0x2_8004, 0x201);
    assert_eq!(fault(&mut cpu, &[0xcf]), Exception::gp(0));
    put32(&cpu, 0x2_8004, 1);
    run(&mut cpu, &[0xcf]).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.seg[seg::CS]), (5, v86::segment(0x801)));
    assert_eq!(cpu.rflags() & (rflags::CF | rflags::VIP | rflags::IF), rflags::CF | rflags::VIP | rflags::IF);
}

#[test]
fn the_redirection_bit_map_sends_int_n_to_the_program() {
    let mut cpu = virtual_8086(0, true);
    put32(&cpu, 4 * 0x21, 0x0700_0042);
    assert_eq!(fault(&mut cpu, &[0xcd, 0x21]), Exception::gp(0), "its bit is set");
    put(&cpu, TSS_A + 0x68 + 4, &[0xfd]);
    cpu.state.rflags |= rflags::VIF;
    run(&mut cpu, &[0xcd, 0x21]).unwrap();
    assert_eq!((cpu.state.seg[seg::CS], cpu.state.rip), (v86::segment(0x700), 0x42));
    assert_eq!([0, 2, 4].map(|i| get16(&cpu, 0x2_7ffa + i)), [2, 0x1000, 0x3202]);
    assert_eq!(cpu.rflags() & (rflags::VIF | rflags::IF | rflags::VM), rflags::IF | rflags::VM);
    // With an IOPL of 3 it is IF that the handler finds clear.
    let mut cpu = virtual_8086(3, true);
    put32(&cpu, 4 * 0x21, 0x0700_0042);
    put(&cpu, TSS_A + 0x68 + 4, &[0xfd]);
    run(&mut cpu, &[0xcd, 0x21]).unwrap();
    assert_eq!((get16(&cpu, 0x2_7ffe), cpu.rflags() & rflags::IF), (0x3202, 0));
    // Without the map there is no answer.
    let mut cpu = virtual_8086(3, true);
    cpu.state.tr.limit = 0x66;
    assert_eq!(fault(&mut cpu, &[0xcd, 0x21]), Exception::gp(0));
}

#[test]
fn ports_in_virtual_8086_mode_need_their_bit_whatever_iopl_is() {
    let mut cpu = virtual_8086(3, false);
    put(&cpu, TSS_A + 0x88 + 1, &[0x80]);
    assert_eq!(fault(&mut cpu, &[0xe4, 0x0f]), Exception::gp(0));
    assert_eq!(fault(&mut cpu, &[0xe5, 0x0e]), Exception::gp(0));
    assert_eq!(run(&mut cpu, &[0xe4, 0x0e]), Err(crate::cpu::Stop::Exit));
    assert_eq!(cpu.pending.wanted, Exit::IoRead { port: 0x0e, size: 1 });
}

#[test]
fn selectors_are_paragraphs_in_virtual_8086_mode() {
    let mut cpu = virtual_8086(0, false);
    cpu.state.gpr[reg::RAX] = 0xabcd;
    run(&mut cpu, &[0x8e, 0xd8]).unwrap();
    assert_eq!(cpu.state.seg[seg::DS], v86::segment(0xabcd));
    for bytes in [&[0x0f, 0x00, 0xd0][..], &[0x0f, 0x00, 0xc0], &[0x0f, 0x02, 0xc0], &[0x63, 0xc0]] {
        assert_eq!(fault(&mut cpu, bytes), Exception::ud(), "{bytes:x?}");
    }
    cpu.state.gpr[reg::RBX] = 0xffff;
    assert_eq!(fault(&mut cpu, &[0x8b, 0x07]), Exception::gp(0), "a word beyond 64 KiB");
}

#[test]
fn a_call_nests_a_task_and_iret_ends_it() {
    let mut cpu = protected();
    cpu.state.dr7 = 0x7ff;
    let back = cpu.state.rip + 7;
    cpu.state.gpr[reg::RAX] = 0xaaaa;
    run(&mut cpu, &far(CALL, TASK_B)).unwrap();
    assert_eq!((cpu.state.rip, cpu.cpl(), cpu.state.gpr[reg::RSP]), (0x4000, 3, STACK3.into()));
    assert_eq!((cpu.state.gpr[reg::RAX], cpu.state.gpr[reg::RDI]), (0xb0, 0xb7));
    assert_eq!(cpu.rflags(), rflags::IF | rflags::NT | rflags::FIXED);
    assert_eq!((cpu.state.tr.selector, cpu.state.tr.rights), (TASK_B, 0x8b));
    assert_eq!((cpu.state.cr0 & cr0::TS, cpu.state.dr7), (cr0::TS, 0x6aa));
    assert_eq!((get16(&cpu, TSS_B), u64::from(get32(&cpu, TSS_A + 0x20))), (TASK_A, back));
    assert_eq!((get32(&cpu, TSS_A + 0x28), get16(&cpu, TSS_A + 0x4c)), (0xaaaa, CODE0));
    assert_eq!(get32(&cpu, GDT + u64::from(TASK_A) + 4) >> 8 & 0xff, 0x8b, "A stays busy");
    assert_eq!(get32(&cpu, GDT + u64::from(TASK_B) + 4) >> 8 & 0xff, 0x8b);
    assert_eq!(cpu.state.seg[seg::GS], Segment { selector: 3, rights: Segment::UNUSABLE, limit: 0, base: 0 });
    assert_eq!(fault(&mut cpu, &far(CALL, TASK_B)), Exception::gp(TASK_B.into()), "its DPL");

    run(&mut cpu, IRET).unwrap();
    assert_eq!((cpu.state.rip, cpu.cpl(), cpu.state.gpr[reg::RAX]), (back, 0, 0xaaaa));
    assert_eq!(cpu.state.tr.selector, TASK_A);
    assert_eq!(get32(&cpu, GDT + u64::from(TASK_B) + 4) >> 8 & 0xff, 0x89, "B is free again");
    assert_eq!(get32(&cpu, TSS_B + 0x24) & rflags::NT as u32, 0);
    assert_eq!(cpu.pending.task_switches, 2);
}

#[test]
fn a_jump_leaves_its_task_free() {
    let mut cpu = protected();
    run(&mut cpu, &far(JMP, GATE)).unwrap();
    assert_eq!((cpu.state.rip, cpu.state.tr.selector), (0x4000, TASK_B));
    assert_eq!(cpu.rflags() & rflags::NT, 0);
    assert_eq!(get32(&cpu, GDT + u64::from(TASK_A) + 4) >> 8 & 0xff, 0x89);
    // From level 3 only the gate leads back.
    describe(&cpu, GATE, gate(TASK_A, 0, system_type::TASK_GATE, 2, 0));
    assert_eq!(fault(&mut cpu, &far(JMP, GATE)), Exception::gp(GATE.into()));
    describe(&cpu, GATE, gate(TASK_A, 0, system_type::TASK_GATE, 3, 0));
    run(&mut cpu, &far(JMP, GATE)).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.tr.selector), (0, TASK_A));
}

#[test]
fn a_switch_is_refused_before_anything_changes() {
    let ext = 0;
    for (rights, limit, expected) in [
        (0x8b, 0x67, Exception::gp(TASK_B.into())),
        (0x82, 0x67, Exception::gp(TASK_B.into())),
        (0x09, 0x67, Exception::with_code(vector::NP, u32::from(TASK_B) | ext)),
        (0x89, 0x66, Exception::with_code(vector::TS, u32::from(TASK_B) | ext)),
        (0x81, 0x2a, Exception::with_code(vector::TS, u32::from(TASK_B) | ext)),
    ] {
        let mut cpu = protected();
        describe(&cpu, GATE, gate(TASK_B, 0, system_type::TASK_GATE, 0, 0));
        describe(&cpu, TASK_B, descriptor(TSS_B, limit, rights));
        assert_eq!(fault(&mut cpu, &far(JMP, GATE)), expected);
    }
    let mut cpu = protected();
    describe(&cpu, GATE, gate(TASK_B | 4, 0, system_type::TASK_GATE, 0, 0));
    assert_eq!(fault(&mut cpu, &far(JMP, GATE)), Exception::gp(u32::from(TASK_B | 4)));
    // IRET wants a busy TSS, and says #TS.
    let mut cpu = protected();
    cpu.state.rflags |= rflags::NT;
    put32(&cpu, TSS_A, TASK_B.into());
    assert_eq!(fault(&mut cpu, IRET), Exception::with_code(vector::TS, TASK_B.into()));
}

#[test]
fn bad_segments_fault_in_the_new_task() {
    let ts = |selector: u16| Exception::with_code(vector::TS, u32::from(selector & !3));
    // ES, CS, SS, DS, LDT.
    for (field, selector, expected) in [
        (0x60, CODE0, ts(CODE0)),
        (0x60, 0x14, ts(0x14)),
        (0x4c, 0, Exception::with_code(vector::TS, 0)),
        (0x4c, CODE0 | 3, ts(CODE0)),
        (0x4c, DATA3, ts(DATA3)),
        (0x4c, OTHER | 3, Exception::with_code(vector::NP, OTHER.into())),
        (0x50, 0, Exception::with_code(vector::TS, 0)),
        (0x50, DATA0, ts(DATA0)),
        (0x50, OTHER | 3, ts(OTHER)),
        (0x54, DATA0, ts(DATA0)),
        (0x54, 0x7b, ts(0x7b)),
        (0x54, OTHER | 3, Exception::with_code(vector::NP, OTHER.into())),
    ] {
        let mut cpu = protected();
        // A code segment of level 3 that is not present.
        describe(&cpu, OTHER, descriptor(0, 0xf_ffff, 0xc07a));
        put32(&cpu, TSS_B + field, selector.into());
        let outcome = run(&mut cpu, &far(JMP, TASK_B));
        assert_eq!(fault_of(&mut cpu, outcome), expected, "{field:x} {selector:x}");
        assert_eq!((cpu.state.rip, cpu.state.tr.selector), (0x4000, TASK_B));
        assert_eq!(cpu.state.gpr[reg::RAX], 0xb0);
    }
    let mut cpu = protected();
    describe(&cpu, OTHER, descriptor(0, 0xfff, 0x40fa));
    put32(&cpu, TSS_B + 0x4c, (OTHER | 3).into());
    let outcome = run(&mut cpu, &far(JMP, TASK_B));
    assert_eq!(fault_of(&mut cpu, outcome), Exception::gp(0), "EIP beyond CS");
}

#[test]
fn a_double_fault_has_a_task_of_its_own() {
    let mut cpu = protected();
    idt(&cpu, vector::DF, gate(TASK_B, 0, system_type::TASK_GATE, 0, 0));
    cpu.state.gpr[reg::RCX] = 0xcccc;
    let rip = cpu.state.rip as u32;
    cpu.pending.delivering = true;
    // There is no gate for #GP.
    assert_eq!(raise_fault(&mut cpu, Exception::gp(0)), Ok(()));
    assert_eq!((cpu.state.rip, cpu.state.tr.selector), (0x4000, TASK_B));
    assert_eq!((get32(&cpu, TSS_A + 0x20), get32(&cpu, TSS_A + 0x2c)), (rip, 0xcccc));
    let sp = cpu.state.gpr[reg::RSP];
    assert_eq!((sp, get32(&cpu, sp)), (u64::from(STACK3) - 4, 0), "the error code");
    assert_ne!(cpu.rflags() & rflags::NT, 0);
    // A second one finds the task busy.
    assert_eq!(raise_fault(&mut cpu, Exception::with_code(vector::DF, 0)), Err(Undelivered::Shutdown));
}

#[test]
fn a_task_of_virtual_8086_mode_is_entered_by_a_switch() {
    let mut cpu = protected();
    task_b(&cpu, (rflags::VM | rflags::IF) as u32);
    put32(&cpu, TSS_B + 0x4c, 0xf000);
    run(&mut cpu, &far(JMP, TASK_B)).unwrap();
    assert_eq!((cpu.cpl(), cpu.bits(), cpu.state.rip), (3, 16, 0x4000));
    assert_eq!(cpu.state.seg[seg::CS], v86::segment(0xf000));
    assert_eq!(cpu.state.seg[seg::SS], v86::segment(DATA3));
}

#[test]
fn sixteen_bit_tasks_keep_the_low_halves() {
    let mut cpu = protected();
    describe(&cpu, TASK_B, descriptor(TSS_B, 0x2b, 0x81));
    describe(&cpu, OTHER, descriptor(0, 0xffff, 0x9a));
    let words =
        [TASK_A, 0, 0, 0, 0, 0, 0, 0x4000, 2, 1, 2, 3, 4, 0x5000, 6, 7, 8, DATA0, OTHER, DATA0, DATA0, 0];
    for (i, word) in words.into_iter().enumerate() {
        put(&cpu, TSS_B + 2 * i as u64, &word.to_le_bytes());
    }
    run(&mut cpu, &far(CALL, TASK_B)).unwrap();
    assert_eq!((cpu.state.rip, cpu.bits()), (0x4000, 16));
    assert_eq!(cpu.state.gpr[..8], [1, 2, 3, 4, 0x5000, 6, 7, 8]);
    assert!(cpu.state.seg[seg::FS].unusable());
    run(&mut cpu, IRET).unwrap();
    assert_eq!((cpu.bits(), cpu.state.tr.selector), (32, TASK_A));
    assert_eq!(get16(&cpu, TSS_B + 0x12), 1);
}

#[test]
fn a_switch_exits_once_it_is_complete() {
    let mut cpu = protected();
    put(&cpu, cpu.state.rip, &far(JMP, TASK_B));
    put(&cpu, 0x4000, &[0xeb, 0xfe]);
    let until = Until { counter: None, instructions: Some(10) };
    assert_eq!(cpu.run(until), Exit::TaskSwitch);
    assert_eq!((cpu.state.rip, cpu.state.tr.selector), (0x4000, TASK_B));
    assert_eq!(cpu.run(until), Exit::Budget);
}

#[test]
fn a_call_gate_copies_parameters_to_the_inner_stack() {
    let mut cpu = protected();
    cpu.state.seg[seg::CS] = Segment::flat(CODE3, 0xc0fb);
    cpu.state.seg[seg::SS] = Segment::flat(DATA3, 0xc0f3);
    cpu.state.gpr[reg::RSP] = STACK3.into();
    cpu.mode_changed();
    put32(&cpu, STACK3.into(), 0x11);
    put32(&cpu, u64::from(STACK3) + 4, 0x22);
    let back = cpu.state.rip as u32 + 7;
    describe(&cpu, GATE, gate(CODE0, 0x6000, system_type::CALL_GATE, 3, 2));
    assert_eq!(fault(&mut cpu, &far(JMP, GATE)), Exception::gp(CODE0.into()), "no jump inwards");
    put32(&cpu, TSS_A + 8, (DATA0 | 1).into());
    assert_eq!(fault(&mut cpu, &far(CALL, GATE)), Exception::with_code(vector::TS, DATA0.into()));
    put32(&cpu, TSS_A + 8, 0);
    assert_eq!(fault(&mut cpu, &far(CALL, GATE)), Exception::with_code(vector::TS, 0));
    put32(&cpu, TSS_A + 8, DATA0.into());
    run(&mut cpu, &far(CALL, GATE)).unwrap();
    let sp = cpu.state.gpr[reg::RSP];
    assert_eq!((cpu.state.rip, cpu.cpl(), sp), (0x6000, 0, u64::from(STACK0) - 24));
    let frame: Vec<u32> = (0..6).map(|i| get32(&cpu, sp + 4 * i)).collect();
    assert_eq!(frame, [back, CODE3.into(), 0x11, 0x22, STACK3, DATA3.into()]);
    // RETF 8 releases the parameters from both stacks.
    run(&mut cpu, &[0xca, 8, 0]).unwrap();
    assert_eq!((cpu.cpl(), cpu.state.rip as u32, cpu.state.gpr[reg::RSP] as u32), (3, back, STACK3 + 8));
}

#[test]
fn types_and_limits_of_segments_are_enforced() {
    let mut cpu = protected();
    // MOV EAX, CS:[EBX] and DS:[EBX]; MOV CS:[EBX], EAX.
    let (read_code, read, write_code): (&[u8], &[u8], &[u8]) =
        (&[0x2e, 0x8b, 3], &[0x8b, 3], &[0x2e, 0x89, 3]);
    run(&mut cpu, read_code).unwrap();
    assert_eq!(fault(&mut cpu, write_code), Exception::gp(0));
    cpu.state.seg[seg::CS].rights = 0xc099;
    assert_eq!(fault(&mut cpu, read_code), Exception::gp(0), "execute-only");
    cpu.state.seg[seg::DS] = Segment { selector: 0x10, rights: 0x4097, limit: 0xffff, base: 0 };
    cpu.state.gpr[reg::RBX] = 0xffff;
    assert_eq!(fault(&mut cpu, read), Exception::gp(0), "expand-down, at the limit");
    cpu.state.gpr[reg::RBX] = 0x1_0000;
    run(&mut cpu, read).unwrap();
    cpu.state.seg[seg::DS].rights = 0x97;
    assert_eq!(fault(&mut cpu, read), Exception::gp(0), "beyond 64 KiB without B");
    cpu.state.seg[seg::DS] = Segment { selector: 0, rights: Segment::UNUSABLE, limit: 0, base: 0 };
    assert_eq!(fault(&mut cpu, read), Exception::gp(0), "null");
    // SCASD reads ES:EDI, and INSD writes there.
    cpu.state.seg[seg::ES].rights = 0xc091;
    cpu.state.gpr[reg::RDI] = 0x5000;
    run(&mut cpu, &[0xaf]).unwrap();
    assert_eq!(fault(&mut cpu, &[0x6d]), Exception::gp(0));
}

#[test]
fn a_pushed_selector_takes_the_place_of_its_operand_size() {
    let mut cpu = protected();
    let sp = cpu.state.gpr[reg::RSP];
    put32(&cpu, sp - 4, 0xaaaa_aaaa);
    run(&mut cpu, &[0x0e]).unwrap();
    assert_eq!((cpu.state.gpr[reg::RSP], get32(&cpu, sp - 4)), (sp - 4, 0xaaaa_0000 | u32::from(CODE0)));
    run(&mut cpu, &[0x66, 0x1e]).unwrap();
    assert_eq!((cpu.state.gpr[reg::RSP], get16(&cpu, sp - 6)), (sp - 6, 0x10));
    // POP DS of 16 bits takes two bytes, and a fault leaves ESP alone.
    run(&mut cpu, &[0x66, 0x1f]).unwrap();
    assert_eq!(fault(&mut cpu, &[0x17]), Exception::gp(CODE0.into()));
}

#[test]
fn code_does_not_run_beyond_its_segment() {
    let mut cpu = protected();
    idt(&cpu, vector::GP, gate(CODE0, 0x7000, system_type::INTERRUPT_GATE, 0, 0));
    put(&cpu, 0x7000, &[0xeb, 0xfe]);
    // NOPs up to the limit, where a two-byte instruction has its first byte.
    cpu.state.seg[seg::CS].limit = 0x1_01ff;
    put(&cpu, 0x1_0000, &[0x90; 0x1ff]);
    put(&cpu, 0x1_01ff, &[0xb0, 0x55]);
    let until = |instructions| Until { counter: None, instructions: Some(instructions) };
    assert_eq!(cpu.run(until(0x1ff)), Exit::Budget);
    assert_eq!(cpu.state.rip, 0x1_01ff);
    assert_eq!(cpu.run(until(1)), Exit::Budget);
    let sp = cpu.state.gpr[reg::RSP];
    assert_eq!((cpu.state.rip, get32(&cpu, sp), get32(&cpu, sp + 4)), (0x7000, 0, 0x1_01ff));
    assert_eq!(cpu.state.gpr[reg::RAX], 0);
}

#[test]
fn real_address_mode_keeps_what_protected_mode_loaded() {
    let mut cpu = protected();
    cpu.state.cr0 = cr0::ET;
    cpu.state.seg[seg::CS] = Segment { selector: 0, rights: 0x9b, limit: 0xffff, base: 0 };
    cpu.state.rip = 0x1000;
    cpu.mode_changed();
    assert_eq!(cpu.bits(), 16);
    // MOV DS, AX keeps the limit of 4 GiB: MOV EAX, [EBX].
    cpu.state.gpr[reg::RAX] = 0x100;
    run(&mut cpu, &[0x8e, 0xd8]).unwrap();
    assert_eq!((cpu.state.seg[seg::DS].base, cpu.state.seg[seg::DS].limit), (0x1000, u32::MAX));
    put32(&cpu, 0x2_1000, 0x1234_5678);
    cpu.state.gpr[reg::RBX] = 0x2_0000;
    run(&mut cpu, &[0x67, 0x66, 0x8b, 0x03]).unwrap();
    assert_eq!(cpu.state.gpr[reg::RAX], 0x1234_5678);
    cpu.state.seg[seg::DS].limit = 0xffff;
    assert_eq!(fault(&mut cpu, &[0x67, 0x66, 0x8b, 0x03]), Exception::gp(0));
    // A segment that protected mode left null is usable again.
    cpu.state.seg[seg::DS] = Segment { selector: 0, rights: Segment::UNUSABLE, limit: 0, base: 0 };
    run(&mut cpu, &[0x8e, 0xd8]).unwrap();
    assert_eq!(
        cpu.state.seg[seg::DS],
        Segment { selector: 0x5678, rights: 0x93, limit: 0xffff, base: 0x5_6780 }
    );
}

mod hostile;
