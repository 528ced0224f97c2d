//! SVM as a guest has it (APM volume 2, chapter 15): instructions and their faults, what VMRUN accepts, intercepts with what they
//! tell, the permission maps' ends, injection, virtual events, nested paging. The guest's guest is a few bytes of this program.

#![no_std]
#![no_main]

mod lasting;
mod machine;
mod signals;
mod virtualized;
mod waits;

use lasting::lasting;
use machine::{Machine, SVME, at};
use satori_guests::cpu::Gate;
use satori_guests::defs::x86::vector;
use satori_guests::{Expect, Subject, Test, code, guest, insn, l2, paging};
use signals::signals;
use virtualized::{nested, virtual_events};
use waits::waits;

guest!(
    "svm",
    outside,
    refused,
    intercepts,
    hot,
    maps,
    injection,
    virtual_events,
    nested,
    lasting,
    signals,
    waits
);

const INVALID: u64 = u64::MAX;
const CPUID: u64 = 0x72;

/// Without EFER.SVME the instructions do not exist; with it they are the kernel's, and want a page.
fn outside(t: &mut Test) {
    let ud = || Expect::fault(vector::UD);
    t.event("VMRUN", &Subject::kernel(code!("vmrun rax")).run(), ud());
    t.event("STGI", &Subject::kernel(code!("stgi")).run(), ud());
    t.event("VMMCALL's kin VMLOAD", &Subject::kernel(code!("vmload rax")).run(), ud());
    let machine = Machine::new();
    t.event("at level 3", &Subject::user(code!("vmsave rax")).run(), Expect::gp(0));
    t.event("no page", &Subject::kernel(code!("mov eax, 0x10008" => "vmrun rax")).run(), Expect::gp(0));
    t.event("beyond memory", &Subject::kernel(code!("mov rax, -4096" => "vmload rax")).run(), Expect::gp(0));
    t.event("SKINIT", &Subject::kernel(code!("skinit eax")).run(), ud());
    machine.end();
}

/// One rule broken is VMEXIT_INVALID, in all 64 bits, and the guest has done nothing.
fn refused(t: &mut Test) {
    let machine = Machine::new();
    let cpuid = [0x0f, 0xa2];
    t.eq("what is fine", (machine.run(&cpuid), machine.get(at::NEXT_RIP)), (CPUID, machine.code + 2));
    for (name, offset, value) in [
        ("no ASID", at::ASID, 0),
        ("EFER without SVME", at::EFER, insn::rdmsr(0xc000_0080) & !SVME),
        ("EFER's reserved bits", at::EFER, insn::rdmsr(0xc000_0080) | 1 << 20),
        ("CR0 beyond 32 bits", at::CR0, insn::cr0() | 1 << 32),
        ("NW without CD", at::CR0, insn::cr0() & !(3 << 29) | 1 << 29),
        ("long mode without protection", at::CR0, insn::cr0() & !1),
        ("long mode without PAE", at::CR4, insn::cr4() & !(1 << 5)),
        ("CR4's reserved bits", at::CR4, insn::cr4() | 1 << 31),
        ("CR3 beyond memory", at::CR3, 1 << 51),
        ("DR6", at::DR6, 1 << 32),
        ("DR7", at::DR7, 1 << 32),
        ("long and big", at::SEGMENTS + 16, 0xe9b_0008),
        ("an event's type", at::INJECT, 1 << 31 | 1 << 8),
        ("an NMI as an exception", at::INJECT, 1 << 31 | 3 << 8 | 2),
        ("virtual NMIs alone", at::CONTROL, 1 << 26),
    ] {
        machine.fresh();
        machine.set(offset, value);
        t.eq(name, machine.run(&cpuid), INVALID);
        t.eq((name, "RIP"), machine.get(at::RIP), machine.code);
    }
    machine.fresh();
    // SAFETY: the page is this machine's.
    unsafe { ((machine.vmcb + at::FOURTH as u64) as *mut u32).write_volatile(0) };
    t.eq("VMRUN not intercepted", machine.run(&cpuid), INVALID);
    machine.end();
}

/// An instruction and its code, the word and the bits that make it exit; code, EXITINFO1, EXITINFO2 beyond RIP, length.
type Intercept = (&'static str, &'static [u8], usize, u32, [u64; 4]);

