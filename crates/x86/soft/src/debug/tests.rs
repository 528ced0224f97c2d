//! The rules of SDM 6.8.3, 6.9 and 17.2 to 17.3, each by a few instructions that run.

use satori_defs::x86::{cr4, dr6, dr7, rflags, vector};
use satori_engine::{DebugCause, DebugPlan, Exit, Resume, Until, WatchAccess, Watchpoint, Window};
use satori_memory::Gpa;
use satori_state::{Activity, DescriptorTable, Segment, reg, seg};

use crate::cpu::Cpu;
use crate::testing::{Machine, SCRATCH, machine64};

const CODE: u64 = 0x5_0000;
const GDT: u64 = 0x2_0000;
const IDT: u64 = 0x2_1000;
const TSS: u64 = 0x2_2000;
const STACK: u64 = 0x3_0000;
const USER_STACK: u64 = 0x3_8000;
/// Handlers: the one of vector `n` is at `HANDLERS + 16 * n`, and halts.
const HANDLERS: u64 = 0x6_0000;
const DATA: u64 = SCRATCH + 0x100;

const USER_CODE: u16 = 0x1b;
const USER_DATA: u16 = 0x23;

/// A 64-bit machine about to execute `bytes`, with handlers for everything.
fn machine(bytes: &[u8]) -> Machine {
    let mut cpu = machine64();
    let put = |at: u64, value: u64| cpu.memory.write(Gpa(at), &value.to_le_bytes()).unwrap();
    let flat = |rights: u64| 0xf << 48 | 0xffff | rights << 40;
    for (i, descriptor) in [0, flat(0xa09b), flat(0xc093), flat(0xa0fb), flat(0xc0f3)].into_iter().enumerate()
    {
        put(GDT + 8 * i as u64, descriptor);
    }
    for n in 0..256u64 {
        let to = HANDLERS + 16 * n;
        put(IDT + 16 * n, to & 0xffff | 8 << 16 | 0xee << 40 | (to >> 16) << 48);
        put(IDT + 16 * n + 8, 0);
        put(to, 0xf4);
    }
    put(TSS + 4, STACK);
    cpu.memory.write(Gpa(CODE), bytes).unwrap();
    cpu.state.gdtr = DescriptorTable { base: GDT, limit: 0x27 };
    cpu.state.idtr = DescriptorTable { base: IDT, limit: 0xfff };
    cpu.state.tr = Segment { selector: 0x28, rights: 0x8b, limit: 0x67, base: TSS };
    cpu.state.gpr[reg::RSP] = STACK;
    cpu.state.gpr[reg::RDI] = DATA;
    cpu.state.gpr[reg::RSI] = DATA + 0x800;
    cpu.state.rip = CODE;
    cpu
}

fn user(cpu: &mut Cpu) {
    cpu.state.seg[seg::CS] = Segment::flat(USER_CODE, 0xa0fb);
    cpu.state.seg[seg::SS] = Segment::flat(USER_DATA, 0xc0f3);
    cpu.state.gpr[reg::RSP] = USER_STACK;
    cpu.mode_changed();
}

/// Arms debug register `number`: `kind` is R/W, `len` the LEN field.
fn arm(cpu: &mut Cpu, number: u32, at: u64, kind: u64, len: u64) {
    cpu.state.dr[number as usize] = at;
    cpu.state.dr7 |= 1 << (2 * number) | (kind | len << 2) << (16 + 4 * number);
}

const EXECUTE: u64 = 0;
const WRITE: u64 = 1;
const IO: u64 = 2;
const ACCESS: u64 = 3;

/// What was found on entry to a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entered {
    vector: u64,
    rip: u64,
    flags: u64,
}

fn get(cpu: &Cpu, at: u64) -> u64 {
    cpu.memory.read_u64(Gpa(at)).unwrap()
}

/// Runs until a handler halts; nothing else may exit.
fn run(cpu: &mut Machine) -> Entered {
    let exit = cpu.run(Until { counter: None, instructions: Some(10_000) });
    assert_eq!(exit, Exit::Hlt, "at {:#x}", cpu.state.rip);
    let vector = (cpu.state.rip - 1 - HANDLERS) / 16;
    assert!(vector < 256, "halted at {:#x}", cpu.state.rip);
    let coded = matches!(vector, 8 | 10..=14 | 17);
    let frame = cpu.state.gpr[reg::RSP] + if coded { 8 } else { 0 };
    Entered { vector, rip: get(cpu, frame), flags: get(cpu, frame + 16) }
}

/// Runs to a #DB: where, and with which bits of DR6 beyond the fixed ones.
#[track_caller]
fn trap(cpu: &mut Machine) -> (u64, u64) {
    let entered = run(cpu);
    assert_eq!(entered.vector, u64::from(vector::DB), "{entered:x?}");
    (entered.rip - CODE, cpu.state.dr6 & !dr6::FIXED)
}

/// Goes back from a handler as IRETQ does, with the pushed RFLAGS changed by `change`.
fn go_back(cpu: &mut Cpu, change: impl FnOnce(u64) -> u64) {
    cpu.state.activity = Activity::Active;
    let frame = cpu.state.gpr[reg::RSP];
    let flags = change(get(cpu, frame + 16));
    cpu.memory.write(Gpa(frame + 16), &flags.to_le_bytes()).unwrap();
    cpu.memory.write(Gpa(HANDLERS + 0xf00), &[0x48, 0xcf]).unwrap();
    cpu.state.rip = HANDLERS + 0xf00;
}

const NOP: u8 = 0x90;
const HLT: u8 = 0xf4;

#[test]
fn an_instruction_breakpoint_comes_before_its_instruction_and_rf_passes_it() {
    // INC EAX; INC EAX; HLT.
    let mut cpu = machine(&[0xff, 0xc0, 0xff, 0xc0, HLT]);
    arm(&mut cpu, 2, CODE + 2, EXECUTE, 0);
    let entered = run(&mut cpu);
    assert_eq!((entered.vector, entered.rip, entered.flags & rflags::RF), (1, CODE + 2, 0));
    assert_eq!((cpu.state.gpr[reg::RAX], cpu.state.dr6 & !dr6::FIXED), (1, 4));
    assert_eq!(cpu.state.rflags & rflags::RF, 0);
    // Without RF it breaks again, with it the instruction is executed and RF gone.
    go_back(&mut cpu, |flags| flags);
    assert_eq!(trap(&mut cpu), (2, 4));
    go_back(&mut cpu, |flags| flags | rflags::RF);
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RAX]), (CODE + 5, 2));
    assert_eq!(cpu.state.rflags & rflags::RF, 0);
}

#[test]
fn rf_lasts_for_one_instruction() {
    let mut cpu = machine(&[NOP, NOP, HLT]);
    arm(&mut cpu, 0, CODE + 1, EXECUTE, 0);
    cpu.state.rflags |= rflags::RF;
    assert_eq!(trap(&mut cpu), (1, 1), "RF was for the first NOP");
}

#[test]
fn faults_push_rf_and_interrupts_push_it_as_it_is() {
    let mut cpu = machine(&[0x0f, 0x0b]);
    let entered = run(&mut cpu);
    assert_eq!((entered.vector, entered.flags & rflags::RF), (6, rflags::RF));
    for rf in [0, rflags::RF] {
        let mut cpu = machine(&[NOP]);
        cpu.state.rflags |= rf;
        cpu.pending.injected = Some(satori_engine::Event::Interrupt(0x40));
        let entered = run(&mut cpu);
        assert_eq!((entered.vector, entered.flags & rflags::RF), (0x40, rf));
        // INT 41H begins by clearing RF.
        let mut cpu = machine(&[0xcd, 0x41]);
        cpu.state.rflags |= rf;
        let entered = run(&mut cpu);
        assert_eq!((entered.vector, entered.rip, entered.flags & rflags::RF), (0x41, CODE + 2, 0));
    }
}

#[test]
fn an_instruction_breakpoint_comes_before_the_page_fault_of_its_fetch() {
    let mut cpu = machine(&[]);
    let nowhere = 0x8000_0000_0000 - 0x5000;
    cpu.state.rip = nowhere;
    arm(&mut cpu, 1, nowhere, EXECUTE, 0);
    let entered = run(&mut cpu);
    assert_eq!((entered.vector, entered.rip), (1, nowhere));
    go_back(&mut cpu, |flags| flags | rflags::RF);
    assert_eq!(run(&mut cpu).vector, 14);
}