fn intercepts(t: &mut Test) {
    let machine = Machine::new();
    let mov = |register: u64| 1 << 63 | register;
    let cases: &[Intercept] = &[
        ("CPUID", &[0x0f, 0xa2], at::THIRD, 0, [CPUID, 0, 0, 2]),
        ("HLT", &[0xf4], at::THIRD, 1 << 24, [0x78, 0, 0, 1]),
        ("INVD", &[0x0f, 0x08], at::THIRD, 1 << 22, [0x76, 0, 0, 2]),
        ("INVLPG", &[0x0f, 0x01, 0x3c, 0x25, 0x34, 0x12, 0, 0], at::THIRD, 1 << 25, [0x79, 0x1234, 0, 8]),
        ("RDTSC", &[0x0f, 0x31], at::THIRD, 1 << 14, [0x6e, 0, 0, 2]),
        ("RDTSCP", &[0x0f, 0x01, 0xf9], at::FOURTH, 1 << 7, [0x87, 0, 0, 3]),
        ("RDPMC", &[0x0f, 0x33], at::THIRD, 1 << 15, [0x6f, 0, 0, 2]),
        ("PUSHF", &[0x9c], at::THIRD, 1 << 16, [0x70, 0, 0, 1]),
        ("POPF", &[0x9d], at::THIRD, 1 << 17, [0x71, 0, 0, 1]),
        ("IRET", &[0x48, 0xcf], at::THIRD, 1 << 20, [0x74, 0, 0, 2]),
        ("INT", &[0xcd, 0x42], at::THIRD, 1 << 21, [0x75, 0x42, 0, 2]),
        ("INT1", &[0xf1], at::FOURTH, 1 << 8, [0x88, 0, 0, 1]),
        ("PAUSE", &[0xf3, 0x90], at::THIRD, 1 << 23, [0x77, 0, 0, 2]),
        ("RSM", &[0x0f, 0xaa], at::THIRD, 1 << 19, [0x73, 0, 0, 2]),
        ("MOV CR3", &[0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8], at::CR, 1 << 19, [0x13, mov(0), 0, 3]),
        ("MOV from CR3", &[0x41, 0x0f, 0x20, 0xda], at::CR, 1 << 3, [0x03, mov(10), 0, 4]),
        ("MOV from CR8", &[0x44, 0x0f, 0x20, 0xc3], at::CR, 1 << 8, [0x08, mov(3), 0, 4]),
        ("CLTS", &[0x0f, 0x06], at::CR, 1 << 16, [0x10, 0, 0, 2]),
        ("SMSW", &[0x0f, 0x01, 0xe0], at::CR, 1, [0x00, 0, 0, 3]),
        // MOV RAX,CR0; XOR AL,20; MOV CR0,RAX.
        (
            "a write of CR0 that changes NE",
            &[0x0f, 0x20, 0xc0, 0x34, 0x20, 0x0f, 0x22, 0xc0],
            at::THIRD,
            1 << 5,
            [0x65, mov(0), 0, 3],
        ),
        // MOV RAX,CR0; XOR AL,8; MOV CR0,RAX; CPUID.
        (
            "one that changes TS",
            &[0x0f, 0x20, 0xc0, 0x34, 0x08, 0x0f, 0x22, 0xc0, 0x0f, 0xa2],
            at::THIRD,
            1 << 5,
            [CPUID, 0, 0, 2],
        ),
        ("MOV from DR7", &[0x0f, 0x21, 0xfb], at::DR, 1 << 7, [0x27, 3, 0, 3]),
        ("MOV DR0", &[0x0f, 0x23, 0xc6], at::DR, 1 << 16, [0x30, 6, 0, 3]),
        ("SIDT", &[0x0f, 0x01, 0x4c, 0x24, 0xf0], at::THIRD, 1 << 6, [0x66, 0, 0, 5]),
        ("STR", &[0x0f, 0x00, 0xc8], at::THIRD, 1 << 9, [0x69, 0, 0, 3]),
        ("LLDT", &[0x0f, 0x00, 0xd0], at::THIRD, 1 << 12, [0x6c, 0, 0, 3]),
        ("WBINVD", &[0x0f, 0x09], at::FOURTH, 1 << 9, [0x89, 0, 0, 2]),
        ("MONITOR", &[0x0f, 0x01, 0xc8], at::FOURTH, 1 << 10, [0x8a, 0, 0, 3]),
        ("MWAIT", &[0x0f, 0x01, 0xc9], at::FOURTH, 1 << 11, [0x8b, 0, 0, 3]),
        ("VMMCALL", &[0x0f, 0x01, 0xd9], at::FOURTH, 1 << 1, [0x81, 0, 0, 3]),
        ("VMMCALL that nobody wants", &[0x0f, 0x01, 0xd9], at::EXCEPTIONS, 1 << 6, [0x46, 0, 0, 0]),
        ("VMCALL, which is Intel's", &[0x0f, 0x01, 0xc1], at::EXCEPTIONS, 1 << 6, [0x46, 0, 0, 0]),
        ("VMRUN", &[0x0f, 0x01, 0xd8], at::FOURTH, 1, [0x80, 0, 0, 3]),
        ("VMLOAD", &[0x0f, 0x01, 0xda], at::FOURTH, 1 << 2, [0x82, 0, 0, 3]),
        ("STGI", &[0x0f, 0x01, 0xdc], at::FOURTH, 1 << 4, [0x84, 0, 0, 3]),
        ("CLGI", &[0x0f, 0x01, 0xdd], at::FOURTH, 1 << 5, [0x85, 0, 0, 3]),
        ("#UD", &[0x0f, 0x0b], at::EXCEPTIONS, 1 << 6, [0x46, 0, 0, 0]),
        ("INT3", &[0xcc], at::EXCEPTIONS, 1 << 3, [0x43, 0, 0, 1]),
        // MOV AX,33; MOV DS,AX, which is a selector beyond the GDT.
        ("#GP", &[0x66, 0xb8, 0xf8, 0x7f, 0x8e, 0xd8], at::EXCEPTIONS, 1 << 13, [0x4d, 0x7ff8, 0, 0]),
        ("a shutdown", &[0x0f, 0x01, 0x1c, 0x24, 0x0f, 0x0b], at::THIRD, 0, [0x7f, 0, 0, 0]),
    ];
    for (name, code, word, bits, told) in cases {
        machine.fresh();
        machine.with(*word, *bits);
        if told[0] == 0x7f {
            // LIDT of what the stack has: nothing.
            machine.set(at::RSP, machine.stack - 64);
        }
        t.eq(name, machine.run(code), told[0]);
        t.eq((name, "EXITINFO1"), machine.get(at::INFO1), told[1]);
        if told[3] != 0 {
            let length = machine.get(at::NEXT_RIP).wrapping_sub(machine.get(at::RIP));
            t.eq((name, "length"), length, told[3]);
        }
    }
    machine.end();
}