#[test]
fn only_the_first_byte_of_an_instruction_breaks_and_only_enabled_registers() {
    // A five-byte MOV.
    let mut cpu = machine(&[0xb8, 1, 0, 0, 0, HLT]);
    arm(&mut cpu, 0, CODE + 1, EXECUTE, 0);
    arm(&mut cpu, 1, CODE, EXECUTE, 0);
    cpu.state.dr7 &= !(3 << 2);
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    // A global enable does as well.
    let mut cpu = machine(&[HLT]);
    arm(&mut cpu, 3, CODE, EXECUTE, 0);
    cpu.state.dr7 = cpu.state.dr7 & !0xff | 0x80;
    assert_eq!(trap(&mut cpu), (0, 8));
}

#[test]
fn data_breakpoints_trap_after_the_access_by_aligned_ranges() {
    for (len, bytes) in [(0, 1), (1, 2), (3, 4), (2, 8)] {
        for offset in 0..16u64 {
            // MOV [RDI], AL; NOP; HLT.
            let mut cpu = machine(&[0x88, 0x07, NOP, HLT]);
            cpu.state.gpr[reg::RDI] = DATA + offset;
            arm(&mut cpu, 1, DATA + 8 + bytes - 1, WRITE, len);
            if (8..8 + bytes).contains(&offset) {
                assert_eq!(trap(&mut cpu), (2, 2), "{bytes} bytes, at {offset}");
                assert_eq!(get(&cpu, DATA + offset) & 0xff, cpu.state.gpr[reg::RAX] & 0xff);
            } else {
                assert_eq!(cpu.run(Until::default()), Exit::Hlt);
                assert_eq!(cpu.state.rip, CODE + 4, "{bytes} bytes, at {offset}");
            }
        }
    }
}

#[test]
fn reads_break_only_where_they_are_asked_for() {
    for (kind, bytes, hit) in [
        (WRITE, &[0x8b, 0x07][..], false),
        (ACCESS, &[0x8b, 0x07], true),
        (ACCESS, &[0x89, 0x07], true),
        (WRITE, &[0x01, 0x07], true),
        // LOCK INC [RDI], PUSH [RDI], MOVDQU XMM0, [RDI-15].
        (WRITE, &[0xf0, 0xff, 0x07], true),
        (ACCESS, &[0xff, 0x37], true),
        (ACCESS, &[0xf3, 0x0f, 0x6f, 0x47, 0xf1], true),
        // LEA and PREFETCHT0 access nothing.
        (ACCESS, &[0x8d, 0x07], false),
        (ACCESS, &[0x0f, 0x18, 0x0f], false),
    ] {
        let mut cpu = machine(&[bytes, &[NOP, HLT]].concat());
        arm(&mut cpu, 0, DATA, kind, 0);
        if hit {
            assert_eq!(trap(&mut cpu), (bytes.len() as u64, 1), "{bytes:x?}");
        } else {
            assert_eq!(cpu.run(Until::default()), Exit::Hlt);
            assert_eq!(cpu.state.rip, CODE + bytes.len() as u64 + 2, "{bytes:x?}");
        }
    }
}

#[test]
fn a_data_breakpoint_in_the_middle_of_a_block_ends_it() {
    // INC EAX; MOV [RDI], EAX; INC EAX; HLT, twice: the second time from decoded blocks.
    let mut cpu = machine(&[0xff, 0xc0, 0x89, 0x07, 0xff, 0xc0, HLT]);
    for round in 0..2 {
        cpu.state.rip = CODE;
        cpu.state.activity = Activity::Active;
        assert_eq!(cpu.run(Until::default()), Exit::Hlt);
        assert_eq!(cpu.state.gpr[reg::RAX], 2 * (round + 1));
    }
    cpu.state.rip = CODE;
    cpu.state.activity = Activity::Active;
    arm(&mut cpu, 0, DATA, WRITE, 3);
    let retired = cpu.count.retired;
    assert_eq!(trap(&mut cpu), (4, 1));
    assert_eq!((cpu.state.gpr[reg::RAX], get(&cpu, DATA) as u32), (5, 5));
    assert_eq!(cpu.count.retired - retired, 3, "two, and the handler's HLT");
    // Disarmed, all is as before.
    cpu.state.dr7 = dr7::FIXED;
    go_back(&mut cpu, |flags| flags);
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RAX]), (CODE + 7, 6));
}

#[test]
fn a_repeated_store_traps_after_its_iteration() {
    // REP STOSB.
    let mut cpu = machine(&[0xf3, 0xaa, HLT]);
    cpu.state.gpr[reg::RCX] = 10;
    arm(&mut cpu, 0, DATA + 4, WRITE, 0);
    let entered = run(&mut cpu);
    assert_eq!((entered.rip, entered.flags & rflags::RF), (CODE, rflags::RF));
    assert_eq!((cpu.state.gpr[reg::RCX], cpu.state.gpr[reg::RDI]), (5, DATA + 5));
    go_back(&mut cpu, |flags| flags);
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RCX]), (CODE + 3, 0));
    // The last iteration is the end of the instruction.
    let mut cpu = machine(&[0xf3, 0xaa, HLT]);
    cpu.state.gpr[reg::RCX] = 5;
    arm(&mut cpu, 0, DATA + 4, WRITE, 0);
    let entered = run(&mut cpu);
    assert_eq!((entered.rip, entered.flags & rflags::RF), (CODE + 2, 0));
}

#[test]
fn an_instruction_breakpoint_hits_a_repeated_instruction_once() {
    let mut cpu = machine(&[0xf3, 0xaa, HLT]);
    cpu.state.gpr[reg::RCX] = 3;
    arm(&mut cpu, 0, CODE, EXECUTE, 0);
    arm(&mut cpu, 1, DATA, WRITE, 0);
    assert_eq!(trap(&mut cpu), (0, 1));
    go_back(&mut cpu, |flags| flags | rflags::RF);
    assert_eq!(trap(&mut cpu), (0, 2), "after one iteration, by the data");
    go_back(&mut cpu, |flags| flags);
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!(cpu.state.rip, CODE + 3);
}

#[test]
fn a_faulting_access_is_no_hit() {
    // MOV [RDI], AL across into an unmapped page: only 4 GiB are there.
    let mut cpu = machine(&[0x89, 0x07]);
    cpu.state.gpr[reg::RDI] = 0x1_0000_0000 - 2;
    arm(&mut cpu, 0, 0x1_0000_0000, WRITE, 0);
    assert_eq!(run(&mut cpu).vector, 14);
    assert_eq!((cpu.state.dr6, cpu.state.pending_debug), (dr6::FIXED, 0));
}

#[test]
fn ports_break_with_debugging_extensions_only() {
    for de in [0, cr4::DE] {
        for (bytes, hit) in [(&[0xe4, 0x61][..], true), (&[0xe5, 0x5e], true), (&[0xe6, 0x62], false)] {
            let mut cpu = machine(&[bytes, &[NOP, HLT]].concat());
            cpu.state.cr4 |= de;
            arm(&mut cpu, 0, 0x61, IO, 0);
            assert!(matches!(cpu.run(Until::default()), Exit::IoRead { .. } | Exit::IoWrite { .. }));
            cpu.resume(Resume::Value(7));
            if hit && de != 0 {
                assert_eq!(trap(&mut cpu), (2, 1), "{bytes:x?}");
            } else {
                assert_eq!(cpu.run(Until::default()), Exit::Hlt);
                assert_eq!(cpu.state.rip, CODE + 4, "{bytes:x?}");
            }
        }
    }
}

#[test]
fn the_trap_flag_traps_after_each_instruction_that_began_with_it() {
    // PUSHFQ; OR byte [RSP+1], 1; POPFQ; NOP; NOP.
    let mut cpu = machine(&[0x9c, 0x80, 0x4c, 0x24, 0x01, 0x01, 0x9d, NOP, NOP]);
    assert_eq!(trap(&mut cpu), (8, dr6::BS), "not after POPF");
    assert_eq!(cpu.state.rflags & rflags::TF, 0);
    // Sticky, but for B0 to B3.
    cpu.state.dr6 |= dr6::BD | 5;
    go_back(&mut cpu, |flags| flags);
    assert_eq!(trap(&mut cpu), (9, dr6::BS | dr6::BD));
    // POPFQ that clears TF: the trap still comes after it.
    let mut cpu = machine(&[0x6a, 0x02, 0x9d, NOP, HLT]);
    cpu.state.rflags |= rflags::TF;
    assert_eq!(trap(&mut cpu), (2, dr6::BS));
    go_back(&mut cpu, |flags| flags);
    let entered = run(&mut cpu);
    assert_eq!((entered.rip - CODE, entered.flags & rflags::TF), (3, 0));
    go_back(&mut cpu, |flags| flags);
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!(cpu.state.rip, CODE + 5);
}