/// Code that has run often leaves by what is intercepted now, and by nothing that was.
fn hot(t: &mut Test) {
    let machine = Machine::new();
    let code = l2!("mov ecx, 50000", "2:", "pushfq", "popfq", "rdtsc", "dec ecx", "jnz 2b", ".byte 0xf1");
    let [pushf, popf, rdtsc, int1] = [5, 6, 7, 13];
    for (name, third, told, at) in [
        ("INT1 behind a loop", 0, 0x88, int1),
        ("PUSHF in it", 1 << 16, 0x70, pushf),
        ("INT1 again", 0, 0x88, int1),
        ("POPF in it", 1 << 17, 0x71, popf),
        ("RDTSC in it", 1 << 14, 0x6e, rdtsc),
        ("INT1 at last", 0, 0x88, int1),
    ] {
        machine.fresh();
        machine.with(at::THIRD, third);
        machine.with(at::FOURTH, 1 << 8);
        machine.set(at::RIP, code);
        machine.enter();
        t.eq(name, (machine.get(at::CODE), machine.get(at::RIP)), (told, code + at));
    }
    machine.end();
}

/// Ports and MSRs by their maps, at the maps' ends.
fn maps(t: &mut Test) {
    let machine = Machine::new();
    let byte = |at: u64, value: u8| {
        // SAFETY: the pages are this machine's.
        unsafe { ((machine.map + at) as *mut u8).write_volatile(value) };
    };
    let cpuid = CPUID;
    for (name, at, bits, code, wanted, info1) in [
        // MOV DX,port; IN or OUT; CPUID.
        ("a port", 0x10, 1, [0x66, 0xba, 0x80, 0, 0xec, 0x0f, 0xa2], 0x7b, 0x80_0211),
        ("the one before", 0x10, 1, [0x66, 0xba, 0x7f, 0, 0xec, 0x0f, 0xa2], cpuid, 0),
        ("two of which it is one", 0x10, 1, [0x66, 0xba, 0x7e, 0, 0xed, 0x0f, 0xa2], 0x7b, 0x7e_0241),
        (
            "the last with three behind it",
            0x2000,
            2,
            [0x66, 0xba, 0xff, 0xff, 0xef, 0x0f, 0xa2],
            0x7b,
            0xffff_0240,
        ),
        ("the last without", 0x2000, 8, [0x66, 0xba, 0xff, 0xff, 0xef, 0x0f, 0xa2], cpuid, 0),
    ] {
        machine.fresh();
        machine.with(at::THIRD, 1 << 27);
        byte(at, bits);
        let seen = machine.run(&code);
        byte(at, 0);
        t.eq(name, (seen, if wanted == cpuid { 0 } else { machine.get(at::INFO1) }), (wanted, info1));
        if wanted != cpuid {
            t.eq((name, "next RIP"), machine.get(at::INFO2), machine.code + 5);
        }
    }
    for (name, number, at, bits, write, wanted) in [
        ("STAR", 0xc000_0081_u32, 0x820, 1 << 2, 0, 0x7c),
        ("a write", 0xc000_0081, 0x820, 1 << 3, 1, 0x7c),
        ("TSC", 0x10, 4, 1, 0, 0x7c),
        ("VM_CR", 0xc001_0114, 0x1045, 1, 0, 0x7c),
        ("one that has no place", 0x4000_0000, 0, 0, 0, 0x7c),
        ("one behind the first part", 0x2000, 0, 0, 1, 0x7c),
    ] {
        machine.fresh();
        machine.with(at::THIRD, 1 << 28);
        byte(at, bits);
        // MOV ECX,number; RDMSR, and WRMSR of the same; CPUID.
        let mut code = [0xb9, 0, 0, 0, 0, 0x0f, 0x32, 0x0f, 0x30, 0x0f, 0xa2];
        code[1..5].copy_from_slice(&number.to_le_bytes());
        if write == 0 || wanted == 0x7c && bits == 0 {
            code[7..9].copy_from_slice(&[0x90, 0x90]);
        }
        let seen = machine.run(&code);
        byte(at, 0);
        let info1 = if wanted == 0x7c { machine.get(at::INFO1) } else { 0 };
        let told = if wanted == 0x7c && bits != 0 { write } else { 0 };
        t.eq(name, (seen, info1), (wanted, told));
    }
    machine.end();
}