#[test]
fn the_trap_flag_stops_each_iteration() {
    let mut cpu = machine(&[0xf3, 0xaa, NOP]);
    cpu.state.gpr[reg::RCX] = 2;
    cpu.state.rflags |= rflags::TF;
    let entered = run(&mut cpu);
    assert_eq!((entered.rip, entered.flags & rflags::RF), (CODE, rflags::RF));
    go_back(&mut cpu, |flags| flags);
    let entered = run(&mut cpu);
    assert_eq!((entered.rip, entered.flags & rflags::RF), (CODE + 2, 0));
}

#[test]
fn software_interrupts_and_faults_take_no_single_step() {
    for (bytes, vector, at) in [(&[0xcd, 0x41][..], 0x41, 2), (&[0xcc], 3, 1), (&[0x0f, 0x0b], 6, 0)] {
        let mut cpu = machine(bytes);
        cpu.state.rflags |= rflags::TF;
        let entered = run(&mut cpu);
        assert_eq!((entered.vector, entered.rip), (vector, CODE + at), "{bytes:x?}");
        assert_eq!(entered.flags & rflags::TF, rflags::TF);
        assert_eq!(cpu.state.dr6, dr6::FIXED);
    }
    // ICEBP is a #DB that DR6 does not tell of.
    let mut cpu = machine(&[0xf1]);
    assert_eq!(trap(&mut cpu), (1, 0));
}

#[test]
fn a_load_of_ss_holds_back_debug_exceptions() {
    // MOV SS, [RDI]; NOP; NOP.
    let code = [0x8e, 0x17, NOP, NOP, HLT];
    let with_selector = |bytes: &[u8]| {
        let cpu = machine(bytes);
        cpu.memory.write(Gpa(DATA), &[0x10, 0]).unwrap();
        cpu
    };
    let mut cpu = with_selector(&code);
    arm(&mut cpu, 0, DATA, ACCESS, 1);
    assert_eq!(trap(&mut cpu), (3, 1), "the data breakpoint waits for one instruction");
    let mut cpu = with_selector(&code);
    cpu.state.rflags |= rflags::TF;
    assert_eq!(trap(&mut cpu), (3, dr6::BS), "the single step is lost");
    let mut cpu = with_selector(&code);
    arm(&mut cpu, 0, CODE + 2, EXECUTE, 0);
    arm(&mut cpu, 1, CODE + 3, EXECUTE, 0);
    assert_eq!(trap(&mut cpu), (3, 2), "an instruction breakpoint is masked");
    // INT 41H behind it: the trap comes before the handler's first instruction.
    let mut cpu = with_selector(&[0x8e, 0x17, 0xcd, 0x41]);
    arm(&mut cpu, 0, DATA, ACCESS, 1);
    let entered = run(&mut cpu);
    assert_eq!((entered.vector, entered.rip), (1, HANDLERS + 16 * 0x41));
}

#[test]
fn what_a_load_of_ss_holds_back_is_lost_to_an_exception() {
    // MOV SS, [RDI], then ICEBP, UD2, or a general-detect fault.
    let with_selector = |bytes: &[u8]| {
        let mut cpu = machine(&[&[0x8e, 0x17], bytes].concat());
        cpu.memory.write(Gpa(DATA), &[0x10, 0]).unwrap();
        arm(&mut cpu, 0, DATA, ACCESS, 1);
        cpu
    };
    for (bytes, vector, at, dr6) in
        [(&[0xf1][..], 1, 3, 0), (&[0x0f, 0x0b], 6, 2, 0), (&[0x0f, 0x21, 0xd8], 1, 2, dr6::BD)]
    {
        let mut cpu = with_selector(bytes);
        if dr6 != 0 {
            cpu.state.dr7 |= dr7::GD;
            cpu.debug.owned = true;
        }
        let entered = run(&mut cpu);
        assert_eq!((entered.vector, entered.rip - CODE), (vector, at), "{bytes:x?}");
        assert_eq!((cpu.state.dr6, cpu.state.pending_debug), (dr6::FIXED | dr6, 0), "{bytes:x?}");
    }
    // What the exception's own delivery meets is not: the trap comes before the handler's first instruction.
    let mut cpu = with_selector(&[0xf1]);
    arm(&mut cpu, 1, STACK - 8, WRITE, 2);
    let entered = run(&mut cpu);
    assert_eq!((entered.vector, entered.rip), (1, HANDLERS + 16));
    assert_eq!(cpu.state.dr6, dr6::FIXED | 2);
}

#[test]
fn sti_holds_back_no_debug_exception_and_its_shadow_ends_with_one() {
    let mut cpu = machine(&[0xfb, NOP, NOP]);
    cpu.state.rflags |= rflags::TF;
    assert_eq!(trap(&mut cpu), (1, dr6::BS));
    assert!(!cpu.state.interrupt_shadow);
}

#[test]
fn syscall_and_sysret_go_by_the_new_trap_flag() {
    for (mask, traps) in [(0, true), (rflags::TF, false)] {
        let mut cpu = machine(&[0x0f, 0x05]);
        user(&mut cpu);
        cpu.state.star = 0x13 << 48 | 8 << 32;
        cpu.state.lstar = HANDLERS + 16 * 0x50;
        cpu.state.fmask = mask;
        cpu.state.rflags |= rflags::TF;
        if traps {
            let entered = run(&mut cpu);
            assert_eq!((entered.vector, entered.rip), (1, HANDLERS + 16 * 0x50));
        } else {
            assert_eq!(cpu.run(Until::default()), Exit::Hlt);
            assert_eq!(cpu.state.rip, HANDLERS + 16 * 0x50 + 1);
        }
    }
    // SYSRET with TF in R11: the trap comes at once, in the program.
    let mut cpu = machine(&[0x48, 0x0f, 0x07]);
    cpu.state.star = 0x0b << 48 | 8 << 32;
    cpu.state.gpr[reg::RCX] = CODE + 8;
    cpu.state.gpr[reg::R11] = rflags::TF | rflags::FIXED;
    assert_eq!(trap(&mut cpu), (8, dr6::BS));
}

#[test]
fn a_single_step_wakes_from_hlt() {
    let mut cpu = machine(&[HLT]);
    cpu.state.rflags |= rflags::TF;
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!((cpu.state.activity, cpu.state.rip), (Activity::Active, HANDLERS + 16));
    assert_eq!(get(&cpu, cpu.state.gpr[reg::RSP]), CODE + 1);
}

#[test]
fn general_detect_faults_before_the_access() {
    // MOV RAX, DR0.
    let mut cpu = machine(&[0x0f, 0x21, 0xc0, HLT]);
    cpu.state.dr7 |= dr7::GD;
    assert_eq!(cpu.run(Until::default()), Exit::DrAccess);
    cpu.resume(Resume::Done);
    let entered = run(&mut cpu);
    assert_eq!((entered.vector, entered.rip, entered.flags & rflags::RF), (1, CODE, rflags::RF));
    assert_eq!((cpu.state.dr6 & !dr6::FIXED, cpu.state.dr7 & dr7::GD), (dr6::BD, 0));
}

#[test]
fn the_guest_holds_its_debug_registers_until_the_next_exit() {
    // MOV DR0, RDI; MOV DR6, RAX; CPUID; MOV DR1, RDI; HLT.
    let code = [0x0f, 0x23, 0xc7, 0x0f, 0x23, 0xf0, 0x0f, 0xa2, 0x0f, 0x23, 0xcf, HLT];
    let mut cpu = machine(&code);
    cpu.state.gpr[reg::RAX] = 0;
    assert_eq!(cpu.run(Until::default()), Exit::DrAccess);
    cpu.resume(Resume::Done);
    assert!(matches!(cpu.run(Until::default()), Exit::Cpuid { .. }), "the second is the guest's");
    assert_eq!((cpu.state.dr[0], cpu.state.dr6), (DATA, dr6::FIXED));
    cpu.resume(Resume::Cpuid(Default::default()));
    assert_eq!(cpu.run(Until::default()), Exit::DrAccess);
    cpu.resume(Resume::Done);
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!(cpu.state.dr[1], DATA);
}