/// Every kind of event arrives with what it pushes, and one whose delivery fails is told again.
fn injection(t: &mut Test) {
    let machine = Machine::new();
    let idt = paging::page();
    let handler = machine.code + 0x100;
    // SAFETY: both pages are this case's.
    unsafe {
        for number in 0..256 {
            (idt as *mut Gate).add(number).write(Gate::interrupt(handler));
        }
        (handler as *mut [u8; 2]).write([0x0f, 0xa2]);
    }
    for (name, info, next, pushed) in [
        ("an interrupt", 0x30_u64, 0, 0),
        ("an NMI", 2 << 8 | 2, 0, 0),
        ("an NMI without a vector", 2 << 8, 0, 0),
        ("#UD", 3 << 8 | 6, 0, 0),
        ("#GP", 0x1234 << 32 | 1 << 11 | 3 << 8 | 13, 0, 0x1234),
        ("INT n", 4 << 8 | 0x40, 2, 0),
        ("INT3", 3 << 8 | 3, 1, 0),
    ] {
        machine.fresh();
        machine.set(at::RFLAGS, 0x202);
        machine.set(at::SEGMENTS + 16 * 8, 0xfff << 32);
        machine.set(at::SEGMENTS + 16 * 8 + 8, idt);
        machine.set(at::INJECT, 1 << 31 | info);
        machine.set(at::NEXT_RIP, machine.code + next);
        t.eq(name, machine.run(&[0x0f, 0x0b]), CPUID);
        t.eq((name, "the handler"), machine.get(at::RIP), handler);
        let stack = machine.get(at::RSP);
        // SAFETY: it is the guest's stack.
        let word = |at: u64| unsafe { ((stack + 8 * at) as *const u64).read_volatile() };
        let with_code = info >> 11 & 1;
        if with_code != 0 {
            t.eq((name, "error code"), word(0), pushed);
        }
        t.eq((name, "RIP"), word(with_code), machine.code + next);
        t.eq((name, "once"), machine.get(at::INJECT) >> 31 & 1, 0);
        t.eq((name, "told"), machine.get(at::EXIT_EVENT) >> 31 & 1, 0);
    }
    machine.fresh();
    machine.set(at::RFLAGS, 0x202);
    machine.set(at::SEGMENTS + 16 * 8, 0);
    machine.with(at::EXCEPTIONS, 1 << 13);
    machine.set(at::INJECT, 1 << 31 | 0x30);
    t.eq("no gate", (machine.run(&[0x0f, 0x0b]), machine.get(at::INFO1)), (0x4d, 0x30 * 8 + 3));
    t.eq("what was injected", machine.get(at::EXIT_EVENT), 0x8000_0030);
    machine.end();
}