#[test]
fn reserved_bits_of_dr6_and_dr7_are_fixed_or_fault() {
    for (modrm, upper, expected) in [
        (0xf0, false, dr6::FIXED | dr6::WRITABLE),
        (0xf8, false, dr7::FIXED | dr7::WRITABLE),
        (0xf0, true, 0),
        (0xf8, true, 0),
        // DR4 and DR5 are DR6 and DR7, without debugging extensions.
        (0xe0, false, dr6::FIXED | dr6::WRITABLE),
    ] {
        let mut cpu = machine(&[0x0f, 0x23, modrm, HLT]);
        cpu.state.gpr[reg::RAX] = if upper { 1 << 32 } else { 0xffff_ffff & !dr7::ENABLED | 0xf };
        let exit = cpu.run(Until::default());
        assert_eq!(exit, Exit::DrAccess);
        cpu.resume(Resume::Done);
        if upper {
            assert_eq!(run(&mut cpu).vector, 13);
        } else {
            assert_eq!(cpu.run(Until::default()), Exit::Hlt);
            let found = if modrm == 0xf8 { cpu.state.dr7 & !0xff } else { cpu.state.dr6 };
            assert_eq!(found, if modrm == 0xf8 { expected & !0xff } else { expected });
        }
    }
    let mut cpu = machine(&[0x0f, 0x23, 0xe0]);
    cpu.state.cr4 |= cr4::DE;
    assert_eq!(run(&mut cpu).vector, 6, "DR4 with debugging extensions");
}

#[test]
fn traps_of_an_instruction_come_together_and_before_interrupts() {
    let mut cpu = machine(&[0x88, 0x07, NOP]);
    arm(&mut cpu, 0, DATA, WRITE, 0);
    arm(&mut cpu, 3, DATA, ACCESS, 0);
    arm(&mut cpu, 1, CODE + 2, EXECUTE, 0);
    cpu.state.rflags |= rflags::TF | rflags::IF;
    cpu.request_window(Window::Interrupt, true);
    // Else the window would be open before the first instruction.
    cpu.state.interrupt_shadow = true;
    assert_eq!(trap(&mut cpu), (2, dr6::BS | 9), "the code breakpoint is of the next instruction");
    go_back(&mut cpu, |flags| flags & !rflags::TF);
    assert_eq!(cpu.run(Until::default()), Exit::InterruptWindow, "which comes before that");
    cpu.request_window(Window::Interrupt, false);
    assert_eq!(trap(&mut cpu), (2, dr6::BS | 2), "BS is sticky");
}

#[test]
fn what_a_delivery_pushes_is_watched_too() {
    let mut cpu = machine(&[0xcd, 0x41]);
    arm(&mut cpu, 0, STACK - 16, WRITE, 3);
    let entered = run(&mut cpu);
    assert_eq!(
        (entered.vector, entered.rip),
        (1, HANDLERS + 16 * 0x41),
        "at the handler's first instruction"
    );
}

fn plan(breakpoints: &[u64], watchpoints: &[Watchpoint], step: bool) -> DebugPlan {
    DebugPlan { breakpoints: breakpoints.to_vec(), watchpoints: watchpoints.to_vec(), step, nested: None }
}

#[test]
fn a_debugger_outside_stops_before_instructions_and_after_accesses() {
    // INC EAX; MOV [RDI+2], EAX; MOV EAX, [RDI]; HLT.
    let mut cpu = machine(&[0xff, 0xc0, 0x89, 0x47, 0x02, 0x8b, 0x07, HLT]);
    // Watched data in two pages.
    let range = |access| Watchpoint { address: DATA + 3, len: 0x1000, access };
    cpu.debug.set_plan(plan(&[CODE + 2], &[range(WatchAccess::Write)], false));
    assert_eq!(cpu.run(Until::default()), Exit::Debug(DebugCause::Breakpoint));
    assert_eq!((cpu.state.rip, cpu.state.gpr[reg::RAX]), (CODE + 2, 1));
    assert_eq!(cpu.run(Until::default()), Exit::Debug(DebugCause::Breakpoint), "nothing was executed");
    cpu.debug.set_plan(plan(&[], &[range(WatchAccess::Write)], false));
    assert_eq!(cpu.run(Until::default()), Exit::Debug(DebugCause::Watchpoint(range(WatchAccess::Write))));
    assert_eq!(cpu.state.rip, CODE + 5);
    cpu.debug.set_plan(plan(&[], &[range(WatchAccess::Read)], false));
    assert_eq!(cpu.run(Until::default()), Exit::Debug(DebugCause::Watchpoint(range(WatchAccess::Read))));
    assert_eq!(cpu.state.rip, CODE + 7);
    cpu.debug.set_plan(DebugPlan::default());
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!((cpu.state.dr6, cpu.state.dr7), (dr6::FIXED, dr7::FIXED), "the guest has seen nothing");
}

#[test]
fn a_debugger_outside_steps_instructions_iterations_and_deliveries() {
    // REP STOSB; CPUID; UD2.
    let mut cpu = machine(&[0xf3, 0xaa, 0x0f, 0xa2, 0x0f, 0x0b]);
    cpu.state.gpr[reg::RCX] = 2;
    let step = |cpu: &mut Machine| {
        cpu.debug.set_plan(plan(&[], &[], true));
        let exit = cpu.run(Until::default());
        (exit == Exit::Debug(DebugCause::Step)).then_some(cpu.state.rip)
    };
    assert_eq!(step(&mut cpu), Some(CODE));
    assert_eq!(step(&mut cpu), Some(CODE + 2));
    assert_eq!(step(&mut cpu), None);
    cpu.resume(Resume::Cpuid(Default::default()));
    assert_eq!(cpu.run(Until::default()), Exit::Debug(DebugCause::Step), "the step was not over");
    assert_eq!(cpu.state.rip, CODE + 4);
    assert_eq!(step(&mut cpu), Some(HANDLERS + 16 * 6), "the fault was delivered");
    cpu.pending.injected = Some(satori_engine::Event::Interrupt(0x40));
    assert_eq!(step(&mut cpu), Some(HANDLERS + 16 * 0x40));
}

#[test]
fn locked_operations_on_watched_pages_stay_atomic() {
    // LOCK XADD [RDI], EAX next to what is watched.
    let mut cpu = machine(&[0xf0, 0x0f, 0xc1, 0x07, HLT]);
    cpu.memory.write(Gpa(DATA), &5u32.to_le_bytes()).unwrap();
    cpu.state.gpr[reg::RAX] = 3;
    arm(&mut cpu, 0, DATA + 64, WRITE, 0);
    assert_eq!(cpu.run(Until::default()), Exit::Hlt);
    assert_eq!((get(&cpu, DATA) as u32, cpu.state.gpr[reg::RAX], cpu.state.rip), (8, 5, CODE + 5));
}

#[test]
fn a_look_up_changes_nothing_and_knows_all_paging_modes() {
    let cpu = machine64();
    let entry = get(&cpu, 0x3000 + 8);
    assert_eq!(cpu.look_up(0x20_1234), Some(0x20_1234));
    assert_eq!(get(&cpu, 0x3000 + 8), entry, "no accessed bit");
    assert_eq!(cpu.look_up(1 << 47), None, "not canonical");
    assert_eq!(cpu.look_up(1 << 40), None, "not mapped");
    let mut cpu = crate::testing::machine32();
    assert_eq!((cpu.look_up(0x1234), cpu.look_up(1 << 32)), (Some(0x1234), None));
    // 32-bit paging: a 4-MiB page at 0x40_0000, a 4-KiB page at 0x1000.
    let put = |at: u64, value: u32| cpu.memory.write(Gpa(at), &value.to_le_bytes()).unwrap();
    put(0x1_0004, 0x80_0083);
    put(0x1_0000, 0x1_1001);
    put(0x1_1004, 0x5_5001);
    cpu.state.cr0 |= satori_defs::x86::cr0::PG;
    cpu.state.cr3 = 0x1_0000;
    cpu.state.cr4 = cr4::PSE;
    assert_eq!(cpu.look_up(0x41_2345), Some(0x81_2345));
    assert_eq!((cpu.look_up(0x1abc), cpu.look_up(0x2abc)), (Some(0x5_5abc), None));
}
